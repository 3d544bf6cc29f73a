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
//   - behind the end that the log had when the layout was read, and
//   - behind a position that was saved with the same columns, or behind "now",
//
// until a statement names the table. In between, rows are read by key (unreadNames).
//
// What must hold: the layout is read before the end of the log is asked for, and both
// of the server that is read from; a statement that was committed in between is then
// still to come in the stream. Otherwise a value is published under another column's
// name. Shown by TestColumnsChangePlacesUnseen.

// logPlace is a place in a server's log.
type logPlace struct {
	file   string // empty: none
	offset uint64
}

// reached reports whether the stream has come to a place of its server. Files whose
// names tell no order count as not reached.
func (s *stream) reached(p logPlace) bool {
	if s.file == p.file {
		return s.offset >= p.offset
	}
	mine, _, _ := cutLast(s.file, ".")
	theirs, _, _ := cutLast(p.file, ".")
	return mine == theirs && (len(s.file) > len(p.file) || len(s.file) == len(p.file) && s.file > p.file)
}

// confirm finds out whether the layout is known at this place, for rows that are to be
// read by it without names. It reports whether the layout has been read again.
func (s *stream) confirm(w *watched) (changed bool, err error) {
	if !w.known && !w.asked && s.r.cfg.Reload != nil {
		if changed, err = s.askLayout(w); err != nil {
			return false, err
		}
	}
	if !w.known && w.since.file != "" && s.reached(w.since) {
		w.known = true
		s.layoutsChanged()
	}
	return changed, nil
}

// askLayout compares the newest layout with the source's table, and notes from where
// on it holds. The layout itself is read from the store, which may be ahead of the
// source: then nothing is known until the next statement or connection.
func (s *stream) askLayout(w *watched) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, sqlTimeout)
	defer cancel()
	srv, _, err := s.r.openServer(ctx)
	if err != nil {
		return false, err
	}
	defer srv.db.Close() //nolint:errcheck // nothing is written through it
	w.asked = true
	for range 2 {
		columns, err := readColumns(ctx, srv.db, w.table)
		if err != nil {
			return changed, err
		}
		if columnsText(columns) == columnsText(w.layouts[0].Columns) {
			return changed, s.holdsFromNow(ctx, srv, w)
		}
		if err := s.r.reload(ctx, w); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

func (s *stream) holdsFromNow(ctx context.Context, srv *server, w *watched) error {
	end, err := srv.end(ctx)
	if err == nil && srv.id == s.server {
		w.since = logPlace{end.file, end.offset}
	}
	return err
}

// forget is for when a statement named the table: its layout is not known from here on.
func (s *stream) forget(w *watched) {
	w.stale, w.known, w.asked, w.since = true, false, false, logPlace{}
	s.layoutsChanged()
}

// layoutsChanged has the positions behind this place say which layouts are known.
// Positions already given out keep what they had.
func (s *stream) layoutsChanged() {
	if s.log == nil {
		return
	}
	log := *s.log
	log.layouts = s.r.watch.layouts()
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
		w.known, w.asked, w.since = true, false, logPlace{}
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
		w.asked, w.since = false, logPlace{}
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
// one is not there or may not be read. Each table is opened first: that waits for a
// statement which is in the log already and whose effect is not to be seen yet.
func (r *Reader) presentLayouts(ctx context.Context, s *server) (string, error) {
	all := map[outbox.Table][]outbox.Column{}
	for _, w := range r.watch.tables {
		if w.fence {
			continue
		}
		_, err := s.maps(ctx, fmt.Sprintf("SELECT 1 FROM %s.%s LIMIT 0", quoteName(w.table.Schema), quoteName(w.table.Name)))
		if n := errorNumber(err); n != 0 {
			return "", nil // no such table, or no right to read it: nothing is known of it
		}
		if err != nil {
			return "", fmt.Errorf("looking at table %s: %w", w.table, err)
		}
		if all[w.table], err = readColumns(ctx, s.db, w.table); err != nil {
			return "", err
		}
	}
	return r.watch.sum(all), nil
}

func quoteName(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }
