package binlog

import "testing"

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
