package doctor

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestClockAllowsForTheTimeOnTheWay(t *testing.T) {
	before := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		ahead, roundTrip time.Duration
		want             Status
		found            string
	}{
		{0, 0, OK, "the same to a millisecond"},
		{900 * time.Millisecond, 0, OK, "900ms ahead of us"},
		{1100 * time.Millisecond, 0, Warn, "1.1s ahead of us"},
		{-90 * time.Second, 0, Warn, "1m30s behind us"},
		{1900 * time.Millisecond, 2 * time.Second, OK, "900ms ahead"}, // it may have been asked at the end
		{4 * time.Second, 2 * time.Second, Warn, "3s ahead"},
	} {
		server := before.Add(c.ahead)
		got := judgeClock(float64(server.UnixMicro())/1e6, before, before.Add(c.roundTrip))
		if got.Status != c.want || !strings.Contains(got.Found, c.found) {
			t.Errorf("%s ahead after %s: %+v, want %s, %q", c.ahead, c.roundTrip, got, c.want, c.found)
		}
	}
}

func TestBestIndex(t *testing.T) {
	row := func(index, column string, more ...string) map[string]string {
		r := map[string]string{"key_name": index, "column_name": column, "index_type": "BTREE"}
		for i := 0; i < len(more); i += 2 {
			r[more[i]] = more[i+1]
		}
		return r
	}
	for name, c := range map[string]struct {
		rows  []map[string]string
		index string
		depth int
	}{
		"none":          {nil, "", 0},
		"other order":   {[]map[string]string{row("a", "created_at"), row("a", "status")}, "", 0},
		"status only":   {[]map[string]string{row("a", "status"), row("b", "id")}, "a", 1},
		"the better":    {[]map[string]string{row("a", "status"), row("b", "STATUS"), row("b", "created_at"), row("b", "id")}, "b", 2},
		"in between":    {[]map[string]string{row("a", "status"), row("a", "next"), row("a", "created_at")}, "a", 1},
		"invisible":     {[]map[string]string{row("a", "status", "visible", "NO")}, "", 0},
		"ignored":       {[]map[string]string{row("a", "status", "ignored", "YES")}, "", 0},
		"not for order": {[]map[string]string{row("a", "status", "index_type", "HASH")}, "", 0},
	} {
		if index, depth := bestIndex(c.rows, []string{"status", "created_at"}); index != c.index || depth != c.depth {
			t.Errorf("%s: %q, %d; want %q, %d", name, index, depth, c.index, c.depth)
		}
	}
}

func layout(t *testing.T, names ...string) *outbox.Layout {
	t.Helper()
	var all []outbox.Column
	for i, n := range names {
		all = append(all, outbox.Column{Name: n, Ordinal: i, DataType: "varchar", FullType: "varchar(64)", LengthMax: 64, Charset: "utf8mb4"})
	}
	l, err := outbox.Recognise(outbox.Table{Schema: "shop", Name: "outbox"}, all, map[string]string{"id": "PRIMARY"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestFixedTopics(t *testing.T) {
	plain, typed, topical := layout(t, "id", "payload"), layout(t, "id", "payload", "aggregate_type"), layout(t, "id", "payload", "topic", "aggregate_type")
	for _, c := range []struct {
		rules   string
		topic   string
		layouts []*outbox.Layout
		fixed   string
		unknown string // a part of it
	}{
		{"", "", []*outbox.Layout{plain}, "outbox", ""},
		{"", "", []*outbox.Layout{typed}, "", "shop.outbox.aggregate_type"},
		{"", "", []*outbox.Layout{topical}, "", "shop.outbox.topic"},
		{"", "", []*outbox.Layout{plain, typed}, "outbox", "aggregate_type"},
		{"", "events", []*outbox.Layout{typed}, "events", ""},
		{"", "x-{schema}", []*outbox.Layout{typed}, "", "x-{schema}"},
		{"Order*=orders:created, Pay*=payments,Log*=-,Order2=orders", "", []*outbox.Layout{plain}, "orders payments outbox", ""},
		{"Order*=orders,*=rest,Pay*=never", "x-{schema}", []*outbox.Layout{typed}, "orders rest", ""},
	} {
		var rules config.List
		if err := rules.UnmarshalText([]byte(c.rules)); err != nil {
			t.Fatal(err)
		}
		fixed, unknown := fixedTopics(&config.Config{RouteRules: rules, RouteTopic: c.topic}, c.layouts)
		if strings.Join(fixed, " ") != c.fixed || !strings.Contains(unknown, c.unknown) || (unknown == "") != (c.unknown == "") {
			t.Errorf("rules %q topic %q: %q, %q; want %q, %q", c.rules, c.topic, fixed, unknown, c.fixed, c.unknown)
		}
	}
}

func TestUnfitStatusValues(t *testing.T) {
	texts, numbers := []string{"PENDING", "it's"}, []string{"0", "1"}
	for _, c := range []struct {
		column outbox.Column
		values []string
		want   string
	}{
		{outbox.Column{DataType: "varchar", LengthMax: 20}, texts, ""},
		{outbox.Column{DataType: "varchar", LengthMax: 4}, texts, "PENDING"},
		{outbox.Column{DataType: "enum", LengthMax: 7, FullType: "enum('pending','it''s')"}, texts, ""},
		{outbox.Column{DataType: "enum", LengthMax: 7, FullType: "enum('NEW','it''s')"}, texts, "PENDING"},
		{outbox.Column{DataType: "tinyint"}, numbers, ""},
		{outbox.Column{DataType: "tinyint"}, texts, "PENDING it's"},
	} {
		if got := unfit(c.column, c.values); strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q, want %q", c.column, got, c.want)
		}
	}
}

func TestGrantsGlobally(t *testing.T) {
	for grant, want := range map[string]bool{
		"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`":                  true,
		"GRANT BINLOG MONITOR, REPLICATION SLAVE ON *.* TO `role`":                   true,
		"GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION":        true,
		"GRANT REPLICATION SLAVE ADMIN ON *.* TO `u`@`%`":                            false,
		"GRANT ALL PRIVILEGES ON `shop`.* TO `u`@`%`":                                false,
		"GRANT USAGE ON *.* TO `REPLICATION SLAVE`@`%`":                              false,
		"REVOKE REPLICATION SLAVE ON *.* FROM `u`@`%`":                               false,
		"GRANT `REPLICATION SLAVE` TO `u`@`%`":                                       false,
		"GRANT SELECT ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*REPLICATION SLAVE'": false,
	} {
		if got := grantsGlobally(grant, "REPLICATION SLAVE"); got != want {
			t.Errorf("%s: %v", grant, got)
		}
	}
}

func TestAccountIsQuoted(t *testing.T) {
	for current, want := range map[string]string{
		"ferry@%": "'ferry'@'%'", "a@b@10.0.%": "'a@b'@'10.0.%'", "o'hara@h": "'o''hara'@'h'", "@localhost": "''@'localhost'",
	} {
		if got := quoteAccount(current); got != want {
			t.Errorf("%s: %s, want %s", current, got, want)
		}
	}
}

func TestExpiry(t *testing.T) {
	for _, c := range []struct {
		vars map[string]string
		want int64
	}{
		{map[string]string{"binlog_expire_logs_seconds": "2592000", "binlog_expire_logs_auto_purge": "ON"}, 2592000},
		{map[string]string{"binlog_expire_logs_seconds": "2592000", "binlog_expire_logs_auto_purge": "OFF"}, 0},
		{map[string]string{"binlog_expire_logs_seconds": "0", "expire_logs_days": "0.250000"}, 21600},
		{map[string]string{"expire_logs_days": "3"}, 259200},
		{nil, 0},
	} {
		e := &exam{source: &server{vars: c.vars}}
		if got, err := e.expirySeconds(); err != nil || got != c.want {
			t.Errorf("%v: %d, %v; want %d", c.vars, got, err, c.want)
		}
	}
}

func TestVersionNumbers(t *testing.T) {
	for version, want := range map[string][]int{
		"9.7.4": {9, 7, 4}, "10.11.19-MariaDB-log": {10, 11, 19}, "8.0.mysql_aurora.3": {8, 0}, "": nil,
	} {
		if got := numbers(version); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}

func TestPrint(t *testing.T) {
	long := strings.Repeat("x", columnMax+10)
	r := Report{Checks: []Check{
		{"source", OK, "here", "", ""},
		{"lög", Fail, "OFF", "ON", "SET GLOBAL a = 1;"},
		{"index", OK, long, "never shown", "never shown"},
		{"topic", Skipped, "needs name servers", "", ""},
		{"expiry", Warn, "1h", "24h", "wait"},
	}}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	want := `STATUS   CHECK   FOUND               WANTED  FIX
ok       source  here
fail     lög     OFF                 ON      SET GLOBAL a = 1;
ok       index   ` + long + `
skipped  topic   needs name servers
warn     expiry  1h                  24h     wait

2 ok, 1 warn, 1 fail, 1 skipped
`
	// Without a terminal there are no colours.
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
	if got := paint("fail     lög", Fail); got != "\x1b[31mfail\x1b[0m     lög" {
		t.Errorf("painted: %q", got)
	}
}
