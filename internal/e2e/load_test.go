package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// load is an application that commits rows until it is stopped. Each writer has
// keys of its own and numbers the rows of its keys in the order of its commits.
type load struct {
	s         *stage
	payload   int // bytes of filling in each row
	committed atomic.Int64
	stopping  context.CancelFunc
	done      sync.WaitGroup
}

// startLoad begins to commit about perSecond rows a second, in single-row
// transactions, every tenth of them with two rows. It goes on through failures of
// the database.
func (s *stage) startLoad(perSecond, payloadBytes int) *load {
	const writers = 2
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{s: s, payload: payloadBytes, stopping: cancel}
	for w := range writers {
		l.done.Go(func() { l.write(ctx, w, time.Second*writers/time.Duration(perSecond)) })
	}
	s.tb.Cleanup(l.stop)
	return l
}

// stop ends the load and returns when nothing more will be committed.
func (l *load) stop() {
	l.stopping()
	l.done.Wait()
}

// awaitCommitted waits until the load has committed n more rows than now.
func (l *load) awaitCommitted(n int64) {
	l.s.tb.Helper()
	goal := l.committed.Load() + n
	l.s.await(fmt.Sprintf("%d more rows are committed", n), func() bool { return l.committed.Load() >= goal })
}

func (l *load) write(ctx context.Context, writer int, pause time.Duration) {
	filling := strings.Repeat("x", l.payload)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rows := 1
		if n%10 == 9 {
			rows = 2
		}
		// Not on ctx: a commit that is given up half way would leave open what the
		// table holds when stop returns.
		if err := l.transaction(writer, n, rows, filling); err == nil {
			l.committed.Add(int64(rows))
		}
	}
}

// transaction commits rows; after an error they may be committed or not, which
// only the table can say.
func (l *load) transaction(writer, n, rows int, filling string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tx, err := l.s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	for i := range rows {
		payload := fmt.Sprintf(`{"n": %d, "filling": "%s"}`, 2*n+i, filling)
		if _, err := insertInto(ctx, tx, fmt.Sprintf("w%d-%d", writer, n%7), "Created", payload); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// audit compares the topic with the table after everything is settled: every
// committed row is there, nothing else is, each key is in order. It returns the
// messages and how many are copies.
func (s *stage) audit() (messages []testservers.Message, copies int) {
	s.tb.Helper()
	s.awaitSent()
	messages = s.broker.ReadAll(s.tb, s.topic)
	sends := countSends(messages)
	copies = len(messages) - len(sends)
	rows := s.ids("TRUE")
	lost := 0
	for _, id := range rows {
		if sends[id] == 0 {
			if lost++; lost <= 5 {
				s.tb.Errorf("row %s is SENT, but was never published", id)
			}
		}
		delete(sends, id)
	}
	if lost > 5 {
		s.tb.Errorf("%d of %d rows were lost in all", lost, len(rows))
	}
	if len(sends) > 0 {
		s.tb.Errorf("published without being committed: %v", sends)
	}
	checkOrder(s.tb, messages, payloadNumber)
	s.tb.Logf("%d rows, %d messages, %d of them copies", len(rows), len(messages), copies)
	return messages, copies
}

// expectNoCopies names the rows that were published more than once.
func (s *stage) expectNoCopies(messages []testservers.Message) {
	s.tb.Helper()
	shown := 0
	for id, n := range countSends(messages) {
		if n > 1 {
			if shown++; shown <= 5 {
				s.tb.Errorf("row %s was published %d times", id, n)
			}
		}
	}
	if shown > 5 {
		s.tb.Errorf("%d rows were published more than once in all", shown)
	}
}
