package doctor_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/doctor"
	"github.com/rowferry/rowferry/internal/testservers"
)

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
		name: "queue lists cannot be changed",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "REVOKE ALL PRIVILEGES ON `"+p.schema+"`.* FROM "+p.user+"; GRANT SELECT, INSERT ON rowferry_topic TO "+p.user)
			for _, table := range []string{"outbox", "rowferry_checkpoint", "rowferry_dead"} {
				p.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+table+" TO "+p.user)
			}
		},
		fails: []string{"table rowferry_topic"},
	},
	{
		name: "own tables are missing",
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "DROP TABLE rowferry_checkpoint, rowferry_topic, rowferry_dead")
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
		name: "the index has the status only", only: testservers.FlavorMySQL,
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
		name: "binlog_row_image is MINIMAL", only: testservers.FlavorMariaDB,
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
			p.exec(t, "DROP TABLE outbox")
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
		name: "the payload is latin1", only: testservers.FlavorMariaDB,
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox MODIFY payload LONGTEXT CHARACTER SET latin1 NOT NULL")
		},
		warns: []string{"outbox text"},
	},
	{
		name: "the ledger needs a status", only: testservers.FlavorMySQL,
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox DROP COLUMN status")
			p.env["LEDGER"] = "status"
		},
		fails: []string{"ledger"},
	},
	{
		name: "polling needs a status", only: testservers.FlavorMariaDB,
		spoil: func(t *testing.T, p *patient) {
			p.exec(t, "ALTER TABLE outbox DROP COLUMN status")
			p.env["MODE"] = "poll"
		},
		fails: []string{"ledger"},
	},
	{
		name: "deleting is not allowed", only: testservers.FlavorMySQL,
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
