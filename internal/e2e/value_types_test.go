package e2e

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
)

// valueType is a type of columns with values for it.
type valueType struct {
	column   string
	literals []string
	key      bool   // the type may be that of the id
	only     string // flavour
}

// valueTypes are all types of columns, with their limits and random values.
func valueTypes(r *rand.Rand) []valueType {
	types := append(numberTypes(r), timeTypes(r)...)
	types = append(types, stringTypes(r)...)
	types = append(types, charsetTypes()...)
	return append(types, mariadbTypes(r)...)
}

// many makes n literals and adds NULL.
func many(n int, literal func() string) []string {
	list := []string{"NULL"}
	for range n {
		list = append(list, literal())
	}
	return list
}

func numberTypes(r *rand.Rand) []valueType {
	var types []valueType
	for _, i := range []struct {
		name string
		bits int
	}{{"TINYINT", 8}, {"SMALLINT", 16}, {"MEDIUMINT", 24}, {"INT", 32}, {"BIGINT", 64}} {
		shift := 64 - i.bits
		least, most := strconv.FormatInt(math.MinInt64>>shift, 10), strconv.FormatInt(math.MaxInt64>>shift, 10)
		signed := append(many(9, func() string { return strconv.FormatInt(int64(r.Uint64())>>shift, 10) }), "0", "-1", least, most)
		unsigned := append(many(9, func() string { return strconv.FormatUint(r.Uint64()>>shift, 10) }), "0", strconv.FormatUint(math.MaxUint64>>shift, 10))
		types = append(types, valueType{column: i.name, literals: signed, key: i.bits == 8 || i.bits == 64}, valueType{column: i.name + " UNSIGNED", literals: unsigned, key: i.bits >= 32},
			valueType{column: i.name + "(9) ZEROFILL", literals: unsigned, key: i.bits == 32})
	}
	for _, d := range [][2]int{{1, 0}, {9, 0}, {9, 9}, {10, 2}, {18, 9}, {19, 1}, {20, 0}, {38, 10}, {65, 0}, {65, 30}, {30, 30}} {
		column := fmt.Sprintf("DECIMAL(%d,%d)", d[0], d[1])
		most := decimalOf(strings.Repeat("9", d[0]), d[1])
		types = append(types, valueType{column: column, key: d[0] > 18, literals: append(many(12, func() string {
			digits := make([]byte, d[0])
			for i := range digits {
				digits[i] = byte('0' + r.IntN(10)*r.IntN(2))
			}
			return [...]string{"", "-"}[r.IntN(2)] + decimalOf(string(digits), d[1])
		}), "0", most, "-"+most)})
	}
	double := func() string {
		for {
			if f := math.Float64frombits(r.Uint64()); !math.IsNaN(f) && !math.IsInf(f, 0) {
				return strconv.FormatFloat(f, 'e', 17, 64)
			}
		}
	}
	float := func() string {
		for {
			if f := float64(math.Float32frombits(r.Uint32())); !math.IsNaN(f) && !math.IsInf(f, 0) {
				return strconv.FormatFloat(f, 'e', 17, 64)
			}
		}
	}
	plain := func() string {
		return strconv.FormatFloat(math.Trunc(r.NormFloat64()*math.Pow10(r.IntN(12)))/math.Pow10(r.IntN(8)), 'f', -1, 64)
	}
	floats := []string{"0e0", "-0e0", "1e0", "0.1e0", "1e6", "999999e0", "1234567e0", "16777216e0", "1e20", "1e21", "1e-4", "1e-5", "0.5e0", "1.5e0", "2.5e0", "100000.5e0", "1000005e0"}
	return append(types,
		valueType{column: "DOUBLE", literals: append(append(many(400, double), many(200, plain)...), append(floats, "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308")...)},
		valueType{column: "DOUBLE UNSIGNED ZEROFILL", literals: []string{"12.5", "1e10", "0.1e0", "5e-324"}},
		valueType{column: "DOUBLE(30,3)", literals: append(many(60, plain), floats...)},
		valueType{column: "FLOAT", literals: append(append(many(400, float), many(200, plain)...), append(floats, "1.17549435e-38", "3.40282346e38", "1e-45")...)},
		valueType{column: "FLOAT(20,2)", literals: append(many(60, plain), floats...)},
		valueType{column: "FLOAT(30)", literals: many(40, plain)}, // a DOUBLE by another name
		valueType{column: "BIT(1)", literals: []string{"b'0'", "b'1'", "NULL"}, key: true},
		valueType{column: "BIT(13)", literals: []string{"b'0'", "b'1000000000001'", "NULL"}, key: true},
		valueType{column: "BIT(64)", literals: []string{"~0", "1", "NULL"}, key: true},
	)
}

// decimalOf puts a point before the last digits.
func decimalOf(digits string, scale int) string {
	if scale == 0 {
		return digits
	}
	return "0" + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}

func timeTypes(r *rand.Rand) []valueType {
	instant := func(from, to int) time.Time {
		start := time.Date(from, 1, 1, 0, 0, 1, 0, time.UTC)
		seconds := time.Date(to, 1, 1, 0, 0, 0, 0, time.UTC).Unix() - start.Unix()
		return start.Add(time.Duration(r.Int64N(1e9))).AddDate(0, 0, int(r.Int64N(seconds/86400))).Add(time.Duration(r.Int64N(86400)) * time.Second)
	}
	literal := func(t time.Time) string { return t.Format("'2006-01-02 15:04:05.000000'") }
	types := []valueType{
		{column: "DATE", key: true, literals: append(many(9, func() string { return instant(1000, 9999).Format("'2006-01-02'") }),
			"'0000-00-00'", "'2024-00-00'", "'2024-02-00'", "'9999-12-31'", "'0001-01-01'", "'2024-02-29'")},
		{column: "YEAR", literals: []string{"0", "1901", "2155", "2024", "NULL"}},
	}
	for p := range 7 {
		suffix := map[bool]string{true: fmt.Sprintf("(%d)", p)}[p > 0]
		types = append(types,
			valueType{column: "DATETIME" + suffix, key: p%3 == 0, literals: append(many(12, func() string { return literal(instant(1000, 9998)) }),
				"'0000-00-00 00:00:00'", "'2024-00-00 12:00:00.5'", "'9999-12-31 23:59:59'", "'2024-03-10 02:30:00.123456'", "'2024-11-03 01:30:00'")},
			// By the zone of the test the clock was turned at 04:30 and 05:30 in these nights.
			valueType{column: "TIMESTAMP" + suffix, literals: append(many(12, func() string { return literal(instant(1970, 2038)) }),
				"'0000-00-00 00:00:00'", "'2024-03-10 05:29:59.9'", "'2024-03-10 05:30:00'", "'2024-11-03 04:00:00'", "'2024-11-03 05:00:00.000001'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'")},
			valueType{column: "TIME" + suffix, key: p%6 == 0, literals: append(many(12, func() string {
				return fmt.Sprintf("'%s%d:%02d:%02d.%06d'", [...]string{"", "-"}[r.IntN(2)], r.IntN(838), r.IntN(60), r.IntN(60), r.IntN(1e6))
			}), "'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:00.9'", "'-00:00:01'", "'-00:59:59.000001'")},
		)
	}
	return types
}

func stringTypes(r *rand.Rand) []valueType {
	bytesOf := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.UintN(256) * r.UintN(2))
		}
		return "x'" + hex.EncodeToString(b) + "'"
	}
	binary := func(most int) []string {
		return append(many(12, func() string { return bytesOf(r.IntN(most + 1)) }), "''", "x'00'", "x'20'", bytesOf(most))
	}
	texts := []string{"''", "'plain'", "'ä€😀'", "' lead and trail  '", "'line\\nbreak \\0 \\t quote \\' and \\\\'", "'{\"a\": \"b\", \"n\": 1.0}'", "'42'", "'2024-02-29 12:34:56.7'", "NULL"}
	long := func(n int) []string { return append([]string{fmt.Sprintf("REPEAT('ä', %d)", n/2)}, texts...) }
	types := []valueType{
		{column: "CHAR(40)", literals: texts, key: true}, {column: "CHAR(255)", literals: texts}, {column: "CHAR(0)", literals: []string{"''", "NULL"}},
		{column: "VARCHAR(40)", literals: texts, key: true}, {column: "VARCHAR(255)", literals: long(510)}, {column: "VARCHAR(300)", literals: long(600)},
		{column: "VARCHAR(300) CHARACTER SET utf8mb3", literals: long(600)},
		{column: "BINARY(1)", literals: binary(1), key: true}, {column: "BINARY(16)", literals: binary(16), key: true}, {column: "BINARY(255)", literals: binary(255)},
		{column: "VARBINARY(16)", literals: binary(16), key: true}, {column: "VARBINARY(300)", literals: binary(300)},
		{column: "ENUM('PENDING','it''s','ü,','42')", literals: []string{"1", "2", "3", "4", "0", "NULL"}, key: true},
		{column: "SET('a','b''c','ü')", literals: []string{"0", "1", "2", "5", "7", "NULL"}},
		{column: "GEOMETRY", literals: []string{"ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1)', 4326)", "NULL"}},
		{column: "POINT", literals: []string{"ST_GeomFromText('POINT(-1.5 2e10)')", "NULL"}},
		{column: "GEOMETRYCOLLECTION", literals: []string{"ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')", "NULL"}},
		{column: "VECTOR(3)", literals: []string{"STRING_TO_VECTOR('[1,-2.5,0]')", "NULL"}, only: testservers.FlavorMySQL},
		{column: "JSON", literals: []string{`'{"a": 1.0, "b": [null]}'`, `'"text"'`, "'null'", "NULL"}},
	}
	for prefix, n := range map[string]int{"TINY": 200, "": 60000, "MEDIUM": 70000, "LONG": 300000} {
		types = append(types, valueType{column: prefix + "TEXT", literals: long(n)}, valueType{column: prefix + "BLOB", literals: append(binary(200), fmt.Sprintf("REPEAT(x'00', %d)", n))})
	}
	return types
}

// charsetTypes are columns of text in all character sets. What a set lacks the
// server turns into question marks when it stores it.
func charsetTypes() []valueType {
	texts := []string{"''", "'plain'", "'café €  '", "'订单 訂單'", "'注文ﾁｭｳ\\\\~'", "'주문'", "'заказ'", "'παραγγελία'", "'הזמנה طلب'", "'😀'", "'õäöü}{|'", "NULL"}
	var types []valueType
	for _, name := range strings.Fields("armscii8 ascii big5 cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 cp932 dec8 eucjpms euckr gb18030 gb2312 gbk geostd8 " +
		"greek hebrew hp8 keybcs2 koi8r koi8u latin1 latin2 latin5 latin7 macce macroman sjis swe7 tis620 ucs2 ujis utf16 utf16le utf32 utf8mb3") {
		only := map[bool]string{true: testservers.FlavorMySQL}[name == "gb18030"]
		set := " CHARACTER SET " + name
		types = append(types,
			valueType{column: "VARCHAR(40)" + set, literals: texts, key: strings.Contains("latin1 gbk sjis koi8r utf16", name), only: only},
			valueType{column: "CHAR(20)" + set + " COLLATE " + name + "_bin", literals: texts, only: only},
			valueType{column: "MEDIUMTEXT" + set, literals: append([]string{"REPEAT('€a', 20000)"}, texts...), only: only},
			valueType{column: "ENUM('plain','äö','订单')" + set, literals: []string{"1", "NULL"}, only: only},
			valueType{column: "SET('plain','b')" + set, literals: []string{"1", "3", "0", "NULL"}, only: only})
	}
	return types
}

func mariadbTypes(r *rand.Rand) []valueType {
	uuid := func() string {
		b := make([]byte, 16)
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
		b[6], b[8] = b[6]&0x0f|byte(r.IntN(9))<<4, b[8]&0x3f|0x80
		return "'" + hex.EncodeToString(b) + "'"
	}
	inet6 := func() string {
		var groups []string
		for range 8 {
			groups = append(groups, strconv.FormatUint(r.Uint64()>>(48+r.UintN(17))*r.Uint64N(2), 16))
		}
		return "'" + strings.Join(groups, ":") + "'"
	}
	inet4 := func() string {
		return fmt.Sprintf("'%d.%d.%d.%d'", r.IntN(256), r.IntN(256), r.IntN(2)*r.IntN(256), r.IntN(2)*r.IntN(256))
	}
	types := []valueType{
		{column: "UUID", literals: append(many(60, uuid), "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"), key: true},
		{column: "INET6", literals: append(many(200, inet6), "'::'", "'::1'", "'::ffff:10.0.0.1'", "'::10.0.0.1'", "'0:0:0:0:0:fffe:a00:1'", "'::1.0.0.0'"), key: true},
		{column: "INET4", literals: append(many(20, inet4), "'0.0.0.0'", "'255.255.255.255'"), key: true},
		{column: "YEAR(2)", literals: []string{"2024", "1970", "0", "NULL"}},
		{column: "MEDIUMTEXT COMPRESSED", literals: []string{"REPEAT('ä', 70000)", "'short'", "''", "NULL"}},
		{column: "VARCHAR(500) COMPRESSED", literals: []string{"REPEAT('ä', 400)", "'short'", "NULL"}},
		{column: "BLOB COMPRESSED", literals: []string{"REPEAT(x'00', 60000)", "x'8a'", "''", "NULL"}},
		{column: "TEXT COMPRESSED CHARACTER SET gbk", literals: []string{"REPEAT('订单', 4000)", "'单'", "NULL"}},
	}
	for i := range types {
		types[i].only = testservers.FlavorMariaDB
	}
	return types
}
