package binlog

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	my "github.com/go-mysql-org/go-mysql/mysql"
)

// Types of values in MySQL's binary JSON.
const (
	jsonSmallObject = 0x00
	jsonLargeObject = 0x01
	jsonSmallArray  = 0x02
	jsonLargeArray  = 0x03
	jsonLiteral     = 0x04
	jsonInt16       = 0x05
	jsonUint16      = 0x06
	jsonInt32       = 0x07
	jsonUint32      = 0x08
	jsonInt64       = 0x09
	jsonUint64      = 0x0a
	jsonDouble      = 0x0b
	jsonString      = 0x0c
	jsonOpaque      = 0x0f
)

// jsonDepthMax is the server's own limit on nesting, and the guard against a
// document that contains itself.
const jsonDepthMax = 101

// appendJSON prints a binary JSON document exactly as MySQL prints it: a blank
// after each comma and colon, keys in stored order, doubles in the server's form.
func appendJSON(b, doc []byte) ([]byte, error) {
	if len(doc) == 0 {
		return append(b, "null"...), nil // INSERT IGNORE of NULL into a NOT NULL column
	}
	return appendJSONValue(b, doc[0], doc[1:], 0, len(b)+jsonGrowthMax*len(doc))
}

// jsonGrowthMax is more than a document can grow by being printed: a control character
// takes six bytes instead of one, and nothing takes more. A document that prints longer
// has parts that contain each other, and could print without end
// (test: TestJSONThatContainsItself).
const jsonGrowthMax = 8

func appendJSONValue(b []byte, kind byte, data []byte, depth, lengthMax int) ([]byte, error) {
	c := cursor{b: data}
	switch kind {
	case jsonSmallObject, jsonLargeObject, jsonSmallArray, jsonLargeArray:
		return appendJSONContainer(b, kind, data, depth, lengthMax)
	case jsonLiteral:
		return appendJSONLiteral(b, c.little(1), c.failed)
	case jsonInt16:
		b = strconv.AppendInt(b, int64(int16(c.little(2))), 10)
	case jsonUint16:
		b = strconv.AppendUint(b, c.little(2), 10)
	case jsonInt32:
		b = strconv.AppendInt(b, int64(int32(c.little(4))), 10)
	case jsonUint32:
		b = strconv.AppendUint(b, c.little(4), 10)
	case jsonInt64:
		b = strconv.AppendInt(b, int64(c.little(8)), 10)
	case jsonUint64:
		b = strconv.AppendUint(b, c.little(8), 10)
	case jsonDouble:
		b = appendJSONDouble(b, math.Float64frombits(c.little(8)))
	case jsonString:
		b = appendJSONString(b, c.take(c.varlen()))
	case jsonOpaque:
		columnType := byte(c.little(1))
		return appendJSONOpaque(b, columnType, c.take(c.varlen()), c.failed)
	default:
		return b, malformed("JSON value of type %d", kind)
	}
	return b, c.err()
}

// varlen reads a length of up to five bytes of seven bits, lowest first.
func (c *cursor) varlen() int {
	var n uint64
	for i := 0; i < 5; i++ {
		x := c.little(1)
		n |= x & 0x7f << (7 * i)
		if x&0x80 == 0 {
			break
		}
	}
	if n > uint64(len(c.b)) {
		c.failed = true
		return 0
	}
	return int(n)
}

func appendJSONLiteral(b []byte, v uint64, failed bool) ([]byte, error) {
	words := [...]string{"null", "true", "false"}
	if failed || v >= uint64(len(words)) {
		return b, malformed("JSON literal %d", v)
	}
	return append(b, words[v]...), nil
}

// appendJSONContainer prints an object or array. Its head is a count and a size,
// then per key offset and length, then per value a type and an offset or the
// value itself; offsets count from the start of data. Small ones take 2 bytes
// where large ones take 4.
func appendJSONContainer(b []byte, kind byte, data []byte, depth, lengthMax int) ([]byte, error) {
	if depth >= jsonDepthMax {
		return b, malformed("JSON nested too deeply")
	}
	width := 2
	if kind == jsonLargeObject || kind == jsonLargeArray {
		width = 4
	}
	isObject := kind == jsonSmallObject || kind == jsonLargeObject
	c := cursor{b: data}
	count, size := int(c.little(width)), int(c.little(width))
	if c.failed || size > len(data) || count > size {
		return b, errShort
	}
	data = data[:size]
	keys := cursor{b: c.b}
	if isObject {
		c.skip(count * (width + 2))
	}
	b = append(b, openBracket(isObject))
	for i := range count {
		if len(b) > lengthMax {
			return b, malformed("JSON whose parts contain each other")
		}
		if i > 0 {
			b = append(b, ", "...)
		}
		var err error
		if isObject {
			if b, err = appendJSONKey(b, &keys, data, width); err != nil {
				return b, err
			}
		}
		if b, err = appendJSONEntry(b, &c, data, width, depth, lengthMax); err != nil {
			return b, err
		}
	}
	return append(b, openBracket(isObject)+2), c.err() // ASCII: ] and } are two behind [ and {
}

func openBracket(isObject bool) byte {
	if isObject {
		return '{'
	}
	return '['
}

func appendJSONKey(b []byte, keys *cursor, data []byte, width int) ([]byte, error) {
	offset, length := keys.little(width), keys.little(2)
	if keys.failed || offset+length > uint64(len(data)) {
		return b, errShort
	}
	b = appendJSONString(b, data[offset:offset+length])
	return append(b, ": "...), nil
}

func appendJSONEntry(b []byte, c *cursor, data []byte, width, depth, lengthMax int) ([]byte, error) {
	kind := byte(c.little(1))
	value := c.take(width)
	if c.failed {
		return b, errShort
	}
	switch kind {
	case jsonLiteral, jsonInt16, jsonUint16:
		return appendJSONValue(b, kind, value, depth, lengthMax)
	case jsonInt32, jsonUint32:
		if width == 4 {
			return appendJSONValue(b, kind, value, depth, lengthMax)
		}
	}
	offset := littleEndian(value)
	if offset > uint64(len(data)) {
		return b, errShort
	}
	return appendJSONValue(b, kind, data[offset:], depth+1, lengthMax)
}

// appendJSONOpaque prints a value of an SQL type inside JSON.
func appendJSONOpaque(b []byte, columnType byte, v []byte, failed bool) ([]byte, error) {
	if failed {
		return b, errShort
	}
	switch columnType {
	case my.MYSQL_TYPE_NEWDECIMAL:
		if len(v) < 2 || int(v[1]) > int(v[0]) || decimalLength(int(v[0]), int(v[1])) != len(v)-2 {
			return b, errShort
		}
		return appendDecimal(b, v[2:], int(v[0]), int(v[1])), nil
	case my.MYSQL_TYPE_DATE, my.MYSQL_TYPE_DATETIME, my.MYSQL_TYPE_TIMESTAMP, my.MYSQL_TYPE_TIME:
		if len(v) != 8 {
			return b, errShort
		}
		return appendJSONTime(b, columnType, int64(littleEndian(v))), nil
	}
	b = append(b, `"base64:type`...)
	b = strconv.AppendUint(b, uint64(columnType), 10)
	b = append(b, ':')
	return append(appendJSONBase64(b, v), '"'), nil
}

// appendJSONBase64 breaks the line every 76 characters, as the server's encoder
// does, and the break appears as \n inside the JSON string.
func appendJSONBase64(b, v []byte) []byte {
	const bytesPerLine = 57
	for i := 0; i < len(v); i += bytesPerLine {
		if i > 0 {
			b = append(b, `\n`...)
		}
		b = base64.StdEncoding.AppendEncode(b, v[i:min(i+bytesPerLine, len(v))])
	}
	return b
}

// appendJSONTime prints the packed form of a time: 24 bits of microseconds below
// what DATETIME and TIME columns hold.
func appendJSONTime(b []byte, columnType byte, v int64) []byte {
	b = append(b, '"')
	negative := v < 0
	if negative {
		v = -v
	}
	micros := uint64(v) & (1<<24 - 1)
	packed := uint64(v) >> 24
	switch columnType {
	case my.MYSQL_TYPE_DATE:
		b = appendDate(b, packed>>22/13, packed>>22%13, packed>>17&31)
	case my.MYSQL_TYPE_TIME:
		if negative {
			b = append(b, '-')
		}
		b = appendFraction(appendClock(b, packed>>12&1023, packed>>6&63, packed&63), micros, 6)
	default:
		b = appendFraction(appendPackedDatetime(b, packed), micros, 6)
	}
	return append(b, '"')
}

// appendJSONDouble prints a double with as few digits as identify it, plainly
// while the decimal point is within 15 places (or inside the digits) and in
// exponential form beyond; a whole number keeps a ".0", by which MySQL tells it
// from an integer.
func appendJSONDouble(b []byte, f float64) []byte {
	const plainMax = 15
	if f == 0 {
		if math.Signbit(f) {
			b = append(b, '-')
		}
		return append(b, "0.0"...)
	}
	text := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	exp, err := strconv.Atoi(exponent)
	if err != nil {
		return append(b, "null"...) // infinite or not a number: MySQL stores neither
	}
	digits := strings.TrimPrefix(strings.Replace(mantissa, ".", "", 1), "-")
	point := exp + 1
	if point >= -plainMax+1 && (point <= plainMax || len(digits) > point) {
		b = strconv.AppendFloat(b, f, 'f', -1, 64)
		if len(digits) <= point {
			b = append(b, ".0"...)
		}
		return b
	}
	b = append(append(b, mantissa...), 'e')
	return strconv.AppendInt(b, int64(exp), 10)
}

// appendJSONString quotes a string. Bytes above 0x7f pass as they are.
func appendJSONString(b, s []byte) []byte {
	const hexDigits = "0123456789abcdef"
	b = append(b, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		case c == '\b':
			b = append(b, `\b`...)
		case c == '\f':
			b = append(b, `\f`...)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(b, '"')
}
