package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// sinkTasks are the checks of the broker.
func (e *exam) sinkTasks() []task {
	if e.cfg.Sink != config.SinkRocketMQ {
		return []task{{checkNameServers, nil, func(context.Context) Check { return skipped("ROWFERRY_SINK=" + e.cfg.Sink) }}}
	}
	tasks := []task{{checkNameServers, nil, e.checkNameServers}}
	fixed, unknown := fixedTopics(e.cfg, e.app.Layouts)
	for _, topic := range fixed {
		tasks = append(tasks, task{"topic " + topic, []string{checkNameServers}, func(ctx context.Context) Check { return e.checkTopic(ctx, topic) }})
	}
	if unknown != "" {
		tasks = append(tasks, task{"topics", nil, func(context.Context) Check { return skipped(unknown) }})
	}
	return tasks
}

// fixedTopics are those that the configuration alone names; unknown says what
// the others depend on, empty if there are no others.
func fixedTopics(cfg *config.Config, layouts []*outbox.Layout) (fixed []string, unknown string) {
	add := func(topic string) {
		if !slices.Contains(fixed, topic) {
			fixed = append(fixed, topic)
		}
	}
	everything := false
	for _, r := range cfg.RouteRules {
		pattern, target, _ := strings.Cut(r, "=")
		topic, _, _ := strings.Cut(strings.TrimSpace(target), ":")
		if topic != "-" && !everything {
			add(topic)
		}
		everything = everything || strings.Trim(strings.TrimSpace(pattern), "*") == ""
	}
	switch {
	case everything:
		return fixed, ""
	case cfg.RouteTopic != "" && !strings.Contains(cfg.RouteTopic, "{"):
		add(cfg.RouteTopic)
		return fixed, ""
	case cfg.RouteTopic != "":
		return fixed, "ROWFERRY_ROUTE_TOPIC=" + cfg.RouteTopic + ": other topics are known only from the events"
	}
	var by []string
	for _, l := range layouts {
		if c, has := topicColumn(l); has {
			by = append(by, l.Table.String()+"."+c.Name)
		} else {
			add("outbox") // what the router falls back to
		}
	}
	if len(by) > 0 {
		unknown = "named by " + strings.Join(by, ", ") + ": known only from the events"
	}
	return fixed, unknown
}

func topicColumn(l *outbox.Layout) (outbox.Column, bool) {
	if c, has := l.Column(outbox.RoleTopic); has {
		return c, true
	}
	return l.Column(outbox.RoleAggregateType)
}

// checkNameServers asks each, because the sink is content with one.
func (e *exam) checkNameServers(ctx context.Context) Check {
	servers := e.cfg.RocketMQNameServers
	errs := make([]error, len(servers))
	var asked sync.WaitGroup
	for i, addr := range servers {
		asked.Go(func() { errs[i] = e.pingNameServer(ctx, addr) })
	}
	asked.Wait()
	var bad []string
	for i, err := range errs {
		if err != nil {
			bad = append(bad, servers[i]+": "+reason(err))
		}
	}
	found := fmt.Sprintf("%d of %d answer", len(servers)-len(bad), len(servers))
	const fix = "start it, or correct ROWFERRY_ROCKETMQ_NAMESRV; look at firewalls in between and at ROWFERRY_ROCKETMQ_TLS"
	switch {
	case len(bad) == 0:
		return ok(found)
	case len(bad) < len(servers):
		return warn(found+"; "+strings.Join(bad, "; "), "all", fix)
	}
	return fail(strings.Join(bad, "; "), "a name server that answers", fix)
}

func (e *exam) pingNameServer(ctx context.Context, addr string) error {
	one := *e.cfg
	one.RocketMQNameServers = config.Addresses{addr}
	sink, err := app.NewSink(&one, nil, e.log)
	if err != nil {
		return err
	}
	return errors.Join(sink.Ping(ctx), sink.Close())
}

// reason is the cause of a failed send, without the hint.
func reason(err error) string {
	var se *outbox.SendError
	if errors.As(err, &se) && se.Err != nil {
		return clean(se.Err)
	}
	return clean(err)
}

// queueLister is the part of a sink that tells a topic's queues and freezes
// nothing.
type queueLister interface {
	LiveQueues(ctx context.Context, topic string) ([]string, error)
}

// checkTopic looks at the topic's queues now and at those that were frozen: keys
// went to these so far.
func (e *exam) checkTopic(ctx context.Context, topic string) Check {
	sink, err := app.NewSink(e.cfg, nil, e.log)
	if err != nil {
		return noAnswer("the topic", err)
	}
	defer sink.Close() //nolint:errcheck // nothing was sent
	live, err := sink.(queueLister).LiveQueues(ctx, topic)
	if err != nil {
		return e.explainTopic(topic, err)
	}
	found := fmt.Sprintf("%d queues", len(live))
	frozen, err := e.frozen(ctx, topic)
	if err != nil {
		return warn(found+"; "+clean(err), "the frozen queue list", "see the check of table rowferry_topic")
	}
	for _, q := range frozen {
		if !slices.Contains(live, q) {
			return fail(fmt.Sprintf("%s; queue %s, where keys were sent so far, is not among them", found, q), "every frozen queue",
				"start its broker, or if it is gone for good: rowferry topics refreeze "+topic)
		}
	}
	if len(frozen) > 0 && len(frozen) < len(live) {
		return ok(fmt.Sprintf("%s, %d of them frozen and in use", found, len(frozen)))
	}
	return ok(found)
}

func (e *exam) explainTopic(topic string, err error) Check {
	const wanted = "a topic that can be written"
	var se *outbox.SendError
	if !errors.As(err, &se) {
		return noAnswer("the topic's route", err)
	}
	fix := se.Hint
	if se.Reason == "topic_missing" {
		if e.cfg.RocketMQCreate {
			return ok("missing; `run` creates it (ROWFERRY_ROCKETMQ_CREATE_TOPICS)")
		}
		fix = fmt.Sprintf("mqadmin updateTopic -n %s -c CLUSTER -t %s -r 8 -w 8", e.cfg.RocketMQNameServers[0], topic)
	}
	if fix == "" {
		fix = "look at the broker's log"
	}
	return fail(reason(err), wanted, fix)
}

// frozen reads the stored queue list of a topic; nil where there is none, or no
// place for one.
func (e *exam) frozen(ctx context.Context, topic string) ([]string, error) {
	switch e.cfg.CheckpointStore.Kind {
	case config.StoreMySQL:
		if c, made := e.report.find("table rowferry_topic"); !made || c.Status != OK {
			return nil, nil // has its own check
		}
		return checkpoint.NewMySQL(e.app.DB, e.app.Schema, e.cfg.Name).LoadTopic(ctx, topic)
	case config.StoreFile:
		return checkpoint.NewFile(e.cfg.CheckpointStore.Path, e.cfg.Name).LoadTopic(ctx, topic)
	}
	return nil, nil
}
