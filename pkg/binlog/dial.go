package binlog

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

var errClosing = errors.New("the connection is being closed")

// dialer makes the sockets of one connection to the source and can close them
// from outside at any time. The library alone cannot be stopped while a server is
// silent: it would first open a second connection to send a KILL. That dial is
// refused here, so nothing is killed and closing takes no time
// (test: TestCloseWhileServerIsFrozen).
type dialer struct {
	base func(ctx context.Context, network, addr string) (net.Conn, error)

	mu      sync.Mutex
	closing bool
	conns   []net.Conn
}

// handshakeTimeout bounds the first reads on a new socket, which the library
// would wait for without end; its later reads set their own deadlines.
const handshakeTimeout = 10 * time.Second

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.closed() {
		return nil, errClosing
	}
	c, err := d.base(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, errors.Join(errClosing, c.Close())
	}
	d.conns = append(d.conns, c)
	return c, c.SetReadDeadline(time.Now().Add(handshakeTimeout))
}

func (d *dialer) closed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing
}

// stop closes every socket and refuses new ones. What a reader still hears of
// its socket after this is of no interest, nor is an error in closing one.
//
// The peer is told by a reset, not by a goodbye that it would only notice at its
// second write: the server's dump thread, which lists us under our server id, ends
// with its next heartbeat (test: TestServerForgetsAReader).
func (d *dialer) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = true
	for _, c := range d.conns {
		if tcp, ok := c.(interface{ SetLinger(int) error }); ok {
			tcp.SetLinger(0) //nolint:errcheck // see above
		}
		c.Close() //nolint:errcheck // see above
	}
}
