package testservers

import (
	"database/sql"
	"fmt"
	"net"
	"testing"
	"time"
)

// catchUpTimeout is generous: replicas of several packages share the machine.
const catchUpTimeout = 60 * time.Second

// ReplicaFlags are what a replica must be started with for its own binlog to hold
// what it copies. They are MySQL's defaults, but not MariaDB's.
func ReplicaFlags(flavor string) []string {
	if flavor == FlavorMariaDB {
		return []string{"--log-slave-updates=ON"}
	}
	return []string{"--log-replica-updates=ON"}
}

// Follow makes the server a read-only replica of source, by GTIDs where source has
// them, else from the start of source's binlog.
func (d *DB) Follow(tb testing.TB, source *DB) {
	tb.Helper()
	cfg := source.config()
	host, port := splitAddr(tb, cfg.Addr)
	d.Exec(tb, "", "SET GLOBAL read_only = ON")
	if d.flavor == FlavorMariaDB {
		d.Exec(tb, "", "SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos") // where a former primary stands
		d.Exec(tb, "", fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='%s', MASTER_PORT=%s, MASTER_USER='%s', MASTER_USE_GTID=slave_pos, "+
			"MASTER_CONNECT_RETRY=1, MASTER_SSL=0, MASTER_SSL_VERIFY_SERVER_CERT=0", host, port, cfg.User))
		d.Exec(tb, "", "START SLAVE")
		return
	}
	from := "SOURCE_AUTO_POSITION=1"
	if source.scalar(tb, "SELECT @@gtid_mode") != "ON" {
		from = "SOURCE_LOG_FILE='" + source.scalar(tb, "SHOW BINARY LOGS") + "', SOURCE_LOG_POS=4"
	}
	d.Exec(tb, "", fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_HOST='%s', SOURCE_PORT=%s, SOURCE_USER='%s', %s, "+
		"SOURCE_CONNECT_RETRY=1, GET_SOURCE_PUBLIC_KEY=1", host, port, cfg.User, from))
	d.Exec(tb, "", "START REPLICA")
}

// CatchUp waits until the server, a replica of source, has applied all that source
// has written so far.
func (d *DB) CatchUp(tb testing.TB, source *DB) {
	tb.Helper()
	seconds := int(catchUpTimeout / time.Second)
	var query string
	switch {
	case d.flavor == FlavorMariaDB:
		query = fmt.Sprintf("SELECT MASTER_GTID_WAIT('%s', %d)", source.scalar(tb, "SELECT @@gtid_binlog_pos"), seconds)
	case source.scalar(tb, "SELECT @@gtid_mode") == "ON":
		query = fmt.Sprintf("SELECT WAIT_FOR_EXECUTED_GTID_SET('%s', %d)", source.scalar(tb, "SELECT @@gtid_executed"), seconds)
	default:
		status := source.row(tb, "SHOW BINARY LOG STATUS")
		query = fmt.Sprintf("SELECT SOURCE_POS_WAIT('%s', %s, %d) < 0", status[0], status[1], seconds)
	}
	if got := d.scalar(tb, query); got != "0" {
		tb.Fatalf("%s gave %s: the replica does not catch up", query, got)
	}
}

// StopFollowing halts replication; the server stays a replica.
func (d *DB) StopFollowing(tb testing.TB) {
	tb.Helper()
	d.Exec(tb, "", map[string]string{FlavorMySQL: "STOP REPLICA", FlavorMariaDB: "STOP SLAVE"}[d.flavor])
}

// FollowOn resumes replication.
func (d *DB) FollowOn(tb testing.TB) {
	tb.Helper()
	d.Exec(tb, "", map[string]string{FlavorMySQL: "START REPLICA", FlavorMariaDB: "START SLAVE"}[d.flavor])
}

// Promote makes a replica a primary.
func (d *DB) Promote(tb testing.TB) {
	tb.Helper()
	d.StopFollowing(tb)
	d.Exec(tb, "", map[string]string{FlavorMySQL: "RESET REPLICA ALL", FlavorMariaDB: "RESET SLAVE ALL"}[d.flavor])
	d.Exec(tb, "", "SET GLOBAL read_only = OFF")
}

// scalar is the first value of the first row.
func (d *DB) scalar(tb testing.TB, query string) string {
	tb.Helper()
	return d.row(tb, query)[0]
}

func (d *DB) row(tb testing.TB, query string) []string {
	tb.Helper()
	db, err := openDSN(d.DSN(""))
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	values, err := firstRow(db, query)
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return values
}

func firstRow(db *sql.DB, query string) ([]string, error) {
	rows, err := db.Query(query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values := make([]sql.NullString, len(columns))
	targets := make([]any, len(columns))
	for i := range values {
		targets[i] = &values[i]
	}
	if !rows.Next() {
		return nil, fmt.Errorf("no row: %w", rows.Err())
	}
	if err := rows.Scan(targets...); err != nil {
		return nil, err
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String
	}
	return texts, rows.Err()
}

func splitAddr(tb testing.TB, addr string) (host, port string) {
	tb.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatal(err)
	}
	return host, port
}
