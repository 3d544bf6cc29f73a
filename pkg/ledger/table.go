package ledger

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Ids in one statement. MariaDB turns a SELECT or a multi-table DELETE with
// 1,000 ids or more into a join over a temporary list, which locks in list order
// and deadlocks with marks; an UPDATE it leaves alone. Beyond some 20,000 both
// servers scan the whole table.
const (
	updateIDsMax = 1000
	selectIDsMax = 900
	loadIDsMax   = 100 // rows come with their payload
)

// table is a layout with what the statements need of it.
type table struct {
	*outbox.Layout
	name  string // quoted, with schema
	id    string // quoted
	force string // keeps the optimizer on the key: see forceKey

	writes  bool // rows are marked in the table
	deletes bool // rows are deleted when sent

	stuck quiet // rows could not be marked
}

func newTable(l *outbox.Layout, o Options) *table {
	id, _ := l.Column(outbox.RoleID)
	return &table{
		Layout:  l,
		name:    quote(l.Table.Schema) + "." + quote(l.Table.Name),
		id:      quote(id.Name),
		force:   forceKey(l.KeyIndex),
		writes:  !o.None && l.Has(outbox.RoleStatus),
		deletes: o.Delete,
	}
}

// forceKey must stand in every statement by key. With a status guard the
// optimizer leaves the primary key as soon as the list is longer than the number
// of PENDING rows; it then reads, and on MariaDB locks, all PENDING rows, those
// of inserters and other markers included (TestPlans, TestNoStrangersLocked).
func forceKey(index string) string { return " FORCE INDEX (" + quote(index) + ")" }

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// clause is a piece of SQL with its arguments.
type clause struct {
	text string
	args []any
}

func (c *clause) add(text string, args ...any) {
	c.text += text
	c.args = append(c.args, args...)
}

// join writes clauses one after the other.
func join(separator string, clauses []clause) clause {
	var c clause
	for i, part := range clauses {
		if i > 0 {
			c.text += separator
		}
		c.add(part.text, part.args...)
	}
	return c
}

// col returns the quoted name of the column that plays the role.
func (t *table) col(r outbox.Role) string {
	c, ok := t.Column(r)
	if !ok {
		panic(fmt.Sprintf("ledger: table %s has no %s", t.Table, r))
	}
	return quote(c.Name)
}

// idIn is the condition that the key is one of ids.
func (t *table) idIn(ids []string) (clause, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		var err error
		if args[i], err = t.idValue(id); err != nil {
			return clause{}, err
		}
	}
	return clause{t.id + " IN (?" + strings.Repeat(",?", len(ids)-1) + ")", args}, nil
}

// idValue turns the text of an id into a value of the column's type: a quoted
// number costs nothing, but an unquoted one on a text column scans the index.
func (t *table) idValue(id string) (any, error) {
	c, _ := t.Column(outbox.RoleID)
	if !c.Binary() {
		return value(c, id), nil
	}
	b, err := hex.DecodeString(id)
	if err != nil {
		return nil, fmt.Errorf("table %s: id %q of a binary key is not hexadecimal: %w", t.Table, id, err)
	}
	if missing := int(c.LengthMax) - len(b); c.DataType == "binary" && missing > 0 {
		b = append(b, make([]byte, missing)...) // as the server pads it
	}
	return b, nil
}

// value is text as a constant for comparison with column c: a number where the
// column is numeric, because `status = 0` on a text column, and `'0'` in its
// place on a number, are scans and match wrongly.
func value(c outbox.Column, text string) any {
	if numeric(c) {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return n
		}
	}
	return text
}

func numeric(c outbox.Column) bool {
	return strings.HasSuffix(c.DataType, "int") || c.DataType == "decimal" || c.DataType == "bit"
}

// state is the constant for a state in the status column.
func (t *table) state(s outbox.Status) any {
	c, _ := t.Column(outbox.RoleStatus)
	return value(c, t.StatusText(s))
}

// is is the condition that a row is in the state.
func (t *table) is(s outbox.Status) clause {
	return clause{t.col(outbox.RoleStatus) + " = ?", []any{t.state(s)}}
}

// temporal reports whether the column of the role holds a point in time.
func (t *table) temporal(r outbox.Role) bool {
	c, ok := t.Column(r)
	return ok && (c.DataType == "datetime" || c.DataType == "timestamp")
}

// claims reports whether rows can be claimed.
func (t *table) claims() bool { return t.Claims() && t.temporal(outbox.RoleClaimedAt) }

// now is the present in the precision of the column: MySQL would round NOW(6)
// into a DATETIME(0) up, to half a second in the future.
func (t *table) now(r outbox.Role) string {
	c, _ := t.Column(r)
	_, rest, ok := strings.Cut(c.FullType, "(")
	if digits, _, closed := strings.Cut(rest, ")"); ok && closed {
		return "NOW(" + digits + ")"
	}
	return "NOW()"
}

// selected is the expression that reads a column as the text which the binlog
// path would give: numbers without leading zeros, and TIMESTAMPs as seconds,
// because their text depends on the session's offset (see text).
func (t *table) selected(r outbox.Role) string {
	c, ok := t.Column(r)
	switch {
	case !ok:
		return "NULL"
	case c.DataType == "bit" || numeric(c) && strings.Contains(c.FullType, "zerofill"):
		return quote(c.Name) + " + 0"
	case c.DataType == "timestamp":
		return "UNIX_TIMESTAMP(" + quote(c.Name) + ")"
	}
	return quote(c.Name)
}

// text finishes what selected began: the value as a session in the zone of the
// layout prints it.
func (t *table) text(r outbox.Role, b []byte) []byte {
	if c, ok := t.Column(r); !ok || c.DataType != "timestamp" || b == nil {
		return b
	}
	seconds, fraction, fractional := strings.Cut(string(b), ".")
	if fractional {
		fraction = "." + fraction // as many digits as the column has
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil
	}
	if n == 0 && strings.Trim(fraction, ".0") == "" {
		return []byte("0000-00-00 00:00:00" + fraction)
	}
	return []byte(time.Unix(n, 0).In(t.Zone).Format(time.DateTime) + fraction)
}

// key renders an id that was read with selected, as outbox.Event.ID does.
func (t *table) key(b []byte) string {
	if c, _ := t.Column(outbox.RoleID); c.Binary() {
		return hex.EncodeToString(b)
	}
	return string(b)
}

// chunks cuts ids into pieces of at most n.
func chunks(ids []string, n int) [][]string {
	var pieces [][]string
	for len(ids) > n {
		pieces = append(pieces, ids[:n])
		ids = ids[n:]
	}
	if len(ids) > 0 {
		pieces = append(pieces, ids)
	}
	return pieces
}
