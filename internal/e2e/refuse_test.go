package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

// badRow is a row that can never go, and what last_error must say.
type badRow struct {
	payload, headers, topic string
	reason                  string
}

func TestARowThatCanNeverGoFailsAtOnceAndAlone(t *testing.T) {
	t.Parallel()
	bad := map[string]badRow{
		"too large":     {payload: strings.Repeat("x", 70_000), reason: "refused: too_large"},
		"illegal topic": {topic: "no such topic!", reason: "refused: topic_illegal"},
		"our name":      {headers: `{"outbox_id": "7"}`, reason: "refused: header_clash"},
		"reserved name": {headers: `{"DELAY": "3"}`, reason: "refused: header_reserved"},
		"control char":  {headers: `{"a": "b\u0002TRAN_MSG\u0001true"}`, reason: "refused: control_character"},
		"no object":     {headers: `[1]`, reason: "refused: headers_invalid"},
	}
	for _, mode := range []string{"auto", "poll"} {
		t.Run(mode, func(t *testing.T) {
			s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutRowferry)
			f := s.run("MODE="+mode, "MESSAGE_BYTES_MAX=64KiB", "ROUTE_TOPIC=")
			var good []string
			ids := map[string]string{}
			for _, name := range slices.Sorted(maps.Keys(bad)) {
				good = append(good, s.insertRow(badRow{}))
				ids[name] = s.insertRow(bad[name])
				good = append(good, s.insertRow(badRow{}))
			}
			s.awaitNone("status NOT IN ('SENT', 'FAILED')")
			for name, id := range ids {
				got := s.queryText("SELECT CONCAT(status, ' ', attempts, ' ', COALESCE(last_error, '')) FROM outbox WHERE id = ?", id)
				if !strings.HasPrefix(got, "FAILED 0 "+bad[name].reason) {
					t.Errorf("%s: the row says %q, want %q", name, got, "FAILED 0 "+bad[name].reason)
				}
			}
			s.expectExactly(good)
			f.stopCleanly()
		})
	}
}

// insertRow commits a row of the rowferry layout, by default one that can go.
func (s *stage) insertRow(r badRow) string {
	s.tb.Helper()
	orElse := func(value, other string) string {
		if value == "" {
			return other
		}
		return value
	}
	s.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers, topic) VALUES ('Order', 'same-key', 'Created', ?, ?, ?)",
		orElse(r.payload, "{}"), orElse(r.headers, "{}"), orElse(r.topic, s.topic))
	return s.queryText("SELECT MAX(id) FROM outbox")
}

// The layouts of the literature need no configuration but the DSN and the name
// servers, also where the table has no room for a reason.
func TestBothLayoutsOfTheLiteratureWorkWithoutConfiguration(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{layoutPragmatic, layoutNumeric} {
		for _, mode := range []string{"auto", "poll"} {
			t.Run(layout+"/"+mode, func(t *testing.T) {
				s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layout)
				f := s.run("MODE=" + mode)
				id := s.insert("key")
				m := s.messages(1)[0]
				s.check(m, s.want(id))
				s.awaitSent()
				s.exec(`INSERT INTO outbox (aggregate_id, event_type, payload) VALUES (?, 'Created', '{}')`, "a\x02b")
				bad := s.queryText("SELECT MAX(id) FROM outbox")
				failed := map[string]string{layoutPragmatic: "FAILED", layoutNumeric: "2"}[layout]
				s.await("the row that cannot go is FAILED", func() bool {
					return s.queryText("SELECT status FROM outbox WHERE id = ?", bad) == failed
				})
				reason := s.queryText("SELECT reason FROM rowferry_dead WHERE name = ? AND id = ?", s.schema, bad)
				if !strings.Contains(reason, "control_character") {
					t.Errorf("the reason kept in rowferry_dead is %q", reason)
				}
				s.expectExactly([]string{id})
				f.stopCleanly()
			})
		}
	}
}

// A table that is altered under a running relay: rows from before and after the
// change arrive, and what the new column offers is used.
func TestATableMayBeAlteredUnderARunningRelay(t *testing.T) {
	t.Parallel()
	s := newStage(t, testservers.SharedMySQL(t), testservers.SharedRocketMQ(t), layoutPragmatic)
	f := s.run("MESSAGE_BYTES_MAX=4KiB")
	good := []string{s.insert("before")}
	s.awaitSent()
	s.exec("ALTER TABLE outbox ADD COLUMN last_error VARCHAR(200) NULL FIRST")
	good = append(good, s.insert("after"))
	s.awaitSent()
	s.exec("INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('after', 'TooLarge', JSON_OBJECT('x', REPEAT('x', 5000)))")
	s.awaitNone("status NOT IN ('SENT', 'FAILED')")
	if got := s.queryText("SELECT last_error FROM outbox WHERE status = 'FAILED'"); !strings.HasPrefix(got, "refused: too_large") {
		t.Errorf("the new column holds %q", got)
	}
	s.expectExactly(good)
	f.stopCleanly()
}
