package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

const (
	// purgeSparing: a purge is at work for a fifth of the time at most.
	purgeSparing = 4
	// purgeRowsMax bounds what a relay deletes from a table before it looks at the others.
	purgeRowsMax = 100_000
	purgeMin     = time.Second      // between two runs of a relay
	purgeMax     = 10 * time.Minute // the same
)

// errPurging says that a purge of the table is under way elsewhere: two would only get
// into each other's way.
var errPurging = errors.New("somebody else is purging it at this moment")

// Purging is what a purge has done, table by table.
type Purging struct {
	DryRun bool          `json:"dry_run"`
	Tables []PurgedTable `json:"tables"`
}

// PurgedTable is what a purge has done to one table.
type PurgedTable struct {
	Table  string `json:"table"`
	Rows   int64  `json:"rows"`   // deleted, or those that would be
	Locked int64  `json:"locked"` // left, because somebody keeps them locked
	Error  string `json:"error"`  // why there are not more; empty: there are not
}

// Purge deletes, or counts, the rows of all tables that are SENT and were sent longer ago
// than age. It needs no leadership: such rows are nobody's any more. Tables of which
// nothing can be purged do not keep the others from it.
func Purge(ctx context.Context, cfg *config.Config, age time.Duration, dryRun bool, log zerolog.Logger) (Purging, error) {
	done := Purging{DryRun: dryRun, Tables: []PurgedTable{}}
	store, err := OpenStore(cfg)
	if err != nil {
		return done, usage(err)
	}
	defer store.Close() //nolint:errcheck // what was deleted is deleted
	if err := store.Learn(ctx); err != nil {
		return done, err
	}
	kind, err := store.LedgerKind()
	if err == nil {
		err = store.refuseReplica(ctx)
	}
	if err != nil {
		return done, err
	}
	l := ledger.New(store.DB, store.Layouts, ledger.Options{
		Name: cfg.Name, Schema: store.Schema, Delete: kind == config.LedgerDelete, None: kind == config.LedgerNone, Logger: log,
	})
	var errs []error
	var rows int64
	for _, t := range store.Tables() {
		p, err := purgeTable(ctx, store, l, t, ledger.PurgeOptions{Age: age, DryRun: dryRun, Sparing: purgeSparing}, log)
		one := PurgedTable{Table: t.String(), Rows: p.Rows, Locked: p.Locked}
		if err != nil {
			one.Error = err.Error()
			errs = append(errs, err)
		}
		done.Tables = append(done.Tables, one)
		rows += p.Rows
	}
	err = errors.Join(errs...)
	if !dryRun {
		audit(ctx, log, "purge").Dur("older_than", age).Int64("rows", rows).Err(err).Send()
	}
	return done, err
}

// purgeTable purges one table, alone.
func purgeTable(ctx context.Context, store *Store, l *ledger.Ledger, t outbox.Table, o ledger.PurgeOptions, log zerolog.Logger) (ledger.Purged, error) {
	if o.DryRun {
		return l.Purge(ctx, t, o)
	}
	lock, err := leader.TryAcquire(ctx, store.DB, store.Schema, "purge:"+t.String(), log)
	if err != nil {
		return ledger.Purged{}, fmt.Errorf("purging %s: %w", t, err)
	}
	if lock == nil {
		return ledger.Purged{}, fmt.Errorf("purging %s: %w", t, errPurging)
	}
	defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // the server releases it with the connection
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-lock.Lost():
			cancel(errors.New("the connection that keeps other purges away is lost"))
		case <-stop:
		}
	}()
	return l.Purge(ctx, t, o)
}

// Print writes what a purge has done as a table.
func (p Purging) Print(w io.Writer) error {
	verb := "PURGED"
	if p.DryRun {
		verb = "WOULD BE PURGED"
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "TABLE\t%s\tLOCKED\n", verb) //nolint:errcheck // Flush says it
	for _, one := range p.Tables {
		fmt.Fprintf(t, "%s\t%d\t%d\n", one.Table, one.Rows, one.Locked) //nolint:errcheck // as above
	}
	return t.Flush()
}

// retention purges for a session, by a timer, what is older than OUTBOX_RETENTION.
type retention struct {
	r    *Relay
	s    *session
	last map[outbox.Table]string // what went wrong, to be logged when it changes and ends
}

// retain purges until ctx ends. Runs are a tenth of the retention apart, within bounds,
// and follow each other while there is more than one may do.
func (r *Relay) retain(ctx context.Context, s *session) {
	t := retention{r, s, map[outbox.Table]string{}}
	every := min(max(r.cfg.OutboxRetention/10, purgeMin), purgeMax)
	next := purgeMin
	for pause(ctx, next+rand.N(next/5+1)) {
		next = every
		if !r.isPaused() && t.run(ctx) {
			next = purgeMin
		}
	}
}

// run purges each table once, within bounds, and reports whether one holds more.
func (t *retention) run(ctx context.Context) (more bool) {
	for _, table := range t.r.store.Tables() {
		began := time.Now()
		done, err := purgeTable(ctx, t.r.store, t.s.ledger, table, ledger.PurgeOptions{
			Age: t.r.cfg.OutboxRetention, RowsMax: purgeRowsMax, Sparing: purgeSparing,
		}, t.r.log)
		if done.Rows > 0 {
			t.r.meters.Purged.WithLabelValues(table.String()).Add(float64(done.Rows))
			t.r.log.Info().Str("table", table.String()).Int64("rows", done.Rows).Int64("locked", done.Locked).
				Dur("took", time.Since(began)).Msg("purged rows that were sent longer ago than OUTBOX_RETENTION")
		}
		if ctx.Err() != nil {
			return false
		}
		if !errors.Is(err, errPurging) {
			t.report(table, err)
		}
		more = more || done.More
	}
	return more
}

func (t *retention) report(table outbox.Table, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == t.last[table]:
	case err != nil:
		t.r.log.Error().Err(err).Msg("purging failed; it will be tried again")
	default:
		t.r.log.Info().Str("table", table.String()).Msg("purging works again")
	}
	t.last[table] = text
}

// refuseRetention says why OUTBOX_RETENTION cannot be had.
func (r *Relay) refuseRetention(kind string) error {
	if r.cfg.OutboxRetention == 0 || kind == config.LedgerStatus {
		return nil
	}
	return fmt.Errorf("ROWFERRY_OUTBOX_RETENTION needs a table that says which rows are sent, and the ledger is %s: leave it unset, or see ROWFERRY_LEDGER", kind)
}
