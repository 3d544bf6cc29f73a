package binlog

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

var (
	updateGolden = flag.Bool("update", false, "write down anew what becomes of the binlogs of testdata/golden")
	recordGolden = flag.Bool("record", false, "record the binlogs of testdata/golden anew, from real servers, and what becomes of them")
)

const goldenDir = "testdata/golden"

// golden is what stands beside a recorded binlog.
type golden struct {
	Server  string // its identity, see position
	Before  []goldenLayout
	After   []goldenLayout
	Batches []goldenBatch
}

// goldenLayout is an outbox table, whose key is its column id.
type goldenLayout struct {
	Name    string
	Columns []outbox.Column
}

// goldenBatch is a batch as the reader must emit it, one line of the file each.
type goldenBatch struct {
	End         string
	CommittedAt time.Time
	Skipped     int           `json:",omitempty"`
	Events      []goldenEvent `json:",omitempty"`
}

// goldenEvent is an event with its payload as text.
type goldenEvent struct {
	Table, ID, Type, AggregateType, AggregateID string
	Payload                                     string
	CreatedAt                                   time.Time
	Headers                                     []outbox.Header `json:",omitempty"`
	Unread                                      string          `json:",omitempty"`
	Deleted                                     bool            `json:",omitempty"`
}

// Every recorded binlog gives exactly the batches that stand beside it.
func TestGolden(t *testing.T) {
	for _, s := range goldenServers {
		t.Run(s.name, func(t *testing.T) {
			path := filepath.Join(goldenDir, s.name)
			if *recordGolden {
				file, g := record(t, s.start(t, "--local-infile=1"), s.gtids)
				writeGoldenFile(t, path+".binlog", file)
				writeGoldenFile(t, path+".json", g.print(t))
			}
			if *recordGolden || *updateGolden {
				l, g := readGolden(t, s.name, s.release)
				g.Batches = replayGolden(t, l, g, s.gtids)
				writeGoldenFile(t, path+".json", g.print(t))
			}
			l, g := readGolden(t, s.name, s.release)
			got := replayGolden(t, l, g, s.gtids)
			for i := range max(len(got), len(g.Batches)) {
				if i >= len(got) || i >= len(g.Batches) || line(t, got[i]) != line(t, g.Batches[i]) {
					t.Fatalf("batch %d of %d is\n%s\nwant, of %d,\n%s", i, len(got), nth(t, got, i), len(g.Batches), nth(t, g.Batches, i))
				}
			}
			wantStrings(t, "payloads", short(got), goldenWants(s.release.flavor, s.gtids))
		})
	}
}

// print gives one line per layout and batch.
func (g *golden) print(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"Server\": %q", g.Server)
	list := func(name string, n int, item func(int) any) {
		fmt.Fprintf(&b, ",\n%q: [", name)
		for i := range n {
			fmt.Fprintf(&b, "%s\n  %s", map[bool]string{true: ","}[i > 0], line(t, item(i)))
		}
		b.WriteString("\n]")
	}
	list("Before", len(g.Before), func(i int) any { return g.Before[i] })
	list("After", len(g.After), func(i int) any { return g.After[i] })
	list("Batches", len(g.Batches), func(i int) any { return g.Batches[i] })
	b.WriteString("}\n")
	return b.Bytes()
}

func line(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func nth(t testing.TB, batches []goldenBatch, i int) string {
	if i < len(batches) {
		return line(t, batches[i])
	}
	return "none"
}

// short is each event in a few words, as goldenScript wants them.
func short(batches []goldenBatch) (words []string) {
	for _, b := range batches {
		for _, e := range b.Events {
			if e.Unread != "" {
				words = append(words, e.ID+"("+e.Unread+")")
				continue
			}
			words = append(words, e.Payload)
		}
	}
	return words
}

func readGolden(t testing.TB, name string, r release) (*madeLog, *golden) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(goldenDir, name+".binlog"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(goldenDir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	g := &golden{}
	if err := json.Unmarshal(text, g); err != nil {
		t.Fatal(err)
	}
	return logOf(r, file), g
}

// logOf splits a binlog file into its events.
func logOf(r release, file []byte) *madeLog {
	l := &madeLog{name: "binlog.000001", release: r, checksum: true, place: uint64(len(file))}
	for b := file[len(fileMagic):]; len(b) >= headSize; {
		size := littleEndian(b[9:13])
		l.events = append(l.events, b[:size:size])
		b = b[size:]
	}
	return l
}

func (g *golden) layouts(t testing.TB, list []goldenLayout) map[outbox.Table]*outbox.Layout {
	t.Helper()
	layouts := map[outbox.Table]*outbox.Layout{}
	for _, l := range list {
		table := outbox.Table{Schema: "golden", Name: l.Name}
		var err error
		if layouts[table], err = outbox.Recognise(table, l.Columns, map[string]string{"id": "PRIMARY"}, outbox.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	return layouts
}

// replayGolden serves a log to a reader that knows the tables as they were when it was
// begun, and finds them as they were at its end.
func replayGolden(t *testing.T, l *madeLog, g *golden, gtids bool) (got []goldenBatch) {
	t.Helper()
	m := newMaster(t, nil, l)
	if l.release.isMariaDB() {
		m.vars["server_id"] = g.Server
	} else {
		m.vars["server_uuid"] = g.Server
		m.vars["gtid_mode"] = map[bool]string{true: "ON", false: "OFF"}[gtids]
	}
	cfg := m.config()
	cfg.Layouts = g.layouts(t, g.Before)
	after := g.layouts(t, g.After)
	cfg.Reload = func(_ context.Context, table outbox.Table) (*outbox.Layout, error) { return after[table], nil }
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	from, err := r.Resolve(t.Context(), "earliest")
	if err != nil {
		t.Fatal(err)
	}
	tl := runTail(t, r, knowing(t, r, from))
	isLast := func(b outbox.Batch) bool { return slices.Contains(payloads(b.Events), "last") }
	for _, b := range tl.await("the last row", func(bs []outbox.Batch) bool { return slices.ContainsFunc(bs, isLast) }) {
		got = append(got, goldenOf(t, tl.reader, b))
	}
	return got
}

// knowing is a position with the columns that the reader knows.
func knowing(t testing.TB, r *Reader, from string) string {
	return withLayouts(t, from, r.watch.layouts())
}

func withLayouts(t testing.TB, position, layouts string) string {
	t.Helper()
	p, err := parsePosition(position)
	if err != nil {
		t.Fatal(err)
	}
	p.layouts = layouts
	return p.String()
}

func goldenOf(t testing.TB, r *Reader, b outbox.Batch) goldenBatch {
	t.Helper()
	out := goldenBatch{End: withLayouts(t, r.Encode(b.End), ""), CommittedAt: b.CommittedAt, Skipped: b.Skipped}
	for _, e := range b.Events {
		out.Events = append(out.Events, goldenEvent{
			Table: e.Table.Name, ID: e.ID, Type: e.Type, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
			Payload: string(e.Payload), CreatedAt: e.CreatedAt, Headers: e.Headers, Unread: e.Unread, Deleted: e.Deleted,
		})
	}
	return out
}

// Files of the same name are told apart by their heads, also those of one second.
func TestGoldenFilesDiffer(t *testing.T) {
	seen := map[uint32]string{}
	for _, s := range goldenServers {
		_, g := readGolden(t, s.name, s.release)
		p, err := parsePosition(g.Batches[0].End)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[p.first]; ok || p.first == 0 || p.fde == 0 {
			t.Errorf("the log of %s is told from that of %q by %+v", s.name, other, p.fileHead)
		}
		seen[p.first] = s.name
	}
}

// The recorded logs hold what they were recorded for.
func TestGoldenHoldsEveryKindOfEvent(t *testing.T) {
	kinds := map[replication.EventType]bool{}
	for _, s := range goldenServers {
		l, _ := readGolden(t, s.name, s.release)
		for _, e := range l.events {
			kinds[replication.EventType(e[4])] = true
		}
	}
	var missing []string
	for _, want := range []replication.EventType{
		replication.FORMAT_DESCRIPTION_EVENT, replication.ROTATE_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT,
		replication.GTID_TAGGED_LOG_EVENT, replication.QUERY_EVENT, replication.TABLE_MAP_EVENT, replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2,
		replication.DELETE_ROWS_EVENTv2, replication.XID_EVENT, replication.XA_PREPARE_LOG_EVENT, replication.TRANSACTION_PAYLOAD_EVENT, replication.ROWS_QUERY_EVENT,
		replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1, replication.MARIADB_GTID_EVENT, replication.MARIADB_GTID_LIST_EVENT,
		replication.MARIADB_ANNOTATE_ROWS_EVENT, replication.MARIADB_BINLOG_CHECKPOINT_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1,
	} {
		if !kinds[want] {
			missing = append(missing, want.String())
		}
	}
	if missing != nil {
		t.Errorf("no recorded log has %s", strings.Join(missing, ", "))
	}
}
