package testservers

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Fate is what becomes of one request that sends messages.
type Fate struct {
	Busy  bool            // the broker never gets it, and seems to answer that it is busy
	Lost  bool            // the broker gets it, and its answer is lost
	After <-chan struct{} // the broker gets it when this is closed, beside what follows it, and its answer is lost
}

// Disturbed returns the address of a name server by which clients reach the broker on a
// way that goes wrong: judge says what becomes of each request that sends messages, which
// are numbered from 0. It is called for one request at a time.
func (b *Broker) Disturbed(tb testing.TB, judge func(n int) Fate) (nameServer string) {
	tb.Helper()
	w := &way{tb: tb, broker: b.brokers[0], judge: judge, ended: make(chan struct{})}
	w.listener = w.listen()
	names := w.listen()
	w.serve(w.listener, w.broker, w.toBroker)
	w.serve(names, b.nameServer, func(client, server net.Conn) {
		_, _ = io.Copy(server, client) // it ends with either connection
	})
	tb.Cleanup(func() { w.end(names, w.listener) })
	return names.Addr().String()
}

// way stands between clients and a broker with its name server.
type way struct {
	tb       testing.TB
	broker   string
	listener net.Listener // in the place of the broker
	judge    func(int) Fate
	running  sync.WaitGroup

	mu    sync.Mutex
	sends int
	conns []net.Conn
	ended chan struct{}
}

func (w *way) listen() net.Listener {
	w.tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.tb.Fatal(err)
	}
	return l
}

func (w *way) end(listeners ...net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
	w.mu.Lock()
	close(w.ended)
	for _, c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// serve passes connections on to target; forward takes what clients say, and what the
// target says goes back with this way's address in the place of the broker's.
func (w *way) serve(l net.Listener, target string, forward func(client, server net.Conn)) {
	w.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.DialTimeout("tcp", target, callTimeout)
			if err != nil || !w.keep(client, server) {
				client.Close()
				if err == nil {
					server.Close()
				}
				continue
			}
			both := func(pass func()) func() {
				return func() { defer client.Close(); defer server.Close(); pass() }
			}
			w.running.Go(both(func() { forward(client, server) }))
			w.running.Go(both(func() { w.back(client, server) }))
		}
	})
}

func (w *way) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, conns...)
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

// back passes answers on.
func (w *way) back(client, server net.Conn) {
	for {
		f, err := readFrame(server)
		if err != nil {
			return
		}
		f.body = bytes.ReplaceAll(f.body, []byte(w.broker), []byte(w.listener.Addr().String()))
		if _, err := client.Write(f.bytes()); err != nil {
			return
		}
	}
}

// toBroker passes requests on as they are judged.
func (w *way) toBroker(client, server net.Conn) {
	for {
		f, err := readFrame(client)
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(f.header, &c); err != nil {
			w.tb.Errorf("a client's header: %v", err)
			return
		}
		switch fate := w.fateOf(c); {
		case fate.Busy:
			err = remote{client}.send(command{Code: responseBusy, Language: "JAVA", Opaque: c.Opaque, Flag: 1,
				Remark: "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"}, nil)
		case fate.Lost:
			w.lose(f)
		case fate.After != nil:
			w.running.Go(func() {
				select {
				case <-fate.After:
					w.lose(f)
				case <-w.ended:
				}
			})
		default:
			_, err = server.Write(f.bytes())
		}
		if err != nil {
			return
		}
	}
}

func (w *way) fateOf(c command) Fate {
	if c.Code != codeSend && c.Code != codeSendV2 && c.Code != codeSendBatch {
		return Fate{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.sends
	w.sends++
	return w.judge(n)
}

// lose gives a request to the broker and keeps the answer.
func (w *way) lose(f frame) {
	r, err := dialRemote(w.broker)
	if err == nil {
		defer r.close()
		err = r.conn.SetDeadline(time.Now().Add(callTimeout))
	}
	if err == nil {
		_, err = r.conn.Write(f.bytes())
	}
	if err == nil {
		_, err = readFrame(r.conn)
	}
	if err != nil {
		w.tb.Errorf("a request whose answer is lost did not reach the broker: %v", err)
	}
}
