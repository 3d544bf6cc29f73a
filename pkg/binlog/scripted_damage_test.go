package binlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	my "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func myError(code uint16, text string) error { return my.NewError(code, text) }

// spoiled is a copy of an event that a change has damaged.
func spoiled(e []byte, change func([]byte)) []byte {
	e = slices.Clone(e)
	change(e)
	return e
}

// damages are events that cannot be what the server wrote.
var damages = map[string]func([]byte){
	"checksum":   func(e []byte) { e[len(e)-1] ^= 1 },
	"body":       func(e []byte) { e[headSize+3] ^= 0x10 },
	"size":       func(e []byte) { e[9]++ },
	"tiny size":  func(e []byte) { copy(e[9:13], []byte{3, 0, 0, 0}) },
	"cut short":  func(e []byte) { copy(e[9:13], []byte{headSize, 0, 0, 0}) },
	"no columns": func(e []byte) { reseal(e, func(e []byte) { e[headSize+10] = 99 }) },
}

// reseal changes an event and gives it the right checksum.
func reseal(e []byte, change func([]byte)) {
	change(e)
	copy(e, sealed(e[:len(e)-4:len(e)-4], true))
}

// A damaged event is read again: the network may have done it. Damaged for the third
// time at the same place it is in the log, and the position is lost there.
func TestDamagedEvents(t *testing.T) {
	cases := map[string]func(context.Context) error{}
	for name, damage := range damages {
		for _, times := range []int{1, 99} {
			l := newLog(mysql80, "binlog.000001")
			l.transaction(t, 1, "a")
			rows := l.transaction(t, 2, "b")[3]
			m := newMaster(t, func(d *dumping) {
				d.begin(l)
				for _, e := range d.wanted(l) {
					if d.number <= times && &e[0] == &rows[0] {
						e = spoiled(e, damage)
					}
					d.send(e)
				}
				d.idle()
			}, l)
			cases[fmt.Sprint(name, " times ", times)] = func(ctx context.Context) error {
				got, err := m.read(ctx, m.config(), "b")
				if times < doubtfulMax {
					return errors.Join(err, differ(got, []string{"a", "b"}))
				}
				return errors.Join(judgeDamage(err, m.served()), differ(got, []string{"a"}))
			}
		}
	}
	together(t, cases)
}

func judgeDamage(err error, tried int) error {
	switch {
	case !errors.Is(err, ErrGap) || tried != doubtfulMax:
		return fmt.Errorf("after %d tries the end is %w, want a gap after %d", tried, err, doubtfulMax)
	case strings.Contains(err.Error(), "PENDING"):
		return fmt.Errorf("the error quotes the row: %w", err)
	}
	return nil
}

// A server that says it lost events, and events of a kind that nobody has heard of, end
// the reading; those that are marked as ignorable do not.
func TestEventsThatMayHideRows(t *testing.T) {
	ignorable := rawEvent{timestamp: 1, kind: 120, serverID: 7, flags: 0x80, body: []byte("future"), checksum: true}.bytes()
	for _, c := range []struct {
		name string
		add  func(l *madeLog)
		gap  string // empty: passed over
	}{
		{"incident", func(l *madeLog) { l.script(t, "incident") }, "lost events"},
		{"unknown", func(l *madeLog) { l.script(t, "unknown") }, "unknown type 120"},
		{"ignorable", func(l *madeLog) { l.events = append(l.events, ignorable) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLog(mysql97, "binlog.000001")
			l.transaction(t, 1, "a")
			c.add(l)
			l.transaction(t, 2, "b")
			m := newMaster(t, nil, l)
			tl := m.tail(t, "earliest")
			if c.gap == "" {
				tl.wantPayloads("a", "b")
				return
			}
			tl.wantEnd(ErrGap, c.gap)
			wantStrings(t, "payloads", payloads(eventsOf(tl.batches)), []string{"a"})
		})
	}
}

// A server that crashed in the middle of a transaction left a piece of it in its log.
// The next file says so by beginning; the number of the torn one is then used again.
func TestTornTransactionAndItsNumberAgain(t *testing.T) {
	for _, r := range []release{mysql57, mysql97, mariadb1011, mariadb118} {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			old := newLog(r, "binlog.000001")
			old.transaction(t, 1, "a")
			whole := len(old.transaction(t, 2, "torn", "torn too"))
			old.events = old.events[:len(old.events)-whole+(whole-1)] // without its end
			next := newLog(r, "binlog.000002")
			next.transaction(t, 2, "b")
			next.transaction(t, 3, "c")
			m := newMaster(t, nil, old, next)
			tl := m.tail(t, "earliest")
			batches := tl.wantPayloads("a", "b", "c")
			p, err := parsePosition(tl.reader.Encode(batches[len(batches)-1].End))
			if err != nil || p.gtids.String() != r.executedOf(3) || p.file != next.name {
				t.Errorf("the end is %s (%v)", p, err)
			}
		})
	}
}

// bigRows are rows of the watched table with a payload of any size.
func bigRows(id uint32, payload string) (tableMap, rows []byte) {
	tableMap = append([]byte{78, 0, 0, 0, 0, 0, 1, 0, 3}, "app\x00\x06outbox\x00\x03"...)
	tableMap = append(tableMap, my.MYSQL_TYPE_LONG, my.MYSQL_TYPE_BLOB, my.MYSQL_TYPE_VARCHAR, 3, 4, 40, 0, 0)
	rows = []byte{78, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0xff, 0}
	rows = binary.LittleEndian.AppendUint32(rows, id)
	rows = binary.LittleEndian.AppendUint32(rows, uint32(len(payload)))
	rows = append(rows, payload...)
	return tableMap, append(append(rows, 7), "PENDING"...)
}

func bigLayout(t testing.TB) *outbox.Layout {
	t.Helper()
	l := handLayout(t)
	columns := slices.Clone(l.Columns)
	columns[1] = outbox.Column{Name: "payload", Ordinal: 1, DataType: "longtext", FullType: "longtext", Charset: "utf8mb4", LengthMax: 1<<32 - 1}
	big, err := outbox.Recognise(handTable, columns, map[string]string{"id": "PRIMARY"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return big
}

// An event larger than a packet comes in several, of which the last may be empty.
func TestEventsLargerThanAPacket(t *testing.T) {
	const row = headSize + 13 + 8 + 8 + 4 // all of an event but the payload
	l := newLog(mysql80, "binlog.000001")
	var want []string
	for i, size := range []int{17 << 20, packetMax - row - 1} {
		payload := strings.Repeat(string(rune('a'+i)), size)
		tableMap, rows := bigRows(uint32(i), payload)
		l.script(t, "anonymous; query BEGIN")
		l.add(byte(replication.TABLE_MAP_EVENT), tableMap)
		if e := l.add(byte(replication.WRITE_ROWS_EVENTv2), rows); len(e) != size+row {
			t.Fatalf("the event has %d bytes, want %d", len(e), size+row)
		}
		l.script(t, "xid")
		want = append(want, payload)
	}
	m := newMaster(t, nil, l)
	m.vars["gtid_mode"] = "OFF"
	cfg := m.config()
	cfg.Layouts[handTable] = bigLayout(t)
	tl := tailOf(t, cfg, "earliest")
	batches := tl.await("both rows", func(bs []outbox.Batch) bool { return len(eventsOf(bs)) >= len(want) })
	for i, p := range payloads(eventsOf(batches)) {
		if p != want[i] {
			t.Errorf("row %d has %d bytes, want %d", i, len(p), len(want[i]))
		}
	}
}

// A server that writes one byte at a time is slow and nothing else.
func TestByteByByte(t *testing.T) {
	l := threeTransactions(t, mariadb1011)
	m := newMaster(t, func(d *dumping) {
		d.conn.conn = &slowConn{d.conn.conn}
		d.follow(l)
	}, l)
	m.tail(t, "earliest").wantPayloads("a", "b", "c", "d")
	if n := m.served(); n != 1 {
		t.Errorf("it took %d connections", n)
	}
}

// A peer that falls silent, wherever, is left after six heartbeats.
func TestSilentPeer(t *testing.T) {
	l := threeTransactions(t, mysql84)
	cases := map[string]func(context.Context) error{}
	for at := range len(l.events) {
		m := newMaster(t, func(d *dumping) {
			if d.number > 1 {
				d.follow(l)
				return
			}
			d.begin(l)
			d.send(l.events[1 : at+1]...)
			d.idle()
		}, l)
		cfg := m.config()
		cfg.HeartbeatPeriod = 300 * time.Millisecond
		cases[fmt.Sprint("after event ", at)] = func(ctx context.Context) error {
			got, err := m.read(ctx, cfg, "d")
			return errors.Join(err, differ(got, []string{"a", "b", "c", "d"}))
		}
	}
	together(t, cases)
}

// A file may outgrow 4 GiB by its last transaction. Nothing behind that is saved by its
// file position, which a dump cannot begin at, until the next file.
func TestFileBeyond4GiB(t *testing.T) {
	l := newLog(mysql57, "binlog.000001")
	l.place = 1<<32 - 800 // what stands before it was read earlier
	start := l.place
	l.script(t, "anonymous; query BEGIN; map outbox; insert 1=a; xid")
	if l.place >= 1<<32 {
		t.Fatalf("the first transaction ends at %d already", l.place)
	}
	before := l.place
	l.script(t, "anonymous; query BEGIN; map outbox; insert 2="+strings.Repeat("b", 50)+"; insert 3="+strings.Repeat("c", 50)+
		"; insert 4="+strings.Repeat("d", 50)+"; insert 5="+strings.Repeat("e", 50)+"; query SAVEPOINT s"+strings.Repeat("s", 200)+"; xid")
	if l.place <= 1<<32 {
		t.Fatalf("the second transaction ends at %d", l.place)
	}
	l.add(byte(replication.ROTATE_EVENT), append(binary.LittleEndian.AppendUint64(nil, 4), "binlog.000002"...))
	next := newLog(mysql57, "binlog.000002")
	next.script(t, "anonymous; query BEGIN; map outbox; insert 6=f; xid")
	m := newMaster(t, func(d *dumping) {
		d.rotate(l.name, start)
		d.describe(l)
		d.send(l.events[1:]...)
		d.offset = 0
		d.begin(next)
		d.send(next.events[1:]...)
		d.idle()
	}, l, next)
	m.vars["gtid_mode"] = "OFF"
	p := position{flavor: flavorMySQL, file: l.name, offset: start, server: masterUUID}
	tl := m.tail(t, p.String())
	batches := tl.await("row 6", func(bs []outbox.Batch) bool { return slices.Contains(ids(eventsOf(bs)), "6") })
	wantStrings(t, "ids", ids(eventsOf(batches)), []string{"1", "2", "3", "4", "5", "6"})
	for _, b := range batches {
		text := tl.reader.Encode(b.End)
		q, err := parsePosition(text)
		if err != nil {
			t.Fatalf("the position %s cannot be read: %v", text, err)
		}
		if q.file == l.name && q.offset > before {
			t.Errorf("saved %s, behind the last place of its file where a dump can begin, %d", text, before)
		}
		if _, err := tl.reader.Resolve(t.Context(), text); err != nil {
			t.Errorf("saved %s, which is refused: %v", text, err)
		}
	}
	if q, err := parsePosition(tl.reader.Encode(outbox.Position{})); err != nil || q.file != next.name || q.offset != next.place {
		t.Errorf("the last position is %s (%v), want %s:%d", q, err, next.name, next.place)
	}
}

// A stream of checksums that begin or end between files is followed.
func TestChecksumsSwitched(t *testing.T) {
	on := newLog(mysql80, "binlog.000001")
	on.transaction(t, 1, "a")
	off := newLog(mysql80, "binlog.000002")
	off.checksum = false
	off.events, off.place = nil, fileHeadSize
	off.add(byte(replication.FORMAT_DESCRIPTION_EVENT), off.description(mysql80))
	off.transaction(t, 2, "b")
	again := newLog(mysql80, "binlog.000003")
	again.transaction(t, 3, "c")
	m := newMaster(t, nil, on, off, again)
	m.tail(t, "earliest").wantPayloads("a", "b", "c")
	if bytes.Equal(on.events[0], off.events[0]) {
		t.Error("the files have the same head")
	}
}
