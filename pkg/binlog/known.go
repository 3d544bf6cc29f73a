package binlog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A stream without column names (binlog_row_metadata is not FULL) tells columns apart
// by their types only. Two of one type that change places leave no trace in it, so a
// layout may be read by place only where it is known that the table looked like that
// at that place of the stream. It is known
//
//   - behind the end that the log had when the source was looked at (sight),
//   - before that end, up to where no statement stands that names the table (proof),
//   - and behind a position that was saved with the same columns, or behind "now",
//
// until a statement names the table. In between, rows are read by key (unreadNames).
//
// What must hold, or a value is published under another column's name:
//
//   - What is looked at is the server that is read from.
//   - The columns are read before the end of the log is asked for: a statement whose
//     effect they show stands before that end (sight.end), and is found there, or in
//     the stream, if it stands behind the rows.
//   - A statement can be in the log before its effect is to be seen. So the end of the
//     log is asked for before that too, and the table opened, which waits for such a
//     statement: the columns show the effect of whatever stands before sight.before.
//   - Only the layout that was compared with the columns seen is known by them, not one
//     that was read later.
//
// Shown by TestColumnsChangePlacesUnseen, TestRowsAreReadByPlaceOnceProved,
// TestRandomChangesOfTables, TestLayoutReadLaterIsNotKnown and TestStatementNotSeenYet.

// logPlace is a place in a server's log.
type logPlace struct {
	file   string // empty: none
	offset uint64
}

// reaches reports whether p is at another place of its server's log, or behind it.
// Files whose names tell no order count as not reached.
func (p logPlace) reaches(o logPlace) bool {
	if p.file == o.file {
		return p.offset >= o.offset
	}
	mine, _, _ := cutLast(p.file, ".")
	others, _, _ := cutLast(o.file, ".")
	return mine == others && (len(p.file) > len(o.file) || len(p.file) == len(o.file) && p.file > o.file)
}

func (s *stream) place() logPlace { return logPlace{s.file, s.offset} }

// confirm finds out whether the layout is known at this place, for rows that are to be
// read by it without names. It reports whether the layout has been read again.
func (s *stream) confirm(w *watched) (changed bool, err error) {
	if w.known {
		return false, nil
	}
	before := w.layouts[0]
	if s.r.cfg.Reload != nil {
		err = s.prove(w)
	}
	s.settle(s.place())
	return w.layouts[0] != before, err
}

// settle takes note of the layouts that are known at a place of the stream.
func (s *stream) settle(at logPlace) {
	for _, w := range s.r.watch.tables {
		if w.fence || w.known || w.since.file == "" || !at.reaches(w.since) || columnsText(w.layouts[0].Columns) != w.seen.columns[w.table] {
			continue
		}
		w.known = true
		s.layoutsChanged()
	}
}

// forget is for when a statement named the table: its layout is not known from here on.
// What was seen of the table remains if it shows the effect of the statement.
func (s *stream) forget(w *watched) {
	here := s.place()
	w.stale, w.known, w.forgotten = true, false, here
	switch {
	case w.seen == nil || !w.seen.before.reaches(here):
		w.unsee()
	case here.reaches(w.since):
		w.since = here
	}
	s.layoutsChanged()
}

// unsee forgets what was seen of the table.
func (w *watched) unsee() { w.asked, w.seen, w.since = false, nil, logPlace{} }

// layoutsChanged has the positions behind this place say which layouts are known.
// Positions already given out keep what they had.
func (s *stream) layoutsChanged() {
	if s.log == nil {
		return
	}
	log := *s.log
	log.layouts = s.r.watch.layouts()
	if log.layouts != s.log.layouts {
		s.unsaid = log.layouts != ""
	}
	s.log = &log
}

// columnsText is what matters of a table's columns to one who reads rows by place.
// Lengths do not: they stand in the stream.
func columnsText(columns []outbox.Column) string {
	var b strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&b, "%s %s %t", strings.ToLower(c.Name), c.DataType, c.Unsigned())
		if c.Charset != "" {
			fmt.Fprintf(&b, " %s", strings.Replace(c.Charset, "utf8mb3", "utf8", 1))
		}
		if c.DataType == "enum" || c.DataType == "set" {
			b.WriteString(c.FullType)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// layouts is a checksum of the columns of all outbox tables, empty while those of one
// are not known.
func (l *watchList) layouts() string {
	all := map[outbox.Table][]outbox.Column{}
	for _, w := range l.tables {
		if !w.fence && !w.known {
			return ""
		}
		if !w.fence {
			all[w.table] = w.layouts[0].Columns
		}
	}
	return l.sum(all)
}

func (l *watchList) sum(columns map[outbox.Table][]outbox.Column) string {
	h := sha256.New()
	for _, w := range l.tables { // in the order of their names
		if !w.fence {
			fmt.Fprintf(h, "%s\n%s\n", w.table, columnsText(columns[w.table]))
		}
	}
	const bytes = 8
	return hex.EncodeToString(h.Sum(nil)[:bytes])
}

// resume takes the layouts for known if they are those that a position was saved with.
func (l *watchList) resume(saved string) {
	for _, w := range l.tables {
		w.known = true
		w.unsee()
	}
	if saved == "" || saved != l.layouts() {
		for _, w := range l.tables {
			w.known = false
		}
	}
}

// connected forgets what was asked of another connection's server.
func (l *watchList) connected() {
	for _, w := range l.tables {
		w.unsee()
		w.forgotten = logPlace{}
		if w.fence {
			clear(w.plans) // its columns are asked for again, and may be told now
		}
	}
}

// resolveNow resolves "now", with the columns that the outbox tables have there: the
// same before and after the end of the log was asked for.
func (r *Reader) resolveNow(ctx context.Context, s *server) (*position, error) {
	before, err := r.presentLayouts(ctx, s)
	if err != nil {
		return nil, err
	}
	p, err := s.resolve(ctx, "now")
	if err != nil || before == "" {
		return p, err
	}
	after, err := r.presentLayouts(ctx, s)
	if err == nil && before == after {
		p.layouts = after
	}
	return p, err
}

// presentLayouts is like layouts for what the source's tables look like now; empty if
// one is not there or may not be read.
func (r *Reader) presentLayouts(ctx context.Context, s *server) (string, error) {
	all := map[outbox.Table][]outbox.Column{}
	for _, w := range r.watch.tables {
		if w.fence {
			continue
		}
		columns, err := s.columns(ctx, w.table)
		switch {
		case errorNumber(err) != 0, err == nil && columns == nil:
			return "", nil // no such table, or it cannot be opened: nothing is known of it
		case err != nil:
			return "", err
		}
		all[w.table] = columns
	}
	return r.watch.sum(all), nil
}

// columns reads the columns of a table; none if it is not there or may not be read. The
// table is opened first: that waits for a statement which is in the log already and
// whose effect is not to be seen yet.
func (s *server) columns(ctx context.Context, t outbox.Table) ([]outbox.Column, error) {
	_, err := s.maps(ctx, fmt.Sprintf("SELECT 1 FROM %s.%s LIMIT 0", quoteName(t.Schema), quoteName(t.Name)))
	switch errorNumber(err) {
	case errNoSchema, errNoTable, errNoTableRight, errNoColumnRight:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at table %s: %w", t, err)
	}
	return readColumns(ctx, s.db, t)
}

func quoteName(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }
