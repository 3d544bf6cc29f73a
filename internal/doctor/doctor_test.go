package doctor_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	p.exec(t, tables(t))
	if d.Flavor() == testservers.FlavorMariaDB {
		p.account(t, "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, BINLOG ADMIN")
	} else {
		p.account(t, "REPLICATION SLAVE, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN")
	}
	p.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON `"+p.schema+"`.* TO "+p.user)
	return p
}

// tables is the SQL of our tables and an outbox, which is faster than migrating.
func tables(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	if err := migrations.Print(&text, migrations.Options{Outbox: true}); err != nil {
		t.Fatal(err)
	}
	return text.String()
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

func load(t *testing.T, env map[string]string) *config.Config {
	t.Helper()
	var environ []string
	for name, value := range env {
		environ = append(environ, "ROWFERRY_"+name+"="+value)
	}
	cfg, err := config.Load(environ)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// examine runs doctor and looks for the password in everything it says.
func examine(t *testing.T, env map[string]string) doctor.Report {
	t.Helper()
	cfg := load(t, env)
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

func TestCheckpointFile(t *testing.T) {
	p := newPatient(t, testservers.SharedMySQL(t))
	folder := t.TempDir()
	at := func(path string) { p.env["CHECKPOINT_STORE"] = "file:" + filepath.Join(folder, path) }

	at("missing/ferry.json")
	wantOnly(t, p, examine(t, p.env), "checkpoint file", "missing is not there", "mkdir -p "+filepath.Join(folder, "missing"), "position")
	at("ferry.json")
	if r := examine(t, p.env); !r.OK || p.named(r, doctor.OK)["checkpoint file"].Name == "" {
		t.Errorf("a file that is not there yet: %+v", p.named(r, doctor.Fail))
	}
	if err := os.WriteFile(filepath.Join(folder, "other.json"), []byte(`{"name":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	at("other.json")
	wantOnly(t, p, examine(t, p.env), "checkpoint file", `belongs to "other"`, "ROWFERRY_CHECKPOINT_STORE", "position")
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 1 {
		t.Errorf("looking has left %v, %v", left, err)
	}
}

func TestInterruptedExaminationFails(t *testing.T) {
	p := newPatient(t, testservers.SharedMySQL(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := doctor.Run(ctx, load(t, p.env), zerolog.Nop())
	if r.OK || r.Passed(false) || !slices.Equal(names(p.named(r, doctor.Fail)), []string{"doctor"}) {
		t.Errorf("interrupted: %+v", r)
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

	// The same server, when it no longer answers.
	d.Freeze(t)
	defer d.Thaw(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c := p.named(doctor.Run(ctx, load(t, p.env), zerolog.Nop()), doctor.Fail)["source"]
	if !strings.Contains(c.Fix, "start the server") {
		t.Errorf("a frozen server: %+v", c)
	}
}
