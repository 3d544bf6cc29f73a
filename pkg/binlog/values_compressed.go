package binlog

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"io"
)

// Parts of the first byte of a value in a COMPRESSED column of MariaDB. Zero stands
// for a value that is stored as it is, and an empty value has no such byte.
const (
	columnMethodZlib = 0x80 // upper four bits
	columnBare       = 0x08 // deflated without the head and the sum of zlib
	columnLengthMask = 0x07 // how many bytes of length follow, big-endian
)

// inflateColumn appends a value of a COMPRESSED column to b. ok is false if it is
// not what MariaDB writes.
func inflateColumn(b, value []byte) (out []byte, ok bool) {
	if len(value) == 0 || value[0] == 0 {
		return append(b, value[min(1, len(value)):]...), true
	}
	c := cursor{b: value[1:]}
	length := c.big(min(int(value[0]&columnLengthMask), 4))
	if c.failed || value[0]&0xf0 != columnMethodZlib || length > uint64(len(value))*deflateGrowthMax {
		return b, false
	}
	var unpacked io.Reader = flate.NewReader(bytes.NewReader(c.b))
	if value[0]&columnBare == 0 {
		var err error
		if unpacked, err = zlib.NewReader(bytes.NewReader(c.b)); err != nil {
			return b, false
		}
	}
	start := len(b)
	b = append(b, make([]byte, length)...)
	if _, err := io.ReadFull(unpacked, b[start:]); err != nil {
		return b[:start], false
	}
	return b, true
}
