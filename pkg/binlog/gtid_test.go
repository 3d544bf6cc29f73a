package binlog

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestParseMySQLSet(t *testing.T) {
	const a, b = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
	for text, want := range map[string]string{
		"":                            "",
		a + ":1":                      a + ":1",
		strings.ToUpper(a) + ":1-5":   a + ":1-5",
		a + ":1-5:6-7:3":              a + ":1-7",
		a + ":7:1-5":                  a + ":1-5:7",
		b + ":1,\n" + a + ":2":        a + ":2," + b + ":1",
		a + ":1-3:tag:5:OTHER:1-2":    a + ":1-3:other:1-2:tag:5",
		a + ":tag:5, " + a + ":tag:6": a + ":tag:5-6",
		" " + a + " : 1 - 3 :_t : 1":  a + ":1-3:_t:1",
		a + ":9223372036854775806":    a + ":9223372036854775806",
		a + ":5-9:1-20:3":             a + ":1-20",
		a + ":1:3:5:7:2-6":            a + ":1-7",
	} {
		s, err := parseMySQLSet(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := s.String(); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"x", a, a + ":", a + ":0", a + ":5-4", a + ":tag", a + ":1:tag", a + ":9223372036854775807", "-" + a[1:] + ":1", a + ":1-2-3", a + ":ta-g:1"} {
		if s, err := parseMySQLSet(text); err == nil {
			t.Errorf("%q was accepted as %q", text, s)
		}
	}
}

// The binary form is the library's for the same set, tags included.
func TestEncodeIsTheLibrarys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, _ := drawSet(t)
		theirs, err := gomysql.ParseMysqlGTIDSet(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := hex.EncodeToString(s.Encode()), hex.EncodeToString(theirs.Encode()); got != want {
			t.Fatalf("%s encodes as %s, the library says %s", s, got, want)
		}
	})
}

// drawSet draws a set by adding transactions in any order, and what is in it.
func drawSet(t *rapid.T) (*mysqlSet, map[gtid]bool) {
	s, in := newMySQLSet(), map[gtid]bool{}
	for range rapid.IntRange(0, 60).Draw(t, "n") {
		g := drawGTID(t)
		s.add(g)
		in[g] = true
	}
	return s, in
}

func drawGTID(t *rapid.T) gtid {
	var g gtid
	g.source.uuid[0] = rapid.Byte().Filter(func(b byte) bool { return b < 3 }).Draw(t, "uuid")
	g.source.tag = rapid.SampledFrom([]string{"", "", "tag", "_other9"}).Draw(t, "tag")
	g.gno = rapid.Uint64Range(1, 30).Draw(t, "gno")
	return g
}

func TestMySQLSetProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, in := drawSet(t)
		again, err := parseMySQLSet(s.String())
		if err != nil || again.String() != s.String() || !again.Equal(s) {
			t.Fatalf("%q does not survive being read again: %q, %v", s, again, err)
		}
		other := newMySQLSet()
		for _, g := range slices.Collect(maps.Keys(in)) { // in another order
			other.add(g)
		}
		if other.String() != s.String() {
			t.Fatalf("order matters: %q and %q", s, other)
		}
		probe := drawGTID(t)
		if got := s.containsInterval(probe.source, interval{probe.gno, probe.gno}); got != in[probe] {
			t.Fatalf("%q contains %+v: %v, want %v", s, probe, got, in[probe])
		}
		more := s.clone()
		more.add(probe)
		if !more.Contain(s) || s.Contain(more) != in[probe] {
			t.Fatalf("%q and %q after adding %+v", s, more, probe)
		}
		for src, list := range s.sources {
			for i := 1; i < len(list); i++ {
				if list[i].first <= list[i-1].last+1 {
					t.Fatalf("intervals of %v overlap or touch: %v", src, list)
				}
			}
		}
	})
}

// After a failover a domain is written by another server; with two entries
// MariaDB refuses the position.
func TestMariaDBSetKeepsOneEntryPerDomain(t *testing.T) {
	s, err := parseMariaDBSet("1-10-5, 0-10-100")
	if err != nil {
		t.Fatal(err)
	}
	s.add(gtid{domain: 0, server: 20, gno: 101})
	if got := s.String(); got != "0-20-101,1-10-5" {
		t.Errorf("after a failover: %s", got)
	}
	s.add(gtid{domain: 0, server: 10, gno: 99})
	if got := s.String(); got != "0-10-99,1-10-5" {
		t.Errorf("the stream's order is not followed: %s", got)
	}
	for _, text := range []string{"1", "1-2", "1-2-3-4", "a-1-1", "1-1-0", "4294967296-1-1"} {
		if _, err := parseMariaDBSet(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

// model is a tracker without any cleverness.
type model struct {
	read []gtid
	ends []outbox.Position
}

// However positions are handed out and given back, the text names exactly the
// transactions up to the newest one given back.
func TestTrackerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr tracker
		start := &position{flavor: flavorMySQL, gtids: newMySQLSet(), file: "b.1", offset: 4}
		tr.start(start)
		want := newMySQLSet()
		var m model
		done := 0
		logs := []*logFile{{server: "s", fileHead: fileHead{fde: 1}}, {server: "s", fileHead: fileHead{fde: 2}}}
		next := map[source]uint64{}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "what") > 0 {
				g := drawGTID(t)
				next[g.source]++
				g.gno = next[g.source]
				if rapid.IntRange(0, 5).Draw(t, "anonymous") == 0 {
					g = gtid{}
				}
				i := rapid.IntRange(0, 1).Draw(t, "log")
				seq := tr.append(g, logs[i])
				m.read = append(m.read, g)
				m.ends = append(m.ends, outbox.Position{Seq: seq, File: []string{"b.1", "b.2"}[i], Offset: 100 * seq})
				continue
			}
			if len(m.read) == done {
				continue
			}
			upTo := rapid.IntRange(done+1, len(m.read)).Draw(t, "up to")
			for _, g := range m.read[done:upTo] {
				want.add(g)
			}
			done = upTo
			checkText(t, tr.encode(m.ends[done-1]), want, m.ends[done-1])
			checkText(t, tr.encode(m.ends[done-1]), want, m.ends[done-1])
		}
	})
}

func checkText(t *rapid.T, text string, want *mysqlSet, end outbox.Position) {
	p, err := parsePosition(text)
	if err != nil {
		t.Fatal(err)
	}
	if p.gtids.String() != want.String() || p.file != end.File || p.offset != end.Offset {
		t.Fatalf("text %s, want set %s at %+v", text, want, end)
	}
	if fde := map[string]uint32{"b.1": 1, "b.2": 2}[end.File]; p.fde != fde {
		t.Fatalf("text %s, want fde %d", text, fde)
	}
}

// A stall of hours with other tables' traffic stays one entry.
func TestTrackerStaysSmall(t *testing.T) {
	var tr tracker
	tr.start(&position{flavor: flavorMySQL, gtids: newMySQLSet()})
	log := &logFile{}
	for i := range uint64(100_000) {
		tr.append(gtid{source: source{uuid: [16]byte{1}}, gno: i + 1}, log)
	}
	if n := len(tr.runs); n != 1 {
		t.Errorf("%d entries for consecutive transactions", n)
	}
	if allocs := testing.AllocsPerRun(100, func() {
		seq := tr.append(gtid{source: source{uuid: [16]byte{1}}, gno: tr.seq + 1}, log)
		_ = seq
	}); allocs != 0 {
		t.Errorf("%v allocations a transaction", allocs)
	}
}

// Beyond 4 GiB a file position cannot be started from; the last one before stays
// until the next file.
func TestTrackerBeyond4GiB(t *testing.T) {
	var tr tracker
	tr.start(&position{flavor: flavorMySQL, file: "b.1", offset: 4})
	log, next := &logFile{fileHead: fileHead{fde: 7}}, &logFile{fileHead: fileHead{fde: 8}}
	for _, c := range []struct {
		log  *logFile
		end  outbox.Position
		want uint64
		file string
	}{
		{log, outbox.Position{File: "b.1", Offset: 4294960000}, 4294960000, "b.1"},
		{log, outbox.Position{File: "b.1", Offset: 4294967296 + 3500}, 4294960000, "b.1"},
		{log, outbox.Position{File: "b.1", Offset: 4294967296 + 11500}, 4294960000, "b.1"},
		{next, outbox.Position{File: "b.2", Offset: 4}, 4, "b.2"},
	} {
		c.end.Seq = tr.append(gtid{}, c.log)
		p, err := parsePosition(tr.encode(c.end))
		if err != nil || p.offset != c.want || p.file != c.file {
			t.Errorf("behind %+v the saved position is %+v, %v", c.end, p, err)
		}
	}
	if _, err := parsePosition(`{"v":1,"flavor":"mysql","file":"b.1","pos":4294967296}`); err == nil {
		t.Error("a position beyond 4 GiB was accepted")
	}
}

func FuzzParseMySQLSet(f *testing.F) {
	f.Add("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:tag:7,\n4e11fa47-71ca-11e1-9e33-c80aa9429562:1")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseMySQLSet(text)
		if err != nil {
			return
		}
		again, err := parseMySQLSet(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%q is not stable: %q, %v", text, s, err)
		}
		s.Encode()
	})
}

func FuzzParseMariaDBSet(f *testing.F) {
	f.Add("0-1-100,1-2-3")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseMariaDBSet(text)
		if err != nil {
			return
		}
		again, err := parseMariaDBSet(s.String())
		if err != nil || !again.Equal(s) {
			t.Fatalf("%q is not stable: %q, %v", text, s, err)
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add(`{"v":1,"flavor":"mysql","gtid":"","file":"b.1","pos":4,"server":"x","fde":1}`)
	f.Add(`{"v":1,"flavor":"mariadb","gtid":"0-1-1"}`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePosition(text)
		if err != nil {
			return
		}
		again, err := parsePosition(p.String())
		if err != nil || again.String() != p.String() {
			t.Fatalf("%q is not stable: %q, %v", text, p, err)
		}
	})
}

// What a position says of the tables is of its own place, also beyond 4 GiB of a file,
// where none is saved: a row read again from there on would be taken for one of the columns
// that the table has later.
func TestLayoutsBeyond4GiBAreNotSaved(t *testing.T) {
	var tr tracker
	tr.start(&position{flavor: flavorMySQL, file: "b.1", offset: 4})
	before := outbox.Position{Seq: tr.append(gtid{}, &logFile{server: "s", layouts: "before"}), File: "b.1", Offset: 1000}
	tr.encode(before)
	beyond := outbox.Position{Seq: tr.append(gtid{}, &logFile{server: "s", layouts: "after"}), File: "b.1", Offset: 5 << 30}
	p, err := parsePosition(tr.encode(beyond))
	if err != nil {
		t.Fatal(err)
	}
	if p.layouts != "before" || p.offset != 1000 {
		t.Errorf("saved %d with the layouts %q", p.offset, p.layouts)
	}
}
