package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// The statements here are DDL, which `run` never executes: only a command does, because
// somebody has asked for it.

// ChangePartitions runs the statement of PlanPartitions. Behind somebody's open
// transaction on the table it gives up after a few tries of two seconds: while it waits,
// everybody else does.
func (l *Ledger) ChangePartitions(ctx context.Context, statement string) error {
	return l.besideOthers(ctx, func() error {
		_, err := l.db.ExecContext(ctx, statement)
		return err
	})
}

// besideOthers tries again what waited for somebody's transaction, with a pause in which
// others get on.
func (l *Ledger) besideOthers(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if !isNumber(err, errLockWait, errDeadlock) {
			return err
		}
		if try == triesMax {
			return fmt.Errorf("somebody's transaction keeps the table for long; try again when it has ended: %w", err)
		}
		if err := rest(ctx, time.Second); err != nil {
			return err
		}
	}
}

// MayDropPartition returns the rows of a partition, and an error, ErrPartition mostly, if
// DropPartition would refuse.
func (l *Ledger) MayDropPartition(ctx context.Context, table outbox.Table, name string, failed bool) (map[outbox.Status]int64, error) {
	p, err := l.droppable(ctx, table, name)
	if err != nil {
		return nil, err
	}
	rows, err := p.countRows(ctx, l.db, name)
	if err != nil {
		return nil, fmt.Errorf("counting the rows of partition %s of %s: %w", name, table, err)
	}
	return rows, refuseUnsent(table, name, rows, failed)
}

func (l *Ledger) droppable(ctx context.Context, table outbox.Table, name string) (*partitioning, error) {
	p, err := l.partitioning(ctx, table)
	if err != nil {
		return nil, err
	}
	if l.o.None || p.deletes || !p.Has(outbox.RoleStatus) {
		return nil, fmt.Errorf("%w: nothing in %s says which rows are sent (no status column, or LEDGER is not status)", ErrPartition, table)
	}
	var names []string
	found := false
	for _, part := range p.parts {
		names = append(names, part.Name)
		found = found || part.Name == name
	}
	if !found {
		return nil, fmt.Errorf("%w: table %s has no partition %s; it has %s", ErrPartition, table, name, strings.Join(names, ", "))
	}
	heads, err := l.indexHeads(ctx, p.table)
	if err != nil {
		return nil, err
	}
	status, _ := p.Column(outbox.RoleStatus)
	for _, head := range heads {
		if head.is(status.Name) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: no index of %s begins with %s, so nobody could write while the partition is looked through", ErrPartition, table, status.Name)
}

// refuseUnsent is the error for rows that would be lost; failed says that FAILED ones may be.
func refuseUnsent(table outbox.Table, name string, rows map[outbox.Status]int64, failed bool) error {
	var left []string
	for _, s := range []outbox.Status{outbox.Pending, outbox.Processing, outbox.Failed, outbox.Other} {
		if n := rows[s]; n > 0 && (s != outbox.Failed || !failed) {
			left = append(left, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%w: partition %s of %s holds rows that are not sent: %s", ErrPartition, name, table, strings.Join(left, ", "))
}

// DropPartition drops a partition whose rows are all SENT, or FAILED if failed allows
// that, and returns what it held. ErrPartition: there are others.
//
// What must hold: between the count and the drop nobody writes to the table. Otherwise a
// row that slips in, or is requeued, goes with the partition. LOCK TABLES waits for every
// transaction that has touched the table and keeps new ones out, in this session alone
// (TestNoRowSlipsIntoADroppedPartition).
func (l *Ledger) DropPartition(ctx context.Context, table outbox.Table, name string, failed bool) (rows map[outbox.Status]int64, err error) {
	if rows, err = l.MayDropPartition(ctx, table, name, failed); err != nil {
		return rows, err
	}
	p, err := l.droppable(ctx, table, name)
	if err != nil {
		return nil, err
	}
	err = l.besideOthers(ctx, func() error {
		rows, err = l.dropLocked(ctx, p, name, failed)
		return err
	})
	if err != nil && !errors.Is(err, ErrPartition) {
		err = fmt.Errorf("dropping partition %s of %s: %w", name, table, err)
	}
	return rows, err
}

func (l *Ledger) dropLocked(ctx context.Context, p *partitioning, name string, failed bool) (rows map[outbox.Status]int64, err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endSession(conn)) }() // and with it the lock, whatever has happened
	if _, err := conn.ExecContext(ctx, "LOCK TABLES "+p.name+" WRITE"); err != nil {
		return nil, err
	}
	if rows, err = p.countRows(ctx, conn, name); err != nil {
		return nil, err
	}
	if err := refuseUnsent(p.Table, name, rows, failed); err != nil {
		return rows, err
	}
	_, err = conn.ExecContext(ctx, "ALTER TABLE "+p.name+" DROP PARTITION "+quote(name))
	return rows, err
}

// endSession closes a connection instead of giving it back to the pool.
func endSession(conn *sql.Conn) error {
	err := conn.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		err = nil
	}
	if closing := conn.Close(); closing != nil && !errors.Is(closing, sql.ErrConnDone) && !errors.Is(closing, driver.ErrBadConn) {
		err = errors.Join(err, closing)
	}
	return err
}
