package binlog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// goldenServers are the servers whose binlogs are recorded.
var goldenServers = []struct {
	name    string
	release release
	gtids   bool
	start   func(testing.TB, ...string) *testservers.DB
}{
	{"mysql-9.7", mysql97, true, testservers.MySQL},
	{"mysql-9.7-files", mysql97, false, testservers.MySQLNoGTID},
	{"mariadb-10.11", mariadb1011, true, testservers.MariaDB1011},
	{"mariadb-11.8", mariadb118, true, testservers.MariaDB},
}

// Which servers run a step.
const (
	everywhere  = ""
	onlyMySQL   = flavorMySQL
	onlyMariaDB = flavorMariaDB
	onlyTagged  = "mysql with GTIDs"
)

// goldenTables exist before the recording begins.
var goldenTables = []string{
	outboxDDL,
	strings.Replace(outboxDDL, "TABLE outbox", "TABLE outbox_myisam", 1) + " ENGINE=MyISAM",
	strings.Replace(outboxDDL, "TABLE outbox", "TABLE outbox_parts", 1) + " PARTITION BY HASH (id) PARTITIONS 3",
	`CREATE TABLE outbox_types (id BINARY(16) PRIMARY KEY, aggregate_type ENUM('Order','Müller'), aggregate_id BIGINT UNSIGNED,
 event_type VARCHAR(30) CHARACTER SET latin1, payload JSON, headers JSON, status CHAR(8) NOT NULL DEFAULT 'PENDING', created_at TIMESTAMP(6) NULL, note TEXT)`,
	"CREATE TABLE outbox_plain (id VARCHAR(40) PRIMARY KEY, aggregatetype VARCHAR(20), aggregateid VARCHAR(20), type VARCHAR(20), payload MEDIUMBLOB)",
	"CREATE TABLE other (a INT PRIMARY KEY, b TEXT)",
}

// goldenScript is what is recorded. want are the payloads that must come out, in order;
// id(reason) stands for a row to be read by key.
var goldenScript = []struct {
	only       string
	statements []string
	want       []string
}{
	{everywhere, []string{"INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('Order', '1', 'Created', 'one')"}, []string{"one"}},
	{everywhere, []string{"INSERT INTO outbox (payload) VALUES ('many-1'), ('many-2'), ('many-3 ä€😀')"}, []string{"many-1", "many-2", "many-3 ä€😀"}},
	{everywhere, []string{"INSERT INTO outbox (payload, status) VALUES ('old', 'SENT'), ('fresh', 'PENDING')"}, []string{"fresh"}},
	{everywhere, []string{"INSERT INTO other VALUES (1, REPEAT('o', 300))", "UPDATE other SET b = 'x'", "DELETE FROM other"}, nil},
	{everywhere, []string{"BEGIN", "INSERT INTO outbox (id, payload) VALUES (20, 'u-1'), (21, 'u-2'), (22, 'u-3')", "UPDATE outbox SET payload = 'u-1 changed' WHERE id = 20",
		"DELETE FROM outbox WHERE id = 21", "INSERT INTO other VALUES (2, 'between')", "INSERT INTO outbox (id, payload) VALUES (23, 'u-4')", "COMMIT"}, []string{"u-1 changed", "u-3", "u-4"}},
	{everywhere, []string{"UPDATE outbox SET status = 'SENT' WHERE id = 20", "DELETE FROM outbox WHERE id = 22"}, nil},
	{everywhere, []string{"BEGIN", "INSERT INTO outbox (payload) VALUES ('never')", "ROLLBACK"}, nil},
	{everywhere, []string{"BEGIN", "INSERT INTO outbox (payload) VALUES ('s-1')", "SAVEPOINT s", "INSERT INTO outbox (payload) VALUES ('never')", "ROLLBACK TO s",
		"INSERT INTO outbox (payload) VALUES ('s-2')", "COMMIT"}, []string{"s-1", "s-2"}},
	{everywhere, []string{"XA START 'kept','b'", "INSERT INTO outbox (id, payload) VALUES (40, 'xa-1'), (41, 'xa-2')", "XA END 'kept','b'", "XA PREPARE 'kept','b'"}, nil},
	{everywhere, []string{"XA START 'gone'", "INSERT INTO outbox (id, payload) VALUES (42, 'never')", "XA END 'gone'", "XA PREPARE 'gone'"}, nil},
	{everywhere, []string{"INSERT INTO outbox (id, payload) VALUES (43, 'while prepared')"}, []string{"while prepared"}},
	{everywhere, []string{"XA ROLLBACK 'gone'"}, nil},
	{everywhere, []string{"XA COMMIT 'kept','b'"}, []string{"40(xa)", "41(xa)"}},
	{everywhere, []string{"XA START 'one'", "INSERT INTO outbox (payload) VALUES ('xa one phase')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE"}, []string{"xa one phase"}},
	{everywhere, []string{"CREATE TABLE copied (id INT PRIMARY KEY) SELECT id, payload FROM outbox", "DROP TABLE copied"}, nil},
	{everywhere, []string{"INSERT INTO outbox_myisam (payload) VALUES ('m-1'), ('m-2')"}, []string{"m-1", "m-2"}},
	{everywhere, []string{"INSERT INTO outbox_parts (id, payload) VALUES (1, 'p-1'), (2, 'p-2'), (3, 'p-3')"}, []string{"p-1", "p-2", "p-3"}},
	{onlyMySQL, []string{"SET SESSION binlog_rows_query_log_events = ON", "INSERT INTO outbox (payload) VALUES ('with its query')"}, []string{"with its query"}},
	{everywhere, []string{"REPLACE INTO outbox (id, payload) VALUES (50, 'replaced'), (20, 'never')"}, []string{"replaced"}},
	{everywhere, []string{"INSERT INTO outbox (id, payload) VALUES (50, 'never'), (51, 'not there yet') ON DUPLICATE KEY UPDATE attempts = attempts + 1"}, []string{"not there yet"}},
	{everywhere, []string{"INSERT INTO outbox (payload) SELECT CONCAT('copy of ', payload) FROM outbox WHERE id IN (1, 2) ORDER BY id"}, []string{"copy of one", "copy of many-1"}},
	{everywhere, []string{"LOAD DATA LOCAL INFILE 'Reader::golden' INTO TABLE outbox (payload)"}, []string{"loaded 1", "loaded 2"}},
	{onlyMySQL, []string{"SET SESSION binlog_transaction_compression = ON", "BEGIN", "INSERT INTO outbox (payload) VALUES ('z-1'), (REPEAT('z', 600))",
		"INSERT INTO other VALUES (3, REPEAT('o', 600))", "UPDATE outbox SET payload = 'z-1 changed' WHERE payload = 'z-1'", "COMMIT"}, []string{"z-1 changed", strings.Repeat("z", 600)}},
	{onlyMariaDB, []string{"SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10", "BEGIN", "INSERT INTO outbox (payload) VALUES ('z-1'), (REPEAT('z', 600))",
		"INSERT INTO other VALUES (3, REPEAT('o', 600))", "UPDATE outbox SET payload = 'z-1 changed' WHERE payload = 'z-1'", "COMMIT",
		"CREATE TABLE a_statement_that_is_long_enough_to_be_compressed (a INT)", "SET GLOBAL log_bin_compress = OFF"}, []string{"z-1 changed", strings.Repeat("z", 600)}},
	{everywhere, []string{"SET time_zone = '+00:00'", `INSERT INTO outbox_types VALUES
 (X'0102030405060708090A0B0C0D0E0F00', 'Müller', 18446744073709551615, 'café', '{"a": 1.0, "b": [true, null, "x"]}', '{"traceparent": "00-1"}', 'PENDING', '2024-02-29 12:00:00.123456', NULL)`}, []string{`{"a": 1.0, "b": [true, null, "x"]}`}},
	{everywhere, []string{"BEGIN", "INSERT INTO outbox_plain VALUES ('k-1', 'Order', '7', 'Created', 'plain'), ('k-2', 'Order', '7', 'Created', 'deleted at once')",
		"DELETE FROM outbox_plain WHERE id = 'k-2'", "COMMIT"}, []string{"plain", "deleted at once"}},
	{everywhere, []string{"SET SESSION binlog_row_image = MINIMAL", "INSERT INTO outbox (id, payload, status, attempts) VALUES (60, 'minimal', 'PENDING', 0)",
		"UPDATE outbox SET attempts = 1 WHERE id = 60"}, []string{"60(image)"}},
	{onlyTagged, []string{"SET SESSION gtid_next = 'AUTOMATIC:golden'", "INSERT INTO outbox (payload) VALUES ('tagged')"}, []string{"tagged"}},
	{everywhere, []string{"ALTER TABLE outbox ADD COLUMN extra INT AFTER id", "INSERT INTO outbox (id, extra, payload) VALUES (70, 1, 'no layout known fits')"}, []string{"70(layout)"}},
	{everywhere, []string{"SET GLOBAL binlog_row_metadata = FULL", "INSERT INTO outbox (payload) VALUES ('with names')",
		"ALTER TABLE outbox DROP COLUMN extra, MODIFY payload MEDIUMTEXT AFTER status", "INSERT INTO outbox (payload) VALUES ('moved')"}, []string{"with names", "moved"}},
	{everywhere, []string{"INSERT INTO outbox (payload) VALUES ('last')"}, []string{"last"}},
}

// goldenWants are the payloads of the steps that a server runs.
func goldenWants(flavor string, gtids bool) (want []string) {
	for _, s := range goldenScript {
		if runsOn(s.only, flavor, gtids) {
			want = append(want, s.want...)
		}
	}
	return want
}

func runsOn(only, flavor string, gtids bool) bool {
	return only == everywhere || only == flavor || only == onlyTagged && flavor == flavorMySQL && gtids
}

// record has a real server run the script, and returns its binlog file and the
// layouts of the tables before and after.
func record(t *testing.T, server *testservers.DB, gtids bool) (file []byte, g *golden) {
	t.Helper()
	server.Exec(t, "", "CREATE DATABASE golden CHARACTER SET utf8mb4")
	db := server.Open(t, "golden")
	run := func(statements ...string) {
		t.Helper()
		if err := inOneSession(t.Context(), db, statements); err != nil {
			t.Fatal(err)
		}
	}
	run(goldenTables...)
	mysql.RegisterReaderHandler("golden", func() io.Reader { return strings.NewReader("loaded 1\nloaded 2\n") })
	defer mysql.DeregisterReaderHandler("golden")
	g = &golden{Before: readGoldenLayouts(t, db)}
	if server.Flavor() == testservers.FlavorMySQL {
		run("RESET BINARY LOGS AND GTIDS")
	} else {
		run("RESET MASTER")
	}
	for _, s := range goldenScript {
		if runsOn(s.only, server.Flavor(), gtids) {
			run(s.statements...)
		}
	}
	run("FLUSH BINARY LOGS")
	g.After = readGoldenLayouts(t, db)
	identity := "SELECT @@server_uuid"
	if server.Flavor() == testservers.FlavorMariaDB {
		identity = "SELECT @@server_id"
	}
	if err := db.QueryRow(identity).Scan(&g.Server); err != nil {
		t.Fatal(err)
	}
	return copyLog(t, server, "binlog.000001"), g
}

func inOneSession(ctx context.Context, db *sql.DB, statements []string) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = c.Raw(func(any) error { return driver.ErrBadConn }) // ends the session, and its settings
		_ = c.Close()
	}()
	for _, s := range statements {
		if _, err := c.ExecContext(ctx, s); err != nil {
			return errors.Join(errors.New(s), err)
		}
	}
	return nil
}

func readGoldenLayouts(t *testing.T, db *sql.DB) (layouts []goldenLayout) {
	t.Helper()
	for _, name := range []string{"outbox", "outbox_myisam", "outbox_parts", "outbox_types", "outbox_plain"} {
		l, err := outbox.ReadTable(t.Context(), db, outbox.Table{Schema: "golden", Name: name}, outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		layouts = append(layouts, goldenLayout{name, l.Columns})
	}
	return layouts
}

// copyLog fetches a finished binlog file byte by byte, as it lies on the server.
func copyLog(t *testing.T, server *testservers.DB, name string) []byte {
	t.Helper()
	cfg, err := mysql.ParseDSN(server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	c := &logCopier{bytes: []byte(fileMagic)}
	sc := replication.BinlogSyncerConfig{
		ServerID: nextServerID(), Flavor: server.Flavor(), Host: cfg.Addr, User: cfg.User, Password: cfg.Passwd,
		Logger: slog.New(slog.DiscardHandler), RawModeEnabled: true, DisableRetrySync: true, VerifyChecksum: true, SynchronousEventHandler: c,
	}
	if server.Flavor() == testservers.FlavorMariaDB {
		sc.DumpCommandFlag = replication.BINLOG_SEND_ANNOTATE_ROWS_EVENT // else they are left out
	}
	syncer := replication.NewBinlogSyncer(sc)
	defer syncer.Close()
	streamer, err := syncer.StartSync(gomysql.Position{Name: name, Pos: fileHeadSize})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := streamer.GetEvent(t.Context()); err == nil || err.Error() != errCopied.Error() {
		t.Fatal(err)
	}
	return c.bytes
}

// fileMagic begins every binlog file.
const fileMagic = "\xfebin"

var errCopied = errors.New("the file has been copied")

type logCopier struct{ bytes []byte }

func (c *logCopier) HandleEvent(ev *replication.BinlogEvent) error {
	if ev.Header.Flags&replication.LOG_EVENT_ARTIFICIAL_F != 0 {
		return nil
	}
	c.bytes = append(c.bytes, ev.RawData...)
	if ev.Header.EventType == replication.ROTATE_EVENT {
		return errCopied
	}
	return nil
}

func writeGoldenFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(goldenDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}
