package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// reader is an account with no more rights than tail needs, and its DSN.
func (s *stage) reader() string {
	s.tb.Helper()
	name := "r" + s.schema[len(s.schema)-20:]
	host := "'" + name + "'@'127.0.0.1'"
	s.exec("CREATE USER " + host + " IDENTIFIED BY 'pw'")
	s.tb.Cleanup(func() { s.server.Exec(s.tb, "", "DROP USER "+host) })
	s.exec("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO " + host)
	s.exec("GRANT SELECT ON `" + s.schema + "`.outbox TO " + host)
	return s.server.UserDSN(name, "pw", s.schema)
}

// tail runs beside the relay, whose configuration it shares, under an account that may
// only read, and does not disturb it.
func TestTailBesideARelayNeedsOnlyToRead(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		first := s.insert("first")
		from := s.ended(s.ok("tail", "--from", "earliest", "--limit", "1"), first)
		f := s.run("SERVER_ID=77", "OUTBOX_POLL_INTERVAL=1h")
		before := metric(t, f, "rowferry_binlog_reconnects_total")
		account := "SOURCE_DSN=" + s.reader()

		whole := s.insert("whole")
		s.session("SET SESSION binlog_row_image = MINIMAL", `INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('lean', 'Created', '{"key": "lean"}')`)
		s.session("SET SESSION binlog_row_image = MINIMAL", `INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (900, 'gone', 'Created', '{"key": "gone"}')`,
			"DELETE FROM outbox WHERE id = 900")
		s.session("SET SESSION binlog_format = STATEMENT", `INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES (901, 'statement', 'Created', '{}')`)
		last := s.insert("last")

		var got []string
		for line := range strings.Lines(s.okWith([]string{account, "SERVER_ID=77"}, "tail", "--from", from, "--limit", "5")) {
			l := decode[struct {
				printedLine
				NotSent string `json:"not_sent"`
			}](t, line)
			got = append(got, l.Key+"/"+l.Payload+"/"+reasonOf(l.NotSent))
		}
		want := []string{`whole/{"key": "whole"}/`, `lean/{"key": "lean"}/`, "//(image)", "//(statement)", `last/{"key": "last"}/`}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("tail printed\n%q, want\n%q", got, want)
		}
		s.await("the relay has sent what it can see", func() bool {
			return s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'SENT' AND id IN (?, ?)", whole, last) == 2
		})
		if after := metric(t, f, "rowferry_binlog_reconnects_total"); after != before {
			t.Errorf("the relay lost its stream %v times while tail read", after-before)
		}
		f.stopCleanly()
	})
}

// session runs statements on one connection of their own, which is then closed.
func (s *stage) session(statements ...string) {
	s.tb.Helper()
	db := s.server.Open(s.tb, s.schema)
	defer db.Close()
	c, err := db.Conn(s.tb.Context())
	if err != nil {
		s.tb.Fatal(err)
	}
	defer c.Close()
	for _, statement := range statements {
		if _, err := c.ExecContext(s.tb.Context(), statement); err != nil {
			s.tb.Fatalf("%s: %v", statement, err)
		}
	}
}

// metric is the sum of the series of one metric that hold all of these labels; 0 without any.
func metric(tb testing.TB, f *ferry, name string, labels ...string) (sum float64) {
	tb.Helper()
	_, text := f.get("/metrics")
	for line := range strings.Lines(text) {
		missing := func(label string) bool { return !strings.Contains(line, label) }
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' || slices.ContainsFunc(labels, missing) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			tb.Fatalf("%s: %v", line, err)
		}
		sum += n
	}
	return sum
}

// reasonOf returns the part of a reason in brackets.
func reasonOf(text string) string {
	if i, j := strings.Index(text, "("), strings.Index(text, ")"); i >= 0 && j > i {
		return text[i : j+1]
	}
	return ""
}

// ended is the position behind a row that tail has printed.
func (s *stage) ended(printed, id string) string {
	s.tb.Helper()
	l := decode[printedLine](s.tb, printed)
	if l.ID != id {
		s.tb.Fatalf("tail printed row %s, want %s", l.ID, id)
	}
	return l.Position
}

func TestTailSaysWhatIsWrongWithItsPosition(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	for _, c := range []struct {
		from string
		code int
		says string
	}{
		{"yesterday", 2, "FILE:POS"}, {"", 2, "FILE:POS"}, {"mysql-bin.000003", 2, "FILE:POS"},
		{"nosuch-bin.000003:4", 1, "nosuch-bin.000003"}, {"0-1-5", 1, "MariaDB"}, {"checkpoint", 1, "no position is saved"},
	} {
		r := s.command([]string{"tail", "--from", c.from})
		if r.code != c.code || !strings.Contains(r.stderr, c.says) || strings.Count(r.stderr, "\n") > 3 {
			t.Errorf("tail --from %q: exit code %d, want %d and %q:\n%s", c.from, r.code, c.code, c.says, r.stderr)
		}
	}
}
