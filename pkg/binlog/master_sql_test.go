package binlog

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// sqlError is an answer of the master that is an error.
type sqlError struct {
	code uint16
	text string
}

func (e *sqlError) Error() string { return e.text }

// table is an answer with rows.
type table struct {
	columns []string
	rows    [][]string
}

func (c *masterConn) query(text string) error {
	answer, err := c.answer(strings.TrimSpace(text))
	var e *sqlError
	switch {
	case errors.As(err, &e):
		return c.fail(e.code, e.text)
	case err != nil:
		return c.fail(1105, err.Error())
	case answer == nil:
		return c.ok()
	}
	return c.resultSet(answer)
}

func (c *masterConn) resultSet(answer *table) error {
	messages := [][]byte{{byte(len(answer.columns))}}
	for _, name := range answer.columns {
		var b []byte
		for _, s := range []string{"def", "", "", "", name, name} {
			b = append(append(b, byte(len(s))), s...)
		}
		// utf8mb4, as long as need be, VAR_STRING.
		messages = append(messages, append(b, 0x0c, 45, 0, 0xff, 0xff, 0, 0, 0xfd, 0, 0, 0, 0, 0))
	}
	eof := []byte{0xfe, 0, 0, 2, 0}
	messages = append(messages, eof)
	for _, row := range answer.rows {
		var b []byte
		for _, v := range row {
			b = append(append(b, 0xfc, byte(len(v)), byte(len(v)>>8)), v...)
		}
		messages = append(messages, b)
	}
	for _, message := range append(messages, eof) {
		if err := c.write(message); err != nil {
			return err
		}
	}
	return nil
}

var slaveState = regexp.MustCompile(`(?i)^SET @slave_connect_state='(.*)'$`)

// answer is nil for a statement that is merely accepted.
func (c *masterConn) answer(text string) (*table, error) {
	upper := strings.ToUpper(text)
	if c.m.release.refuses(upper) {
		return nil, &sqlError{errParse, fmt.Sprintf("You have an error in your SQL syntax near '%s' at line 1", text)}
	}
	switch first, _ := word([]byte(text)); first {
	case "SET":
		if found := slaveState.FindStringSubmatch(text); found != nil {
			c.state = found[1]
		}
		if strings.Contains(text, fmt.Sprintf("heartbeat_period = %d,", headHeartbeatPeriod.Nanoseconds())) {
			c.peeks = true
		}
		return nil, nil
	case "SHOW":
		return c.m.show(upper)
	case "SELECT":
		if strings.Contains(upper, "INFORMATION_SCHEMA") {
			return &table{columns: []string{"none"}}, nil // whatever is asked, it has no rows
		}
		return c.m.selectValues(text[len("SELECT"):])
	}
	return nil, fmt.Errorf("the scripted server does not know the statement %s", text)
}

var quotedWord = regexp.MustCompile(`'([^']*)'`)

func (m *master) show(upper string) (*table, error) {
	last := m.logs[len(m.logs)-1]
	switch {
	case upper == "SHOW BINARY LOGS", upper == "SHOW MASTER LOGS":
		out := &table{columns: []string{"Log_name", "File_size", "Encrypted"}}
		for _, l := range m.logs {
			out.rows = append(out.rows, []string{l.name, fmt.Sprint(l.place), "No"})
		}
		return out, nil
	case upper == "SHOW BINARY LOG STATUS", upper == "SHOW MASTER STATUS":
		return &table{[]string{"File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB", "Executed_Gtid_Set"},
			[][]string{{last.name, fmt.Sprint(last.place), "", "", m.executed()}}}, nil
	case strings.HasSuffix(upper, "STATUS LIKE 'SSL_CIPHER'"):
		return &table{[]string{"Variable_name", "Value"}, [][]string{{"Ssl_cipher", ""}}}, nil
	case strings.Contains(upper, "VARIABLES LIKE"), strings.Contains(upper, "VARIABLES WHERE VARIABLE_NAME IN"):
		out := &table{columns: []string{"Variable_name", "Value"}}
		for _, found := range quotedWord.FindAllStringSubmatch(strings.ToLower(upper), -1) {
			if v, ok := m.vars[found[1]]; ok {
				out.rows = append(out.rows, []string{found[1], v})
			}
		}
		return out, nil
	case strings.HasPrefix(upper, "SHOW REPLICA"), strings.HasPrefix(upper, "SHOW SLAVE"), upper == "SHOW ALL SLAVES STATUS":
		return m.replicaStatus(strings.HasSuffix(upper, "STATUS")), nil
	}
	return nil, fmt.Errorf("the scripted server does not know the statement %s", upper)
}

// replicaStatus has the column names of the release.
func (m *master) replicaStatus(asked bool) *table {
	out := &table{columns: []string{"Replica_IO_Running", "Replica_SQL_Running", "Source_Host", "Source_Port"}}
	if m.release.isMariaDB() || m.release.number < 80022 {
		out.columns = []string{"Slave_IO_Running", "Slave_SQL_Running", "Master_Host", "Master_Port"}
	}
	if asked && m.replicates {
		out.rows = append(out.rows, []string{"Yes", "Yes", "primary", "3306"})
	}
	return out
}

// executed is the set of all transactions in the files, torn ones too.
func (m *master) executed() string {
	var mysql, mariadb gtidSet = newMySQLSet(), newMariaDBSet()
	for _, l := range m.logs {
		for _, e := range l.events {
			if g, ok := openedBy(e); ok && m.release.isMariaDB() {
				mariadb.add(g)
			} else if ok {
				mysql.add(g)
			}
		}
	}
	if m.release.isMariaDB() {
		return mariadb.String()
	}
	return mysql.String()
}

func (m *master) selectValues(list string) (*table, error) {
	out := &table{rows: [][]string{nil}}
	for _, expression := range splitList(list) {
		v, err := m.value(expression)
		if err != nil {
			return nil, err
		}
		out.columns = append(out.columns, expression)
		out.rows[0] = append(out.rows[0], v)
	}
	return out, nil
}

// splitList splits at the commas that are outside of parentheses and quotes.
func splitList(list string) (parts []string) {
	depth, quoted, start := 0, false, 0
	for i := range len(list) {
		switch c := list[i]; {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, strings.TrimSpace(list[start:i]))
			start = i + 1
		}
	}
	return append(parts, strings.TrimSpace(list[start:]))
}

func (m *master) value(expression string) (string, error) {
	name, arguments, isCall := strings.Cut(strings.TrimSuffix(expression, ")"), "(")
	switch lower := strings.ToLower(strings.TrimSpace(name)); {
	case strings.HasPrefix(expression, "'"):
		return strings.Trim(expression, "'"), nil
	case strings.HasPrefix(lower, "@@"):
		return m.variable(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(lower, "@@"), "global."), "session."))
	case isCall && lower == "version":
		return m.release.version, nil
	case isCall && lower == "gtid_subtract" && !m.release.isMariaDB():
		return m.subtract(splitList(arguments))
	case isCall && lower == "binlog_gtid_pos" && m.release.isMariaDB():
		return m.purged, nil
	}
	return "", fmt.Errorf("the scripted server does not know the expression %s", expression)
}

func (m *master) variable(name string) (string, error) {
	switch {
	case name == "gtid_executed" && !m.release.isMariaDB():
		return m.executed(), nil
	case name == "gtid_purged" && !m.release.isMariaDB():
		return m.purged, nil
	case m.release.isMariaDB() && (name == "gtid_binlog_pos" || name == "gtid_current_pos"):
		return m.executed(), nil
	}
	if v, ok := m.vars[name]; ok {
		return v, nil
	}
	return "", &sqlError{1193, fmt.Sprintf("Unknown system variable '%s'", name)}
}

func (m *master) subtract(arguments []string) (string, error) {
	var sets [2]*mysqlSet
	if len(arguments) != 2 {
		return "", fmt.Errorf("GTID_SUBTRACT of %q", arguments)
	}
	for i, a := range arguments {
		text, err := m.value(a)
		if err == nil {
			sets[i], err = parseMySQLSet(text)
		}
		if err != nil {
			return "", err
		}
	}
	left := newMySQLSet()
	for source, list := range sets[0].sources {
		for _, v := range list {
			for n := v.first; n <= v.last; n++ {
				if !sets[1].containsInterval(source, interval{n, n}) {
					left.addInterval(source, interval{n, n})
				}
			}
		}
	}
	return left.String(), nil
}
