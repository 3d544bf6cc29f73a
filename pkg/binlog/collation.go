package binlog

import (
	"fmt"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

const charsetBinary = "binary"

// collationIDs are the numbers of the collations of each character set, as the
// stream names them. MySQL and MariaDB give no number two meanings. Ranges reach
// over numbers that are not in use, to the start of the next range of the
// servers' own plan.
var collationIDs = expandIDs(map[string]string{
	"armscii8": "32 64", "ascii": "11 65", "big5": "1 84", charsetBinary: "63", "cp1250": "26 34 44 66 99",
	"cp1251": "14 23 50-52", "cp1256": "57 67", "cp1257": "29 58-59", "cp850": "4 80", "cp852": "40 81",
	"cp866": "36 68", "cp932": "95-96", "dec8": "3 69", "eucjpms": "97-98", "euckr": "19 85",
	"gb18030": "248-250", "gb2312": "24 86", "gbk": "28 87", "geostd8": "92-93", "greek": "25 70",
	"hebrew": "16 71", "hp8": "6 72", "keybcs2": "37 73", "koi8r": "7 74", "koi8u": "22 75",
	"latin1": "5 8 15 31 47-49 94", "latin2": "2 9 21 27 77", "latin5": "30 78", "latin7": "20 41-42 79",
	"macce": "38 43", "macroman": "39 53", "sjis": "13 88", "swe7": "10 82", "tis620": "18 89",
	"ucs2": "35 90 128-159 640-671 2560-2815", "ujis": "12 91", "utf16": "54-55 101-124 672-703 2816-3071",
	"utf16le": "56 62", "utf32": "60-61 160-183 736-767 3072-3327",
	"utf8mb3": "33 76 83 192-223 576-607 2048-2303", "utf8mb4": "45-46 224-247 255-350 608-639 2304-2559",
})

func expandIDs(byCharset map[string]string) map[uint64]string {
	ids := map[uint64]string{}
	for name, text := range byCharset {
		for r := range strings.FieldsSeq(text) {
			var from, to uint64
			if n, _ := fmt.Sscanf(r, "%d-%d", &from, &to); n == 1 { // a single number ends in an error about the dash
				to = from
			}
			for id := from; id <= to; id++ {
				ids[id] = name
			}
		}
	}
	return ids
}

// charsetOf returns the name of the character set of a collation, empty if it is
// not known. MariaDB repeats the classic collations from 1024 on, without padding.
func charsetOf(collation uint64) string {
	if collation >= 1024 && collation < 2048 {
		collation -= 1024
	}
	return collationIDs[collation]
}

// sameCharset reports whether a collation of the stream can be that of the column
// that the layout tells of. The two kinds of UTF-8 are one: their text is the same.
func sameCharset(c outbox.Column, collation uint64) bool {
	name := charsetOf(collation)
	switch {
	case c.Charset == "":
		return name == charsetBinary || !isTextDataType(c.DataType)
	case isUTF8(c.Charset):
		return isUTF8(name)
	}
	return name == c.Charset
}

func isTextDataType(dataType string) bool {
	return strings.HasSuffix(dataType, "char") || strings.HasSuffix(dataType, "text") ||
		dataType == "enum" || dataType == "set"
}

func isUTF8(charset string) bool {
	return charset == "utf8mb4" || charset == "utf8mb3" || charset == "utf8"
}

// asIs reports whether text of the character set is handed on byte for byte.
func asIs(charset string) bool {
	return charset == "" || charset == charsetBinary || isUTF8(charset)
}

// widthOf is the greatest number of bytes of one character, 0 if not known.
func widthOf(charset string) int64 {
	switch {
	case charset == "" || charset == charsetBinary:
		return 1
	case charset == "utf8mb4":
		return 4
	case isUTF8(charset):
		return 3
	}
	if c := charsets[charset]; c != nil {
		return c.widthMax
	}
	return 0
}
