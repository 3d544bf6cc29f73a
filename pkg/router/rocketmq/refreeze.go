package rocketmq

import (
	"context"
	"errors"
	"slices"
)

// Drift is how the queues that a topic has now differ from its frozen list.
type Drift struct {
	Live     []string // would be frozen now, in the order of the lanes: may be written, and their broker is there
	Added    []string // those of Live that are not frozen
	Gone     []string // frozen, but not among the queues of their broker any more
	ReadOnly []string // frozen, and may not be written now
	Away     []string // brokers of the topic that are not there, or not as a master
}

// Compare holds a frozen list against what the name servers say now. Errors are those
// of [Sink.Lanes]; topic_missing only if all brokers of the list are there, without
// the topic.
func (s *Sink) Compare(ctx context.Context, name string, frozen []string) (Drift, error) {
	r, err := s.directory.route(ctx, name)
	missing := errors.Is(err, errTopicMissing)
	if err != nil && !missing {
		return Drift{}, err
	}
	if missing {
		r = &route{}
	}
	masters, askErr := s.directory.masters(ctx)
	if askErr != nil {
		return Drift{}, askErr
	}
	d := r.compare(frozen, masters)
	if missing && len(d.Away) == 0 {
		return Drift{}, err
	}
	return d, nil
}

// compare is Compare for a route and the masters that are registered.
func (r *route) compare(frozen []string, masters map[string]string) Drift {
	var d Drift
	for _, q := range r.writable() {
		if r.master(q.Broker) == "" {
			d.away(q.Broker)
			continue
		}
		d.Live = append(d.Live, q.names()...)
	}
	for _, q := range d.Live {
		if !slices.Contains(frozen, q) {
			d.Added = append(d.Added, q)
		}
	}
	for _, name := range frozen {
		broker, id, ok := splitQueue(name)
		i := slices.IndexFunc(r.Queues, func(q routeQueues) bool { return q.Broker == broker })
		switch {
		case ok && i < 0 && masters[broker] == "":
			d.away(broker)
		case !ok || i < 0 || id >= r.Queues[i].Write:
			d.Gone = append(d.Gone, name)
		case !r.Queues[i].writable():
			d.ReadOnly = append(d.ReadOnly, name)
		}
	}
	return d
}

func (d *Drift) away(broker string) {
	if !slices.Contains(d.Away, broker) {
		d.Away = append(d.Away, broker)
	}
}

// BrokerOf returns the broker of a queue of a frozen list; empty: it is not of the form
// broker:number.
func BrokerOf(queue string) string {
	broker, _, _ := splitQueue(queue)
	return broker
}

// Refreeze replaces the frozen list of a topic, of this version, and has the next Lanes
// count the new one. No Send to the topic may run. changed is false if the old list
// surely still holds, and the lanes with it.
func (s *Sink) Refreeze(ctx context.Context, name string, version int, queues []string) (changed bool, err error) {
	s.resolving.Lock() // or a Lanes that has read the old list would keep it
	defer s.resolving.Unlock()
	if err = s.config.Topics.ReplaceTopic(ctx, name, version, queues); err != nil {
		stored, loadErr := s.config.Topics.LoadTopic(ctx, name)
		switch used := s.InUse(name); {
		case loadErr != nil:
		case used != nil && slices.Equal(stored, used):
			return false, err
		case slices.Equal(stored, queues): // it was done, and the answer was lost
			err = nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.topics, name)
	return true, err
}

// InUse returns the list by which a topic is sent to, nil if that was not asked for yet.
func (s *Sink) InUse(name string) []string {
	if t := s.known(name); t != nil {
		return slices.Clone(t.queues)
	}
	return nil
}

// Forget has the frozen lists of all topics read again, because they may have been
// changed. No Send may run.
func (s *Sink) Forget() {
	s.resolving.Lock()
	defer s.resolving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.topics)
}

// LiveQueues returns the list that would be frozen now, whatever is frozen.
func (s *Sink) LiveQueues(ctx context.Context, name string) ([]string, error) {
	r, err := s.directory.route(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.writableQueues(name)
}
