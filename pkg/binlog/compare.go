package binlog

import (
	"context"
	"fmt"
	"slices"
)

// Unknown stands for a number that two positions do not tell.
const Unknown = -1

// Comparison says what lies between two positions.
type Comparison struct {
	Skipped  int64 // transactions behind the first and not behind the second, or Unknown
	Repeated int64 // the other way round, or Unknown
	// Bytes of binlog from the first position to the second, negative if that lies
	// before it; meaningful if BytesKnown.
	Bytes      int64
	BytesKnown bool
}

// Compare says what going on from one position instead of another would leave out and
// what it would read again. Both are texts of Resolve or of a Source's Encode. MariaDB
// numbers the transactions of a domain, not all of which need to be there: there the
// counts are the most that there can be.
func (r *Reader) Compare(ctx context.Context, from, to string) (Comparison, error) {
	c := Comparison{Skipped: Unknown, Repeated: Unknown}
	a, err := parsePosition(from)
	if err != nil {
		return c, err
	}
	b, err := parsePosition(to)
	if err != nil {
		return c, err
	}
	c.countTransactions(a.gtids, b.gtids)
	if a.server == "" || a.server != b.server || a.file == "" || b.file == "" {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	s, _, err := r.openServer(ctx)
	if err != nil {
		return c, err
	}
	defer s.db.Close() //nolint:errcheck // nothing is written through it
	if s.id != a.server {
		return c, nil
	}
	names, sizes, err := s.logs(ctx)
	if err != nil {
		return c, fmt.Errorf("comparing positions: %w", err)
	}
	c.Bytes, c.BytesKnown = bytesBetween(names, sizes, a, b)
	return c, nil
}

func (c *Comparison) countTransactions(a, b gtidSet) {
	switch a := a.(type) {
	case *mysqlSet:
		if b, ok := b.(*mysqlSet); ok {
			c.Skipped, c.Repeated = b.countWithout(a), a.countWithout(b)
		}
	case *mariadbSet:
		if b, ok := b.(*mariadbSet); ok {
			c.Skipped, c.Repeated = b.countWithout(a), a.countWithout(b)
		}
	}
}

// countWithout returns how many transactions of s are not in o.
func (s *mysqlSet) countWithout(o *mysqlSet) int64 {
	var n uint64
	for src, list := range s.sources {
		for _, v := range list {
			n += v.last - v.first + 1
			for _, have := range o.sources[src] { // they do not overlap
				if first, last := max(v.first, have.first), min(v.last, have.last); first <= last {
					n -= last - first + 1
				}
			}
		}
	}
	return clamped(n)
}

// countWithout returns by how many numbers s is ahead of o, in all domains together.
func (s *mariadbSet) countWithout(o *mariadbSet) int64 {
	var n uint64
	for domain, newest := range s.domains {
		if have := o.domains[domain].seq; newest.seq > have {
			n += newest.seq - have
		}
	}
	return clamped(n)
}

func clamped(n uint64) int64 { return int64(min(n, 1<<63-1)) } //nolint:gosec // it fits

// bytesBetween adds up the files from one place to another.
func bytesBetween(names []string, sizes map[string]uint64, a, b *position) (n int64, known bool) {
	from, to := slices.Index(names, a.file), slices.Index(names, b.file)
	switch {
	case from < 0 || to < 0:
		return 0, false
	case from > to:
		n, known = bytesBetween(names, sizes, b, a)
		return -n, known
	}
	n = int64(b.offset) - int64(a.offset) //nolint:gosec // of files
	for _, name := range names[from:to] {
		n += int64(sizes[name]) //nolint:gosec // as above
	}
	return n, true
}
