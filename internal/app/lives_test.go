package app

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
)

// site is a database with an outbox table and a topic, where relays live.
type site struct {
	t       *testing.T
	db      *sql.DB
	environ []string
	rows    int
}

func newSite(t *testing.T, server *testservers.DB, broker *testservers.Broker) *site {
	t.Helper()
	schema := server.Schema(t)
	s := &site{t: t, db: server.Open(t, schema), environ: []string{
		"ROWFERRY_SOURCE_DSN=" + server.DSN(schema), "ROWFERRY_NAME=" + schema,
		"ROWFERRY_ROCKETMQ_NAMESRV=" + broker.NameServer(), "ROWFERRY_ROUTE_TOPIC=" + broker.Topic(t, 8),
		fmt.Sprintf("ROWFERRY_HTTP_ADDR=127.0.0.1:%d", testservers.FreePort(0)),
	}}
	if _, err := migrations.Up(t.Context(), s.db, migrations.Options{Outbox: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

// live starts a relay, has it publish a row, and ends it.
func (s *site) live() {
	s.t.Helper()
	cfg, err := config.Load(s.environ)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := NewRelay(cfg, zerolog.Nop())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	s.await("the relay relays", func() bool { return r.running() != nil })
	s.rows++
	_, err = s.db.ExecContext(s.t.Context(), "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('Order', ?, 'Created', '{}')", s.rows)
	if err != nil {
		s.t.Error(err)
	}
	s.await("the row is SENT", func() bool {
		var n int
		if err := s.db.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM outbox WHERE status = 'SENT'").Scan(&n); err != nil {
			s.t.Fatal(err)
		}
		return n == s.rows
	})
	cancel()
	if err := <-ended; err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) await(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("after a minute it does not hold that %s", what)
		}
	}
}

// A relay may lead, step down and lead again for as long as its process lives, and tests
// start many in one process. What the RocketMQ library leaves behind is bounded: tasks
// that notice the end within ten seconds, and a connection to the name server that it
// closes 90 s after its last use.
func TestLivesOfTheWholeRelayLeakNothing(t *testing.T) {
	const few, many = 5, 35
	const perLifeBytes = 30_000 // far below what a relay holds, above what the library does for a while
	server, broker := testservers.SharedMySQL(t), testservers.SharedRocketMQ(t)
	s := newSite(t, server, broker)
	for range few {
		s.live()
	}
	options := append(testservers.GoleakOptions(), goleak.IgnoreCurrent())
	before, heap := leavings(t), liveHeapBytes()
	for range many - few {
		s.live()
	}
	if err := goleak.Find(options...); err != nil {
		t.Errorf("after %d lives: %v", many, err)
	}
	after, grown := leavings(t), int64(liveHeapBytes())-int64(heap)
	for port, n := range after.connections {
		if port != portOf(t, broker.NameServer()) && n > before.connections[port] {
			t.Errorf("%d connections to port %d after %d lives, %d after %d", before.connections[port], port, few, n, many)
		}
	}
	toNames := after.connections[portOf(t, broker.NameServer())]
	if toNames > many || after.files-toNames > before.files {
		t.Errorf("%d files are open after %d lives, %d after %d, %d of them connections to the name server", before.files, few, after.files, many, toNames)
	}
	if grown > (many-few)*perLifeBytes {
		t.Errorf("%d lives have left %d bytes behind", many-few, grown)
	}
	t.Logf("after %d lives %+v, after %d %+v; the heap has grown by %d bytes", few, before, many, after, grown)
}

// left is what a process has open.
type left struct {
	goroutines, files int
	connections       map[int]int
}

func leavings(t *testing.T) left {
	t.Helper()
	connections, files := testservers.Connections(t)
	return left{runtime.NumGoroutine(), files, connections}
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// liveHeapBytes is what is in use after two collections: the first one leaves what has a
// finalizer.
func liveHeapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
