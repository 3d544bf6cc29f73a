package config

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1": 1, "17B": 17, "64KiB": 64 << 10, "1 MiB": 1 << 20, "3GiB": 3 << 30,
		"9223372036854775807": math.MaxInt64, "8589934591GiB": 8589934591 << 30} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q is %d, %v: wanted %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "KiB", "1MB", "1kib", "-1", "+1", "1.5MiB", "1  MiB", "0x10", "1_000", "9223372036854775808", "8589934592GiB"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
}

// Whatever is accepted is not negative, and its text means the same.
func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"0", "1MiB", "64KiB", "9223372036854775807", "8589934592GiB", "1MB", " 1", "1 B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			return
		}
		if b < 0 {
			t.Fatalf("%q is %d", s, int64(b))
		}
		if again, err := ParseBytes(b.String()); err != nil || again != b {
			t.Fatalf("%q is %d, whose text %q is %d, %v", s, int64(b), b, int64(again), err)
		}
	})
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"MODE", "MODUS", 2}, {"LEDGRE", "LEDGER", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d: wanted %d", c.a, c.b, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[A-C]{0,6}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if distance(a, b) != distance(b, a) || (distance(a, b) == 0) != (a == b) || distance(a, c) > distance(a, b)+distance(b, c) {
			t.Fatalf("not a distance: %q %q %q", a, b, c)
		}
	})
}

// The tags that init cannot check.
func TestTags(t *testing.T) {
	c, err := Load([]string{Prefix + "SOURCE_DSN=a:b@tcp(x)/d"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if s.desc == "" || s.group == "" || s.name == "" {
			t.Errorf("%s has no description or no group", s.name)
		}
		if len(s.oneOf) > 0 && c.text(s) == "" && s.name != "LEDGER" {
			t.Errorf("%s has no default", s.name)
		}
		if s.typ.Kind() == 2 && (s.min == "" || s.max == "") { // reflect.Int
			t.Errorf("%s has no limits", s.name)
		}
		if c.text(s) != "" && s.outside(c) != "" {
			t.Errorf("the default of %s is outside of its limits: %s", s.name, s.outside(c))
		}
	}
}
