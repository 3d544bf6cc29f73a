package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
)

// ok runs a command that must succeed and returns what it printed on stdout.
func (s *stage) ok(args ...string) string {
	s.tb.Helper()
	return s.okWith(nil, args...)
}

func (s *stage) okWith(overrides []string, args ...string) string {
	s.tb.Helper()
	r := s.command(args, overrides...)
	if r.code != 0 {
		s.tb.Fatalf("rowferry %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

func expectParts(tb testing.TB, what, text string, parts ...string) {
	tb.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			tb.Errorf("%s does not hold %q:\n%s", what, part, text)
		}
	}
}

func decode[T any](tb testing.TB, text string) T {
	tb.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		tb.Fatalf("not one JSON document: %v\n%s", err, text)
	}
	return v
}

func TestMigrateMakesListsAndPrintsTheTables(t *testing.T) {
	t.Parallel()
	s := newBareStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t))
	expectParts(t, "migrate print", s.ok("migrate", "print", "--outbox"),
		"CREATE TABLE", "rowferry_checkpoint", "rowferry_topic", "rowferry_dead", "outbox")
	if n := s.queryInt("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name <> 'rowferry_migrations'", s.schema); n != 0 {
		t.Errorf("migrate print made %d tables", n)
	}
	expectParts(t, "migrate status before", s.ok("migrate", "status"), "00001_checkpoint.sql", "pending")
	expectParts(t, "migrate up", s.ok("migrate", "up", "--outbox"), "applied 00001_checkpoint.sql", "applied 00004_outbox.sql")
	expectParts(t, "migrate up again", s.ok("migrate", "up", "--outbox"), "nothing to do")
	if after := s.ok("migrate", "status"); strings.Contains(after, "pending") {
		t.Errorf("migrate status after up:\n%s", after)
	}
	s.queryInt("SELECT COUNT(*) FROM rowferry_checkpoint, rowferry_topic, rowferry_dead, outbox")
}

// printedLine is what contract calls a line of tail.
type printedLine struct {
	Table, ID, Topic, Tag, Key, Payload, Position string

	EventType   string            `json:"event_type"`
	AggregateID string            `json:"aggregate_id"`
	Properties  map[string]string `json:"properties"`
	CommittedAt string            `json:"committed_at"`
}

func TestTailPrintsWhatWouldBePublishedAndTouchesNothing(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		want := []string{s.insert("a"), s.insert("b"), s.insert("c")}
		var got []string
		for line := range strings.Lines(s.ok("tail", "--from", "earliest", "--limit", "2")) {
			l := decode[printedLine](t, line)
			got = append(got, l.ID)
			if l.Table != s.schema+".outbox" || l.Topic != s.topic || l.Tag != "Created" || l.Key != l.AggregateID ||
				l.Payload != fmt.Sprintf(`{"key": %q}`, l.Key) || l.Properties["outbox_uid"] != l.Table+":"+l.ID ||
				l.Position == "" || l.CommittedAt == "" {
				t.Errorf("the line is\n%s", line)
			}
		}
		if strings.Join(got, " ") != strings.Join(want[:2], " ") {
			t.Errorf("tail printed the rows %v, want %v", got, want[:2])
		}
		s.expectExactly(nil)
		if n := s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'PENDING'"); n != 3 {
			t.Errorf("%d rows are PENDING, want 3", n)
		}
		if n := s.queryInt("SELECT COUNT(*) FROM rowferry_checkpoint"); n != 0 {
			t.Error("tail has saved something")
		}
	})
}

// status as the contract words it, as far as this test looks at it.
type statusDocument struct {
	Name, Mode, Version string
	Leader              bool
	Source              struct {
		Flavor    string
		Connected bool
	}
	Checkpoint struct {
		Position string
		Epoch    int64
	}
	Backlog   struct{ Pending, Failed int }
	Published struct{ Binlog, Sweep int }
}

func TestStatusCheckpointSweepAndHealthcheckWithAndWithoutARelay(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	address := fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0))
	with := []string{address, "OUTBOX_GRACE=0s"}

	// Nothing runs yet.
	expectParts(t, "checkpoint show before", s.okWith(with, "checkpoint", "show"), "nothing is saved")
	if r := s.command([]string{"healthcheck"}, with...); r.code != 1 {
		t.Errorf("healthcheck without a relay: exit code %d, want 1", r.code)
	}
	old := s.insert("old")
	st := decode[statusDocument](t, s.okWith(with, "status", "--json"))
	if st.Leader || st.Backlog.Pending != 1 || st.Name != s.schema {
		t.Errorf("status from the database is %+v", st)
	}
	swept := decode[struct{ Sent, Failed int }](t, s.okWith(with, "sweep", "--json"))
	if swept.Sent != 1 || swept.Failed != 0 {
		t.Errorf("sweep by itself: %+v, want 1 sent", swept)
	}

	// A relay runs, whose own sweep is far away.
	f := s.run(append(with, "OUTBOX_POLL_INTERVAL=1h", "CHECKPOINT_INTERVAL=100ms")...)
	s.await("it is ready", func() bool { status, _ := f.get("/readyz"); return status == 200 })
	s.okWith(with, "healthcheck")
	s.okWith(with, "healthcheck", "--ready")
	fresh := s.insert("fresh")
	s.awaitSent()
	st = decode[statusDocument](t, s.okWith(with, "status", "--json"))
	if !st.Leader || !st.Source.Connected || st.Source.Flavor != "mysql" || st.Published.Binlog != 1 || st.Backlog.Pending != 0 {
		t.Errorf("status from the relay is %+v", st)
	}
	expectParts(t, "status", s.okWith(with, "status"), s.schema)
	s.await("the position is saved", func() bool {
		return s.queryInt("SELECT COUNT(*) FROM rowferry_checkpoint WHERE `position` <> '' AND updated_at IS NOT NULL") == 1
	})
	expectParts(t, "checkpoint show", s.okWith(with, "checkpoint", "show"), "position", "mysql", "epoch")
	decode[map[string]any](t, s.okWith(with, "checkpoint", "show", "--json"))
	expectParts(t, "sweep through the relay", s.okWith(with, "sweep"), "sent", "0")
	_, metrics := f.get("/metrics")
	expectParts(t, "/metrics", metrics, `rowferry_events_published_total{path="binlog"`, "rowferry_leader 1", "rowferry_binlog_connected 1")

	// A sweep of its own would be a second leader.
	if r := s.command([]string{"sweep"}, "HTTP_ADDR=127.0.0.1:1"); r.code != 1 || !strings.Contains(r.stderr, "is running") {
		t.Errorf("a sweep beside a relay that it cannot ask: exit code %d, %s", r.code, r.stderr)
	}
	f.stopCleanly()
	st = decode[statusDocument](t, s.okWith(with, "status", "--json"))
	if st.Leader || st.Checkpoint.Position == "" {
		t.Errorf("status after the relay has ended is %+v", st)
	}
	s.expectExactly([]string{old, fresh})
}

func TestConfigVersionAndHelp(t *testing.T) {
	t.Parallel()
	plain := binary(t, plainBinary)
	env := map[string]string{"SOURCE_DSN": "app:hunter2@tcp(db:3306)/shop", "HTTP_TOKEN": "hunter2", "OUTBOX_GRACE": "7s"}
	for _, args := range [][]string{{"config", "print"}, {"config", "print", "--json"}} {
		r := runCommand(t, plain, env, args...)
		expectParts(t, strings.Join(args, " "), r.stdout, "OUTBOX_GRACE", "7s", "environment", "OUTBOX_BATCH_SIZE", "200", "default")
		if r.code != 0 || strings.Contains(r.stdout+r.stderr, "hunter2") {
			t.Errorf("%v: exit code %d, or a secret is shown:\n%s", args, r.code, r.stdout)
		}
	}
	expectParts(t, "config docs", runCommand(t, plain, nil, "config", "docs").stdout, "ROWFERRY_SOURCE_DSN", "ROWFERRY_OUTBOX_GRACE", "| ")
	expectParts(t, "version", runCommand(t, plain, nil, "version").stdout, "rowferry", "go1.")
	if v := decode[map[string]string](t, runCommand(t, plain, nil, "version", "--json").stdout); v["go"] == "" || v["version"] == "" {
		t.Errorf("version --json is %v", v)
	}
	for _, command := range []string{"run", "tail", "sweep", "status", "doctor", "pause", "resume", "purge", "checkpoint show", "checkpoint set", "checkpoint reset", "partition list", "partition ensure", "partition drop", "topics list", "topics refreeze", "migrate up", "config print", "healthcheck", "version"} {
		r := runCommand(t, plain, nil, append(strings.Fields(command), "--help")...)
		if r.code != 0 || !strings.Contains(r.stdout, "Examples:") {
			t.Errorf("%s --help: exit code %d, without an example:\n%s", command, r.code, r.stdout)
		}
	}
	for _, wrong := range [][]string{{"fly"}, {"run", "--fast"}, {"tail", "--limit", "many"}, {"version", "now"}} {
		if r := runCommand(t, plain, env, wrong...); r.code != 2 || r.stderr == "" {
			t.Errorf("%v: exit code %d, want 2 and a reason; stderr %q", wrong, r.code, r.stderr)
		}
	}
}

func TestDoctorFindsNothingWrongWithAGoodSetUpAndNamesWhatIs(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	good := s.command([]string{"doctor"})
	if good.code != 0 || !strings.Contains(good.stdout, " 0 fail") {
		t.Errorf("doctor on a good set-up: exit code %d\n%s%s", good.code, good.stdout, good.stderr)
	}
	s.exec("DROP TABLE rowferry_checkpoint, rowferry_migrations")
	bad := s.command([]string{"doctor"}, "ROUTE_TOPIC=no-such-topic")
	if bad.code != 1 {
		t.Errorf("doctor on a bad set-up: exit code %d, want 1", bad.code)
	}
	expectParts(t, "doctor", bad.stdout, "fail", "rowferry_checkpoint", "no-such-topic")
	s.migrate(migrations.Options{})
}
