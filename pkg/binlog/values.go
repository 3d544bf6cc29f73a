package binlog

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	my "github.com/go-mysql-org/go-mysql/mysql"
)

// appendText renders a value as a SELECT in a utf8mb4 session set to the plan's
// zone gives it to a Go program: as printed, but for integers, of which the driver
// makes numbers (so ZEROFILL shows no zeros). The result is either part of raw or appended to scratch.
// why is empty, or the reason for which the text is not known for certain.
func (c *columnPlan) appendText(scratch, raw []byte) (text, newScratch []byte, why string) {
	if c.unread != "" {
		return nil, scratch, c.unread
	}
	start := len(scratch)
	switch c.real {
	case my.MYSQL_TYPE_VARCHAR, my.MYSQL_TYPE_VAR_STRING, my.MYSQL_TYPE_STRING:
		return c.stringText(scratch, raw)
	case my.MYSQL_TYPE_BLOB, my.MYSQL_TYPE_GEOMETRY, my.MYSQL_TYPE_VECTOR:
		return c.convert(scratch, raw[c.meta:])
	case typeVarcharCompressed:
		return c.inflate(scratch, raw[c.prefix:])
	case typeBlobCompressed:
		return c.inflate(scratch, raw[c.meta:])
	case my.MYSQL_TYPE_JSON:
		out, err := appendJSON(scratch, raw[c.meta:])
		if err != nil {
			return nil, scratch, unreadType
		}
		return appended(out, start), out, ""
	}
	out, ok := c.appendScalar(scratch, raw)
	if !ok {
		return nil, scratch, unreadType
	}
	return appended(out, start), out, ""
}

// appended is what was written to b from start on: never nil, which means NULL.
func appended(b []byte, start int) []byte {
	if len(b) == start {
		return []byte{}
	}
	return b[start:len(b):len(b)]
}

func (c *columnPlan) stringText(scratch, raw []byte) (text, newScratch []byte, why string) {
	text = raw[c.prefix:]
	start := len(scratch)
	switch c.dataType {
	case "binary":
		if len(text) >= c.length {
			return text, scratch, ""
		}
		scratch = append(scratch, text...) // the server cuts trailing zeros off
		scratch = append(scratch, make([]byte, c.length-len(text))...)
		return appended(scratch, start), scratch, ""
	case "uuid", "inet6", "inet4":
		out, ok := appendMariaDB(scratch, c.dataType, text)
		if !ok {
			return nil, scratch, unreadType
		}
		return appended(out, start), out, ""
	}
	return c.convert(scratch, text)
}

// inflate unpacks a value of a COMPRESSED column.
func (c *columnPlan) inflate(scratch, value []byte) (text, newScratch []byte, why string) {
	out, ok := inflateColumn(scratch, value)
	if !ok {
		return nil, scratch, unreadType
	}
	return c.convert(out, appended(out, len(scratch)))
}

// convert turns text into UTF-8.
func (c *columnPlan) convert(scratch, text []byte) (converted, newScratch []byte, why string) {
	if c.charset == nil || len(text) == 0 {
		return text, scratch, ""
	}
	out, ok := c.charset.asUTF8(scratch, text)
	if !ok {
		return nil, scratch, unreadCharset
	}
	return appended(out, len(scratch)), out, ""
}

// appendScalar renders what has a fixed length. ok is false for a type whose
// text is not certain.
func (c *columnPlan) appendScalar(b, raw []byte) (out []byte, ok bool) {
	switch c.real {
	case my.MYSQL_TYPE_TINY, my.MYSQL_TYPE_SHORT, my.MYSQL_TYPE_INT24, my.MYSQL_TYPE_LONG, my.MYSQL_TYPE_LONGLONG:
		return c.appendInteger(b, raw), true
	case my.MYSQL_TYPE_NEWDECIMAL:
		return appendDecimal(b, raw, int(c.meta>>8), int(c.meta&0xff)), true
	case my.MYSQL_TYPE_YEAR:
		return c.appendYear(b, int64(raw[0])), true
	case my.MYSQL_TYPE_BIT: // a number, as the ledger asks for it
		return strconv.AppendUint(b, bigEndian(raw), 10), true
	case my.MYSQL_TYPE_FLOAT:
		return c.appendFloat(b, math.Float32frombits(uint32(littleEndian(raw))))
	case my.MYSQL_TYPE_DOUBLE:
		return c.appendDouble(b, math.Float64frombits(littleEndian(raw)))
	case my.MYSQL_TYPE_DATE, my.MYSQL_TYPE_NEWDATE:
		v := littleEndian(raw)
		return appendDate(b, v>>9, v>>5&15, v&31), true
	case my.MYSQL_TYPE_DATETIME2:
		return appendDatetime2(b, raw, int(c.meta)), true
	case my.MYSQL_TYPE_TIMESTAMP2:
		return appendTimestamp2(b, raw, int(c.meta), c.zone), true
	case my.MYSQL_TYPE_TIME2:
		return appendTime2(b, raw, int(c.meta)), true
	case my.MYSQL_TYPE_DATETIME, my.MYSQL_TYPE_TIMESTAMP, my.MYSQL_TYPE_TIME:
		return c.appendOldTemporal(b, raw, int(c.meta)), true
	case my.MYSQL_TYPE_ENUM:
		return c.appendLabel(b, littleEndian(raw))
	case my.MYSQL_TYPE_SET:
		return c.appendLabels(b, littleEndian(raw))
	}
	return b, false
}

func (c *columnPlan) appendInteger(b, raw []byte) []byte {
	v := littleEndian(raw)
	if c.unsigned {
		return strconv.AppendUint(b, v, 10)
	}
	shift := 64 - 8*len(raw)
	return strconv.AppendInt(b, int64(v<<shift)>>shift, 10)
}

func (c *columnPlan) appendYear(b []byte, v int64) []byte {
	if v != 0 {
		v += 1900
	}
	if c.short {
		v %= 100
	}
	return strconv.AppendInt(b, v, 10)
}

// appendFloat writes the number that the driver makes of what the server prints:
// six digits, whatever more the column holds.
func (c *columnPlan) appendFloat(b []byte, f float32) ([]byte, bool) {
	const digits = 6
	text := strconv.FormatFloat(float64(f), 'e', digits-1, 64)
	if c.decimals >= 0 {
		text = strconv.FormatFloat(float64(f), 'f', c.decimals, 64)
	}
	printed, err := strconv.ParseFloat(text, 32)
	return strconv.AppendFloat(b, printed, 'g', -1, 32), err == nil
}

// appendDouble is like appendFloat, but the server prints all digits, unless the
// column limits them.
func (c *columnPlan) appendDouble(b []byte, f float64) ([]byte, bool) {
	if c.decimals >= 0 {
		printed, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', c.decimals, 64), 64)
		if err != nil {
			return b, false
		}
		f = printed
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64), true
}

func (c *columnPlan) appendLabel(b []byte, index uint64) ([]byte, bool) {
	if index == 0 {
		return b, true // the empty string that stands for an invalid value
	}
	if index > uint64(len(c.labels)) {
		return b, false
	}
	label := c.labels[index-1]
	return append(b, label...), !c.doubtful || !strings.Contains(label, "?")
}

func (c *columnPlan) appendLabels(b []byte, bits uint64) (out []byte, ok bool) {
	start := len(b)
	for i := range uint64(64) {
		if bits&(1<<i) == 0 {
			continue
		}
		if len(b) > start {
			b = append(b, ',')
		}
		if b, ok = c.appendLabel(b, i+1); !ok {
			return b, false
		}
	}
	return b, true
}

// digitBytes is how many bytes hold so many decimal digits.
var digitBytes = [10]int{0, 1, 1, 2, 2, 3, 3, 4, 4, 4}

func decimalLength(precision, scale int) int {
	integral := precision - scale
	if integral < 0 {
		return -1
	}
	return integral/9*4 + digitBytes[integral%9] + scale/9*4 + digitBytes[scale%9]
}

// appendDecimal reads the server's packed form: groups of nine digits in four
// bytes, big-endian, the odd group outermost; the highest bit is the sign, and a
// negative number has all bits turned.
func appendDecimal(b, raw []byte, precision, scale int) []byte {
	if len(raw) == 0 {
		return append(b, '0')
	}
	raw = bytes.Clone(raw)
	if raw[0]&0x80 == 0 {
		b = append(b, '-')
		for i := range raw {
			raw[i] ^= 0xff
		}
	}
	raw[0] ^= 0x80
	integral := precision - scale
	start := len(b)
	if odd := integral % 9; odd > 0 {
		b, raw = appendDigits(b, raw, odd)
	}
	for range integral / 9 {
		b, raw = appendDigits(b, raw, 9)
	}
	b = trimZeros(b, start)
	if scale > 0 {
		b = append(b, '.')
	}
	for scale > 0 {
		size := min(scale, 9)
		b, raw = appendDigits(b, raw, size)
		scale -= size
	}
	return b
}

func appendDigits(b, raw []byte, size int) (out, rest []byte) {
	n := digitBytes[size]
	return appendPadded(b, bigEndian(raw[:n]), size), raw[n:]
}

// trimZeros removes leading zeros from start on, leaving one digit.
func trimZeros(b []byte, start int) []byte {
	if len(b) == start {
		return append(b, '0')
	}
	i := start
	for i < len(b)-1 && b[i] == '0' {
		i++
	}
	return append(b[:start], b[i:]...)
}

// appendPadded writes v with at least width digits.
func appendPadded(b []byte, v uint64, width int) []byte {
	var buf [20]byte
	digits := strconv.AppendUint(buf[:0], v, 10)
	for i := len(digits); i < width; i++ {
		b = append(b, '0')
	}
	return append(b, digits...)
}

func appendDate(b []byte, year, month, day uint64) []byte {
	b = append(appendPadded(b, year, 4), '-')
	b = append(appendPadded(b, month, 2), '-')
	return appendPadded(b, day, 2)
}

func appendClock(b []byte, hour, minute, second uint64) []byte {
	b = append(appendPadded(b, hour, 2), ':')
	b = append(appendPadded(b, minute, 2), ':')
	return appendPadded(b, second, 2)
}

// fraction reads the digits behind the second: precision p takes (p+1)/2 bytes,
// which hold an even number of digits. It returns microseconds.
func fraction(raw []byte) uint64 {
	v := bigEndian(raw)
	for i := len(raw); i < 3; i++ {
		v *= 100
	}
	return v
}

// appendFraction writes the first p digits of a number of microseconds.
func appendFraction(b []byte, micros uint64, p int) []byte {
	if p <= 0 {
		return b
	}
	b = append(b, '.')
	start := len(b)
	b = appendPadded(b, micros, 6)
	return b[:start+min(p, 6)]
}

// appendPackedDatetime prints the server's packed form without its sign: 17 bits
// of year*13+month, 5 of day, 5 of hour, 6 of minute, 6 of second.
func appendPackedDatetime(b []byte, v uint64) []byte {
	b = appendDate(b, v>>22/13, v>>22%13, v>>17&31)
	b = append(b, ' ')
	return appendClock(b, v>>12&31, v>>6&63, v&63)
}

func appendDatetime2(b, raw []byte, p int) []byte {
	v := bigEndian(raw[:5]) & (1<<39 - 1) // the sign bit is always set
	return appendFraction(appendPackedDatetime(b, v), fraction(raw[5:]), p)
}

func appendTimestamp2(b, raw []byte, p int, zone *time.Location) []byte {
	return appendTimestamp(b, int64(binary.BigEndian.Uint32(raw)), fraction(raw[4:]), p, zone)
}

func appendTimestamp(b []byte, seconds int64, micros uint64, p int, zone *time.Location) []byte {
	if seconds == 0 && micros == 0 {
		return appendFraction(append(b, "0000-00-00 00:00:00"...), 0, p)
	}
	return appendFraction(time.Unix(seconds, 0).In(zone).AppendFormat(b, time.DateTime), micros, p)
}

// appendTime2 prints a TIME. Its packed form is offset by half its range, and
// counts downwards with the fraction for negative values.
func appendTime2(b, raw []byte, p int) []byte {
	bits := 8 * len(raw)
	v := int64(bigEndian(raw)) - 1<<(bits-1)
	if v < 0 {
		b = append(b, '-')
		v = -v
	}
	fractionBits := bits - 24
	hms := uint64(v >> fractionBits)
	micros := uint64(v) & (1<<fractionBits - 1)
	for i := fractionBits / 8; i < 3; i++ {
		micros *= 100
	}
	return appendFraction(appendClock(b, hms>>12&1023, hms>>6&63, hms&63), micros, p)
}
