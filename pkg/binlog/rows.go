package binlog

import (
	"bytes"
	"fmt"

	my "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// rowsKind is what a rows event did to its rows.
type rowsKind uint8

const (
	rowsInserted rowsKind = iota
	rowsUpdated
	rowsDeleted
)

// rowsFormat describes the layout of a rows event.
type rowsFormat struct {
	kind       rowsKind
	extra      bool // version 2: extra data follow the flags
	compressed bool // MariaDB: the rows are deflated
	partial    bool // MySQL: JSON columns may hold a difference only
}

// formatOf returns the layout of an event of type t; ok is false if it holds no
// rows.
func formatOf(t replication.EventType) (f rowsFormat, ok bool) {
	switch t {
	case replication.WRITE_ROWS_EVENTv0, replication.WRITE_ROWS_EVENTv1:
		return rowsFormat{kind: rowsInserted}, true
	case replication.WRITE_ROWS_EVENTv2:
		return rowsFormat{kind: rowsInserted, extra: true}, true
	case replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		return rowsFormat{kind: rowsInserted, compressed: true}, true
	case replication.UPDATE_ROWS_EVENTv1:
		return rowsFormat{kind: rowsUpdated}, true
	case replication.UPDATE_ROWS_EVENTv2:
		return rowsFormat{kind: rowsUpdated, extra: true}, true
	case replication.PARTIAL_UPDATE_ROWS_EVENT:
		return rowsFormat{kind: rowsUpdated, extra: true, partial: true}, true
	case replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1:
		return rowsFormat{kind: rowsUpdated, compressed: true}, true
	case replication.DELETE_ROWS_EVENTv0, replication.DELETE_ROWS_EVENTv1:
		return rowsFormat{kind: rowsDeleted}, true
	case replication.DELETE_ROWS_EVENTv2:
		return rowsFormat{kind: rowsDeleted, extra: true}, true
	case replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		return rowsFormat{kind: rowsDeleted, compressed: true}, true
	}
	return f, false
}

// rowReader walks over the rows of one event.
type rowReader struct {
	plan   *plan
	format rowsFormat
	rows   cursor
	before []byte // which columns the first image holds
	after  []byte // and the second one of an update
	image  rowImage

	payloadBytesMax int64 // larger ones are not kept; 0: all are
}

// scratchBytesMax is what is kept for the texts of the next row: one huge row must not
// hold its memory for the life of the connection.
const scratchBytesMax = 1 << 20

// rowImage is one image of one row, by role. Values alias the event or scratch,
// so they are good until the next image is read.
type rowImage struct {
	values  outbox.Values
	reasons [outbox.NumRoles]string // why the value is not known; empty: it is
	scratch []byte
}

// open reads the head of a rows event.
func (r *rowReader) open(p *plan, f rowsFormat, body []byte) error {
	r.plan, r.format = p, f
	c := cursor{b: body}
	c.skip(8)
	if f.extra {
		c.skip(int(c.little(2)) - 2)
	}
	n := len(p.columns)
	if inRows := c.lenenc(); !c.failed && inRows != uint64(n) { // may be more than the bytes of a row of NULLs
		return malformed("rows of %s have %d columns, their description %d", p.watched.table, inRows, n)
	}
	r.before = c.take((n + 7) / 8)
	r.after = nil
	if f.kind == rowsUpdated {
		r.after = c.take((n + 7) / 8)
	}
	if err := c.err(); err != nil {
		return err
	}
	if f.compressed {
		data, err := inflate(c.b)
		if err != nil {
			return fmt.Errorf("compressed rows of %s: %w", p.watched.table, err)
		}
		c.b = data
	}
	r.rows = c
	return nil
}

// deflateGrowthMax: deflate cannot do better than about 1 to 1032. More is a lie about
// the size.
const deflateGrowthMax = 1100

// inflate guards the library's function, which trusts its input.
func inflate(b []byte) (out []byte, err error) {
	if len(b) < 2 || len(b) < 1+int(b[0]&7) || b[0]&7 > 4 {
		return nil, errShort
	}
	if size := bigEndian(b[1 : 1+b[0]&7]); size > uint64(len(b))*deflateGrowthMax {
		return nil, malformed("%d compressed bytes cannot hold %d", len(b), size)
	}
	return my.DecompressMariadbData(b)
}

func (r *rowReader) more() bool { return len(r.rows.b) > 0 && !r.rows.failed }

// readBefore reads the first image of a row: the only one of an insert or delete. One
// of no bytes is damaged: it could be read for ever.
func (r *rowReader) readBefore() error {
	left := len(r.rows.b)
	if err := r.read(r.before, nil); err != nil {
		return err
	}
	if len(r.rows.b) == left {
		return malformed("row of %s without any column", r.plan.watched.table)
	}
	return nil
}

// readAfter reads the second image of an updated row.
func (r *rowReader) readAfter() error {
	var partial []byte
	if r.format.partial && r.rows.lenenc()&1 != 0 {
		partial = r.rows.take((r.plan.json + 7) / 8)
		if partial == nil {
			return errShort
		}
	}
	return r.read(r.after, partial)
}

func (r *rowReader) read(present, partial []byte) error {
	im := &r.image
	im.values = outbox.Values{}
	im.reasons = [outbox.NumRoles]string{}
	im.scratch = im.scratch[:0]
	if cap(im.scratch) > scratchBytesMax {
		im.scratch = nil
	}
	nulls := r.rows.take((countBits(present, len(r.plan.columns)) + 7) / 8)
	if err := r.rows.err(); err != nil {
		return err
	}
	nth, jsons := 0, 0
	for i := range r.plan.columns {
		isPartial := false
		if partial != nil && r.plan.types[i] == my.MYSQL_TYPE_JSON {
			isPartial = bitSet(partial, jsons)
			jsons++
		}
		if !bitSet(present, i) {
			r.absent(i, unreadImage)
			continue
		}
		isNull := bitSet(nulls, nth)
		nth++
		if isNull {
			continue
		}
		if err := r.value(i, isPartial); err != nil {
			return err
		}
	}
	return nil
}

func (r *rowReader) absent(i int, why string) {
	if role := r.plan.columns[i].role; role != outbox.NumRoles {
		r.image.reasons[role] = why
	}
}

func (r *rowReader) value(i int, isPartial bool) error {
	p := r.plan
	length := valueLength(p.types[i], p.metas[i], r.rows.b)
	raw := r.rows.take(length)
	if r.rows.failed {
		return malformed("row of %s ends within column %d", p.watched.table, i+1)
	}
	c := &p.columns[i]
	if c.role == outbox.NumRoles {
		return nil
	}
	if isPartial {
		r.absent(i, unreadImage)
		return nil
	}
	var why string
	r.image.values[c.role], r.image.scratch, why = c.appendText(r.image.scratch, raw)
	if why != "" {
		r.absent(i, why)
	}
	return nil
}

func countBits(bitmap []byte, n int) int {
	count := 0
	for i := range n {
		if bitSet(bitmap, i) {
			count++
		}
	}
	return count
}

// id returns the event that carries nothing but the key; ok is false if the image
// does not tell it.
func (r *rowReader) id() (e *outbox.Event, ok bool) {
	if r.unidentified() != "" {
		return nil, false
	}
	return r.plan.layout.Event(&outbox.Values{outbox.RoleID: r.image.values[outbox.RoleID]}), true
}

// unidentified returns why the image does not tell the key; empty: it does.
func (r *rowReader) unidentified() string {
	if r.plan.blind {
		return r.plan.unread
	}
	return r.image.reasons[outbox.RoleID]
}

// unreadable returns why the event cannot be built from the image; empty: it can.
func (r *rowReader) unreadable() string {
	if r.plan.unread != "" {
		return r.plan.unread
	}
	for _, why := range r.image.reasons {
		if why != "" {
			return why
		}
	}
	if r.plan.unsure() {
		return unreadNames
	}
	return ""
}

// status says whether the image tells the status (known), and whether it is that
// of a row to be sent (pending).
func (r *rowReader) status() (pending, known bool) {
	l := r.plan.layout
	if !l.Has(outbox.RoleStatus) {
		return true, true
	}
	if r.plan.unread != "" || r.plan.unsure() || r.image.reasons[outbox.RoleStatus] != "" {
		return true, false
	}
	return l.StatusOf(r.image.values[outbox.RoleStatus]) == outbox.Pending, true
}

// event builds the event from the image: complete, or with its id and the reason. For
// unreadNames it is built all the same, for the case that nobody can read the row any more.
func (r *rowReader) event() (*outbox.Event, error) {
	why := r.unreadable()
	if why != "" && why != unreadNames {
		e, ok := r.id()
		if !ok {
			return nil, &fatalError{fmt.Errorf("a row of %s cannot be identified: its id column is not readable from the binlog (%s); "+
				"use a numeric, UTF-8, ASCII or binary id column", r.plan.watched.table, r.image.reasons[outbox.RoleID])}
		}
		e.Unread = why
		return e, nil
	}
	v := &r.image.values
	payload := v[outbox.RolePayload]
	if r.payloadBytesMax > 0 && int64(len(payload)) > r.payloadBytesMax {
		v[outbox.RolePayload] = nil
		e := r.plan.layout.Event(v)
		e.OversizeBytes, e.Unread = int64(len(payload)), why
		return e, nil
	}
	v[outbox.RolePayload] = bytes.Clone(payload) // the rest is copied into strings
	e := r.plan.layout.Event(v)
	e.Unread = why
	return e, nil
}

// touchesEvent says whether the image holds any column that an event is built
// from, other than the id.
func (r *rowReader) touchesEvent(present []byte) bool {
	for i := range r.plan.columns {
		role := r.plan.columns[i].role
		if role != outbox.NumRoles && role != outbox.RoleID && bitSet(present, i) {
			return true
		}
	}
	return false
}
