package binlog

import (
	"errors"
	"hash/crc32"
	"io"
	"slices"

	"github.com/go-mysql-org/go-mysql/replication"
)

// incoming takes in one packet of the stream as it arrives. Most events are gathered
// and then handed over whole. Of a large one that nobody wants only the checksum is
// kept, and a large compressed transaction is unpacked on the way, so that neither
// needs memory.
type incoming struct {
	to        receiver
	checksums bool // events end with one, as the description of the file said

	packet []byte // what has been gathered, the packet's first byte included
	judged bool   // it is decided what to do with the event
	taken  bool   // it is not gathered

	head header
	size int64 // of the event, as its head says
	got  int64 // of the event, so far
	sum  uint32
	tail []byte         // the checksum itself
	pipe *io.PipeWriter // to unpack; nil: passed over
	done chan error     // what unpack returned
}

const (
	judgeBytes       = 1 + replication.EventHeaderSize + tableIDSize
	tableIDSize      = 6
	largeBytes       = 64 << 10  // an event from which on it pays to look before gathering
	unpackBytes      = 128 << 10 // a compressed transaction that is unpacked while it arrives
	packetBytesKept  = 1 << 20   // memory kept for the next packet
	believedBytesMax = 32 << 20  // size of an event for which memory is made before it has come
	checksumSize     = 4
)

func (p *incoming) begin() {
	if cap(p.packet) > packetBytesKept {
		p.packet = nil
	}
	*p = incoming{to: p.to, checksums: p.checksums, packet: p.packet[:0], tail: p.tail[:0]}
}

// Write takes the next bytes of the packet.
func (p *incoming) Write(b []byte) (int, error) {
	if p.taken {
		return len(b), p.pass(b)
	}
	p.packet = append(p.packet, b...)
	if p.judged || len(p.packet) < judgeBytes {
		return len(b), nil
	}
	p.judged = true
	return len(b), p.judge()
}

// judge decides, by the first bytes, what is to be done with an event.
func (p *incoming) judge() error {
	if p.packet[0] != 0 {
		return nil // no event: an error or an end
	}
	event := p.packet[1:]
	p.head = parseHeader(event)
	p.size = int64(p.head.size)
	if p.size < largeBytes {
		return nil
	}
	_, isRows := formatOf(p.head.kind)
	switch {
	case (isRows || isHarmless(p.head.kind)) && p.to.passesOver(p.head, littleEndian(event[replication.EventHeaderSize:][:tableIDSize])):
		p.taken = true
	case p.head.kind == replication.TRANSACTION_PAYLOAD_EVENT && p.size >= unpackBytes:
		p.taken = true
		p.unpack()
	default:
		p.packet = slices.Grow(p.packet, int(min(p.size, believedBytesMax)))
		return nil
	}
	p.sum = crc32.ChecksumIEEE(event[:replication.EventHeaderSize])
	p.got = replication.EventHeaderSize
	return p.pass(event[replication.EventHeaderSize:])
}

// unpack has the receiver read the body while it arrives.
func (p *incoming) unpack() {
	body, pipe := io.Pipe()
	done := make(chan error, 1)
	p.pipe, p.done = pipe, done
	go func() {
		err := p.to.unpack(p.head, body)
		body.CloseWithError(err) //nolint:errcheck // always nil
		done <- err
	}()
}

// pass takes bytes of an event that is not gathered.
func (p *incoming) pass(b []byte) error {
	end := p.size
	if p.checksums {
		end -= checksumSize
	}
	body := b[:min(int64(len(b)), max(0, end-p.got))]
	p.got += int64(len(b))
	p.sum = crc32.Update(p.sum, crc32.IEEETable, body)
	p.tail = append(p.tail, b[len(body):]...)
	if p.pipe == nil || len(body) == 0 {
		return nil
	}
	_, err := p.pipe.Write(body)
	return err
}

// end ends the packet: broken is nil if all of it has come.
func (p *incoming) end(broken error) error {
	if !p.taken {
		return broken
	}
	err := broken
	if err == nil {
		err = p.verify()
	}
	if p.pipe == nil {
		return err
	}
	p.pipe.CloseWithError(err) //nolint:errcheck // always nil; a nil err is the end
	// Of two errors one is the echo of the other: what broke the connection also ends
	// the unpacking, and an unpacking that fails lets nothing more come.
	unpacked := <-p.done
	if unpacked == nil || err != nil && errors.Is(unpacked, err) {
		return err
	}
	return unpacked
}

// verify checks an event that was not gathered.
func (p *incoming) verify() error {
	switch {
	case p.got != p.size:
		return malformed("event of %d bytes, its head says %d", p.got, p.size)
	case p.checksums && littleEndian(p.tail) != uint64(p.sum):
		return checksumMismatch(p.head)
	}
	return nil
}

// hand checks an event that was gathered and hands it over.
func (p *incoming) hand(event []byte) error {
	if len(event) < replication.EventHeaderSize {
		return errShort
	}
	head := parseHeader(event)
	if int64(head.size) != int64(len(event)) {
		return malformed("event of %d bytes, its head says %d", len(event), head.size)
	}
	if head.kind == replication.FORMAT_DESCRIPTION_EVENT {
		// It always has room for a checksum, and in front of that says whether events
		// have one.
		if len(event) < replication.EventHeaderSize+1+checksumSize {
			return errShort
		}
		p.checksums = event[len(event)-1-checksumSize] == byte(replication.BINLOG_CHECKSUM_ALG_CRC32)
		if !p.checksums {
			return p.to.handle(event)
		}
	}
	if p.checksums {
		n := len(event) - checksumSize
		if n < replication.EventHeaderSize || littleEndian(event[n:]) != uint64(crc32.ChecksumIEEE(event[:n])) {
			return checksumMismatch(head)
		}
		event = event[:n:n]
	}
	return p.to.handle(event)
}

func checksumMismatch(h header) error {
	return malformed("checksum mismatch in an event of type %d that ends at %d", h.kind, h.logPos)
}
