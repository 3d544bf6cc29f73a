package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router"
	"github.com/rowferry/rowferry/pkg/router/stdout"
)

// TailOptions say what to print.
type TailOptions struct {
	From  string // now, earliest, checkpoint, a GTID set or FILE:POS
	Limit int    // events; 0: no limit
}

// errEnough ends a tail that has printed what was asked for.
var errEnough = errors.New("limit reached")

// Tail prints what would be published, one JSON line an event, until ctx ends or
// the limit is reached. It sends, marks and saves nothing.
func Tail(ctx context.Context, cfg *config.Config, o TailOptions, w io.Writer, log zerolog.Logger) error {
	store, err := OpenStore(cfg)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	if err := store.Learn(ctx); err != nil {
		return err
	}
	routes, err := NewRouter(cfg)
	if err != nil {
		return err
	}
	reader, err := NewReader(cfg, store, NewSources(cfg), ReaderEvents{}, log)
	if err != nil {
		return err
	}
	from, err := tailFrom(ctx, cfg, store, reader, o.From)
	if err != nil {
		return err
	}
	p := &printer{routes: routes, left: o.Limit, to: json.NewEncoder(w)}
	p.to.SetEscapeHTML(false)
	err = reader.Run(ctx, from, p.accept)
	if errors.Is(err, errEnough) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func tailFrom(ctx context.Context, cfg *config.Config, store *Store, reader *binlog.Reader, from string) (string, error) {
	if from == "checkpoint" {
		saved, err := loadCheckpoint(ctx, cfg, store)
		if err != nil {
			return "", err
		}
		if from = saved.Position; from == "" {
			return "", errors.New("no position is saved yet; say --from now or --from earliest")
		}
	}
	return reader.Resolve(ctx, from)
}

// printer routes events and prints them.
type printer struct {
	routes *router.Router
	left   int // 0: no limit
	to     *json.Encoder
}

// unsent is the line of an event that would not be published.
type unsent struct {
	Table       string     `json:"table"`
	ID          string     `json:"id"`
	NotSent     string     `json:"not_sent"`
	Position    string     `json:"position,omitempty"`
	CommittedAt *time.Time `json:"committed_at,omitempty"`
}

func (p *printer) accept(_ context.Context, b outbox.Batch) error {
	position := ""
	var committed *time.Time
	if !b.End.IsZero() {
		position = fmt.Sprintf("%s:%d", b.End.File, b.End.Offset)
	}
	if !b.CommittedAt.IsZero() {
		at := b.CommittedAt.UTC()
		committed = &at
	}
	for _, e := range b.Events {
		if err := p.to.Encode(p.line(e, position, committed)); err != nil {
			return fmt.Errorf("printing an event: %w", err)
		}
		if p.left--; p.left == 0 {
			return errEnough
		}
	}
	return nil
}

func (p *printer) line(e *outbox.Event, position string, committed *time.Time) any {
	if e.Unread != "" {
		return unsent{e.Table.String(), e.ID, "the binlog does not hold the whole row (" + e.Unread + "); a relay reads it by key", position, committed}
	}
	m, err := p.routes.Route(e)
	if err != nil {
		return unsent{e.Table.String(), e.ID, err.Error(), position, committed}
	}
	line := stdout.NewLine(m)
	line.Position, line.CommittedAt = position, committed
	return line
}
