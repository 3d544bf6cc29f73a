package binlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"
)

// rawEvent is an event to be written.
type rawEvent struct {
	timestamp uint32
	kind      byte
	serverID  uint32
	logPos    uint32
	flags     uint16
	body      []byte
	checksum  bool
}

func (e rawEvent) bytes() []byte {
	size := headSize + len(e.body)
	if e.checksum {
		size += 4
	}
	b := make([]byte, 0, size)
	b = binary.LittleEndian.AppendUint32(b, e.timestamp)
	b = append(b, e.kind)
	b = binary.LittleEndian.AppendUint32(b, e.serverID)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = binary.LittleEndian.AppendUint32(b, e.logPos)
	b = binary.LittleEndian.AppendUint16(b, e.flags)
	return sealed(append(b, e.body...), e.checksum)
}

const headSize = 19

// madeLog is a binlog file made by a test.
type madeLog struct {
	name      string
	release   release
	timestamp uint32
	checksum  bool
	place     uint64 // where the next event begins
	events    [][]byte
}

// newLog begins a file with the format description of a release.
func newLog(r release, name string) *madeLog {
	l := &madeLog{name: name, release: r, timestamp: 1_700_000_000, checksum: true, place: fileHeadSize}
	l.add(15, l.description(r))
	return l
}

// description is the body of a format description: the lengths of the fixed parts of
// every event type are those of MySQL, which a reader in raw mode does not use.
func (l *madeLog) description(r release) []byte {
	b := append([]byte{4, 0}, r.version...)
	b = append(b, make([]byte, 52-len(b))...)
	b = binary.LittleEndian.AppendUint32(b, l.timestamp)
	b = append(b, headSize)
	b = append(b, bytes.Repeat([]byte{0}, r.types)...)
	return append(b, map[bool]byte{true: 1}[l.checksum])
}

// add appends an event and returns its bytes.
func (l *madeLog) add(kind byte, body []byte) []byte {
	size := headSize + len(body)
	if l.checksum || kind == 15 { // a format description always has one
		size += 4
	}
	l.place += uint64(size)
	b := rawEvent{timestamp: l.timestamp, kind: kind, serverID: 7, logPos: uint32(l.place), body: body, checksum: l.checksum || kind == 15}.bytes()
	l.events = append(l.events, b)
	return b
}

// script appends events in the words of handEvent, and returns their bytes.
func (l *madeLog) script(t testing.TB, words string) [][]byte {
	t.Helper()
	from := len(l.events)
	for _, w := range strings.Split(words, "; ") {
		kind, body, ok := handEvent(w)
		if !ok {
			t.Fatalf("no such event: %s", w)
		}
		l.add(byte(kind), body)
	}
	return slices.Clone(l.events[from:])
}

// transaction appends one that inserts rows into the watched table, one a payload.
func (l *madeLog) transaction(t testing.TB, number int, rows ...string) [][]byte {
	t.Helper()
	words := fmt.Sprintf("gtid %d; query BEGIN; map outbox", number)
	if l.release.isMariaDB() {
		words = fmt.Sprintf("mgtid %d; map outbox", number)
	}
	for i, r := range rows {
		words += fmt.Sprintf("; insert %d=%s", number*100+i, r)
	}
	return l.script(t, words+"; xid")
}

// sealed writes the checksum behind an event.
func sealed(b []byte, checksum bool) []byte {
	if checksum {
		b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	}
	return b
}

// handEvent makes an event out of a few words.
func handEvent(words string) (kind replication.EventType, body []byte, ok bool) {
	verb, arg, _ := strings.Cut(words, " ")
	var n uint64
	if strings.HasSuffix(verb, "gtid") || verb == "mstandalone" {
		fmt.Sscan(arg, &n) //nolint:errcheck // a script of this file
	}
	number := binary.LittleEndian.AppendUint64(nil, n)
	switch verb {
	case "gtid":
		return replication.GTID_EVENT, append(append([]byte{0}, bytes.Repeat([]byte{9}, 16)...), number...), true
	case "anonymous":
		return replication.ANONYMOUS_GTID_EVENT, make([]byte, 25), true
	case "mgtid":
		return replication.MARIADB_GTID_EVENT, append(number, 0, 0, 0, 0, 8), true
	case "mstandalone":
		return replication.MARIADB_GTID_EVENT, append(number, 0, 0, 0, 0, 1), true
	case "query":
		return replication.QUERY_EVENT, queryBody(arg), true
	case "map":
		return replication.TABLE_MAP_EVENT, handTableMap(arg), true
	case "insert":
		id, payload, _ := strings.Cut(arg, "=")
		return replication.WRITE_ROWS_EVENTv2, handRows(id, payload), true
	case "xid":
		return replication.XID_EVENT, make([]byte, 8), true
	case "prepare":
		return replication.XA_PREPARE_LOG_EVENT, prepareBody(arg), true
	case "incident":
		return replication.INCIDENT_EVENT, []byte{1, 0}, true
	case "unknown":
		return replication.EventType(120), nil, true
	}
	return 0, nil, false
}
