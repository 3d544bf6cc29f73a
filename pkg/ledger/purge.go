package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// ErrCannotPurge says that nothing can be purged from a table, and why.
var ErrCannotPurge = errors.New("rows cannot be purged")

// PurgeOptions bound a purge.
type PurgeOptions struct {
	Age     time.Duration // rows that were sent longer ago than this are deleted, to the second
	DryRun  bool          // only count them
	RowsMax int64         // stop after so many; 0: no limit
	// Sparing is how many times as long as a batch took the purge rests behind it. Rests
	// are never shorter than purgeRestMin.
	Sparing int
}

// Purged is what a purge has done.
type Purged struct {
	Rows   int64 // deleted, or those that would be
	Locked int64 // left because somebody keeps them locked
	More   bool  // RowsMax was reached
}

const (
	purgeRows    = 200 // of one batch
	purgeRestMin = 50 * time.Millisecond
)

// Purge deletes the rows of a table that are SENT and were sent longer ago than
// Options.Age by the database's clock: by sent_at, or updated_at, or created_at,
// whichever the table has first. It never touches a row in another state. A batch is a
// statement of its own and goes by key. ErrCannotPurge: the ledger or the table does not
// allow it. When it fails or ctx ends, it says what was done before.
func (l *Ledger) Purge(ctx context.Context, table outbox.Table, o PurgeOptions) (Purged, error) {
	var done Purged
	p, err := l.planPurge(ctx, table, o.Age)
	if err != nil {
		return done, err
	}
	for after := (Cursor{}); ; {
		page, err := l.purgePage(ctx, p, after)
		if err != nil {
			return done, fmt.Errorf("looking for rows of %s to be purged: %w", table, err)
		}
		began := time.Now()
		if err := l.purgeBatch(ctx, p, page.ids, o, &done); err != nil {
			return done, fmt.Errorf("purging %s: %w", table, err)
		}
		done.More = o.RowsMax > 0 && done.Rows >= o.RowsMax
		if page.last || done.More {
			return done, nil
		}
		after = page.end
		if !o.DryRun && len(page.ids) > 0 {
			if err := rest(ctx, max(purgeRestMin, time.Duration(o.Sparing)*time.Since(began))); err != nil {
				return done, err
			}
		}
	}
}

func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// purge is one walk over a table.
type purge struct {
	*table
	index  purgeIndex
	cutoff string // rows that were sent before this go
}

// purgeIndex is an index that leads to old rows.
type purgeIndex struct {
	name   string
	status bool        // its first column is the status
	date   outbox.Role // the one behind that
}

func (l *Ledger) planPurge(ctx context.Context, name outbox.Table, age time.Duration) (*purge, error) {
	t, err := l.table(name)
	if err != nil {
		return nil, err
	}
	switch {
	case l.o.None:
		return nil, fmt.Errorf("%w from %s: with LEDGER=none nothing in the table says which rows are sent", ErrCannotPurge, name)
	case t.deletes:
		return nil, fmt.Errorf("%w from %s: with LEDGER=delete they leave the table when they are sent, and what is left is not sent", ErrCannotPurge, name)
	case !t.Has(outbox.RoleStatus):
		return nil, fmt.Errorf("%w from %s: it has no status column that says which rows are sent", ErrCannotPurge, name)
	case t.sentWhen() == "":
		return nil, fmt.Errorf("%w from %s: it has none of the columns sent_at, updated_at and created_at, or not as DATETIME or TIMESTAMP", ErrCannotPurge, name)
	}
	p := &purge{table: t}
	if p.index, err = l.purgeIndex(ctx, t); err != nil {
		return nil, err
	}
	err = l.db.QueryRowContext(ctx, "SELECT NOW(6) - INTERVAL ? SECOND", int64(age.Seconds())).Scan(&p.cutoff)
	if err != nil {
		return nil, fmt.Errorf("asking the database for its clock: %w", err)
	}
	return p, nil
}

// sentWhen is the expression for when a row was sent, as far as the table says;
// empty: it does not. A row that somebody else marked may lack sent_at.
func (t *table) sentWhen() string {
	var columns []string
	for _, r := range []outbox.Role{outbox.RoleSentAt, outbox.RoleUpdatedAt, outbox.RoleCreatedAt} {
		if t.temporal(r) {
			columns = append(columns, t.col(r))
		}
	}
	switch len(columns) {
	case 0:
		return ""
	case 1:
		return columns[0]
	}
	return "COALESCE(" + strings.Join(columns, ", ") + ")"
}

// purgeIndex finds the index that a purge walks.
//
// What must hold: its date is never later than sentWhen, or rows that are due are
// missed. A row is created before it is sent, and where there is nothing but one date
// that one is it.
func (l *Ledger) purgeIndex(ctx context.Context, t *table) (purgeIndex, error) {
	dates := []outbox.Role{outbox.RoleCreatedAt, outbox.RoleSentAt, outbox.RoleUpdatedAt}
	heads, err := l.indexHeads(ctx, t)
	if err != nil {
		return purgeIndex{}, err
	}
	status, _ := t.Column(outbox.RoleStatus)
	for _, withStatus := range []bool{true, false} {
		for _, date := range dates {
			if date == outbox.RoleUpdatedAt && t.temporal(outbox.RoleSentAt) { // an update after the sending makes it the later one
				continue
			}
			c, _ := t.Column(date)
			for _, head := range heads {
				if t.temporal(date) && (withStatus && head.is(status.Name, c.Name) || !withStatus && head.is(c.Name)) {
					return purgeIndex{head.name, withStatus, date}, nil
				}
			}
		}
	}
	date := "created_at"
	for _, r := range dates {
		if t.temporal(r) {
			date = t.col(r)
			break
		}
	}
	return purgeIndex{}, fmt.Errorf("%w from %s: no index leads to old rows, and every batch would scan the table; CREATE INDEX idx_status_created ON %s (%s, %s) mends it",
		ErrCannotPurge, t.Table, t.name, t.col(outbox.RoleStatus), date)
}

// indexHead is how an index begins: with one or two whole columns.
type indexHead struct {
	name    string
	columns []string
}

func (h indexHead) is(columns ...string) bool {
	if len(h.columns) < len(columns) {
		return false
	}
	for i, c := range columns {
		if !strings.EqualFold(h.columns[i], c) {
			return false
		}
	}
	return true
}

// indexHeads lists the indexes of a table that the optimizer may use.
func (l *Ledger) indexHeads(ctx context.Context, t *table) ([]indexHead, error) {
	var heads []indexHead
	query := `SELECT index_name, COALESCE(column_name, ''), sub_part IS NOT NULL FROM information_schema.statistics
WHERE table_schema = ? AND table_name = ? AND seq_in_index <= 2 AND index_type = 'BTREE' ORDER BY index_name, seq_in_index`
	err := each(ctx, l.db, query, []any{t.Table.Schema, t.Table.Name}, func(rows *sql.Rows) error {
		var name, column string
		var part bool
		if err := rows.Scan(&name, &column, &part); err != nil {
			return err
		}
		if part { // the beginning of a column is not the column
			column = ""
		}
		if n := len(heads); n > 0 && heads[n-1].name == name {
			heads[n-1].columns = append(heads[n-1].columns, column)
		} else {
			heads = append(heads, indexHead{name, []string{column}})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the indexes of %s: %w", t.Table, err)
	}
	return heads, nil
}

// purgePage is what one read of the index gives.
type purgePage struct {
	ids  []string // of rows that go
	end  Cursor
	last bool // the index holds no more old rows
}

func (l *Ledger) purgePage(ctx context.Context, p *purge, after Cursor) (page purgePage, err error) {
	c, err := p.pageQuery(after)
	if err != nil {
		return page, err
	}
	page.end = after
	read := 0
	err = each(ctx, l.db, c.text, c.args, func(rows *sql.Rows) error {
		var id []byte
		var date sql.NullString
		var due sql.NullBool
		if err := rows.Scan(&id, &date, &due); err != nil {
			return err
		}
		read++
		page.end = Cursor{at: [2]string{date.String}, id: p.key(id), begun: true}
		if due.Bool {
			page.ids = append(page.ids, p.key(id))
		}
		return nil
	})
	page.last = read < purgeRows
	return page, err
}

// pageQuery reads on in the index. That a row is due is asked per row and not as a
// condition, so that a page reads so many rows and no more.
func (p *purge) pageQuery(after Cursor) (clause, error) {
	date := p.col(p.index.date)
	due := p.due()
	c := clause{text: "SELECT " + p.selected(outbox.RoleID) + ", " + date + ", "}
	c.add(due.text, due.args...)
	c.add(" FROM " + p.name + forceKey(p.index.name) + " WHERE ")
	if p.index.status {
		sent := p.is(outbox.Sent)
		c.add(sent.text+" AND ", sent.args...)
	}
	c.add(date+" < ?", p.cutoff)
	if after.begun {
		id, err := p.idValue(after.id)
		if err != nil {
			return c, err
		}
		behind := phase{at: []string{date}}.behind(p.id, after, id)
		c.add(" AND "+behind.text, behind.args...)
	}
	c.add(" ORDER BY "+date+", "+p.id+" LIMIT ?", purgeRows)
	return c, nil
}

// due is the condition that a row may be deleted.
//
// What must hold: it stands in the statement that deletes. Otherwise a row that was
// requeued or replayed since its page was read is deleted unsent
// (TestPurgeSparesWhatChangedMeanwhile).
func (p *purge) due() clause {
	c := p.is(outbox.Sent)
	c.add(" AND "+p.sentWhen()+" < ?", p.cutoff)
	return c
}

func (l *Ledger) purgeBatch(ctx context.Context, p *purge, ids []string, o PurgeOptions, done *Purged) error {
	if o.RowsMax > 0 {
		ids = ids[:min(int64(len(ids)), o.RowsMax-done.Rows)]
	}
	if len(ids) == 0 || o.DryRun {
		done.Rows += int64(len(ids))
		return nil
	}
	n, err := l.purgeUnlocked(ctx, p, ids)
	if isNumber(err, errLockWait) { // a single statement: it has been rolled back
		var locked []string
		if locked, err = l.lockedIDs(ctx, p.table, ids); err != nil {
			return err
		}
		done.Locked += int64(len(locked))
		n, err = l.purgeUnlocked(ctx, p, without(ids, setOf(locked)))
	}
	done.Rows += n
	return err
}

func setOf(ids []string) map[string]bool {
	set := make(map[string]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// purgeUnlocked deletes, trying again after a deadlock.
func (l *Ledger) purgeUnlocked(ctx context.Context, p *purge, ids []string) (n int64, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	for try := 1; ; try++ {
		n, err = p.delete(ctx, l.db, ids)
		if !isNumber(err, errDeadlock, errChanged) || try == triesMax {
			return n, err
		}
		if err := pause(ctx); err != nil {
			return 0, err
		}
	}
}

func (p *purge) delete(ctx context.Context, db execer, ids []string) (int64, error) {
	in, err := p.idIn(ids)
	if err != nil {
		return 0, err
	}
	due := p.due()
	c := p.deleteWhere(in)
	c.add(" AND "+due.text, due.args...)
	r, err := db.ExecContext(ctx, c.text, c.args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
