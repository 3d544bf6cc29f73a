package ledger

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// shape is a layout and how its rows are made.
type shape struct {
	name  string
	ddl   func(t testing.TB) string
	id    func(i int) (event string, literal string)
	limit bool // MaxAttempts is counted
}

func plainID(i int) (string, string) { return fmt.Sprint(i), fmt.Sprint(i) }

func uuidID(i int) (string, string) {
	id := fmt.Sprintf("6f1b0000-0000-4000-8000-%012x", i)
	return id, "'" + id + "'"
}

func binaryID(i int) (string, string) {
	id := fmt.Sprintf("00ff2700%022x00", i) // a quote, a zero byte at the end
	return id, "x'" + id + "'"
}

func textID(i int) (string, string) {
	id := fmt.Sprintf(`o'brien\%% "%d"ü`, i)
	return id, "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(id) + "'"
}

// shapes are the layouts of the literature, ours, and keys of other types.
var shapes = []shape{
	{"pragmatic", func(t testing.TB) string { return example(t, "pragmatic_ddd") }, plainID, true},
	{"numeric", func(t testing.TB) string { return example(t, "numeric_status") }, plainID, true},
	{"rowferry", ownTables, plainID, true},
	{"uuid", func(t testing.TB) string {
		return strings.ReplaceAll(ownTables(t), "id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT", "id CHAR(36) NOT NULL")
	}, uuidID, true},
	{"binary", func(t testing.TB) string {
		return strings.ReplaceAll(ownTables(t), "id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT", "id BINARY(16) NOT NULL")
	}, binaryID, true},
	{"text", func(t testing.TB) string {
		return strings.ReplaceAll(ownTables(t), "id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT", "id VARCHAR(64) NOT NULL")
	}, textID, true},
	{"unique key", func(testing.TB) string {
		return "CREATE TABLE outbox (seq BIGINT AUTO_INCREMENT PRIMARY KEY, event_id BIGINT NOT NULL, aggregate_type VARCHAR(9) NOT NULL DEFAULT '', aggregate_id VARCHAR(9), event_type VARCHAR(9), payload TEXT, " +
			"status ENUM('PENDING','PROCESSING','SENT','FAILED') NOT NULL DEFAULT 'PENDING', UNIQUE KEY `by``event` (event_id))"
	}, plainID, false},
}

const holder, wrongHolder = "token-of-the-holder", "token-of-another"

// edge is one outcome on a row in one state, and what must come of it.
type edge struct {
	from     outbox.Status
	kind     outbox.OutcomeKind
	token    string
	to       outbox.Status
	attempts int // after
}

// edges is the whole state machine: everything that is not said to change stays.
func edges(claims bool) []edge {
	tokens := []string{""}
	if claims {
		tokens = append(tokens, holder, wrongHolder)
	}
	var all []edge
	for _, from := range []outbox.Status{outbox.Pending, outbox.Processing, outbox.Sent, outbox.Failed} {
		for kind := outbox.OutcomeSent; kind <= outbox.OutcomeReleased; kind++ {
			for _, token := range tokens {
				e := edge{from, kind, token, from, 3}
				mine := from == outbox.Pending && token == "" || from == outbox.Processing && token == holder
				switch {
				case kind == outbox.OutcomeSent && from != outbox.Failed:
					e.to = outbox.Sent
				case kind == outbox.OutcomeFailed && mine:
					e.to = outbox.Failed
				case kind == outbox.OutcomeAttempt && mine:
					e.to, e.attempts = outbox.Pending, 4
				case kind == outbox.OutcomeReleased && mine:
					e.to = outbox.Pending
				}
				all = append(all, e)
			}
		}
	}
	return all
}

func TestStateMachine(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) { testStateMachine(t, s, sh) })
		})
	}
}

func testStateMachine(t *testing.T, s *testservers.DB, sh shape) {
	f := setUp(t, s, sh.ddl(t), Options{MaxAttempts: 10})
	var all []edge
	for _, e := range edges(f.layout.Claims()) {
		if f.layout.StatusText(e.from) != "" { // the numeric layout has no PROCESSING
			all = append(all, e)
		}
	}
	var outcomes []outbox.Outcome
	for i, e := range all {
		event, literal := sh.id(i + 1)
		f.insert(literal, e.from)
		o := f.outcome(e.kind, event)
		o.Token = e.token
		outcomes = append(outcomes, o)
	}
	f.record(outcomes...) // all kinds in one transaction
	for i, e := range all {
		_, literal := sh.id(i + 1)
		f.checkEdge(e, literal)
	}
	f.record(outcomes[0]) // a fact may be told twice
}

func (f *fixture) has(r outbox.Role) bool { return f.layout.Has(r) }

func (f *fixture) col(r outbox.Role) string {
	c, ok := f.layout.Column(r)
	if !ok {
		f.t.Fatalf("the layout has no %s", r)
	}
	return quote(c.Name)
}

// insert makes a row in a state, claimed by holder if it is PROCESSING, with
// three attempts and sent_at long ago if it is SENT.
func (f *fixture) insert(literal string, s outbox.Status) {
	f.t.Helper()
	names := []string{f.col(outbox.RoleID), f.col(outbox.RoleAggregateID), f.col(outbox.RoleEventType), f.col(outbox.RolePayload), f.col(outbox.RoleStatus)}
	values := []string{literal, "'a1'", "'made'", "'{}'", "'" + f.layout.StatusText(s) + "'"}
	add := func(r outbox.Role, value string) {
		if f.has(r) {
			names, values = append(names, f.col(r)), append(values, value)
		}
	}
	add(outbox.RoleAttempts, "3")
	if f.has(outbox.RoleAggregateType) {
		add(outbox.RoleAggregateType, "'order'")
	}
	if s == outbox.Processing {
		add(outbox.RoleClaimToken, "'"+holder+"'")
		add(outbox.RoleClaimedAt, "NOW()")
	}
	if s == outbox.Sent {
		add(outbox.RoleSentAt, "'2020-01-01'")
	}
	f.exec("INSERT INTO outbox (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")")
}

func (f *fixture) checkEdge(e edge, literal string) {
	f.t.Helper()
	of := func(r outbox.Role) string {
		return f.text("SELECT " + f.col(r) + " FROM outbox WHERE " + f.col(outbox.RoleID) + " = " + literal)
	}
	what := fmt.Sprintf("%s, %s with token %q", e.from, e.kind, e.token)
	if got, want := of(outbox.RoleStatus), f.layout.StatusText(e.to); got != want {
		f.t.Errorf("%s: status %s, want %s", what, got, want)
	}
	if f.has(outbox.RoleAttempts) && of(outbox.RoleAttempts) != fmt.Sprint(e.attempts) {
		f.t.Errorf("%s: %s attempts, want %d", what, of(outbox.RoleAttempts), e.attempts)
	}
	if f.has(outbox.RoleClaimToken) {
		want := "NULL"
		if e.from == outbox.Processing && e.to == outbox.Processing {
			want = holder
		}
		if got := of(outbox.RoleClaimToken); got != want {
			f.t.Errorf("%s: claim token %s, want %s", what, got, want)
		}
	}
	if f.has(outbox.RoleSentAt) && e.to == outbox.Sent {
		if old := strings.HasPrefix(of(outbox.RoleSentAt), "2020"); old != (e.from == outbox.Sent) {
			f.t.Errorf("%s: sent_at is %s", what, of(outbox.RoleSentAt))
		}
	}
	if f.has(outbox.RoleLastError) {
		failed := e.kind != outbox.OutcomeReleased && e.kind != outbox.OutcomeSent && (e.to != e.from || e.attempts == 4)
		if got := of(outbox.RoleLastError) == "no such luck"; got != failed {
			f.t.Errorf("%s: last_error is %s", what, of(outbox.RoleLastError))
		}
	}
	if f.has(outbox.RoleNextAttemptAt) {
		if got := of(outbox.RoleNextAttemptAt) != "NULL"; got != (e.attempts == 4) {
			f.t.Errorf("%s: next_attempt_at is %s", what, of(outbox.RoleNextAttemptAt))
		}
	}
}

func TestAttemptsEndInFailed(t *testing.T) {
	for _, sh := range shapes {
		if !sh.limit {
			continue
		}
		t.Run(sh.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s *testservers.DB) {
				f := setUp(t, s, sh.ddl(t), Options{MaxAttempts: 5})
				event, literal := sh.id(1)
				f.insert(literal, outbox.Pending) // with three attempts
				status := "SELECT status FROM outbox WHERE id = " + literal
				f.record(f.outcome(outbox.OutcomeAttempt, event))
				f.wantText(f.layout.StatusText(outbox.Pending), status)
				f.record(f.outcome(outbox.OutcomeAttempt, event))
				f.wantText(f.layout.StatusText(outbox.Failed), status)
				f.wantText("5", "SELECT "+f.col(outbox.RoleAttempts)+" FROM outbox WHERE id = "+literal)
			})
		})
	}
}

func TestAttemptWithoutCounterStaysPending(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, shapes[len(shapes)-1].ddl(t), Options{MaxAttempts: 1})
		f.insert("1", outbox.Pending)
		f.record(f.outcome(outbox.OutcomeAttempt, "1"))
		f.wantText("PENDING", "SELECT status FROM outbox")
	})
}

func TestBackoffIsKeptInTheRow(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, ownTables(t), Options{})
		f.insert("1", outbox.Pending)
		o := f.outcome(outbox.OutcomeAttempt, "1")
		o.Backoff = 300
		f.record(o)
		// By the ledger's clock, in the application's zone.
		var seconds float64
		err := f.db.QueryRowContext(t.Context(), "SELECT TIMESTAMPDIFF(MICROSECOND, NOW(6), next_attempt_at) / 1e6 FROM outbox").Scan(&seconds)
		if err != nil || seconds < 270 || seconds > 300 {
			t.Fatalf("the next attempt is in %v s, %v; want 300", seconds, err)
		}
	})
}

func TestSentAtIsNeverAheadOfTheClock(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, example(t, "pragmatic_ddd"), Options{})
		f.fill(20)
		for _, id := range numbers(1, 20) {
			f.record(f.outcome(outbox.OutcomeSent, id))
			var ahead bool
			if err := f.db.QueryRowContext(t.Context(), "SELECT sent_at > NOW(6) FROM outbox WHERE id = ?", id).Scan(&ahead); err != nil || ahead {
				t.Fatalf("sent_at in the future: %v, %v", ahead, err)
			}
		}
	})
}

func TestStateThatTheColumnLacksIsAnError(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		f := setUp(t, s, "CREATE TABLE outbox (id BIGINT PRIMARY KEY, aggregate_id TEXT, event_type TEXT, payload TEXT, status ENUM('PENDING','SENT') NOT NULL)", Options{})
		f.insert("1", outbox.Pending)
		if _, err := f.Record(t.Context(), f.outcomes(outbox.OutcomeFailed, "1"), nil); err == nil {
			t.Fatal("no error, and the status is silently " + f.text("SELECT CONCAT('\"', status, '\"') FROM outbox"))
		}
		f.wantText("PENDING", "SELECT status FROM outbox")
	})
}

func TestTokenWithoutClaimColumnsIsAnError(t *testing.T) {
	f := setUp(t, testservers.SharedMySQL(t), example(t, "pragmatic_ddd"), Options{})
	f.insert("1", outbox.Pending)
	o := f.outcome(outbox.OutcomeReleased, "1")
	o.Token = holder
	if _, err := f.Record(t.Context(), []outbox.Outcome{o}, nil); err == nil {
		t.Fatal("a token was taken for a table that cannot hold one")
	}
}
