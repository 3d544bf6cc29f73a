package binlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// master plays the part of a server: it answers what a reader asks by SQL as a given
// release would, and serves whatever replication stream a test writes for it. It is for
// releases that cannot be had, and for what no real server can be made to do.
type master struct {
	t        testing.TB
	release  release
	listener net.Listener

	logs       []*madeLog
	vars       map[string]string // system variables, without @@global.
	purged     string            // GTID set
	replicates bool              // it is a replica itself

	// serve is one replication stream; when it returns the connection is closed. Streams
	// that only look at the head of a file do not come here.
	serve func(*dumping)

	mu    sync.Mutex
	conns map[net.Conn]bool
	dumps int
	ended bool
	wg    sync.WaitGroup
}

// release is what differs between servers in the statements that a reader needs.
type release struct {
	flavor  string
	version string // as VERSION() gives it
	number  int    // major, minor, patch: 80036 is 8.0.36
	types   int    // event types that its format description counts
}

var (
	mysql57      = release{flavorMySQL, "5.7.44-log", 50744, 38}
	mysql80      = release{flavorMySQL, "8.0.36", 80036, 41}
	mysql84      = release{flavorMySQL, "8.4.5", 80405, 42}
	mysql97      = release{flavorMySQL, "9.7.0", 90700, 42}
	mariadb1011  = release{flavorMariaDB, "10.11.11-MariaDB-0+deb12u1-log", 101111, 171}
	mariadb118   = release{flavorMariaDB, "11.8.2-MariaDB-log", 110802, 171}
	everyRelease = []release{mysql57, mysql80, mysql84, mysql97, mariadb1011, mariadb118}
)

func (r release) isMariaDB() bool { return r.flavor == flavorMariaDB }

// refuses tells which statements are syntax errors. MySQL renamed them in 8.0.22 and 8.2
// and dropped the old names in 8.4; MariaDB has kept the old ones and added some new.
func (r release) refuses(statement string) bool {
	switch statement {
	case "SHOW BINARY LOG STATUS":
		return r.isMariaDB() || r.number < 80200
	case "SHOW REPLICA STATUS", "SHOW REPLICAS":
		return !r.isMariaDB() && r.number < 80022
	case "SHOW MASTER STATUS", "SHOW SLAVE STATUS", "SHOW SLAVE HOSTS":
		return !r.isMariaDB() && r.number >= 80400
	}
	return false
}

const masterUUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

// newMaster starts one with GTIDs that has the given files. Without serve it serves them
// from where a reader asks for. Change what it says before a reader connects.
func newMaster(t testing.TB, serve func(*dumping), logs ...*madeLog) *master {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := logs[0].release
	m := &master{t: t, release: r, listener: l, serve: serve, conns: map[net.Conn]bool{}, logs: logs}
	if serve == nil {
		m.serve = func(d *dumping) { d.follow(logs...) }
	}
	m.vars = map[string]string{
		"server_id": "7", "log_bin": "1", "binlog_format": "ROW", "lower_case_table_names": "0", "binlog_checksum": "CRC32",
		"binlog_row_image": "FULL", "read_only": "OFF", "version": r.version, "net_write_timeout": "60",
	}
	if r.isMariaDB() {
		m.vars["gtid_strict_mode"] = "1"
	} else {
		m.vars["server_uuid"], m.vars["gtid_mode"] = masterUUID, "ON"
	}
	m.vars[map[bool]string{true: "log_slave_updates", false: "log_replica_updates"}[r.isMariaDB() || r.number < 80026]] = "ON"
	if r.isMariaDB() || r.number >= 80001 {
		m.vars["binlog_row_metadata"] = map[bool]string{true: "NO_LOG", false: "MINIMAL"}[r.isMariaDB()]
	}
	m.wg.Go(m.accept)
	t.Cleanup(m.close)
	return m
}

func (m *master) accept() {
	for {
		c, err := m.listener.Accept()
		if err != nil {
			return // closed
		}
		m.mu.Lock()
		if m.ended {
			c.Close()
		}
		m.conns[c] = true
		m.mu.Unlock()
		m.wg.Go(func() {
			if err := (&masterConn{m: m, conn: c}).talk(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				m.t.Logf("connection to the scripted server: %v", err)
			}
			c.Close()
			m.mu.Lock()
			delete(m.conns, c)
			m.mu.Unlock()
		})
	}
}

// close hangs up on everybody and waits for the end of what was being served.
func (m *master) close() {
	m.listener.Close()
	m.mu.Lock()
	m.ended = true
	for c := range m.conns {
		c.Close()
	}
	m.mu.Unlock()
	m.wg.Wait()
}

// served is how many streams have begun.
func (m *master) served() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dumps
}

// config is for a reader of the master, which watches handTable unless told otherwise.
func (m *master) config() Config {
	dsn := mysql.NewConfig()
	dsn.Net, dsn.Addr, dsn.User, dsn.InterpolateParams = "tcp", m.listener.Addr().String(), "repl", true
	return Config{DSN: dsn, ServerID: nextServerID(), Logger: zerolog.Nop(), HeartbeatPeriod: 10 * time.Second,
		Layouts: map[outbox.Table]*outbox.Layout{handTable: handLayout(m.t)}}
}

// masterConn is one connection to the master.
type masterConn struct {
	m        *master
	conn     net.Conn
	sequence byte
	state    string // of @slave_connect_state
	peeks    bool   // it asked for heartbeats as a look at the head of a file does
}

// talk is the connection's life: greeting, login without looking, commands.
func (c *masterConn) talk() error {
	if err := c.write(c.greeting()); err != nil {
		return err
	}
	if _, err := c.read(); err != nil {
		return err
	}
	for err := c.ok(); ; {
		if err != nil {
			return err
		}
		var packet []byte
		if packet, err = c.read(); err != nil {
			return err
		}
		if len(packet) == 0 {
			return errShort
		}
		var end bool
		if end, err = c.command(packet[0], packet[1:]); end {
			return err
		}
	}
}

// Commands of the protocol.
const (
	comQuit           = 0x01
	comQuery          = 0x03
	comPing           = 0x0e
	comBinlogDump     = 0x12
	comRegisterSlave  = 0x15
	comBinlogDumpGTID = 0x1e
)

func (c *masterConn) command(kind byte, body []byte) (end bool, err error) {
	switch kind {
	case comQuit:
		return true, nil
	case comPing, comRegisterSlave:
		return false, c.ok()
	case comQuery:
		return false, c.query(string(body))
	case comBinlogDump, comBinlogDumpGTID:
		d := &dumping{m: c.m, conn: c, set: c.state}
		if err := d.request(kind, body); err != nil {
			return true, err
		}
		if c.peeks {
			d.sendLogs(c.m.logs)
			d.heartbeat(d.file, uint32(c.m.logs[0].place), false)
			d.idle()
			return true, nil
		}
		c.m.mu.Lock()
		c.m.dumps++
		d.number = c.m.dumps
		c.m.mu.Unlock()
		c.m.serve(d)
		return true, nil
	}
	return false, c.fail(1047, fmt.Sprintf("Unknown command %d", kind))
}

// greeting offers the old password plugin, under which no password is an empty answer.
func (c *masterConn) greeting() []byte {
	// Long passwords and flags, a schema, protocol 4.1, transactions, long scrambles; plugins.
	const capabilities = 0x1 | 0x4 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x80000
	version := c.m.release.version
	if c.m.release.isMariaDB() && c.m.release.number < 110000 {
		version = "5.5.5-" + version // for old clients, which take 10 for 1
	}
	b := append(append([]byte{10}, version...), 0)
	b = binary.LittleEndian.AppendUint32(b, 77)
	b = append(append(b, "scramble"...), 0)
	b = binary.LittleEndian.AppendUint16(b, capabilities&0xffff)
	b = append(b, 45, 2, 0)
	b = binary.LittleEndian.AppendUint16(b, capabilities>>16)
	b = append(append(b, 21), make([]byte, 10)...)
	return append(append(b, "scrambled123\x00"...), "mysql_native_password\x00"...)
}

func (c *masterConn) read() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return nil, err
	}
	c.sequence = head[3] + 1
	body := make([]byte, littleEndian(head[:3]))
	_, err := io.ReadFull(c.conn, body)
	return body, err
}

const packetMax = 1<<24 - 1

// write sends one message, in as many packets as it takes.
func (c *masterConn) write(message []byte) error {
	for {
		n := min(len(message), packetMax)
		head := []byte{byte(n), byte(n >> 8), byte(n >> 16), c.sequence}
		c.sequence++
		buffers := net.Buffers{head, message[:n]}
		if _, err := buffers.WriteTo(c.conn); err != nil {
			return err
		}
		if message = message[n:]; n < packetMax {
			return nil
		}
	}
}

func (c *masterConn) ok() error  { return c.write([]byte{0, 0, 0, 2, 0, 0, 0}) }
func (c *masterConn) eof() error { return c.write([]byte{0xfe, 0, 0, 2, 0}) }

func (c *masterConn) fail(code uint16, text string) error {
	b := binary.LittleEndian.AppendUint16([]byte{0xff}, code)
	return c.write(append(append(b, "#HY000"...), text...))
}
