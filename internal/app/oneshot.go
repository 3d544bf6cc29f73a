package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Sweep sweeps the tables once: through the running relay of this name if one
// answers, else by itself, under the leader lock.
func Sweep(ctx context.Context, cfg *config.Config, log zerolog.Logger) (outbox.Tally, error) {
	tally, answered, err := sweepThroughRelay(ctx, cfg)
	if answered {
		return tally, err
	}
	r, err := newOneShot(cfg, log)
	if err != nil {
		return tally, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	return r.sweepOnce(ctx)
}

// sweepOnce is one pass of a relay that does nothing else. Unlike Run it does
// not wait for a database or a lock: a command answers at once.
func (r *Relay) sweepOnce(ctx context.Context) (outbox.Tally, error) {
	if err := r.prepare(ctx); err != nil {
		return outbox.Tally{}, err
	}
	if r.kind == config.LedgerNone {
		return outbox.Tally{}, errors.New("LEDGER=none keeps no status, so there is nothing to sweep")
	}
	lock, err := leadAlone(ctx, r.cfg, r.store, r.log)
	if err != nil {
		return outbox.Tally{}, err
	}
	defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // the server releases it with the connection
	if err := r.refusePaused(ctx); err != nil {
		return outbox.Tally{}, err
	}
	var tally outbox.Tally
	err = r.withEngine(ctx, lock, func(s *session) (err error) {
		tally, err = s.sweeper.Pass(ctx)
		return err
	})
	return tally, err
}

// Checkpoint is what `checkpoint show` prints.
type Checkpoint struct {
	Name       string  `json:"name"`
	Found      bool    `json:"found"`
	Position   string  `json:"position"`
	Epoch      int64   `json:"epoch"`
	Owner      string  `json:"owner"`
	Fence      uint64  `json:"fence"`
	Paused     bool    `json:"paused"`
	UpdatedAt  string  `json:"updated_at"`
	AgeSeconds float64 `json:"age_seconds"`
}

// ShowCheckpoint reads what is saved for a relay.
func ShowCheckpoint(ctx context.Context, cfg *config.Config) (Checkpoint, error) {
	store, err := OpenStore(cfg)
	if err != nil {
		return Checkpoint{}, usage(err)
	}
	defer store.Close() //nolint:errcheck // nothing was written
	saved, err := loadCheckpoint(ctx, cfg, store)
	if err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{
		Name: cfg.Name, Found: saved != (checkpoint.Checkpoint{}), Position: saved.Position, Epoch: saved.Epoch,
		Owner: saved.Owner, Fence: saved.Fence, Paused: saved.Paused,
	}
	if !saved.UpdatedAt.IsZero() {
		c.UpdatedAt = saved.UpdatedAt.UTC().Format(time.RFC3339)
		c.AgeSeconds = time.Since(saved.UpdatedAt).Seconds()
	}
	return c, nil
}

// loadCheckpoint reads what is saved, without taking it over.
func loadCheckpoint(ctx context.Context, cfg *config.Config, store *Store) (checkpoint.Checkpoint, error) {
	var from interface {
		Load(context.Context) (checkpoint.Checkpoint, bool, error)
	}
	switch cfg.CheckpointStore.Kind {
	case config.StoreMySQL:
		from = checkpoint.NewMySQL(store.DB, store.Schema, cfg.Name)
	case config.StoreFile:
		from = checkpoint.NewFile(cfg.CheckpointStore.Path, cfg.Name)
	default:
		return checkpoint.Checkpoint{}, errors.New("ROWFERRY_CHECKPOINT_STORE=memory keeps nothing that another process could read")
	}
	saved, _, err := from.Load(ctx)
	return saved, err
}

// Print writes the checkpoint as a table.
func (c Checkpoint) Print(w io.Writer) error {
	if !c.Found {
		_, err := fmt.Fprintf(w, "nothing is saved for %s yet\n", c.Name)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range [][2]any{
		{"name", c.Name}, {"position", c.Position}, {"epoch", c.Epoch}, {"owner", c.Owner},
		{"fence", c.Fence}, {"paused", c.Paused}, {"updated at", c.UpdatedAt},
	} {
		if _, err := fmt.Fprintf(t, "%s\t%v\n", row[0], row[1]); err != nil {
			return err
		}
	}
	return t.Flush()
}
