package binlog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// ddlCase is a table that is changed while rows from before are still unread. %s in
// its statements is the table.
type ddlCase struct {
	name    string
	flavor  string // empty: both
	columns string // other than those of ddlColumns
	change  []string
	hides   bool   // columns of the stream from information_schema
	named   string // how the first row must come where the stream names columns: see form
}

// The columns from event_type to note are of one type: without names nothing in the
// stream tells them apart.
const ddlColumns = `id BIGINT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(30), aggregate_id VARCHAR(30), event_type VARCHAR(30), note VARCHAR(30),
  payload VARCHAR(30), status VARCHAR(30) NOT NULL DEFAULT 'PENDING'`

const right = "t|a|e|p"

var ddlCases = []ddlCase{
	{name: "nothing", named: right},
	{name: "added first", change: []string{"ALTER TABLE %s ADD COLUMN x VARCHAR(30) FIRST"}, named: right},
	{name: "added in the middle", change: []string{"ALTER TABLE %s ADD COLUMN x VARCHAR(30) AFTER aggregate_id"}, named: right},
	{name: "added last", change: []string{"ALTER TABLE %s ADD COLUMN x VARCHAR(30)"}, named: right},
	{name: "added at once", flavor: testservers.FlavorMySQL, change: []string{"ALTER TABLE %s ADD COLUMN x VARCHAR(30) AFTER id, ALGORITHM=INSTANT"}, named: right},
	{name: "added with a role", change: []string{"ALTER TABLE %s ADD COLUMN topic VARCHAR(30)"}, named: "(layout)"},
	{name: "dropped", change: []string{"ALTER TABLE %s DROP COLUMN note"}, named: right},
	{name: "dropped and added", change: []string{"ALTER TABLE %s DROP COLUMN note, ADD COLUMN other VARCHAR(30) AFTER event_type"}, named: right},
	{name: "dropped with its role", change: []string{"ALTER TABLE %s DROP COLUMN aggregate_id"}, named: "t||e|p"},
	{name: "moved", change: []string{"ALTER TABLE %s MODIFY COLUMN aggregate_type VARCHAR(30) AFTER payload"}, named: right},
	{name: "changed places", change: []string{"ALTER TABLE %s MODIFY COLUMN aggregate_id VARCHAR(30) AFTER event_type"}, named: right},
	{name: "changed places and back", change: []string{"ALTER TABLE %s MODIFY COLUMN aggregate_id VARCHAR(30) AFTER event_type",
		"ALTER TABLE %s MODIFY COLUMN event_type VARCHAR(30) AFTER aggregate_id"}, named: right},
	{name: "changed names", change: []string{"ALTER TABLE %s CHANGE aggregate_id event_type VARCHAR(30), CHANGE event_type aggregate_id VARCHAR(30)"}, named: right},
	{name: "renamed", change: []string{"ALTER TABLE %s RENAME COLUMN note TO remark"}, named: right},
	{name: "renamed into a role", columns: strings.Replace(ddlColumns, "event_type", "kind", 1), change: []string{"ALTER TABLE %s RENAME COLUMN kind TO event_type"}, named: "(layout)"},
	{name: "made longer", change: []string{"ALTER TABLE %s MODIFY COLUMN payload VARCHAR(60)"}, named: right},
	{name: "made another type", change: []string{"ALTER TABLE %s MODIFY COLUMN payload TEXT"}, named: "(layout)"},
	{name: "converted", change: []string{"ALTER TABLE %s CONVERT TO CHARACTER SET latin1"}, named: "(layout)"},
	{name: "dropped and created", change: []string{"DROP TABLE %s", "CREATE TABLE %s (id BIGINT AUTO_INCREMENT PRIMARY KEY, event_type VARCHAR(30), aggregate_id VARCHAR(30), aggregate_type VARCHAR(30)," +
		" payload VARCHAR(30), note VARCHAR(30), status VARCHAR(30) NOT NULL DEFAULT 'PENDING')"}, named: right},
	{name: "exchanged for a copy", change: []string{"CREATE TABLE _%[1]s_new LIKE %[1]s", "ALTER TABLE _%[1]s_new MODIFY COLUMN aggregate_id VARCHAR(30) AFTER event_type",
		"INSERT INTO _%[1]s_new (id, aggregate_type, aggregate_id, event_type, payload, status) SELECT id, aggregate_type, aggregate_id, event_type, payload, status FROM %[1]s",
		"RENAME TABLE %[1]s TO _%[1]s_old, _%[1]s_new TO %[1]s", "DROP TABLE _%[1]s_old"}, named: right},
	{name: "partitioned", change: []string{"ALTER TABLE %s PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
		"ALTER TABLE %s REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)",
		"CREATE TABLE %[1]s_flat LIKE %[1]s", "ALTER TABLE %s_flat REMOVE PARTITIONING", "ALTER TABLE %[1]s EXCHANGE PARTITION p2 WITH TABLE %[1]s_flat"}, named: right},
	{name: "partition added and dropped", change: []string{"ALTER TABLE %s PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (1000), PARTITION p1 VALUES LESS THAN (2000))",
		"ALTER TABLE %s ADD PARTITION (PARTITION p2 VALUES LESS THAN (3000))", "ALTER TABLE %s DROP PARTITION p1"}, named: right},
	{name: "invisible", columns: "hidden VARCHAR(30) DEFAULT 'h' INVISIBLE, " + ddlColumns, named: right},
	{name: "made invisible", change: []string{"ALTER TABLE %s MODIFY COLUMN note VARCHAR(30) INVISIBLE"}, named: right},
	{name: "generated", columns: "v VARCHAR(30) AS (CONCAT('v', aggregate_id)) VIRTUAL, " + ddlColumns + ", s VARCHAR(30) AS (CONCAT('s', aggregate_id)) STORED", named: right},
	{name: "made generated", change: []string{"ALTER TABLE %s ADD COLUMN v VARCHAR(30) AS (CONCAT('v', aggregate_id)) VIRTUAL FIRST"}, named: right},
	{name: "payload generated", columns: strings.Replace(ddlColumns, "payload VARCHAR(30)", "body VARCHAR(30) DEFAULT 'p', payload VARCHAR(30) AS (body) STORED", 1), named: right},
	{name: "columns renumbered", columns: strings.Replace(ddlColumns, "status VARCHAR(30) NOT NULL DEFAULT 'PENDING'", "status ENUM('PENDING','SENT','FAILED') DEFAULT 'PENDING'", 1),
		change: []string{"ALTER TABLE %s MODIFY COLUMN status ENUM('SENT','PENDING','FAILED') DEFAULT 'PENDING'"}, named: right},
	{name: "analysed", change: []string{"ANALYZE TABLE %s", "OPTIMIZE TABLE %s", "CREATE INDEX i ON %s (note)"}, named: right},
	{name: "key generated", flavor: testservers.FlavorMySQL, columns: strings.Replace(ddlColumns, "AUTO_INCREMENT PRIMARY KEY", "NOT NULL UNIQUE DEFAULT (7)", 1), named: right},
	{name: "defaults", columns: strings.NewReplacer("aggregate_id VARCHAR(30)", "aggregate_id VARCHAR(30) DEFAULT (CONCAT('a', ''))").Replace(ddlColumns), named: right},
	{name: "system-versioned", flavor: testservers.FlavorMariaDB, columns: ddlColumns + ", st BIGINT", change: []string{"ALTER TABLE %s ADD SYSTEM VERSIONING"}, hides: true, named: right},
}

// form prints the parts of an event that its columns tell, or why it has to be read by key.
func form(e *outbox.Event) string {
	if e.Unread != "" {
		return "(" + e.Unread + ")"
	}
	return strings.Join([]string{e.AggregateType, e.AggregateID, e.Type, string(e.Payload)}, "|")
}

// A process that starts behind changes of its tables sees their present layouts only,
// and reads no row from before them under another column's name: it reads by the names
// in the stream, or where there are none leaves the row to be read by key, until it has
// come to where it asked.
func TestColumnsChangePlacesUnseen(t *testing.T) {
	for name, shared := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		server := shared(t)
		for _, metadata := range []string{defaultMetadata(server), "FULL"} {
			t.Run(name+"/"+metadata, func(t *testing.T) { testChangesUnseen(t, server, metadata) })
		}
	}
}

func testChangesUnseen(t *testing.T, server *testservers.DB, metadata string) {
	g := newRig(t, server, outboxDDL, "SET GLOBAL binlog_row_metadata = "+metadata)
	defer g.exec("SET GLOBAL binlog_row_metadata = " + defaultMetadata(server))
	tables := []string{"outbox"}
	cases := map[string]ddlCase{}
	for _, c := range ddlCases {
		if c.flavor != "" && c.flavor != server.Flavor() {
			continue
		}
		table := "t_" + strings.NewReplacer(" ", "_", "-", "_").Replace(c.name)
		tables, cases[table] = append(tables, table), c
		g.createForDDL(table, c.columns)
	}
	from := g.resolve(g.reader(), "now") // of other layouts than those the reader will know
	for table, c := range cases {
		g.insertForDDL(table, c)
		for _, change := range c.change {
			g.exec(strings.ReplaceAll(strings.ReplaceAll(change, "%[1]s", table), "%s", table))
		}
	}
	g.watch(tables...)
	g.config.Unseen = g.countUnseen
	tl := runTail(t, g.reader(), from)
	g.checkForms(tl, cases, "before", func(c ddlCase) string {
		if metadata == "FULL" {
			return c.named
		}
		return ""
	})
	for _, when := range []string{"after", "later"} {
		for table, c := range cases {
			g.insertForDDL(table, c)
		}
		g.checkForms(tl, cases, when, func(c ddlCase) string {
			if metadata != "FULL" && (when == "after" || c.hides) {
				return ""
			}
			return strings.Replace(c.named, "(layout)", right, 1)
		})
	}
}

func (g *rig) createForDDL(table, columns string) {
	g.t.Helper()
	if columns == "" {
		columns = ddlColumns
	}
	create := "CREATE TABLE " + table + " (" + columns + ") CHARACTER SET utf8mb4"
	if g.server.Flavor() == testservers.FlavorMySQL {
		g.session("SET SESSION sql_generate_invisible_primary_key = ON", create)
	} else {
		g.exec(create)
	}
}

// insertForDDL inserts a row of t, a, e and p, leaving out what the table says itself.
func (g *rig) insertForDDL(table string, c ddlCase) {
	g.t.Helper()
	values := map[string]string{"aggregate_type": "'t'", "aggregate_id": "'a'", "event_type": "'e'", "kind": "'e'", "note": "'n'", "payload": "'p'"}
	if c.name == "payload generated" {
		delete(values, "payload")
	}
	if c.name == "key generated" {
		values["id"] = fmt.Sprint(serverIDs.Add(1))
	}
	var names, texts []string
	for _, column := range g.columns(table) {
		if text, ok := values[column]; ok {
			names, texts = append(names, column), append(texts, text)
		}
	}
	g.exec("INSERT INTO " + table + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(texts, ", ") + ")")
}

func (g *rig) columns(table string) []string {
	g.t.Helper()
	columns, err := readColumns(g.t.Context(), g.db, outbox.Table{Schema: g.schema, Name: table})
	if err != nil {
		g.t.Fatal(err)
	}
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	return names
}

// checkForms wants one event of each table, in the form given; where that is empty, it
// may be right or left to be read by key.
func (g *rig) checkForms(tl *tail, cases map[string]ddlCase, when string, want func(ddlCase) string) {
	g.t.Helper()
	got := map[string][]string{}
	for _, e := range g.flush(tl) {
		got[e.Table.Name] = append(got[e.Table.Name], form(e))
	}
	for table, c := range cases {
		forms, wanted := got[table], want(c)
		g.t.Logf("%s, row from %s: %q", c.name, when, forms)
		switch {
		case wanted == "" && len(forms) == 0 && g.unseen[table+" layout"] == 1:
			// Its key cannot be told from other columns: the sweep is told.
		case len(forms) != 1:
			g.t.Errorf("%s, row from %s: %d events %q, want one", c.name, when, len(forms), forms)
		case wanted != "" && forms[0] != wanted:
			g.t.Errorf("%s, row from %s: %s, want %s", c.name, when, forms[0], wanted)
		case wanted == "" && forms[0] != strings.Replace(c.named, "(layout)", right, 1) && !strings.HasPrefix(forms[0], "("):
			g.t.Errorf("%s, row from %s: %s, want %s or none", c.name, when, forms[0], right)
		}
	}
}
