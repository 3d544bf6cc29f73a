package binlog

import (
	"net"
	"sync"
	"testing"
)

// proxy stands between a reader and its server and misbehaves as told.
type proxy struct {
	t        *testing.T
	target   string
	listener net.Listener
	copying  sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	refuse bool
	silent bool  // what the server says is swallowed
	limit  int64 // bytes of the server after which all connections are cut, each time; 0: none
	seen   int64 // bytes of the server since the last cut
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, target: target, listener: l}
	p.copying.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.copying.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.target)
		if err != nil || !p.keep(c, s) {
			c.Close()
			if s != nil {
				s.Close()
			}
			continue
		}
		p.copying.Go(func() { p.pipe(s, c, func(int64) bool { return true }) })
		p.copying.Go(func() { p.pipe(c, s, p.passes) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return false
	}
	p.conns = append(p.conns, conns...)
	return true
}

// pipe copies until one end is closed, and then closes both.
func (p *proxy) pipe(to, from net.Conn, passes func(int64) bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if n > 0 && passes(int64(n)) {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passes decides about bytes from the server.
func (p *proxy) passes(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent {
		return false
	}
	p.seen += n
	if p.limit == 0 || p.seen <= p.limit {
		return true
	}
	p.seen = 0
	p.closeAll()
	return false
}

func (p *proxy) closeAll() {
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeAll()
}

// set changes the behaviour.
func (p *proxy) set(change func(*proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}
