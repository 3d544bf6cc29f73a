package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
)

// topicLists is where frozen queue lists are looked at.
type topicLists interface {
	Topics(ctx context.Context) ([]checkpoint.Topic, error)
}

var errNoQueues = errors.New("ROWFERRY_SINK is not rocketmq: there are no queues to freeze")

// Topics compares the frozen queue lists with what the brokers have: through the
// running relay of this name if one answers, else by itself.
func Topics(ctx context.Context, cfg *config.Config, log zerolog.Logger) (admin.Topics, error) {
	if _, err := askRelay(ctx, cfg); err == nil {
		return client(cfg).Topics(ctx)
	}
	b, err := openTopics(cfg, log)
	if err != nil {
		return admin.Topics{}, err
	}
	topics, err := compareTopics(ctx, b.sink, b.lists)
	return topics, errors.Join(err, b.close())
}

// Topics implements admin.Relay.
func (r *Relay) Topics(ctx context.Context) (admin.Topics, error) {
	mq, err := r.rocketMQ()
	if err != nil {
		return admin.Topics{}, err
	}
	return compareTopics(ctx, mq, r.saved)
}

// rocketMQ returns the sink, once the relay is prepared.
func (r *Relay) rocketMQ() (*rocketmq.Sink, error) {
	r.mu.Lock()
	sink, waiting := r.sink, r.waiting
	r.mu.Unlock()
	if sink == nil {
		return nil, errors.New("the relay is not ready for that: " + waiting)
	}
	mq, ok := sink.(*rocketmq.Sink)
	if !ok {
		return nil, errNoQueues
	}
	return mq, nil
}

// besideRelay is what the commands need when no relay answers.
type besideRelay struct {
	cfg   *config.Config
	log   zerolog.Logger
	store *Store
	mysql *checkpoint.MySQL // one of the two
	file  *checkpoint.File
	lists topicLists // that one
	sink  *rocketmq.Sink
}

func openTopics(cfg *config.Config, log zerolog.Logger) (*besideRelay, error) {
	b := &besideRelay{cfg: cfg, log: log}
	if cfg.Sink != config.SinkRocketMQ {
		return nil, usage(errNoQueues)
	}
	sink, err := NewSink(cfg, nil, log)
	if err != nil {
		return nil, usage(err)
	}
	b.sink = sink.(*rocketmq.Sink) //nolint:errcheck // that is the sink of this configuration
	switch cfg.CheckpointStore.Kind {
	case config.StoreMemory:
		err = errors.New("ROWFERRY_CHECKPOINT_STORE=memory keeps queue lists in the running relay only, and none answers")
	case config.StoreFile:
		b.file = checkpoint.NewFile(cfg.CheckpointStore.Path, cfg.Name)
		b.lists = b.file
	default:
		if b.store, err = OpenStore(cfg); err != nil {
			err = usage(err)
			break
		}
		b.mysql = checkpoint.NewMySQL(b.store.DB, b.store.Schema, cfg.Name)
		b.lists = b.mysql
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *besideRelay) close() error {
	err := b.sink.Close()
	if b.store != nil && b.store.DB != nil {
		err = errors.Join(err, b.store.Close())
	}
	return err
}

// compareTopics asks for each topic what its queues are now.
func compareTopics(ctx context.Context, mq *rocketmq.Sink, lists topicLists) (admin.Topics, error) {
	frozen, err := lists.Topics(ctx)
	if err != nil {
		return admin.Topics{}, err
	}
	all := admin.Topics{Topics: []admin.Topic{}}
	for _, f := range frozen {
		asking, cancel := context.WithTimeout(ctx, retryEvery)
		d, err := mq.Compare(asking, f.Name, f.Queues)
		cancel()
		t := admin.Topic{Topic: f.Name, Version: f.Version, Queues: f.Queues, State: topicState(d, err), Drift: driftOf(d)}
		if err != nil {
			t.Error = err.Error()
		}
		all.Topics = append(all.Topics, t)
	}
	return all, ctx.Err()
}

func topicState(d rocketmq.Drift, err error) string {
	switch {
	case outbox.ReasonOf(err) == "topic_missing":
		return admin.TopicMissing
	case err != nil:
		return admin.TopicUnknown
	case len(d.Away) > 0:
		return admin.TopicAway
	case len(d.Live) == 0:
		return admin.TopicReadOnly
	case len(d.Added)+len(d.Gone)+len(d.ReadOnly) > 0:
		return admin.TopicChanged
	}
	return admin.TopicSame
}

// driftOf has lists where there is nothing, too.
func driftOf(d rocketmq.Drift) admin.Drift {
	some := func(s []string) []string { return append([]string{}, s...) }
	return admin.Drift{Added: some(d.Added), Gone: some(d.Gone), ReadOnly: some(d.ReadOnly), Away: some(d.Away)}
}

// PrintTopics writes the frozen lists as a table.
func PrintTopics(w io.Writer, all admin.Topics) error {
	if len(all.Topics) == 0 {
		_, err := fmt.Fprintln(w, "no queue list is frozen yet; that is done when the first event of a topic is sent")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "TOPIC\tVERSION\tQUEUES\tFROZEN\tTHE BROKERS SAY") //nolint:errcheck // Flush says it
	for _, topic := range all.Topics {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", topic.Topic, topic.Version, len(topic.Queues), queueRanges(topic.Queues), driftText(topic)) //nolint:errcheck // as above
	}
	return t.Flush()
}

// driftText is what the brokers say of a topic, in words.
func driftText(t admin.Topic) string {
	switch t.State {
	case admin.TopicSame:
		return "the same"
	case admin.TopicMissing:
		return "there is no such topic"
	case admin.TopicUnknown:
		return "unknown: " + t.Error
	}
	return strings.Join(driftParts(t.Drift), "; ")
}

func driftParts(d admin.Drift) []string {
	var parts []string
	for _, p := range []struct {
		what   string
		queues []string
	}{{"added", d.Added}, {"gone", d.Gone}, {"read-only", d.ReadOnly}} {
		if len(p.queues) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (%s)", len(p.queues), p.what, queueRanges(p.queues)))
		}
	}
	if len(d.Away) > 0 {
		parts = append(parts, "brokers that are not there: "+strings.Join(d.Away, ", "))
	}
	return parts
}

// queueRanges writes neighbouring queues of a broker as one: a:0-7 b:3.
func queueRanges(queues []string) string {
	var text []string
	for i := 0; i < len(queues); {
		n := 1
		for i+n < len(queues) && follows(queues[i], queues[i+n], n) {
			n++
		}
		part := queues[i]
		if n > 1 {
			last := queues[i+n-1]
			part += "-" + last[strings.LastIndexByte(last, ':')+1:]
		}
		text = append(text, part)
		i += n
	}
	return strings.Join(text, " ")
}

// follows reports whether b is n queues behind a on the same broker.
func follows(a, b string, n int) bool {
	i := strings.LastIndexByte(a, ':')
	first, err := strconv.Atoi(a[i+1:])
	return err == nil && b == fmt.Sprintf("%s:%d", a[:i], first+n)
}

// frozenVersion is that of the list before.
func frozenVersion(p admin.Refreezing) int {
	if p.Applied {
		return p.Version - 1
	}
	return p.Version
}

// PrintRefreezing writes what a refreezing does or would do.
func PrintRefreezing(w io.Writer, p admin.Refreezing) error {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("topic %s: the frozen list, version %d, has %d: %s", p.Topic, frozenVersion(p), len(p.Before), queueRanges(p.Before))
	if !p.Changes {
		say("the brokers have the same; there is nothing to do")
		_, err := io.WriteString(w, b.String())
		return err
	}
	say("the brokers have %d: %s", len(p.After), strings.Join(driftParts(p.Drift), "; "))
	would := "would change"
	if p.Applied {
		would = "have changed"
	}
	say("%.1f%% of all keys %s their queue:", 100*p.MovedShare, would)
	const linesMax = 20
	for i, m := range p.Moves {
		if i == linesMax && len(p.Moves) > linesMax+1 {
			say("  ... and %d more (--json has them all)", len(p.Moves)-i)
			break
		}
		say("  %s -> %s  %.2f%%", m.From, m.To, 100*m.Share)
	}
	if p.MovesCount > len(p.Moves) {
		say("  %d pairs of queues, too many to be listed", p.MovesCount)
	}
	for _, k := range p.Keys {
		if k.From == k.To {
			say("key %q stays in %s", k.Key, k.From)
		} else {
			say("key %q: %s -> %s", k.Key, k.From, k.To)
		}
	}
	if p.Applied {
		say("done: version %d holds", p.Version)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
