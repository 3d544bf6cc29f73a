package rocketmq

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
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

// A name server in trouble answers with the texts by which a broker refuses a
// message; the topic's waiting events must not become FAILED for it.
func TestTroubleOfANameServerRefusesNothing(t *testing.T) {
	for _, header := range []string{
		`{"code":1,"remark":"java.lang.NullPointerException"}`,
		`{"code":13,"remark":"the message is illegal"}`,
		`{"code":-7,"remark":""}`,
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go answer(l, header)
		d := &directory{servers: []string{l.Addr().String()}}
		_, err = d.route(t.Context(), "orders")
		if got := outbox.ClassOf(err); err == nil || got != outbox.Transient {
			t.Errorf("%s: class %s (%v), want transient", header, got, err)
		}
		l.Close()
	}
	if got := noMessage(classifyCode(codeTopicAbsent, "", 0)).Class; got != outbox.Configuration {
		t.Errorf("a topic that is absent is %s, want configuration", got)
	}
}

// answer serves one request with a header and no body.
func answer(l net.Listener, header string) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	r := bufio.NewReader(c)
	var size uint32
	if binary.Read(r, binary.BigEndian, &size) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r, int64(size))
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	_, _ = c.Write(append(b, header...))
}
