package e2e

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
)

// stage is what one test has for itself: a schema with an outbox table and
// rowferry's own tables, a topic, and an environment that points there.
type stage struct {
	tb     testing.TB
	server *testservers.DB
	broker *testservers.Broker
	schema string
	topic  string
	db     *sql.DB // sessions in the server's own zone
	layout string
}

// The layouts of the outbox table.
const (
	layoutRowferry  = "rowferry" // all roles
	layoutPragmatic = "pragmatic_ddd"
	layoutNumeric   = "numeric_status"
	layoutDebezium  = "debezium"
	layoutNone      = "" // no outbox table at all
)

// newStage makes the tables with the SQL that rowferry ships.
func newStage(tb testing.TB, server *testservers.DB, broker *testservers.Broker, layout string) *stage {
	tb.Helper()
	s := newBareStage(tb, server, broker)
	s.layout = layout
	s.migrate(migrations.Options{Outbox: layout == layoutRowferry})
	if layout != layoutRowferry && layout != layoutNone {
		s.createTable(layout)
	}
	return s
}

// newBareStage makes a schema without tables.
func newBareStage(tb testing.TB, server *testservers.DB, broker *testservers.Broker) *stage {
	tb.Helper()
	s := &stage{tb: tb, server: server, broker: broker, schema: server.Schema(tb), topic: broker.Topic(tb, 8)}
	s.db = server.Open(tb, s.schema)
	return s
}

func (s *stage) migrate(o migrations.Options) {
	s.tb.Helper()
	if _, err := migrations.Up(s.tb.Context(), s.db, o); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *stage) createTable(layout string) {
	s.tb.Helper()
	s.exec(exampleSQL(s.tb, layout))
}

// exampleSQL is the CREATE TABLE of a layout of the literature.
func exampleSQL(tb testing.TB, layout string) string {
	tb.Helper()
	text, err := migrations.Examples.ReadFile("examples/" + layout + ".sql")
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// env is the environment of this stage without the prefix; see start for overrides.
func (s *stage) env(overrides ...string) map[string]string {
	env := map[string]string{
		"SOURCE_DSN":       s.server.DSN(s.schema),
		"NAME":             s.schema,
		"ROCKETMQ_NAMESRV": s.broker.NameServer(),
		"ROUTE_TOPIC":      s.topic,
		"LOG_FORMAT":       "json",
	}
	for _, pair := range overrides {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" })
	return env
}

func (s *stage) exec(query string, args ...any) {
	s.tb.Helper()
	if _, err := s.db.ExecContext(s.tb.Context(), query, args...); err != nil {
		s.tb.Fatalf("%s: %v", query, err)
	}
}

func (s *stage) queryInt(query string, args ...any) int {
	s.tb.Helper()
	var n int
	if err := s.db.QueryRowContext(s.tb.Context(), query, args...).Scan(&n); err != nil {
		s.tb.Fatalf("%s: %v", query, err)
	}
	return n
}

func (s *stage) queryText(query string, args ...any) string {
	s.tb.Helper()
	var text sql.NullString
	if err := s.db.QueryRowContext(s.tb.Context(), query, args...).Scan(&text); err != nil {
		s.tb.Fatalf("%s: %v", query, err)
	}
	return text.String
}

// ids returns the ids of the rows that meet a condition, in order.
func (s *stage) ids(where string) []string {
	s.tb.Helper()
	return s.idsOf("SELECT id FROM outbox WHERE " + where + " ORDER BY id")
}

func (s *stage) idsOf(query string) []string {
	s.tb.Helper()
	rows, err := s.db.QueryContext(s.tb.Context(), query)
	if err != nil {
		s.tb.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			s.tb.Fatalf("%s: %v", query, err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		s.tb.Fatalf("%s: %v", query, err)
	}
	return ids
}

type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// insertInto inserts one row that every status layout takes, and returns its id.
func insertInto(ctx context.Context, db executor, key, eventType, payload string) (int64, error) {
	r, err := db.ExecContext(ctx, "INSERT INTO outbox (aggregate_id, event_type, payload) VALUES (?, ?, ?)", key, eventType, payload)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}

// insert commits one row and returns its id.
func (s *stage) insert(key string) string {
	s.tb.Helper()
	id, err := insertInto(s.tb.Context(), s.db, key, "Created", fmt.Sprintf(`{"key": %q}`, key))
	if err != nil {
		s.tb.Fatal(err)
	}
	return fmt.Sprint(id)
}

// insertMany commits n rows over some keys in one statement; the payload of each
// is {"n": 0}, {"n": 1} and so on, which within a key is the order of the rows.
func (s *stage) insertMany(db executor, n, keys, from int) {
	s.tb.Helper()
	const perStatement = 1000
	for n > 0 {
		rows := min(n, perStatement)
		args := make([]any, 0, 3*rows)
		for i := range rows {
			args = append(args, fmt.Sprintf("key-%d", (from+i)%keys), "Created", fmt.Sprintf(`{"n": %d}`, from+i))
		}
		query := "INSERT INTO outbox (aggregate_id, event_type, payload) VALUES (?, ?, ?)" + strings.Repeat(", (?, ?, ?)", rows-1)
		if _, err := db.ExecContext(s.tb.Context(), query, args...); err != nil {
			s.tb.Fatalf("inserting %d rows: %v", rows, err)
		}
		n, from = n-rows, from+rows
	}
}

// awaitSent waits until every row of the table is SENT.
func (s *stage) awaitSent() {
	s.tb.Helper()
	s.awaitNone(s.notSent())
}

func (s *stage) notSent() string {
	if s.layout == layoutNumeric {
		return "status <> 1"
	}
	return "status <> 'SENT'"
}

// awaitNone waits until no row of the outbox table meets a condition.
func (s *stage) awaitNone(where string) {
	s.tb.Helper()
	s.await("rows with "+where+" are gone", func() bool {
		return s.queryInt("SELECT COUNT(*) FROM outbox WHERE "+where) == 0
	})
}

// await polls until something holds.
func (s *stage) await(what string, holds func() bool) {
	s.tb.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			s.tb.Fatalf("after %v it does not hold that %s", patience, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// messages waits for at least n messages and returns all, queue by queue.
func (s *stage) messages(n int) []testservers.Message {
	s.tb.Helper()
	return s.broker.Await(s.tb, s.topic, n, patience)
}

// expectExactly fails unless the topic holds each of these rows once and nothing
// else. It is asked after everything was settled, so there is nothing to wait for.
func (s *stage) expectExactly(ids []string) {
	s.tb.Helper()
	sends := countSends(s.broker.ReadAll(s.tb, s.topic))
	for _, id := range ids {
		if sends[id] != 1 {
			s.tb.Errorf("row %s was published %d times, want once", id, sends[id])
		}
		delete(sends, id)
	}
	if len(sends) > 0 {
		s.tb.Errorf("published, but not to be: %v", sends)
	}
}

// countSends counts the messages of each row.
func countSends(messages []testservers.Message) map[string]int {
	sends := map[string]int{}
	for _, m := range messages {
		sends[m.Properties["outbox_id"]]++
	}
	return sends
}

// wanted is what one message must look like on the wire.
type wanted struct {
	id, key, eventType, tag string
	body                    []byte
	properties              map[string]string // beside those that follow from the rest
}

// want reads a row of the table and says how its message must look.
func (s *stage) want(id string) wanted {
	s.tb.Helper()
	w := wanted{id: id, properties: map[string]string{}}
	var created float64
	err := s.db.QueryRowContext(s.tb.Context(),
		"SELECT aggregate_id, event_type, payload, UNIX_TIMESTAMP(created_at) FROM outbox WHERE id = ?", id).
		Scan(&w.key, &w.eventType, &w.body, &created)
	if err != nil {
		s.tb.Fatalf("reading row %s: %v", id, err)
	}
	w.tag = w.eventType
	at := time.UnixMicro(int64(created*1e6 + 0.5)).UTC()
	w.properties["created_at"] = at.Format(time.RFC3339Nano)
	return w
}

// check holds a message against what is wanted: body, key, tag, and exactly these
// properties.
func (s *stage) check(m testservers.Message, w wanted) {
	s.tb.Helper()
	uid := fmt.Sprintf("%s.outbox:%s", s.schema, w.id)
	want := map[string]string{
		"TAGS": w.tag, "KEYS": w.id + " " + w.key, "SHARDING_KEY": w.key, "__SHARDINGKEY": w.key,
		"outbox_uid": uid, "outbox_id": w.id, "outbox_table": s.schema + ".outbox",
		"aggregate_id": w.key, "event_type": w.eventType,
	}
	maps.Copy(want, w.properties)
	got := maps.Clone(m.Properties)
	for _, added := range []string{"CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT"} {
		delete(got, added) // the broker's own
	}
	checkUniqKey(s.tb, got["UNIQ_KEY"], uid)
	delete(got, "UNIQ_KEY")
	if seq := got["outbox_seq"]; len(seq) != 21 || seq[8] != '-' {
		s.tb.Errorf("row %s has outbox_seq %q, want 8 and 12 hex digits", w.id, seq)
	}
	delete(got, "outbox_seq")
	if !maps.Equal(got, want) {
		s.tb.Errorf("row %s has the properties\n%s\nwant\n%s", w.id, lines(got), lines(want))
	}
	if string(m.Body) != string(w.body) {
		s.tb.Errorf("row %s has the body %q, want %q", w.id, m.Body, w.body)
	}
}

// checkUniqKey: the message id is the same for every attempt on a row, but for
// the four bytes that hold the time.
func checkUniqKey(tb testing.TB, got, uid string) {
	tb.Helper()
	sum := sha256.Sum256([]byte(uid))
	want := fmt.Sprintf("%X", sum[:16])
	if len(got) != 32 || got[:20] != want[:20] || got[28:] != want[28:] {
		tb.Errorf("UNIQ_KEY of %s is %q, want %s with other digits 20 to 27", uid, got, want)
	}
}

func lines(m map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "  %s=%q\n", name, m[name])
	}
	return b.String()
}

// checkOrder fails unless the rows of each key first appear in the order of the
// number in their payloads, all in one queue, and outbox_seq grows with the
// offset. Messages must be in the order of ReadAll.
func checkOrder(tb testing.TB, messages []testservers.Message, number func(testservers.Message) int) {
	tb.Helper()
	seen := map[string]bool{}
	last := map[string]int{}
	queue := map[string]int{}
	wrong := 0
	for _, m := range messages {
		id, key := m.Properties["outbox_id"], m.Properties["aggregate_id"]
		if q, ok := queue[key]; ok && q != m.Queue {
			tb.Fatalf("key %s is in the queues %d and %d", key, q, m.Queue)
		}
		queue[key] = m.Queue
		if seen[id] {
			continue // a repeated event may come late
		}
		seen[id] = true
		n := number(m)
		if before, ok := last[key]; ok && n <= before {
			if wrong++; wrong <= 5 {
				tb.Errorf("key %s: event %d follows event %d (queue %d, offset %d)", key, n, before, m.Queue, m.Offset)
			}
		}
		last[key] = n
	}
	if wrong > 5 {
		tb.Errorf("%d events are out of order in all", wrong)
	}
}

// payloadNumber reads {"n": 17}, whatever follows the number.
func payloadNumber(m testservers.Message) int {
	var n int
	if _, err := fmt.Sscanf(string(m.Body), `{"n": %d`, &n); err != nil {
		panic(fmt.Sprintf("payload %.50q holds no number: %v", m.Body, err))
	}
	return n
}
