package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// history is what writers have committed: of each key the rows 0, 1, 2 ... up to a
// number, committed in that order, because one writer alone writes a key.
type history map[string]int

// rows is the number of all rows.
func (h history) rows() int {
	n := 0
	for _, count := range h {
		n += count
	}
	return n
}

// historians are an application that keeps a history: several sessions at once, transactions
// of one to many rows and keys, and one in eight rolled back, whose rows must never show.
type historians struct {
	s     *stage
	keys  int           // distinct keys to choose from
	rows  int           // committed by all together; 0: until they are stopped
	atMax int           // rows of one transaction
	pause time.Duration // between two transactions of one writer

	mu        sync.Mutex
	commits   history // once all have ended
	committed atomic.Int64
}

// historyPayload is the text of a payload in a history; gone marks what is rolled back.
func historyPayload(n int, gone bool) string {
	if gone {
		return fmt.Sprintf(`{"n": %d, "gone": true}`, n)
	}
	return fmt.Sprintf(`{"n": %d}`, n)
}

// write commits w.rows rows and returns the history. What it commits depends on keys and
// rows alone.
func (w *historians) write() history {
	w.s.tb.Helper()
	w.begin(context.Background())()
	return w.commits
}

// begin starts to write, until the rows are committed or ctx ends; the function returned
// waits for the end.
func (w *historians) begin(ctx context.Context) (wait func()) {
	w.commits = history{}
	sessions := min(4, w.keys)
	var running sync.WaitGroup
	for i := range sessions {
		running.Go(func() {
			if err := w.session(ctx, i, sessions); err != nil {
				w.s.tb.Errorf("writer %d: %v", i, err)
			}
		})
	}
	return running.Wait
}

// session is one writer: of every so many keys, one is its own.
func (w *historians) session(ctx context.Context, i, of int) error {
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	draw := w.drawer(rng, i, of)
	own := history{}
	defer w.add(own)
	for left := w.rows / of; ctx.Err() == nil && (w.rows == 0 || left > 0); {
		rows, gone := 1+rng.IntN(w.atMax), rng.IntN(8) == 0
		if w.rows > 0 {
			rows = min(rows, left)
		}
		done, err := w.transaction(own, draw, rows, gone)
		if err != nil {
			return err
		}
		left -= done
		w.committed.Add(int64(done))
		if w.pause > 0 {
			time.Sleep(w.pause)
		}
	}
	return nil
}

// drawer returns a function that chooses keys: half of the time the next one of all, else
// one of those chosen lately, so that a key's rows come close together, too.
func (w *historians) drawer(rng *rand.Rand, i, of int) func() string {
	next := 0
	lately := make([]int, 0, 64)
	return func() string {
		if len(lately) > 0 && rng.IntN(2) == 0 {
			return fmt.Sprintf("key-%d", lately[rng.IntN(len(lately))])
		}
		key := (next*of + i) % w.keys
		if key%of != i { // wrapped around unevenly
			next, key = 0, i
		}
		next++
		if len(lately) < cap(lately) {
			lately = append(lately, key)
		} else {
			lately[rng.IntN(len(lately))] = key
		}
		return fmt.Sprintf("key-%d", key)
	}
}

// transaction writes rows in one or two statements, and ends as told. It returns how many
// rows are committed.
func (w *historians) transaction(own history, draw func() string, rows int, gone bool) (int, error) {
	ctx := context.Background() // a commit that is given up half way would leave the history open
	tx, err := w.s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("beginning: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	counts := history{}
	for _, n := range []int{rows / 2, rows - rows/2} {
		if err := insertHistory(ctx, tx, w.numbered(own, counts, draw, n, gone)); err != nil {
			return 0, err
		}
	}
	if gone {
		return 0, tx.Rollback()
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("committing: %w", err)
	}
	for key, n := range counts {
		own[key] += n
	}
	return rows, nil
}

// numbered returns the arguments of n rows, which go on where own and counts end.
func (w *historians) numbered(own, counts history, draw func() string, n int, gone bool) []any {
	var args []any
	for range n {
		key := draw()
		args = append(args, key, "Told", historyPayload(own[key]+counts[key], gone))
		counts[key]++
	}
	return args
}

func insertHistory(ctx context.Context, db executor, args []any) error {
	if len(args) == 0 {
		return nil
	}
	query := "INSERT INTO outbox (aggregate_id, event_type, payload) VALUES (?, ?, ?)" + strings.Repeat(", (?, ?, ?)", len(args)/3-1)
	if _, err := db.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("inserting %d rows: %w", len(args)/3, err)
	}
	return nil
}

func (w *historians) add(own history) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, n := range own {
		w.commits[key] += n
	}
}

// A writer of a history must do what the checks rely on.
func TestWritersKeepTheHistoryThatTheyReport(t *testing.T) {
	w := &historians{keys: 7}
	for _, of := range []int{1, 3, 4} {
		for i := range of {
			draw := w.drawer(rand.New(rand.NewPCG(1, 1)), i, of)
			seen := map[string]bool{}
			for range 500 {
				key := draw()
				seen[key] = true
				var n int
				if _, err := fmt.Sscanf(key, "key-%d", &n); err != nil || n%of != i || n >= w.keys {
					t.Fatalf("writer %d of %d writes key %s", i, of, key)
				}
			}
			if want := (w.keys - i + of - 1) / of; len(seen) != want {
				t.Errorf("writer %d of %d writes %d keys, want %d", i, of, len(seen), want)
			}
		}
	}
}
