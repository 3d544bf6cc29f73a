package binlog

import "encoding/binary"

// cursor reads the fields of an event one after the other. A read beyond the end
// yields zeros and marks the cursor as failed, so that decoders check once, at
// the end, instead of after each field.
type cursor struct {
	b      []byte
	failed bool
}

// take returns the next n bytes, which alias the event; nil when there are fewer.
func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.failed = true
		c.b = nil
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) skip(n int) { c.take(n) }

// little reads an unsigned little-endian integer of n <= 8 bytes.
func (c *cursor) little(n int) uint64 { return littleEndian(c.take(n)) }

// big reads an unsigned big-endian integer of n <= 8 bytes.
func (c *cursor) big(n int) uint64 { return bigEndian(c.take(n)) }

func littleEndian(b []byte) (v uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

func bigEndian(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

// lenenc reads a length-encoded integer.
func (c *cursor) lenenc() uint64 {
	switch first := c.little(1); first {
	case 0xfc:
		return c.little(2)
	case 0xfd:
		return c.little(3)
	case 0xfe:
		return c.little(8)
	case 0xfb, 0xff: // NULL and an error marker: no integers
		c.failed = true
		return 0
	default:
		return first
	}
}

// length reads a length-encoded length: never more than what is left.
func (c *cursor) length() int {
	n := c.lenenc()
	if n > uint64(len(c.b)) {
		c.failed = true
		return 0
	}
	return int(n)
}

// prefixed reads bytes behind their length, itself n bytes little-endian.
func (c *cursor) prefixed(n int) []byte {
	length := c.little(n)
	if length > uint64(len(c.b)) {
		c.failed = true
		c.b = nil
		return nil
	}
	return c.take(int(length))
}

func (c *cursor) err() error {
	if c.failed {
		return errShort
	}
	return nil
}

func littleUint16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }

// bitSet tests bit i of a bitmap in the server's order: lowest bit first.
func bitSet(bitmap []byte, i int) bool { return bitmap[i>>3]&(1<<(i&7)) != 0 }
