package app

import (
	"context"
	"hash/fnv"
	"io"
	"os"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// CheckpointTable is the name of the table that holds positions and fences.
const CheckpointTable = "rowferry_checkpoint"

// ServerID returns the replication client id: the configured one, or one made
// from the relay's name and the host's, so that it is stable over restarts.
func ServerID(cfg *config.Config) uint32 {
	if cfg.ServerID != 0 {
		return cfg.ServerID
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, cfg.Name+"@"+host) // hash.Hash never returns an error
	return h.Sum32() | 1<<31                    // far from the small numbers that people give to servers
}

// NewReader builds the binlog reader over the tables of a store.
func NewReader(cfg *config.Config, s *Store, onConnect func(), log zerolog.Logger) (*binlog.Reader, error) {
	dsn, err := cfg.MySQLConfig(cfg.Source())
	if err != nil {
		return nil, err
	}
	layouts := map[outbox.Table]*outbox.Layout{}
	for _, l := range s.Layouts {
		layouts[l.Table] = l
	}
	return binlog.New(binlog.Config{
		DSN: dsn, ServerID: ServerID(cfg), Layouts: layouts,
		Reload:     func(ctx context.Context, t outbox.Table) (*outbox.Layout, error) { return s.ReadLayout(ctx, t) },
		FenceTable: outbox.Table{Schema: s.Schema, Name: CheckpointTable}, FenceName: cfg.Name,
		OnConnect: onConnect, Logger: log,
	})
}
