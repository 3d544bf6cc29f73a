package checkpoint

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Topic is the frozen queue list of a topic.
type Topic struct {
	Name    string
	Queues  []string // in the order of the lanes
	Version int      // 1 when it was frozen first; each ReplaceTopic adds one
}

// ErrTopicChanged says that a queue list is not of the version that was to be
// replaced: somebody else was faster, or it was never frozen.
var ErrTopicChanged = errors.New("the frozen queue list was changed by somebody else meanwhile")

// frozen is the form of a queue list in the file.
type frozen struct {
	Queues  []string `json:"queues"`
	Version int      `json:"version"`
}

// freeze adds a list unless there is one: the first writer wins.
func freeze(topics map[string]frozen, topic string, queues []string) (added bool) {
	if _, ok := topics[topic]; ok {
		return false
	}
	topics[topic] = frozen{slices.Clone(queues), 1}
	return true
}

// replace changes a list of the given version.
func replace(topics map[string]frozen, topic string, version int, queues []string) error {
	if old, ok := topics[topic]; !ok || old.Version != version {
		return replaceError(topic, ErrTopicChanged)
	}
	topics[topic] = frozen{slices.Clone(queues), version + 1}
	return nil
}

func replaceError(topic string, err error) error {
	return fmt.Errorf("replacing the queue list of topic %s: %w", topic, err)
}

// list returns all lists, sorted by the names of the topics.
func list(topics map[string]frozen) []Topic {
	var all []Topic
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		all = append(all, Topic{name, slices.Clone(topics[name].Queues), topics[name].Version})
	}
	return all
}

// LoadTopic returns the frozen queue list of a topic, nil if there is none.
func (s *MySQL) LoadTopic(ctx context.Context, topic string) ([]string, error) {
	var text []byte
	err := s.db.QueryRowContext(ctx, "SELECT queues FROM "+s.topic+" WHERE name = ? AND topic = ?", s.name, topic).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	var queues []string
	if err == nil {
		err = json.Unmarshal(text, &queues)
	}
	if err != nil {
		return nil, fmt.Errorf("loading the queue list of topic %s: %w", topic, explain(err))
	}
	return queues, nil
}

// SaveTopic freezes the queue list of a topic. The first writer wins: a list
// that is there already stays, so read it back.
func (s *MySQL) SaveTopic(ctx context.Context, topic string, queues []string) error {
	text, err := json.Marshal(queues)
	if err == nil {
		_, err = s.db.ExecContext(ctx, "INSERT INTO "+s.topic+" (name, topic, queues, version) VALUES (?, ?, ?, 1)", s.name, topic, string(text))
	}
	if err != nil && !isNumber(err, errDuplicate) {
		return fmt.Errorf("saving the queue list of topic %s: %w", topic, explain(err))
	}
	return nil
}

// Topics returns all frozen queue lists of this name, sorted by topic.
func (s *MySQL) Topics(ctx context.Context) ([]Topic, error) {
	all, err := s.topics(ctx)
	if err != nil {
		return nil, fmt.Errorf("loading the queue lists of %q: %w", s.name, explain(err))
	}
	return all, nil
}

func (s *MySQL) topics(ctx context.Context) (all []Topic, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT topic, queues, version FROM "+s.topic+" WHERE name = ? ORDER BY topic", s.name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var t Topic
		var text []byte
		if err := rows.Scan(&t.Name, &text, &t.Version); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &t.Queues); err != nil {
			return nil, fmt.Errorf("topic %s: %w", t.Name, err)
		}
		all = append(all, t)
	}
	return all, rows.Err()
}

// ReplaceTopic replaces the frozen queue list of a topic, if it still has the given
// version; the new one is one higher. ErrTopicChanged: it has another one.
// outbox.ErrFenced: another relay leads now, or none was begun here. After another
// error the list may be replaced or not.
//
// What must hold: only the newest leader replaces a list, and nobody becomes leader
// while it does. Otherwise another relay sends by the old list what must wait for
// lanes that it does not know. The first is shown by TestStores/replaced_by_the_leader_only;
// for the second the leader's row is locked until the commit.
func (s *MySQL) ReplaceTopic(ctx context.Context, topic string, version int, queues []string) error {
	t := s.current()
	if err := t.check("replacing the queue list of topic " + topic); err != nil {
		return err
	}
	text, err := json.Marshal(queues)
	if err != nil {
		return replaceError(topic, err)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return replaceError(topic, explain(err))
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to roll back
	var leads bool
	err = tx.QueryRowContext(ctx, "SELECT epoch = ? AND owner = ? FROM "+s.checkpoint+" WHERE name = ? FOR UPDATE", t.epoch, t.owner, s.name).Scan(&leads)
	if err == nil && !leads || errors.Is(err, sql.ErrNoRows) {
		err = outbox.ErrFenced
	}
	if err == nil {
		err = s.replaceIn(ctx, tx, topic, version, string(text))
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return replaceError(topic, explain(err))
	}
	return nil
}

func (s *MySQL) replaceIn(ctx context.Context, tx *sql.Tx, topic string, version int, text string) error {
	r, err := tx.ExecContext(ctx, "UPDATE "+s.topic+" SET queues = ?, version = version + 1 WHERE name = ? AND topic = ? AND version = ?",
		text, s.name, topic, version)
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err == nil && n == 0 {
		err = ErrTopicChanged
	}
	return err
}

// LoadTopic returns the frozen queue list of a topic, nil if there is none.
func (f *File) LoadTopic(_ context.Context, topic string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	topics, err := f.readTopics()
	return topics[topic].Queues, err
}

// SaveTopic freezes the queue list of a topic. The first writer wins.
func (f *File) SaveTopic(_ context.Context, topic string, queues []string) error {
	return f.locked(func() error {
		topics, err := f.readTopics()
		if err != nil || !freeze(topics, topic, queues) {
			return err
		}
		return replaceFile(f.path+".topics", topics)
	})
}

// Topics returns all frozen queue lists, sorted by topic.
func (f *File) Topics(context.Context) ([]Topic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	topics, err := f.readTopics()
	return list(topics), err
}

// ReplaceTopic replaces the frozen queue list of a topic, if it still has the given
// version; the new one is one higher. ErrTopicChanged: it has another one.
// outbox.ErrFenced: this store does not hold the lock.
func (f *File) ReplaceTopic(_ context.Context, topic string, version int, queues []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.term.check("replacing the queue list of topic " + topic); err != nil {
		return err
	}
	topics, err := f.readTopics()
	if err != nil {
		return err
	}
	if err := replace(topics, topic, version, queues); err != nil {
		return err
	}
	return replaceFile(f.path+".topics", topics)
}

func (f *File) readTopics() (map[string]frozen, error) {
	topics := map[string]frozen{}
	_, err := readJSON(f.path+".topics", &topics)
	return topics, err
}

// LoadTopic returns the frozen queue list of a topic, nil if there is none.
func (m *Memory) LoadTopic(_ context.Context, topic string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.topics[topic].Queues), nil
}

// SaveTopic freezes the queue list of a topic. The first writer wins.
func (m *Memory) SaveTopic(_ context.Context, topic string, queues []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	freeze(m.topics, topic, queues)
	return nil
}

// Topics returns all frozen queue lists, sorted by topic.
func (m *Memory) Topics(context.Context) ([]Topic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return list(m.topics), nil
}

// ReplaceTopic replaces the frozen queue list of a topic, if it still has the given
// version; the new one is one higher. ErrTopicChanged: it has another one.
// outbox.ErrFenced: Begin was not called.
func (m *Memory) ReplaceTopic(_ context.Context, topic string, version int, queues []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.term.check("replacing the queue list of topic " + topic); err != nil {
		return err
	}
	return replace(m.topics, topic, version, queues)
}
