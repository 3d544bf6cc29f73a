package binlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-mysql-org/go-mysql/replication"
)

// dumping is one replication stream that the master serves.
type dumping struct {
	m      *master
	conn   *masterConn
	number int // from 1

	// What the reader asked for.
	file   string
	offset uint32
	set    string // GTID set

	described bool // what follows a format description has a checksum
	broken    error
}

// request reads the command that begins the stream.
func (d *dumping) request(kind byte, body []byte) error {
	c := cursor{b: body}
	if kind == comBinlogDump {
		d.offset = uint32(c.little(4))
		c.skip(6)
		d.file = string(c.b)
		return c.err()
	}
	c.skip(6)
	d.file = string(c.prefixed(4))
	c.skip(8)
	set, err := decodeMySQLSet(c.prefixed(4))
	d.set = set.String()
	return errors.Join(err, c.err())
}

// decodeMySQLSet is the server's side of mysqlSet.Encode.
func decodeMySQLSet(b []byte) (*mysqlSet, error) {
	set := newMySQLSet()
	c := cursor{b: b}
	n := c.little(8)
	tagged := n>>56 == 1
	if tagged {
		n = n << 8 >> 16
	}
	for range n {
		var s source
		copy(s.uuid[:], c.take(16))
		if tagged {
			s.tag = string(c.take(int(c.little(1)) >> 1))
		}
		for range c.little(8) {
			first := c.little(8)
			set.addInterval(s, interval{first, c.little(8) - 1})
		}
		if c.failed {
			return set, errShort
		}
	}
	if len(c.b) > 0 {
		return set, fmt.Errorf("%d bytes follow the GTID set", len(c.b))
	}
	return set, nil
}

// send writes events, each with its head and checksum. After the first failure, which
// is the reader hanging up, it does nothing.
func (d *dumping) send(events ...[]byte) {
	for _, e := range events {
		if d.broken == nil {
			d.broken = d.conn.write(append([]byte{0}, e...))
		}
	}
}

// begin is what every dump begins with: the file's name, then its first event.
func (d *dumping) begin(l *madeLog) {
	d.rotate(l.name, max(uint64(d.offset), fileHeadSize))
	d.describe(l)
}

// follow serves the files from where the reader asked for, and then nothing.
func (d *dumping) follow(logs ...*madeLog) {
	d.sendLogs(logs)
	d.idle()
}

func (d *dumping) sendLogs(logs []*madeLog) {
	for i, l := range logs {
		if d.file != "" && l.name < d.file {
			continue
		}
		if i > 0 {
			d.offset = 0
		}
		d.begin(l)
		d.send(d.wanted(l)...)
	}
}

// wanted are the events of a file that the reader has not asked to leave out.
func (d *dumping) wanted(l *madeLog) (events [][]byte) {
	place, skip := uint64(fileHeadSize), false
	for i, e := range l.events {
		if g, ok := openedBy(e); ok && d.file == "" {
			skip = d.has(g)
		}
		before := d.file == l.name && place < uint64(d.offset)
		if place += uint64(len(e)); i > 0 && !skip && !before { // the first one describes the file
			events = append(events, e)
		}
	}
	return events
}

// has tells whether a transaction is in the set of the reader.
func (d *dumping) has(g gtid) bool {
	if d.m.release.isMariaDB() {
		set, err := parseMariaDBSet(d.set)
		return err == nil && g.gno <= set.domains[g.domain].seq
	}
	set, err := parseMySQLSet(d.set)
	return err == nil && set.containsInterval(g.source, interval{g.gno, g.gno})
}

// openedBy reads the GTID of the transaction that an event opens.
func openedBy(e []byte) (g gtid, ok bool) {
	body := e[headSize:]
	switch replication.EventType(e[4]) {
	case replication.GTID_EVENT:
		g.gno = littleEndian(body[17:25])
		copy(g.source.uuid[:], body[1:17])
		return g, true
	case replication.GTID_TAGGED_LOG_EVENT:
		var tagged replication.GtidTaggedLogEvent
		err := decodeTagged(&tagged, body[:len(body)-4])
		g = gtid{gno: uint64(tagged.GNO), source: source{tag: tagged.Tag.String()}}
		copy(g.source.uuid[:], tagged.SID)
		return g, err == nil
	case replication.MARIADB_GTID_EVENT:
		return gtid{gno: littleEndian(body[:8]), domain: uint32(littleEndian(body[8:12])), server: uint32(littleEndian(e[5:9]))}, true
	}
	return g, replication.EventType(e[4]) == replication.ANONYMOUS_GTID_EVENT
}

// rotate is the artificial event in front of every file.
func (d *dumping) rotate(name string, offset uint64) {
	b := append(binary.LittleEndian.AppendUint64(nil, offset), name...)
	d.send(rawEvent{kind: 4, flags: 0x20, serverID: 7, body: b, checksum: d.described}.bytes())
}

func (d *dumping) describe(l *madeLog) {
	d.send(l.events[0])
	d.described = l.checksum
}

// heartbeat is sent by an idle server, and after events that were skipped.
func (d *dumping) heartbeat(name string, logPos uint32, v2 bool) {
	e := rawEvent{kind: 27, serverID: 7, logPos: logPos, body: []byte(name), checksum: d.described}
	if v2 { // type, length, value: 1 the name, 2 the offset as a packed integer, 0 the end
		e.kind, e.logPos = 41, 0
		e.body = append(append([]byte{1, byte(len(name))}, name...), 2, 4, 0xfd, byte(logPos), byte(logPos>>8), byte(logPos>>16), 0)
	}
	d.send(e.bytes())
}

// fail ends the stream with an error of the server.
func (d *dumping) fail(code uint16, text string) {
	if d.broken == nil {
		d.broken = d.conn.fail(code, text)
	}
	d.idle()
}

// idle says nothing more and waits until the reader hangs up.
func (d *dumping) idle() {
	_, err := io.Copy(io.Discard, d.conn.conn)
	if err != nil && d.broken == nil {
		d.broken = err
	}
}

// cutAfter has the connection break off after n more bytes.
func (d *dumping) cutAfter(n int) {
	d.conn.conn = &cutConn{Conn: d.conn.conn, left: n}
}

type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Write(b []byte) (int, error) {
	if len(b) <= c.left {
		c.left -= len(b)
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b[:c.left])
	c.left = 0
	return n, errors.Join(err, c.Close(), io.ErrShortWrite)
}

// slowConn writes one byte at a time.
type slowConn struct{ net.Conn }

func (c *slowConn) Write(b []byte) (n int, err error) {
	for i := range b {
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}
