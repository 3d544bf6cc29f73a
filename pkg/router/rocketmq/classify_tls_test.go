package rocketmq

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A broker behind TLS that is away, or not quite there, fails the handshake in
// forms of its own. None of them may cost a row an attempt.
func TestFailedHandshakesAreTransient(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"closed at once":            func(c net.Conn) { c.Close() },
		"closed after the greeting": func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); c.Close() },
		"closed within an answer":   func(c net.Conn) { _, _ = c.Read(make([]byte, 1000)); _, _ = c.Write([]byte{22, 3, 3}); c.Close() },
		"silent":                    func(net.Conn) {},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				t.Cleanup(func() { c.Close() })
				serve(c)
			}
		}()
		// As the library dials.
		_, err = tls.DialWithDialer(&net.Dialer{Deadline: time.Now().Add(200 * time.Millisecond)}, "tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		l.Close()
		if err == nil {
			t.Fatalf("%s: the handshake succeeded", name)
		}
		if got := classify(err, 1); got.Class != outbox.Transient {
			t.Errorf("%s: %T %v is %s %s, want transient", name, err, err, got.Class, got.Reason)
		}
	}
}
