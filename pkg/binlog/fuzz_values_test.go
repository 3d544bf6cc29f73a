package binlog

import (
	"maps"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	my "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// FuzzValue reads any bytes as a value of any column.
func FuzzValue(f *testing.F) {
	dataTypes := slices.Sorted(maps.Keys(typesOf))
	columnOf := func(dataType string) uint8 { return uint8(slices.Index(dataTypes, dataType)) }
	full := []string{"", "enum('a','b')", "set('a','b')", "double(10,2)", "year(2)", "bigint unsigned", "datetime(3) /* mariadb-5.3 */"}
	for _, seed := range []struct {
		real     byte
		meta     uint16
		dataType string
		full     uint8
		raw      string
	}{
		{my.MYSQL_TYPE_NEWDECIMAL, 10<<8 | 2, "decimal", 0, "\x80\x00\x00\x01\x32"},
		{my.MYSQL_TYPE_NEWDECIMAL, 65<<8 | 30, "decimal", 0, "\x7f\xf0\xfd\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
		{my.MYSQL_TYPE_DATETIME2, 6, "datetime", 0, "\x99\xb2\x7b\x7e\xfb\x00\x00\x07"},
		{my.MYSQL_TYPE_TIMESTAMP2, 3, "timestamp", 0, "\x66\x82\x9c\x40\x00\x0a"},
		{my.MYSQL_TYPE_TIME2, 6, "time", 0, "\x7f\xf3\x37\x38\x5e\xe6"},
		{my.MYSQL_TYPE_DATETIME, 0, "datetime", 6, "\x99\xb2\x7b\x7e\xfb\x00\x00\x07"},
		{my.MYSQL_TYPE_STRING, 0xf701, "enum", 1, "\x02"},
		{my.MYSQL_TYPE_STRING, 0xf808, "set", 2, "\x03\x00\x00\x00\x00\x00\x00\x00"},
		{my.MYSQL_TYPE_STRING, 0xfe10, "uuid", 0, "\x10\xf8\x1d\x4f\xae\x7d\xec\x11\xd0\xa7\x65\x00\xa0\xc9\x1e\x6b\xf6"},
		{my.MYSQL_TYPE_STRING, 0xfe10, "inet6", 0, "\x01\x20"},
		{my.MYSQL_TYPE_STRING, 0xfe10, "binary", 0, "\x02\x01\x02"},
		{my.MYSQL_TYPE_STRING, 0xfde5, "varbinary", 0, "\x00"},
		{my.MYSQL_TYPE_BLOB, 2, "text", 0, "\x03\x00abc"},
		{typeVarcharCompressed, 12001, "varchar", 0, "\x0f\x00\x8a\x03\xe8KLJ\x1c\x85\xa3p\x14\x0es\x08\x00"},
		{my.MYSQL_TYPE_DOUBLE, 8, "double", 3, "\x9a\x99\x99\x99\x99\x99\xb9\x3f"},
		{my.MYSQL_TYPE_FLOAT, 4, "float", 0, "\xff\xff\x7f\x7f"},
		{my.MYSQL_TYPE_BIT, 1<<8 | 4, "bit", 0, "\x08\x01"},
		{my.MYSQL_TYPE_JSON, 4, "json", 0, "\x10\x00\x00\x00\x00\x01\x00\x0c\x00\x0b\x00\x01\x00\x05\x07\x00a"},
		{my.MYSQL_TYPE_YEAR, 0, "year", 4, "\x7c"},
		{my.MYSQL_TYPE_LONGLONG, 0, "bigint", 5, "\xff\xff\xff\xff\xff\xff\xff\xff"},
	} {
		f.Add(seed.real, seed.meta, columnOf(seed.dataType), seed.full, uint8(0), []byte(seed.raw))
	}
	sets := slices.Sorted(maps.Keys(charsets))
	f.Fuzz(func(t *testing.T, columnType byte, meta uint16, dataType, fullType, set uint8, raw []byte) {
		c := outbox.Column{Name: "c", DataType: dataTypes[int(dataType)%len(dataTypes)], FullType: full[int(fullType)%len(full)], LengthMax: int64(meta % 256)}
		if isTextDataType(c.DataType) {
			c.Charset = append(sets, "utf8mb4", "unheard-of")[int(set)%(len(sets)+2)]
		}
		m := &tableMap{types: []byte{columnType}, metas: []uint16{meta}, collation: []uint64{0}, labels: [][]string{nil}}
		if !fits(c, m, 0) {
			return
		}
		allocatesMax(t, len(raw), func() { readFuzzed(t, c, m, raw) })
	})
}

func readFuzzed(t *testing.T, c outbox.Column, m *tableMap, raw []byte) {
	n := valueLength(m.types[0], m.metas[0], raw)
	if n < 0 || n > len(raw) {
		return
	}
	p := newColumnPlan(outbox.RolePayload, c, m, 0, time.UTC)
	text, scratch, why := p.appendText([]byte("before"), raw[:n])
	if string(scratch[:min(6, len(scratch))]) != "before" {
		t.Fatalf("earlier values are lost: %q", scratch)
	}
	if (text == nil) != (why != "") {
		t.Fatalf("%s %x: %q, unread %q", c.DataType, raw, text, why)
	}
}

// FuzzCharset converts any bytes from any character set.
func FuzzCharset(f *testing.F) {
	names := slices.Sorted(maps.Keys(charsets))
	for i, name := range names {
		for _, text := range []string{"plain", "\xe9\x80\xff", "\x81\x40\x8e\xb1\x8f\xb0\xa1", "\x81\x30\x81\x30\xfe\x39\xfe\x39", "\xd8\x3d\xde\x00", "\x00\x01\xf6\x00"} {
			f.Add(uint8(i), []byte(text))
		}
		if charsets[name] == nil {
			f.Fatalf("%s has no table", name)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, text []byte) {
		name := names[int(i)%len(names)]
		out, ok := charsets[name].asUTF8(nil, text)
		if len(out) > 3*len(text) {
			t.Fatalf("%s %x grew to %q", name, text, out)
		}
		if ok && name != "ucs2" && !utf8.Valid(out) {
			t.Fatalf("%s %x is no UTF-8: %q", name, text, out)
		}
		if ok && len(out) == 0 && len(text) > 0 {
			t.Fatalf("%s %x became nothing", name, text)
		}
	})
}

// FuzzPlan makes plans for any description of a table, and reads any rows by them.
func FuzzPlan(f *testing.F) {
	columns := []outbox.Column{
		{Name: "id", DataType: "bigint", FullType: "bigint unsigned"},
		{Name: "aggregate_type", Ordinal: 1, DataType: "enum", FullType: "enum('a','b')", Charset: "latin1"},
		{Name: "aggregate_id", Ordinal: 2, DataType: "varchar", FullType: "varchar(64)", Charset: "gbk", LengthMax: 64},
		{Name: "event_type", Ordinal: 3, DataType: "set", FullType: "set('a','b')", Charset: "utf8mb4"},
		{Name: "payload", Ordinal: 4, DataType: "json", FullType: "json"},
		{Name: "created_at", Ordinal: 5, DataType: "datetime", FullType: "datetime(6)"},
		{Name: "topic", Ordinal: 6, DataType: "text", FullType: "text", Charset: "utf16"},
	}
	l, err := outbox.Recognise(outbox.Table{Schema: "app", Name: "outbox"}, columns, map[string]string{"id": "PRIMARY"}, outbox.Options{})
	if err != nil {
		f.Fatal(err)
	}
	head := append([]byte{1, 0, 0, 0, 0, 0, 1, 0, 3}, "app\x00\x06outbox\x00"...)
	head = append(head, 7, my.MYSQL_TYPE_LONGLONG, my.MYSQL_TYPE_STRING, my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_STRING, my.MYSQL_TYPE_JSON, my.MYSQL_TYPE_DATETIME2, my.MYSQL_TYPE_BLOB)
	head = append(head, 9, my.MYSQL_TYPE_ENUM, 1, 128, 0, my.MYSQL_TYPE_SET, 1, 4, 6, 2, 0x7e)
	names := "\x02id\x0eaggregate_type\x0caggregate_id\x0aevent_type\x07payload\x0acreated_at\x05topic"
	named := append(append(append([]byte{}, head...), metaColumnName, byte(len(names))), names...)
	named = append(named, metaEnumLabels, 5, 2, 1, 'a', 1, 0xe9, metaSetLabels, 5, 2, 1, 'a', 1, 'b', metaColumnCharset, 2, 28, 54, metaEnumColumnCharset, 2, 8, 45)
	row := []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 7, 0x7f, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0x81, 0x40, 3, 3, 0, 0, 0, jsonInt16, 7, 0, 0x99, 0xb2, 0x7b, 0x7e, 0xfb, 0, 0, 7, 2, 0, 0, 'a'}
	f.Add(head, row, true)
	f.Add(named, row, false)
	f.Add(named, []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 7, 0, 1, 2, 3}, false) // rows without columns
	f.Fuzz(func(t *testing.T, description, rows []byte, mariadb bool) {
		allocatesMax(t, len(description)+len(rows), func() {
			m, err := parseTableMap(description, map[bool]string{true: flavorMariaDB, false: flavorMySQL}[mariadb])
			if err != nil {
				return
			}
			w := &watched{table: l.Table, layouts: []*outbox.Layout{l}}
			p := w.fit(m)
			if p == nil {
				if p, err = w.idOnly(m); err != nil {
					return
				}
			}
			readFuzzedRows(t, p, rows)
		})
	})
}

func readFuzzedRows(t *testing.T, p *plan, body []byte) {
	var r rowReader
	if err := r.open(p, rowsFormat{kind: rowsInserted, extra: true}, body); err != nil {
		return
	}
	for r.more() {
		before := len(r.rows.b)
		if r.readBefore() != nil {
			return
		}
		if e, err := r.event(); err == nil && e == nil {
			t.Fatal("no event, and no error")
		}
		if len(r.rows.b) == before {
			t.Fatal("a row of no bytes would be read for ever")
		}
	}
}
