package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/relay"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
)

// refreezeWithin is how long the lanes of a topic may take to be drained.
const refreezeWithin = 30 * time.Second

// Refreeze says what freezing the present queues of a topic would move, and, where the
// request says yes, does it: through the running relay of this name if one answers,
// else by itself, under the leader lock or that of the checkpoint file.
func Refreeze(ctx context.Context, cfg *config.Config, ask admin.RefreezeRequest, log zerolog.Logger) (admin.Refreezing, error) {
	if _, err := askRelay(ctx, cfg); err == nil {
		return client(cfg).Refreeze(ctx, ask)
	}
	b, err := openTopics(cfg, log)
	if err != nil {
		return admin.Refreezing{}, err
	}
	done, err := b.refreeze(ctx, ask)
	return done, errors.Join(err, b.close())
}

func (b *besideRelay) refreeze(ctx context.Context, ask admin.RefreezeRequest) (admin.Refreezing, error) {
	plan, err := planRefreeze(ctx, b.sink, b.lists, ask)
	if err != nil || !plan.Changes || !ask.Yes {
		return plan, err
	}
	if b.file != nil {
		err = b.replaceInFile(ctx, plan)
	} else {
		err = b.replaceInStore(ctx, plan)
	}
	if err == nil {
		plan.Applied, plan.Version = true, plan.Version+1
	}
	return plan, err
}

func (b *besideRelay) replaceInFile(ctx context.Context, plan admin.Refreezing) error {
	if _, err := b.file.Begin(ctx, ownerName()); err != nil {
		return fmt.Errorf("no relay answers on %s, but: %w", b.cfg.HTTPAddr, err)
	}
	return errors.Join(b.file.ReplaceTopic(ctx, plan.Topic, plan.Version, plan.After), b.file.Close())
}

// replaceInStore takes the leadership over for the moment, so that a relay that runs
// without the lock steps down rather than go on by the old list.
func (b *besideRelay) replaceInStore(ctx context.Context, plan admin.Refreezing) error {
	if err := b.store.refuseReplica(ctx); err != nil {
		return err
	}
	lock, err := leadAlone(ctx, b.cfg, b.store, b.log)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // the server releases it with the connection
	if _, err := b.mysql.Begin(ctx, ownerName()); err != nil {
		return err
	}
	return b.mysql.ReplaceTopic(ctx, plan.Topic, plan.Version, plan.After)
}

// Refreeze implements admin.Relay.
func (r *Relay) Refreeze(ctx context.Context, ask admin.RefreezeRequest) (admin.Refreezing, error) {
	mq, err := r.rocketMQ()
	if err != nil {
		return admin.Refreezing{}, err
	}
	s, err := r.holdSession()
	if err != nil {
		return admin.Refreezing{}, err
	}
	defer s.changes.Done()
	plan, err := planRefreeze(ctx, mq, r.saved, ask)
	if err != nil || !plan.Changes || !ask.Yes {
		return plan, err
	}
	if used := mq.InUse(plan.Topic); used != nil && !slices.Equal(used, plan.Before) {
		return plan, fmt.Errorf("topic %s is sent to by another list than the one that is stored: somebody has changed that beside the relay; restart it first", plan.Topic)
	}
	change := relay.Change{
		Topic: plan.Topic, Lost: lostLanes(plan), Within: refreezeWithin,
		Swap: func(ctx context.Context) (bool, error) { return mq.Refreeze(ctx, plan.Topic, plan.Version, plan.After) },
	}
	if err := s.engine.Refreeze(ctx, change); err != nil {
		return plan, fmt.Errorf("refreezing topic %s: %w", plan.Topic, err)
	}
	plan.Applied, plan.Version = true, plan.Version+1
	r.log.Info().Str("topic", plan.Topic).Int("version", plan.Version).Int("queues", len(plan.After)).
		Float64("moved_share", plan.MovedShare).Msg("refrozen: keys go by the new queue list")
	return plan, nil
}

// holdSession returns the running session, which does not end before changes is done.
func (r *Relay) holdSession() (*session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		return nil, errors.New("the relay is not relaying: " + r.waiting)
	}
	r.current.changes.Add(1)
	return r.current, nil
}

// lostLanes are the lanes whose queue is not in the new list.
func lostLanes(plan admin.Refreezing) (lost []int) {
	for i, q := range plan.Before {
		if !slices.Contains(plan.After, q) {
			lost = append(lost, i)
		}
	}
	return lost
}

// planRefreeze finds out what a refreezing would do. It fails where a list must not be
// frozen now.
func planRefreeze(ctx context.Context, mq *rocketmq.Sink, lists topicLists, ask admin.RefreezeRequest) (admin.Refreezing, error) {
	frozen, err := frozenTopic(ctx, lists, ask.Topic)
	if err != nil {
		return admin.Refreezing{}, err
	}
	d, err := mq.Compare(ctx, frozen.Name, frozen.Queues)
	if err != nil {
		return admin.Refreezing{}, fmt.Errorf("the queues of topic %s: %w", frozen.Name, err)
	}
	if err := mayFreeze(frozen, d, ask.Gone); err != nil {
		return admin.Refreezing{}, err
	}
	plan := admin.Refreezing{
		Topic: frozen.Name, Version: frozen.Version, Before: frozen.Queues, After: d.Live, Drift: driftOf(d),
		Changes: !slices.Equal(frozen.Queues, d.Live), Moves: []admin.Move{}, Keys: []admin.KeyMove{},
	}
	moves(&plan)
	for _, key := range ask.Keys {
		plan.Keys = append(plan.Keys, admin.KeyMove{
			Key: key, From: plan.Before[relay.LaneOf(key, len(plan.Before))], To: plan.After[relay.LaneOf(key, len(plan.After))],
		})
	}
	return plan, nil
}

func frozenTopic(ctx context.Context, lists topicLists, name string) (checkpoint.Topic, error) {
	all, err := lists.Topics(ctx)
	if err != nil {
		return checkpoint.Topic{}, err
	}
	var names []string
	for _, t := range all {
		if t.Name == name && len(t.Queues) > 0 {
			return t, nil
		}
		names = append(names, t.Name)
	}
	known := "no list is frozen yet"
	if len(names) > 0 {
		known = "there are lists of " + strings.Join(names, ", ")
	}
	return checkpoint.Topic{}, fmt.Errorf("no queue list of topic %q is frozen; that is done when its first event is sent (%s)", name, known)
}

// mayFreeze refuses to freeze a list without a broker that may come back: its queues
// would be left out for good, and what is in them overtaken.
func mayFreeze(frozen checkpoint.Topic, d rocketmq.Drift, gone []string) error {
	for _, broker := range gone {
		if !slices.Contains(d.Away, broker) {
			return fmt.Errorf("broker %s is not away: to take it out of topic %s, take its permission to write away", broker, frozen.Name)
		}
	}
	for _, broker := range d.Away {
		if slices.Contains(gone, broker) {
			continue
		}
		n := 0
		for _, q := range frozen.Queues {
			if rocketmq.BrokerOf(q) == broker {
				n++
			}
		}
		return fmt.Errorf("broker %s, which has %d of the %d frozen queues of topic %s, is not there: start it (a list is only frozen while all brokers of a topic are there), or, if it will not come back: rowferry topics refreeze %s --gone %s",
			broker, n, len(frozen.Queues), frozen.Name, frozen.Name, broker)
	}
	if len(d.Live) == 0 {
		return fmt.Errorf("topic %s has no queue that may be written now; look at its permission and at that of its brokers", frozen.Name)
	}
	return nil
}

// movesMax is how many pairs of queues are listed.
const movesMax = 10_000

// moves fills in which keys move. A key is in queue hash mod n, so with n queues before
// and m after, the remainders by lcm(n, m) decide, and each of them stands for as many
// keys as any other.
func moves(plan *admin.Refreezing) {
	n, m := len(plan.Before), len(plan.After)
	g := gcd(n, m)
	all := n / g * m
	stay := 0
	for i, q := range plan.Before {
		if j := slices.Index(plan.After, q); j >= 0 && (i-j)%g == 0 {
			stay++ // for one remainder
		}
	}
	plan.MovesCount = all - stay
	plan.MovedShare = float64(all-stay) / float64(all)
	if plan.MovesCount > movesMax {
		return
	}
	for i, from := range plan.Before {
		for rest := i; rest < all; rest += n {
			if to := plan.After[rest%m]; to != from {
				plan.Moves = append(plan.Moves, admin.Move{From: from, To: to, Share: 1 / float64(all)})
			}
		}
	}
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
