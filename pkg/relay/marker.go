package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// markMax bounds one transaction of the ledger, in rows: longer ones hold their
// locks for longer and mark no faster.
const markMax = 1000

// saveWithMarks is how often a position rides along in a marking transaction.
const saveWithMarks = 100 * time.Millisecond

// settlement is the end of an item, on its way to the ledger.
type settlement struct {
	item      *item
	kind      outbox.OutcomeKind
	write     bool   // there is an outcome to record
	keep      bool   // the item goes on: only record
	abandoned bool   // shutdown: the slot stays open
	reason    string // for last_error
	label     string // metric label of a failure
	skipped   string // why it was not sent on purpose
	deferred  string // why it was left to the sweep

	// Of an event that was not sent, as it was then: it may go on in its lane meanwhile.
	attempts int
	orderKey string

	blocks *place // the key that it blocks, once it is recorded
}

// failure is the settlement of a row that can never go.
func failure(err error) settlement {
	return settlement{kind: outbox.OutcomeFailed, write: true, reason: describe(err), label: outbox.ReasonOf(err)}
}

// describe is what stands in last_error: class, reason and cause, no payload.
func describe(err error) string {
	const reasonBytesMax = 1000
	s := outbox.ClassOf(err).String() + ": " + err.Error()
	return s[:min(len(s), reasonBytesMax)]
}

// settle sends an item to the marker.
func (e *Engine) settle(it *item, s settlement) {
	e.marks.push(s.of(it))
}

// recordOnly has an outcome written while the item goes on in its lane.
func (e *Engine) recordOnly(it *item, kind outbox.OutcomeKind, reason string) {
	e.marks.push(settlement{kind: kind, write: true, keep: true, reason: reason}.of(it))
}

// of completes a settlement with what is recorded of its item.
//
// What must hold: whoever holds the item calls it, and the marker reads from the item
// nothing that a lane may still write. Otherwise a late ledger records another attempt
// than the one that failed. Shown by TestAttemptsAreRecordedAsTheyWereWhenTheyFailed.
func (s settlement) of(it *item) settlement {
	s.item = it
	if s.kind == outbox.OutcomeFailed || s.kind == outbox.OutcomeAttempt {
		s.attempts, s.orderKey = it.attempts, it.orderKey()
	}
	return s
}

// markLoop records what became of events and saves positions, until the lanes have
// ended and what they left is recorded, or until ctx ends. It is the only place
// that does either while the engine runs.
//
// What must hold: the end of the lanes does not cut short a transaction of the
// ledger. Otherwise a slow ledger forgets what the broker has acknowledged, and a
// restart sends it again. Shown by TestAcknowledgedIsRecordedThoughTheDrainTimesOut.
func (e *Engine) markLoop(ctx context.Context, lanesEnded <-chan struct{}) error {
	tick := time.NewTicker(e.cfg.CheckpointInterval)
	defer tick.Stop()
	m := &marker{e: e, gentle: newGentle(e), tick: tick.C}
	m.gentle.look(ctx)
	var batch []settlement
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lanesEnded:
			return m.markAll(ctx, e.marks.tryTake(nil))
		case <-tick.C:
			if err := m.saveAlone(ctx); err != nil {
				return err
			}
		case <-e.marks.wake:
			batch = e.marks.tryTake(batch)
			if err := m.markAll(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// marker is the state of markLoop.
type marker struct {
	e         *Engine
	gentle    *gentle
	tick      <-chan time.Time // a position is to be saved
	savedAt   time.Time
	saveError string
}

func (m *marker) markAll(ctx context.Context, batch []settlement) error {
	m.gentle.waiting(ctx, len(batch))
	for len(batch) > 0 {
		n := min(len(batch), m.gentle.rowsMax())
		began := time.Now()
		if err := m.mark(ctx, batch[:n]); err != nil {
			return err
		}
		if err := m.rest(ctx, m.gentle.recorded(ctx, batch[:n], time.Since(began))); err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

// rest waits between two transactions of the ledger, until the beginning of a drain at
// most.
func (m *marker) rest(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.e.drainStarted:
		case <-ctx.Done():
		case <-m.tick:
			if err := m.saveAlone(ctx); err != nil {
				return err
			}
			continue
		}
		return nil
	}
}

// mark commits the outcomes of some items, and only then lets go of them.
//
// What must hold: a slot is finished, and a key leaves the registry, after the
// outcome is committed. Earlier, the position would cover rows that a crash
// leaves PENDING, and the sweep would take rows that were sent. Shown by
// TestPositionWaitsForTheMarks.
func (m *marker) mark(ctx context.Context, batch []settlement) error {
	locked, err := m.record(ctx, batch)
	if err != nil {
		return err
	}
	m.e.conclude(batch, locked)
	return nil
}

// record writes the outcomes until that succeeds. A position that is due goes
// into the same transaction: the one behind what was committed before it.
func (m *marker) record(ctx context.Context, batch []settlement) (map[outbox.Key]bool, error) {
	e := m.e
	ledger, outcomes := e.cfg.Ledger, outcomesOf(batch)
	if ledger == nil {
		ledger, outcomes = e.cfg.Dead, onlyFailed(outcomes)
	}
	if len(outcomes) == 0 {
		return nil, nil
	}
	if ledger == nil {
		return nil, unrecordable(outcomes[0])
	}
	position, also := m.positionDue()
	var locked []outbox.Outcome
	start := time.Now()
	err := e.insist(ctx, "recording outcomes", func() (err error) {
		locked, err = ledger.Record(ctx, outcomes, also)
		return err
	})
	if err != nil {
		return nil, err
	}
	e.hooks.Recorded(time.Since(start))
	if also != nil {
		m.saved(position)
	}
	set := make(map[outbox.Key]bool, len(locked))
	for _, o := range locked {
		set[o.Key] = true
	}
	return set, nil
}

func outcomesOf(batch []settlement) []outbox.Outcome {
	outcomes := make([]outbox.Outcome, 0, len(batch))
	for _, s := range batch {
		if s.write {
			outcomes = append(outcomes, outbox.Outcome{
				Key: s.item.event.Key(), Kind: s.kind, Token: s.item.token, Reason: s.reason,
				Backoff: backoffSeconds(s.attempts), OrderKey: s.orderKey,
			})
		}
	}
	return outcomes
}

// onlyFailed leaves what must leave a trace even where nothing is written to the
// table: the position is about to pass these events.
func onlyFailed(outcomes []outbox.Outcome) []outbox.Outcome {
	return slices.DeleteFunc(outcomes, func(o outbox.Outcome) bool { return o.Kind != outbox.OutcomeFailed })
}

// unrecordable stops a relay that has no place for a dead letter: to pass the event
// would lose it without a trace.
func unrecordable(o outbox.Outcome) error {
	return fmt.Errorf("event %s of %s can never be sent (%s), and with this checkpoint store and no ledger there is nowhere to record that (keep the checkpoint in mysql or a file, or drop such events by a routing rule)",
		o.Key.ID, o.Key.Table, o.Reason)
}

// orderKey is the key by which the event is ordered: that of its message, or its
// key if it never became one.
func (it *item) orderKey() string {
	switch {
	case it.msg != nil:
		return it.msg.Key
	case it.key != "":
		return it.key
	}
	return it.event.AggregateID
}

// backoffSeconds spaces the attempts on a row: 1, 2, 4 ... 300 s.
func backoffSeconds(attempts int) int {
	const most = 300
	if attempts > 9 {
		return most
	}
	return min(most, 1<<max(0, attempts-1))
}

// positionDue returns the position to save with the marks, if one is due and the
// store can do it in the ledger's transaction.
func (m *marker) positionDue() (outbox.Position, func(context.Context, *sql.Tx) error) {
	e := m.e
	store, ok := e.cfg.Checkpoints.(txCheckpoints)
	if !ok || time.Since(m.savedAt) < saveWithMarks {
		return outbox.Position{}, nil
	}
	pos, moved := e.position()
	if !moved {
		return outbox.Position{}, nil
	}
	text := e.cfg.Source.Encode(pos)
	return pos, func(ctx context.Context, tx *sql.Tx) error { return store.SaveTx(ctx, tx, text) }
}

func (e *Engine) position() (outbox.Position, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wm.done, e.wm.moved
}

// saveAlone saves a position that no marking transaction has taken along. A
// store that is away is tried again at the next tick; being fenced is final.
func (m *marker) saveAlone(ctx context.Context) error {
	pos, moved := m.e.position()
	if !moved {
		return nil
	}
	err := m.e.cfg.Checkpoints.Save(ctx, m.e.cfg.Source.Encode(pos))
	switch {
	case errors.Is(err, outbox.ErrFenced):
		return err
	case err != nil && err.Error() != m.saveError:
		m.saveError = err.Error()
		m.e.log.Warn().Err(err).Msg("saving the position failed; trying again")
	case err == nil:
		m.saveError = ""
		m.saved(pos)
	}
	return nil
}

// saved notes that a position is saved. Had the watermark moved meanwhile, the
// newer position is still to be saved.
func (m *marker) saved(pos outbox.Position) {
	m.savedAt = time.Now()
	m.e.mu.Lock()
	if m.e.wm.done == pos {
		m.e.wm.moved = false
	}
	m.e.mu.Unlock()
	m.e.hooks.Saved(pos)
}

// conclude lets go of the items whose outcome is committed, and puts those whose
// row somebody keeps locked back into the queue.
func (e *Engine) conclude(batch []settlement, locked map[outbox.Key]bool) {
	var events, bytes int64
	var again []settlement
	var resend []*item
	e.mu.Lock()
	for _, s := range batch {
		switch {
		case s.write && locked[s.item.event.Key()]:
			again = append(again, s)
		case s.keep:
		default:
			resend = append(resend, e.release(s)...)
			events += int64(countAdmitted(s.item))
			bytes += s.item.admitted
			e.byKey.settled(s.item)
		}
	}
	e.mu.Unlock()
	if events > 0 {
		e.budget.release(events, bytes)
	}
	for _, s := range batch {
		e.observe(s)
	}
	e.dispatch(resend...)
	if len(again) > 0 {
		time.AfterFunc(time.Second, func() { e.marks.push(again...) })
	}
}

func countAdmitted(it *item) int {
	if it.admitted > 0 {
		return 1
	}
	return 0
}

// release ends one item, under the mutex. It returns a follower that must now be
// sent itself, because this item was not.
func (e *Engine) release(s settlement) []*item {
	it := s.item
	it.state = settled
	if s.blocks != nil {
		s.blocks.block.unrecorded--
	}
	e.spoilKey(it, s)
	e.inflight.leave(it)
	e.countOut(it)
	if it.slot != nil && !s.abandoned {
		e.wm.finish(it.slot)
	}
	if it.wait != nil {
		it.wait.settled(s)
	}
	e.countDown()
	return e.releaseFollowers(it, s)
}

func (e *Engine) countDown() {
	if e.count--; e.count == 0 {
		close(e.idle)
		e.idle = make(chan struct{})
	}
}

// releaseFollowers gives the tail items that waited for this row its outcome: a
// row that is SENT or FAILED is settled for them too; one that went back is
// theirs to send, by the first of them.
func (e *Engine) releaseFollowers(it *item, s settlement) []*item {
	followers := it.followers
	it.followers = nil
	if len(followers) == 0 {
		return nil
	}
	if s.kind != outbox.OutcomeReleased && s.kind != outbox.OutcomeAttempt {
		for _, f := range followers {
			e.marks.push(settlement{item: f, skipped: "settled_by_other_path"})
		}
		return nil
	}
	first := followers[0]
	first.followers = followers[1:]
	first.token = "" // the claim went back with the row
	e.inflight[first.event.Key()] = first
	return []*item{first}
}

func (e *Engine) observe(s settlement) {
	table := s.item.event.Table
	switch {
	case s.skipped != "":
		e.hooks.Skipped(table, s.skipped, 1)
	case s.deferred != "":
		e.hooks.Deferred(table, s.deferred)
	case s.write && s.kind == outbox.OutcomeFailed:
		e.log.Error().Str("table", table.String()).Str("id", s.item.event.ID).Str("reason", s.reason).
			Msg("event failed for good; it is kept as a dead letter")
		e.hooks.Failed(table, s.label)
	}
	if s.write && e.cfg.Ledger != nil {
		e.hooks.Marked(s.kind, 1)
	}
}
