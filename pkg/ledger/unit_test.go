package ledger

import (
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func layoutOf(t testing.TB, columns ...outbox.Column) *outbox.Layout {
	t.Helper()
	l, err := outbox.Recognise(outbox.Table{Schema: "s`x", Name: "t"}, columns, map[string]string{"id": "PRIMARY"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestFitReasonFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := outbox.Column{
			DataType:  rapid.SampledFrom([]string{"varchar", "tinytext", "text", "varbinary", "char"}).Draw(t, "type"),
			Charset:   rapid.SampledFrom([]string{"utf8mb4", "utf8mb3", "utf8", "latin1", "gbk", ""}).Draw(t, "charset"),
			LengthMax: rapid.Int64Range(1, 300).Draw(t, "length"),
		}
		got := fitReason(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\xff\xfe", "大\U0001F69A"})).Draw(t, "reason"), c)
		length := utf8.RuneCountInString(got)
		if c.Binary() || c.DataType == "text" || c.DataType == "tinytext" {
			length = len(got)
		}
		if int64(length) > c.LengthMax || !utf8.ValidString(got) {
			t.Fatalf("%q does not fit %+v", got, c)
		}
		for _, r := range got {
			if r > 0xffff && c.Charset != "utf8mb4" || r > 0x7f && (c.Charset == "latin1" || c.Charset == "gbk" || c.Charset == "") {
				t.Fatalf("%q holds %q, which %s may lack", got, r, c.Charset)
			}
		}
	})
}

func TestChunksLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := numbers(1, rapid.IntRange(0, 50).Draw(t, "ids"))
		n := rapid.IntRange(1, 10).Draw(t, "max")
		i := 0
		for _, piece := range chunks(ids, n) {
			if len(piece) == 0 || len(piece) > n {
				t.Fatalf("a piece of %d ids", len(piece))
			}
			for _, id := range piece {
				if id != ids[i] {
					t.Fatalf("id %s at place %d", id, i)
				}
				i++
			}
		}
		if i != len(ids) {
			t.Fatalf("%d of %d ids", i, len(ids))
		}
	})
}

func TestConstants(t *testing.T) {
	id := outbox.Column{Name: "id", DataType: "bigint"}
	for _, c := range []struct {
		column outbox.Column
		text   string
		want   any
	}{
		{outbox.Column{DataType: "tinyint"}, "0", int64(0)},
		{outbox.Column{DataType: "bigint"}, "18446744073709551615", uint64(18446744073709551615)},
		{outbox.Column{DataType: "decimal"}, "1.5", "1.5"},
		{outbox.Column{DataType: "varchar"}, "0", "0"},
		{outbox.Column{DataType: "enum"}, "1", "1"},
	} {
		if got := value(c.column, c.text); got != c.want {
			t.Errorf("%s %s: %#v, want %#v", c.column.DataType, c.text, got, c.want)
		}
	}
	l := layoutOf(t, id, outbox.Column{Name: "payload"}, outbox.Column{Name: "sent_at", DataType: "datetime", FullType: "datetime(3)"},
		outbox.Column{Name: "claimed_at", DataType: "timestamp", FullType: "timestamp"})
	tab := newTable(l, Options{})
	if tab.name != "`s``x`.`t`" {
		t.Errorf("quoted as %s", tab.name)
	}
	if got := tab.now(outbox.RoleSentAt); got != "NOW(3)" {
		t.Errorf("now for datetime(3) is %s", got)
	}
	if got := tab.now(outbox.RoleClaimedAt); got != "NOW()" {
		t.Errorf("now for timestamp is %s", got)
	}
}

func TestDeleteAndNoneExcludeEachOther(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	New(nil, nil, Options{Delete: true, None: true})
}
