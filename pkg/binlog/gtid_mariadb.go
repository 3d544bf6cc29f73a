package binlog

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// mariadbSet is a MariaDB GTID position: the newest transaction of each domain.
// It keeps one entry per domain, whichever server wrote it: with one per server,
// as a naive reader has after a failover, MariaDB refuses the position with error
// 1943 (test: TestMariaDBSetKeepsOneEntryPerDomain).
type mariadbSet struct {
	domains map[uint32]mariadbGTID
}

type mariadbGTID struct {
	server uint32
	seq    uint64
}

func newMariaDBSet() *mariadbSet { return &mariadbSet{domains: map[uint32]mariadbGTID{}} }

// parseMariaDBSet reads domain-server-sequence[,...].
func parseMariaDBSet(text string) (*mariadbSet, error) {
	s := newMariaDBSet()
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		g, err := parseMariaDBGTID(part)
		if err != nil {
			return nil, err
		}
		s.add(g)
	}
	return s, nil
}

func parseMariaDBGTID(text string) (g gtid, err error) {
	fields := strings.Split(text, "-")
	if len(fields) != 3 {
		return g, fmt.Errorf("%.60q is not a GTID of the form domain-server-sequence", text)
	}
	domain, err1 := strconv.ParseUint(fields[0], 10, 32)
	server, err2 := strconv.ParseUint(fields[1], 10, 32)
	seq, err3 := strconv.ParseUint(fields[2], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || seq == 0 {
		return g, fmt.Errorf("%.60q is not a GTID of the form domain-server-sequence", text)
	}
	return gtid{domain: uint32(domain), server: uint32(server), gno: seq}, nil
}

// add makes g the newest of its domain, whatever its number: the order of the
// stream is what counts, not the numbers.
func (s *mariadbSet) add(g gtid) {
	if g.gno != 0 {
		s.domains[g.domain] = mariadbGTID{g.server, g.gno}
	}
}

// String prints the domains in ascending order.
func (s *mariadbSet) String() string {
	var b []byte
	for i, d := range slices.Sorted(maps.Keys(s.domains)) {
		if i > 0 {
			b = append(b, ',')
		}
		g := s.domains[d]
		b = strconv.AppendUint(b, uint64(d), 10)
		b = strconv.AppendUint(append(b, '-'), uint64(g.server), 10)
		b = strconv.AppendUint(append(b, '-'), g.seq, 10)
	}
	return string(b)
}

// lacks returns the first domain in which s is behind the position at, or ok
// false if there is none.
func (s *mariadbSet) lacks(at *mariadbSet) (domain uint32, behind bool) {
	for _, d := range slices.Sorted(maps.Keys(at.domains)) {
		if s.domains[d].seq < at.domains[d].seq {
			return d, true
		}
	}
	return 0, false
}

func (s *mariadbSet) clone() gtidSet { return &mariadbSet{domains: maps.Clone(s.domains)} }

// Encode is part of the library's GTIDSet; MariaDB takes positions as text.
func (s *mariadbSet) Encode() []byte { return []byte(s.String()) }

// Clone is part of the library's GTIDSet.
func (s *mariadbSet) Clone() mysql.GTIDSet { return s.clone() }

// IsEmpty is part of the library's GTIDSet.
func (s *mariadbSet) IsEmpty() bool { return len(s.domains) == 0 }

// Contain reports whether s is at or behind no domain of o.
func (s *mariadbSet) Contain(o mysql.GTIDSet) bool {
	other, ok := o.(*mariadbSet)
	if !ok {
		return false
	}
	_, behind := s.lacks(other)
	return !behind
}

// Equal is part of the library's GTIDSet.
func (s *mariadbSet) Equal(o mysql.GTIDSet) bool {
	other, ok := o.(*mariadbSet)
	return ok && maps.Equal(s.domains, other.domains)
}

// Update is part of the library's GTIDSet, which never calls it in raw mode.
func (s *mariadbSet) Update(string) error { return errUpdate }
