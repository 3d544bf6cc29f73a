package e2e

import (
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMistakesOfTheEnvironmentAreAllNamedAtOnce(t *testing.T) {
	t.Parallel()
	r := runCommand(t, binary(t, plainBinary), map[string]string{
		"MODE":               "push",
		"OUTBOX_GRACE":       "thirty",
		"OUTBOX_BATCH_SIZE":  "0",
		"ROUTE_TOPIC":        "{agregate_type}",
		"OUTBOX_POL_INTERVA": "1s",
		"NAMESRV":            "127.0.0.1:9876",
	}, "run")
	if r.code != 2 {
		t.Errorf("exit code %d, want 2", r.code)
	}
	for _, want := range [][]string{
		{"ROWFERRY_SOURCE_DSN", "required"},
		{"ROWFERRY_MODE", `"push"`, "auto"},
		{"ROWFERRY_OUTBOX_GRACE", `"thirty"`},
		{"ROWFERRY_OUTBOX_BATCH_SIZE", `"0"`},
		{"ROWFERRY_ROUTE_TOPIC", "{agregate_type}"},
		{"ROWFERRY_OUTBOX_POL_INTERVA", "ROWFERRY_OUTBOX_POLL_INTERVAL"},
		{"ROWFERRY_NAMESRV", "does not exist"},
	} {
		expectOneLine(t, r.stderr, want...)
	}
}

// expectOneLine fails unless one line holds all parts, and only one.
func expectOneLine(tb testing.TB, text string, parts ...string) {
	tb.Helper()
	found := 0
	for line := range strings.Lines(text) {
		holds := true
		for _, part := range parts {
			holds = holds && strings.Contains(line, part)
		}
		if holds {
			found++
		}
	}
	if found != 1 {
		tb.Errorf("%d lines hold %q, want one, in\n%s", found, parts, text)
	}
}

// userName is the stage's own account; names are at most 32 bytes.
func (s *stage) userName() string {
	h := fnv.New64a()
	h.Write([]byte(s.schema))
	return fmt.Sprintf("u%x", h.Sum64())
}

// account creates a user with one grant ("" for none) and returns its name; the
// password is "secret".
func (s *stage) account(grant string) string {
	s.tb.Helper()
	user := s.userName()
	s.server.Exec(s.tb, "", "CREATE USER "+user+" IDENTIFIED BY 'secret'")
	s.tb.Cleanup(func() { s.server.Exec(s.tb, "", "DROP USER "+user) })
	if grant != "" {
		s.server.Exec(s.tb, "", "GRANT "+grant+" TO "+user)
	}
	return user
}

// trouble is a cause that keeps a relay from its work, and what mends it.
type trouble struct {
	name     string
	prepare  func(s *stage) (overrides []string) // on a bare schema
	says     []string                            // one line of the log must hold all of this
	mend     func(s *stage)
	server   func(testing.TB) *testservers.DB // nil: the shared MySQL
	lateRows bool                             // the table comes with the mending
}

var troubles = []trouble{
	{
		name:    "wrong password",
		prepare: func(s *stage) []string { return s.withUser("ALL ON `"+s.schema+"`.*", "wrong") },
		says:    []string{"Access denied", "trying again"},
		mend: func(s *stage) {
			s.server.Exec(s.tb, "", "ALTER USER "+s.userName()+" IDENTIFIED BY 'wrong'")
			s.grantReplication()
		},
	},
	{
		name:    "no rights at all",
		prepare: func(s *stage) []string { return s.withUser("", "secret") },
		says:    []string{"denied", "trying again"},
		mend: func(s *stage) {
			s.server.Exec(s.tb, "", "GRANT ALL ON `"+s.schema+"`.* TO "+s.userName())
			s.grantReplication()
		},
	},
	{
		name:    "no right to replicate",
		prepare: func(s *stage) []string { return s.withUser("ALL ON `"+s.schema+"`.*", "secret") },
		says:    []string{"REPLICATION", "trying again"},
		mend:    func(s *stage) { s.grantReplication() },
	},
	{
		name: "no outbox table",
		prepare: func(s *stage) []string {
			s.exec("DROP TABLE outbox")
			return nil
		},
		says:     []string{"outbox", "create it", "trying again"},
		mend:     func(s *stage) { s.createTable(layoutPragmatic) },
		lateRows: true,
	},
	{
		name: "no payload",
		prepare: func(s *stage) []string {
			s.exec("ALTER TABLE outbox RENAME COLUMN payload TO body")
			return nil
		},
		says:     []string{"payload", "ROWFERRY_OUTBOX_COLUMNS", "trying again"},
		mend:     func(s *stage) { s.exec("ALTER TABLE outbox RENAME COLUMN body TO payload") },
		lateRows: true,
	},
	{
		name:   "statements instead of rows",
		server: func(tb testing.TB) *testservers.DB { return testservers.MySQL(tb, "--binlog-format=STATEMENT") },
		says:   []string{"binlog_format is STATEMENT", "SET GLOBAL binlog_format=ROW", "trying again"},
		mend:   func(s *stage) { s.exec("SET GLOBAL binlog_format=ROW") },
	},
	{
		name: "own tables missing",
		prepare: func(s *stage) []string {
			s.exec("DROP TABLE rowferry_checkpoint, rowferry_topic, rowferry_dead, rowferry_migrations")
			return nil
		},
		says: []string{"rowferry migrate up", "looking again"},
		mend: func(s *stage) {
			if r := s.command([]string{"migrate", "up"}); r.code != 0 {
				s.tb.Errorf("migrate up: exit code %d: %s", r.code, r.stderr)
			}
		},
	},
}

// A relay that cannot work says why, stays alive, is not ready, and goes on by
// itself when the cause is gone; what was committed meanwhile is not lost.
func TestARelayThatCannotWorkSaysWhyAndGoesOnByItself(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testservers.SharedMySQL
			if c.server != nil {
				server = c.server
			}
			s := newStage(t, server(t), testservers.SharedRocketMQ(t), layoutPragmatic)
			var overrides []string
			if c.prepare != nil {
				overrides = c.prepare(s)
			}
			f := s.start(append(overrides, "OUTBOX_GRACE=1s")...)
			line := f.awaitLog(c.says...)
			t.Log(line)
			if !c.lateRows {
				s.insert("before")
			}
			if status, body := f.get("/livez"); status != 200 {
				t.Errorf("/livez answers %d: %s", status, body)
			}
			if status, body := f.get("/readyz"); status != 503 {
				t.Errorf("/readyz answers %d: %s", status, body)
			}
			c.mend(s)
			if c.lateRows {
				s.insert("before")
			}
			f.awaitLog(`"message":"relaying"`)
			s.insert("after")
			s.awaitSent()
			s.expectExactly(s.ids("TRUE"))
			if n := f.log.count("trying again"); n > 3 {
				t.Errorf("the cause was logged %d times", n)
			}
			f.stopCleanly()
		})
	}
}

func TestSIGTERMEndsARelayThatWaits(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutNone)
	f := s.start()
	f.awaitLog("trying again")
	if code, took := f.stop(); code != 0 || took > 5*time.Second {
		t.Errorf("SIGTERM ended it with exit code %d after %v", code, took)
	}
}

// withUser makes the account and returns the override that uses it.
func (s *stage) withUser(grant, password string) []string {
	s.tb.Helper()
	return []string{"SOURCE_DSN=" + s.server.UserDSN(s.account(grant), password, s.schema)}
}

func (s *stage) grantReplication() {
	s.tb.Helper()
	s.server.Exec(s.tb, "", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO "+s.userName())
}
