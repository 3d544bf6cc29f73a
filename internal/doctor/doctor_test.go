package doctor_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/doctor"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
)

func TestMain(m *testing.M) { testservers.Main(m) }

const password = "s3cret-Passw0rd"

// patient is a server with an outbox, our tables and an account with all the
// rights that the relay asks for.
type patient struct {
	db     *testservers.DB
	schema string
	user   string
	env    map[string]string
}

// newPatient makes a healthy one. SINK=stdout keeps the broker out of it.
func newPatient(t *testing.T, d *testservers.DB) *patient {
	t.Helper()
	p := &patient{db: d, schema: d.Schema(t)}
	p.migrate(t)
	if d.Flavor() == testservers.FlavorMariaDB {
		p.account(t, "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, BINLOG ADMIN")
	} else {
		p.account(t, "REPLICATION SLAVE, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN")
	}
	p.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON `"+p.schema+"`.* TO "+p.user)
	return p
}

func (p *patient) migrate(t *testing.T) {
	t.Helper()
	if _, err := migrations.Up(context.Background(), p.db.Open(t, p.schema), migrations.Options{Outbox: true}); err != nil {
		t.Fatal(err)
	}
}

// account makes an account of its own with some global rights, and connects as it.
func (p *patient) account(t *testing.T, rights string) {
	t.Helper()
	_, tail, _ := strings.Cut(p.schema, "_")
	name := "u" + tail[max(0, len(tail)-20):]
	p.user = "'" + name + "'@'%'"
	p.exec(t, "CREATE USER "+p.user+" IDENTIFIED BY '"+password+"'")
	p.exec(t, "GRANT "+rights+" ON *.* TO "+p.user)
	t.Cleanup(func() { p.db.Exec(t, "", "DROP USER "+p.user) })
	p.env = map[string]string{"SOURCE_DSN": p.db.UserDSN(name, password, p.schema), "SINK": "stdout"}
}

// exec runs SQL as an administrator would paste it: several statements, comments
// and all.
func (p *patient) exec(t *testing.T, query string) {
	t.Helper()
	db, err := sql.Open("mysql", p.db.DSN(p.schema)+"?multiStatements=true")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // of no interest to the test
	if _, err := db.Exec(query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// examine runs doctor and looks for the password in everything it says.
func examine(t *testing.T, env map[string]string) doctor.Report {
	t.Helper()
	var environ []string
	for name, value := range env {
		environ = append(environ, "ROWFERRY_"+name+"="+value)
	}
	cfg, err := config.Load(environ)
	if err != nil {
		t.Fatal(err)
	}
	var logs, text bytes.Buffer
	report := doctor.Run(context.Background(), cfg, zerolog.New(&logs))
	if err := report.Print(&text); err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{text.String(), string(document), logs.String(), fmt.Sprintf("%+v", report)} {
		if strings.Contains(said, password) || strings.Contains(said, "wr0ng-Passw0rd") {
			t.Errorf("the password is in the output:\n%s", said)
		}
	}
	if testing.Verbose() {
		t.Logf("\n%s", text.String())
	}
	return report
}

// named returns the checks with a status by name; the name of the schema is left
// out.
func (p *patient) named(r doctor.Report, status doctor.Status) map[string]doctor.Check {
	found := map[string]doctor.Check{}
	for _, c := range r.Checks {
		if c.Status == status {
			found[strings.ReplaceAll(c.Name, p.schema+".", "")] = c
		}
	}
	return found
}

func names(checks map[string]doctor.Check) []string { return slices.Sorted(maps.Keys(checks)) }

func flavors(t *testing.T, test func(*testing.T, *testservers.DB)) {
	t.Run("mysql", func(t *testing.T) { test(t, testservers.SharedMySQL(t)) })
	t.Run("mariadb", func(t *testing.T) { test(t, testservers.SharedMariaDB(t)) })
}

func TestHealthyServersPass(t *testing.T) {
	flavors(t, func(t *testing.T, d *testservers.DB) {
		p := newPatient(t, d)
		r := examine(t, p.env)
		if bad := p.named(r, doctor.Fail); len(bad) > 0 || !r.OK {
			t.Errorf("a healthy server fails: %+v", bad)
		}
		// The one thing that is not as wanted on a fresh server.
		warned := p.named(r, doctor.Warn)
		if got := names(warned); !slices.Equal(got, []string{"binlog_row_metadata"}) {
			t.Fatalf("warnings: %+v", warned)
		}
		if r.Passed(true) || !r.Passed(false) {
			t.Error("a warning must count with strict, and only then")
		}
		p.exec(t, warned["binlog_row_metadata"].Fix)
		t.Cleanup(func() { p.exec(t, "SET GLOBAL binlog_row_metadata = 'MINIMAL'") })
		if r := examine(t, p.env); !r.Passed(true) {
			t.Errorf("after the fix: %+v", p.named(r, doctor.Warn))
		}
	})
}

// illness is one thing that is wrong.
type illness struct {
	name  string
	only  string // flavor; empty: both
	spoil func(*testing.T, *patient)
	fails []string
	warns []string // beyond binlog_row_metadata
}

var illnesses = []illness{
	{
		name: "only SELECT is granted",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "REVOKE ALL PRIVILEGES, GRANT OPTION FROM "+p.user+"; GRANT SELECT ON `"+p.schema+"`.* TO "+p.user)
		},
		fails: []string{"outbox rights", "replication grants", "table rowferry_checkpoint", "table rowferry_dead", "table rowferry_topic"},
		warns: []string{"row image of marks"},
	},
	{
		name: "no right on the schema",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "REVOKE ALL PRIVILEGES ON `"+p.schema+"`.* FROM "+p.user+"; GRANT SELECT, INSERT, UPDATE, DELETE ON rowferry_checkpoint TO "+p.user+
				"; GRANT SELECT, INSERT, UPDATE, DELETE ON rowferry_topic TO "+p.user+"; GRANT SELECT, INSERT, UPDATE, DELETE ON rowferry_dead TO "+p.user)
		},
		fails: []string{"outbox layout"},
	},
	{
		name: "own tables are missing",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "DROP TABLE rowferry_checkpoint, rowferry_topic, rowferry_dead, rowferry_migrations")
		},
		fails: []string{"table rowferry_checkpoint", "table rowferry_dead", "table rowferry_topic"},
	},
	{
		name: "the index is missing",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox DROP INDEX idx_status_created, DROP INDEX idx_status_next_attempt")
		},
		fails: []string{"outbox index"},
	},
	{
		name: "the index is invisible", only: testservers.FlavorMySQL,
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox ALTER INDEX idx_status_created INVISIBLE, DROP INDEX idx_status_next_attempt")
		},
		fails: []string{"outbox index"},
	},
	{
		name: "the index has the status only",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox DROP INDEX idx_status_created, DROP INDEX idx_status_next_attempt, ADD INDEX only_status (status)")
		},
		warns: []string{"outbox index"},
	},
	{
		name:  "binlog_format is STATEMENT",
		spoil: func(t *testing.T, p *patient) { p.exec(t, "SET GLOBAL binlog_format = 'STATEMENT'") },
		fails: []string{"binlog_format"},
	},
	{
		name: "polling with STATEMENT",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "SET GLOBAL binlog_format = 'STATEMENT'")
			p.env["MODE"] = "poll"
		},
		fails: []string{"store writable"},
	},
	{
		name:  "binlog_row_image is MINIMAL",
		spoil: func(t *testing.T, p *patient) { p.exec(t, "SET GLOBAL binlog_row_image = 'MINIMAL'") },
		warns: []string{"binlog_row_image"},
	},
	{
		name:  "the binlog is kept for an hour",
		spoil: func(t *testing.T, p *patient) { p.exec(t, "SET GLOBAL binlog_expire_logs_seconds = 3600") },
		warns: []string{"binlog expiry"},
	},
	{
		name:  "the store is read-only",
		spoil: func(t *testing.T, p *patient) { p.exec(t, "SET GLOBAL read_only = ON") },
		fails: []string{"store writable"},
	},
	{
		name: "the outbox is missing",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "DROP TABLE outbox; DELETE FROM rowferry_migrations WHERE version_id = 4")
		},
		fails: []string{"outbox layout"},
	},
	{
		name:  "the outbox has no payload",
		spoil: func(t *testing.T, p *patient) { p.exec(t, "ALTER TABLE outbox CHANGE payload body LONGTEXT NOT NULL") },
		fails: []string{"outbox layout"},
	},
	{
		name: "the ENUM status lacks a value",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox MODIFY status ENUM('PENDING','PROCESSING','SENT') NOT NULL DEFAULT 'PENDING'")
		},
		fails: []string{"outbox status values"},
	},
	{
		name: "the status is too short",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox MODIFY status VARCHAR(7) NOT NULL DEFAULT 'PENDING'")
		},
		fails: []string{"outbox status values"},
	},
	{
		name: "the payload is latin1",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox MODIFY payload LONGTEXT CHARACTER SET latin1 NOT NULL")
		},
		warns: []string{"outbox text"},
	},
	{
		name: "the ledger needs a status",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox DROP COLUMN status")
			p.env["LEDGER"] = "status"
		},
		fails: []string{"ledger"},
	},
	{
		name: "polling needs a status",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox DROP COLUMN status")
			p.env["MODE"] = "poll"
		},
		fails: []string{"ledger"},
	},
	{
		name: "deleting is not allowed",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "REVOKE DELETE ON `"+p.schema+"`.* FROM "+p.user+"; GRANT DELETE ON rowferry_dead TO "+p.user)
			p.env["LEDGER"] = "delete"
		},
		fails: []string{"outbox rights"},
	},
	{
		name:  "marks with a full image",
		spoil: func(t *testing.T, p *patient) { p.exec(t, "REVOKE SESSION_VARIABLES_ADMIN ON *.* FROM "+p.user) },
		only:  testservers.FlavorMySQL,
		warns: []string{"row image of marks"},
	},
	{
		name: "a minimal image is insisted on", only: testservers.FlavorMySQL,
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "REVOKE SESSION_VARIABLES_ADMIN ON *.* FROM "+p.user)
			p.env["MARK_ROW_IMAGE"] = "minimal"
		},
		fails: []string{"store"},
	},
	{
		name: "a replica might not be noticed", only: testservers.FlavorMariaDB,
		spoil: func(t *testing.T, p *patient) { p.exec(t, "REVOKE SLAVE MONITOR ON *.* FROM "+p.user) },
		warns: []string{"replication grants"},
	},
	{
		name: "the server id is the source's own",
		spoil: func(t *testing.T, p *patient) {
			var id string
			if err := p.db.Open(t, "").QueryRow("SELECT @@GLOBAL.server_id").Scan(&id); err != nil {
				t.Fatal(err)
			}
			p.env["SERVER_ID"] = id
		},
		fails: []string{"server id"},
	},
	{
		name: "the position is of another history", only: testservers.FlavorMySQL,
		spoil: func(t *testing.T, p *patient) {
			p.env["ON_GAP"] = "stop"
			p.exec(t, `INSERT INTO rowferry_checkpoint (name, position) VALUES ('rowferry',
'{"v":1,"flavor":"mysql","gtid":"11111111-2222-3333-4444-555555555555:1-5"}')`)
		},
		fails: []string{"position"},
	},
	{
		name: "the position is of another history, and sweeping allowed", only: testservers.FlavorMySQL,
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, `INSERT INTO rowferry_checkpoint (name, position) VALUES ('rowferry',
'{"v":1,"flavor":"mysql","gtid":"11111111-2222-3333-4444-555555555555:1-5"}')`)
		},
		warns: []string{"position"},
	},
	{
		name: "the replica commits in another order", only: testservers.FlavorMySQL,
		spoil: func(t *testing.T, p *patient) {
			p.env["STORE_DSN"] = strings.Replace(p.env["SOURCE_DSN"], "127.0.0.1", "localhost", 1)
			p.exec(t, "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=1, SOURCE_USER='nobody'; SET GLOBAL replica_preserve_commit_order = OFF")
			t.Cleanup(func() { p.exec(t, "STOP REPLICA; RESET REPLICA ALL") })
		},
		fails: []string{"commit order"},
	},
}

func TestEachIllnessIsFoundAndItsFixCures(t *testing.T) {
	flavors(t, func(t *testing.T, d *testservers.DB) {
		for _, ill := range illnesses {
			if ill.only != "" && ill.only != d.Flavor() {
				continue
			}
			t.Run(ill.name, func(t *testing.T) {
				p := newPatient(t, d)
				ill.spoil(t, p)
				r := examine(t, p.env)
				bad := p.named(r, doctor.Fail)
				if got := names(bad); !slices.Equal(got, ill.fails) {
					t.Errorf("fails: %q, want %q: %+v", got, ill.fails, bad)
				}
				warned := p.named(r, doctor.Warn)
				delete(warned, "binlog_row_metadata")
				if got := names(warned); !slices.Equal(got, ill.warns) {
					t.Errorf("warnings: %q, want %q: %+v", got, ill.warns, warned)
				}
				maps.Copy(bad, warned)
				for _, name := range names(bad) {
					p.cure(t, bad[name])
				}
				after := p.named(examine(t, p.env), doctor.OK)
				for name := range bad {
					if _, cured := after[name]; !cured {
						t.Errorf("%s is not ok after %s", name, bad[name].Fix)
					}
				}
			})
		}
	})
}

// cure does what a fix says, to the letter.
func (p *patient) cure(t *testing.T, c doctor.Check) {
	t.Helper()
	setting, isSetting := strings.CutPrefix(c.Fix, "ROWFERRY_")
	switch {
	case isSetting:
		name, value, _ := strings.Cut(setting, "=")
		p.env[name] = value
	case c.Fix == "rowferry migrate up", c.Fix == "rowferry migrate up --outbox":
		p.migrate(t)
	case c.Fix == "rowferry checkpoint reset":
		p.exec(t, "UPDATE rowferry_checkpoint SET position = ''")
	case strings.HasPrefix(c.Fix, "GRANT "), strings.HasPrefix(c.Fix, "SET "), strings.HasPrefix(c.Fix, "STOP "),
		strings.HasPrefix(c.Fix, "CREATE "), strings.HasPrefix(c.Fix, "ALTER "):
		p.exec(t, c.Fix)
	default:
		t.Errorf("%s: the fix cannot be executed: %q", c.Name, c.Fix)
	}
}

// wantOnly checks that exactly one check fails, that it says what is wanted and
// how to mend it, and that what depends on it is skipped for its sake.
func wantOnly(t *testing.T, p *patient, r doctor.Report, name, found, fix string, dependants ...string) {
	t.Helper()
	bad := p.named(r, doctor.Fail)
	c := bad[name]
	if !slices.Equal(names(bad), []string{name}) {
		t.Fatalf("fails: %+v, want only %s", bad, name)
	}
	if !strings.Contains(c.Found, found) || !strings.Contains(c.Fix, fix) || c.Wanted == "" {
		t.Errorf("%+v does not say %q and %q", c, found, fix)
	}
	skipped := p.named(r, doctor.Skipped)
	for _, d := range dependants {
		if s, ok := skipped[d]; !ok || s.Found != "needs "+name {
			t.Errorf("%s: %+v, want skipped because of %s", d, s, name)
		}
	}
	if r.OK || r.Passed(false) || r.Misconfigured() {
		t.Error("the report does not fail, or blames the configuration")
	}
}

func TestServersThatCannotBeReached(t *testing.T) {
	flavors(t, func(t *testing.T, d *testservers.DB) {
		p := newPatient(t, d)
		good := p.env["SOURCE_DSN"]
		with := func(name, dsn string) map[string]string {
			env := maps.Clone(p.env)
			env[name] = dsn
			return env
		}
		dead := fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(0))
		wrong := strings.Replace(good, password, "wr0ng-Passw0rd", 1)
		away := strings.Replace(good, d.Addr(), dead, 1)
		missing := strings.Replace(good, p.schema, p.schema+"_x", 1)

		wantOnly(t, p, examine(t, with("SOURCE_DSN", wrong)), "source", "Access denied", "ROWFERRY_SOURCE_DSN", "store", "log_bin", "server id", "clock")
		wantOnly(t, p, examine(t, with("SOURCE_DSN", away)), "source", dead, "start the server", "store", "log_bin")
		wantOnly(t, p, examine(t, with("STORE_DSN", wrong)), "store", "Access denied", "ROWFERRY_STORE_DSN", "outbox tables", "leader lock", "table rowferry_dead")

		r := examine(t, with("SOURCE_DSN", missing))
		wantOnly(t, p, r, "source", p.schema+"_x", "GRANT SELECT ON `"+p.schema+"_x`.`outbox` TO "+p.user)
		root := with("SOURCE_DSN", d.DSN(p.schema+"_x"))
		wantOnly(t, p, examine(t, root), "source", "Unknown database", "CREATE DATABASE `"+p.schema+"_x`")
	})
}

func TestReplicaWithoutStoreIsRefused(t *testing.T) {
	p := newPatient(t, testservers.SharedMySQL(t))
	p.exec(t, "CHANGE REPLICATION SOURCE TO SOURCE_HOST='primary.example', SOURCE_PORT=3307")
	t.Cleanup(func() { p.exec(t, "RESET REPLICA ALL") })
	wantOnly(t, p, examine(t, p.env), "source role", "replica of primary.example:3307", "ROWFERRY_STORE_DSN")
	// Another address of the same server stands in for a primary elsewhere.
	p.env["STORE_DSN"] = strings.Replace(p.env["SOURCE_DSN"], "127.0.0.1", "localhost", 1)
	r := examine(t, p.env)
	if bad := p.named(r, doctor.Fail); len(bad) > 0 {
		t.Errorf("with a store: %+v", bad)
	}
	for _, name := range []string{"source role", "log_replica_updates", "commit order"} {
		if _, good := p.named(r, doctor.OK)[name]; !good {
			t.Errorf("%s is not ok on a replica with a store", name)
		}
	}
}

func TestServerWithoutBinlog(t *testing.T) {
	d := testservers.MySQL(t, "--skip-log-bin", "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
	p := newPatient(t, d)
	wantOnly(t, p, examine(t, p.env), "log_bin", "OFF", "restart", "binlog_format", "binlog_row_metadata", "gtid", "binlog filters", "position")
	p.env["MODE"] = "poll"
	if r := examine(t, p.env); !r.Passed(true) {
		t.Errorf("polling needs no binlog: %+v %+v", p.named(r, doctor.Fail), p.named(r, doctor.Warn))
	}
}
