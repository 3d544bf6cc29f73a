package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/mysqlconn"
)

type mysqlConfig = mysql.Config

// server is one database server and what has been learnt about it.
type server struct {
	variable string // that names it
	cfg      *mysqlConfig
	db       *sql.DB

	account string            // 'user'@'host' as the server knows us, quoted
	vars    map[string]string // global variables by lower-case name; absent: unknown to the server
	mariadb bool
}

// Error numbers of the server that decide something here.
const (
	errNoBase       = 1049
	errNoRightBase  = 1044
	errLogin        = 1045
	errParse        = 1064
	errNoRightTable = 1142
	errNoRightCol   = 1143
	errNoTable      = 1146
	errNoRight      = 1227
	errReadOnly     = 1290
	errNoBinlog     = 1381
	errStatement    = 1665 // binlog_format=STATEMENT and READ COMMITTED
)

func isNumber(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return false
	}
	for _, n := range numbers {
		if e.Number == n {
			return true
		}
	}
	return false
}

// clean makes one line of an error's text.
func clean(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func quoteText(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
}

// quoteAccount turns what CURRENT_USER() says into what GRANT takes.
func quoteAccount(current string) string {
	i := strings.LastIndex(current, "@")
	if i < 0 {
		return quoteText(current)
	}
	return quoteText(current[:i]) + "@" + quoteText(current[i+1:])
}

// text asks for one value; NULL is empty.
func (s *server) text(ctx context.Context, query string, args ...any) (string, error) {
	var v sql.NullString
	err := s.db.QueryRowContext(ctx, query, args...).Scan(&v)
	return v.String, err
}

// maps runs a SHOW statement, whose columns differ between versions, and returns
// its rows by lower-case column name.
func (s *server) maps(ctx context.Context, query string) ([]map[string]string, error) {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var out []map[string]string
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		targets := make([]any, len(columns))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		row := map[string]string{}
		for i, c := range columns {
			row[strings.ToLower(c)] = values[i].String
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// either runs the first of several spellings that the server understands.
func (s *server) either(ctx context.Context, queries ...string) (rows []map[string]string, err error) {
	for _, q := range queries {
		if rows, err = s.maps(ctx, q); !isNumber(err, errParse) {
			break
		}
	}
	return rows, err
}

// knownVariables are the settings that some check looks at.
const knownVariables = `'version','server_id','server_uuid','log_bin','binlog_format','binlog_row_image','binlog_row_metadata',
'gtid_mode','gtid_strict_mode','binlog_expire_logs_seconds','binlog_expire_logs_auto_purge','expire_logs_days',
'log_replica_updates','log_slave_updates','replica_preserve_commit_order','slave_preserve_commit_order',
'replica_parallel_workers','slave_parallel_workers','slave_parallel_threads','slave_parallel_mode','read_only','super_read_only'`

// greet connects and learns who we are and how the server is set.
func (s *server) greet(ctx context.Context) (cipher string, err error) {
	current, err := s.text(ctx, "SELECT CURRENT_USER()")
	if err != nil {
		return "", err
	}
	s.account = quoteAccount(current)
	rows, err := s.maps(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("+knownVariables+")")
	if err != nil {
		return "", fmt.Errorf("reading the server's settings: %w", err)
	}
	s.vars = map[string]string{}
	for _, r := range rows {
		s.vars[strings.ToLower(r["variable_name"])] = r["value"]
	}
	s.mariadb = strings.Contains(s.vars["version"], "MariaDB")
	rows, err = s.maps(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
	if err != nil {
		return "", fmt.Errorf("asking whether the connection is encrypted: %w", err)
	}
	if len(rows) > 0 {
		cipher = rows[0]["value"]
	}
	return cipher, nil
}

// first returns the value of the first variable that the server has.
func (s *server) first(names ...string) (value string, found bool) {
	for _, n := range names {
		if v, ok := s.vars[n]; ok {
			return v, true
		}
	}
	return "", false
}

func (s *server) on(names ...string) bool {
	v, _ := s.first(names...)
	return !isOff(v)
}

// isOff reads a switch of which MariaDB may have more than two positions.
func isOff(v string) bool { return v == "" || v == "0" || strings.EqualFold(v, "OFF") }

// set is the statement that changes a global setting for good, or for as long as
// the server runs where it cannot do more.
func (s *server) set(name, value string) string {
	if s.mariadb || strings.HasPrefix(s.vars["version"], "5.") {
		return fmt.Sprintf("SET GLOBAL %s = %s; -- and %s=%s in the server's configuration file, or a restart undoes it", name, value, name, strings.Trim(value, "'"))
	}
	return fmt.Sprintf("SET PERSIST %s = %s;", name, value)
}

// check connects and explains what can go wrong with it.
func (s *server) check(ctx context.Context, table string) Check {
	cipher, err := s.greet(ctx)
	if err != nil {
		return s.explain(ctx, err, table)
	}
	if cipher == "" {
		cipher = "not encrypted"
	}
	return ok(fmt.Sprintf("%s as %s (%s)", s.cfg.Addr, s.account, cipher))
}

// explain says what to do about a connection that failed. table is what a right
// to enter the schema is granted on.
func (s *server) explain(ctx context.Context, err error, table string) Check {
	found := s.cfg.Addr + ": " + clean(err)
	var network net.Error
	switch {
	case isNumber(err, errLogin):
		return fail(found, "a login", "put the account's password into "+s.variable+" (or the file that "+s.variable+"_FILE names), or have it set with ALTER USER")
	case isNumber(err, errNoRightBase):
		return fail(found, "the right to enter schema "+s.cfg.DBName, fmt.Sprintf("GRANT SELECT ON %s TO %s;", table, s.bareAccount(ctx)))
	case isNumber(err, errNoBase):
		return fail(found, "schema "+s.cfg.DBName, fmt.Sprintf("CREATE DATABASE %s; -- or correct the schema in %s", quote(s.cfg.DBName), s.variable))
	case errors.Is(err, mysqlconn.ErrRowImage):
		return fail(found, "the right to set binlog_row_image, which ROWFERRY_MARK_ROW_IMAGE=minimal insists on", s.grantRowImage(s.bareAccount(ctx)))
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded):
		return fail(found, "a server that answers", "start the server, or correct host and port in "+s.variable+"; look at firewalls in between")
	}
	return fail(found, "a connection", "look at "+s.variable+" and ROWFERRY_MYSQL_TLS, and into the server's error log")
}

// bareAccount asks who we are on a plain connection without a schema, which
// needs no right but the login.
func (s *server) bareAccount(ctx context.Context) string {
	unknown := quoteText(s.cfg.User) + "@'%'"
	c := s.cfg.Clone()
	c.DBName = ""
	bare, err := newServer(s.variable, c, nil)
	if err != nil {
		return unknown
	}
	defer bare.db.Close() //nolint:errcheck // nothing was written
	if _, err := bare.greet(ctx); err != nil {
		return unknown
	}
	s.mariadb, s.vars = bare.mariadb, bare.vars
	return bare.account
}

// grantRowImage is the right to choose the row image of a session.
func (s *server) grantRowImage(account string) string {
	right := "SESSION_VARIABLES_ADMIN"
	switch {
	case s.mariadb:
		right = "BINLOG ADMIN"
	case strings.HasPrefix(s.vars["version"], "5."):
		right = "SUPER"
	}
	return fmt.Sprintf("GRANT %s ON *.* TO %s;", right, account)
}

// replicaOf returns the server that this one replicates from, empty if none.
func (s *server) replicaOf(ctx context.Context) (string, error) {
	queries := []string{"SHOW REPLICA STATUS", "SHOW SLAVE STATUS"}
	if s.mariadb { // the others show only the connection without a name
		queries = []string{"SHOW ALL SLAVES STATUS"}
	}
	rows, err := s.either(ctx, queries...)
	if isNumber(err, errNoRight) && s.mariadb {
		return s.slaveRunning(ctx)
	}
	if err != nil || len(rows) == 0 {
		return "", err
	}
	r := rows[0]
	if r["source_host"] != "" {
		return r["source_host"] + ":" + r["source_port"], nil
	}
	return r["master_host"] + ":" + r["master_port"], nil
}

// slaveRunning needs no right, but does not see a replica that is stopped.
func (s *server) slaveRunning(ctx context.Context) (string, error) {
	rows, err := s.maps(ctx, "SHOW GLOBAL STATUS LIKE 'Slave_running'")
	if err != nil || len(rows) == 0 || isOff(rows[0]["value"]) {
		return "", err
	}
	return "another server", nil
}
