// Package checkpoint keeps how far the relay has come: a position, the epoch of
// whoever leads, the fence, the pause switch and the frozen queue lists of
// topics, in a MySQL table, in a file or in memory.
//
// It promises that a position is saved whole or not at all, and only by the
// newest leader: Begin takes the leadership by raising the epoch, and from then
// on whatever an older leader saves is refused with outbox.ErrFenced. The
// position is opaque text of any length; only the source that made it reads it.
package checkpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Checkpoint is what is saved under one name.
type Checkpoint struct {
	Position  string    // empty: none was ever saved
	Epoch     int64     // how often the leadership was taken; grows only
	Owner     string    // who took it last
	Fence     uint64    // newest fence written; 0 where the store has none
	Paused    bool      // the relay must not publish, whoever leads
	UpdatedAt time.Time // UTC, when Position was saved, by the store's clock; zero: never
}

var (
	// ErrNoTables says that the tables of rowferry are missing in the store.
	ErrNoTables = errors.New("the tables of rowferry are missing: run `rowferry migrate up`, or have the SQL of `rowferry migrate print` executed")

	// ErrNoFence is returned by stores whose writes are not in the binlog.
	ErrNoFence = errors.New("this checkpoint store has no fence, only mysql has")

	// ErrInUse says that another process holds the checkpoint file.
	ErrInUse = errors.New("another process uses this checkpoint file")
)

// term is the leadership that a store has taken; the zero term is none.
type term struct {
	epoch int64
	owner string
}

// check refuses what only a leader may do. An unbegun store must not reach the
// row: one that `pause` made has epoch 0 and no owner, and would match
// (TestStores/save_before_begin).
func (t term) check(what string) error {
	if t.epoch == 0 {
		return fmt.Errorf("%s: no leadership was taken: %w", what, outbox.ErrFenced)
	}
	return nil
}
