package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// crowd is an outbox table of some layout, with a ledger and with an application that
// inserts between the ledger's rows: those have the numbers 10, 20, 30 ...
type crowd struct {
	*fixture
	into   string // INSERT INTO ... VALUES
	values string // of the row whose id is given by a literal, with its age in seconds
	id     func(int) (id, literal string)
}

const (
	datedInto   = "INSERT INTO outbox (id, aggregate_id, event_type, payload, created_at) VALUES "
	datedValues = "(%s, 'a', 'made', '{}', NOW() - INTERVAL %d SECOND)"
	ownInto     = "INSERT INTO outbox (aggregate_type, id, aggregate_id, event_type, payload, created_at) VALUES "
	ownValues   = "('order', %s, 'a', 'made', '{}', NOW() - INTERVAL %d SECOND)"
	plainInto   = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES "
	plainValues = "(%s, 'order', 'a', 'made', '{}') /* %d seconds old */"
)

// eachCrowd runs a test for each of the layouts and ledgers whose statements differ.
func eachCrowd(t *testing.T, test func(t *testing.T, c crowd)) {
	debezium := example(t, "debezium") + deadTable(t)
	for name, c := range map[string]struct {
		ddl   string
		o     Options
		crowd crowd
	}{
		"pragmatic_ddd":         {example(t, "pragmatic_ddd"), Options{}, crowd{nil, datedInto, datedValues, numberID}},
		"pragmatic_ddd, delete": {example(t, "pragmatic_ddd"), Options{Delete: true}, crowd{nil, datedInto, datedValues, numberID}},
		"numeric_status":        {example(t, "numeric_status") + deadTable(t), Options{}, crowd{nil, datedInto, datedValues, numberID}},
		"rowferry":              {ownTables(t), Options{}, crowd{nil, ownInto, ownValues, numberID}},
		"debezium, delete":      {debezium, Options{Delete: true}, crowd{nil, plainInto, plainValues, uuidID}},
		"debezium with binary keys, delete": {strings.Replace(debezium, "CHAR(36)  ", "BINARY(16)", 1), Options{Delete: true},
			crowd{nil, plainInto, plainValues, binaryID}},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				c.crowd.fixture = setUp(t, s, c.ddl, c.o)
				test(t, c.crowd)
			})
		})
	}
}

func numberID(i int) (id, literal string) { return strconv.Itoa(i), strconv.Itoa(i) }

// fillWide inserts n rows and returns their ids.
func (c crowd) fillWide(n int) []string {
	c.t.Helper()
	ids := make([]string, n)
	rows := make([]string, n)
	for i := range n {
		id, literal := c.id(10 * (i + 1))
		ids[i], rows[i] = id, fmt.Sprintf(c.values, literal, 60+n-i)
	}
	c.exec(c.into + strings.Join(rows, ","))
	return ids
}

// lockWaits is how often any session of the server has waited for a row.
func (c crowd) lockWaits() int {
	c.t.Helper()
	var name string
	var n int
	if err := c.admin.QueryRowContext(c.ctx(), "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").Scan(&name, &n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// application inserts a row into every gap between n rows, before the first and behind
// the last, each with the age of one of them or older than all.
func (c crowd) application(n, offset int) error {
	tx, err := c.admin.BeginTx(c.ctx(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if _, err := tx.ExecContext(c.ctx(), "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
		return err
	}
	for i := range n + 1 {
		_, literal := c.id(10*i + offset)
		age := 60 + n - i
		if i%5 == 0 {
			age = 1_000_000
		}
		if _, err := tx.ExecContext(c.ctx(), c.into+fmt.Sprintf(c.values, literal, age)); err != nil {
			return fmt.Errorf("row %d: %w", 10*i+offset, err)
		}
	}
	return tx.Commit()
}

// Whatever a transaction of the ledger has locked when it is about to commit, an
// application inserts beside it at once.
func TestApplicationsInsertBesideEveryTransactionOfTheLedger(t *testing.T) {
	eachCrowd(t, func(t *testing.T, c crowd) {
		const rows = 100
		ids := c.fillWide(rows)
		all := c.outcomes(outbox.OutcomeSent, ids[:60]...)
		all = append(all, c.outcomes(outbox.OutcomeFailed, ids[60:70]...)...)
		all = append(all, c.outcomes(outbox.OutcomeAttempt, ids[70:80]...)...)
		if c.layout.Claims() {
			if got, err := c.Claim(t.Context(), c.table, ids[80:], "token"); err != nil || len(got) != 20 {
				t.Fatal(got, err)
			}
			for _, o := range c.outcomes(outbox.OutcomeReleased, ids[80:]...) {
				o.Token = "token"
				all = append(all, o)
			}
		}
		before := c.lockWaits()
		_, err := c.Record(t.Context(), all, func(context.Context, *sql.Tx) error { return c.application(rows, 5) })
		if err != nil {
			t.Fatal(err)
		}
		if n := c.lockWaits() - before; n != 0 {
			t.Errorf("%d waits for a row", n)
		}
	})
}

// The same for the other transactions that lock: claims and the second, locking look-up of
// rows that are not there.
func TestApplicationsInsertBesideClaimsAndLookUps(t *testing.T) {
	eachCrowd(t, func(t *testing.T, c crowd) {
		const rows = 100
		ids := c.fillWide(rows)
		var absent []string
		for i := range rows {
			id, _ := c.id(10*i + 7)
			absent = append(absent, id)
		}
		table, err := c.Ledger.table(c.table)
		if err != nil {
			t.Fatal(err)
		}
		c.beside("look-up", rows, 5, func(tx *sql.Tx) error {
			return c.lookUp(t.Context(), tx, table, append(absent, ids...), shared, map[string]outbox.RowState{})
		})
		if c.layout.Claims() {
			c.beside("claim", rows, 6, func(tx *sql.Tx) error {
				_, err := table.update(t.Context(), tx, table.setClaimed("token"), ids, c.free(table))
				return err
			})
		}
	})
}

// beside inserts while a transaction holds its locks.
func (c crowd) beside(what string, rows, offset int, lock func(tx *sql.Tx) error) {
	c.t.Helper()
	tx, err := c.db.BeginTx(c.ctx(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	before := c.lockWaits()
	if err := errors.Join(lock(tx), c.application(rows, offset)); err != nil {
		c.t.Errorf("beside a %s: %v", what, err)
	}
	if n := c.lockWaits() - before; n != 0 {
		c.t.Errorf("beside a %s: %d waits for a row", what, n)
	}
	if err := tx.Commit(); err != nil {
		c.t.Fatal(err)
	}
}

// At full speed: rows are claimed and marked as fast as it goes while four sessions
// insert. The rows have been committed long ago, so nobody has to wait for a row at all.
func TestNobodyWaitsForARowWhileABacklogIsMarked(t *testing.T) {
	eachCrowd(t, func(t *testing.T, c crowd) {
		const rows, markers = 3000, 2
		ids := c.fillWide(rows)
		before := c.lockWaits()
		var marking, inserting sync.WaitGroup
		marked := make(chan struct{})
		for m := range markers {
			marking.Go(func() {
				for from := m * 100; from < rows; from += markers * 100 {
					if err := c.markSome(ids[from : from+100]); err != nil {
						t.Error(err)
					}
				}
			})
		}
		inserted := make([]int, 4)
		for i := range inserted {
			inserting.Go(func() {
				n, err := c.insertUntil(marked, rows, i+1)
				if err != nil {
					t.Error(err)
				}
				inserted[i] = n
			})
		}
		marking.Wait()
		close(marked)
		inserting.Wait()
		if n := c.lockWaits() - before; n != 0 {
			t.Errorf("%d waits for a row", n)
		}
		t.Logf("%v rows were inserted beside %d that were marked", inserted, rows)
	})
}

func (c crowd) markSome(ids []string) error {
	if c.layout.Claims() {
		if _, err := c.Claim(c.ctx(), c.table, ids, "token "+ids[0]); err != nil {
			return err
		}
	}
	_, err := c.Record(c.ctx(), c.outcomes(outbox.OutcomeSent, ids...), nil)
	return err
}

// insertUntil inserts rows between those that are marked, all over the table.
func (c crowd) insertUntil(stop <-chan struct{}, rows, offset int) (n int, err error) {
	conn, err := c.admin.Conn(c.ctx())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(c.ctx(), "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
		return 0, err
	}
	for ; ; n++ {
		select {
		case <-stop:
			return n, nil
		default:
		}
		_, literal := c.id(10*(n*37%rows) + offset + n/rows*4)
		if _, err := conn.ExecContext(c.ctx(), c.into+fmt.Sprintf(c.values, literal, n*37%rows)); err != nil {
			return n, err
		}
	}
}
