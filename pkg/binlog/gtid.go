package binlog

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// gtidSet is the set of transactions that lie behind a position, in the flavour
// of the source. It also serves as the library's GTIDSet, which in raw mode only
// encodes and prints it.
type gtidSet interface {
	mysql.GTIDSet
	add(gtid)
	clone() gtidSet
}

// gtid names one transaction. The zero value names none (gtid_mode=OFF).
type gtid struct {
	source source // of MySQL
	domain uint32 // of MariaDB, with server
	server uint32
	gno    uint64 // 0: no GTID
}

// source is who numbered a MySQL transaction: a server, and since 8.3 a tag.
type source struct {
	uuid [16]byte
	tag  string
}

// interval is a run of transaction numbers, both ends included.
type interval struct{ first, last uint64 }

// mysqlSet is a MySQL GTID set. The intervals of each source are sorted, apart
// and not empty.
type mysqlSet struct {
	sources map[source][]interval
}

func newMySQLSet() *mysqlSet { return &mysqlSet{sources: map[source][]interval{}} }

const gnoMax = 1<<63 - 2 // the server's own limit

// parseMySQLSet reads what @@gtid_executed prints, blanks and line breaks
// included: uuid[:tag]:first[-last][:...][,uuid...].
func parseMySQLSet(text string) (*mysqlSet, error) {
	s := newMySQLSet()
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue // an empty set, or the comma before a line break
		}
		if err := s.parseSource(part); err != nil {
			return nil, fmt.Errorf("GTID set: %w", err)
		}
	}
	return s, nil
}

func (s *mysqlSet) parseSource(part string) error {
	fields := strings.Split(part, ":")
	var src source
	var err error
	if src.uuid, err = parseUUID(strings.TrimSpace(fields[0])); err != nil {
		return err
	}
	found := false
	for _, f := range fields[1:] {
		f = strings.TrimSpace(f)
		if tag, ok := parseTag(f); ok {
			src.tag = tag
			found = false
			continue
		}
		v, err := parseInterval(f)
		if err != nil {
			return err
		}
		s.addInterval(src, v)
		found = true
	}
	if !found {
		return fmt.Errorf("%.80q has no interval", part)
	}
	return nil
}

func parseUUID(s string) (u [16]byte, err error) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return u, fmt.Errorf("%.40q is not a server UUID", s)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(u) {
		return u, fmt.Errorf("%.40q is not a server UUID", s)
	}
	return [16]byte(b), nil
}

// parseTag accepts [a-z_][a-z0-9_]{0,31} in any case, as the server does.
func parseTag(s string) (string, bool) {
	if s == "" || len(s) > 32 || s[0] >= '0' && s[0] <= '9' {
		return "", false
	}
	for i := range len(s) {
		c := s[i] | 0x20
		if (c < 'a' || c > 'z') && (s[i] < '0' || s[i] > '9') && s[i] != '_' {
			return "", false
		}
	}
	return strings.ToLower(s), true
}

func parseInterval(s string) (v interval, err error) {
	first, last, isRange := strings.Cut(s, "-")
	if v.first, err = parseGNO(first); err != nil {
		return v, err
	}
	v.last = v.first
	if isRange {
		if v.last, err = parseGNO(last); err != nil {
			return v, err
		}
	}
	if v.last < v.first {
		return v, fmt.Errorf("interval %s runs backwards", s)
	}
	return v, nil
}

func parseGNO(s string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil || n == 0 || n > gnoMax {
		return 0, fmt.Errorf("%.40q is not a transaction number", s)
	}
	return n, nil
}

// add costs O(1) for a transaction that follows the newest of its source, as
// almost all do.
func (s *mysqlSet) add(g gtid) {
	if g.gno != 0 {
		s.addInterval(g.source, interval{g.gno, g.gno})
	}
}

func (s *mysqlSet) addInterval(src source, v interval) {
	list := s.sources[src]
	if n := len(list); n > 0 && list[n-1].last+1 == v.first {
		list[n-1].last = v.last
		return
	}
	// First interval that touches or follows v; those that v touches melt into it.
	i, _ := slices.BinarySearchFunc(list, v, func(a, v interval) int {
		if a.last+1 < v.first {
			return -1
		}
		return 1
	})
	j := i
	for j < len(list) && list[j].first <= v.last+1 {
		v.first = min(v.first, list[j].first)
		v.last = max(v.last, list[j].last)
		j++
	}
	s.sources[src] = slices.Replace(list, i, j, v)
}

func (s *mysqlSet) containsInterval(src source, v interval) bool {
	for _, have := range s.sources[src] {
		if have.first <= v.first && v.last <= have.last {
			return true
		}
	}
	return false
}

// sorted returns the sources by UUID, then tag, the untagged one first.
func (s *mysqlSet) sorted() []source {
	keys := make([]source, 0, len(s.sources))
	for k := range s.sources {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b source) int {
		if c := slices.Compare(a.uuid[:], b.uuid[:]); c != 0 {
			return c
		}
		return strings.Compare(a.tag, b.tag)
	})
	return keys
}

// String prints the set as the server does, without line breaks.
func (s *mysqlSet) String() string {
	var b []byte
	var prev [16]byte
	for i, src := range s.sorted() {
		if i == 0 || src.uuid != prev {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendUUID(b, src.uuid[:])
			prev = src.uuid
		}
		if src.tag != "" {
			b = append(append(b, ':'), src.tag...)
		}
		for _, v := range s.sources[src] {
			b = strconv.AppendUint(append(b, ':'), v.first, 10)
			if v.last > v.first {
				b = strconv.AppendUint(append(b, '-'), v.last, 10)
			}
		}
	}
	return string(b)
}

func appendUUID(b, u []byte) []byte {
	for i, part := range [][]byte{u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, part)
	}
	return b
}

// Encode gives the binary form for COM_BINLOG_DUMP_GTID. With a tag anywhere the
// whole set takes the tagged form of MySQL 8.3: the count moves up one byte,
// bytes 0 and 7 of the head are 1, and each source carries its tag.
func (s *mysqlSet) Encode() []byte {
	keys := s.sorted()
	tagged := slices.ContainsFunc(keys, func(k source) bool { return k.tag != "" })
	head := uint64(len(keys))
	if tagged {
		head = head<<8 | 1 | 1<<56
	}
	b := binary.LittleEndian.AppendUint64(nil, head)
	for _, k := range keys {
		b = append(b, k.uuid[:]...)
		if tagged {
			b = append(append(b, byte(len(k.tag)<<1)), k.tag...)
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s.sources[k])))
		for _, v := range s.sources[k] {
			b = binary.LittleEndian.AppendUint64(b, v.first)
			b = binary.LittleEndian.AppendUint64(b, v.last+1)
		}
	}
	return b
}

func (s *mysqlSet) clone() gtidSet {
	c := newMySQLSet()
	for k, v := range s.sources {
		c.sources[k] = slices.Clone(v)
	}
	return c
}

// Clone is part of the library's GTIDSet.
func (s *mysqlSet) Clone() mysql.GTIDSet { return s.clone() }

// IsEmpty is part of the library's GTIDSet.
func (s *mysqlSet) IsEmpty() bool { return len(s.sources) == 0 }

// Contain reports whether every transaction of o is in s.
func (s *mysqlSet) Contain(o mysql.GTIDSet) bool {
	other, ok := o.(*mysqlSet)
	if !ok {
		return false
	}
	for src, list := range other.sources {
		for _, v := range list {
			if !s.containsInterval(src, v) {
				return false
			}
		}
	}
	return true
}

// Equal is part of the library's GTIDSet.
func (s *mysqlSet) Equal(o mysql.GTIDSet) bool {
	other, ok := o.(*mysqlSet)
	return ok && s.Contain(other) && other.Contain(s)
}

// Update is part of the library's GTIDSet, which never calls it in raw mode.
func (s *mysqlSet) Update(string) error { return errUpdate }

var errUpdate = errors.New("GTID sets of this package are not updated from text")
