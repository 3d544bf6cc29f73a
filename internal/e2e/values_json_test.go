package e2e

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/testservers"
)

// JSON is published as a SELECT prints it, on both paths: documents written as
// text, documents of every SQL type that can be inside one, large ones and deep
// ones, and whatever a generator comes up with.
func TestBothPathsPrintTheSameJSON(t *testing.T) {
	valueServers(t, func(t *testing.T, s *testservers.DB) {
		w := newBothWays(t, s)
		w.table("docs", "id BIGINT PRIMARY KEY, payload JSON, headers JSON")
		documents := append(jsonTexts(), randomJSON(300)...)
		if s.Flavor() == testservers.FlavorMySQL {
			documents = append(append(documents, typedJSON()...), jsonDoubles(200)...)
			w.session(jsonSource...)
		}
		for i, d := range documents {
			w.insert("docs", fmt.Sprint(i), d, documents[(i+1)%len(documents)])
		}
		nulls := 0
		for _, e := range w.compare() {
			if e.Payload == nil {
				nulls++
			}
		}
		if nulls > 20 { // numbers that are no double are refused
			t.Errorf("%d documents were not stored", nulls)
		}
	})
}

// quoted is a text as a literal of SQL.
func quoted(text string) string {
	return "CONVERT(x'" + hex.EncodeToString([]byte(text)) + "' USING utf8mb4)"
}

func jsonTexts() []string {
	texts := []string{
		`{}`, `[]`, `null`, `true`, `false`, `""`, `"x"`, `0`, `-0`, `-0.0`, `1.0`, `1e300`, `5e-324`, `1e-400`, `1.7976931348623157e308`,
		`[0, 1, -1, 32767, 32768, -32768, -32769, 65535, 65536, 2147483647, 2147483648, -2147483648, -2147483649, 4294967295, 4294967296]`,
		`[9223372036854775807, 9223372036854775808, -9223372036854775808, -9223372036854775809, 18446744073709551615, 18446744073709551616]`,
		`[1.10, 100, 100.0, 1e2, 1E+2, 0.1e1, 123456789012345678901234567890, 0.1234567890123456789]`,
		`{"b": 1, "a": 2, "aa": 3, "": 4, "ä": 5, "😀": 6, "B": 7}`, `{"a": 1, "a": 2, "b": {"c": 1, "c": [2]}}`,
		`"\u0000\u0001\u001f\u007f\u0080\b\f\n\r\t\"\\\/"`, `"\u00e4\u20ac\ud83d\ude00"`, `"ä€😀<&>'` + "\u2028\u2029" + `"`,
		` { "spaces" : [ 1 , 2 ] } `, `[[[[]]]]`, `{"a": {"b": {"c": {}}}}`, `"2024-02-29 12:34:56"`, `"base64:type15:AAE="`,
		strings.Repeat("[", 99) + `"deep"` + strings.Repeat("]", 99), strings.Repeat("[", 100) + strings.Repeat("]", 100),
		strings.Repeat(`{"k": [`, 49) + "1" + strings.Repeat("]}", 49),
		`"` + strings.Repeat("x", 127) + `"`, `"` + strings.Repeat("x", 128) + `"`, `"` + strings.Repeat("ä", 10000) + `"`,
	}
	for _, n := range []int{100, 3000, 20000} { // the last ones need the large format
		var keys, mixed []string
		for i := range n {
			keys = append(keys, fmt.Sprintf(`"key%d": %d`, i, i))
			mixed = append(mixed, [...]string{"null", "1", "70000", "-5000000000", "1.5", `"text"`, "[]", "{}", "true"}[i%9])
		}
		texts = append(texts, "{"+strings.Join(keys, ", ")+"}", "["+strings.Join(mixed, ", ")+"]", fmt.Sprintf(`{"a": [%s], "z": {%s}}`, strings.Join(mixed, ","), strings.Join(keys, ",")))
	}
	for _, n := range []int{16383, 65535, 65536, 200000, 2100000} {
		texts = append(texts, fmt.Sprintf(`{"big": "%s", "small": 1, "list": [70000, 1, null]}`, strings.Repeat("y", n)))
	}
	for i, text := range texts {
		texts[i] = quoted(text)
	}
	return append(texts, "NULL")
}

// jsonSource is a table of columns of SQL types, for documents made of them.
var jsonSource = []string{
	`CREATE TABLE src (id INT PRIMARY KEY, ts TIMESTAMP(6) NULL, t0 TIMESTAMP NULL, dt DATETIME(3), d DATE, tm TIME(2), y YEAR, bi BIT(12), b8 BIT(64),
  bn BINARY(4), vb VARBINARY(200), tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB, de DECIMAL(65,30), d0 DECIMAL(20,0), f FLOAT, db DOUBLE, e ENUM('x','ü'), s SET('a','b'),
  v VARCHAR(20), l VARCHAR(20) CHARACTER SET latin1, u BIGINT UNSIGNED, i TINYINT, bo BOOL, ge GEOMETRY, po POINT)`,
	`INSERT INTO src VALUES (1, '2024-07-01 12:00:00.000001', '2024-07-01 12:00:00', '2024-02-29 23:59:59.007', '2024-02-29', '-12:34:56.78', 2024, b'100000000001', ~0,
  x'01020000', REPEAT(x'00ff', 90), x'00', x'0102', REPEAT(x'ab', 57), REPEAT(x'cd', 300), -12345.678, 12345678901234567890, 0.1, 0.1, 'ü', 'a,b',
  'ä😀', 'é', 18446744073709551615, -128, TRUE, ST_GeomFromText('LINESTRING(0 0,1.5 -1)'), ST_GeomFromText('POINT(1 2)', 4326))`,
}

// typedJSON is what only expressions put into MySQL's binary JSON.
func typedJSON() []string {
	fromSource := func(e string) string { return "(SELECT " + e + " FROM src)" }
	list := []string{
		"CAST('1' AS JSON)", "CAST(1.0 AS JSON)", "CAST(1e0 AS JSON)", "CAST(NULL AS JSON)", "CAST(TRUE AS JSON)", "CAST(CAST(1 AS UNSIGNED) AS JSON)",
		"CAST(CAST('2024-02-29' AS DATE) AS JSON)", "CAST(TIMESTAMP'2024-02-29 12:34:56.7' AS JSON)", "CAST(TIME'-838:59:59' AS JSON)", "CAST(x'00ff' AS JSON)",
		"CAST(CAST(2024 AS YEAR) AS JSON)", "JSON_OBJECT('d', 1.50, 'n', -0.001, 'big', 12345678901234567890.123, 'zero', 0.00)",
		"JSON_ARRAY(CAST('-00:00:00.000001' AS TIME(6)), CAST('00:00:00' AS TIME), CAST('838:59:59' AS TIME), CAST('-01:00:00.5' AS TIME(1)))",
		"JSON_ARRAY(CAST('1000-01-01' AS DATE), CAST('9999-12-31 23:59:59.999999' AS DATETIME(6)), CAST('0000-00-00' AS DATE), CAST('0000-00-00 00:00:00' AS DATETIME), CAST('2024-00-00' AS DATE))",
		"JSON_ARRAY(b'', b'1', b'100000001', x'', x'00', REPEAT(x'ab', 57), REPEAT(x'ab', 58), REPEAT(x'ab', 114), REPEAT(x'ab', 70000))",
		"CAST(ST_GeomFromText('POINT(1 2)') AS JSON)", "CAST(ST_GeomFromText('POLYGON((0 0,0 1.5,1 1,0 0))') AS JSON)",
		"JSON_MERGE_PATCH('{\"a\":1}', JSON_OBJECT('b', CAST('2024-02-29' AS DATE)))", "JSON_SET('{\"a\":1}', '$.a', 1.10, '$.b', x'01')",
		"JSON_REMOVE('{\"a\":1,\"b\":[1,2,3]}', '$.b[1]')", "JSON_QUOTE('a\"b')", "JSON_ARRAY(JSON_ARRAY(), JSON_OBJECT(), NULL, 'text', JSON_QUOTE('x'))",
		"JSON_ARRAY(PI(), 1/3, 1/3e0, POW(2, 70), 2e0/3, -1e-7, 1e15, 1e16, 1e17)",
		fromSource("JSON_ARRAYAGG(JSON_OBJECT('ts', ts, 'd', d))"), fromSource("JSON_OBJECTAGG(v, de)"),
	}
	for _, column := range strings.Fields("ts t0 dt d tm y bi b8 bn vb tb bl mb lb de d0 f db e s v l u i bo") {
		list = append(list, fromSource("JSON_OBJECT('v', "+column+")"), fromSource("JSON_ARRAY("+column+", NULL, "+column+")"))
	}
	for _, column := range strings.Fields("ts t0 dt d tm y bi b8 bn vb bl de d0 f db u i ge po") {
		list = append(list, fromSource("CAST("+column+" AS JSON)"))
	}
	return list
}

// jsonDoubles are random doubles, as they are and as numbers people write.
func jsonDoubles(n int) []string {
	r := rand.New(rand.NewPCG(7, 7))
	var list []string
	for range n {
		var numbers []string
		for len(numbers) < 6 {
			f := math.Float64frombits(r.Uint64())
			switch r.IntN(3) {
			case 0:
				f = math.Trunc(r.NormFloat64()*math.Pow10(r.IntN(20))) / math.Pow10(r.IntN(20))
			case 1:
				f = float64(int64(r.Uint64()) >> r.UintN(64))
			}
			if !math.IsNaN(f) && !math.IsInf(f, 0) {
				numbers = append(numbers, strconv.FormatFloat(f, 'e', -1, 64))
			}
		}
		list = append(list, "JSON_ARRAY("+strings.Join(numbers, ", ")+")")
	}
	return list
}

// randomJSON are documents of all shapes, as text.
func randomJSON(n int) []string {
	number := rapid.OneOf(
		rapid.Map(rapid.Int64(), func(i int64) string { return strconv.FormatInt(i, 10) }),
		rapid.Map(rapid.Uint64(), func(i uint64) string { return strconv.FormatUint(i, 10) }),
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?`))
	text := rapid.Map(rapid.String(), func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			panic(err) // a string always has a form in JSON
		}
		return string(b)
	})
	value := rapid.OneOf(number, text, rapid.SampledFrom([]string{"null", "true", "false", "[]", "{}"}))
	for range 4 {
		inner := value
		array := rapid.Map(rapid.SliceOfN(inner, 0, 9), func(v []string) string { return "[" + strings.Join(v, ",") + "]" })
		object := rapid.Custom(func(t *rapid.T) string {
			var entries []string
			for range rapid.IntRange(0, 9).Draw(t, "n") {
				entries = append(entries, text.Draw(t, "key")+":"+inner.Draw(t, "value"))
			}
			return "{" + strings.Join(entries, ",") + "}"
		})
		value = rapid.OneOf(inner, array, object)
	}
	var list []string
	for i := range n {
		list = append(list, quoted(value.Example(i)))
	}
	return list
}
