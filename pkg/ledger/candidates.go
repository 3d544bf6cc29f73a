package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

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
	at    [2]string // values of the columns that order the phase, exactly as they were read
	id    string
	begun bool // at and id hold the last row of the phase
}

// phase is one indexed read out of which a pass over the candidates is made.
type phase struct {
	where clause
	at    []string // up to two quoted columns that order the phase before the id
}

// Candidates returns up to limit rows that a sweep may take, without locking
// them: PENDING and created more than graceSeconds ago by the database's clock,
// or dated further than the grace into the future (an application that writes
// another zone must not hide its rows), or of no date; and, where the table has
// next_attempt_at, not before that. Where it has no created_at, every PENDING row
// is a candidate. A table without a status has none. With a negative grace every
// PENDING row is a candidate, whatever its dates.
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
	anyAge := graceSeconds < 0
	if t.temporal(outbox.RoleNextAttemptAt) {
		phases = append(phases, t.duePhase(anyAge))
		fresh.add(" AND " + t.col(outbox.RoleNextAttemptAt) + " IS NULL")
	}
	if !t.temporal(outbox.RoleCreatedAt) {
		return append(phases, phase{where: fresh})
	}
	created := t.col(outbox.RoleCreatedAt)
	with := func(condition string, args ...any) clause {
		c := clause{text: fresh.text, args: slices.Clone(fresh.args)}
		c.add(" AND "+created+condition, args...)
		return c
	}
	if anyAge {
		phases = append(phases, phase{where: with(" IS NOT NULL"), at: []string{created}})
	} else {
		phases = append(phases, t.agedPhases(with, created, graceSeconds)...)
	}
	if c, _ := t.Column(outbox.RoleCreatedAt); c.Nullable {
		phases = append(phases, phase{where: with(" IS NULL")})
	}
	return phases
}

// agedPhases read what is older than the grace, and what is dated in the future.
func (t *table) agedPhases(with func(string, ...any) clause, created string, graceSeconds int) []phase {
	return []phase{
		{where: with(" < NOW(6) - INTERVAL ? SECOND", graceSeconds), at: []string{created}},
		// A second of slack: a DATETIME without fraction may be rounded up.
		{where: with(" > NOW(6) + INTERVAL ? SECOND", graceSeconds+1), at: []string{created}},
	}
}

// duePhase reads what was tried before and is to be tried again, of any age: also what
// is not due yet, in the order of an index on (status, next_attempt_at, created_at). A
// nullable created_at stays out of it: comparing with a NULL would lose rows.
func (t *table) duePhase(anyAge bool) phase {
	next := t.col(outbox.RoleNextAttemptAt)
	p := phase{where: t.is(outbox.Pending), at: []string{next}}
	if anyAge {
		p.where.add(" AND " + next + " IS NOT NULL")
	} else {
		p.where.add(" AND " + next + " <= NOW(6)")
	}
	if c, _ := t.Column(outbox.RoleCreatedAt); t.temporal(outbox.RoleCreatedAt) && !c.Nullable {
		p.at = append(p.at, quote(c.Name))
	}
	return p
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
		var created sql.NullString
		var at [2]sql.NullString
		if err := rows.Scan(&id, &created, &at[0], &at[1]); err != nil {
			return err
		}
		found = append(found, Candidate{ID: t.key(id), CreatedAt: created.String})
		after = Cursor{phase: after.phase, at: [2]string{at[0].String, at[1].String}, id: t.key(id), begun: true}
		return nil
	})
	return found, after, err
}

// pageQuery makes the statement of one page.
func (t *table) pageQuery(p phase, after Cursor, limit int) (clause, error) {
	columns := []string{t.selected(outbox.RoleID), "NULL", "NULL", "NULL"}
	if t.temporal(outbox.RoleCreatedAt) {
		columns[1] = t.col(outbox.RoleCreatedAt)
	}
	copy(columns[2:], p.at)
	c := clause{text: "SELECT " + strings.Join(columns, ", ") + " FROM " + t.name + " WHERE "}
	c.add(p.where.text, p.where.args...)
	if after.begun {
		id, err := t.idValue(after.id)
		if err != nil {
			return c, err
		}
		behind := p.behind(t.id, after, id)
		c.add(" AND "+behind.text, behind.args...)
	}
	c.add(" ORDER BY "+strings.Join(append(slices.Clone(p.at), t.id), ", ")+" LIMIT ?", limit)
	return c, nil
}

// behind is the condition that a row comes after the cursor. It begins with a
// lower bound, because the OR alone is no range of the index, and pages would
// get slower one by one.
func (p phase) behind(id string, after Cursor, value any) clause {
	c := clause{id + " > ?", []any{value}}
	for i := len(p.at) - 1; i >= 0; i-- {
		column, at := p.at[i], after.at[i]
		c = clause{column + " >= ? AND (" + column + " > ? OR " + c.text + ")", append([]any{at, at}, c.args...)}
	}
	return c
}
