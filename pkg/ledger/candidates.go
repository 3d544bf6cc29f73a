package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Candidate is a row that a sweep may take.
type Candidate struct {
	ID        string
	CreatedAt string // as MySQL prints it; empty where the table has no such column or the row no value
}

// Cursor is a place in a pass over the candidates. The zero Cursor is the start.
type Cursor struct {
	phase int
	at    string // value of the column that the phase is ordered by, exactly as it was read
	id    string
	begun bool // at and id hold the last row of the phase
}

// phase is one indexed read out of which a pass over the candidates is made.
type phase struct {
	where clause
	at    string // quoted column that orders the phase before the id; empty: the id alone
}

// Candidates returns up to limit rows that a sweep may take, without locking
// them: PENDING and created more than graceSeconds ago by the database's clock,
// or dated further than the grace into the future (an application that writes
// another zone must not hide its rows), or of no date; and, where the table has
// next_attempt_at, not before that. Where it has no created_at, every PENDING row
// is a candidate. A table without a status has none.
//
// A pass starts with the zero Cursor and goes on with the next one; fewer than
// limit rows end it. Rows that become candidates behind the cursor are for the
// next pass.
func (l *Ledger) Candidates(ctx context.Context, table outbox.Table, after Cursor, graceSeconds, limit int) ([]Candidate, Cursor, error) {
	t, err := l.table(table)
	if err != nil {
		return nil, after, err
	}
	var found []Candidate
	phases := t.phases(graceSeconds)
	for after.phase < len(phases) && len(found) < limit {
		wanted := limit - len(found)
		page, next, err := l.page(ctx, t, phases[after.phase], after, wanted)
		if err != nil {
			return nil, after, fmt.Errorf("reading candidates of %s: %w", table, err)
		}
		found = append(found, page...)
		if after = next; len(page) < wanted {
			after = Cursor{phase: after.phase + 1}
		}
	}
	return found, after, nil
}

// phases cuts the condition into reads that each walk one range of an index: an
// OR over them would read and sort all PENDING rows.
func (t *table) phases(graceSeconds int) []phase {
	if !t.Has(outbox.RoleStatus) {
		return nil
	}
	fresh := t.is(outbox.Pending) // never tried
	var phases []phase
	if t.temporal(outbox.RoleNextAttemptAt) {
		next := t.col(outbox.RoleNextAttemptAt)
		due := t.is(outbox.Pending)
		due.add(" AND " + next + " <= NOW(6)")
		phases = append(phases, phase{where: due, at: next})
		fresh.add(" AND " + next + " IS NULL")
	}
	if !t.temporal(outbox.RoleCreatedAt) {
		return append(phases, phase{where: fresh})
	}
	created := t.col(outbox.RoleCreatedAt)
	with := func(condition string, args ...any) clause {
		c := clause{text: fresh.text, args: append([]any{}, fresh.args...)}
		c.add(" AND "+created+condition, args...)
		return c
	}
	phases = append(phases,
		phase{where: with(" < NOW(6) - INTERVAL ? SECOND", graceSeconds), at: created},
		// A second of slack: a DATETIME without fraction may be rounded up.
		phase{where: with(" > NOW(6) + INTERVAL ? SECOND", graceSeconds+1), at: created})
	if c, _ := t.Column(outbox.RoleCreatedAt); c.Nullable {
		phases = append(phases, phase{where: with(" IS NULL")})
	}
	return phases
}

// page reads on from the cursor within its phase.
func (l *Ledger) page(ctx context.Context, t *table, p phase, after Cursor, limit int) ([]Candidate, Cursor, error) {
	c, err := t.pageQuery(p, after, limit)
	if err != nil {
		return nil, after, err
	}
	var found []Candidate
	err = each(ctx, l.db, c.text, c.args, func(rows *sql.Rows) error {
		var id []byte
		var created, at sql.NullString
		if err := rows.Scan(&id, &created, &at); err != nil {
			return err
		}
		found = append(found, Candidate{ID: t.key(id), CreatedAt: created.String})
		after = Cursor{phase: after.phase, at: at.String, id: t.key(id), begun: true}
		return nil
	})
	return found, after, err
}

// pageQuery adds the lower bound to an OR that alone would not be a range: pages
// would get slower one by one.
func (t *table) pageQuery(p phase, after Cursor, limit int) (clause, error) {
	created, at, order := "NULL", "NULL", t.id
	if t.temporal(outbox.RoleCreatedAt) {
		created = t.col(outbox.RoleCreatedAt)
	}
	if p.at != "" {
		at, order = p.at, p.at+", "+t.id
	}
	c := clause{text: "SELECT " + t.selected(outbox.RoleID) + ", " + created + ", " + at + " FROM " + t.name + " WHERE "}
	c.add(p.where.text, p.where.args...)
	if after.begun {
		id, err := t.idValue(after.id)
		if err != nil {
			return c, err
		}
		if p.at == "" {
			c.add(" AND "+t.id+" > ?", id)
		} else {
			c.add(" AND "+p.at+" >= ? AND ("+p.at+" > ? OR "+t.id+" > ?)", after.at, after.at, id)
		}
	}
	c.add(" ORDER BY "+order+" LIMIT ?", limit)
	return c, nil
}
