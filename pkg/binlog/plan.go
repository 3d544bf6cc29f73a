package binlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	my "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Reasons for an event that is not complete; they are labels of metrics.
const (
	unreadLayout  = "layout"  // the table looked different when the row was written
	unreadImage   = "image"   // a column is missing from the row image
	unreadCharset = "charset" // text in a character set that is not converted here
	unreadType    = "type"    // a column type whose text form is not known for certain
	unreadXA      = "xa"      // prepared earlier; only its key was kept
	unreadNames   = "names"   // the stream does not name the columns, and the table may have looked different
)

// plan says how to read the rows that follow one form of a TABLE_MAP: which
// column plays which role, and how its value becomes text.
type plan struct {
	watched *watched
	layout  *outbox.Layout // nil for the fence table
	types   []byte
	metas   []uint16
	columns []columnPlan
	json    int    // number of JSON columns, for partial updates
	id      int    // column that holds the id
	unread  string // why only the id can be read; empty: everything
	byPlace bool   // the stream does not name the columns
	blind   bool   // not even the id can be read
}

// unsure tells whether the table may have looked different when the rows were written,
// see known.go.
func (p *plan) unsure() bool {
	return p.byPlace && !p.watched.fence && (!p.watched.known || p.layout != p.watched.layouts[0])
}

// columnPlan is how to read one column.
type columnPlan struct {
	role     outbox.Role // NumRoles: none that matters here
	dataType string
	real     byte
	meta     uint16
	unsigned bool
	prefix   int      // bytes of the length in front of a string
	length   int      // of BINARY(n), to which zeros are restored
	labels   []string // of ENUM and SET, in UTF-8
	doubtful bool     // a question mark in a label may stand for another character
	decimals int      // of FLOAT(M,D) and DOUBLE(M,D); -1: as many as it takes
	short    bool     // YEAR(2)
	charset  *charset // from which text is converted; nil: it is handed on as it is
	unread   string   // why no value of the column is certain; empty: they are
	zone     *time.Location
}

// isEventRole tells the roles that an event is built from; the others may hold
// whatever they like.
func isEventRole(r outbox.Role) bool {
	switch r {
	case outbox.RoleID, outbox.RoleAggregateType, outbox.RoleAggregateID, outbox.RoleEventType,
		outbox.RolePayload, outbox.RoleStatus, outbox.RoleCreatedAt, outbox.RoleAttempts,
		outbox.RoleHeaders, outbox.RoleTopic, outbox.RoleTag:
		return true
	}
	return false
}

// planFor returns the plan for a TABLE_MAP body of a watched table. Plans are
// kept by the body behind the table id, which changes with every start of the
// server while the rest does not.
func (r *Reader) planFor(ctx context.Context, w *watched, body []byte, flavor string) (*plan, error) {
	if w.stale {
		if err := r.reload(ctx, w); err != nil {
			return nil, err
		}
		w.stale = false
	}
	if p, ok := w.plans[string(body[6:])]; ok {
		return p, nil
	}
	m, err := parseTableMap(body, flavor)
	if err != nil {
		return nil, fmt.Errorf("description of table %s: %w", w.table, err)
	}
	p, err := r.buildPlan(ctx, w, m)
	if err != nil {
		return nil, err
	}
	const plansMax = 32
	if len(w.plans) >= plansMax {
		clear(w.plans)
	}
	w.plans[string(body[6:])] = p
	return p, nil
}

// buildPlan looks for a layout that the description fits: those known, newest
// first, then the table's present one. Failing that, it settles for the id.
func (r *Reader) buildPlan(ctx context.Context, w *watched, m *tableMap) (*plan, error) {
	if p := w.fit(m); p != nil {
		return p, nil
	}
	if err := r.reload(ctx, w); err != nil {
		return nil, err
	}
	if p := w.fit(m); p != nil {
		return p, nil
	}
	p, err := w.idOnly(m)
	if err != nil && r.cfg.Unseen != nil {
		p, err = blankPlan(w, w.layouts[0], w.layouts[0].Columns, m), nil
		p.unread, p.blind = unreadLayout, true
	}
	return p, err
}

func (w *watched) fit(m *tableMap) *plan {
	for _, l := range w.layouts {
		if p := newPlan(w, l, m); p != nil {
			return p
		}
	}
	return nil
}

// reload puts the table's present layout in front of those known.
func (r *Reader) reload(ctx context.Context, w *watched) error {
	if r.cfg.Reload == nil {
		return nil
	}
	l, err := r.cfg.Reload(ctx, w.table)
	if errors.Is(err, outbox.ErrNoTable) {
		return nil // dropped since; its old rows are still read by the layouts known
	}
	if err != nil {
		return fmt.Errorf("reading the layout of %s again: %w", w.table, err)
	}
	if columnsText(l.Columns) != columnsText(w.layouts[0].Columns) {
		w.known = false // the table was changed without a statement in the log
	}
	const layoutsMax = 8
	w.layouts = append([]*outbox.Layout{l}, w.layouts...)
	w.layouts = w.layouts[:min(len(w.layouts), layoutsMax)]
	clear(w.plans)
	return nil
}

// newPlan returns nil if m is not the table that l describes. With column names
// in the stream it is enough that each role's column is there with a fitting
// type. Without, every column must fit in its place: a guess by position could
// publish one column as another.
func newPlan(w *watched, l *outbox.Layout, m *tableMap) *plan {
	if m.names == nil && !fitsEverywhere(l, m) {
		return nil
	}
	p := blankPlan(w, l, l.Columns, m)
	for role := range outbox.NumRoles {
		c, ok := l.Column(role)
		if !ok || !isEventRole(role) {
			continue
		}
		i := locate(m, c)
		if i < 0 || !fits(c, m, i) {
			return nil
		}
		p.columns[i] = newColumnPlan(role, c, m, i, l.Zone)
		if role == outbox.RoleID {
			p.id = i
		}
	}
	return p
}

func blankPlan(w *watched, l *outbox.Layout, columns []outbox.Column, m *tableMap) *plan {
	p := &plan{watched: w, layout: l, byPlace: m.names == nil, columns: make([]columnPlan, len(m.types))}
	p.types = append(p.types, m.types...)
	p.metas = append(p.metas, m.metas...)
	for _, c := range columns {
		if i := locate(m, c); i >= 0 {
			p.metas[i] = metaOf(c, m, i)
		}
	}
	for i := range p.columns {
		p.columns[i].role = outbox.NumRoles
		if p.types[i] == my.MYSQL_TYPE_JSON {
			p.json++
		}
	}
	return p
}

// idOnly is the plan for rows of an unknown layout. Without names the id is
// taken from its place only if its type fits there and the table has a status:
// then a wrong guess is mended by the sweep; without a status it would lose rows.
func (w *watched) idOnly(m *tableMap) (*plan, error) {
	l := w.layouts[0]
	c, _ := l.Column(outbox.RoleID)
	i := locate(m, c)
	certain := m.names != nil || l.Has(outbox.RoleStatus) && fitsLength(c, m, i)
	if i < 0 || !certain || !fits(c, m, i) {
		return nil, &fatalError{fmt.Errorf("rows of table %s have another layout than the table has now, and the binlog does not name the columns: "+
			"SET PERSIST binlog_row_metadata=FULL (MariaDB: SET GLOBAL and my.cnf) for the rows to come; "+
			"to pass the rows already written, set the checkpoint to now", w.table)}
	}
	p := blankPlan(w, l, l.Columns, m)
	p.unread, p.id = unreadLayout, i
	p.columns[i] = newColumnPlan(outbox.RoleID, c, m, i, l.Zone)
	return p, nil
}

// locate returns the index of the column in the row image, -1 if it is not there.
func locate(m *tableMap, c outbox.Column) int {
	if m.names == nil {
		if c.Ordinal < len(m.types) {
			return c.Ordinal
		}
		return -1
	}
	for i, n := range m.names {
		if strings.EqualFold(n, c.Name) { // column names are never case-sensitive
			return i
		}
	}
	return -1
}

func fitsEverywhere(l *outbox.Layout, m *tableMap) bool {
	if len(l.Columns) != len(m.types) {
		return false
	}
	for i, c := range l.Columns {
		if !fits(c, m, i) || !fitsLength(c, m, i) {
			return false
		}
	}
	return true
}

// fits reports whether column i of the stream can be the column c.
func fits(c outbox.Column, m *tableMap, i int) bool {
	if i < 0 {
		return false
	}
	real, length := realType(m.types[i], m.metas[i])
	want, known := typesOf[c.DataType]
	if known && !strings.ContainsRune(want, rune(real)) {
		return false
	}
	if unsigned, ok := m.isUnsigned(i); ok && real != my.MYSQL_TYPE_YEAR && unsigned != c.Unsigned() {
		return false
	}
	if size, ok := blobSizes[c.DataType]; ok && real == my.MYSQL_TYPE_BLOB && length != size {
		return false
	}
	return m.collation[i] == 0 || sameCharset(c, m.collation[i])
}

// typesOf lists, per name in information_schema, the type codes of the stream.
var typesOf = map[string]string{
	"tinyint": types(my.MYSQL_TYPE_TINY), "smallint": types(my.MYSQL_TYPE_SHORT), "mediumint": types(my.MYSQL_TYPE_INT24),
	"int": types(my.MYSQL_TYPE_LONG), "bigint": types(my.MYSQL_TYPE_LONGLONG), "decimal": types(my.MYSQL_TYPE_NEWDECIMAL),
	"float": types(my.MYSQL_TYPE_FLOAT), "double": types(my.MYSQL_TYPE_DOUBLE), "bit": types(my.MYSQL_TYPE_BIT),
	"year": types(my.MYSQL_TYPE_YEAR), "date": types(my.MYSQL_TYPE_DATE, my.MYSQL_TYPE_NEWDATE),
	"time": types(my.MYSQL_TYPE_TIME, my.MYSQL_TYPE_TIME2), "datetime": types(my.MYSQL_TYPE_DATETIME, my.MYSQL_TYPE_DATETIME2),
	"timestamp": types(my.MYSQL_TYPE_TIMESTAMP, my.MYSQL_TYPE_TIMESTAMP2),
	"char":      types(my.MYSQL_TYPE_STRING), "binary": types(my.MYSQL_TYPE_STRING),
	"varchar":   types(my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VAR_STRING, typeVarcharCompressed),
	"varbinary": types(my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VAR_STRING, typeVarcharCompressed),
	"tinytext":  types(my.MYSQL_TYPE_BLOB, typeBlobCompressed), "text": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed),
	"mediumtext": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed), "longtext": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed),
	"tinyblob": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed), "blob": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed),
	"mediumblob": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed), "longblob": types(my.MYSQL_TYPE_BLOB, typeBlobCompressed),
	// MariaDB's own types are strings of bytes in the stream, and so are its vectors.
	"uuid": types(my.MYSQL_TYPE_STRING), "inet6": types(my.MYSQL_TYPE_STRING), "inet4": types(my.MYSQL_TYPE_STRING),
	"vector":   types(my.MYSQL_TYPE_VECTOR, my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VAR_STRING, my.MYSQL_TYPE_BLOB),
	"geometry": types(my.MYSQL_TYPE_GEOMETRY), "point": types(my.MYSQL_TYPE_GEOMETRY), "linestring": types(my.MYSQL_TYPE_GEOMETRY),
	"polygon": types(my.MYSQL_TYPE_GEOMETRY), "multipoint": types(my.MYSQL_TYPE_GEOMETRY), "multilinestring": types(my.MYSQL_TYPE_GEOMETRY),
	"multipolygon": types(my.MYSQL_TYPE_GEOMETRY), "geomcollection": types(my.MYSQL_TYPE_GEOMETRY), "geometrycollection": types(my.MYSQL_TYPE_GEOMETRY),
	"json": types(my.MYSQL_TYPE_JSON), "enum": types(my.MYSQL_TYPE_ENUM), "set": types(my.MYSQL_TYPE_SET),
}

func types(codes ...byte) string {
	r := make([]rune, len(codes))
	for i, c := range codes {
		r[i] = rune(c)
	}
	return string(r)
}

var blobSizes = map[string]int{
	"tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4,
	"tinyblob": 1, "blob": 2, "mediumblob": 3, "longblob": 4,
}

// fitsLength compares lengths, where the layout tells them. Only without column
// names does it matter: it is what tells two VARCHARs apart.
func fitsLength(c outbox.Column, m *tableMap, i int) bool {
	if i < 0 {
		return false
	}
	switch c.DataType {
	case "char", "varchar", "binary", "varbinary":
	default:
		return true
	}
	width := widthOf(c.Charset)
	real, length := realType(m.types[i], m.metas[i])
	return width == 0 || real == typeVarcharCompressed || int64(length) == c.LengthMax*width
}

func newColumnPlan(role outbox.Role, c outbox.Column, m *tableMap, i int, zone *time.Location) columnPlan {
	p := columnPlan{role: role, dataType: c.DataType, meta: metaOf(c, m, i), unsigned: c.Unsigned(), decimals: -1, zone: zone}
	real, length := realType(m.types[i], m.metas[i])
	p.real, p.prefix = real, stringPrefix(length)
	if _, known := typesOf[c.DataType]; !known {
		p.unread = unreadType
	}
	switch c.DataType {
	case "enum", "set":
		p.labels, p.unread = labelsOf(c, m, i)
		p.doubtful = m.labels[i] == nil
		return p
	case "binary":
		p.length = int(c.LengthMax)
	case "float", "double":
		p.decimals = decimalsOf(c.FullType)
	case "year":
		p.short = c.FullType == "year(2)"
	}
	if !c.Binary() && !asIs(c.Charset) {
		if p.charset = charsets[c.Charset]; p.charset == nil {
			p.unread = unreadCharset
		}
	}
	return p
}

// metaOf is what the type of a column needs to know the length of its values. The
// stream tells, but for the older forms of times in MariaDB, where only the layout
// knows the number of digits behind the second, and with it the length.
func metaOf(c outbox.Column, m *tableMap, i int) uint16 {
	switch m.types[i] {
	case my.MYSQL_TYPE_TIME, my.MYSQL_TYPE_DATETIME, my.MYSQL_TYPE_TIMESTAMP:
	default:
		return m.metas[i]
	}
	_, rest, _ := strings.Cut(c.FullType, "(")
	digits, _, _ := strings.Cut(rest, ")")
	p, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || !m.mariadb {
		return 0
	}
	return uint16(p)
}

// labelsOf prefers the labels of the stream, which are those of the moment, to
// those of the layout, which information_schema tells in three-byte UTF-8, with
// question marks for what does not fit.
func labelsOf(c outbox.Column, m *tableMap, i int) (labels []string, unread string) {
	if m.labels[i] == nil {
		return parseLabels(c.FullType), ""
	}
	if asIs(c.Charset) {
		return m.labels[i], ""
	}
	set := charsets[c.Charset]
	if set == nil {
		return nil, unreadCharset
	}
	for _, label := range m.labels[i] {
		text, ok := set.asUTF8(nil, []byte(label))
		if !ok {
			return nil, unreadCharset
		}
		labels = append(labels, string(text))
	}
	return labels, ""
}

// decimalsOf reads the D of a type like double(10,2), -1 if it has none.
func decimalsOf(fullType string) int {
	_, rest, _ := strings.Cut(fullType, ",")
	digits, _, _ := strings.Cut(rest, ")")
	d, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return d
}

// parseLabels reads the labels out of enum('a','it”s'), the form in which
// information_schema has them.
func parseLabels(fullType string) []string {
	var labels []string
	_, s, _ := strings.Cut(fullType, "(")
	for strings.HasPrefix(s, "'") {
		var label string
		label, s = parseLabel(s[1:])
		labels = append(labels, label)
		s = strings.TrimPrefix(s, ",")
	}
	return labels
}

// parseLabel reads up to the closing quote. Quotes inside are doubled, and some
// characters stand behind a backslash.
func parseLabel(s string) (label, rest string) {
	escapes := map[byte]byte{'n': '\n', 'r': '\r', '0': 0}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\'' && !strings.HasPrefix(s[i+1:], "'") {
			return b.String(), s[i+1:]
		}
		if (c == '\'' || c == '\\') && i+1 < len(s) {
			i++
			c = s[i]
			if e, ok := escapes[c]; ok && s[i-1] == '\\' {
				c = e
			}
		}
		b.WriteByte(c)
	}
	return b.String(), ""
}
