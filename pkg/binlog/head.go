package binlog

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"
)

// fileHead tells a binlog file from another of the same name on the same server,
// which there is after the log was reset. Zero fields are unknown.
type fileHead struct {
	fde uint32 // creation time in seconds, from the first event
	// first is a checksum of the first event that differs between two files made within
	// one second: the first GTID of MySQL, which holds microseconds since 8.0.1, and the
	// end of the first transaction of MariaDB, which holds an XID or, of a statement,
	// the connection; a server counts both up as long as it runs.
	first uint32
}

// differs reports whether the two are certainly not heads of one file.
func (h fileHead) differs(o fileHead) bool {
	return h.fde != 0 && o.fde != 0 && h.fde != o.fde || h.first != 0 && o.first != 0 && h.first != o.first
}

// marksFile reports whether an event of that type is what fileHead.first is made of.
func marksFile(flavor string, t replication.EventType) bool {
	switch t {
	case replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return flavor == flavorMySQL
	case replication.XID_EVENT, replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return flavor == flavorMariaDB
	}
	return false
}

// firstSum is of an event without the checksum that stands behind it: the checksum of
// anything with its own is always the same.
func firstSum(event []byte) uint32 { return max(crc32.ChecksumIEEE(event), 1) }

// headReader reads the start of one file and then ends the stream.
type headReader struct {
	file   string
	flavor string
	head   fileHead
	done   bool
	bytes  int
}

var errHeadRead = errors.New("the head of the file has been read")

func (r *headReader) passesOver(header, uint64) bool { return true }

// unpack is not needed: what comes before the first transaction tells the file.
func (r *headReader) unpack(header, io.Reader) error { return errHeadRead }

func (r *headReader) handle(event []byte) error {
	const bytesMax = 16 << 20 // a first transaction without an end up to here goes without first
	h := parseHeader(event)
	switch h.kind {
	case replication.FORMAT_DESCRIPTION_EVENT:
		r.head.fde = h.timestamp
		return nil
	case replication.ROTATE_EVENT:
		name, _, err := parseRotate(event)
		if r.done = err == nil && name != r.file; r.done {
			return errHeadRead
		}
		return err
	}
	if marksFile(r.flavor, h.kind) {
		r.head.first = firstSum(event)
	}
	r.bytes += len(event)
	if r.done = r.head.first != 0 || isHeartbeat(h.kind) || r.bytes > bytesMax; r.done {
		return errHeadRead
	}
	return nil
}

// headHeartbeatPeriod is short: a heartbeat tells us that the file holds nothing more
// yet, and the server that we have gone.
const headHeartbeatPeriod = 100 * time.Millisecond

// readHead reads the start of a file through a replication stream of its own: no
// statement tells when a file was made.
func (r *Reader) readHead(ctx context.Context, flavor string, cfg *mysql.Config, file string) (fileHead, error) {
	h := &headReader{file: file, flavor: flavor}
	c := r.dumpConfig(flavor)
	// Another replica than our own, whose stream the server would end, were it open.
	c.serverID, c.uuid, c.heartbeatPeriod = 1<<31|rand.Uint32(), newReplicaUUID(), headHeartbeatPeriod
	err := c.run(ctx, cfg, &position{flavor: flavor, file: file, offset: fileHeadSize}, h)
	if !h.done {
		return fileHead{}, fmt.Errorf("reading the start of %s: %w", file, err)
	}
	return h.head, nil
}

// reborn is the gap of a file that is not the one it was.
func reborn(file string, was, is fileHead) error {
	if was.fde != is.fde {
		return gap("%s is another file than the one read before: it was created at %s, that one at %s (the log was reset, or a backup restored)",
			file, unix(is.fde), unix(was.fde))
	}
	return gap("%s is another file than the one read before, created within the same second (the log was reset)", file)
}
