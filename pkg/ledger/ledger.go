// Package ledger holds every SQL statement that touches an outbox table: it
// records what became of events, claims rows, looks rows up by key, finds the
// candidates of a sweep and counts the backlog.
//
// It promises that applications never wait for it: transactions are short and
// READ COMMITTED, rows are locked by primary key only, and only rows it was
// given. A row goes from PENDING or PROCESSING to SENT, whoever holds the claim,
// because that it was published is a fact; every other change needs the row to
// be unclaimed or claimed under the caller's token. SENT and FAILED are final
// here. All ages are measured by the database's clock.
//
// The pool must be one of internal/mysqlconn: the statements rely on its session
// set-up (isolation, found rows instead of changed ones, SQL mode, time zone).
package ledger

import (
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Options say how outcomes are written down.
type Options struct {
	Name        string        // of the relay, for rowferry_dead
	Schema      string        // where rowferry_dead is; empty: the connection's schema
	MaxAttempts int           // attempts before FAILED; 0: 10
	Lease       time.Duration // age after which a claim is nobody's; 0: one minute
	Delete      bool          // ledger "delete": rows leave the table when they are sent
	None        bool          // ledger "none": outbox tables are never written
	DeadAlways  bool          // every dead letter goes to rowferry_dead, not only those without room in the table
	Logger      zerolog.Logger
}

// Ledger reads and writes the outbox tables of one server. It may be used by
// several goroutines at once.
type Ledger struct {
	db   *sql.DB
	o    Options
	log  zerolog.Logger
	dead string // quoted name of rowferry_dead

	mu     sync.RWMutex
	tables map[outbox.Table]*table

	noDead quiet // rowferry_dead is missing
}

// New returns a ledger over the tables of the layouts.
func New(db *sql.DB, layouts []*outbox.Layout, o Options) *Ledger {
	if o.Delete && o.None {
		panic("ledger: delete and none exclude each other")
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 10
	}
	if o.Lease == 0 {
		o.Lease = time.Minute
	}
	l := &Ledger{db: db, o: o, log: o.Logger, tables: map[outbox.Table]*table{}, dead: quote("rowferry_dead")}
	if o.Schema != "" {
		l.dead = quote(o.Schema) + "." + l.dead
	}
	for _, layout := range layouts {
		l.SetLayout(layout)
	}
	return l
}

// SetLayout adds a table, or replaces what is known about it after a change of
// its columns.
func (l *Ledger) SetLayout(layout *outbox.Layout) {
	t := newTable(layout, l.o)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tables[layout.Table] = t
}

func (l *Ledger) table(name outbox.Table) (*table, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t, ok := l.tables[name]
	if !ok {
		return nil, fmt.Errorf("the ledger does not know table %s", name)
	}
	return t, nil
}

// leaseMicroseconds is the lease as the statements take it.
func (l *Ledger) leaseMicroseconds() int64 { return l.o.Lease.Microseconds() }

// quiet lets a lasting condition be logged when it begins and when it ends, and
// not in between.
type quiet struct {
	mu sync.Mutex
	on bool
}

// changed notes the condition and reports whether it is news.
func (q *quiet) changed(on bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	news := q.on != on
	q.on = on
	return news
}
