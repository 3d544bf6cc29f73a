package binlog

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// corpus is a column type with literals to store in it.
type corpus struct {
	column   string
	literals []string
	unread   bool   // not certain from the binlog: read by key, not guessed
	only     string // flavour

	expression string // by which the ledger asks for it; empty: the column
}

var valueCorpus = []corpus{
	{column: "TINYINT", literals: []string{"-128", "127", "0", "NULL"}},
	{column: "TINYINT UNSIGNED", literals: []string{"255"}},
	{column: "SMALLINT", literals: []string{"-32768", "32767"}},
	{column: "SMALLINT UNSIGNED", literals: []string{"65535"}},
	{column: "MEDIUMINT", literals: []string{"-8388608", "8388607", "-1"}},
	{column: "MEDIUMINT UNSIGNED", literals: []string{"16777215"}},
	{column: "INT", literals: []string{"-2147483648", "2147483647"}},
	{column: "INT UNSIGNED", literals: []string{"4294967295"}},
	{column: "INT(7) ZEROFILL", literals: []string{"42", "0", "123456789"}},
	{column: "BIGINT", literals: []string{"-9223372036854775808", "9223372036854775807"}},
	{column: "BIGINT UNSIGNED", literals: []string{"18446744073709551615"}},
	{column: "DECIMAL(10,2)", literals: []string{"0", "-0.01", "12345678.90", "-99999999.99"}},
	{column: "DECIMAL(65,30)", literals: []string{"12345678901234567890123456789012345.123456789012345678901234567890", "-0.000000000000000000000000000001", "1"}},
	{column: "DECIMAL(9,0)", literals: []string{"999999999", "-1", "0"}},
	{column: "DECIMAL(9,9)", literals: []string{"0.5", "-0.000000001"}},
	{column: "DECIMAL(20,0)", literals: []string{"10000000000000000000", "1000000000"}},
	{column: "FLOAT", literals: []string{"1.5", "-0e0", "0.1", "16777216", "1e38", "-1.17549435e-38", "123456789", "3.1415926"}},
	{column: "FLOAT(10,3)", literals: []string{"1.5", "-12345.678", "9999999.999"}},
	{column: "DOUBLE", literals: []string{"0.1", "-0e0", "1e300", "5e-324", "1.7976931348623157e308", "123456789012345678", "1e6", "2e20", "1e21"}},
	{column: "DOUBLE(20,4)", literals: []string{"0.1", "-12345.6789", "1e10"}},
	{column: "BIT(1)", literals: []string{"b'1'", "b'0'"}, expression: "payload + 0"},
	{column: "BIT(12)", literals: []string{"b'100000000001'"}, expression: "payload + 0"},
	{column: "BIT(64)", literals: []string{"~0", "0"}, expression: "payload + 0"},
	{column: "YEAR(2)", literals: []string{"2024", "1999", "0"}, only: testservers.FlavorMariaDB},
	{column: "YEAR", literals: []string{"2024", "1901", "0"}},
	{column: "DATE", literals: []string{"'2024-02-29'", "'0000-00-00'", "'2024-00-00'", "'9999-12-31'"}},
	{column: "TIME", literals: []string{"'12:34:56'", "'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"}},
	{column: "TIME(1)", literals: []string{"'-00:00:01.1'", "'12:34:56'", "'00:00:00.1'"}},
	{column: "TIME(3)", literals: []string{"'-00:00:01.123'", "'12:34:56.007'", "'00:00:00'"}},
	{column: "TIME(6)", literals: []string{"'-00:00:01.123456'", "'-00:00:00.000001'", "'12:34:56.000007'"}},
	{column: "DATETIME", literals: []string{"'2024-02-29 23:59:59'", "'0000-00-00 00:00:00'", "'2024-00-00 01:02:03'"}},
	{column: "DATETIME(2)", literals: []string{"'2024-02-29 23:59:59.07'", "'0000-00-00 00:00:00'"}},
	{column: "DATETIME(3)", literals: []string{"'2024-02-29 23:59:59.007'", "'2024-02-29 23:59:59'"}},
	{column: "DATETIME(5)", literals: []string{"'2024-02-29 23:59:59.00007'"}},
	{column: "DATETIME(6)", literals: []string{"'2024-02-29 23:59:59.000007'"}},
	{column: "TIMESTAMP NULL", literals: []string{"'2024-07-01 12:00:00'", "'0000-00-00 00:00:00'", "NULL"}},
	{column: "TIMESTAMP(1) NULL", literals: []string{"'2024-07-01 12:00:00.9'"}},
	{column: "TIMESTAMP(4) NULL", literals: []string{"'2024-07-01 12:00:00.0009'", "'0000-00-00 00:00:00'"}},
	{column: "TIMESTAMP(6) NULL", literals: []string{"'2024-07-01 12:00:00.000009'"}},
	{column: "CHAR(5)", literals: []string{"'ab'", "''", "'ä€😀'", "'ab  '"}},
	{column: "CHAR(255)", literals: []string{"REPEAT('€', 255)"}},
	{column: "VARCHAR(20)", literals: []string{"'ab '", "''", "'ä€😀\\n\\0'"}},
	{column: "VARCHAR(300)", literals: []string{"REPEAT('x', 300)", "'short'"}},
	{column: "VARCHAR(20) CHARACTER SET ascii", literals: []string{"'plain'"}},
	{column: "VARCHAR(20) CHARACTER SET latin1", literals: []string{"'plain'"}},
	{column: "VARCHAR(20) CHARACTER SET utf8mb3", literals: []string{"'caf\u00e9'"}},
	{column: "TEXT CHARACTER SET latin1 COLLATE latin1_bin", literals: []string{"'caf\u00e9'", "x'818D8F909D80'", "''"}},
	{column: "VARCHAR(20) CHARACTER SET gbk", literals: []string{"'订单'", "''", "x'A140'"}},
	{column: "VARCHAR(20) CHARACTER SET ucs2", literals: []string{"'plain'", "x'D800'"}},
	{column: "CHAR(9) CHARACTER SET utf16", literals: []string{"'ab'", "'😀 '", "''"}},
	{column: "CHAR(9) CHARACTER SET utf32", literals: []string{"'ab'", "'😀 '", "''"}},
	{column: "CHAR(9) CHARACTER SET swe7", literals: []string{"'ab}'", "'ö '", "''"}},
	{column: "VARCHAR(9) CHARACTER SET ujis", literals: []string{"x'8FB0A1'", "x'8EB1'"}},
	{column: "VARCHAR(9) CHARACTER SET ujis", literals: []string{"x'8EA0'"}, unread: true, only: testservers.FlavorMySQL},
	{column: "ENUM('a','caf\u00e9','€') CHARACTER SET latin1", literals: []string{"'caf\u00e9'", "3", "''"}},
	{column: "SET('订单','b','单') CHARACTER SET gbk", literals: []string{"'订单,单'", "''", "2"}},
	{column: "ENUM('订单','€') CHARACTER SET utf16", literals: []string{"1", "2"}},
	{column: "ENUM('订单','what?')", literals: []string{"1"}},
	{column: `ENUM('a\\b','c\nd','e"f','g\'h')`, literals: []string{"1", "2", "3", "4"}},
	{column: "ENUM('a','b') CHARACTER SET binary", literals: []string{"1", "2"}},
	{column: "GEOMETRY", literals: []string{"ST_GeomFromText('POINT(1 2)')", "NULL"}},
	{column: "POINT", literals: []string{"ST_GeomFromText('POINT(1 2)', 4326)"}},
	{column: "POLYGON", literals: []string{"ST_GeomFromText('POLYGON((0 0, 0 1, 1 1, 0 0))')"}},
	{column: "VECTOR(3)", literals: []string{"STRING_TO_VECTOR('[1,2.5,0]')"}, only: testservers.FlavorMySQL},
	{column: "BINARY(4)", literals: []string{"x'01020000'", "x'00'", "x'ffffffff'", "''"}},
	{column: "BINARY(16)", literals: []string{"x'11223344556677889900AABBCCDDEE00'"}},
	{column: "VARBINARY(300)", literals: []string{"x'01020000'", "REPEAT(x'00', 280)"}},
	{column: "TINYBLOB", literals: []string{"x'00ff'"}},
	{column: "BLOB", literals: []string{"x'00ff'", "''"}},
	{column: "MEDIUMBLOB", literals: []string{"REPEAT(x'ab', 70000)"}},
	{column: "LONGBLOB", literals: []string{"x'00ff'"}},
	{column: "TINYTEXT", literals: []string{"'ä'"}},
	{column: "TEXT", literals: []string{"'ä😀'"}},
	{column: "MEDIUMTEXT", literals: []string{"REPEAT('ä', 70000)"}},
	{column: "LONGTEXT", literals: []string{"'{\"a\":1.0}'"}},
	{column: "ENUM('a','it''s','ü,')", literals: []string{"'a'", "2", "'ü,'", "NULL"}},
	{column: "SET('a','b''c','d')", literals: []string{"'a,d'", "''", "'b''c'", "7"}},
	{column: "UUID", literals: []string{"'f81d4fae-7dec-11d0-a765-00a0c91e6bf6'", "'550e8400-e29b-41d4-a716-446655440000'", "'018f6d2e-9c1b-7b3a-8f00-0123456789ab'", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"}, only: testservers.FlavorMariaDB},
	{column: "INET6", literals: []string{"'::1'", "'::'", "'1:0:2::3'", "'1:0:2:0:3:0:4:0'", "'2001:db8::'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'fe80::1:0:0:1'"}, only: testservers.FlavorMariaDB},
	{column: "INET4", literals: []string{"'1.2.3.4'", "'10.0.0.0'", "'0.0.0.0'"}, only: testservers.FlavorMariaDB},
	{column: "MEDIUMTEXT COMPRESSED", literals: []string{"REPEAT('ä', 70000)", "'short'", "''"}, only: testservers.FlavorMariaDB},
	{column: "VARCHAR(3000) COMPRESSED", literals: []string{"REPEAT('ä', 2000)", "'short'", "''"}, only: testservers.FlavorMariaDB},
	{column: "VARCHAR(60) COMPRESSED", literals: []string{"REPEAT('ä', 60)"}, only: testservers.FlavorMariaDB},
	{column: "VARBINARY(300) COMPRESSED", literals: []string{"REPEAT(x'00', 300)", "x'00'", "x'8a'"}, only: testservers.FlavorMariaDB},
	{column: "LONGBLOB COMPRESSED", literals: []string{"REPEAT(x'00ff', 300000)"}, only: testservers.FlavorMariaDB},
	{column: "TEXT COMPRESSED CHARACTER SET latin1", literals: []string{"REPEAT('é', 300)", "'é'"}, only: testservers.FlavorMariaDB},
	{column: "JSON", literals: jsonCorpus},
	{column: "JSON", literals: mysqlJSONCorpus, only: testservers.FlavorMySQL},
}

var jsonCorpus = []string{
	"'{}'", "'[]'", "'null'", "'true'", "'\"x\"'", "'1'", "'{\"b\":1,\"a\":[1,2,{\"c\":null}],\"aa\":false}'",
	"'{\"amount\":1.0,\"big\":18446744073709551615,\"neg\":-9223372036854775808}'",
	"'[-1,32767,32768,-32769,65535,65536,2147483647,2147483648,-2147483649,4294967295,4294967296]'",
	"'\"q\\\\\"b\\\\\\\\n\\\\n\\\\t\\\\u0001\\\\u001f/ä€😀<&>\\\\u007f\"'", "NULL",
	"CONCAT('{\"k\":\"', REPEAT('x', 70000), '\",\"n\":1}')", "CONCAT('[', REPEAT('100000,', 20000), '1]')",
}

// mysqlJSONCorpus is what only MySQL's binary JSON can hold, and doubles around
// every change of form.
var mysqlJSONCorpus = []string{
	"JSON_ARRAY(1e0, 0e0, -0e0, 1.5e0, 0.1e0, -2.5e-3, 1e14, 1e15, 1e16, 1e17, 123456789012345678e0, 1234567890123456e0, 12345678901234567890e0)",
	"JSON_ARRAY(1e-4, 1e-5, 1e-10, 1e-13, 1e-14, 1e-15, 1e-16, 1.25e-14, 1.25e-15, 1e100, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 1e22, 1e21)",
	"JSON_ARRAY(0.30000000000000004e0, 9007199254740993e0, 100e0, 1e2, 3.14e0, 1/3e0, 2/3e0, 1e15 + 0.5e0, 123456789012345.6e0)",
	"JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST(-0.001 AS DECIMAL(10,3)), 12345678901234567890.123)",
	"JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('2024-02-29 12:34:56.789' AS DATETIME(6)), CAST('2024-02-29 12:34:56' AS DATETIME), TIMESTAMP('2024-02-29 12:34:56.5'))",
	"JSON_ARRAY(CAST('-12:34:56.5' AS TIME(3)), CAST('838:59:59' AS TIME), CAST('00:00:00' AS TIME))",
	"JSON_ARRAY(x'00ff', b'101', CAST(2024 AS YEAR), REPEAT(x'ab', 57), REPEAT(x'ab', 58), REPEAT(x'ab', 200))",
	"CAST(x'0102' AS JSON)", "CAST(CAST('2024-02-29' AS DATE) AS JSON)", "CONCAT(REPEAT('[', 90), REPEAT(']', 90))", "JSON_OBJECT('z', 1e0, 'a', JSON_ARRAY(), 'bb', JSON_OBJECT())",
}

// The text from the binlog is the text of a SELECT, for every type, in a session
// of the layout's zone.
func TestValuesAreWhatASelectPrints(t *testing.T) {
	zone, err := time.LoadLocation("America/St_Johns") // half an hour off, with summer time
	if err != nil {
		t.Fatal(err)
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		metadata := "FULL"
		switch server {
		case testservers.SharedMySQLNoGTID(t):
			metadata = "MINIMAL"
		case testservers.SharedMariaDB1011(t):
			metadata = "NO_LOG"
		}
		testValues(t, server, metadata, zone)
	})
}

func testValues(t *testing.T, server *testservers.DB, metadata string, zone *time.Location) {
	g := newRig(t, server, outboxDDL, "SET GLOBAL binlog_row_metadata = "+metadata)
	defer g.exec("SET GLOBAL binlog_row_metadata = " + defaultMetadata(server))
	var cases []corpus
	for _, c := range valueCorpus {
		if c.only == "" || c.only == server.Flavor() {
			cases = append(cases, c)
		}
	}
	var inserts []string
	for i, c := range cases {
		table := fmt.Sprintf("v%d", i)
		g.exec("CREATE TABLE " + table + " (id INT PRIMARY KEY, payload " + c.column + ") CHARACTER SET utf8mb4")
		for n, literal := range c.literals {
			inserts = append(inserts, fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", table, n, literal))
		}
		layout, err := outbox.ReadTable(t.Context(), g.db, outbox.Table{Schema: g.schema, Name: table}, outbox.Options{Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		g.config.Layouts[layout.Table] = layout
	}
	tl := g.tail("now")
	g.session(append([]string{"SET SESSION sql_mode = '', time_zone = '+00:00'", "SET NAMES utf8mb4"}, inserts...)...)
	got := map[string]*outbox.Event{}
	for _, e := range g.flush(tl) {
		got[e.Table.Name+"/"+e.ID] = e
	}
	for i, c := range cases {
		for n, literal := range c.literals {
			compareWithSelect(t, g, c, literal, got[fmt.Sprintf("v%d/%d", i, n)], fmt.Sprintf("v%d WHERE id = %d", i, n), zone)
		}
	}
}

func defaultMetadata(server *testservers.DB) string {
	if server.Flavor() == testservers.FlavorMariaDB {
		return "NO_LOG"
	}
	return "MINIMAL"
}

func compareWithSelect(t *testing.T, g *rig, c corpus, literal string, e *outbox.Event, from string, zone *time.Location) {
	t.Helper()
	what := fmt.Sprintf("%s %.60s", c.column, literal)
	if e == nil {
		t.Errorf("%s: no event", what)
		return
	}
	if (e.Unread != "") != c.unread {
		t.Errorf("%s: unread %q", what, e.Unread)
		return
	}
	if c.unread {
		return
	}
	var want sql.RawBytes
	expression := c.expression
	if expression == "" {
		expression = "payload"
	}
	rows, err := g.zoned(zone).Query("SELECT " + expression + " FROM " + from)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&want); err != nil {
			t.Fatal(err)
		}
		if (want == nil) != (e.Payload == nil) || string(want) != string(e.Payload) {
			t.Errorf("%s: binlog %s, SELECT %s", what, excerpt(e.Payload), excerpt(want))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func excerpt(b []byte) string {
	s := fmt.Sprintf("%q", b)
	if b == nil {
		return "NULL"
	}
	if len(s) > 500 {
		return s[:250] + "..." + s[len(s)-250:]
	}
	return s
}

// zoned is a pool whose sessions are in a zone, without the zone tables of MySQL:
// the offset is that of the test's dates in summer or winter.
func (g *rig) zoned(zone *time.Location) *sql.DB {
	g.t.Helper()
	if g.zonedDB == nil {
		cfg, err := mysql.ParseDSN(g.server.DSN(g.schema))
		if err != nil {
			g.t.Fatal(err)
		}
		_, offset := time.Date(2024, 7, 1, 12, 0, 0, 0, time.UTC).In(zone).Zone()
		sign := map[bool]string{true: "-", false: "+"}[offset < 0]
		abs := max(offset, -offset)
		cfg.Params = map[string]string{"time_zone": fmt.Sprintf("'%s%02d:%02d'", sign, abs/3600, abs/60%60)}
		cfg.Collation = "utf8mb4_general_ci"
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			g.t.Fatal(err)
		}
		g.zonedDB = sql.OpenDB(connector)
		g.t.Cleanup(func() { g.zonedDB.Close() })
	}
	return g.zonedDB
}

func TestParseLabels(t *testing.T) {
	for text, want := range map[string][]string{
		"enum('a','it''s','ü,','')": {"a", "it's", "ü,", ""},
		"set('x')":                  {"x"},
		"enum()":                    nil,
		"enum('broken":              {"broken"},
		`enum('a\\b','\n\r\0')`:     {`a\b`, "\n\r\x00"},
	} {
		wantStrings(t, text, parseLabels(text), want)
	}
}

func TestMentions(t *testing.T) {
	for text, want := range map[string]bool{
		"ALTER TABLE outbox ADD x INT":        true,
		"alter table `app`.`OUTBOX` drop y":   true,
		"ALTER TABLE outbox_old ADD x INT":    false,
		"ALTER TABLE my_outbox ADD x INT":     false,
		"RENAME TABLE a TO outbox, b TO c":    true,
		"DROP TABLE app.outbox":               true,
		"CREATE TABLE outbox" + "\u00e9" + "": false,
		strings.Repeat("x", 10):               false,
	} {
		if got := mentions([]byte(text), "outbox"); got != want {
			t.Errorf("mentions(%q) = %v", text, got)
		}
	}
}

// information_schema knows three-byte UTF-8 only: a question mark in a label of the
// layout may be any other character, and is not believed.
func TestLabelsThatTheSchemaCannotSpellAreNotBelieved(t *testing.T) {
	labels := []string{"😀", "what?", "plain"}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for _, metadata := range []string{"FULL", defaultMetadata(server)} {
			g := newRig(t, server, outboxDDL, "SET GLOBAL binlog_row_metadata = "+metadata,
				"CREATE TABLE v (id INT PRIMARY KEY, payload ENUM('"+strings.Join(labels, "','")+"')) CHARACTER SET utf8mb4")
			g.watch("outbox", "v")
			tl := g.tail("now")
			g.session("SET SESSION sql_mode = ''", "SET NAMES utf8mb4", "INSERT INTO v VALUES (1, 1), (2, 2), (3, 3)")
			for i, e := range g.flush(tl) {
				sure := e.Unread == ""
				if sure && string(e.Payload) != labels[i] || !sure && (metadata == "FULL" || i == 2) {
					t.Errorf("%s: row %s is %q, unread %q; want %q", metadata, e.ID, e.Payload, e.Unread, labels[i])
				}
			}
			g.exec("SET GLOBAL binlog_row_metadata = " + defaultMetadata(server))
		}
	})
}

// A row of NULLs takes fewer bytes than it has columns.
func TestRowsOfNothingButNulls(t *testing.T) {
	columns := "id TINYINT PRIMARY KEY, payload TEXT, v VECTOR(3), l TEXT CHARACTER SET latin1"
	for i := range 300 {
		columns += fmt.Sprintf(", c%d INT", i)
	}
	flavours(t, func(t *testing.T, server *testservers.DB) {
		if server.Flavor() == testservers.FlavorMariaDB {
			columns = strings.Replace(columns, "VECTOR(3)", "GEOMETRY", 1)
		}
		g := newRig(t, server, outboxDDL, "CREATE TABLE v ("+columns+") CHARACTER SET utf8mb4")
		g.watch("outbox", "v")
		tl := g.tail("now")
		g.exec("INSERT INTO v (id) VALUES (7)", "INSERT INTO v (id, payload) VALUES (8, 'x')")
		events := g.flush(tl)
		wantStrings(t, "ids", ids(events), []string{"7", "8"})
		wantStrings(t, "payloads", payloads(events), []string{"", "x"})
		for _, e := range events {
			if e.Unread != "" {
				t.Errorf("row %s is unread: %s", e.ID, e.Unread)
			}
		}
	})
}

// Tables from before MariaDB 10.0 hold times in older forms, whose length only the
// layout tells: a wrong one would shift all columns behind.
func TestOldTimesOfMariaDB(t *testing.T) {
	values := map[string][]string{
		"DATETIME":       {"'2024-02-29 12:34:56.789123'", "'0000-00-00 00:00:00'", "'9999-12-31 23:59:59.999999'", "'2024-00-00 01:02:03.4'", "NULL"},
		"TIMESTAMP NULL": {"'2024-02-29 12:34:56.789123'", "'0000-00-00 00:00:00'", "'2038-01-19 03:14:07.999999'", "'1970-01-01 00:00:01'", "NULL"},
		"TIME":           {"'12:34:56.789123'", "'00:00:00'", "'-838:59:59.999999'", "'838:59:59'", "'-00:00:00.1'", "NULL"},
	}
	for _, metadata := range []string{"FULL", "NO_LOG"} {
		g := newRig(t, testservers.SharedMariaDB(t), outboxDDL, "SET GLOBAL mysql56_temporal_format = OFF", "SET GLOBAL binlog_row_metadata = "+metadata)
		var names, inserts []string
		for kind, literals := range values {
			base, null, _ := strings.Cut(kind, " ")
			for p := range 7 {
				name := strings.ToLower(fmt.Sprintf("%s%d", base, p))
				names = append(names, name)
				// A column in front and one behind, which are shifted if the length is wrong.
				g.exec(fmt.Sprintf("CREATE TABLE %s (other %s(%d) %s, id INT PRIMARY KEY, payload %s(%d) %s, tag VARCHAR(9))", name, base, p, null, base, p, null))
				for i, v := range literals {
					inserts = append(inserts, fmt.Sprintf("INSERT INTO %s VALUES (%s, %d, %s, 'tag')", name, v, i, v))
				}
			}
		}
		g.exec("SET GLOBAL mysql56_temporal_format = ON", "SET GLOBAL binlog_row_metadata = NO_LOG")
		g.watch(append(names, "outbox")...)
		tl := g.tail("now")
		g.session("SET GLOBAL binlog_row_metadata = " + metadata)
		g.session(append([]string{"SET SESSION sql_mode = '', time_zone = '+00:00'"}, inserts...)...)
		events := g.flush(tl)
		g.exec("SET GLOBAL binlog_row_metadata = NO_LOG")
		if len(events) != len(inserts) {
			t.Errorf("%s: %d events of %d rows", metadata, len(events), len(inserts))
		}
		for _, e := range events {
			if e.Tag != "tag" {
				t.Errorf("%s: %s %s has the tag %q", metadata, e.Table.Name, e.ID, e.Tag)
			}
			compareWithSelect(t, g, corpus{column: e.Table.Name}, e.ID, e, e.Table.Name+" WHERE id = "+e.ID, time.UTC)
		}
	}
}

// MariaDB's zlib_wrap adds the head and the sum of zlib to COMPRESSED values.
func TestCompressedColumnsInBothWrappings(t *testing.T) {
	g := newRig(t, testservers.SharedMariaDB(t), outboxDDL, "CREATE TABLE v (id INT PRIMARY KEY, payload TEXT COMPRESSED) CHARACTER SET utf8mb4")
	g.watch("outbox", "v")
	tl := g.tail("now")
	text := strings.Repeat("wörd ", 500)
	for i, set := range []string{"column_compression_zlib_wrap = ON", "column_compression_zlib_wrap = OFF", "column_compression_zlib_level = 0", "column_compression_threshold = 1000000"} {
		g.session("SET SESSION "+set, fmt.Sprintf("INSERT INTO v VALUES (%d, '%s')", i, text))
	}
	wantStrings(t, "payloads", payloads(g.flush(tl)), []string{text, text, text, text})
}

func TestCompressedValuesThatLie(t *testing.T) {
	for _, value := range []string{"\x8a", "\x8a\x03", "\x8a\x00\x05abc", "\x84\xff\xff\xff\xffabc", "\x80", "\x8f\x01\x01\x01\x01\x01", "\x71\x01a", "\x81\x05abc"} {
		if out, ok := inflateColumn([]byte("x"), []byte(value)); ok && len(out) > 1 || string(out[:1]) != "x" {
			t.Errorf("%x became %q", value, out)
		}
	}
}
