package binlog

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// fragmented is a set as a multi-threaded replica has it: runs of three transactions
// with holes in between.
func fragmented(sources, fragments int, tag func(i int) string) *mysqlSet {
	s := newMySQLSet()
	for i := range sources {
		src := source{tag: tag(i)}
		binary.BigEndian.PutUint64(src.uuid[8:], uint64(i/2+1))
		for f := range fragments {
			first := uint64(f*5 + 1)
			s.addInterval(src, interval{first, first + uint64(f%3)})
		}
	}
	return s
}

// The server reads our text as the very set it stands for, and prints it alike.
func TestServerTakesOurSets(t *testing.T) {
	untagged := func(int) string { return "" }
	g := newRig(t, testservers.SharedMySQL(t))
	for name, set := range map[string]*mysqlSet{
		"3 sources of 2,000 fragments": fragmented(3, 2000, func(i int) string { return map[bool]string{true: "even"}[i%2 == 0] }),
		"500 sources":                  fragmented(500, 2, func(i int) string { return "tag_" + strconv.Itoa(i) }),
		"largest number":               {sources: map[source][]interval{{}: {{1, 1}, {gnoMax - 1, gnoMax}}}},
		"one":                          fragmented(1, 1, untagged),
	} {
		t.Run(name, func(t *testing.T) {
			var text string
			if err := g.db.QueryRow("SELECT GTID_SUBTRACT(?, '')", set.String()).Scan(&text); err != nil {
				t.Fatal(err)
			}
			if got := strings.ReplaceAll(text, "\n", ""); got != set.String() {
				t.Errorf("the server prints %.200s, we print %.200s", got, set)
			}
			back, err := parseMySQLSet(text)
			if err != nil || !back.Equal(set) {
				t.Errorf("read again: %v", err)
			}
		})
	}
}

// A position in several domains of MariaDB goes on in each of them.
func TestSeveralDomains(t *testing.T) {
	for name, shared := range map[string]func(testing.TB) *testservers.DB{"mariadb": testservers.SharedMariaDB, "mariadb-10.11": testservers.SharedMariaDB1011} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, shared(t))
			tl := g.tail("now")
			insert := func(first int) {
				for i, domain := range []string{"7", "4294967295", "0", "7"} {
					g.session("SET SESSION gtid_domain_id = "+domain, "INSERT INTO outbox (payload) VALUES ('"+strconv.Itoa(first+i)+"')")
				}
			}
			insert(1)
			wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(1, 4))
			saved := tl.save()
			p, err := parsePosition(saved)
			if err != nil {
				t.Fatal(err)
			}
			for _, domain := range []uint32{0, 7, 1<<32 - 1} {
				if p.gtids.(*mariadbSet).domains[domain].seq == 0 {
					t.Errorf("position %s lacks domain %d", saved, domain)
				}
			}
			insert(5)
			wantStrings(t, "payloads after a restart", payloads(g.flush(g.tail(saved))), numbers(5, 8))
		})
	}
}

// GTIDs switched off and on again, with anonymous transactions among the others: a
// running reader has a gap, since the server ends its stream for good; a restart from
// what was saved loses and repeats nothing, in either direction.
func TestSwitchingGTIDMode(t *testing.T) {
	g := newRig(t, testservers.MySQL(t))
	to := func(modes ...string) {
		for _, m := range modes {
			g.exec("SET GLOBAL gtid_mode = " + m)
		}
	}
	tl := g.tail("now")
	g.insert(1, 3)
	wantStrings(t, "payloads", payloads(g.flush(tl)), numbers(1, 3))
	saved := tl.save()
	running := g.tail(saved)
	g.flush(running)

	to("ON_PERMISSIVE")
	g.insert(4, 5)
	to("OFF_PERMISSIVE")
	g.insert(6, 7)
	to("ON_PERMISSIVE")
	g.insert(8, 9)
	running.wantGap("gtid_mode")

	files := g.tail(saved)
	want := numbers(4, 9)
	got := payloads(g.flush(files))
	wantStrings(t, "payloads by file", slices.DeleteFunc(got, func(p string) bool { return strings.HasPrefix(p, "mark") }), want)
	saved = files.save()
	if p, err := parsePosition(saved); err != nil || p.gtids != nil {
		t.Errorf("position %s (%v), want one without GTIDs", saved, err)
	}

	to("ON")
	g.insert(10, 11)
	again := g.tail(saved)
	wantStrings(t, "payloads by GTID again", payloads(g.flush(again)), numbers(10, 11))
	saved = again.save()
	if p, err := parsePosition(saved); err != nil || p.gtids == nil {
		t.Errorf("position %s (%v), want one with GTIDs", saved, err)
	}
	g.insert(12, 12)
	wantStrings(t, "payloads at last", payloads(g.flush(g.tail(saved))), numbers(12, 12))
	if _, err := g.reader().Resolve(t.Context(), saved); errors.Is(err, ErrGap) {
		t.Error(err)
	}
}

// BenchmarkGTIDAdd counts a transaction that follows the newest of its source, which
// must cost the same whatever the set.
func BenchmarkGTIDAdd(b *testing.B) {
	for name, set := range map[string]*mysqlSet{
		"1x1":    fragmented(1, 1, func(int) string { return "" }),
		"3x2000": fragmented(3, 2000, func(i int) string { return map[bool]string{true: "even"}[i%2 == 0] }),
	} {
		b.Run(name, func(b *testing.B) {
			src := set.sorted()[0]
			list := set.sources[src]
			next := gtid{source: src, gno: list[len(list)-1].last}
			b.ReportAllocs()
			for b.Loop() {
				next.gno++
				set.add(next)
			}
		})
	}
}

// Behind a failover, transactions may stand in another order: a later file then begins with
// one that was read at the former source, which the server leaves out. What comes first on
// the wire is not what marks the file, and taken for it would be a false gap.
func TestFileBeginsWithWhatWasRead(t *testing.T) {
	for name, shared := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB, "mariadb-10.11": testservers.SharedMariaDB1011} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, shared(t))
			variable, domain := "@@global.gtid_executed", ""
			if g.server.Flavor() == testservers.FlavorMariaDB {
				variable, domain = "@@global.gtid_binlog_pos", "SET SESSION gtid_domain_id = 7"
			}
			done := func() gtidSet {
				var text string
				if err := g.db.QueryRow("SELECT " + variable).Scan(&text); err != nil {
					t.Fatal(err)
				}
				set, err := parseSet(g.server.Flavor(), text)
				if err != nil {
					t.Fatal(err)
				}
				return set
			}
			from := done()
			g.exec("INSERT INTO outbox (payload) VALUES ('1')", "FLUSH BINARY LOGS")
			if domain == "" {
				s, before := from.(*mysqlSet), done().(*mysqlSet)
				g.exec("INSERT INTO outbox (payload) VALUES ('read elsewhere')")
				for src, list := range done().(*mysqlSet).sources {
					if last := list[len(list)-1].last; last > before.sources[src][len(before.sources[src])-1].last {
						s.addInterval(src, interval{last, last})
					}
				}
			} else {
				g.session(domain, "INSERT INTO outbox (payload) VALUES ('read elsewhere')")
				from.(*mariadbSet).domains[7] = done().(*mariadbSet).domains[7]
			}
			g.exec("INSERT INTO outbox (payload) VALUES ('3')")
			tl := g.tail(from.String())
			wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1", "3"})
			g.resolve(g.reader(), tl.save()) // no gap
		})
	}
}
