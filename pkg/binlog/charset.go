package binlog

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/encoding"
)

// charset turns text of one character set into UTF-8, to the byte as the servers
// do for a SELECT. MySQL and MariaDB agree in every character that both of them
// can store; TestCharsetsAreWhatASelectConverts asks them for each.
type charset struct {
	widthMax int64 // bytes of the longest character
	decode   func(b, text []byte) (out []byte, ok bool)
}

// asUTF8 appends text in the character set to b as UTF-8. ok is false for bytes
// that the servers do not store in it: what a SELECT would print of them is not
// known, so the row is to be read by key.
func (c *charset) asUTF8(b, text []byte) (out []byte, ok bool) { return c.decode(b, text) }

// coding describes a character set by its characters. It is the text form that
// the tables are built from.
type coding struct {
	// forms are the characters by their bytes: forms behind semicolons, bytes
	// behind blanks, ranges of a byte behind commas.
	forms string
	// base is the library's idea of the character set.
	base encoding.Encoding
	// mend is where the servers differ from it: characters, or ranges of them,
	// in hexadecimal, with the code point of the first, the others following it;
	// or with a question mark, which is what servers print for characters that
	// have no counterpart in Unicode.
	mend string
}

// byteSet tells which bytes may stand in one place of a character.
type byteSet [256]bool

// codeTable is a coding made ready.
type codeTable struct {
	base  encoding.Encoding
	forms [][]byteSet // shortest first
	// runes holds the code points by the last two bytes of a character: those of
	// one and two bytes do not meet, as only the former are below 0x100. Longer
	// characters have tables of their own, but for those of four bytes, which
	// are too many.
	runes [2][]rune
	mends map[uint32]rune // for characters of four bytes
	ascii bool            // bytes below 0x80 are the characters of ASCII
}

const noRune = -1

// coded makes a character set of a coding. Its tables are built at first use: they
// take some milliseconds and up to half a megabyte.
func coded(widthMax int64, c coding) *charset {
	table := sync.OnceValue(c.build)
	return &charset{widthMax: widthMax, decode: func(b, text []byte) ([]byte, bool) {
		return table().decode(b, text)
	}}
}

func (t *codeTable) decode(b, text []byte) ([]byte, bool) {
	for len(text) > 0 {
		if t.ascii && text[0] < utf8.RuneSelf {
			n := asciiPrefix(text)
			b = append(b, text[:n]...)
			text = text[n:]
			continue
		}
		n := t.first(text)
		if n == 0 {
			return b, false
		}
		r := t.rune(text[:n])
		if r == noRune {
			return b, false
		}
		b = utf8.AppendRune(b, r)
		text = text[n:]
	}
	return b, true
}

func asciiPrefix(text []byte) int {
	for i, c := range text {
		if c >= utf8.RuneSelf {
			return i
		}
	}
	return len(text)
}

// first returns the length of the character at the start of text, 0 if none is
// there.
func (t *codeTable) first(text []byte) int {
next:
	for _, form := range t.forms {
		if len(text) < len(form) {
			continue
		}
		for i := range form {
			if !form[i][text[i]] {
				continue next
			}
		}
		return len(form)
	}
	return 0
}

func (t *codeTable) rune(char []byte) rune {
	if len(char) < 4 {
		return t.runes[len(char)/3][bigEndian(char)&0xffff]
	}
	if r, ok := t.mends[uint32(bigEndian(char))]; ok {
		return r
	}
	if r := t.ask(char); r != noRune {
		return r
	}
	return '?'
}

// ask asks the library.
func (t *codeTable) ask(char []byte) rune {
	var buf [16]byte
	n, _, err := t.base.NewDecoder().Transform(buf[:], char, true)
	r, size := utf8.DecodeRune(buf[:n])
	if err != nil || r == utf8.RuneError || size != n {
		return noRune
	}
	return r
}

func (c coding) build() *codeTable {
	t := &codeTable{base: c.base, forms: parseForms(c.forms), mends: map[uint32]rune{}}
	for _, form := range t.forms {
		t.makeRoom(len(form))
		if len(form) < 4 {
			eachChar(form, nil, func(char []byte) { t.set(char, t.ask(char)) })
		}
	}
	for m := range strings.FieldsSeq(c.mend) {
		t.mend(m)
	}
	t.ascii = true
	for i, r := range t.runes[0][:utf8.RuneSelf] {
		t.ascii = t.ascii && r == rune(i)
	}
	return t
}

// makeRoom prepares the tables for characters of a length.
func (t *codeTable) makeRoom(length int) {
	size := [...]int{0, 1 << 8, 1 << 16, 1 << 16, 0}[length]
	runes := &t.runes[length/3&1]
	for len(*runes) < size {
		*runes = append(*runes, noRune)
	}
}

func (t *codeTable) set(char []byte, r rune) {
	if len(char) == 4 {
		t.mends[uint32(bigEndian(char))] = r
		return
	}
	t.runes[len(char)/3][bigEndian(char)&0xffff] = r
}

// mend applies an exception: FC=207F, 80-9F=80, A140-A1A0=?
func (t *codeTable) mend(text string) {
	chars, point, _ := strings.Cut(text, "=")
	from, to, isRange := strings.Cut(chars, "-")
	if !isRange {
		to = from
	}
	first, last := parseHex(from), parseHex(to)
	r := '?'
	step := rune(0)
	if point != "?" {
		r, step = rune(parseHex(point)), 1
	}
	for _, form := range t.forms {
		if len(form) != len(from)/2 {
			continue
		}
		if len(form) == 4 { // only ever one
			t.set([]byte{byte(first >> 24), byte(first >> 16), byte(first >> 8), byte(first)}, r)
			continue
		}
		eachChar(form, nil, func(char []byte) {
			if code := bigEndian(char); code >= first && code <= last {
				t.set(char, r)
				r += step
			}
		})
	}
}

// eachChar calls do for every character of a form, in order.
func eachChar(form []byteSet, char []byte, do func(char []byte)) {
	if len(char) == len(form) {
		do(char)
		return
	}
	for i, ok := range form[len(char)] {
		if ok {
			eachChar(form, append(char, byte(i)), do)
		}
	}
}

func parseForms(text string) [][]byteSet {
	var forms [][]byteSet
	for f := range strings.SplitSeq(text, ";") {
		var form []byteSet
		for place := range strings.FieldsSeq(f) {
			var set byteSet
			for r := range strings.SplitSeq(place, ",") {
				from, to, isRange := strings.Cut(r, "-")
				if !isRange {
					to = from
				}
				for i := parseHex(from); i <= parseHex(to); i++ {
					set[i] = true
				}
			}
			form = append(form, set)
		}
		forms = append(forms, form)
	}
	return forms
}

func parseHex(s string) uint64 {
	v, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		panic(fmt.Sprintf("binlog: %q in a character table is not hexadecimal", s))
	}
	return v
}

// wide makes the character sets of whole code units. next returns the code point
// at the start of text and its length, 0 if none is there.
func wide(widthMax int64, next func(text []byte) (r rune, n int)) *charset {
	return &charset{widthMax: widthMax, decode: func(b, text []byte) ([]byte, bool) {
		for len(text) > 0 {
			r, n := next(text)
			if n == 0 {
				return b, false
			}
			b = appendRune(b, r)
			text = text[n:]
		}
		return b, true
	}}
}

// appendRune writes a surrogate as the servers do, three bytes, though that is no
// valid UTF-8: UCS-2 columns may hold single ones.
func appendRune(b []byte, r rune) []byte {
	if isSurrogate(r) {
		return append(b, 0xe0|byte(r>>12), 0x80|byte(r>>6&0x3f), 0x80|byte(r&0x3f))
	}
	return utf8.AppendRune(b, r)
}

func isSurrogate(r rune) bool { return r >= 0xd800 && r < 0xe000 }

func nextUCS2(text []byte) (rune, int) {
	if len(text) < 2 {
		return 0, 0
	}
	return rune(bigEndian(text[:2])), 2
}

func nextUTF16(text []byte) (rune, int) { return pair(text, bigEndian) }

func nextUTF16LE(text []byte) (rune, int) { return pair(text, littleEndian) }

// pair reads a code point of one or two units.
func pair(text []byte, unit func([]byte) uint64) (rune, int) {
	if len(text) < 2 {
		return 0, 0
	}
	high := rune(unit(text[:2]))
	if !isSurrogate(high) {
		return high, 2
	}
	if len(text) < 4 {
		return 0, 0
	}
	low := rune(unit(text[2:4]))
	if high >= 0xdc00 || low < 0xdc00 || low > 0xdfff {
		return 0, 0
	}
	return 0x10000 + (high-0xd800)<<10 + low - 0xdc00, 4
}

func nextUTF32(text []byte) (rune, int) {
	if len(text) < 4 {
		return 0, 0
	}
	v := bigEndian(text[:4])
	if v > utf8.MaxRune || isSurrogate(rune(v)) {
		return 0, 0
	}
	return rune(v), 4
}
