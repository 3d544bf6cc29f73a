package checkpoint

import (
	"errors"
	"reflect"
	"sync"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func topics(t *testing.T, s store) []Topic {
	t.Helper()
	all, err := s.Topics(t.Context())
	must(t, err)
	return all
}

func expectTopics(t *testing.T, s store, want ...Topic) {
	t.Helper()
	if all := topics(t, s); !reflect.DeepEqual(all, want) {
		t.Fatalf("the lists are %+v, want %+v", all, want)
	}
}

func testTopicsAreListed(t *testing.T, p place) {
	s := p.open("listed")
	expectTopics(t, s)
	must(t, s.SaveTopic(t.Context(), "b", []string{"x:0", "x:1"}))
	must(t, s.SaveTopic(t.Context(), "B", []string{"x:0"}))
	must(t, s.SaveTopic(t.Context(), "a", []string{"y:0"}))
	want := []Topic{{"B", []string{"x:0"}, 1}, {"a", []string{"y:0"}, 1}, {"b", []string{"x:0", "x:1"}, 1}}
	expectTopics(t, s, want...)
	if p.shared {
		expectTopics(t, p.open("listed"), want...)
	}
	expectTopics(t, p.open("another name"))
}

func testTopicIsReplaced(t *testing.T, p place) {
	s := p.open("replaced")
	begin(t, s, "me")
	first, second, third := []string{"x:0"}, []string{"x:0", "x:1"}, []string{"y:0"}
	if err := s.ReplaceTopic(t.Context(), "t", 1, second); !errors.Is(err, ErrTopicChanged) {
		t.Fatalf("a list that was never frozen: %v, want ErrTopicChanged", err)
	}
	expectTopics(t, s)
	must(t, s.SaveTopic(t.Context(), "t", first))
	must(t, s.SaveTopic(t.Context(), "u", first))
	must(t, s.ReplaceTopic(t.Context(), "t", 1, second))
	for _, version := range []int{0, 1, 3} {
		if err := s.ReplaceTopic(t.Context(), "t", version, third); !errors.Is(err, ErrTopicChanged) {
			t.Fatalf("version %d: %v, want ErrTopicChanged", version, err)
		}
	}
	must(t, s.SaveTopic(t.Context(), "t", third)) // whoever is late to freeze it finds what holds
	if queues, err := s.LoadTopic(t.Context(), "t"); err != nil || !reflect.DeepEqual(queues, second) {
		t.Fatalf("loaded %v, %v", queues, err)
	}
	must(t, s.ReplaceTopic(t.Context(), "t", 2, second)) // the same again is a new version too
	expectTopics(t, s, Topic{"t", second, 3}, Topic{"u", first, 1})
}

func testReplacedByTheLeaderOnly(t *testing.T, p place) {
	old := p.open("leader")
	list := Topic{"t", []string{"x:0"}, 1}
	must(t, old.SaveTopic(t.Context(), list.Name, list.Queues))
	refused := func(what string) {
		t.Helper()
		if err := old.ReplaceTopic(t.Context(), "t", 1, []string{"y:0"}); !errors.Is(err, outbox.ErrFenced) {
			t.Fatalf("%s: %v, want ErrFenced", what, err)
		}
		expectTopics(t, old, list)
	}
	refused("before Begin")
	if !p.shared {
		return
	}
	begin(t, old, "old")
	p.release(old)
	heir := p.open("leader")
	begin(t, heir, "heir")
	refused("another one leads")
	must(t, heir.ReplaceTopic(t.Context(), "t", 1, []string{"z:0"}))
	expectTopics(t, old, Topic{"t", []string{"z:0"}, 2})
}

// Of many who replace one version, one does.
func TestOneReplaces(t *testing.T) {
	for name, server := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		t.Run(name, func(t *testing.T) {
			s := mysqlPlace(t, server(t)).open("race")
			begin(t, s, "me")
			must(t, s.SaveTopic(t.Context(), "t", []string{"x:0"}))
			errs := make([]error, 8)
			var racing sync.WaitGroup
			for i := range errs {
				racing.Go(func() { errs[i] = s.ReplaceTopic(t.Context(), "t", 1, []string{"y:0"}) })
			}
			racing.Wait()
			done := 0
			for _, err := range errs {
				switch {
				case err == nil:
					done++
				case !errors.Is(err, ErrTopicChanged):
					t.Error(err)
				}
			}
			if done != 1 {
				t.Errorf("%d have replaced the list", done)
			}
			expectTopics(t, s, Topic{"t", []string{"y:0"}, 2})
		})
	}
}
