package outbox

// Message is an event as the broker will store it, whichever broker that is.
type Message struct {
	Topic      string
	Tag        string
	Key        string // the ordering key: equal keys share a lane
	Keys       []string
	Body       []byte
	Properties []Property // in the order in which they are written; outbox_seq is appended by the engine
}

// Property is one named string beside the body.
type Property struct {
	Name  string
	Value string
}

// SizeBytes is the size of body and properties; a sink adds its own framing.
func (m *Message) SizeBytes() int {
	n := len(m.Body) + len(m.Tag) + len(m.Key)
	for _, k := range m.Keys {
		n += len(k) + 1
	}
	for _, p := range m.Properties {
		n += len(p.Name) + len(p.Value) + 2
	}
	return n
}
