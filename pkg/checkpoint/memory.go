package checkpoint

import (
	"context"
	"sync"
	"time"
)

// Memory forgets everything at the end of the process. It may be used by several
// goroutines at once.
type Memory struct {
	mu     sync.Mutex
	saved  Checkpoint
	found  bool
	term   term
	topics map[string]frozen
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{topics: map[string]frozen{}} }

// Begin takes the leadership for owner and returns what is saved.
func (m *Memory) Begin(_ context.Context, owner string) (Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved.Epoch++
	m.saved.Owner = owner
	m.found = true
	m.term = term{m.saved.Epoch, owner}
	return m.saved, nil
}

// Load returns what is saved, and whether there is anything.
func (m *Memory) Load(context.Context) (Checkpoint, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved, m.found, nil
}

// Save saves a position. outbox.ErrFenced: Begin was not called.
func (m *Memory) Save(_ context.Context, position string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.term.check("saving the position"); err != nil {
		return err
	}
	m.saved.Position = position
	m.saved.UpdatedAt = time.Now().UTC()
	return nil
}

// WriteFence returns ErrNoFence.
func (m *Memory) WriteFence(context.Context, uint64) error { return ErrNoFence }

// SetPaused turns the pause switch.
func (m *Memory) SetPaused(_ context.Context, paused bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved.Paused = paused
	m.found = true
	return nil
}
