package binlog

import (
	"fmt"
	"strings"
	"testing"
)

// Where no sweep finds the rows of a prepared transaction, a restart must read its
// PREPARE again: no position behind it is given out until it is decided.
func TestPositionWaitsForPreparedRows(t *testing.T) {
	prepare := func(gtid int, id, rows string) string {
		return fmt.Sprintf("gtid %d; query XA START X'%x',X'',1; %squery XA END X'%x',X'',1; prepare %s", gtid, id, rows, id, id)
	}
	decide := func(gtid int, what, id string) string {
		return fmt.Sprintf("gtid %d; query XA %s X'%x',X'',1", gtid, what, id)
	}
	const insert = "map outbox; insert 1=a; "
	other := "gtid 2; query BEGIN; map outbox; insert 2=b; xid"
	for _, c := range []struct {
		name   string
		hold   bool
		script []string
		want   string // of each batch: + with a position, - without
	}{
		{"committed", true, []string{prepare(1, "g", insert), other, "rotate b.2; describe", decide(3, "COMMIT", "g")}, "---+"},
		{"rolled back", true, []string{prepare(1, "g", insert), other, decide(3, "ROLLBACK", "g")}, "--+"},
		{"two", true, []string{prepare(1, "g", insert), prepare(2, "h", insert), decide(3, "COMMIT", "g"), decide(4, "COMMIT", "h")}, "---+"},
		{"no rows of ours", true, []string{prepare(1, "g", ""), other}, "++"},
		{"swept", false, []string{prepare(1, "g", insert), other, decide(3, "COMMIT", "g")}, "+++"},
	} {
		h := newHand(t, flavorMySQL)
		h.s.r.cfg.HoldPrepared = c.hold
		if err := h.script(strings.Join(c.script, "; ")); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, b := range h.batches {
			if b.End.IsZero() {
				got += "-"
			} else {
				got += "+"
			}
		}
		if got != c.want {
			t.Errorf("%s: positions %s, want %s", c.name, got, c.want)
		}
	}
}
