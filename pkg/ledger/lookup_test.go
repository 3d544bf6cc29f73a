package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestStatuses(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, sh.ddl(t), Options{Lease: time.Hour})
				want := map[string]outbox.RowState{}
				var ids []string
				for i, status := range []outbox.Status{outbox.Pending, outbox.Processing, outbox.Sent, outbox.Failed, outbox.Missing} {
					event, literal := sh.id(i + 1)
					if f.layout.StatusText(status) == "" && status != outbox.Missing {
						continue
					}
					if status != outbox.Missing {
						f.insert(literal, status)
					}
					state := outbox.RowState{Status: status}
					if status == outbox.Processing && f.layout.Claims() {
						state.Held, state.Token = true, holder
					}
					ids = append(ids, event)
					want[event] = state
				}
				if f.layout.Claims() { // inserted in the server's zone, eight hours ago by the application's
					f.exec("UPDATE outbox SET claimed_at = NOW() + INTERVAL 8 HOUR WHERE claimed_at IS NOT NULL")
				}
				got, err := f.Statuses(t.Context(), f.table, ids)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) != len(want) {
					t.Fatalf("%d answers, want %d: %v", len(got), len(want), got)
				}
				for id, w := range want {
					if got[id] != w {
						t.Errorf("%s: %+v, want %+v", id, got[id], w)
					}
				}
			})
		})
	}
}

func TestStatusesOfMany(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.fill(2000)
		got, err := f.Statuses(t.Context(), f.table, numbers(1001, 3000))
		if err != nil {
			t.Fatal(err)
		}
		for i := 1001; i <= 3000; i++ {
			want := outbox.Pending
			if i > 2000 {
				want = outbox.Missing
			}
			if got[fmt.Sprint(i)].Status != want {
				t.Fatalf("row %d: %s, want %s", i, got[fmt.Sprint(i)].Status, want)
			}
		}
	})
}

func TestStatusesWithoutStatusColumn(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), example(t, "debezium"), Options{Delete: true})
	f.exec("INSERT INTO outbox VALUES ('x', 'order', 'a1', 'made', '{}')")
	got, err := f.Statuses(t.Context(), f.table, []string{"x", "y"})
	if err != nil || got["x"].Status != outbox.Pending || got["y"].Status != outbox.Missing {
		t.Fatalf("%v, %v", got, err)
	}
}

// TestLookUpSeesUncommitted is the moment at which the binlog has a row that no
// plain read sees: its transaction holds the lock and has not let it be seen.
func TestLookUpSeesUncommitted(t *testing.T) {
	reads := map[string]func(f *fixture) (outbox.Status, error){
		"statuses": func(f *fixture) (outbox.Status, error) {
			got, err := f.Statuses(f.ctx(), f.table, []string{"1"})
			return got["1"].Status, err
		},
		"load": func(f *fixture) (outbox.Status, error) {
			events, got, err := f.Load(f.ctx(), f.table, []string{"1"})
			if err == nil && len(events) != 1 {
				err = fmt.Errorf("%d events", len(events))
			}
			return got["1"], err
		},
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
				tx := f.stranger("INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (1, 'a', 'e', '{}')")
				type answer struct {
					status outbox.Status
					err    error
				}
				done := make(chan answer, 1)
				go func() {
					status, err := read(f)
					done <- answer{status, err}
				}()
				f.awaitLockWait()
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				if a := <-done; a.err != nil || a.status != outbox.Pending {
					t.Fatalf("%s, %v; want PENDING", a.status, a.err)
				}
			})
		})
	}
}

// TestLookUpOutlastsALockWait: a lock wait means "ask again", not "absent".
func TestLookUpOutlastsALockWait(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		t.Parallel()
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		tx := f.stranger("INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (1, 'a', 'e', '{}')")
		timer := time.AfterFunc(3*time.Second, func() { // longer than innodb_lock_wait_timeout
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		})
		defer timer.Stop()
		got, err := f.Statuses(t.Context(), f.table, []string{"1"})
		if err != nil || got["1"].Status != outbox.Pending {
			t.Fatalf("%v, %v", got, err)
		}
	})
}

// TestLoadGivesWhatTheBinlogGives compares with bytes written by hand: what the
// binlog path must give for these rows too.
func TestLoadGivesWhatTheBinlogGives(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, `CREATE TABLE outbox (id INT UNSIGNED ZEROFILL PRIMARY KEY, aggregate_id VARCHAR(20) CHARACTER SET gbk, aggregate_type CHAR(20),
  event_type ENUM('made','paid'), payload TEXT CHARACTER SET latin1, headers JSON, topic VARCHAR(20), tag VARCHAR(20),
  status TINYINT, retry_count SMALLINT ZEROFILL, created_at TIMESTAMP(3) NULL)`, Options{})
		// Written by an application in +08:00.
		app, err := mysqlconn.Open(s.DSN(f.table.Schema), mysqlconn.Options{Zone: time.FixedZone("", 8*3600)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { app.Close() })
		for _, q := range []string{
			`INSERT INTO outbox VALUES (7, '订单', 'order', 'paid', 'café naïve', '{"a": 1.0, "b": "x"}', 't1', NULL, 0, 3, '2026-01-02 03:04:05.678')`,
			`INSERT INTO outbox VALUES (9, '1', NULL, NULL, '', NULL, NULL, 'g', 2, NULL, NULL)`,
		} {
			if _, err := app.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		events, states, err := f.Load(t.Context(), f.table, []string{"9", "8", "7"})
		if err != nil {
			t.Fatal(err)
		}
		if len(events) != 2 || events[0].ID != "9" || events[1].ID != "7" {
			t.Fatalf("%d events, not rows 9 and 7 in this order", len(events))
		}
		if states["7"] != outbox.Pending || states["8"] != outbox.Missing || states["9"] != outbox.Failed {
			t.Errorf("states %v", states)
		}
		e := events[1]
		got := fmt.Sprintf("%s|%s|%s|%s|%s|%s|%d|%v|%s", e.AggregateID, e.AggregateType, e.Type, e.Payload, e.Topic, e.Tag, e.Attempts, e.Headers, e.CreatedAt.Format(time.RFC3339Nano))
		want := "订单|order|paid|café naïve|t1||3|[{a 1.0} {b x}]|2026-01-01T19:04:05.678Z"
		if got != want {
			t.Errorf("row 7 is\n%s, want\n%s", got, want)
		}
		if e := events[0]; e.Topic != "" || e.Tag != "g" || len(e.Payload) != 0 || !e.CreatedAt.IsZero() || e.Attempts != 0 {
			t.Errorf("row 9 is %+v", e)
		}
	})
}

func TestLoadInTheOrderOfIDs(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, sh.ddl(t), Options{})
				var want []string
				for i := 12; i > 0; i-- {
					event, literal := sh.id(i)
					f.insert(literal, outbox.Pending)
					want = append(want, event)
				}
				events, _, err := f.Load(t.Context(), f.table, want)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, e := range events {
					got = append(got, e.ID)
				}
				if strings.Join(got, ",") != strings.Join(want, ",") {
					t.Fatalf("got  %q\nwant %q", got, want)
				}
			})
		})
	}
}

// TestTimestampInAnotherOffset reads a summer's TIMESTAMP in winter: the text of
// the session would be an hour off in the layout's zone.
func TestTimestampInAnotherOffset(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, payload TEXT, created_at TIMESTAMP(6) NULL)", Options{})
		layout, err := outbox.ReadTable(t.Context(), f.db, f.table, outbox.Options{Zone: berlin})
		if err != nil {
			t.Fatal(err)
		}
		f.SetLayout(layout)
		for i, month := range []time.Month{time.January, time.July} {
			want := time.Date(2026, month, 15, 10, 30, 0, 123456000, time.UTC)
			f.exec(fmt.Sprintf("INSERT INTO outbox VALUES (%d, 'x', FROM_UNIXTIME(%d.123456))", i, want.Unix()))
			events, _, err := f.Load(t.Context(), f.table, []string{fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			if !events[0].CreatedAt.Equal(want) {
				t.Errorf("created %s, want %s", events[0].CreatedAt, want)
			}
		}
	})
}

func TestBinaryIDsMustBeHexadecimal(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), strings.Replace(example(t, "debezium"), "CHAR(36)", "BINARY(16)", 1), Options{})
	if _, err := f.Statuses(t.Context(), f.table, []string{"xyz"}); err == nil {
		t.Fatal("an id that is no id was looked up")
	}
}

func TestSQLErrorIsNoEmptyAnswer(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.exec("DROP TABLE outbox")
		ctx := t.Context()
		calls := map[string]func() error{
			"Statuses":   func() error { _, err := f.Statuses(ctx, f.table, []string{"1"}); return err },
			"Load":       func() error { _, _, err := f.Load(ctx, f.table, []string{"1"}); return err },
			"Candidates": func() error { _, _, err := f.Candidates(ctx, f.table, Cursor{}, 1, 1); return err },
			"Expired":    func() error { _, err := f.Expired(ctx, f.table, 1); return err },
			"Reclaim":    func() error { _, err := f.Reclaim(ctx, f.table, 1); return err },
			"Claim":      func() error { _, err := f.Claim(ctx, f.table, []string{"1"}, "t"); return err },
			"Backlog":    func() error { _, err := f.Backlog(ctx, f.table); return err },
			"Record": func() error {
				_, err := f.Record(context.WithoutCancel(ctx), f.outcomes(outbox.OutcomeSent, "1"), nil)
				return err
			},
		}
		for name, call := range calls {
			if err := call(); !isNumber(err, errNoTable) {
				t.Errorf("%s on a table that is gone: %v", name, errors.Unwrap(err))
			}
		}
	})
}

// TestStatusesOfRanges has everything but a PENDING row inside, at the ends of and beside
// ranges of ids without a gap, where a row must not be taken for a neighbour.
func TestStatusesOfRanges(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		for _, ddl := range []string{example(t, "pragmatic_ddd"), ownTables(t)} {
			f := setUp(t, s, ddl, Options{})
			f.fill(1000)
			want := map[string]outbox.Status{}
			for _, id := range numbers(1, 1010) {
				want[id] = outbox.Pending
			}
			for _, id := range append(numbers(1001, 1010), "007", "-5") {
				want[id] = outbox.Missing
			}
			change := func(id int, status outbox.Status) {
				if want[fmt.Sprint(id)] = status; status == outbox.Missing {
					f.exec("DELETE FROM outbox WHERE id = ?", id)
				} else {
					f.exec("UPDATE outbox SET status = ? WHERE id = ?", f.layout.StatusText(status), id)
				}
			}
			check := func(ids []string) {
				t.Helper()
				got, err := f.Statuses(t.Context(), f.table, ids)
				if err != nil {
					t.Fatal(err)
				}
				for _, id := range ids {
					if got[id].Status != want[id] {
						t.Fatalf("row %s: %s, want %s", id, got[id].Status, want[id])
					}
				}
			}
			check(numbers(1, 900))
			change(100, outbox.Sent)
			change(300, outbox.Missing)
			change(500, outbox.Failed)
			change(900, outbox.Sent)
			check(numbers(1, 900))
			check(numbers(301, 499))
			check(numbers(300, 500))
			check(numbers(901, 1010))
			check(append(numbers(1, 99), numbers(101, 1010)...))
			check(append(append(numbers(101, 400), numbers(101, 299)...), "007", "-5"))
		}
	})
}

func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.IntRange(1, 400), 0, 400).Draw(t, "ids")
		asked := map[int64]bool{}
		var texts []string
		for _, id := range ids {
			asked[int64(id)] = true
			texts = append(texts, fmt.Sprint(id))
		}
		for _, s := range spans(texts) {
			if s.len() < denseMin {
				t.Fatalf("%v is too short", s)
			}
			for n := s.first; n <= s.last; n++ {
				if !asked[n] {
					t.Fatalf("%v holds %d, which nobody asked for", s, n)
				}
			}
			if asked[s.first-1] || asked[s.last+1] {
				t.Fatalf("%v is only a part of its range", s)
			}
		}
	})
	if got := spans(numbers(7, 906)); len(got) != 1 || got[0] != (span{7, 906}) {
		t.Fatalf("%v", got)
	}
}
