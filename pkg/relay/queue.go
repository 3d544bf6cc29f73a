package relay

import (
	"context"
	"slices"
	"sync"
)

// queue hands values from many goroutines to one, which takes all that is there
// at once. It has no bound of its own: what is in it is in the budget.
type queue[T any] struct {
	mu    sync.Mutex
	items []T
	taken bool          // what takeSome returned last is still being worked on
	wake  chan struct{} // holds a token while items is not empty
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) push(v ...T) {
	q.add(v...)
	q.signal()
}

// add is push for one who calls signal when there is more.
func (q *queue[T]) add(v ...T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, v...)
}

// signal wakes who waits for values.
func (q *queue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns everything in the queue, waiting until there is something; spare,
// a slice that the caller no longer needs, becomes the new storage.
func (q *queue[T]) take(ctx context.Context, spare []T) ([]T, error) {
	for {
		if got := q.tryTake(spare); len(got) > 0 {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.wake:
		}
	}
}

// takeSome is take for the first n items, n being what count says of those that
// are there. Who asks for more has done with what it was given before.
func (q *queue[T]) takeSome(ctx context.Context, count func([]T) int) ([]T, error) {
	for {
		q.mu.Lock()
		q.taken = len(q.items) > 0
		if n := len(q.items); n > 0 {
			n = count(q.items)
			got := q.items[:n:n]
			q.items = q.items[n:]
			q.mu.Unlock()
			return got, nil
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.wake:
		}
	}
}

// putBack puts items that could not be worked on before all others.
func (q *queue[T]) putBack(items []T) {
	q.mu.Lock()
	q.items = append(slices.Clone(items), q.items...)
	q.mu.Unlock()
	q.signal()
}

// quiet reports whether nothing is in the queue and nothing taken from it by takeSome
// is being worked on.
func (q *queue[T]) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0 && !q.taken
}

// remove takes out what match says, keeping the order of the rest.
func (q *queue[T]) remove(match func(T) bool) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out, kept []T
	for _, v := range q.items {
		if match(v) {
			out = append(out, v)
		} else {
			kept = append(kept, v)
		}
	}
	q.items = kept
	return out
}

func (q *queue[T]) tryTake(spare []T) []T {
	clear(spare)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	got := q.items
	q.items = spare[:0]
	return got
}
