package mysqlconn

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
)

// greeter greets every client with the same bytes, and returns its address and what each
// client has to say to it, once it has hung up.
func greeter(t *testing.T, greeting []byte, stayOpen bool) (addr string, gone <-chan []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	said := make(chan []byte, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.Write(greeting) //nolint:errcheck // a client may hang up before the end
				if stayOpen {
					text, _ := io.ReadAll(c) // however it ends
					said <- text
				}
			}()
		}
	}()
	return l.Addr().String(), said
}

// realGreeting is what a server says first, with its header.
func realGreeting(t *testing.T, s *testservers.DB) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	packet, err := readGreeting(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

func connectTo(ctx context.Context, addr string) error {
	db, err := Open("root@tcp("+addr+")/", Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(ctx)
}

// The driver would panic over many of these, in whichever goroutine needed a connection.
func TestADamagedGreetingIsAnErrorAndNoPanic(t *testing.T) {
	onBoth(t, func(t *testing.T, s *testservers.DB) {
		right := realGreeting(t, s)
		damaged := map[string][]byte{"of another service": []byte("SSH-2.0-OpenSSH_9.6\r\n"), "an error cut short": {3, 0, 0, 0, 0xff, 0x15, 0x04}, "an error with half a state": {7, 0, 0, 0, 0xff, 0x15, 0x04, '#', '4', '2', '0'}}
		for n := range len(right) {
			damaged["cut short"+string(rune('A'+n))] = right[:n]
			shorter := slices.Clone(right[:n])
			if n > 4 { // a whole packet, but for what is missing
				shorter[0] = byte(n - 4)
				damaged["shortened"+string(rune('A'+n))] = shorter
			}
			for _, length := range []int{1, 24} {
				spoilt := slices.Clone(right)
				for i := n; i < min(len(spoilt), n+length); i++ {
					spoilt[i] = 0xff
				}
				damaged["spoilt"+string(rune('A'+n))+string(rune('A'+length))] = spoilt
			}
		}
		for name, greeting := range damaged {
			addr, _ := greeter(t, greeting, false)
			if err := connectTo(t.Context(), addr); err == nil {
				t.Errorf("%s: a connection came about by %q", name, greeting)
			}
		}
	})
}

func TestAGreetingIsReadOnceAndPassedOnWhole(t *testing.T) {
	right := realGreeting(t, testservers.SharedMySQL(t))
	addr, _ := greeter(t, append(slices.Clone(right), "and more"...), true)
	conn, err := greetedBy(nil)(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := make([]byte, len(right)+len("and more"))
	for i := range got { // one at a time, to meet the seam
		if _, err := io.ReadFull(conn, got[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, append(right, "and more"...)) {
		t.Errorf("read %q", got)
	}
}

// A server that accepts and says nothing is given up in the time for connecting, and the
// connection is closed.
func TestASilentServerIsGivenUp(t *testing.T) {
	addr, gone := greeter(t, nil, true)
	db, err := Open("root@tcp("+addr+")/?timeout=100ms", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "greeting") {
		t.Errorf("got %v, want an error that tells of the greeting", err)
	}
	<-gone
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		c := &mysql.Config{Net: "tcp", Addr: addr}
		CheckGreeting(c)
		_, err := c.DialFunc(ctx, c.Net, c.Addr)
		ended <- err
	}()
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := <-ended; err == nil {
		t.Error("a greeting that never came was read")
	}
	<-gone
}
