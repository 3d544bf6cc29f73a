package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/version"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

var _ admin.Relay = (*Relay)(nil)

// publishTimeout is how long a relay that has something to publish may fail to do
// so before it is unready.
const publishTimeout = time.Minute

func (r *Relay) listen() (*admin.Server, error) {
	s, err := admin.Start(admin.Config{
		Addr: r.cfg.HTTPAddr, Token: r.cfg.HTTPToken.Reveal(), Relay: r, Letters: r,
		Metrics: r.meters.registry, Refresh: func() { r.meters.poll(r) }, Logger: r.log,
	})
	if err != nil {
		return nil, err
	}
	r.log.Info().Str("addr", s.Addr()).Msg("HTTP is listening")
	return s, nil
}

// Status implements admin.Relay.
func (r *Relay) Status() admin.Status {
	m := r.meters
	s := r.running()
	st := admin.Status{
		Name: r.cfg.Name, Version: version.Get().Version, Mode: r.cfg.Mode, Leader: s != nil, Gap: r.gapOpen(), Paused: r.isPaused(),
		Published: admin.Published{Binlog: m.published[outbox.FromBinlog].Load(), Sweep: m.published[outbox.FromSweep].Load()},
		Source:    admin.Source{Address: r.cfg.Source().Addr()}, Parked: []admin.Parked{},
	}
	r.mu.Lock()
	st.LastError = cmp.Or(r.lastErr, r.waiting)
	r.mu.Unlock()
	st.Backlog = m.backlogNow()
	if s != nil {
		r.fillSession(&st, s)
	}
	return st
}

func (r *Relay) fillSession(st *admin.Status, s *session) {
	use := s.engine.Usage()
	st.Inflight = admin.Inflight{Events: use.Events, Bytes: use.Bytes}
	for _, p := range use.Parked {
		st.Parked = append(st.Parked, admin.Parked{Lane: p.Name, Reason: p.Reason, Since: p.Since})
	}
	wrong := []string{st.LastError}
	for _, lane := range slices.Sorted(maps.Keys(use.Failing)) {
		wrong = append(wrong, lane+": "+use.Failing[lane])
	}
	if s.reader != nil {
		wrong = append(wrong, s.reader.State().LastError, standstill(s.reader.State()))
	}
	st.LastError = strings.Join(slices.DeleteFunc(wrong, func(s string) bool { return s == "" }), "; ")
	st.Checkpoint.Epoch = s.epoch
	st.Checkpoint.AgeSeconds = admin.Seconds(s.checkpointAge(use))
	if pos := s.pos.Load(); pos != nil {
		st.Checkpoint.Position = fmt.Sprintf("%s:%d", pos.File, pos.Offset)
	}
	if took, ok := r.meters.fenceRoundTrip(); ok {
		st.Source.FenceSeconds = admin.Seconds(took)
	}
	if s.reader == nil {
		return
	}
	state := s.reader.State()
	st.Source.Address = cmp.Or(state.Address, st.Source.Address)
	st.Source.Flavor, st.Source.Connected = state.Flavor, state.Connected
	st.Source.Position = fmt.Sprintf("%s:%d", state.File, state.Offset)
	if !state.LastEvent.IsZero() {
		lag := time.Duration(lagSeconds(state) * float64(time.Second))
		st.Source.LagSeconds = admin.Seconds(lag)
		st.Source.LastEventSeconds = admin.Seconds(time.Since(state.LastEvent))
	}
}

// standstill says that the source is a replica that copies nothing at present, which
// looks like a server where nothing happens.
func standstill(st binlog.State) string {
	if !st.Standstill {
		return ""
	}
	return "the source is a " + st.Replication
}

// Ready implements admin.Relay.
func (r *Relay) Ready() []string {
	r.mu.Lock()
	waiting, s := r.waiting, r.current
	standby := r.standby && r.lastErr == ""
	r.mu.Unlock()
	var reasons []string
	if r.isPaused() {
		reasons = append(reasons, errPausedNow.Error())
	}
	switch {
	case s == nil && standby:
		return reasons // without any, ready to take over
	case s == nil:
		return append(reasons, cmp.Or(waiting, "starting"))
	}
	if s.reader != nil {
		if state := s.reader.State(); !state.Connected {
			reasons = append(reasons, "the source is not connected: "+cmp.Or(state.LastError, "connecting"))
		}
	}
	use := s.engine.Usage()
	stuck := time.Since(maxTime(use.LastAck, s.began)) > publishTimeout
	if use.Events > 0 && len(use.Failing) > 0 && stuck && !r.isPaused() {
		for _, lane := range slices.Sorted(maps.Keys(use.Failing)) {
			reasons = append(reasons, fmt.Sprintf("nothing could be published for a minute: %s: %s", lane, use.Failing[lane]))
			break
		}
	}
	if down := r.brokerDown(); down != "" {
		reasons = append(reasons, down)
	}
	return reasons
}

// brokerDown says whether no name server answers; the answer is a few seconds old
// at most, because probes must not wait for a network.
func (r *Relay) brokerDown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pingErr
}

// pingBroker keeps brokerDown up to date until ctx ends.
func (r *Relay) pingBroker(ctx context.Context) {
	for {
		r.mu.Lock()
		sink := r.sink
		r.mu.Unlock()
		if sink != nil {
			asking, cancel := context.WithTimeout(ctx, retryEvery)
			text := ""
			if err := sink.Ping(asking); err != nil {
				text = "no name server answers: " + err.Error()
			}
			cancel()
			r.mu.Lock()
			r.pingErr = text
			r.mu.Unlock()
		}
		if !pause(ctx, retryEvery) {
			return
		}
	}
}

// Sweep implements admin.Relay.
func (r *Relay) Sweep(ctx context.Context) (outbox.Tally, error) {
	s := r.running()
	switch {
	case s == nil:
		return outbox.Tally{}, r.notRelaying()
	case s.sweeper == nil:
		return outbox.Tally{}, errors.New("this relay does not sweep: MODE=tail or LEDGER=none")
	case r.isPaused():
		return outbox.Tally{}, errPausedNow
	}
	return s.sweeper.Pass(ctx)
}

// notRelaying says why there is no session.
func (r *Relay) notRelaying() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.New("the relay is not relaying: " + cmp.Or(r.waiting, "starting"))
}

func (m *meters) backlogNow() admin.Backlog {
	m.mu.Lock()
	defer m.mu.Unlock()
	var sum admin.Backlog
	for _, b := range m.backlog {
		sum.Pending += b.Pending
		sum.Failed += b.Failed
		if age := b.OldestSeconds; b.Pending > 0 && (sum.OldestSeconds == nil || age > *sum.OldestSeconds) {
			sum.OldestSeconds = &age
		}
	}
	return sum
}

func (m *meters) fenceRoundTrip() (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fence, !m.fenceAt.IsZero()
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func client(cfg *config.Config) *admin.Client {
	return admin.NewClient(cfg.HTTPAddr, cfg.HTTPToken.Reveal())
}

// askRelay asks the running relay of this name; ErrNoRelay when none of that name
// answers.
func askRelay(ctx context.Context, cfg *config.Config) (admin.Status, error) {
	st, err := client(cfg).Status(ctx)
	if err == nil && st.Name != cfg.Name {
		err = fmt.Errorf("%w: the one at %s is called %s", admin.ErrNoRelay, cfg.HTTPAddr, st.Name)
	}
	return st, err
}

// sweepThroughRelay has the running relay sweep; answered is false if there is
// none.
func sweepThroughRelay(ctx context.Context, cfg *config.Config) (t outbox.Tally, answered bool, err error) {
	if _, err := askRelay(ctx, cfg); err != nil {
		return t, false, nil
	}
	t, err = client(cfg).Sweep(ctx)
	return t, true, err
}

// Status returns what the running relay says, or, when none answers, checkpoint
// and backlog from the database.
func Status(ctx context.Context, cfg *config.Config, log zerolog.Logger) (admin.Status, error) {
	st, err := askRelay(ctx, cfg)
	if err == nil {
		return st, nil
	}
	store, openErr := OpenStore(cfg)
	if openErr != nil {
		return st, usage(openErr)
	}
	defer store.Close() //nolint:errcheck // nothing was written
	st, readErr := statusFromStore(ctx, cfg, store, log)
	st.LastError = err.Error()
	return st, readErr
}

func statusFromStore(ctx context.Context, cfg *config.Config, store *Store, log zerolog.Logger) (admin.Status, error) {
	st := admin.Status{
		Name: cfg.Name, Version: version.Get().Version, Mode: cfg.Mode,
		Source: admin.Source{Address: cfg.Source().Addr()}, Parked: []admin.Parked{},
	}
	if err := store.Learn(ctx); err != nil {
		return st, err
	}
	kind, err := store.LedgerKind()
	if err != nil {
		return st, err
	}
	m := &meters{backlog: map[outbox.Table]ledger.Backlog{}}
	l := ledger.New(store.DB, store.Layouts, ledger.Options{
		Delete: kind == config.LedgerDelete, None: kind == config.LedgerNone, Logger: log,
	})
	for _, t := range store.Tables() {
		if m.backlog[t], err = l.Backlog(ctx, t); err != nil {
			return st, err
		}
	}
	st.Backlog = m.backlogNow()
	if cfg.CheckpointStore.Kind == config.StoreMemory {
		return st, nil
	}
	saved, err := loadCheckpoint(ctx, cfg, store)
	if err != nil {
		return st, err
	}
	st.Checkpoint = admin.Checkpoint{Position: saved.Position, Epoch: saved.Epoch}
	st.Paused = saved.Paused
	if !saved.UpdatedAt.IsZero() {
		st.Checkpoint.AgeSeconds = admin.Seconds(time.Since(saved.UpdatedAt))
	}
	return st, nil
}

// PrintStatus writes a status as a table.
func PrintStatus(w io.Writer, st admin.Status) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range [][2]any{
		{"name", st.Name}, {"version", st.Version}, {"mode", st.Mode}, {"leading", st.Leader}, {"paused", st.Paused},
		{"source", st.Source.Address + " " + st.Source.Flavor}, {"connected", st.Source.Connected},
		{"reading at", st.Source.Position}, {"lag", seconds(st.Source.LagSeconds)},
		{"fence round trip", seconds(st.Source.FenceSeconds)},
		{"checkpoint", st.Checkpoint.Position}, {"checkpoint age", seconds(st.Checkpoint.AgeSeconds)}, {"epoch", st.Checkpoint.Epoch},
		{"gap", st.Gap}, {"pending rows", st.Backlog.Pending}, {"oldest", seconds(st.Backlog.OldestSeconds)}, {"failed rows", st.Backlog.Failed},
		{"published by the binlog path", st.Published.Binlog}, {"published by the sweep", st.Published.Sweep},
		{"in flight", fmt.Sprintf("%d events, %d bytes", st.Inflight.Events, st.Inflight.Bytes)}, {"parked", parkedText(st.Parked)}, {"last error", st.LastError},
	} {
		if _, err := fmt.Fprintf(t, "%s\t%v\n", row[0], row[1]); err != nil {
			return err
		}
	}
	return t.Flush()
}

// parkedText is one line for each lane that is parked.
func parkedText(lanes []admin.Parked) string {
	text := make([]string, len(lanes))
	for i, p := range lanes {
		text[i] = fmt.Sprintf("%s: %s, since %s", p.Lane, p.Reason, p.Since.Format(time.RFC3339))
	}
	return strings.Join(text, "\n\t")
}

func seconds(s *float64) string {
	if s == nil {
		return "-"
	}
	return time.Duration(*s * float64(time.Second)).String()
}

// Healthcheck asks the running relay whether it is alive, or ready.
func Healthcheck(ctx context.Context, cfg *config.Config, ready bool) error {
	if !ready {
		return client(cfg).Live(ctx)
	}
	answer, err := client(cfg).Ready(ctx)
	if err == nil && answer.Status == admin.Unready {
		err = fmt.Errorf("not ready: %v", answer.Reasons)
	}
	return err
}
