package app

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// CheckpointTable is the name of the table that holds positions and fences.
const CheckpointTable = "rowferry_checkpoint"

// NewReader builds the binlog reader over the tables of a store.
func NewReader(cfg *config.Config, s *Store, onConnect func(), log zerolog.Logger) (*binlog.Reader, error) {
	dsn, err := cfg.MySQLConfig(cfg.Source())
	if err != nil {
		return nil, err
	}
	kind, err := s.LedgerKind() // an error is for those who write
	swept := err == nil && cfg.Mode == config.ModeAuto && kind != config.LedgerNone && everyStatus(s.Layouts)
	layouts := map[outbox.Table]*outbox.Layout{}
	for _, l := range s.Layouts {
		layouts[l.Table] = l
	}
	return binlog.New(binlog.Config{
		DSN: dsn, ServerID: cfg.ServerID, Layouts: layouts,
		Reload:     func(ctx context.Context, t outbox.Table) (*outbox.Layout, error) { return s.ReadLayout(ctx, t) },
		FenceTable: outbox.Table{Schema: s.Schema, Name: CheckpointTable}, FenceName: cfg.Name,
		HoldPrepared: !swept, OnConnect: onConnect, Logger: log,
	})
}
