package mysqlconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// errGreeting is a first packet that no MySQL sends.
var errGreeting = errors.New("the server's greeting cannot be read: it was damaged on the way, or something else than MySQL listens there")

// greetingBytesMax is far above what servers send.
const greetingBytesMax = 16 << 10

// CheckGreeting has connections by c refuse a greeting that the driver would not survive.
// Pools of this package do so by themselves.
func CheckGreeting(c *mysql.Config) { c.DialFunc = greetedBy(c.DialFunc) }

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// greetedBy reads the server's greeting before the driver does.
//
// What must hold: the driver gets no greeting that is shorter than it believes. It comes
// before TLS, so nothing protects it, and the driver panics over it: the process would end.
// Shown by TestADamagedGreetingIsAnErrorAndNoPanic.
func greetedBy(dial dialFunc) dialFunc {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		packet, err := readGreeting(ctx, conn)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return &greeted{Conn: conn, unread: packet}, nil
	}
}

// readGreeting returns the first packet with its header, within the time for dialing.
func readGreeting(ctx context.Context, conn net.Conn) ([]byte, error) {
	deadline, _ := ctx.Deadline() // none: the zero time, which is none
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
	})
	defer stop()
	packet := make([]byte, 4)
	if _, err := io.ReadFull(conn, packet); err != nil {
		return nil, fmt.Errorf("waiting for the server's greeting: %w", err)
	}
	n := int(packet[0]) | int(packet[1])<<8 | int(packet[2])<<16
	if n > greetingBytesMax {
		return nil, errGreeting
	}
	packet = append(packet, make([]byte, n)...)
	if _, err := io.ReadFull(conn, packet[4:]); err != nil {
		return nil, fmt.Errorf("waiting for the server's greeting: %w", err)
	}
	if err := checkGreeting(packet[4:]); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return packet, conn.SetReadDeadline(time.Time{})
}

// checkGreeting sees to it that everything is there that the driver takes without looking.
func checkGreeting(p []byte) error {
	const errorPacket = 0xff
	if len(p) > 0 && p[0] == errorPacket { // code, and perhaps '#' with a state
		if len(p) < 4 || p[3] == '#' && len(p) < 9 {
			return errGreeting
		}
		return nil
	}
	if len(p) < 2 {
		return errGreeting
	}
	version := bytes.IndexByte(p[1:], 0)
	if version < 0 {
		return errGreeting
	}
	// Connection id, first part of the scramble, filler, capabilities; charset and status,
	// more capabilities, a length, reserved, rest of the scramble. All servers since MySQL
	// 4.1 send this much.
	const least = 4 + 8 + 1 + 2 + 3 + 2 + 1 + 10 + 13
	if len(p)-1-version-1 < least {
		return errGreeting
	}
	return nil
}

// greeted is a connection whose first packet has been read.
type greeted struct {
	net.Conn
	unread []byte
}

// Read implements net.Conn.
func (g *greeted) Read(p []byte) (int, error) {
	if len(g.unread) > 0 {
		n := copy(p, g.unread)
		g.unread = g.unread[n:]
		return n, nil
	}
	return g.Conn.Read(p)
}

// SyscallConn implements syscall.Conn: by it the driver finds out, before it uses an idle
// connection, whether the server has closed it.
func (g *greeted) SyscallConn() (syscall.RawConn, error) {
	c, ok := g.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.New("the connection has no socket")
	}
	return c.SyscallConn()
}

// SetLinger tells what becomes of unsent data at Close, as [net.TCPConn.SetLinger] does; on
// a socket that is not TCP it does nothing.
func (g *greeted) SetLinger(seconds int) error {
	if c, ok := g.Conn.(*net.TCPConn); ok {
		return c.SetLinger(seconds)
	}
	return nil
}
