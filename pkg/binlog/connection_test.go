package binlog

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
)

// listed reports whether the server lists a replica of that id.
func (g *rig) listed(id uint32) bool {
	g.t.Helper()
	s := &server{db: g.db, flavor: g.server.Flavor()}
	taken, err := s.lists(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	return taken
}

// A server lets go of a reader that has closed its connection within about one
// heartbeat, so that its server id is free again.
func TestServerForgetsAReader(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		g := newRig(t, server)
		g.config.HeartbeatPeriod = 500 * time.Millisecond
		tl := g.tail("now")
		g.flush(tl)
		if !g.listed(g.config.ServerID) {
			t.Fatal("a connected reader is not listed")
		}
		tl.stop()
		began := time.Now()
		for g.listed(g.config.ServerID) {
			if time.Since(began) > patience {
				t.Fatal("still listed")
			}
			time.Sleep(10 * time.Millisecond) // nothing tells when the thread ends
		}
		t.Logf("after %v", time.Since(began))
	})
}

// Of two readers with one server id MariaDB ends the older. That one says so and does
// not fight for it; when the other has gone, it goes on.
func TestServerIDTaken(t *testing.T) {
	g := newRig(t, testservers.SharedMariaDB(t))
	g.config.HeartbeatPeriod = 200 * time.Millisecond
	var log logBuffer
	g.config.Logger = zerolog.New(&log)
	older := g.tail("now")
	g.flush(older)
	g.config.Logger = zerolog.Nop()
	younger := g.tail("now")
	g.flush(younger)
	older.awaitError("server id; set ROWFERRY_SERVER_ID to a number that no other uses (it is " + strconv.FormatUint(uint64(g.config.ServerID), 10))
	g.insert(1, 1)
	wantStrings(t, "payloads of the younger", payloads(g.flush(younger)), []string{"1"})

	// The older looks again, as after its pause, and stays away.
	if err := older.reader.yieldNow(t); !errors.Is(err, errTaken) {
		t.Errorf("with the younger there: %v", err)
	}
	if s := younger.reader.State(); s.Reconnects != 0 {
		t.Errorf("the younger was ended: %+v", s)
	}
	younger.stop()
	for deadline := time.Now().Add(patience); older.reader.yieldNow(t) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the older never goes on")
		}
	}
	if n := strings.Count(log.String(), "another replica or relay"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// yieldNow looks whether the server id is free, as before a connection.
func (r *Reader) yieldNow(t *testing.T) error {
	t.Helper()
	srv, _, err := r.openServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer srv.db.Close()
	copied := Reader{cfg: r.cfg, evicted: true}
	return copied.yield(t.Context(), srv)
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
