package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

type changeDocument struct {
	Before, After string
	Applied       bool
	Skipped       *int `json:"skipped_transactions"`
	Repeated      *int `json:"repeated_transactions"`
	Bytes         *int
	Pending       int `json:"pending_rows"`
}

// counts reports whether the transactions between are counted right; positions without
// GTIDs do not tell.
func (c changeDocument) counts(position string, right func(skipped, repeated int) bool) bool {
	if !strings.Contains(position, `"gtid"`) {
		return c.Skipped == nil && c.Repeated == nil
	}
	return c.Skipped != nil && c.Repeated != nil && right(*c.Skipped, *c.Repeated)
}

// fails runs a command that must end with this exit code and say why.
func (s *stage) fails(code int, why string, with []string, args ...string) {
	s.tb.Helper()
	if r := s.command(args, with...); r.code != code || !strings.Contains(r.stderr, why) {
		s.tb.Errorf("rowferry %s: exit code %d, want %d and %q: %s", strings.Join(args, " "), r.code, code, why, r.stderr)
	}
}

func (s *stage) savedPosition() (position string, epoch int) {
	s.tb.Helper()
	return s.queryText("SELECT `position` FROM rowferry_checkpoint WHERE name = ?", s.schema),
		s.queryInt("SELECT epoch FROM rowferry_checkpoint WHERE name = ?", s.schema)
}

func TestCheckpointIsSetAndResetBetweenRuns(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, server *testservers.DB) {
		s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
		with := []string{fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "MODE=tail", "ON_GAP=stop"}
		s.fails(2, "add --yes", with, "checkpoint", "set", "now")
		if n := s.queryInt("SELECT COUNT(*) FROM rowferry_checkpoint"); n != 0 {
			t.Error("without --yes something was saved")
		}
		f := s.run(with...)
		a := s.insert("a")
		s.awaitSent()
		s.fails(1, "leads", with, "checkpoint", "set", "now", "--yes")
		s.fails(1, "is running", append(with, "HTTP_ADDR=127.0.0.1:1"), "checkpoint", "reset", "--yes")
		f.stopCleanly()
		old, epoch := s.savedPosition()

		// Forward: what lies between is not read.
		b, c := s.insert("b"), s.insert("c")
		said := s.command([]string{"checkpoint", "set", "now"}, with...)
		expectParts(t, "checkpoint set", said.stdout, "saved now:", "afterwards:", "bytes of binlog further on", "Nothing is swept here")
		change := decode[changeDocument](t, s.okWith(with, "checkpoint", "set", "now", "--yes", "--json"))
		now, raised := s.savedPosition()
		if change.Before != old || change.After != now || !change.Applied || change.Pending != 2 || raised <= epoch ||
			!change.counts(old, func(skipped, repeated int) bool { return skipped >= 2 && repeated == 0 }) || change.Bytes == nil || *change.Bytes <= 0 {
			t.Errorf("set: %+v; saved %s, epoch %d after %d", change, now, raised, epoch)
		}
		f.restart()
		d := s.insert("d")
		s.await("d is SENT", func() bool { return s.queryInt("SELECT COUNT(*) FROM outbox WHERE status = 'SENT'") == 2 })
		f.stopCleanly()
		s.expectExactly([]string{a, d})

		// Back, in the form that show prints: what was left out is sent, the rest is not sent again.
		change = decode[changeDocument](t, s.okWith(with, "checkpoint", "set", old, "--yes", "--json"))
		if !change.counts(old, func(skipped, repeated int) bool { return repeated >= 3 && skipped == 0 }) || change.Bytes == nil || *change.Bytes >= 0 {
			t.Errorf("set back: %+v", change)
		}
		f.restart()
		s.awaitSent()
		f.stopCleanly()
		s.expectExactly([]string{a, b, c, d})

		_, epoch = s.savedPosition()
		topics := s.queryInt("SELECT COUNT(*) FROM rowferry_topic")
		s.fails(2, "add --yes", with, "checkpoint", "reset")
		expectParts(t, "checkpoint reset", s.okWith(with, "checkpoint", "reset", "--yes"), "ROWFERRY_START_AT", "done")
		now, raised = s.savedPosition()
		if now != "" || raised <= epoch || topics != 1 || s.queryInt("SELECT COUNT(*) FROM rowferry_topic") != topics {
			t.Errorf("after a reset: position %q, epoch %d after %d, %d topics", now, raised, epoch, topics)
		}
		f.env["START_AT"] = "earliest"
		f.restart()
		e := s.insert("e")
		s.awaitSent()
		f.stopCleanly()
		s.expectExactly([]string{a, b, c, d, e})
	})
}

func TestCheckpointSetRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*testservers.DB{"mysql": testservers.SharedMySQL(t), "mysql without GTIDs": testservers.SharedMySQLNoGTID(t), "mariadb": testservers.SharedMariaDB(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, server, testservers.SharedRocketMQ(t), layoutPragmatic)
			set := func(code int, why, position string, with ...string) {
				t.Helper()
				s.fails(code, why, with, "checkpoint", "set", position, "--yes")
			}
			set(2, "wanted now", "rubbish")
			set(2, "wanted now", "checkpoint")
			set(2, "JSON", `{"v":1`)
			set(2, "reads no binlog", "now", "MODE=poll")
			set(2, "START_AT", "now", "CHECKPOINT_STORE=memory")
			set(1, "no longer has", "no-such-bin.000999:4")
			set(1, "does not serve", `{"v":1,"flavor":"mysql","file":"bin.000001","pos":4,"server":"11111111-2222-3333-4444-555555555555"}`)
			set(1, "does not serve", `{"v":1,"flavor":"mariadb","file":"bin.000001","pos":4,"server":"4294967295"}`)
			switch name {
			case "mysql":
				set(1, "does not know transactions", "11111111-2222-3333-4444-555555555555:1-5")
			case "mariadb":
				set(1, "beyond", "0-1-9000000000")
			}
			if n := s.queryInt("SELECT COUNT(*) FROM rowferry_checkpoint"); n != 0 {
				t.Error("something was saved")
			}
		})
	}
}

// TestCheckpointSetBesideARelayWithoutTheLock: such a relay is fenced, and begins anew.
func TestCheckpointSetBesideARelayWithoutTheLock(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("HA=false", "MODE=tail", "CHECKPOINT_INTERVAL=10ms")
	s.okWith([]string{"HTTP_ADDR=127.0.0.1:1"}, "checkpoint", "set", "now", "--yes")
	want := []string{s.insert("a")}
	f.awaitLog("no longer leading")
	s.await("it relays again", func() bool { return f.log.count(`"message":"relaying"`) == 2 })
	want = append(want, s.insert("a"))
	s.awaitSent()
	f.stopCleanly()
	s.expectExactly(want)
}

// TestCheckpointSetInAFile has positions that are a file and an offset.
func TestCheckpointSetInAFile(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQLNoGTID(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	with := []string{
		fmt.Sprintf("HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)), "LEDGER=none",
		"CHECKPOINT_STORE=file:" + filepath.Join(t.TempDir(), "position"),
	}
	f := s.run(with...)
	a := s.insert("a")
	s.messages(1)
	s.fails(1, "another process", append(with, "HTTP_ADDR=127.0.0.1:1"), "checkpoint", "set", "now", "--yes")
	f.stopCleanly()
	s.insert("left out")
	expectParts(t, "checkpoint set", s.okWith(with, "checkpoint", "set", "now", "--yes"), "bytes of binlog further on", "never sent", "done")
	f.restart()
	b := s.insert("b")
	s.messages(2)
	f.stopCleanly()
	s.expectExactly([]string{a, b})
}
