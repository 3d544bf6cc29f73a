package binlog

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zstd"
)

// payloadReader unpacks MySQL's compressed transactions event by event, so that
// one of a gigabyte costs no more memory than its largest event. It keeps one
// decoder: making one costs more than most transactions.
type payloadReader struct {
	src  *bufio.Reader
	zstd *zstd.Decoder
	body bytes.Buffer
}

// Fields of a TRANSACTION_PAYLOAD event: type, length and value, the first two and
// numeric values length-encoded.
const (
	payloadEnd         = 0
	payloadCompression = 2
)

const (
	compressionZstd = 0
	compressionNone = 255
)

// windowMax bounds the decoder's memory; the server's own windows are 8 MiB and less.
const windowMax = 128 << 20

// fields reads the head of a payload event, up to the packed events, and returns how
// they are packed.
func (p *payloadReader) fields() (compression uint64, err error) {
	compression = compressionNone
	for {
		kind, err := p.lenenc()
		if err != nil || kind == payloadEnd {
			return compression, err
		}
		size, err := p.lenenc()
		if err != nil {
			return 0, err
		}
		const sizeMax = 1 << 10 // of fields that may come to be
		v := make([]byte, min(size, sizeMax))
		if _, err := io.ReadFull(p.src, v); err != nil {
			return 0, fmt.Errorf("compressed transaction: %w: %w", errMalformed, err) // err may be of the connection
		}
		if size > sizeMax {
			return 0, malformed("field of %d bytes in a compressed transaction", size)
		}
		if c := (cursor{b: v}); kind == payloadCompression {
			if compression = c.lenenc(); c.failed {
				return 0, errShort
			}
		}
	}
}

// lenenc reads a length-encoded integer.
func (p *payloadReader) lenenc() (uint64, error) {
	const longest = 9
	b, _ := p.src.Peek(longest) // less than that at the end
	c := cursor{b: b}
	v := c.lenenc()
	if c.failed {
		if _, err := p.src.Peek(1); err != nil && !errors.Is(err, io.EOF) {
			return 0, err // of the connection
		}
		return 0, errShort
	}
	_, err := p.src.Discard(len(b) - len(c.b))
	return v, err
}

// each calls do for every event inside a payload. want is asked first, with the
// head of the event and, of an event that names a table, the table's id: what it
// declines is not unpacked into memory. body is good until the next call. A nil error
// says that the payload was read to its end.
func (p *payloadReader) each(payload io.Reader, want func(h header, tableID uint64) bool, do func(h header, body []byte) error) error {
	if p.src == nil {
		p.src = bufio.NewReaderSize(nil, sourceBytes)
	}
	p.src.Reset(payload)
	compression, err := p.fields()
	if err != nil {
		return err
	}
	var r io.Reader = p.src
	switch compression {
	case compressionNone:
	case compressionZstd:
		if err := p.open(r); err != nil {
			return fmt.Errorf("compressed transaction: %w", err)
		}
		r = p.zstd
	default:
		return malformed("transaction compressed by unknown method %d", compression)
	}
	for {
		if done, err := p.next(r, want, do); done || err != nil {
			return err
		}
	}
}

// sourceBytes is read at a time of what is packed.
const sourceBytes = 16 << 10

func (p *payloadReader) open(r io.Reader) error {
	if p.zstd != nil {
		return p.zstd.Reset(r)
	}
	var err error
	p.zstd, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowMax))
	return err
}

func (p *payloadReader) close() {
	if p.zstd != nil {
		p.zstd.Close()
	}
}

func (p *payloadReader) next(r io.Reader, want func(header, uint64) bool, do func(header, []byte) error) (done bool, err error) {
	var head [replication.EventHeaderSize]byte
	if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("compressed transaction: %w: %w", errMalformed, err)
	}
	h := parseHeader(head[:])
	size := int64(h.size) - replication.EventHeaderSize
	if size < 0 {
		return false, malformed("event of %d bytes in a compressed transaction", size)
	}
	p.body.Reset()
	if p.body.Cap() > packetBytesKept {
		p.body = bytes.Buffer{}
	}
	if err := p.copy(r, min(size, tableIDSize)); err != nil {
		return false, err
	}
	if !want(h, littleEndian(p.body.Bytes())) {
		if _, err := io.CopyN(io.Discard, r, size-int64(p.body.Len())); err != nil {
			return false, fmt.Errorf("compressed transaction: %w: %w", errMalformed, err)
		}
		return false, nil
	}
	if err := p.copy(r, size-int64(p.body.Len())); err != nil {
		return false, err
	}
	return false, do(h, p.body.Bytes())
}

// copy grows the buffer with what really comes, not with what the head announces.
func (p *payloadReader) copy(r io.Reader, n int64) error {
	if _, err := io.CopyN(&p.body, r, n); err != nil {
		return fmt.Errorf("compressed transaction: %w: %w", errMalformed, err)
	}
	return nil
}

// header is what matters of the 19 bytes in front of every event.
type header struct {
	kind      replication.EventType
	timestamp uint32 // seconds
	serverID  uint32
	size      uint32 // of the whole event, in bytes
	logPos    uint32 // where the event ends in its file, modulo 4 GiB; 0: not said
	flags     uint16
}

func parseHeader(b []byte) header {
	return header{
		kind:      replication.EventType(b[4]),
		timestamp: binary.LittleEndian.Uint32(b),
		serverID:  binary.LittleEndian.Uint32(b[5:]),
		size:      binary.LittleEndian.Uint32(b[9:]),
		logPos:    binary.LittleEndian.Uint32(b[13:]),
		flags:     littleUint16(b[17:]),
	}
}
