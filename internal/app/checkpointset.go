package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// CheckpointChange is what another position means. Numbers that are not known are null.
type CheckpointChange struct {
	Name    string `json:"name"`
	Before  string `json:"before"` // empty: none is saved
	After   string `json:"after"`  // empty: START_AT applies
	Applied bool   `json:"applied"`

	SkippedTransactions  *int64 `json:"skipped_transactions"`
	RepeatedTransactions *int64 `json:"repeated_transactions"`
	Bytes                *int64 `json:"bytes"`        // of binlog from one to the other, negative: back
	PendingRows          int64  `json:"pending_rows"` // more than 10,000 count as 10,001
	Swept                bool   `json:"swept"`        // a relay finds unsent rows in the tables, whatever its position

	startAt string
}

// CheckPosition finds a mistake in a position before anything is connected to.
func CheckPosition(position string) error {
	if strings.HasPrefix(position, "{") && !json.Valid([]byte(position)) {
		return usage(fmt.Errorf("position %.80s begins like a saved one, but is no JSON; quote it for the shell", position))
	}
	if position == "checkpoint" || checkFrom(position) != nil {
		return usage(fmt.Errorf("position %.80s: wanted now, earliest, a GTID set, FILE:POS such as mysql-bin.000003:157, or what `rowferry checkpoint show` prints", position))
	}
	return nil
}

// PlanCheckpoint says what going on from a position, in a form that CheckPosition takes,
// would mean; an empty one stands for the reset. It changes nothing. It fails while a relay
// of this name leads, and for a position that the source does not serve.
func PlanCheckpoint(ctx context.Context, cfg *config.Config, position string, log zerolog.Logger) (CheckpointChange, error) {
	plan := CheckpointChange{Name: cfg.Name, startAt: string(cfg.StartAt)}
	if err := mayChangeCheckpoint(ctx, cfg); err != nil {
		return plan, err
	}
	store, err := OpenStore(cfg)
	if err != nil {
		return plan, usage(err)
	}
	defer store.Close() //nolint:errcheck // nothing was written
	saved, err := loadCheckpoint(ctx, cfg, store)
	if err == nil {
		err = store.Learn(ctx)
	}
	if err != nil {
		return plan, err
	}
	plan.Before = saved.Position
	if err := plan.countPending(ctx, cfg, store, log); err != nil || position == "" {
		return plan, err
	}
	reader, err := NewReader(BesideRelay(cfg), store, NewSources(cfg), ReaderEvents{NoFences: true}, log)
	if err != nil {
		return plan, err
	}
	if plan.After, err = reader.Resolve(ctx, position); err != nil {
		if errors.Is(err, binlog.ErrGap) {
			err = fmt.Errorf("the source does not serve that position: %w", err)
		}
		return plan, err
	}
	return plan, plan.compare(ctx, reader)
}

// mayChangeCheckpoint refuses where a relay leads that would go on from its own position.
func mayChangeCheckpoint(ctx context.Context, cfg *config.Config) error {
	switch {
	case cfg.Mode == config.ModePoll:
		return usage(errors.New("ROWFERRY_MODE=poll reads no binlog, so it has no position"))
	case cfg.CheckpointStore.Kind == config.StoreMemory:
		return usage(errors.New("ROWFERRY_CHECKPOINT_STORE=memory keeps no position that could be changed; ROWFERRY_START_AT says where it begins"))
	}
	if st, err := askRelay(ctx, cfg); err == nil && st.Leader {
		return fmt.Errorf("the relay %s is running and leads (it answers on %s): stop it first, or it goes on from where it is", cfg.Name, cfg.HTTPAddr)
	}
	return nil
}

// countPending counts what a sweep would take.
func (p *CheckpointChange) countPending(ctx context.Context, cfg *config.Config, store *Store, log zerolog.Logger) error {
	kind, err := store.LedgerKind()
	if err != nil {
		return err
	}
	p.Swept = cfg.Mode == config.ModeAuto && kind != config.LedgerNone && everyStatus(store.Layouts)
	l := ledger.New(store.DB, store.Layouts, ledger.Options{
		Delete: kind == config.LedgerDelete, None: kind == config.LedgerNone, Logger: log,
	})
	for _, t := range store.Tables() {
		if !slices.ContainsFunc(store.Layouts, func(l *outbox.Layout) bool { return l.Table == t && l.Has(outbox.RoleStatus) }) {
			continue
		}
		b, err := l.Backlog(ctx, t)
		if err != nil {
			return err
		}
		p.PendingRows += b.Pending
	}
	return nil
}

func (p *CheckpointChange) compare(ctx context.Context, reader *binlog.Reader) error {
	if p.Before == "" {
		return nil
	}
	c, err := reader.Compare(ctx, p.Before, p.After)
	if err != nil {
		return fmt.Errorf("comparing with the saved position: %w", err)
	}
	known := func(n int64) *int64 {
		if n == binlog.Unknown {
			return nil
		}
		return &n
	}
	p.SkippedTransactions, p.RepeatedTransactions = known(c.Skipped), known(c.Repeated)
	if c.BytesKnown {
		p.Bytes = &c.Bytes
	}
	return nil
}

// ApplyCheckpoint does what was planned. It takes the leadership over for the moment: a
// relay that has the leader lock, or the checkpoint file, keeps it from that, and one that
// runs without the lock is refused its own position from now on, and begins anew from this
// one.
func ApplyCheckpoint(ctx context.Context, cfg *config.Config, plan CheckpointChange, log zerolog.Logger) (CheckpointChange, error) {
	var err error
	if cfg.CheckpointStore.Kind == config.StoreFile {
		err = savePosition(ctx, checkpoint.NewFile(cfg.CheckpointStore.Path, cfg.Name), plan.After)
	} else {
		err = applyInStore(ctx, cfg, plan.After, log)
	}
	plan.Applied = err == nil
	action := "checkpoint set"
	if plan.After == "" {
		action = "checkpoint reset"
	}
	audit(ctx, log, action).Str("before", plan.Before).Str("after", plan.After).Int64("pending", plan.PendingRows).Err(err).Send()
	return plan, err
}

func applyInStore(ctx context.Context, cfg *config.Config, position string, log zerolog.Logger) error {
	store, err := OpenStore(cfg)
	if err != nil {
		return usage(err)
	}
	defer store.Close() //nolint:errcheck // what was written has been answered
	if err := store.refuseReplica(ctx); err != nil {
		return err
	}
	lock, err := leadAlone(ctx, cfg, store, log)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // the server releases it with the connection
	return savePosition(ctx, checkpoint.NewMySQL(store.DB, store.Schema, cfg.Name), position)
}

// positions is where a position is changed.
type positions interface {
	Begin(ctx context.Context, owner string) (checkpoint.Checkpoint, error)
	Save(ctx context.Context, position string) error
}

func savePosition(ctx context.Context, to positions, position string) error {
	_, err := to.Begin(ctx, ownerName())
	if errors.Is(err, checkpoint.ErrInUse) {
		return fmt.Errorf("%w: stop the relay that runs with it first", err)
	}
	if err != nil {
		return err
	}
	err = to.Save(ctx, position)
	if file, ok := to.(*checkpoint.File); ok {
		err = errors.Join(err, file.Close())
	}
	return err
}

// Print says in words what the change does or would do.
func (p CheckpointChange) Print(w io.Writer) error {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	before := p.Before
	if before == "" {
		before = "none"
	}
	say("saved now:  %s", before)
	if p.After == "" {
		say("afterwards: none; the next start begins at ROWFERRY_START_AT, now %s", p.startAt)
		say("The epoch goes on growing; a pause, dead letters and frozen queue lists stay.")
	} else {
		say("afterwards: %s", p.After)
	}
	p.sayDistance(say)
	switch {
	case p.Swept:
		say("%s PENDING in the tables: the sweep of the relay takes them, whatever the position.", rowsText(p.PendingRows))
	default:
		say("Nothing is swept here: what is skipped is never sent.")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p CheckpointChange) sayDistance(say func(string, ...any)) {
	if p.Before == "" || p.After == "" {
		return
	}
	if p.Bytes != nil {
		switch n := *p.Bytes; {
		case n == 0:
			say("That is the same place.")
		case n > 0:
			say("That is %d bytes of binlog further on: they are not read.", n)
		default:
			say("That is %d bytes of binlog further back: they are read again.", -n)
		}
	}
	if n := p.SkippedTransactions; n != nil && *n > 0 {
		say("%d transactions are skipped, those of other tables among them.", *n)
	}
	if n := p.RepeatedTransactions; n != nil && *n > 0 {
		again := "rows that are SENT, FAILED or gone are not sent again"
		if !p.Swept {
			again = "their events may be sent again"
		}
		say("%d transactions are read again: %s.", *n, again)
	}
	if p.Bytes == nil && p.SkippedTransactions == nil {
		say("How far apart they are cannot be told: they are of different servers or logs.")
	}
}

func rowsText(n int64) string {
	switch {
	case n > 10_000:
		return "More than 10,000 rows are"
	case n == 1:
		return "1 row is"
	}
	return fmt.Sprintf("%d rows are", n)
}
