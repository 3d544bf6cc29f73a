package binlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// ErrGap says that the stream no longer holds what came after a position: the
// logs were purged or reset, the server has another history, or a part of the
// stream is unreadable for good. It is always wrapped with the reason. Going on
// means Resolve("now") and a sweep for what lies between.
var ErrGap = errors.New("binlog position lost")

// Config says what to read and how. The zero value of an optional field means
// its default.
type Config struct {
	// DSN is the source: address, account, TLS. It serves the SQL checks and the
	// replication stream alike.
	DSN *mysql.Config
	// Sources, when set, say where the source is, and where else; DSN is then ignored.
	Sources *Sources

	ServerID uint32 // replication client id, unique among all replicas; required

	Layouts map[outbox.Table]*outbox.Layout // the watched tables
	// Reload reads the present layout of a table whose rows no longer fit the one
	// given. Nil: never.
	Reload func(context.Context, outbox.Table) (*outbox.Layout, error)

	FenceTable outbox.Table // table whose column fence carries our fences; zero: none
	FenceName  string       // value of its column name in our row

	// Unseen, when set, is told of rows that a committed transaction may have inserted into
	// an outbox table and that cannot be read from the stream, not even their keys, and why
	// (a label of metrics): rows written in statement format count as one a statement. It
	// is for where somebody else finds such rows; nil: they are a gap. It must not block.
	Unseen func(table outbox.Table, reason string, rows int)

	// HoldPrepared keeps the position before the oldest XA transaction that is prepared
	// with outbox rows and not decided, so that a restart reads it again. It is for
	// where nobody else finds such rows.
	HoldPrepared bool

	// HoldBytesMax is how much of a transaction's outbox rows is held until it commits;
	// default 16 MiB. A larger one is read a second time once it is known to have
	// committed. Changes of its rows in the same transaction may take as much again.
	HoldBytesMax int64
	// PayloadBytesMax is the size above which a payload, which nobody would send, is not
	// kept; 0: all are.
	PayloadBytesMax int64

	BatchEvents     int           // events in one piece of a large transaction; default 1000
	HeartbeatPeriod time.Duration // of an idle server; default 5 s; silence of 6 times that is a dead connection
	RoleEvery       time.Duration // between two looks at whether the source is a replica that stands still; default 30 s

	// OnConnect is called after each connect, before the first event of that
	// connection is emitted, but not when it was made only to read a large transaction
	// again: then nothing can come a second time. It may block.
	OnConnect func()

	Logger zerolog.Logger
}

// State is what the reader knows about itself.
type State struct {
	Flavor    string // mysql or mariadb; empty before the first connection
	Address   string
	Connected bool // the stream is open
	// Replication says, for people, of whom the source is a replica and what is wrong
	// with that; empty for a primary. It is as old as Config.RoleEvery at most.
	Replication string
	Standstill  bool // the source is a replica that replicates nothing at present

	File   string // where the reader stands, for people
	Offset uint64 // bytes from the start of File

	LastEvent          time.Time     // when anything, a heartbeat included, last arrived; our clock
	LastEventTimestamp time.Time     // the server's time stamp of the last real event
	CommitLag          time.Duration // from commit (server's clock) to reading (ours) of the last transaction; 0 once the server says it is idle

	Reconnects uint64
	BytesRead  uint64
	LastError  string // why the last connection failed or ended; empty while connected

	// WaitingForServer: connected, not blocked in emit and not inside a
	// transaction, so whatever the server has written is on its way here.
	WaitingForServer bool
}

// Reader reads one source. Run may be called again after it has returned, but
// not twice at a time; Encode and State are safe beside it.
type Reader struct {
	cfg            Config
	tracker        tracker
	watch          *watchList
	uuid           string            // of the replica that this reader is to its source
	resume         position          // behind what emit accepted; touched by Run and the stream it waits for
	parked         map[xid]*parkedXA // prepared XA transactions, undecided; touched by the stream only
	toldStatements bool              // that statements are in the log; touched by the stream only
	toldUnproved   string            // why layouts could not be found out; touched by the stream only
	proofWait      time.Duration     // how long rows wait for layouts to be found out; tests choose another
	evicted        bool              // another client took our server id; touched by Run only
	giant          *giant            // the transaction that is to be read again; touched like resume

	mu    sync.Mutex
	state State // the parts that change rarely; the rest is in the atomics below

	lastEventNanos atomic.Int64
	lastTimestamp  atomic.Uint32 // seconds
	lagNanos       atomic.Int64
	offset         atomic.Uint64
	bytesRead      atomic.Uint64
	blocked        atomic.Bool // in emit or OnConnect
	inside         atomic.Bool // inside a transaction
}

// Defaults and limits.
const (
	defaultBatchEvents     = 1000
	defaultHoldBytesMax    = 16 << 20
	defaultHeartbeatPeriod = 5 * time.Second
	defaultRoleEvery       = 30 * time.Second
)

// New checks the configuration. It connects to nothing.
func New(cfg Config) (*Reader, error) {
	if cfg.ServerID == 0 {
		return nil, errors.New("binlog: ServerID must not be 0; set ROWFERRY_SERVER_ID to a number no other replica uses")
	}
	if cfg.DSN == nil && cfg.Sources == nil {
		return nil, errors.New("binlog: no source address")
	}
	for t, l := range cfg.Layouts {
		if l == nil {
			return nil, fmt.Errorf("binlog: no layout for table %s", t)
		}
	}
	if cfg.BatchEvents <= 0 {
		cfg.BatchEvents = defaultBatchEvents
	}
	if cfg.HoldBytesMax <= 0 {
		cfg.HoldBytesMax = defaultHoldBytesMax
	}
	if cfg.HeartbeatPeriod <= 0 {
		cfg.HeartbeatPeriod = defaultHeartbeatPeriod
	}
	if cfg.RoleEvery <= 0 {
		cfg.RoleEvery = defaultRoleEvery
	}
	if cfg.Sources == nil {
		cfg.Sources = oneSource(cfg.DSN)
	}
	return &Reader{cfg: cfg, uuid: newReplicaUUID(), proofWait: proofWaitMax, watch: newWatchList(cfg), parked: map[xid]*parkedXA{}}, nil
}

// State returns a snapshot, safe from any goroutine.
func (r *Reader) State() State {
	r.mu.Lock()
	s := r.state
	r.mu.Unlock()
	s.Offset = r.offset.Load()
	s.BytesRead = r.bytesRead.Load()
	s.CommitLag = time.Duration(r.lagNanos.Load())
	if n := r.lastEventNanos.Load(); n != 0 {
		s.LastEvent = time.Unix(0, n)
	}
	if n := r.lastTimestamp.Load(); n != 0 {
		s.LastEventTimestamp = time.Unix(int64(n), 0).UTC()
	}
	s.WaitingForServer = s.Connected && !r.blocked.Load() && !r.inside.Load()
	return s
}

func (r *Reader) setState(change func(*State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}
