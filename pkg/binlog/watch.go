package binlog

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// watched is a table whose rows matter: an outbox table, or the one with our
// fences.
type watched struct {
	table   outbox.Table
	layouts []*outbox.Layout // newest first; none for the fence table
	plans   map[string]*plan // by TABLE_MAP body behind the id
	stale   bool             // a DDL statement named the table
	fence   bool

	known     bool            // layouts[0] is the table's at the present place of the stream, see known.go
	asked     bool            // this connection's server was looked at, and nothing has happened since
	seen      *sight          // what was seen, if layouts[0] looked like that
	since     logPlace        // from where on the table looked as seen, as far as that is proved
	forgotten logPlace        // where this connection met the last statement that names the table
	told      map[string]bool // reasons for reading by key that have been logged

	// insertedIn is the number of the last transaction that inserted rows.
	insertedIn uint64
}

// watchList finds watched tables by the names in a TABLE_MAP without allocating.
type watchList struct {
	tables []*watched
	byName map[string]*watched
	lower  bool
	buf    []byte
}

func newWatchList(cfg Config) *watchList {
	l := &watchList{}
	order := slices.SortedFunc(maps.Keys(cfg.Layouts), func(a, b outbox.Table) int { return strings.Compare(a.String(), b.String()) })
	for _, t := range order {
		l.tables = append(l.tables, &watched{table: t, layouts: []*outbox.Layout{cfg.Layouts[t]}, plans: map[string]*plan{}, known: true, told: map[string]bool{}})
	}
	if cfg.FenceTable != (outbox.Table{}) {
		l.tables = append(l.tables, &watched{table: cfg.FenceTable, fence: true, plans: map[string]*plan{}})
	}
	l.index(false)
	return l
}

// index follows the server's lower_case_table_names.
func (l *watchList) index(lower bool) {
	l.lower = lower
	l.byName = map[string]*watched{}
	for _, w := range l.tables {
		key := w.table.Schema + "\x00" + w.table.Name
		if lower {
			key = strings.ToLower(key)
		}
		l.byName[key] = w
	}
}

func (l *watchList) find(schema, name []byte) *watched {
	l.buf = append(append(append(l.buf[:0], schema...), 0), name...)
	if l.lower {
		return l.byName[string(bytes.ToLower(l.buf))]
	}
	return l.byName[string(l.buf)]
}

// mentioned returns the outbox tables whose name stands in a statement as a word
// of its own.
func (l *watchList) mentioned(query []byte) []*watched {
	var found []*watched
	for _, w := range l.tables {
		if mentions(query, w.table.Name) {
			found = append(found, w)
		}
	}
	return found
}

// mentions is generous: upper and lower case are one, and the schema is not
// looked at. A false alarm costs a look at information_schema.
func mentions(query []byte, name string) bool {
	for i := 0; i+len(name) <= len(query); i++ {
		if bytes.EqualFold(query[i:i+len(name)], []byte(name)) &&
			(i == 0 || !isWordByte(query[i-1])) &&
			(i+len(name) == len(query) || !isWordByte(query[i+len(name)])) {
			return true
		}
	}
	return false
}

func isWordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
