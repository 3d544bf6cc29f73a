package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// registrar is what the store says of blocked keys.
type registrar struct {
	mu            sync.Mutex
	dead, settled []string
	opened        []string
}

func (r *registrar) BlockedKeys(context.Context, int) (dead, settled []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dead), slices.Clone(r.settled), nil
}

func (r *registrar) Opened(_ context.Context, keys []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = append(r.opened, keys...)
	r.settled = slices.DeleteFunc(r.settled, func(key string) bool { return slices.Contains(keys, key) })
	return nil
}

func (r *registrar) say(dead, settled []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead, r.settled = dead, settled
}

// pass does what a sweep without rows does, and reports whether keys were to reopen.
func (r *rig) emptyPass(t *testing.T) bool {
	t.Helper()
	reopening, err := r.BeginPass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for more := reopening; more; {
		if _, more, err = r.Reopen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return reopening
}

// The store does not know a death before it is recorded: that it names no dead letter
// means nothing until then.
func TestADeathThatIsNotRecordedYetKeepsItsKeyBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, hold := &registrar{}, make(chan struct{})
		r := start(t, func(c *Config, r *rig) {
			c.Deaths = store
			r.ledger.hold = hold
		})
		r.src.push("1:a", "2:a:refuse", "3:a", "4:b")
		synctest.Wait()
		if r.emptyPass(t) {
			t.Error("a key reopens whose death is not recorded")
		}
		r.src.push("5:a")
		synctest.Wait()
		close(hold)
		store.say([]string{"a"}, nil)
		synctest.Wait()
		if r.emptyPass(t) {
			t.Error("a key reopens whose dead letter is there")
		}
		if got := slices.Sorted(slices.Values(r.sink.all())); !slices.Equal(got, []string{"1", "4"}) {
			t.Errorf("stored %v, want 1 and 4", got)
		}
		store.say(nil, []string{"a"})
		if !r.emptyPass(t) || r.Usage().BlockedKeys != 0 || !slices.Equal(store.opened, []string{"a"}) {
			t.Errorf("settled, but %d keys are blocked; opened %v", r.Usage().BlockedKeys, store.opened)
		}
		r.src.push("6:a")
		synctest.Wait()
		if got := slices.Sorted(slices.Values(r.sink.all())); !slices.Equal(got, []string{"1", "4", "6"}) {
			t.Errorf("stored %v, want 6 as well", got)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if r.saved.last() != "3" { // everything is settled or deferred
			t.Errorf("position %s saved", r.saved.last())
		}
	})
}

// Beyond the bound every key waits, and none of them for ever.
func TestMoreBlockedKeysThanCanBeToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &registrar{}
		for n := range blockedKeysMax + 1 {
			store.dead = append(store.dead, fmt.Sprint("key ", n))
		}
		r := start(t, func(c *Config, _ *rig) { c.Deaths = store })
		r.src.push("1:innocent")
		synctest.Wait()
		if got := r.sink.all(); len(got) > 0 || len(r.blocked) != blockedKeysMax {
			t.Errorf("stored %v beside %d keys that are told apart", got, len(r.blocked))
		}
		store.say([]string{"key 7"}, nil)
		if !r.emptyPass(t) || r.Usage().BlockedKeys != 1 {
			t.Errorf("%d keys are blocked, want one", r.Usage().BlockedKeys)
		}
		r.src.push("2:innocent", "3:key 7")
		synctest.Wait()
		if got := r.sink.all(); !slices.Equal(got, []string{"2"}) {
			t.Errorf("stored %v, want 2", got)
		}
	})
}

// What a lane has given up while draining is sent after the restart, so nothing that
// follows may be sent before.
func TestADrainThatGivesAnEventUpGivesUpWhatFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail, hold := make(chan struct{}), make(chan struct{})
		r := start(t, func(_ *Config, r *rig) {
			r.sink.lanes = 2
			r.sink.answer = func(_ string, _ int, ids []string) error {
				switch ids[0] {
				case "1":
					<-fail
					return errAway
				case "other":
					<-hold
				}
				return nil
			}
		})
		other := "b"
		for n := 0; laneOf(other, 2) == laneOf("a", 2); n++ {
			other = fmt.Sprint("b", n)
		}
		r.src.push("1:a")
		r.src.push("other:" + other)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- r.stop() }()
		synctest.Wait()
		close(fail)
		synctest.Wait() // 1 is given up; the drain waits for the other lane
		err := r.Accept(t.Context(), outbox.Batch{Events: []*outbox.Event{event("2:a")}, End: outbox.Position{Seq: 3}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := r.sink.all(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("stored %v: event 2 has overtaken event 1", got)
		}
	})
}
