package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router"
)

const (
	// deadPageDefault is how many dead letters a page holds if nobody says how many.
	deadPageDefault = 100
	// deadPageMax bounds the rows that one look at a table reads, and what one
	// transaction changes.
	deadPageMax = 500
	// deadPayloadsMax bounds a page with payloads.
	deadPayloadsMax = 20
)

// desk is where dead letters are looked at and changed.
type desk struct {
	cfg    *config.Config
	store  *Store
	kind   string // ledger in force
	ledger *ledger.Ledger
	router *router.Router
}

// desk returns that of a relay, which works on a standby too.
func (r *Relay) desk() (*desk, error) {
	r.mu.Lock()
	ready, waiting, s, kind := r.sink != nil, r.waiting, r.current, r.kind
	r.mu.Unlock()
	if !ready {
		return nil, errors.New("the relay is not ready for that: " + waiting)
	}
	d := &desk{cfg: r.cfg, store: r.store, kind: kind, router: r.router}
	if s != nil {
		d.ledger = s.ledger
	} else {
		d.ledger = newLedger(r.cfg, r.store, kind, r.log)
	}
	return d, nil
}

// openDesk opens the one of a command; the store is to be closed.
func openDesk(ctx context.Context, cfg *config.Config, log zerolog.Logger) (*desk, error) {
	routes, err := NewRouter(cfg)
	if err != nil {
		return nil, usage(err)
	}
	store, err := OpenStore(cfg)
	if err != nil {
		return nil, usage(err)
	}
	d := &desk{cfg: cfg, store: store, router: routes}
	if err = store.Learn(ctx); err == nil {
		d.kind, err = store.LedgerKind()
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	d.ledger = newLedger(cfg, store, d.kind, log)
	return d, nil
}

// newLedger makes the ledger of a configuration.
func newLedger(cfg *config.Config, store *Store, kind string, log zerolog.Logger) *ledger.Ledger {
	return ledger.New(store.DB, store.Layouts, ledger.Options{
		Name: cfg.Name, Schema: store.Schema, MaxAttempts: cfg.OutboxMaxAttempts, Lease: cfg.OutboxLease,
		Delete: kind == config.LedgerDelete, None: kind == config.LedgerNone,
		DeadAlways: cfg.OnDead == config.OnDeadBlock, Logger: log,
	})
}

// tables returns those that a filter selects.
func (d *desk) tables(name string) ([]outbox.Table, error) {
	all := d.store.Tables()
	if name == "" {
		return all, nil
	}
	named := slices.DeleteFunc(slices.Clone(all), func(t outbox.Table) bool { return t.String() != name && t.Name != name })
	if len(named) == 0 {
		return nil, usage(fmt.Errorf("%s is not among the outbox tables %v", name, all))
	}
	return named, nil
}

// filter turns a filter into that of the ledger, as far as the ledger can go.
func (d *desk) filter(by admin.DeadFilter, table outbox.Table) ledger.Filter {
	f := ledger.Filter{Type: by.Type, IDs: by.IDs, Discarded: by.Discarded, AggregateID: d.aggregateOf(by.Key, table)}
	if by.Since != nil {
		f.Since = *by.Since
	}
	if by.Until != nil {
		f.Until = *by.Until
	}
	return f
}

// aggregateOf returns the aggregate id that all rows of a key have; empty: they need not
// have one and the same. The database finds it faster than we do.
func (d *desk) aggregateOf(key string, table outbox.Table) string {
	i := slices.IndexFunc(d.store.Layouts, func(l *outbox.Layout) bool { return l.Table == table })
	if d.cfg.RouteKey != "{aggregate_id}" || i < 0 || !d.store.Layouts[i].Has(outbox.RoleAggregateID) {
		return ""
	}
	return key
}

// matches applies what the ledger could not.
func (d *desk) matches(l ledger.Letter, by admin.DeadFilter) bool {
	if by.Key != "" && d.keyOf(l) != by.Key {
		return false
	}
	if l.Row == nil {
		return by.Type == "" && by.Since == nil && by.Until == nil
	}
	at := l.Row.Event.CreatedAt
	return (by.Type == "" || l.Row.Event.Type == by.Type) &&
		(by.Since == nil || !at.Before(*by.Since)) && (by.Until == nil || at.Before(*by.Until))
}

// keyOf returns the ordering key of a dead letter: what it was when it failed, or what it
// is by the present configuration.
func (d *desk) keyOf(l ledger.Letter) string {
	if l.OrderKey != "" || l.Row == nil {
		return l.OrderKey
	}
	return d.router.Key(l.Row.Event)
}

// walk calls do with the dead letters that a filter selects, a page of one table at a
// time, from a place in the list on (empty: the beginning), until do says that it has
// enough; next is where the list goes on after the page that was given last.
func (d *desk) walk(ctx context.Context, by admin.DeadFilter, from string, page int, do func(t outbox.Table, letters []ledger.Letter, next string) (enough bool, err error)) error {
	tables, err := d.tables(by.Table)
	if err != nil {
		return err
	}
	first, at, err := parsePlace(from, len(tables))
	if err != nil {
		return err
	}
	for i := first; i < len(tables); i++ {
		for more := true; more; {
			var letters []ledger.Letter
			if letters, at, more, err = d.ledger.DeadLetters(ctx, tables[i], d.filter(by, tables[i]), at, page); err != nil {
				return err
			}
			letters = slices.DeleteFunc(letters, func(l ledger.Letter) bool { return !d.matches(l, by) })
			next := ""
			switch {
			case more:
				next = place(i, at)
			case i+1 < len(tables):
				next = place(i+1, ledger.Cursor{})
			}
			if enough, err := do(tables[i], letters, next); err != nil || enough {
				return err
			}
		}
		at = ledger.Cursor{}
	}
	return nil
}

// place is a place in the list over all tables, as text.
func place(table int, at ledger.Cursor) string {
	text, err := at.MarshalText()
	if err != nil {
		panic(fmt.Sprintf("app: a place in a list cannot be written down: %v", err)) // it is plain text and numbers
	}
	return strconv.Itoa(table) + "." + string(text)
}

func parsePlace(text string, tables int) (table int, at ledger.Cursor, err error) {
	if text == "" {
		return 0, at, nil
	}
	number, cursor, _ := strings.Cut(text, ".")
	if table, err = strconv.Atoi(number); err != nil || table < 0 || table >= tables {
		return 0, at, fmt.Errorf("%.40q is no place in this list: take one that an earlier page gave", text)
	}
	return table, at, at.UnmarshalText([]byte(cursor))
}

// list returns a page of the list.
func (d *desk) list(ctx context.Context, by admin.DeadFilter, paging admin.DeadPaging) (admin.DeadPage, error) {
	page := admin.DeadPage{Dead: []admin.DeadLetter{}}
	limit := by.Limit
	if limit == 0 {
		limit = deadPageDefault
	}
	limit = min(limit, deadPageMax)
	if paging.Payload {
		limit = min(limit, deadPayloadsMax)
	}
	err := d.walk(ctx, by, paging.After, limit, func(t outbox.Table, letters []ledger.Letter, next string) (bool, error) {
		if len(page.Dead)+len(letters) > limit && len(page.Dead) > 0 {
			return true, nil // the page would be too long: it ends before these
		}
		for _, l := range letters {
			page.Dead = append(page.Dead, d.letter(l))
		}
		page.Next = next
		return len(page.Dead) >= limit, nil
	})
	if err == nil && paging.Payload {
		err = d.addPayloads(ctx, page.Dead)
	}
	return page, err
}

func (d *desk) letter(l ledger.Letter) admin.DeadLetter {
	out := admin.DeadLetter{
		Table: l.Key.Table.String(), ID: l.Key.ID, Key: d.keyOf(l), Reason: l.Reason, Attempts: l.Attempts,
		Discarded: l.Discarded, Gone: l.Row == nil,
	}
	if !l.DiscardedAt.IsZero() {
		out.DiscardedAt = &l.DiscardedAt
	}
	if l.Row == nil {
		return out
	}
	ev := l.Row.Event
	out.AggregateType, out.AggregateID, out.EventType, out.Topic, out.Tag = ev.AggregateType, ev.AggregateID, ev.Type, ev.Topic, ev.Tag
	out.PayloadBytes = l.Row.Bytes
	if !ev.CreatedAt.IsZero() {
		at := ev.CreatedAt.UTC()
		out.CreatedAt = &at
	}
	return out
}

// addPayloads reads payloads and headers, one row at a time.
func (d *desk) addPayloads(ctx context.Context, letters []admin.DeadLetter) error {
	tables := d.store.Tables()
	for i := range letters {
		out := &letters[i]
		t := slices.IndexFunc(tables, func(t outbox.Table) bool { return t.String() == out.Table })
		events, _, err := d.ledger.Load(ctx, tables[t], []string{out.ID})
		if err != nil {
			return err
		}
		for _, ev := range events {
			for _, h := range ev.Headers {
				out.Headers = append(out.Headers, admin.Header{Name: h.Name, Value: h.Value})
			}
			if text := string(ev.Payload); utf8.ValidString(text) {
				out.Payload = &text
			} else {
				out.PayloadBase64 = ev.Payload
			}
		}
	}
	return nil
}

// Dead implements admin.Letters.
func (r *Relay) Dead(ctx context.Context, by admin.DeadFilter, paging admin.DeadPaging) (admin.DeadPage, error) {
	d, err := r.desk()
	if err != nil {
		return admin.DeadPage{}, err
	}
	return d.list(ctx, by, paging)
}

// DeadList returns dead letters from the database: up to by.Limit of them, 100 if that is
// 0. Next tells whether there are more.
func DeadList(ctx context.Context, cfg *config.Config, by admin.DeadFilter, log zerolog.Logger) (admin.DeadPage, error) {
	d, err := openDesk(ctx, cfg, log)
	if err != nil {
		return admin.DeadPage{}, err
	}
	defer d.store.Close() //nolint:errcheck // nothing was written
	if by.Limit == 0 {
		by.Limit = deadPageDefault
	}
	all := admin.DeadPage{Dead: []admin.DeadLetter{}}
	for wanted := by.Limit; len(all.Dead) < wanted; {
		by.Limit = wanted - len(all.Dead)
		page, err := d.list(ctx, by, admin.DeadPaging{After: all.Next})
		if err != nil {
			return all, err
		}
		all.Dead, all.Next = append(all.Dead, page.Dead...), page.Next
		if all.Next == "" {
			break
		}
	}
	return all, nil
}

// DeadShow returns one dead letter, also one that was discarded. An id that several
// tables have must be given with its table.
func DeadShow(ctx context.Context, cfg *config.Config, table, id string, payload bool, log zerolog.Logger) (admin.DeadLetter, error) {
	d, err := openDesk(ctx, cfg, log)
	if err != nil {
		return admin.DeadLetter{}, err
	}
	defer d.store.Close() //nolint:errcheck // nothing was written
	page, err := d.list(ctx, admin.DeadFilter{Table: table, IDs: []string{id}, Discarded: true}, admin.DeadPaging{Payload: payload})
	switch {
	case err != nil:
		return admin.DeadLetter{}, err
	case len(page.Dead) == 0:
		return admin.DeadLetter{}, fmt.Errorf("there is no dead letter %s", id)
	case len(page.Dead) > 1:
		return admin.DeadLetter{}, usage(fmt.Errorf("%d tables have a dead letter %s: say which with --table", len(page.Dead), id))
	}
	return page.Dead[0], nil
}

// ParseWhen reads a moment as a command takes it: RFC 3339, a date, or a duration before now.
func ParseWhen(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q: wanted a moment such as 2026-01-31T15:04:05Z, a date (UTC), or how long ago, such as 24h", text)
}
