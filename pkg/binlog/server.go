package binlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// server is the SQL side of the source: who it is and what it still holds. It is
// opened for the checks before each stream and closed again.
type server struct {
	db        *sql.DB
	flavor    string
	id        string // server_uuid of MySQL, server_id of MariaDB
	serverID  uint64
	gtid      bool // positions are GTID sets
	lowerCase bool // table names are compared in lower case
	encrypted bool // the SQL connection is inside TLS
	readOnly  bool
	replica   *upstream // nil: it replicates from nobody
	head      func(ctx context.Context, file string) (fileHead, error)
}

// sqlTimeout bounds all SQL checks before one stream together.
const sqlTimeout = 20 * time.Second

// openServer connects, finds out who the server is and whether its settings let
// its binlog be read.
func (r *Reader) openServer(ctx context.Context) (*server, *mysql.Config, error) {
	cfg, err := r.cfg.Sources.current()
	if err != nil {
		return nil, nil, err
	}
	c := cfg.Clone()
	c.Logger = &mysql.NopLogger{} // what it has to say comes back as an error too
	c.Timeout, c.ReadTimeout, c.WriteTimeout = 10*time.Second, sqlTimeout, sqlTimeout
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, nil, fmt.Errorf("source address: %w", err)
	}
	s := &server{db: sql.OpenDB(connector)}
	s.db.SetMaxOpenConns(1)
	if err := s.identify(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("source %s: %w", c.Addr, err), s.db.Close())
	}
	if s.serverID == uint64(r.cfg.ServerID) {
		err := &configError{fmt.Errorf("ROWFERRY_SERVER_ID is %d, which is the server's own server_id; choose another", r.cfg.ServerID)}
		return nil, nil, errors.Join(err, s.db.Close())
	}
	if c.TLS != nil && c.AllowFallbackToPlaintext && !s.encrypted {
		c.TLS = nil
	}
	s.head = func(ctx context.Context, file string) (fileHead, error) { return r.readHead(ctx, s.flavor, c, file) }
	r.setState(func(st *State) {
		st.Flavor, st.Address = s.flavor, c.Addr
		st.Replication, st.Standstill = s.replica.String(), s.replica != nil && !s.replica.running
	})
	return s, c, nil
}

func (s *server) identify(ctx context.Context) error {
	var version, format string
	var logBin, lowerCase int
	err := s.db.QueryRowContext(ctx, "SELECT VERSION(), @@global.server_id, @@global.log_bin, @@global.binlog_format, @@global.lower_case_table_names").
		Scan(&version, &s.serverID, &logBin, &format, &lowerCase)
	if err != nil {
		return err
	}
	s.lowerCase = lowerCase != 0
	if logBin == 0 {
		return &configError{errors.New("log_bin is OFF; the server must write a binary log (log_bin, needs a restart), or use ROWFERRY_MODE=poll")}
	}
	if !strings.EqualFold(format, "ROW") {
		return &configError{fmt.Errorf("binlog_format is %s, so inserted rows are not in the binlog; SET GLOBAL binlog_format=ROW, then reconnect the applications", format)}
	}
	if s.encrypted, err = s.isEncrypted(ctx); err != nil {
		return err
	}
	if err := s.learnRole(ctx, strings.Contains(version, "MariaDB")); err != nil {
		return err
	}
	if strings.Contains(version, "MariaDB") {
		s.flavor, s.gtid = flavorMariaDB, true
		s.id = strconv.FormatUint(s.serverID, 10)
		return nil
	}
	s.flavor = flavorMySQL
	var mode string
	if err := s.db.QueryRowContext(ctx, "SELECT @@global.server_uuid, @@global.gtid_mode").Scan(&s.id, &mode); err != nil {
		return err
	}
	s.gtid = mode == "ON"
	return nil
}

func (s *server) isEncrypted(ctx context.Context) (bool, error) {
	var name, cipher string
	if err := s.db.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil {
		return false, fmt.Errorf("asking whether the connection is encrypted: %w", err)
	}
	return cipher != "", nil
}

// logEnd is where the server's binlog ends now.
type logEnd struct {
	file   string
	offset uint64
	gtids  string // gtid_executed of MySQL, at exactly that place
}

func (s *server) end(ctx context.Context) (e logEnd, err error) {
	rows, err := s.maps(ctx, "SHOW BINARY LOG STATUS")
	if isSQLError(err, errParse) { // before MySQL 8.2, and MariaDB
		rows, err = s.maps(ctx, "SHOW MASTER STATUS")
	}
	if err != nil {
		return e, fmt.Errorf("asking where the binlog ends: %w", err)
	}
	if len(rows) == 0 {
		return e, &configError{errors.New("the server says that it writes no binary log")}
	}
	e.file, e.gtids = rows[0]["file"], rows[0]["executed_gtid_set"]
	e.offset, err = strconv.ParseUint(rows[0]["position"], 10, 64)
	return e, err
}

// logs lists the binlog files the server still has, oldest first.
func (s *server) logs(ctx context.Context) (names []string, sizes map[string]uint64, err error) {
	rows, err := s.maps(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return nil, nil, fmt.Errorf("listing the binlog files: %w", err)
	}
	sizes = map[string]uint64{}
	for _, row := range rows {
		size, err := strconv.ParseUint(row["file_size"], 10, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("listing the binlog files: %w", err)
		}
		names = append(names, row["log_name"])
		sizes[row["log_name"]] = size
	}
	if len(names) == 0 {
		return nil, nil, &configError{errors.New("the server has no binlog files")}
	}
	return names, sizes, nil
}

func (s *server) text(ctx context.Context, query string, args ...any) (string, error) {
	var v sql.NullString
	if err := s.db.QueryRowContext(ctx, query, args...).Scan(&v); err != nil {
		return "", err
	}
	return v.String, nil
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
		m := map[string]string{}
		for i, c := range columns {
			m[strings.ToLower(c)] = values[i].String
		}
		out = append(out, m)
	}
	return out, rows.Err()
}
