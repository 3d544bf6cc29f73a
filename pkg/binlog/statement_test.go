package binlog

import (
	"testing"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Which table a statement writes to or makes, and whether it can change the columns of
// those it names.
func TestTargetOf(t *testing.T) {
	for text, want := range map[string]string{
		"INSERT INTO outbox VALUES (1)":                                             "app.outbox",
		"insert ignore outbox select * from other":                                  "app.outbox",
		"INSERT LOW_PRIORITY INTO `shop`.`outbox`(a) SELECT 1":                      "shop.outbox",
		"REPLACE INTO shop . outbox SET a = 1":                                      "shop.outbox",
		"/* c */ INSERT /* d */ INTO outbox VALUES (1)":                             "app.outbox",
		"insert into audit select * from outbox":                                    "app.audit",
		"INSERT INTO `out``box` VALUES (1)":                                         "",
		"LOAD DATA INFILE 'f' REPLACE INTO TABLE `outbox` FIELDS TERMINATED BY ','": "app.outbox",
		"LOAD DATA INFILE 'f' INTO  TABLE outbox":                                   "",
		"CREATE TABLE outbox (a INT)":                                               "app.outbox",
		"CREATE OR REPLACE TABLE IF NOT EXISTS shop.outbox AS SELECT 1":             "shop.outbox",
		"CREATE TEMPORARY TABLE outbox2 LIKE outbox":                                "app.outbox2",
		"CREATE VIEW outbox AS SELECT 1":                                            "",
		"UPDATE outbox SET a = 1":                                                   "",
		"ALTER TABLE outbox ADD b INT":                                              "",
		"":                                                                          "",
	} {
		got := ""
		if schema, name, ok := targetOf(statement{schema: []byte("app"), text: []byte(text)}.classified()); ok {
			got = schema + "." + name
		}
		if got != want {
			t.Errorf("%q writes to %q, want %q", text, got, want)
		}
	}
}

func TestChangesColumns(t *testing.T) {
	for text, want := range map[string]bool{
		"ALTER TABLE outbox DROP a":        true,
		"RENAME TABLE a TO outbox":         true,
		"DROP TABLE IF EXISTS outbox":      true,
		"/*!50100 ALTER TABLE outbox X */": true,
		"DROP INDEX i ON outbox":           false,
		"DROP TRIGGER outbox":              false,
		"CREATE INDEX i ON outbox (a)":     false,
		"CREATE TABLE x LIKE outbox":       false, // other than the one it makes
		"CREATE VIEW outbox AS SELECT 1":   false,

		"CREATE TABLE /* c */ outbox (a INT)":                    true,
		"CREATE TABLE /*!32312 IF NOT EXISTS*/ outbox (a INT)":   true,
		"CREATE OR REPLACE /* c */ TABLE /* d */ outbox (a INT)": true,
		"TRUNCATE TABLE outbox":                                  false,
		"ANALYZE TABLE outbox":                                   false,
		"GRANT SELECT ON outbox TO a":                            false,
		"SOMETHING NEW THAT NAMES `outbox`":                      true,
	} {
		if got := (statement{text: []byte(text)}).classified().changesColumns(); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// A table that is filled as it is made holds rows that nobody sees; one that only speaks of
// it does not.
func TestFillsNewTable(t *testing.T) {
	for text, want := range map[string]bool{
		"CREATE TABLE outbox AS SELECT 1":                                       true,
		"CREATE TABLE outbox (a INT COMMENT 'it''s \\' all') SELECT `a` FROM b": true,
		"CREATE TABLE outbox (a INT) START TRANSACTION":                         false,
		"CREATE TABLE outbox (a INT COMMENT 'for SELECT')":                      false,
		"CREATE TABLE outbox (a INT, `select` INT) COMMENT=\"it's SELECT\"":     false,
		"CREATE TABLE outbox (a INT COMMENT 'unclosed SELECT":                   false,
		"CREATE TABLE outbox (a INT)":                                           false,
	} {
		if got := fillsNewTable([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// A checkpoint table whose columns could not be told is looked at again by the next
// connection: the account may have been granted SELECT.
func TestFencesAreLookedForAgain(t *testing.T) {
	fences := outbox.Table{Schema: "app", Name: "checkpoint"}
	l := newWatchList(Config{FenceTable: fences})
	w := l.find([]byte(fences.Schema), []byte(fences.Name))
	w.plans["of unknown columns"] = nil
	l.connected()
	if len(w.plans) != 0 {
		t.Errorf("still known not to be readable: %v", w.plans)
	}
}
