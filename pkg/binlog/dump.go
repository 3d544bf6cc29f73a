package binlog

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-sql-driver/mysql"
)

// receiver takes the events of a stream, one call at a time. An error ends the stream.
type receiver interface {
	// handle takes an event: head and body, without its checksum. They are good until
	// it returns.
	handle(event []byte) error
	// passesOver tells of a large event, by its head and the id that the body of rows
	// begins with, whether it need not be handed over at all.
	passesOver(h header, tableID uint64) bool
	// unpack takes a compressed transaction while it arrives. The body ends with io.EOF
	// only if its checksum was right, so nothing of it may count before that.
	unpack(h header, body io.Reader) error
}

// dumpConfig is what a source is told of a replica that wants its binlog.
type dumpConfig struct {
	flavor          string
	serverID        uint32
	uuid            string // of this replica; MySQL ends an older stream of the same
	heartbeatPeriod time.Duration
	readTimeout     time.Duration // silence that means a dead connection
	server          string        // whose stream it must be, as in position; empty: anyone's
}

// dump is one replication stream, on the level of the protocol. The library has a
// syncer of its own, which holds every event whole, however large, and cannot be
// closed while a server is silent; of the library its connection is used here.
type dump struct {
	dumpConfig
	conn *client.Conn
	to   receiver
	in   incoming
}

// run starts a replication stream behind from and hands its events over until it
// ends. Its error is never nil. Sockets are closed from outside when ctx ends,
// whatever is being waited for (test: TestCloseWhileServerIsFrozen).
func (c dumpConfig) run(ctx context.Context, cfg *mysql.Config, from *position, to receiver) error {
	sockets := newDialer(cfg)
	stop := context.AfterFunc(ctx, sockets.stop)
	defer stop()
	defer sockets.stop()
	d := &dump{dumpConfig: c, to: to, in: incoming{to: to}}
	if err := d.start(ctx, cfg, sockets, from); err != nil {
		return fmt.Errorf("starting the replication stream: %w", err)
	}
	for {
		if err := d.next(); err != nil {
			return err
		}
	}
}

func (d *dump) start(ctx context.Context, cfg *mysql.Config, sockets *dialer, from *position) (err error) {
	if d.conn, err = d.connect(ctx, cfg, sockets); err != nil {
		return err
	}
	if err := d.recognise(); err != nil {
		return err
	}
	for _, query := range d.setUp(from) {
		if _, err := d.conn.Execute(query); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
	}
	if err := d.command(d.register()); err != nil {
		return err
	}
	if _, err := d.conn.ReadOKPacket(); err != nil {
		return fmt.Errorf("registering as a replica: %w", err)
	}
	return d.command(d.request(from))
}

func (d *dump) connect(ctx context.Context, cfg *mysql.Config, sockets *dialer) (conn *client.Conn, err error) {
	defer func() {
		if p := recover(); p != nil { // a malformed key sent by a server makes the library panic
			err = fmt.Errorf("internal error of the client: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return client.ConnectWithDialer(ctx, "", cfg.Addr, cfg.User, cfg.Passwd, "", sockets.dial, func(c *client.Conn) error {
		c.SetTLSConfig(tlsFor(cfg))
		c.ReadTimeout = d.readTimeout // renewed with every read
		return nil
	})
}

// recognise refuses another server than the one wanted, as a load balancer may give.
func (d *dump) recognise() error {
	if d.server == "" {
		return nil
	}
	query := "SELECT @@global.server_uuid"
	if d.flavor == flavorMariaDB {
		query = "SELECT @@global.server_id"
	}
	answer, err := d.conn.Execute(query)
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	defer answer.Close()
	id, err := answer.GetString(0, 0)
	if err == nil && id != d.server {
		err = fmt.Errorf("server %s has answered, the stream is of %s", id, d.server)
	}
	return err
}

// setUp is what the session is told before the stream.
func (d *dump) setUp(from *position) []string {
	nanoseconds := d.heartbeatPeriod.Nanoseconds()
	queries := []string{
		// While emit blocks nothing is read; the server would hang up after a minute.
		"SET SESSION net_write_timeout=3600",
		// Says that checksums are understood; events keep theirs all the same.
		"SET @master_binlog_checksum='NONE', @source_binlog_checksum='NONE'",
		fmt.Sprintf("SET @master_heartbeat_period = %d, @source_heartbeat_period = %d", nanoseconds, nanoseconds),
		fmt.Sprintf("SET @slave_uuid = '%s', @replica_uuid = '%s'", d.uuid, d.uuid),
	}
	if d.flavor == flavorMariaDB {
		queries = append(queries, "SET @mariadb_slave_capability=4") // understands GTIDs
		if from.gtids != nil {
			queries = append(queries, fmt.Sprintf("SET @slave_connect_state='%s'", from.gtids), "SET @slave_gtid_strict_mode=1")
		}
	}
	return queries
}

// Commands of the protocol.
const (
	commandBinlogDump     = 0x12
	commandRegisterSlave  = 0x15
	commandBinlogDumpGTID = 0x1e
)

func (d *dump) command(data []byte) error {
	d.conn.ResetSequence()
	if err := d.conn.WritePacket(append(make([]byte, 4), data...)); err != nil {
		return fmt.Errorf("sending command %#x: %w", data[0], err)
	}
	return nil
}

// register announces a replica under its server id.
func (d *dump) register() []byte {
	const name = "rowferry" // servers refuse more than 60 bytes, which host names of pods reach
	b := binary.LittleEndian.AppendUint32([]byte{commandRegisterSlave}, d.serverID)
	b = append(append(b, byte(len(name))), name...)
	b = append(b, 0, 0)                  // no user, no password
	b = append(b, 0, 0)                  // no port
	return append(b, make([]byte, 8)...) // neither rank nor source id
}

// request asks for the stream behind a position. MariaDB knows the GTIDs from setUp.
func (d *dump) request(from *position) []byte {
	const firstEvent = 4
	if set, ok := from.gtids.(*mysqlSet); ok {
		data := set.Encode()
		b := append([]byte{commandBinlogDumpGTID}, 0, 0) // no flags
		b = binary.LittleEndian.AppendUint32(b, d.serverID)
		b = binary.LittleEndian.AppendUint32(b, 0) // no file name
		b = binary.LittleEndian.AppendUint64(b, firstEvent)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
		return append(b, data...)
	}
	file, offset := from.file, uint32(from.offset) // position.check bounds it
	if from.gtids != nil {
		file, offset = "", 0
	}
	b := binary.LittleEndian.AppendUint32([]byte{commandBinlogDump}, offset)
	b = append(b, 0, 0) // no flags
	b = binary.LittleEndian.AppendUint32(b, d.serverID)
	return append(b, file...)
}

// next takes one packet. What may be large is handed over while it arrives.
func (d *dump) next() error {
	d.in.begin()
	err := d.conn.ReadPacketTo(&d.in)
	if err = d.in.end(err); err != nil {
		return err
	}
	packet := d.in.packet
	if d.in.taken || len(packet) == 0 {
		return nil
	}
	switch packet[0] {
	case gomysql.OK_HEADER:
		return d.in.hand(packet[1:])
	case gomysql.ERR_HEADER:
		return d.conn.HandleErrorPacket(packet)
	case gomysql.EOF_HEADER:
		return errors.New("the server has ended the replication stream")
	}
	return malformed("packet of kind %#x in the stream", packet[0])
}

func newDialer(cfg *mysql.Config) *dialer {
	if cfg.DialFunc != nil {
		return &dialer{base: func(ctx context.Context, _, _ string) (net.Conn, error) { return cfg.DialFunc(ctx, cfg.Net, cfg.Addr) }}
	}
	nd := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	return &dialer{base: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return nd.DialContext(ctx, cfg.Net, cfg.Addr)
	}}
}

// tlsFor names the server to be verified, which the library leaves to us.
func tlsFor(cfg *mysql.Config) *tls.Config {
	if cfg.TLS == nil {
		return nil
	}
	c := cfg.TLS.Clone()
	if c.ServerName == "" && !c.InsecureSkipVerify {
		if host, _, err := net.SplitHostPort(cfg.Addr); err == nil {
			c.ServerName = host
		}
	}
	return c
}

// newReplicaUUID is for one reader: a source ends an older stream of the same replica,
// so one that lingers after a broken connection goes at once, and none of another
// process does.
func newReplicaUUID() string {
	var u [16]byte
	if _, err := rand.Read(u[:]); err != nil {
		panic(fmt.Sprintf("binlog: no random numbers: %v", err)) // never, says its documentation
	}
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return string(appendUUID(nil, u[:]))
}
