package binlog

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
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
	// first XID of MariaDB, which a server counts up as long as it runs.
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
	case replication.XID_EVENT:
		return flavor == flavorMariaDB
	}
	return false
}

func firstSum(raw []byte) uint32 { return max(crc32.ChecksumIEEE(raw), 1) }

// headReader reads the start of one file and then ends the stream.
type headReader struct {
	file   string
	flavor string
	head   fileHead
	done   bool
	bytes  int
}

var errHeadRead = errors.New("the head of the file has been read")

// HandleEvent takes one event off the wire.
func (r *headReader) HandleEvent(ev *replication.BinlogEvent) error {
	const bytesMax = 16 << 20 // a first transaction without an end up to here goes without first
	h := parseHeader(ev.RawData)
	switch e := ev.Event.(type) {
	case *replication.FormatDescriptionEvent:
		r.head.fde = h.timestamp
		return nil
	case *replication.RotateEvent:
		if r.done = string(e.NextLogName) != r.file; r.done {
			return errHeadRead
		}
		return nil
	}
	if marksFile(r.flavor, h.kind) {
		r.head.first = firstSum(ev.RawData)
	}
	r.bytes += len(ev.RawData)
	idle := h.kind == replication.HEARTBEAT_EVENT || h.kind == replication.HEARTBEAT_LOG_EVENT_V2
	if r.done = r.head.first != 0 || idle || r.bytes > bytesMax; r.done {
		return errHeadRead
	}
	return nil
}

// readHead reads the start of a file through a replication stream of its own: no
// statement tells when a file was made.
func (r *Reader) readHead(ctx context.Context, flavor string, cfg *mysql.Config, file string) (fileHead, error) {
	const heartbeatPeriod = time.Second // tells that the file holds nothing more yet
	h := &headReader{file: file, flavor: flavor}
	sc := r.syncerConfig(flavor)
	sc.HeartbeatPeriod, sc.SynchronousEventHandler = heartbeatPeriod, h
	err := dump(ctx, sc, cfg, &position{flavor: flavor, file: file, offset: fileHeadSize})
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
