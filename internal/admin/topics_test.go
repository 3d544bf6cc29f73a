package admin

import (
	"errors"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

func TestTopicsThroughTheClient(t *testing.T) {
	list := Topics{Topics: []Topic{{Topic: "orders", Version: 2, Queues: []string{"a:0"}, State: TopicChanged, Drift: Drift{Added: []string{"a:1"}}}}}
	var asked RefreezeRequest
	relay := &fakeRelay{
		topics: func() (Topics, error) { return list, nil },
		freeze: func(ask RefreezeRequest) (Refreezing, error) {
			asked = ask
			return Refreezing{Topic: ask.Topic, Applied: ask.Yes, Version: 3, Drift: Drift{Gone: []string{"b:0"}}}, nil
		},
	}
	c := client(start(t, relay, "s3cret"), "s3cret")
	if got, err := c.Topics(t.Context()); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("%+v, %v", got, err)
	}
	ask := RefreezeRequest{Topic: "orders", Yes: true, Keys: []string{"ä \" 1"}, Gone: []string{"b"}}
	done, err := c.Refreeze(t.Context(), ask)
	if err != nil || !reflect.DeepEqual(asked, ask) || !done.Applied || done.Version != 3 || done.Gone[0] != "b:0" {
		t.Errorf("asked %+v, was told %+v, %v", asked, done, err)
	}
	relay.topics = func() (Topics, error) { return Topics{}, errors.New("database away") }
	relay.freeze = func(RefreezeRequest) (Refreezing, error) { return Refreezing{}, errors.New("lane orders/3 is parked") }
	if _, err := c.Topics(t.Context()); err == nil || !strings.Contains(err.Error(), "database away") {
		t.Error(err)
	}
	if _, err := c.Refreeze(t.Context(), ask); err == nil || errors.Is(err, ErrNoRelay) || !strings.Contains(err.Error(), "orders/3 is parked") {
		t.Error(err)
	}
}

// A request that is not understood must not be taken for another one.
func TestRefreezeRequestsAreRead(t *testing.T) {
	for body, want := range map[string]int{
		`{"topic": "orders"}`: 200, "": 400, "{}": 400, `{"yes": true}`: 400, `{"topic": "orders", "force": true}`: 400,
		`{"topic": "` + strings.Repeat("x", 2<<20) + `"}`: 400,
	} {
		s := &Server{config: Config{Logger: zerolog.Nop(), Relay: &fakeRelay{freeze: func(ask RefreezeRequest) (Refreezing, error) {
			if ask.Yes || ask.Topic != "orders" {
				t.Errorf("%.50s was read as %.50v", body, ask)
			}
			return Refreezing{}, nil
		}}}}
		r := httptest.NewRequest("POST", "/api/v1/topics/refreeze", strings.NewReader(body))
		r.RemoteAddr, r.Host = "127.0.0.1:4", "localhost"
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(deadlines{w}, r)
		if w.Code != want {
			t.Errorf("%.50q: %d %s", body, w.Code, w.Body)
		}
	}
}
