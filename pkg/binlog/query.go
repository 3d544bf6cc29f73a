package binlog

import (
	"bytes"
	"encoding/hex"
	"strconv"
	"strings"
)

// queryKind is what a statement in the stream means for the transaction.
type queryKind uint8

const (
	queryOther   queryKind = iota // DDL, SAVEPOINT and so on
	queryDML                      // rows written in statement format
	queryUnclear                  // such rows too, if it stands within a transaction: SELECT f(), or behind SET STATEMENT or a comment
	queryBegin
	queryCommit
	queryRollback
	queryRollbackTo
	queryXAStart
	queryXAEnd
	queryXACommit
	queryXARollback
)

// query is a statement, looked at no more closely than the state machine needs.
type query struct {
	kind queryKind
	xid  string // the text of the xid of an XA statement
}

// classifyQuery looks at the first words. The server writes BEGIN, COMMIT and the
// XA statements itself, always in this form.
func classifyQuery(text []byte) query {
	if string(text) == "BEGIN" { // what almost all are, without an allocation
		return query{kind: queryBegin}
	}
	first, rest := word(text)
	switch first {
	case "BEGIN":
		return query{kind: queryBegin}
	case "START":
		if second, _ := word(rest); second == "TRANSACTION" {
			return query{kind: queryBegin}
		}
	case "COMMIT":
		return query{kind: queryCommit}
	case "ROLLBACK":
		if second, _ := word(rest); second == "TO" {
			return query{kind: queryRollbackTo}
		}
		return query{kind: queryRollback}
	case "XA":
		return classifyXA(rest)
	case "INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH":
		return query{kind: queryDML}
	case "SET", "SELECT", "DO", "CALL", "":
		return query{kind: queryUnclear}
	}
	return query{}
}

func classifyXA(text []byte) query {
	second, rest := word(text)
	q := query{xid: strings.TrimSpace(string(rest))}
	switch second {
	case "START", "BEGIN":
		q.kind = queryXAStart
	case "END":
		q.kind = queryXAEnd
	case "COMMIT":
		q.kind = queryXACommit
	case "ROLLBACK":
		q.kind = queryXARollback
	}
	return q
}

// word returns the first word in capitals, comments and blanks before it passed
// over, and what follows it.
func word(text []byte) (upper string, rest []byte) {
	text = bytes.TrimLeft(text, " \t\r\n(")
	for bytes.HasPrefix(text, []byte("/*")) && !bytes.HasPrefix(text, []byte("/*!")) {
		_, after, ok := bytes.Cut(text, []byte("*/"))
		if !ok {
			return "", nil
		}
		text = bytes.TrimLeft(after, " \t\r\n(")
	}
	n := 0
	for n < len(text) && n < 16 && isWordByte(text[n]) {
		n++
	}
	return strings.ToUpper(string(text[:n])), text[n:]
}

// xid names an XA transaction.
type xid struct {
	format        uint32
	global, local string
}

// parsePrepare reads an XA_PREPARE event.
func parsePrepare(body []byte) (x xid, onePhase bool, err error) {
	c := cursor{b: body}
	onePhase = c.little(1) != 0
	x.format = uint32(c.little(4))
	global, local := c.little(4), c.little(4)
	if global > 64 || local > 64 {
		return x, false, malformed("XA id of %d and %d bytes", global, local)
	}
	x.global, x.local = string(c.take(int(global))), string(c.take(int(local)))
	return x, onePhase, c.err()
}

// parseXID reads the xid of an XA statement: X'6162',X'63',1. The two last parts
// may be missing, and a part may be a plain string.
func parseXID(text string) (x xid, ok bool) {
	x.format = 1
	rest := text
	if x.global, rest, ok = xidPart(rest); !ok {
		return x, false
	}
	if !strings.HasPrefix(rest, ",") {
		return x, true
	}
	if x.local, rest, ok = xidPart(rest[1:]); !ok {
		return x, false
	}
	if !strings.HasPrefix(rest, ",") {
		return x, true
	}
	number, _, _ := strings.Cut(strings.TrimSpace(rest[1:]), " ") // ONE PHASE may follow
	n, err := strconv.ParseUint(number, 10, 32)
	x.format = uint32(n)
	return x, err == nil
}

func xidPart(s string) (part, rest string, ok bool) {
	s = strings.TrimSpace(s)
	isHex := strings.HasPrefix(s, "X'") || strings.HasPrefix(s, "x'")
	if isHex {
		s = s[1:]
	}
	if !strings.HasPrefix(s, "'") {
		return "", "", false
	}
	part, rest, ok = strings.Cut(s[1:], "'")
	rest = strings.TrimSpace(rest)
	if !ok || !isHex {
		return part, rest, ok
	}
	b, err := hex.DecodeString(part)
	return string(b), rest, err == nil
}
