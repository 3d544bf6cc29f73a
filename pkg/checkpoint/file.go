package checkpoint

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// File keeps the checkpoint in a JSON file and beside it the queue lists, in
// PATH.topics, and dead letters, in PATH.dead. Files are forced to disk, and the
// first two replaced as a whole, so that a crash leaves the old one or the new one.
// From Begin to Close it holds a lock on PATH.lock, which ends with the process
// too. It may be used by several goroutines at once.
type File struct {
	path string
	name string

	mu   sync.Mutex
	lock *os.File // held since Begin; nil: not
	term term
}

// stored is the form of the file.
type stored struct {
	Name      string    `json:"name"`
	Epoch     int64     `json:"epoch"`
	Owner     string    `json:"owner"`
	Position  string    `json:"position"`
	Paused    bool      `json:"paused"`
	UpdatedAt time.Time `json:"updated_at"`
}

// NewFile returns the store for one name. It does not touch the disk; the folder
// must exist.
func NewFile(path, name string) *File { return &File{path: path, name: name} }

// Begin takes the leadership for owner and returns what is saved. ErrInUse:
// another process has begun and not ended.
func (f *File) Begin(_ context.Context, owner string) (Checkpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held := f.lock != nil
	if !held {
		var err error
		if f.lock, err = lockFile(f.path + ".lock"); err != nil {
			return Checkpoint{}, fmt.Errorf("locking the checkpoint file: %w", err)
		}
	}
	c, err := f.change(func(s *stored) { s.Epoch++; s.Owner = owner })
	if err != nil {
		if !held {
			err = errors.Join(err, f.unlock())
		}
		return Checkpoint{}, err
	}
	f.term = term{c.Epoch, owner}
	return c, nil
}

// Close ends the leadership and lets other processes have the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.term = term{}
	return f.unlock()
}

func (f *File) unlock() error {
	if f.lock == nil {
		return nil
	}
	err := f.lock.Close()
	f.lock = nil
	return err
}

// Load returns what is saved, and whether there is anything.
func (f *File) Load(context.Context) (Checkpoint, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, found, err := f.read()
	return s.checkpoint(), found, err
}

// Save saves a position. outbox.ErrFenced: this store does not hold the lock.
func (f *File) Save(_ context.Context, position string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.term.check("saving the position in " + f.path); err != nil {
		return err
	}
	_, err := f.change(func(s *stored) { s.Position, s.UpdatedAt = position, time.Now().UTC() })
	return err
}

// WriteFence returns ErrNoFence.
func (f *File) WriteFence(context.Context, uint64) error { return ErrNoFence }

// SetPaused turns the pause switch. ErrInUse: a relay runs with this file; ask it.
func (f *File) SetPaused(_ context.Context, paused bool) error {
	return f.locked(func() error {
		_, err := f.change(func(s *stored) { s.Paused = paused })
		return err
	})
}

// deadLetter is a line of PATH.dead.
type deadLetter struct {
	Table    string    `json:"table"`
	ID       string    `json:"id"`
	OrderKey string    `json:"order_key"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
}

// Record adds the dead letters among the outcomes to PATH.dead, one JSON object a
// line, and forces them to disk; other outcomes leave no trace. It is for a relay
// that keeps no ledger. One that is recorded again, after an error or a restart,
// has two lines. There is no transaction, so also must be nil.
func (f *File) Record(_ context.Context, outcomes []outbox.Outcome, also func(context.Context, *sql.Tx) error) ([]outbox.Outcome, error) {
	if also != nil {
		return nil, errors.New("a checkpoint file has no transaction to share")
	}
	var lines bytes.Buffer
	for _, o := range outcomes {
		if o.Kind != outbox.OutcomeFailed {
			continue
		}
		line, err := json.Marshal(deadLetter{o.Key.Table.String(), o.Key.ID, o.OrderKey, o.Reason, time.Now().UTC()})
		if err != nil {
			return nil, fmt.Errorf("writing a dead letter: %w", err)
		}
		lines.Write(append(line, '\n'))
	}
	if lines.Len() == 0 {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.term.check("writing dead letters to " + f.path + ".dead"); err != nil {
		return nil, err
	}
	if err := appendSynced(f.path+".dead", lines.Bytes()); err != nil {
		return nil, fmt.Errorf("writing dead letters: %w", err)
	}
	return nil, nil
}

// locked runs do under the lock on the file, taking it for the moment if this
// store has not begun.
func (f *File) locked(do func() error) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lock == nil {
		lock, err := lockFile(f.path + ".lock")
		if err != nil {
			return fmt.Errorf("locking the checkpoint file: %w", err)
		}
		defer lock.Close() //nolint:errcheck // nothing was written to it
	}
	return do()
}

func (f *File) change(edit func(*stored)) (Checkpoint, error) {
	s, _, err := f.read()
	if err != nil {
		return Checkpoint{}, err
	}
	edit(&s)
	if err := replaceFile(f.path, s); err != nil {
		return Checkpoint{}, err
	}
	return s.checkpoint(), nil
}

func (f *File) read() (s stored, found bool, err error) {
	found, err = readJSON(f.path, &s)
	if err == nil && found && s.Name != f.name {
		err = fmt.Errorf("checkpoint file %s belongs to %q, not to %q", f.path, s.Name, f.name)
	}
	s.Name = f.name
	return s, found, err
}

func (s stored) checkpoint() Checkpoint {
	return Checkpoint{Position: s.Position, Epoch: s.Epoch, Owner: s.Owner, Paused: s.Paused, UpdatedAt: s.UpdatedAt}
}

// readJSON reads a file into v; found is false if there is none.
func readJSON(path string, v any) (found bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", path, err)
	}
	return true, nil
}

// replaceFile writes v to path so that a crash leaves the old file or the new
// one: the data must be on disk before the name is, and the name before we go on.
func replaceFile(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := writeSynced(path+".new", append(text, '\n')); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return syncFolder(filepath.Dir(path))
}

func writeSynced(path string, text []byte) error { return write(path, text, os.O_TRUNC) }

// appendSynced adds to a file. The folder is synced too, for the file may be new.
func appendSynced(path string, text []byte) error {
	if err := write(path, text, os.O_APPEND); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func write(path string, text []byte, how int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|how, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("syncing folder %s: %w", path, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing folder %s: %w", path, err)
	}
	return nil
}
