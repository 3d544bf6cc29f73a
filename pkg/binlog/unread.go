package binlog

import (
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// unreadHints say what mends it, per reason for reading rows by key.
var unreadHints = map[string]string{
	unreadLayout:    "the table looked different when the rows were written; with binlog_row_metadata=FULL such rows can be read",
	unreadNames:     "the table may have looked different when the rows were written, and the binlog does not name the columns; set binlog_row_metadata=FULL",
	unreadImage:     "the binlog lacks columns of the rows; set binlog_row_image=FULL, also in the sessions that write",
	unreadCharset:   "text that cannot be converted here",
	unreadType:      "values of a type whose text form only the server knows",
	unseenStatement: "they were written in statement format; set binlog_format=ROW in the sessions that write",
	unreadXA:        "XA transactions: between PREPARE and COMMIT only the keys of rows are kept",
}

// tellUnread logs the first event of each table that is not complete, and the first for
// each further reason.
func (s *stream) tellUnread(events []*outbox.Event) {
	for _, e := range events {
		if e.Unread != "" {
			s.r.watch.outbox(e.Table).tell(s.r.cfg.Logger, e.Unread, "rows are not complete in the binlog; they are read by key")
		}
	}
}

// tell logs what cannot be read of a table, once for each reason.
func (w *watched) tell(log zerolog.Logger, reason, what string) {
	if w.told[reason] {
		return
	}
	w.told[reason] = true
	log.Warn().Stringer("table", w.table).Str("reason", reason).Str("hint", unreadHints[reason]).Msg(what)
}

// tellStatements logs that there are statements in the log whose side effects, by triggers
// and functions, nobody can see.
func (s *stream) tellStatements() {
	if s.r.toldStatements {
		return
	}
	s.r.toldStatements = true
	s.r.cfg.Logger.Warn().Str("hint", "set binlog_format=ROW in the sessions that write").
		Msgf("some session writes in statement format (first seen at %s:%d): rows that its triggers and functions insert into an outbox table cannot be seen in the binlog", s.file, s.offset)
}

// outbox returns the outbox table of that name, which must be watched.
func (l *watchList) outbox(t outbox.Table) *watched {
	for _, w := range l.tables {
		if w.table == t && !w.fence {
			return w
		}
	}
	panic("binlog: an event of a table that is not watched: " + t.String())
}
