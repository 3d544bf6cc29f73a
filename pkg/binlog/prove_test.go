package binlog

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A stretch that takes longer than rows wait is looked through beside the reading: rows
// go by key until the proof is there, and by place from then on.
func TestProofComesWhileReading(t *testing.T) {
	h := newHand(t, flavorMySQL)
	w := h.s.r.watch.tables[0]
	v := h.look(w, 100, 1<<40)
	v.scanned = true
	h.s.r.cfg.Reload = func(context.Context, outbox.Table) (*outbox.Layout, error) { return handLayout(t), nil }
	scan := &job[map[outbox.Table]logPlace]{done: make(chan struct{}), stop: func() {}}
	h.s.scan, h.s.scanOf, h.s.scanFrom = scan, v, h.s.place()
	h.transaction("1")
	close(scan.done)
	h.transaction("2")
	if got := strings.Join(forms(eventsOf(h.batches)), " "); got != "1=p(names) 2=p" {
		t.Errorf("got %s", got)
	}
}

// look has the layout of a table looked at.
func (h *hand) look(w *watched, before, end uint64) *sight {
	v := &sight{before: logPlace{h.s.file, before}, end: logPlace{h.s.file, end},
		columns: map[outbox.Table]string{w.table: columnsText(w.layouts[0].Columns)}, files: []string{h.s.file}, sizes: map[string]uint64{h.s.file: end}}
	w.known, w.asked, w.seen, w.since = false, true, v, v.end
	return v
}

func (h *hand) transaction(id string) {
	h.t.Helper()
	if err := h.script("gtid " + id + "; query BEGIN; map outbox; insert " + id + "=p; xid"); err != nil {
		h.t.Fatal(err)
	}
}

// A statement can be in the log before its effect is seen. What was seen then says
// nothing of what comes behind that statement.
func TestStatementNotSeenYet(t *testing.T) {
	const before, end = 2000, 9000
	for _, c := range []struct {
		name  string
		last  uint64 // of the statements that the scan finds; 0: none
		meets uint64 // statement that the stream meets behind its first row; 0: none
		since uint64 // from where on the layout is known afterwards; 0: nowhere
	}{
		{"none", 0, 0, 1000},
		{"seen", 1500, 0, 1500},
		{"seen and met", 1500, 1500, 1500},
		{"at the edge", before, before, before},
		{"not seen for certain", 2500, 0, end},
		{"not seen for certain, and met", 2500, 2500, 0},
		{"met by the stream alone", 0, 2500, 0},
	} {
		h := newHand(t, flavorMySQL)
		w := h.s.r.watch.tables[0]
		v := h.look(w, before, end)
		h.s.offset = 1000
		scan := &job[map[outbox.Table]logPlace]{done: make(chan struct{}), stop: func() {}, result: map[outbox.Table]logPlace{}}
		if c.last != 0 {
			scan.result[w.table] = logPlace{h.s.file, c.last}
		}
		h.s.scan, h.s.scanOf, h.s.scanFrom = scan, v, h.s.place()
		h.s.takeScan()
		if c.meets != 0 {
			h.s.offset = c.meets
			h.s.forget(w)
		}
		if w.since.offset != c.since {
			t.Errorf("%s: known from %d on, want %d", c.name, w.since.offset, c.since)
		}
	}
}

// A statement that the stream meets while the source is looked at makes it look again, and
// so does a log that has become shorter.
func TestLookThatComesTooLate(t *testing.T) {
	for _, c := range []struct {
		name                     string
		forgotten, before, began uint64
		taken                    bool
	}{
		{"nothing met", 0, 2000, 1000, true},
		{"met before", 1500, 2000, 1000, true},
		{"met behind", 2500, 2000, 1000, false},
		{"shorter", 0, 900, 1000, false},
	} {
		h := newHand(t, flavorMySQL)
		w := h.s.r.watch.tables[0]
		v := h.look(w, c.before, 5000)
		w.unsee()
		if c.forgotten != 0 {
			w.forgotten = logPlace{h.s.file, c.forgotten}
		}
		h.s.look, h.s.lookFrom = &job[*sight]{result: v}, logPlace{h.s.file, c.began}
		h.s.takeLook()
		if w.asked != c.taken || (w.seen != nil) != c.taken {
			t.Errorf("%s: asked %v, seen %v", c.name, w.asked, w.seen)
		}
	}
}

// Whatever statement makes the stream forget a layout, a scan finds at the same place:
// shown with the recorded logs, whose statements are of every kind.
func TestScanFindsWhatTheReadingFinds(t *testing.T) {
	found := 0
	for _, server := range goldenServers {
		l, g := readGolden(t, server.name, server.release)
		h := newFuzzedStream(t, server.release.flavor, g.layouts(t, g.Before))
		h.s.r.cfg.Unseen = func(outbox.Table, string, int) {}
		h.s.file, h.s.offset = l.name, fileHeadSize
		sc := newStatementScan(h.s.place(), h.s.log.fde, logPlace{"binlog.999999", 0}, h.s.r.watch)
		sc.recognised = true
		for _, e := range l.events {
			e = e[:len(e)-checksumSize]
			if parseHeader(e).kind == replication.FORMAT_DESCRIPTION_EVENT {
				continue
			}
			for _, w := range h.s.r.watch.tables {
				w.forgotten = logPlace{}
			}
			if err := errors.Join(h.s.handle(e), sc.handle(e)); err != nil {
				t.Fatalf("%s: %v", server.name, err)
			}
			for _, w := range h.s.r.watch.tables {
				if w.forgotten.file == "" {
					continue
				}
				if found++; sc.last[w.table] != w.forgotten {
					t.Errorf("%s: the statement on %s at %v was not found, the last is at %v", server.name, w.table, w.forgotten, sc.last[w.table])
				}
			}
		}
		h.s.payload.close()
		sc.payload.close()
	}
	if found < 5 {
		t.Errorf("the recorded logs have only %d such statements", found)
	}
}

// A scan that cannot see everything has no result.
func TestScanWithoutResult(t *testing.T) {
	from := logPlace{"b.1", 500}
	fresh := func() *statementScan {
		h := newHand(t, flavorMySQL)
		return newStatementScan(from, 1_700_000_000, logPlace{"b.1", 2000}, h.s.r.watch)
	}
	h := newHand(t, flavorMySQL)
	describe := h.raw(replication.FORMAT_DESCRIPTION_EVENT, nil)
	h.logPos = 5000 // what comes now is behind the end
	xid := h.raw(replication.XID_EVENT, make([]byte, 8))
	for name, events := range map[string][][]byte{
		"an event of unknown type":      {describe, h.raw(250, nil)},
		"events were lost":              {describe, h.raw(replication.INCIDENT_EVENT, nil)},
		"a statement that is cut off":   {describe, h.raw(replication.QUERY_EVENT, []byte{1, 2})},
		"a transaction that is damaged": {describe, h.raw(replication.TRANSACTION_PAYLOAD_EVENT, []byte{9, 9, 9})},
		"a file of another time":        {withTime(describe, 1_600_000_000)},
		"no description":                {xid},
	} {
		sc, err := fresh(), error(nil)
		for _, e := range events {
			err = errors.Join(err, sc.handle(e))
		}
		if sc.done || err == nil && name != "no description" {
			t.Errorf("%s: done %v, %v", name, sc.done, err)
		}
	}
	sc := fresh()
	if err := sc.handle(describe); err != nil {
		t.Fatal(err)
	}
	if err := sc.handle(xid); !errors.Is(err, errScanned) || !sc.done {
		t.Errorf("at its end: done %v, %v", sc.done, err)
	}
	if err := fresh().unpack(header{}, strings.NewReader("\x09")); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a damaged large transaction: %v", err)
	}
}

func withTime(event []byte, seconds uint32) []byte {
	e := append([]byte{}, event...)
	e[0], e[1], e[2], e[3] = byte(seconds), byte(seconds>>8), byte(seconds>>16), byte(seconds>>24)
	return e
}

// What lies between two places of a log, over its files.
func TestStretchBytes(t *testing.T) {
	v := &sight{end: logPlace{"b.000011", 40}, files: []string{"b.000008", "b.000009", "b.000010", "b.000011", "b.000012"},
		sizes: map[string]uint64{"b.000008": 1000, "b.000009": 200, "b.000010": 300, "b.000011": 500, "b.000012": 7}}
	for from, want := range map[logPlace]uint64{
		{"b.000009", 150}: 390, {"b.000010", 100}: 240, {"b.000011", 10}: 30, {"b.000011", 40}: 0, {"b.000011", 400}: 0,
	} {
		if got := v.stretchBytes(from); got != want {
			t.Errorf("from %v: %d, want %d", from, got, want)
		}
	}
}
