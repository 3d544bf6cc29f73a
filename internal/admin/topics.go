package admin

import (
	"encoding/json"
	"net/http"
)

// Topics is the answer to what queue lists are frozen.
type Topics struct {
	Topics []Topic `json:"topics"` // by name
}

// Topic is a frozen queue list and how the brokers differ from it now.
type Topic struct {
	Topic   string   `json:"topic"`
	Version int      `json:"version"` // grows with each refreezing, from 1
	Queues  []string `json:"queues"`  // broker:number, in the order in which keys are spread over them
	State   string   `json:"state"`
	Drift
	Error string `json:"error"` // why the brokers could not be asked, or what they said
}

// Drift is what differs between a frozen list and the brokers.
type Drift struct {
	Added    []string `json:"added"`     // queues that are not in the list
	Gone     []string `json:"gone"`      // queues of the list that their broker does not have
	ReadOnly []string `json:"read_only"` // queues of the list that may not be written
	Away     []string `json:"away"`      // brokers of the topic that are not there
}

// Values of Topic.State: the first that fits.
const (
	TopicUnknown  = "unknown"   // the brokers could not be asked
	TopicMissing  = "missing"   // no broker knows the topic
	TopicAway     = "away"      // a broker of the topic is not there
	TopicReadOnly = "read_only" // no queue may be written
	TopicChanged  = "changed"   // the brokers have other queues
	TopicSame     = "same"
)

// RefreezeRequest asks for the present queues of a topic to be frozen.
type RefreezeRequest struct {
	Topic string   `json:"topic"`
	Yes   bool     `json:"yes"`  // do it; false: only say what would happen
	Keys  []string `json:"keys"` // say where these go
	Gone  []string `json:"gone"` // brokers that are away and will not come back
}

// Refreezing says what a new list moves.
type Refreezing struct {
	Topic   string   `json:"topic"`
	Applied bool     `json:"applied"`
	Changes bool     `json:"changes"` // the new list differs from the frozen one
	Version int      `json:"version"` // of the list that holds now
	Before  []string `json:"before"`
	After   []string `json:"after"`
	Drift
	MovedShare float64   `json:"moved_share"` // of all keys there can be, those whose queue changes: 0 to 1
	Moves      []Move    `json:"moves"`       // each pair of queues between which keys move; none where these are too many
	MovesCount int       `json:"moves_count"`
	Keys       []KeyMove `json:"keys"` // those that were asked for
}

// Move is the keys that leave one queue for another.
type Move struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Share float64 `json:"share"` // of all keys there can be
}

// KeyMove is where one key goes, before and after.
type KeyMove struct {
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
}

func (s *Server) topics(w http.ResponseWriter, r *http.Request) {
	topics, err := s.config.Relay.Topics(r.Context())
	if err != nil {
		s.writeJSON(w, http.StatusServiceUnavailable, failure{err.Error()})
		return
	}
	s.writeJSON(w, http.StatusOK, topics)
}

// refreeze runs until the topic's lanes are drained, the caller goes away or the server
// closes.
func (s *Server) refreeze(w http.ResponseWriter, r *http.Request) {
	const bytesMax = 1 << 20
	var ask RefreezeRequest
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, bytesMax))
	body.DisallowUnknownFields()
	if err := body.Decode(&ask); err != nil || ask.Topic == "" {
		s.writeJSON(w, http.StatusBadRequest, failure{`the request must be JSON such as {"topic": "orders", "yes": true}`})
		return
	}
	done, err := s.config.Relay.Refreeze(r.Context(), ask)
	if err != nil {
		s.config.Logger.Warn().Err(err).Str("topic", ask.Topic).Msg("refreezing asked for over HTTP was refused or failed")
		s.writeJSON(w, http.StatusConflict, failure{err.Error()})
		return
	}
	s.writeJSON(w, http.StatusOK, done)
}
