package binlog

import (
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// charsetKind says how far bytes in a character set can be handed on as UTF-8.
type charsetKind uint8

const (
	charsetUTF8  charsetKind = iota // as they are; binary columns too
	charsetASCII                    // as they are while all are below 0x80
	charsetOther                    // never without conversion
)

// kindOfCharset judges by name. In all but a few character sets of MySQL a byte
// below 0x80 is that character of ASCII, wherever it cannot be the second byte of
// another; and a second byte never comes without a first one above 0x7f.
func kindOfCharset(name string) charsetKind {
	switch name {
	case "", "binary", "utf8mb4", "utf8mb3", "utf8":
		return charsetUTF8
	case "ucs2", "utf16", "utf16le", "utf32", "swe7":
		return charsetOther
	}
	return charsetASCII
}

// charsetWidths is the greatest number of bytes of one character.
var charsetWidths = map[string]int64{
	"": 1, "binary": 1, "latin1": 1, "ascii": 1, "utf8": 3, "utf8mb3": 3, "utf8mb4": 4,
}

// sameCharset reports whether a collation of the stream can be that of the
// column. Only UTF-8 and binary are told apart from the rest: they are the ones
// handed on as they are.
func sameCharset(c outbox.Column, collation uint64) bool {
	if c.Charset == "" {
		return collation == collationBinary || !isTextDataType(c.DataType)
	}
	if kindOfCharset(c.Charset) == charsetUTF8 {
		return isUTF8Collation(collation)
	}
	return !isUTF8Collation(collation) && collation != collationBinary
}

func isTextDataType(dataType string) bool {
	return strings.HasSuffix(dataType, "char") || strings.HasSuffix(dataType, "text") ||
		dataType == "enum" || dataType == "set"
}

const collationBinary = 63

// isUTF8Collation knows the collation ids of utf8mb3 and utf8mb4. MariaDB repeats
// the classic ids for NO PAD from 1024 on, and numbers its UCA 14.0 collations
// from 2048 (utf8mb3) and 2304 (utf8mb4) on.
func isUTF8Collation(id uint64) bool {
	if id >= 1024 && id < 2048 {
		id -= 1024
	}
	switch {
	case id == 33, id == 45, id == 46, id == 76, id == 83, id == 223:
		return true
	case id >= 192 && id <= 215, id >= 224 && id <= 247, id >= 255 && id <= 350:
		return true
	case id == 576, id == 577, id == 608, id == 609: // croatian_mysql561 and myanmar of MariaDB
		return true
	}
	return id >= 2048 && id < 2560
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}
