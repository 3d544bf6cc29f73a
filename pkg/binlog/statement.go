package binlog

import (
	"bytes"
	"slices"
	"strings"
)

// statement is a statement in the log, with the schema that names without one are of.
type statement struct {
	schema, text []byte
	first        string // its first word, in capitals
	past         int    // end of the file name in the text of LOAD DATA
}

// parseStatement reads a QUERY event.
func parseStatement(body []byte) (st statement, err error) {
	c := cursor{b: body}
	status, schema := queryHead(&c)
	st.read(&c, status, schema)
	return st, c.err()
}

// readQuery reads a QUERY event, which MariaDB may have compressed.
func readQuery(body []byte, compressed bool) (st statement, err error) {
	if st, err = parseStatement(body); err == nil && compressed {
		st.text, err = inflate(st.text)
	}
	return st, err
}

// parseLoad reads an EXECUTE_LOAD_QUERY event: LOAD DATA in statement format.
func parseLoad(body []byte) (st statement, err error) {
	c := cursor{b: body}
	status, schema := queryHead(&c)
	c.skip(4 + 4) // number of the file, start of its name in the text
	st.past = int(c.little(4))
	c.skip(1) // what to do with duplicates
	st.read(&c, status, schema)
	st.past = min(st.past, len(st.text))
	return st, c.err()
}

func queryHead(c *cursor) (status, schema int) {
	c.skip(8) // thread, duration
	schema = int(c.little(1))
	c.skip(2) // error code
	return int(c.little(2)), schema
}

func (st *statement) read(c *cursor, status, schema int) {
	c.skip(status)
	st.schema = c.take(schema)
	c.skip(1)
	st.text = c.b
}

func (st statement) classified() statement {
	st.first, _ = word(st.text)
	return st
}

// inserts reports whether a statement that changes rows can insert some.
func (st statement) inserts() bool {
	switch st.first {
	case "UPDATE", "DELETE", "WITH": // WITH stands before those two only
		return false
	}
	return true
}

// target returns the watched table that a statement inserts into or creates, nil if it
// is another one. ok is false if the statement does not say it in a way known here.
func (l *watchList) target(st statement) (w *watched, ok bool) {
	schema, name, ok := targetOf(st)
	if !ok {
		return nil, false
	}
	return l.find([]byte(schema), []byte(name)), true
}

// targetOf reads the name behind INSERT INTO, REPLACE INTO, INTO TABLE or CREATE TABLE.
func targetOf(st statement) (schema, name string, ok bool) {
	_, rest := word(st.text)
	skipped := []string{"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"}
	switch st.first {
	case "INSERT", "REPLACE":
	case "LOAD":
		if rest = behindIntoTable(st.text[st.past:]); rest == nil {
			return "", "", false
		}
	case "CREATE":
		if !createsTable(rest) {
			return "", "", false
		}
		skipped = []string{"OR", "REPLACE", "TEMPORARY", "TABLE", "IF", "NOT", "EXISTS"}
	default:
		return "", "", false
	}
	for next, after := word(rest); slices.Contains(skipped, next); next, after = word(rest) {
		rest = after
	}
	first, rest, ok := identifier(rest)
	if rest = bytes.TrimLeft(rest, " \t\r\n"); ok && bytes.HasPrefix(rest, []byte(".")) {
		second, _, ok := identifier(rest[1:])
		return first, second, ok
	}
	return string(st.schema), first, ok
}

// behindIntoTable returns what stands behind INTO TABLE, nil if that is not there.
func behindIntoTable(text []byte) []byte {
	into := []byte("INTO TABLE")
	for i := range len(text) - len(into) {
		if bytes.EqualFold(text[i:i+len(into)], into) {
			return text[i+len(into):]
		}
	}
	return nil
}

// createsTable reads what stands behind CREATE. Words behind a mark like /*!50000 are not
// understood, and may say so.
func createsTable(rest []byte) bool {
	next, after := word(rest)
	for next == "OR" || next == "REPLACE" || next == "TEMPORARY" {
		next, after = word(after)
	}
	return next == "TABLE" || next == ""
}

// identifier reads a name, quoted or not.
func identifier(text []byte) (name string, rest []byte, ok bool) {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) > 0 && (text[0] == '`' || text[0] == '"') {
		part, after, ok := bytes.Cut(text[1:], text[:1])
		return string(part), after, ok && !bytes.HasPrefix(after, text[:1])
	}
	n := 0
	for n < len(text) && isWordByte(text[n]) {
		n++
	}
	return string(text[:n]), text[n:], n > 0
}

// changesColumns reports whether a statement that is not one of rows can change the
// columns of tables that it names, other than the one that a CREATE TABLE makes.
func (st statement) changesColumns() bool {
	switch st.first {
	case "CREATE":
		_, rest := word(st.text)
		_, _, ok := targetOf(st)
		return createsTable(rest) && !ok // with comments between its words it can be of any table
	case "TRUNCATE", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "FLUSH", "GRANT", "REVOKE", "SAVEPOINT", "RELEASE":
		return false
	case "DROP":
		_, rest := word(st.text)
		second, _ := word(rest)
		return second == "TABLE" || second == "TABLES"
	}
	return true
}

// mayChange returns the outbox tables whose columns may be others behind a statement that
// is not one of rows.
func (l *watchList) mayChange(st statement) (found []*watched) {
	created, _ := l.target(st)
	for _, w := range l.mentioned(st.text) {
		if !w.fence && (created == w || st.changesColumns()) {
			found = append(found, w)
		}
	}
	return found
}

// fillsNewTable reports whether a CREATE TABLE fills the table with rows that are not
// in the log. In row format the server leaves the query of CREATE TABLE ... SELECT out.
func fillsNewTable(text []byte) bool {
	first, _ := word(text)
	return first == "CREATE" && mentions(unquoted(text), "SELECT") && !strings.Contains(string(text), "START TRANSACTION")
}

// unquoted leaves out what stands in quotes: names, defaults and comments of columns.
func unquoted(text []byte) []byte {
	var out []byte
	for {
		i := bytes.IndexAny(text, "'\"`")
		if i < 0 {
			return append(out, text...)
		}
		out = append(append(out, text[:i]...), ' ')
		quote := text[i]
		for i++; i < len(text) && text[i] != quote; i++ {
			if text[i] == '\\' && quote != '`' {
				i++
			}
		}
		text = text[min(i+1, len(text)):]
	}
}
