package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/ledger"
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
// the limit is reached. It sends, marks and saves nothing, and needs no more than
// REPLICATION SLAVE, REPLICATION CLIENT and SELECT on the outbox tables.
func Tail(ctx context.Context, cfg *config.Config, o TailOptions, w io.Writer, log zerolog.Logger) error {
	if err := checkFrom(o.From); err != nil {
		return err
	}
	store, err := OpenStore(cfg)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	if err := store.Learn(ctx); err != nil {
		return err
	}
	p, err := newPrinter(cfg, store, o.Limit, w)
	if err != nil {
		return err
	}
	reader, err := NewReader(BesideRelay(cfg), store, NewSources(cfg), ReaderEvents{Altered: p.rows.SetLayout, Unseen: p.unseen, NoFences: true}, log)
	if err != nil {
		return err
	}
	from, err := tailFrom(ctx, cfg, store, reader, o.From)
	if err != nil {
		return err
	}
	err = reader.Run(ctx, from, p.accept)
	if errors.Is(err, errEnough) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// checkFrom finds a mistake in --from before anything is connected to.
func checkFrom(from string) error {
	if from == "checkpoint" || strings.HasPrefix(from, "{") { // as checkpoint show prints it
		return nil
	}
	if err := new(config.StartAt).UnmarshalText([]byte(from)); err != nil {
		return usage(fmt.Errorf("--from %.80s: wanted now, earliest, checkpoint, a GTID set, FILE:POS such as mysql-bin.000003:157, or a saved position", from))
	}
	return nil
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

func newPrinter(cfg *config.Config, store *Store, limit int, w io.Writer) (*printer, error) {
	routes, err := NewRouter(cfg)
	if err != nil {
		return nil, err
	}
	rows := ledger.New(store.DB, store.Layouts, ledger.Options{Name: cfg.Name, Schema: store.Schema, None: true, Logger: zerolog.Nop()})
	p := &printer{routes: routes, rows: rows, left: limit, to: json.NewEncoder(w)}
	p.to.SetEscapeHTML(false)
	return p, nil
}

// printer routes events and prints them.
type printer struct {
	routes *router.Router
	rows   *ledger.Ledger // reads by key what the binlog does not hold whole
	left   int            // 0: no limit
	to     *json.Encoder
	lost   []unsent // rows of the transaction that cannot be read
}

// unsent is the line of an event that would not be published.
type unsent struct {
	Table       string     `json:"table"`
	ID          string     `json:"id"`
	NotSent     string     `json:"not_sent"`
	Position    string     `json:"position,omitempty"`
	CommittedAt *time.Time `json:"committed_at,omitempty"`
}

func (p *printer) unseen(t outbox.Table, reason string, _ int) {
	p.lost = append(p.lost, unsent{Table: t.String(), NotSent: "the binlog does not hold the rows (" + reason + "); a relay leaves them to its sweep"})
}

func (p *printer) accept(ctx context.Context, b outbox.Batch) error {
	position := ""
	var committed *time.Time
	if !b.End.IsZero() {
		position = fmt.Sprintf("%s:%d", b.End.File, b.End.Offset)
	}
	if !b.CommittedAt.IsZero() {
		at := b.CommittedAt.UTC()
		committed = &at
	}
	for _, line := range p.lost {
		line.Position, line.CommittedAt = position, committed
		if err := p.print(line); err != nil {
			return err
		}
	}
	p.lost = nil
	for _, e := range b.Events {
		line, err := p.line(ctx, e, position, committed)
		if err != nil {
			return err
		}
		if err := p.print(line); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) print(line any) error {
	if err := p.to.Encode(line); err != nil {
		return fmt.Errorf("printing an event: %w", err)
	}
	if p.left--; p.left == 0 {
		return errEnough
	}
	return nil
}

func (p *printer) line(ctx context.Context, e *outbox.Event, position string, committed *time.Time) (any, error) {
	if why := e.Unread; why != "" {
		rows, _, err := p.rows.Load(ctx, e.Table, []string{e.ID})
		if err != nil {
			return nil, err
		}
		if len(rows) == 0 {
			return unsent{e.Table.String(), e.ID, "the binlog does not hold the whole row (" + why + "), and it is no longer in the table", position, committed}, nil
		}
		e = rows[0]
	}
	m, err := p.routes.Route(e)
	if err != nil {
		return unsent{e.Table.String(), e.ID, err.Error(), position, committed}, nil
	}
	line := stdout.NewLine(m)
	line.Position, line.CommittedAt = position, committed
	return line, nil
}
