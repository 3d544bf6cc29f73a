package ledger

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// discardedPrefix begins the last_error of a row that was discarded.
const discardedPrefix = "discarded: "

// Filter selects rows of a table by what it says of them.
type Filter struct {
	Status      outbox.Status // Failed or Sent
	Type        string        // event type; empty: any
	AggregateID string        // empty: any
	Since       time.Time     // by created_at, this moment included; zero: no bound
	Until       time.Time     // by created_at, this moment excluded; zero: no bound
	IDs         []string      // only these, in this order; empty: any
	Discarded   bool          // of FAILED rows, also those that were discarded as the table itself says
}

// Find returns the ids of up to limit rows that a filter selects, by created_at and id,
// without locking them. It starts with the zero Cursor and goes on with the next one,
// until more is false; a page may be shorter than limit before that. With Filter.IDs, all
// of them are one page.
func (l *Ledger) Find(ctx context.Context, table outbox.Table, f Filter, after Cursor, limit int) (ids []string, next Cursor, more bool, err error) {
	t, err := l.table(table)
	if err != nil {
		return nil, after, false, err
	}
	phases, err := t.found(f)
	if err != nil {
		return nil, after, false, err
	}
	if len(f.IDs) > 0 {
		ids, err = l.findByKey(ctx, t, f, phases)
	} else if after.phase < len(phases) {
		ids, after, more, err = l.findPage(ctx, t, phases, after, limit)
	}
	if err != nil {
		return nil, after, false, fmt.Errorf("looking for rows of %s: %w", table, err)
	}
	return ids, after, more, nil
}

func (l *Ledger) findPage(ctx context.Context, t *table, phases []phase, after Cursor, limit int) (ids []string, next Cursor, more bool, err error) {
	page, next, err := l.page(ctx, t, phases[after.phase], after, limit)
	if err != nil {
		return nil, after, false, err
	}
	for _, c := range page {
		ids = append(ids, c.ID)
	}
	if len(page) < limit {
		next = Cursor{phase: after.phase + 1}
	}
	return ids, next, next.phase < len(phases), nil
}

func (l *Ledger) findByKey(ctx context.Context, t *table, f Filter, phases []phase) ([]string, error) {
	found := map[string]bool{}
	for _, p := range phases {
		for _, piece := range chunks(f.IDs, selectIDsMax) {
			in, err := t.idIn(piece)
			if err != nil {
				return nil, err
			}
			in.add(" AND "+p.where.text, p.where.args...)
			got, err := t.ids(ctx, l.db, "SELECT "+t.selected(outbox.RoleID)+" FROM "+t.name+t.force+" WHERE "+in.text, in.args)
			if err != nil {
				return nil, err
			}
			for _, id := range got {
				found[id] = true
			}
		}
	}
	return slices.DeleteFunc(distinct(f.IDs), func(id string) bool { return !found[id] }), nil
}

// found cuts a filter into reads that each walk one range of an index.
func (t *table) found(f Filter) ([]phase, error) {
	if !t.Has(outbox.RoleStatus) {
		return nil, nil
	}
	where := t.is(f.Status)
	for role, text := range map[outbox.Role]string{outbox.RoleEventType: f.Type, outbox.RoleAggregateID: f.AggregateID} {
		if text == "" {
			continue
		}
		c, ok := t.Column(role)
		if !ok {
			return nil, fmt.Errorf("table %s has no column for %s to select by", t.Table, role)
		}
		where.add(" AND "+t.col(role)+" = ?", value(c, text))
	}
	if f.Status == outbox.Failed && !f.Discarded && t.keepsReason() {
		where.add(" AND COALESCE("+t.col(outbox.RoleLastError)+", '') NOT LIKE ?", discardedPrefix+"%")
	}
	return t.dated(where, f)
}

// dated adds the bounds of time.
func (t *table) dated(where clause, f Filter) ([]phase, error) {
	bounded := !f.Since.IsZero() || !f.Until.IsZero()
	if !t.temporal(outbox.RoleCreatedAt) {
		if bounded {
			return nil, fmt.Errorf("table %s has no created_at as DATETIME or TIMESTAMP to select by", t.Table)
		}
		return []phase{{where: where}}, nil
	}
	created := t.col(outbox.RoleCreatedAt)
	dated := clause{where.text, append([]any(nil), where.args...)}
	for _, b := range []struct {
		operator string
		at       time.Time
	}{{">=", f.Since}, {"<", f.Until}} {
		if !b.at.IsZero() {
			dated.add(" AND "+created+" "+b.operator+" ?", b.at.In(t.Zone).Format("2006-01-02 15:04:05.000000"))
		}
	}
	if c, _ := t.Column(outbox.RoleCreatedAt); bounded || !c.Nullable {
		return []phase{{where: dated, at: []string{created}}}, nil
	}
	undated := clause{where.text + " AND " + created + " IS NULL", where.args}
	dated.add(" AND " + created + " IS NOT NULL")
	return []phase{{where: dated, at: []string{created}}, {where: undated}}, nil
}

// cursorText is a Cursor as text.
type cursorText struct {
	Phase int       `json:"p,omitempty"`
	At    [2]string `json:"a"`
	ID    string    `json:"i"`
	Begun bool      `json:"b,omitempty"`
}

// MarshalText makes a text that can be given back to go on from there.
func (c Cursor) MarshalText() ([]byte, error) {
	text, err := json.Marshal(cursorText{c.phase, c.at, c.id, c.begun})
	if err != nil {
		return nil, err
	}
	return base64.RawURLEncoding.AppendEncode(nil, text), nil
}

// UnmarshalText reads what MarshalText made.
func (c *Cursor) UnmarshalText(text []byte) error {
	var t cursorText
	raw, err := base64.RawURLEncoding.AppendDecode(nil, text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Phase < 0 {
		return fmt.Errorf("%.40q is no place in a list: take one that an earlier page gave", text)
	}
	*c = Cursor{t.Phase, t.At, t.ID, t.Begun}
	return nil
}

// Described is what a table says of a row, without its payload.
type Described struct {
	Event     *outbox.Event // Payload is nil
	Status    outbox.Status
	Bytes     int64  // of the payload
	LastError string // empty where the table has no such column
}

// Describe reads rows by key without their payloads; those that are not there are left out.
func (l *Ledger) Describe(ctx context.Context, table outbox.Table, ids []string) (map[string]Described, error) {
	t, err := l.table(table)
	if err != nil {
		return nil, err
	}
	found := make(map[string]Described, len(ids))
	for _, piece := range chunks(ids, selectIDsMax) {
		if err := l.describe(ctx, t, piece, found); err != nil {
			return nil, fmt.Errorf("reading %d rows of %s: %w", len(ids), table, err)
		}
	}
	return found, nil
}

func (l *Ledger) describe(ctx context.Context, t *table, ids []string, found map[string]Described) error {
	in, err := t.idIn(ids)
	if err != nil {
		return err
	}
	query := "SELECT "
	for _, r := range loadRoles {
		if r == outbox.RolePayload {
			query += "NULL, "
		} else {
			query += t.selected(r) + ", "
		}
	}
	query += "COALESCE(LENGTH(" + t.col(outbox.RolePayload) + "), 0), " + t.selected(outbox.RoleLastError) + " FROM " + t.name + t.force + " WHERE " + in.text
	return each(ctx, l.db, query, in.args, func(rows *sql.Rows) error {
		var v outbox.Values
		var d Described
		var reason sql.NullString
		into := make([]any, len(loadRoles), len(loadRoles)+2)
		for i, r := range loadRoles {
			into[i] = &v[r]
		}
		if err := rows.Scan(append(into, &d.Bytes, &reason)...); err != nil {
			return err
		}
		for _, r := range loadRoles {
			v[r] = t.text(r, v[r])
		}
		d.Event, d.Status, d.LastError = t.Event(&v), t.StatusOf(v[outbox.RoleStatus]), reason.String
		found[d.Event.ID] = d
		return nil
	})
}
