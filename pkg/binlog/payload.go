package binlog

import (
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

// splitPayload returns the compression and the packed events of a payload event.
func splitPayload(body []byte) (compression uint64, packed []byte, err error) {
	c := cursor{b: body}
	compression = compressionNone
	for !c.failed {
		kind := c.lenenc()
		if kind == payloadEnd {
			return compression, c.b, c.err()
		}
		v := cursor{b: c.take(c.length())}
		if kind == payloadCompression {
			if compression = v.lenenc(); v.failed {
				return 0, nil, errShort
			}
		}
	}
	return 0, nil, errShort
}

// each calls do for every event inside a payload. want is asked first, with the
// head of the event and, of an event that names a table, the table's id: what it
// declines is not unpacked into memory. body is good until the next call.
func (p *payloadReader) each(payload []byte, want func(h header, tableID uint64) bool, do func(h header, body []byte) error) error {
	compression, packed, err := splitPayload(payload)
	if err != nil {
		return err
	}
	var r io.Reader = bytes.NewReader(packed)
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
	size := int64(binary.LittleEndian.Uint32(head[9:])) - replication.EventHeaderSize
	if size < 0 {
		return false, malformed("event of %d bytes in a compressed transaction", size)
	}
	p.body.Reset()
	const idSize = 6
	if err := p.copy(r, min(size, idSize)); err != nil {
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
	logPos    uint32 // where the event ends in its file, modulo 4 GiB; 0: not said
	flags     uint16
}

func parseHeader(b []byte) header {
	return header{
		kind:      replication.EventType(b[4]),
		timestamp: binary.LittleEndian.Uint32(b),
		serverID:  binary.LittleEndian.Uint32(b[5:]),
		logPos:    binary.LittleEndian.Uint32(b[13:]),
		flags:     littleUint16(b[17:]),
	}
}
