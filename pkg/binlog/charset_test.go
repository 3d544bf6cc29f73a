package binlog

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// charsetServers runs a test with a session of each flavour that keeps what it does
// out of the binlog.
func charsetServers(t *testing.T, test func(t *testing.T, flavor string, c *sql.Conn)) {
	for _, server := range []*testservers.DB{testservers.SharedMySQL(t), testservers.SharedMariaDB(t)} {
		t.Run(server.Flavor(), func(t *testing.T) {
			c, err := server.Open(t, server.Schema(t)).Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = c.Raw(func(any) error { return driver.ErrBadConn })
				_ = c.Close() // reports that very error
			}()
			execOn(t, c, "SET SESSION sql_mode = '', sql_log_bin = 0", "SET NAMES utf8mb4")
			test(t, server.Flavor(), c)
		})
	}
}

func execOn(t *testing.T, c *sql.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := c.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%.200s: %v", s, err)
		}
	}
}

// rowsOf calls row with the columns of each row, as bytes.
func rowsOf(t *testing.T, c *sql.Conn, text string, row func(v []sql.RawBytes)) {
	t.Helper()
	rows, err := c.QueryContext(context.WithoutCancel(t.Context()), text)
	if err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	v := make([]sql.RawBytes, len(columns))
	into := make([]any, len(v))
	for i := range v {
		into[i] = &v[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		row(v)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func serverCharsets(t *testing.T, c *sql.Conn) []string {
	t.Helper()
	var names []string
	rowsOf(t, c, "SELECT character_set_name FROM information_schema.character_sets ORDER BY 1", func(v []sql.RawBytes) {
		names = append(names, string(v[0]))
	})
	return names
}

// Every character that a column can hold, in every character set of both servers,
// becomes what a SELECT makes of it. What the servers store and this does not
// convert is listed: such rows are read by key.
func TestCharsetsAreWhatASelectConverts(t *testing.T) {
	refused := map[string][]string{
		"mysql ujis": {"8ea0"}, "mysql eucjpms": {"8ea0"}, // half a character, printed as ??
		"mariadb utf32": {"0000d800", "0000dfff"}, // surrogates
	}
	charsetServers(t, func(t *testing.T, flavor string, c *sql.Conn) {
		execOn(t, c, "CREATE TABLE bytes (b VARBINARY(1))",
			"INSERT INTO bytes WITH RECURSIVE n AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 255) SELECT UNHEX(LPAD(HEX(i), 2, '0')) FROM n")
		for _, name := range serverCharsets(t, c) {
			if asIs(name) {
				continue
			}
			if charsets[name] == nil {
				t.Errorf("no table for %s", name)
				continue
			}
			compareCharset(t, c, name, refused[flavor+" "+name])
		}
	})
}

// charCodes gives, per character set, the query for all its one and two byte codes
// and what has more bytes and matters.
func charCodes(name string) []string {
	const one, two = "SELECT b AS r FROM bytes", "SELECT CONCAT(x.b, y.b) AS r FROM bytes x JOIN bytes y"
	list := func(hex ...string) string { return "SELECT x'" + strings.Join(hex, "' AS r UNION ALL SELECT x'") + "'" }
	switch name {
	case "ucs2":
		return []string{two}
	case "utf16", "utf16le":
		return []string{two, list("D83DDE00", "DBFFDFFF", "D800DC00", "3DD800DE", "FFDBFFDF", "D83D0041", "DE00D83D"),
			"SELECT CONCAT(x'D8', x.b, x'DE', y.b) AS r FROM bytes x JOIN bytes y WHERE x.b < x'10'",
			"SELECT CONCAT(x.b, x'D8', y.b, x'DF') AS r FROM bytes x JOIN bytes y WHERE x.b < x'10'"}
	case "utf32":
		return []string{"SELECT CONCAT(x'00', z.b, x.b, y.b) AS r FROM bytes x JOIN bytes y JOIN (SELECT x'00' AS b UNION ALL SELECT x'01' UNION ALL SELECT x'10') z WHERE x.b NOT BETWEEN x'D8' AND x'DF' AND (ORD(x.b) + ORD(y.b) + ORD(z.b)) % 7 = 0",
			list("0000D800", "0000DFFF", "00110000", "01000041")}
	case "ujis", "eucjpms":
		return []string{one, two + " WHERE x.b >= x'80'", "SELECT CONCAT(x'8F', x.b, y.b) AS r FROM bytes x JOIN bytes y WHERE x.b >= x'80' AND y.b >= x'80'"}
	case "gb18030":
		const digits = "(SELECT b FROM bytes WHERE b BETWEEN x'30' AND x'39')"
		return []string{one, two + " WHERE x.b >= x'80'", list("8135F437", "8431A439", "8431A530", "90308130", "E3329A35", "E3329A36", "FE39FE39"),
			"SELECT CONCAT(x.b, d.b, y.b, e.b) AS r FROM bytes x JOIN bytes y JOIN " + digits + " d JOIN " + digits + " e " +
				"WHERE x.b BETWEEN x'81' AND x'FE' AND y.b BETWEEN x'81' AND x'FE' AND (ORD(x.b) * 7 + ORD(d.b) * 13 + ORD(y.b) * 5 + ORD(e.b)) % 61 = 0"}
	case "big5", "cp932", "euckr", "gb2312", "gbk", "sjis":
		return []string{one, two + " WHERE x.b >= x'80'"}
	}
	return []string{one}
}

func compareCharset(t *testing.T, c *sql.Conn, name string, refused []string) {
	t.Helper()
	execOn(t, c, "CREATE TABLE codes (v VARCHAR(4) CHARACTER SET "+name+", r VARBINARY(8)) ENGINE = MEMORY")
	defer execOn(t, c, "DROP TABLE codes")
	for _, codes := range charCodes(name) {
		execOn(t, c, "INSERT IGNORE INTO codes SELECT r, r FROM ("+codes+") AS all_codes")
	}
	wrong, stored := 0, 0
	var not []string
	rowsOf(t, c, "SELECT v, r FROM codes WHERE CAST(v AS BINARY) = r", func(v []sql.RawBytes) {
		stored++
		got, ok := charsets[name].asUTF8(nil, v[1])
		switch {
		case !ok:
			not = append(not, fmt.Sprintf("%x", []byte(v[1])))
		case !bytes.Equal(got, v[0]):
			if wrong++; wrong < 5 {
				t.Errorf("%s %x is %q, SELECT says %q", name, []byte(v[1]), got, []byte(v[0]))
			}
		}
	})
	slices.Sort(not)
	if !slices.Equal(not, refused) {
		t.Errorf("%s: not converted %.100q, want %q", name, not, refused)
	}
	if wrong > 0 || stored < 128 {
		t.Errorf("%s: %d of %d characters are wrong", name, wrong, stored)
	}
}

// The collations of both servers belong to the character sets that we believe.
func TestCollationsBelongToTheirCharsets(t *testing.T) {
	charsetServers(t, func(t *testing.T, flavor string, c *sql.Conn) {
		from := "information_schema.collations"
		if flavor == testservers.FlavorMariaDB {
			from = "information_schema.collation_character_set_applicability"
		}
		n := 0
		rowsOf(t, c, "SELECT id, character_set_name FROM "+from+" WHERE id IS NOT NULL", func(v []sql.RawBytes) {
			var id uint64
			if _, err := fmt.Sscan(string(v[0]), &id); err != nil {
				t.Fatal(err)
			}
			if got := charsetOf(id); got != string(v[1]) {
				t.Errorf("collation %d belongs to %q, not %q", id, v[1], got)
			}
			n++
		})
		if n < 250 {
			t.Errorf("only %d collations", n)
		}
	})
}

// The greatest length of a character is what tells VARCHARs apart where the stream
// has no names.
func TestCharsetWidths(t *testing.T) {
	charsetServers(t, func(t *testing.T, flavor string, c *sql.Conn) {
		rowsOf(t, c, "SELECT character_set_name, maxlen FROM information_schema.character_sets", func(v []sql.RawBytes) {
			if got := fmt.Sprint(widthOf(string(v[0]))); got != string(v[1]) {
				t.Errorf("%s: %s bytes, want %s", v[0], got, v[1])
			}
		})
	})
}

// Text is converted character by character: wherever it is cut between two, the
// parts give the whole.
func TestTextIsConvertedCharacterByCharacter(t *testing.T) {
	for name, set := range charsets {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				text := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "text")
				at := rapid.IntRange(0, len(text)).Draw(t, "at")
				whole, ok := set.asUTF8(nil, text)
				head, ok1 := set.asUTF8([]byte("x"), text[:at])
				joined, ok2 := set.asUTF8(head, text[at:])
				if ok && ok1 && ok2 && string(joined) != "x"+string(whole) {
					t.Fatalf("%x cut at %d: %q, whole %q", text, at, joined, whole)
				}
				if ok && name != "ucs2" && !utf8.Valid(whole) {
					t.Fatalf("%x is no UTF-8: %q", text, whole)
				}
			})
		})
	}
}

func TestWhatIsNoTextIsNotGuessedAt(t *testing.T) {
	for name, texts := range map[string][]string{
		"gbk": {"\x81", "\xff", "\x80", "a\x81\x39"}, "sjis": {"\x81\x20", "\xfd", "\xa0"}, "ujis": {"\x8f\xa1", "\x8e\xa0", "\xa1"},
		"gb18030": {"\x81\x30\x81", "\x81\x30\x20\x30"}, "ucs2": {"\x00"}, "utf16": {"\xd8\x00", "\xdc\x00\xd8\x00", "a"},
		"utf16le": {"\x00\xd8\x00\x00"}, "utf32": {"\x00\x11\x00\x00", "\x00\x00\xd8\x00", "abc"},
		"big5": {"\xa1"}, "euckr": {"\x81\x5b"}, "gb2312": {"\xf8\xa1"},
	} {
		for _, text := range texts {
			if got, ok := charsets[name].asUTF8(nil, []byte(text)); ok {
				t.Errorf("%s %x became %q", name, text, got)
			}
		}
	}
}

// A column whose collation in the stream is not that of the layout was written under
// another definition: it is no guess which of the two to convert from.
func TestCollationAndLayoutMustAgree(t *testing.T) {
	for _, c := range []struct {
		dataType, charset string
		collation         uint64
		want              bool
	}{
		{"varchar", "latin1", 8, true}, {"varchar", "latin1", 28, false}, {"varchar", "latin1", 45, false}, {"varchar", "latin1", collationOf("binary"), false},
		{"varchar", "utf8mb4", 255, true}, {"varchar", "utf8mb4", 33, true}, {"varchar", "utf8mb4", 2304, true}, {"varchar", "utf8mb4", 8, false}, {"text", "utf8mb3", 46, true},
		{"varchar", "gbk", 1052, true}, {"varchar", "latin1", 1032, true}, {"varchar", "latin1", 9999, false}, {"enum", "utf16", 54, true}, {"enum", "utf16", 56, false},
		{"varbinary", "", 63, true}, {"blob", "", 63, true}, {"point", "", 63, true}, {"text", "", 8, false},
	} {
		if got := sameCharset(outbox.Column{DataType: c.dataType, Charset: c.charset}, c.collation); got != c.want {
			t.Errorf("%s in %q with collation %d: %v", c.dataType, c.charset, c.collation, got)
		}
	}
}

func collationOf(charset string) uint64 {
	for id, name := range collationIDs {
		if name == charset {
			return id
		}
	}
	return 0
}
