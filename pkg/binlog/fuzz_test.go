package binlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Everything that comes off the wire, or out of a saved checkpoint, is fuzzed: whatever it
// is, there is an answer or an error, in time, and not for more memory than bytes came.
// The events of the recorded binlogs are the seeds.

// allocated is how many bytes this process has ever allocated.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// allocatesMax fails if do allocates more than 64 MB for a small input.
func allocatesMax(t *testing.T, size int, do func()) {
	t.Helper()
	before := allocated()
	do()
	if n := allocated() - before; size < 64<<10 && n > 64<<20 {
		t.Fatalf("%d bytes made it allocate %d", size, n)
	}
}

// goldenEvents are the events of every recorded log.
func goldenEvents(f *testing.F, flavor string) (events [][]byte) {
	f.Helper()
	for _, s := range goldenServers {
		if s.release.flavor == flavor {
			l, _ := readGolden(f, s.name, s.release)
			events = append(events, l.events...)
		}
	}
	return events
}

// sequence packs events for FuzzStream: kind, then the body behind its length.
func sequence(events ...[]byte) (packed []byte) {
	for _, e := range events {
		body := e[headSize : len(e)-4]
		packed = binary.LittleEndian.AppendUint16(append(packed, e[4]), uint16(len(body)))
		packed = append(packed, body...)
	}
	return packed
}

// transactionsOf cuts a log into the pieces that begin with a GTID.
func transactionsOf(events [][]byte) (transactions [][][]byte) {
	start := 1
	for i, e := range events {
		if _, begins := openedBy(e); begins && i > start {
			transactions = append(transactions, events[start:i])
			start = i
		}
	}
	return append(transactions, events[start:])
}

// newFuzzedStream is a stream of the recorded tables.
func newFuzzedStream(t testing.TB, flavor string, layouts map[outbox.Table]*outbox.Layout) *hand {
	t.Helper()
	h := newHand(t, flavor)
	r, err := New(Config{DSN: mysql.NewConfig(), ServerID: 1, Logger: zerolog.Nop(), Layouts: layouts, HoldBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	r.resume = h.s.r.resume
	r.tracker.start(&r.resume)
	h.s.r = r
	h.s.emit = func(context.Context, outbox.Batch) error { return nil }
	return h
}

// FuzzStream feeds any sequence of events, of either flavour.
func FuzzStream(f *testing.F) {
	for _, flavor := range []string{flavorMySQL, flavorMariaDB} {
		for _, transaction := range transactionsOf(goldenEvents(f, flavor)) {
			f.Add(flavor == flavorMariaDB, sequence(transaction...))
		}
	}
	_, g := readGolden(f, "mysql-9.7", mysql97)
	layouts := g.layouts(f, g.Before)
	f.Fuzz(func(t *testing.T, mariadb bool, packed []byte) {
		h := newFuzzedStream(t, map[bool]string{false: flavorMySQL, true: flavorMariaDB}[mariadb], layouts)
		defer h.s.payload.close()
		inflates := false // a compressed transaction may hold as much as it likes
		allocatesMax(t, len(packed), func() {
			c := cursor{b: packed}
			for len(c.b) > 0 && !inflates {
				kind := replication.EventType(c.little(1))
				body := c.take(min(int(c.little(2)), len(c.b)))
				inflates = kind == replication.TRANSACTION_PAYLOAD_EVENT && len(body) > 2000
				var err error
				switch {
				case inflates:
				case kind == replication.ROTATE_EVENT:
					err = h.rotate("b.2", 4)
				case kind == replication.FORMAT_DESCRIPTION_EVENT:
					err = h.describe()
				default:
					err = h.send(kind, body)
				}
				if err != nil {
					if strings.Contains(err.Error(), "internal error") {
						t.Fatal(err)
					}
					return
				}
			}
		})
	})
}

// FuzzPackets feeds packets as they come off the socket, in pieces of any size: events,
// large ones and compressed ones too, with a checksum or without.
func FuzzPackets(f *testing.F) {
	for _, transaction := range transactionsOf(goldenEvents(f, flavorMySQL)) {
		f.Add(true, uint16(50), bytes.Join(transaction, nil))
	}
	l := largeLog(f, largeBytes)
	for _, e := range l.events[1:] {
		f.Add(true, uint16(7000), e)
		f.Add(false, uint16(60000), e)
	}
	_, g := readGolden(f, "mysql-9.7", mysql97)
	layouts := g.layouts(f, g.Before)
	layouts[handTable] = handLayout(f)
	f.Fuzz(func(t *testing.T, checksums bool, piece uint16, packed []byte) {
		h := newFuzzedStream(t, flavorMySQL, layouts)
		defer h.s.payload.close()
		if err := h.script("gtid 1; query BEGIN; map outbox"); err != nil {
			t.Fatal(err)
		}
		in := &incoming{to: h.s, checksums: checksums}
		for len(packed) >= headSize {
			size := min(max(headSize, littleEndian(packed[9:13])), uint64(len(packed)))
			err := arrive(in, append([]byte{0}, packed[:size]...), func() int { return int(piece) })
			if err != nil && strings.Contains(err.Error(), "internal error") {
				t.Fatal(err)
			}
			if packed = packed[size:]; err != nil {
				return
			}
		}
	})
}

// FuzzMariaDBCompressed unpacks what MariaDB compresses: rows and statements.
func FuzzMariaDBCompressed(f *testing.F) {
	for _, e := range goldenEvents(f, flavorMariaDB) {
		body := e[headSize : len(e)-4]
		if format, ok := formatOf(replication.EventType(e[4])); ok && format.compressed {
			f.Add(body[len(body)/2:])
		}
	}
	f.Add([]byte{0x81, 5, 0x78, 0x9c, 0x4b, 0x4c, 0x4a, 0x4e, 0x49, 5, 0, 5, 0xc8, 1, 0xf0})
	f.Fuzz(func(t *testing.T, body []byte) {
		allocatesMax(t, len(body), func() {
			out, err := inflate(body)
			if err == nil && len(out) > 1100*len(body) {
				t.Fatalf("%d bytes became %d", len(body), len(out))
			}
		})
	})
}

// FuzzGTIDEvent reads what opens a transaction; what it reads can be saved, and read again.
func FuzzGTIDEvent(f *testing.F) {
	for _, flavor := range []string{flavorMySQL, flavorMariaDB} {
		for _, e := range goldenEvents(f, flavor) {
			if _, ok := openedBy(e); ok {
				f.Add(e[4], e[headSize:len(e)-4])
			}
		}
	}
	for _, gno := range []uint64{0, gnoMax, gnoMax + 1, 1<<64 - 1} { // numbers that a set must not hold
		f.Add(byte(replication.GTID_EVENT), binary.LittleEndian.AppendUint64(bytes.Repeat([]byte{9}, 17), gno))
		f.Add(byte(replication.MARIADB_GTID_EVENT), append(binary.LittleEndian.AppendUint64(nil, gno), 0, 0, 0, 0, 8))
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		flavor := flavorMySQL
		switch replication.EventType(kind) {
		case replication.MARIADB_GTID_EVENT:
			flavor = flavorMariaDB
		case replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		default:
			return
		}
		h := newHand(t, flavor)
		allocatesMax(t, len(body), func() {
			if err := h.send(replication.EventType(kind), body); err != nil {
				if !errors.Is(err, errMalformed) {
					t.Fatal(err)
				}
				return
			}
			if err := h.script("query BEGIN; xid"); err != nil {
				t.Fatal(err)
			}
		})
		for _, b := range h.batches {
			text := h.s.r.Encode(b.End)
			again, err := parsePosition(text)
			if err != nil || again.String() != text {
				t.Fatalf("position %s, read again %v (%v)", text, again, err)
			}
		}
	})
}

// FuzzPosition reads saved positions. What is accepted says the same when it is printed.
func FuzzPosition(f *testing.F) {
	for _, s := range goldenServers {
		_, g := readGolden(f, s.name, s.release)
		for _, b := range g.Batches[max(0, len(g.Batches)-3):] {
			f.Add(b.End)
		}
	}
	f.Add(`{"v":1,"flavor":"mysql","gtid":"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7:tag:1-9223372036854775806"}`)
	f.Add(`{"v":1,"flavor":"mariadb","gtid":"0-1-2,4294967295-4294967295-18446744073709551615"}`)
	f.Fuzz(func(t *testing.T, text string) {
		allocatesMax(t, len(text), func() {
			p, err := parsePosition(text)
			if err != nil {
				return
			}
			printed := p.String()
			again, err := parsePosition(printed)
			if err != nil {
				t.Fatalf("%q was accepted, %q is not: %v", text, printed, err)
			}
			if again.String() != printed {
				t.Fatalf("%q became %q", printed, again)
			}
		})
	})
}

// FuzzMySQLSetBytes has the server's side read what a GTID set is sent as.
func FuzzMySQLSetBytes(f *testing.F) {
	f.Add("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7,\n4e11fa47-71ca-11e1-9e33-c80aa9429562:tag:1-2:other:9")
	f.Add(" 3E11FA47-71CA-11E1-9E33-C80AA9429562:5-5:1-9:3")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := parseMySQLSet(text)
		if err != nil {
			return
		}
		again, err := decodeMySQLSet(set.Encode())
		if err != nil || !again.Equal(set) || again.String() != set.String() {
			t.Fatalf("%q was sent as %s (%v)", text, again, err)
		}
	})
}

// FuzzQuery looks at statements: of QUERY events, and as SHOW BINLOG EVENTS lists them.
func FuzzQuery(f *testing.F) {
	for _, flavor := range []string{flavorMySQL, flavorMariaDB} {
		for _, e := range goldenEvents(f, flavor) {
			if replication.EventType(e[4]) == replication.QUERY_EVENT {
				f.Add(e[headSize : len(e)-4])
			}
		}
	}
	f.Add(queryBody("/* c */ insert into `outbox` values (1)"))
	f.Fuzz(func(t *testing.T, body []byte) {
		st, err := parseStatement(body)
		if err != nil {
			return
		}
		text := st.text
		if !bytes.HasSuffix(body, text) {
			t.Fatalf("the statement %q is not in the event", text)
		}
		q := classifyQuery(text)
		if q.kind == queryXAStart || q.kind == queryXACommit || q.kind == queryXARollback {
			parseXID(q.xid)
		}
		mentions(text, "outbox")
		if _, name, ok := targetOf(st.classified()); ok && !bytes.Contains(text, []byte(name)) {
			t.Fatalf("%q writes to %q, which it does not name", text, name)
		}
		st.classified().changesColumns()
		if load, err := parseLoad(body); err == nil {
			targetOf(load.classified())
		}
		sc := scanner{set: newMySQLSet()}
		sc.query(string(text))
		if comment := append([]byte("/* x */ "), text...); !bytes.HasPrefix(text, []byte("BEGIN")) && classifyQuery(comment).kind != q.kind {
			t.Fatalf("with a comment in front %q is another kind of statement", text)
		}
	})
}

// A document whose parts contain each other would print without end.
func TestJSONThatContainsItself(t *testing.T) {
	array := func(count, size int, entries ...byte) []byte {
		return append([]byte{jsonSmallArray, byte(count), 0, byte(size), 0}, entries...)
	}
	twice := bytes.Repeat([]byte{jsonSmallArray, 0, 0}, 2) // both elements are the array itself
	text := append([]byte{jsonString, 20, 0}, bytes.Repeat([]byte{jsonString, 20, 0}, 4)...)
	for name, doc := range map[string][]byte{
		"itself twice":     array(2, 10, twice...),
		"one string often": slices.Concat(array(5, 200, text...), []byte{0, 170, 1}, bytes.Repeat([]byte{'x'}, 200)),
	} {
		var out []byte
		var err error
		allocatesMax(t, len(doc), func() { out, err = appendJSON(nil, doc) })
		if name == "itself twice" && !errors.Is(err, errMalformed) {
			t.Errorf("%s gave %d bytes and %v", name, len(out), err)
		}
		if len(out) > 2*jsonGrowthMax*len(doc) {
			t.Errorf("%s: %d bytes became %d", name, len(doc), len(out))
		}
	}
}

// A length that is announced is not believed: only what comes takes memory.
func TestAnnouncedLengthsTakeNoMemory(t *testing.T) {
	huge := rawEvent{kind: byte(replication.WRITE_ROWS_EVENTv2), body: handRows("1", "a")}.bytes()
	copy(huge[9:13], []byte{0xff, 0xff, 0xff, 0x7f})
	rows := handRows("1", "a")
	blob := slices.Clone(handTableMap("outbox"))
	for name, run := range map[string]func(h *hand) error{
		"event in a compressed transaction": func(h *hand) error {
			return h.send(replication.TRANSACTION_PAYLOAD_EVENT, payloadOf(t, compressionZstd, huge))
		},
		"columns": func(h *hand) error {
			return h.send(replication.WRITE_ROWS_EVENTv2, append(rows[:10], 0xfe, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0))
		},
		"table map": func(h *hand) error {
			return h.send(replication.TABLE_MAP_EVENT, append(blob[:len(blob)-9], 0xfe, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0))
		},
		"xa": func(h *hand) error {
			return h.send(replication.XA_PREPARE_LOG_EVENT, []byte{0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0})
		},
		"deflated": func(h *hand) error {
			return h.send(replication.MARIADB_QUERY_COMPRESSED_EVENT, append(queryBody(""), 0x84, 0x7f, 0xff, 0xff, 0xff, 0x78, 0x9c, 3, 0))
		},
		"payload tlv": func(h *hand) error {
			return h.send(replication.TRANSACTION_PAYLOAD_EVENT, []byte{1, 9, 0xfe, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t, flavorMySQL)
			defer h.s.payload.close()
			if err := h.script("gtid 1; query BEGIN; map outbox"); err != nil {
				t.Fatal(err)
			}
			var err error
			before := allocated()
			err = run(h)
			if n := allocated() - before; n > 16<<20 {
				t.Errorf("it allocated %d bytes", n)
			}
			if !errors.Is(err, errMalformed) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
