package ledger

import (
	"strings"
	"unicode/utf8"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// keepsReason reports whether the table itself has room for why a row failed.
func (t *table) keepsReason() bool {
	c, ok := t.Column(outbox.RoleLastError)
	return ok && c.LengthMax > 0 && c.DataType != "json"
}

func (t *table) setReason(reason string) []clause {
	if !t.keepsReason() {
		return nil
	}
	c, _ := t.Column(outbox.RoleLastError)
	return []clause{{t.col(outbox.RoleLastError) + " = ?", []any{fitReason(reason, c)}}}
}

// fitReason makes a text that the column takes in strict mode: characters that
// its character set may lack become question marks, and the end is cut off.
// The length of TEXT and binary columns counts bytes, of VARCHAR characters.
func fitReason(reason string, c outbox.Column) string {
	widest := rune(0x7f)
	switch {
	case c.Charset == "utf8mb4":
		widest = utf8.MaxRune
	case strings.HasPrefix(c.Charset, "utf8"):
		widest = 0xffff
	}
	var b strings.Builder
	chars := 0
	for _, r := range reason {
		if r > widest {
			r = '?'
		}
		length := int64(chars + 1)
		if strings.HasSuffix(c.DataType, "text") || c.Binary() {
			length = int64(b.Len() + utf8.RuneLen(r))
		}
		if length > c.LengthMax || chars == lastErrorMax {
			break
		}
		b.WriteRune(r)
		chars++
	}
	return b.String()
}
