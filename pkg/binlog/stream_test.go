package binlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	my "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"
	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// bench of events written by hand: what real servers show too rarely.
type hand struct {
	t       testing.TB
	s       *stream
	batches []outbox.Batch
	logPos  uint32
}

var handTable = outbox.Table{Schema: "app", Name: "outbox"}

func handLayout(t testing.TB) *outbox.Layout {
	t.Helper()
	l, err := outbox.Recognise(handTable, []outbox.Column{
		{Name: "id", Ordinal: 0, DataType: "int", FullType: "int"},
		{Name: "payload", Ordinal: 1, DataType: "varchar", FullType: "varchar(50)", Charset: "utf8mb4", LengthMax: 50},
		{Name: "status", Ordinal: 2, DataType: "varchar", FullType: "varchar(10)", Charset: "utf8mb4", LengthMax: 10},
	}, map[string]string{"id": "PRIMARY"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newHand(t testing.TB, flavor string) *hand {
	t.Helper()
	r, err := New(Config{DSN: mysql.NewConfig(), ServerID: 1, Logger: zerolog.Nop(), Layouts: map[outbox.Table]*outbox.Layout{handTable: handLayout(t)}})
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{t: t, logPos: 1000}
	set, err := parseSet(flavor, "")
	if err != nil {
		t.Fatal(err)
	}
	r.resume = position{flavor: flavor, gtids: set}
	r.tracker.start(&r.resume)
	head := func(context.Context, string) (fileHead, error) { return fileHead{}, nil }
	h.s = &stream{r: r, ctx: context.Background(), server: "s", head: head, flavor: flavor, file: "b.1", offset: 500,
		log: &logFile{server: "s", fileHead: fileHead{fde: 1}}, plans: map[uint64]*plan{}}
	h.s.emit = func(_ context.Context, b outbox.Batch) error {
		h.batches = append(h.batches, b)
		return nil
	}
	return h
}

// raw puts a head in front of a body.
func (h *hand) raw(kind replication.EventType, body []byte) []byte {
	h.logPos += 100
	b := binary.LittleEndian.AppendUint32(nil, 1_700_000_000)
	b = append(b, byte(kind))
	b = binary.LittleEndian.AppendUint32(b, 7) // server id
	b = binary.LittleEndian.AppendUint32(b, uint32(replication.EventHeaderSize+len(body)))
	b = binary.LittleEndian.AppendUint32(b, h.logPos)
	return append(append(b, 0, 0), body...)
}

// send feeds one event through the front door.
func (h *hand) send(kind replication.EventType, body []byte) error {
	return h.s.handle(h.raw(kind, body))
}

func (h *hand) rotate(name string, position uint64) error {
	return h.send(replication.ROTATE_EVENT, append(binary.LittleEndian.AppendUint64(nil, position), name...))
}

func (h *hand) describe() error {
	return h.send(replication.FORMAT_DESCRIPTION_EVENT, nil)
}

// script is a sequence of events in a few words.
func (h *hand) script(words string) error {
	for _, w := range strings.Split(words, "; ") {
		if err := h.step(w); err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	return nil
}

func (h *hand) step(w string) error {
	verb, arg, _ := strings.Cut(w, " ")
	switch verb {
	case "rotate":
		return h.rotate(arg, 4)
	case "describe":
		return h.describe()
	}
	kind, body, ok := handEvent(w)
	if !ok {
		h.t.Fatalf("no such step: %s", w)
	}
	return h.send(kind, body)
}

func queryBody(text string) []byte {
	b := make([]byte, 8)
	b = append(b, 3, 0, 0, 0, 0) // schema of 3 bytes, no error, no status
	return append(append(b, "app\x00"...), text...)
}

func prepareBody(id string) []byte {
	b := append([]byte{0}, 1, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(id)))
	return append(binary.LittleEndian.AppendUint32(b, 0), id...)
}

func handTableMap(name string) []byte {
	b := []byte{77, 0, 0, 0, 0, 0, 1, 0, 3}
	b = append(b, "app\x00"...)
	b = append(append(append(b, byte(len(name))), name...), 0)
	b = append(b, 3, my.MYSQL_TYPE_LONG, my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VARCHAR)
	return append(b, 4, 200, 0, 40, 0, 0)
}

func handRows(id, payload string) []byte {
	var n uint32
	fmt.Sscan(id, &n) //nolint:errcheck // a script of this file
	b := []byte{77, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 0xff, 0}
	b = binary.LittleEndian.AppendUint32(b, n)
	b = append(append(b, byte(len(payload))), payload...)
	return append(append(b, 7), "PENDING"...)
}

// What ends a transaction and what does not, what is dropped and what is kept.
func TestStateMachine(t *testing.T) {
	const row1, row2 = "map outbox; insert 1=a", "map outbox; insert 2=b"
	for _, c := range []struct {
		name, flavor, script string
		events               string // of each batch: ids, then | and the set behind
		gap                  bool
	}{
		{"xid", "mysql", "gtid 1; query BEGIN; " + row1 + "; xid", "1|1", false},
		{"commit query", "mysql", "gtid 1; query BEGIN; " + row1 + "; query COMMIT", "1|1", false},
		{"rollback query", "mysql", "gtid 1; query BEGIN; " + row1 + "; query ROLLBACK", "|1", false},
		{"other table", "mysql", "gtid 1; query BEGIN; map other; insert 1=a; xid", "|1", false},
		{"id given again", "mysql", "gtid 1; query BEGIN; " + row1 + "; map other; insert 2=b; xid", "1|1", false},
		{"savepoint is inside", "mysql", "gtid 1; query BEGIN; " + row1 + "; query SAVEPOINT `s`; " + row2 + "; xid", "1,2|1", false},
		{"rollback to without rows", "mysql", "gtid 1; query BEGIN; query ROLLBACK TO `s`; " + row1 + "; xid", "1|1", false},
		{"rollback to with rows", "mysql", "gtid 1; query BEGIN; " + row1 + "; query ROLLBACK TO `s`; " + row2 + "; xid", "1(image),2|1", false},
		{"statement dml from ours", "mysql", "gtid 1; query BEGIN; query insert into other select * from outbox; xid", "|1", false},
		{"statement dml of a schema of its own", "mysql", "gtid 1; query BEGIN; query insert into other.outbox values (1); xid", "|1", false},
		{"statement update", "mysql", "gtid 1; query BEGIN; " + row1 + "; query update outbox set payload = 'x'; " + row2 + "; xid", "1(image),2|1", false},
		{"statement update behind words", "mariadb", "mgtid 1; " + row1 + "; query SET STATEMENT a=1 FOR INSERT INTO outbox VALUES (2); xid", "", true},
		{"commented out", "mariadb", "mgtid 1; " + row1 + "; query /*!100 INSERT INTO outbox VALUES (2) */; xid", "", true},
		{"filled by statement", "mariadb", "mstandalone 1; query CREATE TABLE outbox AS SELECT 1", "", true},
		{"ctas", "mysql", "gtid 1; query BEGIN; query CREATE TABLE x START TRANSACTION; " + row1 + "; xid", "1|1", false},
		{"ddl", "mysql", "gtid 1; query CREATE TABLE x (a INT); gtid 2; query DROP TABLE x", "|1 |1-2", false},
		{"torn by rotate", "mysql", "gtid 1; query BEGIN; " + row1 + "; rotate b.2; describe; gtid 1; query BEGIN; " + row2 + "; xid", "| 2|1", false},
		{"torn by description", "mysql", "gtid 1; query BEGIN; " + row1 + "; describe; gtid 2; query BEGIN; " + row2 + "; xid", "2|2", false},
		{"torn by gtid", "mysql", "gtid 1; query BEGIN; " + row1 + "; gtid 2; query BEGIN; " + row2 + "; xid", "2|2", false},
		{"anonymous", "mysql", "anonymous; query BEGIN; " + row1 + "; xid", "1|", false},
		{"no gtid event at all", "mysql", "query BEGIN; " + row1 + "; xid; query CREATE TABLE x (a INT); query BEGIN; " + row2 + "; xid", "1| | 2|", false},
		{"rows outside", "mysql", row1, "", true},
		{"rows outside, of an unknown table", "mysql", "insert 1=a", "", true},
		{"xa", "mysql", "gtid 1; query XA START X'67',X'',1; " + row1 + "; query XA END X'67',X'',1; prepare g; gtid 2; query XA COMMIT X'67',X'',1", "|1 1(xa)|1-2", false},
		{"xa rolled back", "mysql", "gtid 1; query XA START X'67',X'',1; " + row1 + "; query XA END X'67',X'',1; prepare g; gtid 2; query XA ROLLBACK X'67',X'',1; gtid 3; query XA COMMIT X'67',X'',1", "|1 |1-2 |1-3", false},
		{"xa unknown", "mysql", "gtid 2; query XA COMMIT X'67',X'',1", "|2", false},
		{"statement dml", "mysql", "gtid 1; query BEGIN; query insert into outbox values (1)", "", true},
		{"statement dml elsewhere", "mysql", "gtid 1; query BEGIN; query insert into other values (1); xid", "|1", false},
		{"commented dml", "mysql", "gtid 1; query BEGIN; query /* x */ INSERT INTO app.outbox SELECT 1", "", true},
		{"incident", "mysql", "incident", "", true},
		{"unknown event", "mysql", "unknown", "", true},
		{"mariadb", "mariadb", "mgtid 1; " + row1 + "; xid", "1|0-7-1", false},
		{"mariadb commit query", "mariadb", "mgtid 1; " + row1 + "; query COMMIT", "1|0-7-1", false},
		{"mariadb ddl", "mariadb", "mstandalone 1; query CREATE TABLE x (a INT)", "|0-7-1", false},
		{"mariadb ctas", "mariadb", "mgtid 1; query CREATE TABLE x (a INT); " + row1 + "; xid", "1|0-7-1", false},
		// MariaDB gives the number of a torn transaction to the next one.
		{"mariadb torn", "mariadb", "mgtid 18; " + row1 + "; rotate b.2; describe; mgtid 18; " + row2 + "; xid", "| 2|0-7-18", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHand(t, c.flavor)
			if err := h.script(c.script); (err != nil) != c.gap || c.gap && !errors.Is(err, ErrGap) {
				t.Fatalf("script ended with %v", err)
			}
			var got []string
			for _, b := range h.batches {
				p, err := parsePosition(h.s.r.Encode(b.End))
				if err != nil {
					t.Fatal(err)
				}
				_, set, _ := strings.Cut(p.gtids.String(), ":")
				if c.flavor == flavorMariaDB {
					set = p.gtids.String()
				}
				var events []string
				for _, e := range b.Events {
					events = append(events, e.ID+map[bool]string{true: "(" + e.Unread + ")"}[e.Unread != ""])
				}
				got = append(got, strings.Join(events, ",")+"|"+set)
			}
			if s := strings.Join(got, " "); s != c.events {
				t.Errorf("got %q, want %q", s, c.events)
			}
			if resumed := h.s.r.resume.gtids.String(); len(h.batches) > 0 && !strings.Contains(h.s.r.Encode(outbox.Position{}), `"`+resumed+`"`) {
				t.Errorf("would resume behind %s, saved is %s", resumed, h.s.r.Encode(outbox.Position{}))
			}
		})
	}
}

// The table turns out to be another than the one known, without a statement that says so
// (sql_log_bin=0, say): its present layout is not known for what stands here.
func TestLayoutThatTurnsOutWrong(t *testing.T) {
	h := newHand(t, flavorMySQL)
	w := h.s.r.watch.tables[0]
	known := *w.layouts[0]
	known.Columns = known.Columns[:2]
	w.layouts[0], w.asked = &known, true
	h.s.r.cfg.Reload = func(context.Context, outbox.Table) (*outbox.Layout, error) { return handLayout(t), nil }
	if err := h.script("gtid 1; query BEGIN; map outbox; insert 1=a; xid"); err != nil {
		t.Fatal(err)
	}
	if e := h.batches[0].Events[0]; e.Unread != unreadNames {
		t.Errorf("read as %q (%q)", e.Payload, e.Unread)
	}
}

// End positions wrap at 4 GiB within a file; nothing is dropped by comparing them.
func TestOffsetBeyond4GiB(t *testing.T) {
	h := newHand(t, flavorMySQL)
	var got []uint64
	for i, end := range []uint32{4294900000, 4294960000, 3500, 11500} {
		h.logPos = end - 400
		if err := h.script(fmt.Sprintf("gtid %d; query BEGIN; map outbox; insert 1=a", i+1)); err != nil {
			t.Fatal(err)
		}
		h.logPos = end - 100
		if err := h.script("xid"); err != nil {
			t.Fatal(err)
		}
		got = append(got, h.batches[i].End.Offset)
	}
	want := []uint64{4294900000, 4294960000, 1<<32 + 3500, 1<<32 + 11500}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("offsets %d, want %d", got, want)
	}
}

// A panic while an event is handled ends the stream with an error that names the
// place and holds nothing of the event.
func TestPanicIsAnError(t *testing.T) {
	h := newHand(t, flavorMySQL)
	h.s.emit = func(context.Context, outbox.Batch) error { panic("in emit") }
	err := h.script("gtid 1; query BEGIN; map outbox; insert 1=secret; xid")
	var fatal *fatalError
	if !errors.As(err, &fatal) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestParseXID(t *testing.T) {
	for text, want := range map[string]xid{
		"X'6162',X'63',7":         {7, "ab", "c"},
		"X'6162',X'',1":           {1, "ab", ""},
		"X'6162'":                 {1, "ab", ""},
		"'plain','b'":             {1, "plain", "b"},
		"X'61',X'62',3 ONE PHASE": {3, "a", "b"},
		" X'61' , X'62' , 3 ":     {3, "a", "b"},
	} {
		if got, ok := parseXID(text); !ok || got != want {
			t.Errorf("%q gave %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "X'6'", "X'61", "abc", "X'61',", "X'61',X'62',x"} {
		if got, ok := parseXID(text); ok {
			t.Errorf("%q was accepted as %+v", text, got)
		}
	}
}

// payloadOf packs events as a server does.
func payloadOf(t testing.TB, method uint64, events ...[]byte) []byte {
	t.Helper()
	plain := bytes.Join(events, nil)
	packed := plain
	if method == compressionZstd {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		packed = w.EncodeAll(plain, nil)
	}
	b := []byte{1, 3, 0xfc, byte(len(packed)), byte(len(packed) >> 8)}
	b = append(b, payloadCompression, byte(len(my.PutLengthEncodedInt(method))))
	b = append(b, my.PutLengthEncodedInt(method)...)
	return append(append(b, payloadEnd), packed...)
}

func TestPayload(t *testing.T) {
	for _, method := range []uint64{compressionZstd, compressionNone} {
		h := newHand(t, flavorMySQL)
		body := payloadOf(t, method,
			h.raw(replication.QUERY_EVENT, queryBody("BEGIN")),
			h.raw(replication.TABLE_MAP_EVENT, handTableMap("other")),
			h.raw(replication.WRITE_ROWS_EVENTv2, handRows("1", strings.Repeat("o", 200))),
			h.raw(replication.TABLE_MAP_EVENT, handTableMap("outbox")),
			h.raw(replication.WRITE_ROWS_EVENTv2, handRows("2", "mine")),
			h.raw(replication.XID_EVENT, make([]byte, 8)))
		if err := h.script("gtid 1"); err != nil {
			t.Fatal(err)
		}
		if err := h.send(replication.TRANSACTION_PAYLOAD_EVENT, body); err != nil {
			t.Fatal(err)
		}
		if len(h.batches) != 1 || fmt.Sprint(payloads(h.batches[0].Events)) != "[mine]" || h.batches[0].End.Offset != uint64(h.logPos) {
			t.Errorf("method %d: %+v", method, h.batches)
		}
		h.s.payload.close()
	}
}

// Whatever stands in a payload, the reader ends with an error or an end, and in
// time.
func FuzzPayload(f *testing.F) {
	h := newHand(f, flavorMySQL)
	good := h.raw(replication.WRITE_ROWS_EVENTv2, handRows("2", "mine"))
	f.Add(payloadOf(f, compressionZstd, good, good))
	f.Add(payloadOf(f, compressionNone, good))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, body []byte) {
		var p payloadReader
		defer p.close()
		total := 0
		err := p.each(bytes.NewReader(body), func(header, uint64) bool { return true }, func(_ header, b []byte) error {
			if total += len(b); total > 16<<20 {
				return errShort
			}
			return nil
		})
		if err != nil && !errors.Is(err, errMalformed) && !strings.HasPrefix(err.Error(), "compressed transaction") {
			t.Fatal(err)
		}
	})
}

// Any bytes as any event: an error or none, never a panic.
func FuzzEvent(f *testing.F) {
	f.Add(byte(replication.WRITE_ROWS_EVENTv2), handRows("1", "a"))
	f.Add(byte(replication.TABLE_MAP_EVENT), handTableMap("outbox"))
	f.Add(byte(replication.QUERY_EVENT), queryBody("XA COMMIT X'61'"))
	f.Add(byte(replication.XA_PREPARE_LOG_EVENT), prepareBody("g"))
	f.Add(byte(replication.GTID_TAGGED_LOG_EVENT), []byte{2, 0, 1, 2, 3})
	f.Add(byte(replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1), append(handRows("1", "a")[:8], 3, 0xff, 1, 9, 0x78, 0x9c))
	f.Add(byte(replication.PARTIAL_UPDATE_ROWS_EVENT), append(handRows("1", "a"), 1))
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		h := newHand(t, flavorMySQL)
		defer h.s.payload.close()
		if err := h.script("gtid 1; query BEGIN; map outbox; insert 1=a"); err != nil {
			t.Fatal(err)
		}
		err := h.send(replication.EventType(kind), body)
		if err != nil && strings.Contains(err.Error(), "internal error") {
			t.Fatal(err)
		}
	})
}

func FuzzParseXID(f *testing.F) {
	f.Add("X'6162',X'63',7")
	f.Add("'plain' , 'b'")
	f.Fuzz(func(t *testing.T, text string) {
		x, ok := parseXID(text)
		if !ok {
			return
		}
		again, ok := parseXID(fmt.Sprintf("X'%x',X'%x',%d", x.global, x.local, x.format))
		if !ok || again != x {
			t.Fatalf("%q gave %+v, then %+v", text, x, again)
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte{jsonSmallObject, 1, 0, 12, 0, 11, 0, 1, 0, jsonInt16, 7, 0, 'a'})
	f.Add([]byte{jsonSmallArray, 1, 0, 7, 0, jsonSmallArray, 0, 0})
	f.Add([]byte{jsonOpaque, my.MYSQL_TYPE_NEWDECIMAL, 4, 5, 2, 0x80, 1})
	f.Fuzz(func(t *testing.T, doc []byte) {
		out, err := appendJSON(nil, doc)
		if err == nil && len(out) == 0 {
			t.Fatal("nothing, and no error")
		}
	})
}

func FuzzTableMap(f *testing.F) {
	f.Add(handTableMap("outbox"))
	f.Add(append(handTableMap("outbox"), 1, 1, 0x80, 2, 1, 45, 4, 6, 1, 'a', 1, 'b', 1, 'c'))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := parseTableMap(body, flavorMariaDB)
		if err != nil {
			return
		}
		for i := range m.types {
			m.isUnsigned(i)
			valueLength(m.types[i], m.metas[i], body)
		}
	})
}

// One transaction of 100 outbox rows among 1,000 of other tables, as the library
// hands them over.
func BenchmarkStream(b *testing.B) {
	h := newHand(b, flavorMySQL)
	h.s.emit = func(context.Context, outbox.Batch) error { return nil }
	var events [][]byte
	var numbers [][]byte // of the GTID events, which grow with every round
	add := func(kind replication.EventType, body []byte) []byte {
		raw := h.raw(kind, body)
		events = append(events, raw)
		return raw[replication.EventHeaderSize:]
	}
	transaction := func(table string, rows int) {
		numbers = append(numbers, add(replication.GTID_EVENT, append(append([]byte{0}, bytes.Repeat([]byte{9}, 16)...), make([]byte, 8)...))[17:])
		add(replication.QUERY_EVENT, queryBody("BEGIN"))
		add(replication.TABLE_MAP_EVENT, handTableMap(table))
		for range rows {
			add(replication.WRITE_ROWS_EVENTv2, handRows("1", strings.Repeat("p", 40)))
		}
		add(replication.XID_EVENT, make([]byte, 8))
	}
	transaction("outbox", 100)
	for range 1000 {
		transaction("other", 1)
	}
	b.ReportAllocs()
	began, n := time.Now(), uint64(0)
	for b.Loop() {
		for _, number := range numbers {
			n++
			binary.LittleEndian.PutUint64(number, n)
		}
		for _, ev := range events {
			if err := h.s.handle(ev); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(b.N)/float64(len(events)), "ns/event")
}

// Rows of other tables and their transactions allocate nothing.
func TestOtherTablesAllocateNothing(t *testing.T) {
	h := newHand(t, flavorMySQL)
	h.s.emit = func(context.Context, outbox.Batch) error { return nil }
	gtidBody := append(append([]byte{0}, bytes.Repeat([]byte{9}, 16)...), make([]byte, 8)...)
	tableMap, rows, begin, xid := handTableMap("other"), handRows("1", "p"), queryBody("BEGIN"), make([]byte, 8)
	n := uint64(0)
	allocs := testing.AllocsPerRun(1000, func() {
		n++
		binary.LittleEndian.PutUint64(gtidBody[17:], n)
		for _, e := range []struct {
			kind replication.EventType
			body []byte
		}{{replication.GTID_EVENT, gtidBody}, {replication.QUERY_EVENT, begin}, {replication.TABLE_MAP_EVENT, tableMap}, {replication.WRITE_ROWS_EVENTv2, rows}, {replication.XID_EVENT, xid}} {
			if err := h.s.event(header{kind: e.kind}, e.body); err != nil {
				t.Fatal(err)
			}
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations a transaction", allocs)
	}
}
