package binlog

import (
	my "github.com/go-mysql-org/go-mysql/mysql"
)

// Column types of MariaDB that the library does not name.
const (
	typeBlobCompressed    = 140
	typeVarcharCompressed = 141
)

// tableMap is the description of a table that precedes its rows in the stream.
type tableMap struct {
	mariadb      bool
	schema, name []byte
	types        []byte
	metas        []uint16

	// Optional metadata; nil where binlog_row_metadata does not give it.
	names     []string   // FULL
	unsigned  []byte     // one bit per numeric column, highest bit first
	collation []uint64   // per column; 0: none or unknown
	labels    [][]string // FULL: per ENUM or SET column, in its character set; nil for others
}

// tableMapName returns schema and table of a TABLE_MAP body without reading the
// rest.
func tableMapName(body []byte) (id uint64, schema, name []byte, ok bool) {
	c := cursor{b: body}
	id = c.little(6)
	c.skip(2)
	schema = c.prefixed(1)
	c.skip(1)
	name = c.prefixed(1)
	return id, schema, name, !c.failed
}

// parseTableMap reads a TABLE_MAP body. The result aliases it.
func parseTableMap(body []byte, flavor string) (*tableMap, error) {
	c := cursor{b: body}
	c.skip(8)
	m := &tableMap{mariadb: flavor == flavorMariaDB}
	m.schema = c.prefixed(1)
	c.skip(1)
	m.name = c.prefixed(1)
	c.skip(1)
	n := c.length()
	m.types = c.take(n)
	meta := cursor{b: c.take(c.length())}
	c.skip((n + 7) / 8) // which columns may be NULL
	if err := c.err(); err != nil {
		return nil, err
	}
	m.metas = make([]uint16, n)
	for i, t := range m.types {
		m.metas[i] = readMeta(&meta, t)
	}
	if err := meta.err(); err != nil {
		return nil, err
	}
	return m, m.parseOptional(&c)
}

// readMeta reads what the type needs to know the length of its values.
func readMeta(c *cursor, columnType byte) uint16 {
	switch columnType {
	case my.MYSQL_TYPE_STRING, my.MYSQL_TYPE_NEWDECIMAL, my.MYSQL_TYPE_ENUM, my.MYSQL_TYPE_SET:
		return uint16(c.big(2))
	case my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VAR_STRING, my.MYSQL_TYPE_BIT, typeVarcharCompressed:
		return uint16(c.little(2))
	case my.MYSQL_TYPE_BLOB, my.MYSQL_TYPE_DOUBLE, my.MYSQL_TYPE_FLOAT, my.MYSQL_TYPE_GEOMETRY,
		my.MYSQL_TYPE_VECTOR, my.MYSQL_TYPE_JSON, typeBlobCompressed,
		my.MYSQL_TYPE_TIME2, my.MYSQL_TYPE_DATETIME2, my.MYSQL_TYPE_TIMESTAMP2:
		return uint16(c.little(1))
	}
	return 0
}

// Kinds of optional metadata.
const (
	metaSignedness         = 1
	metaDefaultCharset     = 2
	metaColumnCharset      = 3
	metaColumnName         = 4
	metaSetLabels          = 5
	metaEnumLabels         = 6
	metaEnumDefaultCharset = 10
	metaEnumColumnCharset  = 11
)

func (m *tableMap) parseOptional(c *cursor) error {
	m.collation = make([]uint64, len(m.types))
	m.labels = make([][]string, len(m.types))
	for len(c.b) > 0 && !c.failed {
		kind := c.little(1)
		v := cursor{b: c.take(c.length())}
		switch kind {
		case metaSignedness:
			m.unsigned = v.b
		case metaColumnName:
			m.names = readNames(&v, len(m.types))
		case metaSetLabels:
			m.readLabels(&v, my.MYSQL_TYPE_SET)
		case metaEnumLabels:
			m.readLabels(&v, my.MYSQL_TYPE_ENUM)
		case metaDefaultCharset:
			m.defaultCharset(&v, m.isText)
		case metaColumnCharset:
			m.columnCharset(&v, m.isText)
		case metaEnumDefaultCharset:
			m.defaultCharset(&v, m.isLabel)
		case metaEnumColumnCharset:
			m.columnCharset(&v, m.isLabel)
		}
		if v.failed {
			return errShort
		}
	}
	return c.err()
}

func readNames(c *cursor, n int) []string {
	names := make([]string, 0, n)
	for len(c.b) > 0 && !c.failed {
		names = append(names, string(c.prefixed(1)))
	}
	if len(names) != n {
		c.failed = true
	}
	return names
}

// readLabels reads, for each column of a type, a count and so many labels.
func (m *tableMap) readLabels(c *cursor, columnType byte) {
	for i := range m.types {
		if real, _ := realType(m.types[i], m.metas[i]); real != columnType || len(c.b) == 0 {
			continue
		}
		n := c.length() // each label takes a byte at least
		m.labels[i] = make([]string, 0, n)
		for range n {
			m.labels[i] = append(m.labels[i], string(c.take(c.length())))
		}
	}
}

// defaultCharset reads one collation for all columns of a kind, then exceptions:
// pairs of the index among those columns and a collation.
func (m *tableMap) defaultCharset(c *cursor, kind func(i int) bool) {
	standard := c.lenenc()
	exceptions := map[uint64]uint64{}
	for len(c.b) > 0 && !c.failed {
		i := c.lenenc()
		exceptions[i] = c.lenenc()
	}
	var n uint64
	for i := range m.types {
		if !kind(i) {
			continue
		}
		m.collation[i] = standard
		if e, ok := exceptions[n]; ok {
			m.collation[i] = e
		}
		n++
	}
}

// columnCharset reads one collation for each column of a kind.
func (m *tableMap) columnCharset(c *cursor, kind func(i int) bool) {
	for i := range m.types {
		if kind(i) && len(c.b) > 0 {
			m.collation[i] = c.lenenc()
		}
	}
}

// realType unfolds STRING, under which ENUM, SET and CHAR hide. length is the
// greatest length in bytes of a CHAR, the size of an ENUM or SET.
func realType(t byte, meta uint16) (real byte, length int) {
	if t != my.MYSQL_TYPE_STRING || meta < 256 {
		return t, int(meta)
	}
	b0, b1 := byte(meta>>8), byte(meta)
	if b0&0x30 != 0x30 { // the upper bits of a length over 255 are folded in, inverted
		return b0 | 0x30, int(b1) | int(b0&0x30^0x30)<<4
	}
	return b0, int(b1)
}

// isText says whether column i has a collation among the optional metadata.
// MySQL counts its vectors in, MariaDB its geometries.
func (m *tableMap) isText(i int) bool {
	switch real, _ := realType(m.types[i], m.metas[i]); real {
	case my.MYSQL_TYPE_STRING, my.MYSQL_TYPE_VAR_STRING, my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_BLOB,
		typeBlobCompressed, typeVarcharCompressed, my.MYSQL_TYPE_VECTOR:
		return true
	case my.MYSQL_TYPE_GEOMETRY:
		return m.mariadb
	}
	return false
}

func (m *tableMap) isLabel(i int) bool {
	real, _ := realType(m.types[i], m.metas[i])
	return real == my.MYSQL_TYPE_ENUM || real == my.MYSQL_TYPE_SET
}

func isNumericType(t byte) bool {
	switch t {
	case my.MYSQL_TYPE_TINY, my.MYSQL_TYPE_SHORT, my.MYSQL_TYPE_INT24, my.MYSQL_TYPE_LONG, my.MYSQL_TYPE_LONGLONG,
		my.MYSQL_TYPE_NEWDECIMAL, my.MYSQL_TYPE_FLOAT, my.MYSQL_TYPE_DOUBLE, my.MYSQL_TYPE_YEAR:
		return true
	}
	return false
}

// isUnsigned says whether numeric column i is unsigned; known is false without
// metadata.
func (m *tableMap) isUnsigned(i int) (unsigned, known bool) {
	if m.unsigned == nil || !isNumericType(m.types[i]) {
		return false, false
	}
	n := 0
	for _, t := range m.types[:i] {
		if isNumericType(t) {
			n++
		}
	}
	if n>>3 >= len(m.unsigned) {
		return false, false
	}
	return m.unsigned[n>>3]&(0x80>>(n&7)) != 0, true
}

// valueLength returns how many bytes the value at the start of b takes; -1 when b
// is too short or the type is unknown.
func valueLength(t byte, meta uint16, b []byte) int {
	real, length := realType(t, meta)
	switch real {
	case my.MYSQL_TYPE_NULL:
		return 0
	case my.MYSQL_TYPE_TINY, my.MYSQL_TYPE_YEAR:
		return 1
	case my.MYSQL_TYPE_SHORT:
		return 2
	case my.MYSQL_TYPE_INT24, my.MYSQL_TYPE_DATE, my.MYSQL_TYPE_NEWDATE:
		return 3
	case my.MYSQL_TYPE_LONG, my.MYSQL_TYPE_FLOAT:
		return 4
	case my.MYSQL_TYPE_LONGLONG, my.MYSQL_TYPE_DOUBLE:
		return 8
	case my.MYSQL_TYPE_TIME, my.MYSQL_TYPE_DATETIME, my.MYSQL_TYPE_TIMESTAMP:
		return oldTemporalLength(real, int(meta))
	case my.MYSQL_TYPE_TIME2, my.MYSQL_TYPE_TIMESTAMP2, my.MYSQL_TYPE_DATETIME2:
		return temporalLength(real, int(meta))
	case my.MYSQL_TYPE_NEWDECIMAL:
		return decimalLength(int(meta>>8), int(meta&0xff))
	case my.MYSQL_TYPE_BIT:
		return (int(meta>>8)*8 + int(meta&0xff) + 7) / 8
	case my.MYSQL_TYPE_ENUM, my.MYSQL_TYPE_SET:
		return length & 0xff
	case my.MYSQL_TYPE_STRING, my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VAR_STRING, typeVarcharCompressed:
		return withPrefix(b, stringPrefix(length))
	case my.MYSQL_TYPE_BLOB, my.MYSQL_TYPE_JSON, my.MYSQL_TYPE_GEOMETRY, my.MYSQL_TYPE_VECTOR, typeBlobCompressed:
		return withPrefix(b, int(meta))
	}
	return -1
}

// temporalLength is that of a time with p digits behind the second, -1 if there
// can be no such.
func temporalLength(t byte, p int) int {
	if p > 6 {
		return -1
	}
	whole := map[byte]int{my.MYSQL_TYPE_TIME2: 3, my.MYSQL_TYPE_TIMESTAMP2: 4, my.MYSQL_TYPE_DATETIME2: 5}
	return whole[t] + (p+1)/2
}

// stringPrefix is the size of the length in front of a string.
func stringPrefix(lengthMax int) int {
	if lengthMax < 256 {
		return 1
	}
	return 2
}

func withPrefix(b []byte, prefix int) int {
	if prefix < 1 || prefix > 4 || len(b) < prefix {
		return -1
	}
	return prefix + int(littleEndian(b[:prefix]))
}
