package binlog

import (
	"errors"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// errReadAgain ends a connection on purpose: a transaction that was too large to be
// held has committed, and is read again from its start.
var errReadAgain = errors.New("a large transaction is read a second time")

// outgrow stops holding the transaction's rows. Its end is waited for all the same:
// nothing of it may go out before it is known to have committed.
func (s *stream) outgrow() {
	s.tx.outgrown = true
	s.tx.dropRows()
}

// readAgain notes the transaction that has just committed without having been held.
// The connection ends here, and the next one begins with it: what was emitted last
// came before it.
func (s *stream) readAgain(h header) error {
	s.r.giant = &giant{server: s.server, gtid: s.tx.gtid, file: s.file, place: s.tx.place, changes: s.tx.changes, committed: s.committed(h)}
	return errReadAgain
}

// recogniseGiant tells the second reading of a transaction from the first of any
// other. It is the first one that a connection brings, but for some that were emitted
// already; or the source has become another, and the memory of it is of no use.
func (s *stream) recogniseGiant() {
	g := s.r.giant
	if g == nil {
		return
	}
	switch {
	case g.is(s.server, s.tx.gtid, s.file, s.tx.place):
		s.tx.second = g
	case g.follows(s.server, s.tx.gtid, s.file, s.tx.place):
		s.tx.emitted = true
	default:
		s.r.giant = nil
	}
}

// lastForms is where the last form of the transaction's rows is found.
func (s *stream) lastForms() *changes {
	if s.tx.second != nil {
		return &s.tx.second.changes
	}
	return &s.tx.changes
}

// pieceBytesMax bounds a piece of a large transaction.
func (s *stream) pieceBytesMax() int64 {
	const piecesMin = 8 // so that the engine's budget, of the same order, is used evenly
	return s.r.cfg.HoldBytesMax / piecesMin
}

// emitPiece emits the rows gathered on the second reading, once they are enough. The
// transaction has committed, so it need not be waited for; but the position stands
// with its last piece only.
func (s *stream) emitPiece() error {
	if len(s.tx.rows) < s.r.cfg.BatchEvents && s.tx.bytes <= s.pieceBytesMax() {
		return nil
	}
	events, skipped := s.tx.take(s.lastForms())
	s.tx.skipped += skipped
	if len(events) == 0 {
		return nil
	}
	return s.send(outbox.Batch{Events: events, Origin: outbox.FromBinlog, CommittedAt: s.tx.second.committed})
}
