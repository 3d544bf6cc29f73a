package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// semiSync holds commits between the binlog and the engine: the source waits for a
// replica that does not exist.
type semiSync struct {
	prepare []string
	enabled string // variable
}

var semiSyncs = map[string]semiSync{
	testservers.FlavorMySQL: {[]string{"INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'", "SET GLOBAL rpl_semi_sync_source_timeout = 3600000",
		"SET GLOBAL rpl_semi_sync_source_wait_point = 'AFTER_SYNC'"}, "rpl_semi_sync_source_enabled"},
	testservers.FlavorMariaDB: {[]string{"SET GLOBAL rpl_semi_sync_master_timeout = 3600000", "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'"},
		"rpl_semi_sync_master_enabled"},
}

func (s *stage) holdCommits() { s.exec("SET GLOBAL " + semiSyncs[s.server.Flavor()].enabled + " = ON") }
func (s *stage) releaseCommits() {
	s.exec("SET GLOBAL " + semiSyncs[s.server.Flavor()].enabled + " = OFF")
}

const writers = 12

// insertHeld begins to insert one row by each of the writers and returns when their
// commits have begun to be waited for; wait returns when all have committed.
func (s *stage) insertHeld(from int) (wait func()) {
	s.tb.Helper()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			_, err := s.db.ExecContext(context.Background(), "INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (?, ?, 'Created', '{}')", from+i, fmt.Sprint("key-", i))
			if err != nil {
				s.tb.Errorf("writer %d: %v", i, err)
			}
		})
	}
	return all.Wait
}

// The binlog runs ahead of visibility: a row is in the stream before a plain SELECT
// finds it. The ledger's look-up finds every one, and the relay sends it.
func TestNoRowIsTakenForAbsentBeforeItCanBeSeen(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *testservers.DB{"MySQL": testservers.MySQL, "MariaDB": testservers.MariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, start(t), testservers.SharedRocketMQ(t), layoutPragmatic)
			for _, statement := range semiSyncs[s.server.Flavor()].prepare {
				s.exec(statement)
			}
			t.Run("look-up", func(t *testing.T) { s.testLookUpWhileHeld(t) })
			t.Run("race", func(t *testing.T) { s.testLookUpInARace(t) })
			t.Run("relay", func(t *testing.T) { s.testRelayWhileHeld(t) })
		})
	}
}

// follow reads the binlog from now on and hands each event of the outbox table to do,
// until ctx ends.
func (s *stage) follow(ctx context.Context, t *testing.T, do func(*ledger.Ledger, *outbox.Event) error) (end func()) {
	t.Helper()
	layout, err := outbox.ReadTable(t.Context(), s.db, outbox.Table{Schema: s.schema, Name: "outbox"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := mysql.ParseDSN(s.server.DSN(s.schema))
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan struct{}, 1)
	reader, err := binlog.New(binlog.Config{OnConnect: func() { connected <- struct{}{} }, DSN: dsn, ServerID: 1<<31 + 5, Layouts: map[outbox.Table]*outbox.Layout{layout.Table: layout}, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	from, err := reader.Resolve(t.Context(), "now")
	if err != nil {
		t.Fatal(err)
	}
	l := ledger.New(s.db, []*outbox.Layout{layout}, ledger.Options{Name: s.schema, Schema: s.schema, Logger: zerolog.Nop()})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := reader.Run(ctx, from, func(_ context.Context, b outbox.Batch) error {
			for _, e := range b.Events {
				if err := do(l, e); err != nil {
					return err
				}
			}
			return nil
		})
		if ctx.Err() == nil {
			t.Errorf("reading: %v", err)
		}
	}()
	take(t, connected, "the reader's connection") // MariaDB answers nobody while commits are held
	return func() {
		cancel()
		<-done
	}
}

// take waits for what must come.
func take[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("after %v still waiting for %s", patience, what)
	}
	return v
}

func (s *stage) visible(id string) (n int, err error) {
	err = s.db.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM outbox WHERE id = ?", id).Scan(&n)
	return n, err
}

func (s *stage) testLookUpWhileHeld(t *testing.T) {
	type look struct {
		id      string
		visible int
		status  outbox.Status
		err     error
	}
	arrived, looks := make(chan struct{}, writers), make(chan look, writers)
	var looking sync.WaitGroup
	end := s.follow(context.Background(), t, func(l *ledger.Ledger, e *outbox.Event) error {
		n, err := s.visible(e.ID)
		if err != nil {
			return err
		}
		looking.Go(func() {
			states, err := l.Statuses(context.Background(), e.Table, []string{e.ID})
			looks <- look{e.ID, n, states[e.ID].Status, err}
		})
		arrived <- struct{}{}
		return nil
	})
	s.holdCommits()
	defer s.releaseCommits()
	wait := s.insertHeld(1000)
	take(t, arrived, "a row whose commit cannot end")
	s.releaseCommits()
	wait()
	for range writers - 1 {
		take(t, arrived, "every row")
	}
	end()
	looking.Wait()
	missed := 0
	for range writers {
		look := <-looks
		if look.visible == 0 {
			missed++
		}
		if look.err != nil || look.status != outbox.Pending {
			t.Errorf("row %s was looked up as %s (%v)", look.id, look.status, look.err)
		}
	}
	t.Logf("a plain SELECT missed %d of %d rows that are committed", missed, writers)
	if missed == 0 {
		t.Error("a row whose commit was held could be seen: nothing was tested")
	}
}

// Nothing is held: the race as it is.
func (s *stage) testLookUpInARace(t *testing.T) {
	const rows = 1200
	missed, found := 0, make(chan bool, rows)
	end := s.follow(context.Background(), t, func(l *ledger.Ledger, e *outbox.Event) error {
		n, err := s.visible(e.ID)
		if err != nil {
			return err
		}
		if n == 0 {
			missed++
		}
		states, err := l.Statuses(context.Background(), e.Table, []string{e.ID})
		found <- err == nil && states[e.ID].Status == outbox.Pending
		return err
	})
	var all sync.WaitGroup
	for range writers {
		all.Go(func() { s.insertMany(s.db, rows/writers/4, 5, 0); s.insertSingly(rows / writers * 3 / 4) })
	}
	all.Wait()
	for range rows {
		if !take(t, found, "every row") {
			t.Fatal("a committed row was taken for absent")
		}
	}
	end()
	t.Logf("a plain SELECT missed %d of %d rows that are committed", missed, rows)
}

func (s *stage) insertSingly(n int) {
	s.tb.Helper()
	for range n {
		if _, err := insertInto(context.Background(), s.db, "key", "Created", "{}"); err != nil {
			s.tb.Errorf("inserting: %v", err)
		}
	}
}

func (s *stage) testRelayWhileHeld(t *testing.T) {
	outer := s.tb
	s.tb = t
	defer func() { s.tb = outer }()
	s.exec("DELETE FROM outbox")
	f := s.run("OUTBOX_POLL_INTERVAL=1h", "OUTBOX_GRACE=1h")
	ready := s.insert("ready")
	s.awaitSent()
	// A new connection writes a fence, which is kept from it: until it returns every event
	// is looked up before it is sent.
	unlock := s.lockCheckpoint()
	s.killDump()
	s.await("the relay reads again", func() bool { return f.log.count(`"message":"reading the binlog"`) > 1 })
	s.holdCommits()
	defer s.releaseCommits()
	wait := s.insertHeld(5000)
	s.await("the relay has read rows that cannot be seen", func() bool { return metric(t, f, "rowferry_inflight_events") > 0 })
	s.releaseCommits()
	wait()
	unlock()
	s.awaitSent()
	if n := metric(t, f, "rowferry_events_skipped_total"); n != 0 {
		t.Errorf("%v events were skipped", n)
	}
	if n := metric(t, f, "rowferry_events_published_total", `path="sweep"`); n != 0 {
		t.Errorf("%v rows had to be swept", n)
	}
	f.stopCleanly()
	ids := []string{ready}
	for i := range writers {
		ids = append(ids, fmt.Sprint(5000+i))
	}
	s.expectExactly(ids)
}

// lockCheckpoint keeps everybody from writing to rowferry_checkpoint.
func (s *stage) lockCheckpoint() (unlock func()) {
	s.tb.Helper()
	tx, err := s.db.BeginTx(s.tb.Context(), nil)
	if err != nil {
		s.tb.Fatal(err)
	}
	if _, err := tx.ExecContext(s.tb.Context(), "SELECT * FROM rowferry_checkpoint FOR UPDATE"); err != nil {
		s.tb.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			s.tb.Error(err)
		}
	}
}

// killDump ends the replication stream of whoever reads.
func (s *stage) killDump() {
	s.tb.Helper()
	for _, id := range s.idsOf("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'") {
		s.exec("KILL " + id)
	}
}
