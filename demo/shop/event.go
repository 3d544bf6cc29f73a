package shop

import (
	"encoding/json"
	"fmt"

	"github.com/rowferry/rowferry/demo/reconcile"
)

// ReadEvent reads the body of a message of the shop. It returns the sale beside
// the event, because a topic may still hold messages of an earlier sale.
func ReadEvent(uid string, body []byte) (sale string, e reconcile.Event, err error) {
	var p payload
	if err := json.Unmarshal(body, &p); err != nil {
		return "", e, fmt.Errorf("reading an event: %w", err)
	}
	if uid == "" || p.Sale == "" || p.Order == "" {
		return p.Sale, e, fmt.Errorf("reading an event: outbox_uid %q, sale %q and order %q must not be empty", uid, p.Sale, p.Order)
	}
	return p.Sale, reconcile.Event{
		UID:       uid,
		Key:       reconcile.Key{Order: p.Order, Version: p.Version},
		WrittenAt: p.WrittenAt,
	}, nil
}
