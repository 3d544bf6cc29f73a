package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// The statements here are DDL, which `run` never executes: only a command does, because
// somebody has asked for it.

// ChangePartitions runs the statement of PlanPartitions. Behind somebody's open
// transaction on the table it gives up after a few tries of two seconds: while it waits,
// everybody else does.
func (l *Ledger) ChangePartitions(ctx context.Context, table outbox.Table, statement string) error {
	t, err := l.table(table)
	if err != nil {
		return err
	}
	err = l.alone(ctx, t, func(conn *sql.Conn) error { return t.change(ctx, conn, statement) })
	if err != nil {
		return fmt.Errorf("changing the partitions of %s: %w", table, err)
	}
	return nil
}

// alone runs do in a session that has the table to itself: all transactions that have
// touched it have ended. It tries again what waited for somebody's transaction, with a
// pause in which others get on.
func (l *Ledger) alone(ctx context.Context, t *table, do func(*sql.Conn) error) error {
	for try := 1; ; try++ {
		err := l.lockTable(ctx, t, do)
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

func (l *Ledger) lockTable(ctx context.Context, t *table, do func(*sql.Conn) error) (err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endSession(conn)) }() // and with it the lock, whatever has happened
	if _, err := conn.ExecContext(ctx, "LOCK TABLES "+t.name+" WRITE"); err != nil {
		return err
	}
	return do(conn)
}

// change runs a statement that changes partitions, in a session that has the table alone.
//
// What must hold: afterwards the server does not give an id again that it has given
// before. MariaDB counts in each partition, so it would when the one with the newest ids
// goes, and consumers would take the new events for copies of the old ones
// (TestPartitionsComeAndGoWithoutReuseOfIDs).
func (t *table) change(ctx context.Context, conn *sql.Conn, statement string) error {
	before, err := t.nextID(ctx, conn)
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, statement); err != nil {
		return err
	}
	after, err := t.nextID(ctx, conn)
	if err == nil && after < before {
		_, err = conn.ExecContext(ctx, fmt.Sprintf("ALTER TABLE %s AUTO_INCREMENT = %d, ALGORITHM = INPLACE", t.name, before))
	}
	if err != nil {
		return fmt.Errorf("the partitions are changed, but ids may be given again: run ALTER TABLE %s AUTO_INCREMENT = %d: %w", t.name, before, err)
	}
	return nil
}

var autoIncrement = regexp.MustCompile(` AUTO_INCREMENT=(\d+)`)

// nextID is what the table's AUTO_INCREMENT counter gives next; 0: it has none, or it is
// at its start. information_schema may tell a day-old number.
func (t *table) nextID(ctx context.Context, conn *sql.Conn) (uint64, error) {
	var name, text string
	if err := conn.QueryRowContext(ctx, "SHOW CREATE TABLE "+t.name).Scan(&name, &text); err != nil {
		return 0, fmt.Errorf("asking for the next id of %s: %w", t.Table, err)
	}
	_, options, _ := strings.Cut(text, "\n) ")
	found := autoIncrement.FindStringSubmatch(" " + options)
	if found == nil {
		return 0, nil
	}
	return strconv.ParseUint(found[1], 10, 64)
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
	err = l.alone(ctx, p.table, func(conn *sql.Conn) (err error) {
		if rows, err = p.countRows(ctx, conn, name); err != nil {
			return err
		}
		if err := refuseUnsent(table, name, rows, failed); err != nil {
			return err
		}
		return p.change(ctx, conn, "ALTER TABLE "+p.name+" DROP PARTITION "+quote(name))
	})
	if err != nil && !errors.Is(err, ErrPartition) {
		err = fmt.Errorf("dropping partition %s of %s: %w", name, table, err)
	}
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
