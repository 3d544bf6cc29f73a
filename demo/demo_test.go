package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/demo/consumer"
	"github.com/rowferry/rowferry/demo/reconcile"
)

func TestExitCodes(t *testing.T) {
	t.Setenv("SHOP_DSN", "")
	t.Setenv("ROCKETMQ_NAMESRV", "")
	tests := []struct {
		args []string
		want int
	}{
		{[]string{"--help"}, 0},
		{[]string{"run", "--help"}, 0},
		{nil, 2},
		{[]string{"sell"}, 2},
		{[]string{"run", "--rate", "many"}, 2},
		{[]string{"run", "now"}, 2},
		{[]string{"run", "--rate", "0"}, 2},
		{[]string{"shop", "--duration", "1ms"}, 2},
		{[]string{"shop"}, 1},
		{[]string{"consume", "--dsn", "u@tcp(127.0.0.1:1)/shop"}, 1},
	}
	for _, tt := range tests {
		if got := run(tt.args); got != tt.want {
			t.Errorf("demo %s: exit code %d, want %d", strings.Join(tt.args, " "), got, tt.want)
		}
	}
}

// Settings of the caller's own relay must not reach the one of the demo.
func TestWithoutRowferry(t *testing.T) {
	got := withoutRowferry([]string{"PATH=/bin", "ROWFERRY_NAME=mine", "ROWFERRYX=1"})
	if want := []string{"PATH=/bin", "ROWFERRYX=1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestExported(t *testing.T) {
	env := "export FERRYTEST_MYSQL_DSN='root@tcp(127.0.0.1:3306)/?tls=false'\nexport OTHER='x'\n"
	if got := exported(env, mysqlVariable); got != "root@tcp(127.0.0.1:3306)/?tls=false" {
		t.Errorf("got %q", got)
	}
	if got := exported(env, nameServersVariable); got != "" {
		t.Errorf("got %q for a variable that is not there", got)
	}
}

func TestReceiver(t *testing.T) {
	r := newReceiver("s", "shop")
	message := func(uid, sale string) consumer.Message {
		return consumer.Message{UID: uid, Body: fmt.Appendf(nil, `{"sale":%q,"order":"s-1","version":1}`, sale)}
	}
	r.handle(message("a", "earlier"))
	select {
	case <-r.first:
		t.Fatal("a message of an earlier sale counts as the first")
	default:
	}
	r.handle(message("b", "s"))
	<-r.first
	r.handle(message("b", "s"))
	r.handle(message("", "s"))
	r.handle(consumer.Message{UID: "shop.outbox:9", Body: []byte("no json")})
	r.handle(consumer.Message{UID: "other.outbox:9", Body: []byte("somebody else's")})
	r.handle(consumer.Message{Body: []byte("{}")})
	facts := reconcile.Facts{Orders: map[string]int{"s-1": 1}, Committed: 1, Rows: map[string]int{"SENT": 1}}
	want := []string{"messages that cannot be read: 2 (want 0)", "duplicates (same outbox_uid): 1 (want 0)"}
	if got := reconcile.Reconcile(facts, r.inbox, reconcile.Rules{}).Differences(); !slices.Equal(got, want) {
		t.Errorf("differences %q, want %q", got, want)
	}
}

// The test binary plays the relay: it answers /readyz at once, and ends at SIGTERM
// as a program without a handler does.
func TestMain(m *testing.M) {
	if address := os.Getenv("ROWFERRY_HTTP_ADDR"); address != "" && len(os.Args) > 1 {
		playRelay(os.Args[1], address)
	}
	os.Exit(m.Run())
}

func playRelay(command, address string) {
	if command != "run" {
		fmt.Println("played", command)
		os.Exit(3)
	}
	http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/api/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"source":{"lag_seconds":1.25}}`)
	})
	http.HandleFunc("/die", func(http.ResponseWriter, *http.Request) {
		fmt.Println("played death")
		os.Exit(4)
	})
	l, err := net.Listen("tcp", address)
	if err == nil {
		err = http.Serve(l, nil)
	}
	fmt.Println(err)
	os.Exit(5)
}

func startPlayed(t *testing.T) *relay {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRelay(binary, t.TempDir(), relaySettings{name: "n", dsn: "d", nameServers: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// Killed and started again is no failure; dying by itself is, and says why.
func TestRelayLife(t *testing.T) {
	r := startPlayed(t)
	if got := r.lag(t.Context()); got != "1.2 s" && got != "1.3 s" {
		t.Errorf("lag %q", got)
	}
	if err := r.kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.failed:
		t.Fatalf("a kill counts as a failure: %v", err)
	default:
	}
	if _, err := r.get(t.Context(), "/die"); err == nil {
		t.Error("the death was answered")
	}
	select {
	case err := <-r.failed:
		if !strings.Contains(err.Error(), "exit status 4") || !strings.Contains(err.Error(), "played death") {
			t.Errorf("the failure does not say why: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the death was not noticed")
	}
	if err := r.stop(); err != nil {
		t.Errorf("stopping what is gone: %v", err)
	}
}

// A relay that does not end with exit code 0 has not drained.
func TestRelayStopReportsExit(t *testing.T) {
	r := startPlayed(t)
	if err := r.stop(); err == nil || !strings.Contains(err.Error(), "did not end cleanly") {
		t.Errorf("a relay that died of the signal: %v", err)
	}
	if err := r.call(context.Background(), "migrate", "up"); err == nil || !strings.Contains(err.Error(), "played migrate") {
		t.Errorf("a failed command: %v", err)
	}
}
