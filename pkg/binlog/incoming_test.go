package binlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"
	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// withChecksum makes the packet of an event as a server sends it.
func withChecksum(event []byte) []byte {
	event = bytes.Clone(event)
	binary.LittleEndian.PutUint32(event[9:], uint32(len(event)+checksumSize))
	return append([]byte{0}, binary.LittleEndian.AppendUint32(event, crc32.ChecksumIEEE(event))...)
}

// arrive feeds a packet in pieces and hands over what was gathered, as dump.next does.
func arrive(in *incoming, packet []byte, piece func() int) error {
	in.begin()
	var broken error
	for rest := packet; len(rest) > 0 && broken == nil; {
		n := min(max(1, piece()), len(rest))
		_, broken = in.Write(rest[:n])
		rest = rest[n:]
	}
	if err := in.end(broken); err != nil || in.taken {
		return err
	}
	return in.hand(in.packet[1:])
}

// largePayload is a compressed transaction that is unpacked while it arrives.
func largePayload(t testing.TB, h *hand, rows int) []byte {
	events := [][]byte{
		h.raw(replication.QUERY_EVENT, queryBody("BEGIN")),
		h.raw(replication.TABLE_MAP_EVENT, handTableMap("outbox")),
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range rows {
		filling := make([]byte, 150)
		for k := range filling {
			filling[k] = byte('!' + random.IntN(90)) // so that it stays large
		}
		events = append(events, h.raw(replication.WRITE_ROWS_EVENTv2, handRows(fmt.Sprint(i+1), string(filling))))
	}
	events = append(events, h.raw(replication.XID_EVENT, make([]byte, 8)))
	return h.raw(replication.TRANSACTION_PAYLOAD_EVENT, payloadOf(t, compressionZstd, events...))
}

// However a packet is cut up, what comes out is the same; and nothing comes out of one
// with a wrong byte.
func TestPacketsInPieces(t *testing.T) {
	const rows = 1300 // more than unpackBytes
	build := newHand(t, flavorMySQL)
	gtid := build.raw(replication.GTID_EVENT, append(append([]byte{0}, bytes.Repeat([]byte{9}, 16)...), 1, 0, 0, 0, 0, 0, 0, 0))
	payload := largePayload(t, build, rows)
	other := build.raw(replication.WRITE_ROWS_EVENTv2, append([]byte{99, 0, 0, 0, 0, 0}, make([]byte, 200_000)...))
	if len(payload) < unpackBytes {
		t.Fatalf("the payload has only %d bytes", len(payload))
	}
	rapid.Check(t, func(t *rapid.T) {
		h := newHand(build.t, flavorMySQL)
		defer h.s.payload.close()
		in := &incoming{to: h.s, checksums: true}
		size := rapid.IntRange(1, 40_000)
		piece := func() int { return size.Draw(t, "piece") }
		if rapid.Bool().Draw(t, "one size") {
			n := max(500, size.Draw(t, "size"))
			piece = func() int { return n }
		}
		damage := rapid.SampledFrom([]string{"none", "payload", "other"}).Draw(t, "damage")
		for _, e := range []struct {
			name  string
			event []byte
		}{{"gtid", gtid}, {"other", other}, {"payload", payload}} {
			packet := withChecksum(e.event)
			if damage == e.name {
				packet[len(packet)-5] ^= 1
			}
			err := arrive(in, packet, piece)
			if (err != nil) != (damage == e.name) || err != nil && !errors.Is(err, errMalformed) {
				t.Fatalf("%s: %v", e.name, err)
			}
			if err != nil {
				break
			}
		}
		want := rows
		if damage != "none" {
			want = 0
		}
		if n := len(eventsOf(h.batches)); n != want {
			t.Fatalf("damage %s: %d events, want %d", damage, n, want)
		}
	})
}

// A connection that breaks off within a large transaction is just that, not a damaged
// log; and nothing of the transaction goes out.
func TestPacketBrokenOff(t *testing.T) {
	h := newHand(t, flavorMySQL)
	defer h.s.payload.close()
	if err := h.script("gtid 1"); err != nil {
		t.Fatal(err)
	}
	in := &incoming{to: h.s, checksums: true}
	packet := withChecksum(largePayload(t, h, 1300))
	in.begin()
	if _, err := in.Write(packet[:len(packet)-1000]); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("connection reset")
	if err := in.end(lost); !errors.Is(err, lost) || isDoubtful(err) {
		t.Errorf("got %v", err)
	}
	if n := len(eventsOf(h.batches)); n != 0 {
		t.Errorf("%d events went out", n)
	}
}

// What ends the unpacking is what is reported, not the pipe it closes.
func TestUnpackingEndsTheStream(t *testing.T) {
	h := newHand(t, flavorMySQL)
	defer h.s.payload.close()
	full := errors.New("no room")
	h.s.r.cfg.HoldBytesMax = 10_000
	h.s.emit = func(context.Context, outbox.Batch) error { return full }
	if err := h.script("gtid 1"); err != nil {
		t.Fatal(err)
	}
	h.s.r.giant = &giant{gtid: h.s.tx.gtid}
	h.s.tx.second = h.s.r.giant // its second reading emits while it arrives
	in := &incoming{to: h.s, checksums: true}
	if err := arrive(in, withChecksum(largePayload(t, h, 1300)), func() int { return 16 << 10 }); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

// Sizes and kinds that lie cost nothing and end in an error.
func TestLyingPackets(t *testing.T) {
	h := newHand(t, flavorMySQL)
	defer h.s.payload.close()
	event := h.raw(replication.WRITE_ROWS_EVENTv2, handRows("1", "a"))
	for name, change := range map[string]func(packet []byte) []byte{
		"says 4 GiB": func(p []byte) []byte { binary.LittleEndian.PutUint32(p[10:], 1<<32-1); return p },
		"says 2 MiB": func(p []byte) []byte { binary.LittleEndian.PutUint32(p[10:], 2<<20); return p },
		"payload, 2 MiB": func(p []byte) []byte {
			p[5] = byte(replication.TRANSACTION_PAYLOAD_EVENT)
			binary.LittleEndian.PutUint32(p[10:], 2<<20)
			return p
		},
		"says less":       func(p []byte) []byte { binary.LittleEndian.PutUint32(p[10:], 21); return p },
		"shorter than it": func(p []byte) []byte { return p[:20] },
	} {
		in := &incoming{to: h.s}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := arrive(in, change(append([]byte{0}, event...)), func() int { return 100 })
		runtime.ReadMemStats(&after)
		if !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if more := after.TotalAlloc - before.TotalAlloc; more > 2*believedBytesMax {
			t.Errorf("%s: %d MiB allocated", name, more>>20)
		}
	}
}

// The text of a statement that stands beside its rows (binlog_rows_query_log_events, the
// annotations of MariaDB) is of any size, and is not gathered.
func TestLargeEventsThatSayNothing(t *testing.T) {
	h := newHand(t, flavorMySQL)
	for _, kind := range []replication.EventType{replication.ROWS_QUERY_EVENT, replication.MARIADB_ANNOTATE_ROWS_EVENT} {
		in := &incoming{to: h.s, checksums: true}
		packet := withChecksum(h.raw(kind, make([]byte, 20<<20)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := arrive(in, packet, func() int { return 16 << 10 }); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if more := after.TotalAlloc - before.TotalAlloc; more > 1<<20 {
			t.Errorf("event of type %d: %d KiB allocated", kind, more>>10)
		}
		if h.s.offset != uint64(h.logPos) {
			t.Errorf("event of type %d: the position stands at %d, want %d", kind, h.s.offset, h.logPos)
		}
		packet[len(packet)/2]++
		if err := arrive(in, packet, func() int { return 16 << 10 }); !errors.Is(err, errMalformed) {
			t.Errorf("damaged event of type %d gave %v", kind, err)
		}
	}
}

// A compressed transaction that stays large on the wire is neither gathered nor held.
func TestLargeCompressedTransactionIsStreamed(t *testing.T) {
	const rows, randomBytes = 40_000, 900
	g := newRig(t, testservers.SharedMySQL(t), append([]string{outboxDDL}, digitsDDL...)...)
	g.config.HoldBytesMax = 1 << 20
	r := g.reader()
	from := g.resolve(r, "now")
	g.session("SET SESSION binlog_transaction_compression = ON", strings.Replace(insertMany(rows, 0), "REPEAT('x', 0)",
		fmt.Sprintf("TO_BASE64(RANDOM_BYTES(%d))", randomBytes), 1), "SET SESSION binlog_transaction_compression = OFF")
	runtime.GC() //nolint:revive // what is live is the question
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, most := 0, uint64(0)
	err := r.Run(ctx, from, func(ctx context.Context, b outbox.Batch) error {
		seen += len(b.Events)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapInuse)
		if seen == rows && !b.End.IsZero() {
			cancel()
		}
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Run returned %v", err)
	}
	t.Logf("%d MiB of heap at most, %d MB read", most>>20, r.State().BytesRead/1e6)
	if most > 40<<20 { // the event has some 36 MB
		t.Errorf("%d MiB of heap", most>>20)
	}
}

var _ io.Writer = (*incoming)(nil)
