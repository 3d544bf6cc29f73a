package app

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// CheckpointTable is the name of the table that holds positions and fences.
const CheckpointTable = "rowferry_checkpoint"

// ReaderEvents tell what others want to know of a reader; each may be nil.
type ReaderEvents struct {
	Connected func()               // before the first event of each connection
	Altered   func(*outbox.Layout) // a table has another layout now
	// Unseen: rows that the binlog does not hold may have been inserted; nil where nobody
	// else finds them.
	Unseen   func(table outbox.Table, reason string, rows int)
	NoFences bool // the checkpoint table is not looked at
}

// BesideRelay is the configuration for a reader that may run while the relay does: with
// a server id of its own, whether or not one was configured. MariaDB ends the older of
// two streams with one id, and that would be the relay's.
func BesideRelay(cfg *config.Config) *config.Config {
	beside := *cfg
	for beside.ServerID == cfg.ServerID {
		beside.ServerID = rand.Uint32() | 1<<31 // where few number their servers
	}
	return &beside
}

// sourceAfter is for how long a source may fail until the next of the list is tried.
const sourceAfter = 30 * time.Second

// NewSources are the servers of SOURCE_DSN. A relay keeps them over its readers: after
// a gap, the next one begins where the last one stood.
func NewSources(cfg *config.Config) *binlog.Sources {
	list := func() ([]*mysql.Config, error) {
		configs, err := cfg.SourceConfigs()
		for _, c := range configs {
			mysqlconn.CheckGreeting(c)
		}
		return configs, err
	}
	return binlog.NewSources(list, sourceAfter, max(sourceAfter, cfg.SourceLagMax))
}

// NewReader builds the binlog reader over the tables of a store.
func NewReader(cfg *config.Config, s *Store, sources *binlog.Sources, tell ReaderEvents, log zerolog.Logger) (*binlog.Reader, error) {
	kind, err := s.LedgerKind() // an error is for those who write
	swept := err == nil && cfg.Mode == config.ModeAuto && kind != config.LedgerNone && everyStatus(s.Layouts)
	layouts := map[outbox.Table]*outbox.Layout{}
	for _, l := range s.Layouts {
		layouts[l.Table] = l
	}
	fences := outbox.Table{Schema: s.Schema, Name: CheckpointTable}
	if tell.NoFences {
		fences = outbox.Table{}
	}
	return binlog.New(binlog.Config{
		Sources: sources, ServerID: cfg.ServerID, Layouts: layouts,
		Reload: func(ctx context.Context, t outbox.Table) (*outbox.Layout, error) {
			l, err := s.ReadLayout(ctx, t)
			if err == nil && tell.Altered != nil {
				tell.Altered(l)
			}
			return l, err
		},
		FenceTable: fences, FenceName: cfg.Name,
		HoldBytesMax: heldBytesMax(cfg), PayloadBytesMax: int64(cfg.MessageBytesMax),
		HoldPrepared: !swept, OnConnect: tell.Connected, Unseen: tell.Unseen, Logger: log,
	})
}

// heldBytesMax is the reader's share of the in-flight budget: for the transaction that
// has not ended yet. The engine has the rest, so that both together stay within it.
func heldBytesMax(cfg *config.Config) int64 { return int64(cfg.InflightBytesMax) / 4 }
