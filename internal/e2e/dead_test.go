package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// deadDocument is what the commands and the API print of dead letters.
type deadDocument struct {
	Dead []struct {
		Table, ID, Key, Reason string
		EventType              string `json:"event_type"`
		Attempts               int
		Discarded              bool
		PayloadBytes           int `json:"payload_bytes"`
		Payload                *string
	}
	Next string
}

func (d deadDocument) ids() string {
	ids := make([]string, len(d.Dead))
	for i, l := range d.Dead {
		ids[i] = l.ID
	}
	return strings.Join(ids, " ")
}

type deadDone struct {
	Action                                                      string
	DryRun                                                      bool `json:"dry_run"`
	Selected, Changed, Locked, Sent, Failed, Released, Attempts int
	Note                                                        string
}

// tooLarge is refused with MESSAGE_BYTES_MAX=1KiB.
var tooLarge = fmt.Sprintf(`{"text": "%s"}`, strings.Repeat("x", 2000))

// insertBad commits a row that cannot be published until mend makes it smaller.
func (s *stage) insertBad(key string) string {
	s.tb.Helper()
	id, err := insertInto(s.tb.Context(), s.db, key, "Bad", tooLarge)
	if err != nil {
		s.tb.Fatal(err)
	}
	return fmt.Sprint(id)
}

func (s *stage) mend(ids ...string) {
	s.tb.Helper()
	s.exec(`UPDATE outbox SET payload = '{"n": 0}' WHERE id IN (` + strings.Join(ids, ",") + ")")
}

func (s *stage) failed() string {
	if s.layout == layoutNumeric {
		return "status = 2"
	}
	return "status = 'FAILED'"
}

func (s *stage) awaitFailed(n int) {
	s.tb.Helper()
	s.await(fmt.Sprintf("%d rows are FAILED", n), func() bool { return s.queryInt("SELECT COUNT(*) FROM outbox WHERE "+s.failed()) == n })
}

// TestDeadLetters goes through all there is to dead letters, with the relay running and
// with none, in each layout.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		server  func(testing.TB) *testservers.DB
		layout  string
		running bool
	}{
		{testservers.SharedMySQL, layoutRowferry, true},
		{testservers.SharedMySQL, layoutNumeric, false},
		{testservers.SharedMariaDB, layoutPragmatic, true},
		{testservers.SharedMariaDB, layoutRowferry, false},
	} {
		t.Run(fmt.Sprintf("%s, relay %t", c.layout, c.running), func(t *testing.T) {
			t.Parallel()
			testDeadLetters(t, c.server(t), c.layout, c.running)
		})
	}
}

func testDeadLetters(t *testing.T, server *testservers.DB, layout string, running bool) {
	s := newDeadStage(t, server, layout)
	with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MESSAGE_BYTES_MAX=1KiB"}
	f := s.run(with...)
	good := []string{s.insert("a")}
	bad := []string{s.insertBad("a"), s.insertBad("b"), s.insertBad("b"), s.insertBad("c")}
	good = append(good, s.insert("a"))
	s.awaitFailed(4)
	s.awaitNone(s.notSent() + " AND NOT " + s.failed())
	if !running {
		f.stopCleanly()
	}
	list := func(args ...string) deadDocument {
		return decode[deadDocument](t, s.okWith(with, append([]string{"dead", "list", "--json"}, args...)...))
	}
	act := func(args ...string) deadDone {
		return decode[deadDone](t, s.okWith(with, append([]string{"dead"}, append(args, "--json")...)...))
	}

	all := list()
	if all.ids() != strings.Join(bad, " ") || all.Dead[0].EventType != "Bad" || all.Dead[0].Key != "a" || !strings.Contains(all.Dead[0].Reason, "too_large") || all.Dead[0].PayloadBytes < 2000 || all.Next != "" {
		t.Fatalf("dead letters %+v", all)
	}
	if got := list("--limit", "3"); got.ids() != strings.Join(bad[:3], " ") || got.Next == "" {
		t.Errorf("the first three: %+v", got)
	}
	if got := list("--key", "b", "--type", "Bad", "--since", "1h", "--table", "outbox"); got.ids() != strings.Join(bad[1:3], " ") {
		t.Errorf("those of a key: %s", got.ids())
	}
	if got := list("--until", "1h"); len(got.Dead) != 0 {
		t.Errorf("those of long ago: %s", got.ids())
	}
	expectParts(t, "dead list", s.okWith(with, "dead", "list"), "REASON", bad[3], "too_large")
	shown := s.okWith(with, "dead", "show", bad[0])
	expectParts(t, "dead show", shown, bad[0], "too_large", "payload bytes")
	if strings.Contains(shown, "xxxx") {
		t.Error("the payload is shown without being asked for")
	}
	expectParts(t, "dead show --payload", s.okWith(with, "dead", "show", bad[0], "--payload"), "xxxx")

	s.expectUsage(with, "dead", "requeue")
	s.expectUsage(with, "dead", "discard", "--limit", "3")
	s.expectUsage(with, "dead", "discard", "--all")
	s.expectUsage(with, "dead", "list", "--since", "yesterday")
	s.expectUsage(with, "dead", "list", "--table", "other")
	if got := act("requeue", "--all", "--dry-run"); got.Selected != 4 || got.Changed != 0 || !got.DryRun {
		t.Errorf("a dry run: %+v", got)
	}
	s.awaitFailed(4)

	if got := act("discard", "--id", bad[3], "--yes"); got.Changed != 1 {
		t.Errorf("discarded %+v", got)
	}
	if got := list(); got.ids() != strings.Join(bad[:3], " ") {
		t.Errorf("after a discard: %s", got.ids())
	}
	if got := list("--discarded"); got.ids() != strings.Join(bad, " ") || !got.Dead[3].Discarded || got.Dead[2].Discarded {
		t.Errorf("with what was discarded: %+v", got)
	}

	s.mend(bad[0], bad[1])
	if got := act("requeue", "--key", "b", "--key", "b"); got.Changed != 2 || got.Sent != 1 || got.Failed != 1 {
		t.Errorf("requeued %+v", got)
	}
	if got := list(); got.ids() != bad[0]+" "+bad[2] || !strings.Contains(got.Dead[1].Reason, "too_large") {
		t.Errorf("after a requeue: %+v", got)
	}
	s.mend(bad[2], bad[3])
	if got := act("requeue", "--all", "--discarded"); got.Changed != 3 || got.Sent != 3 || got.Note != "" {
		t.Errorf("requeued %+v", got)
	}
	s.awaitSent()
	if n := s.queryInt("SELECT COUNT(*) FROM rowferry_dead"); n != 0 {
		t.Errorf("%d rows are left in rowferry_dead", n)
	}
	if running {
		f.awaitLog(`"audit":true`, `"action":"dead requeue"`, `"by":"no token from 127.0.0.1:`, `says it is `)
		f.awaitLog(`"action":"dead discard"`, `"changed":1`)
		if f.log.count("xxxx") > 0 {
			t.Error("a payload is in the log")
		}
		f.stopCleanly()
	}
	s.expectExactly(slices.Concat(good, bad))
}

// newDeadStage has the tables of a layout, and rowferry's own.
func newDeadStage(t *testing.T, server *testservers.DB, layout string) *stage {
	t.Helper()
	s := newStage(t, server, testservers.SharedRocketMQ(t), layout)
	if layout == layoutRowferry {
		s.exec("ALTER TABLE outbox ALTER aggregate_type SET DEFAULT 'order'")
	}
	return s
}

// expectUsage runs a command that is wrong.
func (s *stage) expectUsage(with []string, args ...string) {
	s.tb.Helper()
	if r := s.command(args, with...); r.code != 2 || r.stderr == "" {
		s.tb.Errorf("rowferry %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
}

// TestDeadLettersOverHTTP: lists are open, payloads and actions need the token.
func TestDeadLettersOverHTTP(t *testing.T) {
	t.Parallel()
	s := newDeadStage(t, testservers.SharedMySQL(t), layoutPragmatic)
	f := s.run("MESSAGE_BYTES_MAX=1KiB", "HTTP_TOKEN=secret-token-of-this-test")
	bad := []string{s.insertBad("a"), s.insertBad("b"), s.insertBad("a")}
	s.awaitFailed(3)
	page := func(query string) deadDocument {
		code, body := f.get("/api/v1/dead" + query)
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", query, code, body)
		}
		return decode[deadDocument](t, body)
	}
	first := page("?limit=2")
	if first.ids() != bad[0]+" "+bad[1] || first.Next == "" || first.Dead[0].Payload != nil {
		t.Errorf("first page: %+v", first)
	}
	if second := page("?limit=2&after=" + first.Next); second.ids() != bad[2] {
		t.Errorf("second page: %+v", second)
	}
	if got := page("?key=a&since=" + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)); got.ids() != bad[0]+" "+bad[2] {
		t.Errorf("by key: %+v", got)
	}
	if got := page("?id=" + bad[1] + "&payload=1"); got.Dead[0].Payload == nil || !strings.Contains(*got.Dead[0].Payload, "xxxx") {
		t.Errorf("with the payload: %+v", got)
	}
	for _, wrong := range []string{"?since=now", "?limit=-1", "?limit=x", "?unknown=1"} {
		if code, body := f.get("/api/v1/dead" + wrong); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", wrong, code, body)
		}
	}
}

// TestReplay publishes what is SENT once more, by time and by key.
func TestReplay(t *testing.T) {
	t.Parallel()
	for running, server := range map[bool]func(testing.TB) *testservers.DB{true: testservers.SharedMySQL, false: testservers.SharedMariaDB} {
		t.Run(fmt.Sprintf("relay %t", running), func(t *testing.T) {
			t.Parallel()
			s := newDeadStage(t, server(t), layoutPragmatic)
			with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MESSAGE_BYTES_MAX=1KiB"}
			f := s.run(with...)
			s.insertMany(s.db, 1200, 4, 0)
			bad := s.insertBad("key-1")
			s.awaitFailed(1)
			s.awaitNone("status NOT IN ('SENT', 'FAILED')")
			if !running {
				f.stopCleanly()
			}
			type replayed struct {
				DryRun                   bool `json:"dry_run"`
				Selected, Sent, Released int
			}
			run := func(args ...string) replayed {
				return decode[replayed](t, s.okWith(with, append([]string{"replay", "--json"}, args...)...))
			}
			s.expectUsage(with, "replay", "--since", "1h")
			s.expectUsage(with, "replay", "--since", "1h", "--until", "2h", "--yes")
			now := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
			s.expectUsage(with, "replay", "--since", "1h", "--until", now)
			if got := run("--since", "1h", "--until", now, "--dry-run"); got.Selected != 1200 || !got.DryRun {
				t.Errorf("dry run: %+v", got)
			}
			if got := run("--since", "2h", "--until", "1h", "--yes"); got.Selected != 0 {
				t.Errorf("of another time: %+v", got)
			}
			if got := run("--since", "1h", "--until", now, "--key", "key-2", "--yes"); got.Selected != 300 || got.Sent != 300 {
				t.Errorf("of a key: %+v", got)
			}
			if got := run("--since", "1h", "--until", now, "--yes"); got.Sent != 1200 {
				t.Errorf("of all: %+v", got)
			}
			if n := s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'SENT'"); n != 1200 {
				t.Errorf("%d rows are SENT", n)
			}
			checkReplays(t, s.broker.ReadAll(t, s.topic), bad)
			if running {
				f.awaitLog(`"action":"replay"`, `"sent":1200`)
				f.stopCleanly()
			}
		})
	}
}

// checkReplays: of each key, all events came in order, twice or three times over.
func checkReplays(t *testing.T, messages []testservers.Message, not string) {
	t.Helper()
	byKey := map[string][]int{}
	for _, m := range messages {
		if m.Properties["outbox_id"] == not {
			t.Errorf("row %s was published", not)
		}
		key := m.Properties["aggregate_id"]
		byKey[key] = append(byKey[key], payloadNumber(m))
	}
	for key, numbers := range byKey {
		times := 2
		if key == "key-2" {
			times = 3
		}
		if len(numbers) != times*300 {
			t.Errorf("key %s has %d messages, want %d", key, len(numbers), times*300)
		}
		for i := range numbers {
			if i%300 > 0 && numbers[i] <= numbers[i-1] {
				t.Fatalf("key %s: event %d follows event %d", key, numbers[i], numbers[i-1])
			}
		}
	}
}
