package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/config"
)

// Each of these is one mistake: one line, with the variable, the value and what
// is accepted.
func TestMistakes(t *testing.T) {
	for _, m := range []struct{ environ, line string }{
		{"MODE=push", `ROWFERRY_MODE="push": wanted one of auto, poll, tail`},
		{"MYSQL_TLS=required", `ROWFERRY_MYSQL_TLS="required": wanted one of off, preferred, verify-ca, verify-identity`},
		{"SEND_TIMEOUT=8", `ROWFERRY_SEND_TIMEOUT="8": wanted a duration with its unit`},
		{"SEND_TIMEOUT=-8s", `wanted at least 10ms`},
		{"SEND_BATCH_MAX=many", `ROWFERRY_SEND_BATCH_MAX="many": wanted a whole number from 1 to 100000`},
		{"SEND_BATCH_MAX=0", `wanted a whole number from 1 to 100000`},
		{"SEND_BATCH_BYTES_MAX=1MB", `ROWFERRY_SEND_BATCH_BYTES_MAX="1MB": wanted a size such as 1048576, 64KiB or 1MiB`},
		{"SEND_BATCH_BYTES_MAX=1", `wanted at least 1KiB`},
		{"SERVER_ID=4294967296", `wanted a whole number from 1 to 4294967295`},
		{"SERVER_ID=0", `wanted a whole number from 1 to 4294967295`},
		{"ROCKETMQ_TLS=maybe", `wanted true or false`},
		{"START_AT=yesterday", `wanted now, earliest, a GTID set or FILE:POS`},
		{"NAME=a b", `ROWFERRY_NAME="a b": wanted 1 to 64 letters`},
		{"NAME=" + strings.Repeat("n", 65), `wanted 1 to 64 letters`},
		{"ROCKETMQ_GROUP=a.b", `wanted 1 to 120 letters`},
		{"OUTBOX_TABLES=a.b.c", `"a.b.c" is not of the form table or schema.table`},
		{"OUTBOX_TABLES=,", `no table is named`},
		{"OUTBOX_COLUMNS=color=red", `no role is called "color"`},
		{"OUTBOX_STATUS_VALUES=pending=0", `no value for sent`},
		{"OUTBOX_TIME_ZONE=Local", `wanted auto, a zone name`},
		{"OUTBOX_LEASE=8s", `ROWFERRY_OUTBOX_LEASE=8s must be longer than ROWFERRY_SEND_TIMEOUT=8s`},
		{"OUTBOX_RETENTION=24h LEDGER=none ON_GAP=stop", `ROWFERRY_OUTBOX_RETENTION cannot be had with ROWFERRY_LEDGER=none`},
		{"OUTBOX_RETENTION=24h LEDGER=delete", `ROWFERRY_OUTBOX_RETENTION cannot be had with ROWFERRY_LEDGER=delete`},
		{"ON_DEAD=block LEDGER=none ON_GAP=stop", `ROWFERRY_ON_DEAD=block cannot be had with ROWFERRY_LEDGER=none`},
		{"ON_DEAD=block MODE=tail ON_GAP=stop", `ROWFERRY_ON_DEAD=block cannot be had with`},
		{"ON_DEAD=block MODE=poll", `ROWFERRY_ON_DEAD=block with ROWFERRY_MODE=poll needs ROWFERRY_HA=true`},
		{"LANE_PARK_AFTER=0s", `ROWFERRY_LANE_PARK_AFTER`},
		{"SEND_RATE_MAX=-1", `ROWFERRY_SEND_RATE_MAX="-1": wanted a whole number from 0 to 10000000`},
		{"CATCH_UP=slow", `ROWFERRY_CATCH_UP="slow": wanted one of gentle, fast`},
		{"STORE_DSN=a:b@tcp(x)/", `ROWFERRY_STORE_DSN names no schema`},
		{"STORE_DSN=nonsense", `ROWFERRY_STORE_DSN: not of the form user:password@tcp(host:3306)/schema`},
		{"STORE_DSN=a:b@tcp(x)/d?tls=mine", `unknown config name`},
		{"CHECKPOINT_STORE=redis", `wanted mysql, file:PATH or memory`},
		{"CHECKPOINT_STORE=memory:x", `wanted mysql, file:PATH or memory`},
		{"CHECKPOINT_STORE=memory HA=true", `ROWFERRY_HA=true needs ROWFERRY_CHECKPOINT_STORE=mysql`},
		{"MODE=tail ON_GAP=sweep", `ROWFERRY_ON_GAP=sweep cannot be had`},
		{"LEDGER=none ON_GAP=sweep", `ROWFERRY_ON_GAP=sweep cannot be had`},
		{"MODE=poll LEDGER=none", `ROWFERRY_MODE=poll cannot be had with ROWFERRY_LEDGER=none`},
		{"ROUTE_TOPIC={aggregate_id}", `nothing is called {aggregate_id}; known are {table}`},
		{"ROUTE_TAG={header:}", `nothing is called {header:}`},
		{"ROUTE_KEY=a}b{", `braces do not pair`},
		{"ROUTE_KEY={aggregate_id", `braces do not pair`},
		{"ROUTE_RULES=order.*=:tag", `ROWFERRY_ROUTE_RULES: "order.*=:tag"`},
		{"ROCKETMQ_NAMESRV=mq", `"mq" is not of the form host:port`},
		{"ROCKETMQ_NAMESRV=mq:0", `"mq:0" has no port from 1 to 65535`},
		{"ROCKETMQ_ACCESS_KEY=k", `ROWFERRY_ROCKETMQ_ACCESS_KEY and ROWFERRY_ROCKETMQ_SECRET_KEY go together`},
		{"HTTP_ADDR=8390", `ROWFERRY_HTTP_ADDR: "8390" is not of the form host:port`},
		{"HTTP_TOKEN=Ü", `ROWFERRY_HTTP_TOKEN: wanted visible ASCII`},
		{"UID_PREFIX=\x01", `ROWFERRY_UID_PREFIX: `},
		{"MYSQL_TLS_CA=/nowhere.pem MYSQL_TLS=verify-ca", `ROWFERRY_MYSQL_TLS_CA: open /nowhere.pem`},
		{"MYSQL_TLS_CERT=x", `ROWFERRY_MYSQL_TLS_CERT and ROWFERRY_MYSQL_TLS_KEY go together`},
		{"MYSQL_TLS_SERVER_NAME=db", `wanted verify-identity`},
		{"MYSQL_TLS=verify-identity STORE_DSN=a:b@tcp(x)/d?tls=skip-verify", `says tls=skip-verify itself: give one of them`},
		{"MODUS=auto", `ROWFERRY_MODUS does not exist; the nearest name is ROWFERRY_MODE`},
		{"OUTBOX_TABLE=x", `the nearest name is ROWFERRY_OUTBOX_TABLES`},
		{"MODE_FILE=x", `ROWFERRY_MODE_FILE does not exist: only secrets are read from files; set ROWFERRY_MODE`},
	} {
		environ := []string{dsn}
		for pair := range splitPairs(m.environ) {
			environ = append(environ, "ROWFERRY_"+pair)
		}
		wantMistake(t, environ, m.line)
	}
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN=a:b@tcp(x)/", "ROWFERRY_OUTBOX_TABLES=s.t"}, "CHECKPOINT_STORE=mysql keeps its tables there")
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN=a:b@tcp(x)/", "ROWFERRY_CHECKPOINT_STORE=memory"}, "ROWFERRY_OUTBOX_TABLES=\"outbox\" needs one")
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN=a:b@tcp(x)/ a:b@tcp(y)/", "ROWFERRY_CHECKPOINT_STORE=memory", "ROWFERRY_OUTBOX_TABLES=t"}, "ROWFERRY_OUTBOX_TABLES=\"t\" needs one")
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN=a:b@tcp(x)/s a:b@tcp(y)/s a:b@tcp(z)/other"}, "ROWFERRY_SOURCE_DSN names different schemas")
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN=a:b@tcp(x)/s", "ROWFERRY_STORE_DSN=a:b@tcp(x)/s a:b@tcp(y)/"}, "ROWFERRY_STORE_DSN names different schemas")
}

// splitPairs separates pairs by blanks that stand before NAME=, so that values
// may hold blanks.
func splitPairs(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		var pair string
		for word := range strings.SplitSeq(s, " ") {
			name, _, ok := strings.Cut(word, "=")
			starts := ok && name == strings.ToUpper(name)
			if pair != "" && starts {
				if !yield(pair) {
					return
				}
				pair = word
				continue
			}
			pair = strings.TrimPrefix(pair+" "+word, " ")
		}
		yield(pair)
	}
}

// Mistakes of every kind are reported together, and one that rests on a value
// already reported is not guessed at.
func TestAllMistakesAtOnce(t *testing.T) {
	_, err := config.Load([]string{"ROWFERRY_SOURCE_DSN=nonsense", "ROWFERRY_MODE=push", "ROWFERRY_OUTBOX_LEASE=1s",
		"ROWFERRY_LEDGRE=none", "ROWFERRY_SEND_BATCH_MAX=0", "ROWFERRY_HTTP_TOKEN_FILE=/nowhere", "ROWFERRY_HTTP_ADDR=x",
		"ROWFERRY_SEND_RATE_MAX=x", "ROWFERRY_ON_DEAD=wait", "PATH=/bin"})
	if err == nil {
		t.Fatal("accepted")
	}
	var names []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		names = append(names, strings.TrimPrefix(strings.FieldsFunc(line, func(r rune) bool { return r == '=' || r == ':' || r == ' ' })[0], config.Prefix))
	}
	slices.Sort(names)
	want := []string{"HTTP_ADDR", "HTTP_TOKEN_FILE", "LEDGRE", "MODE", "ON_DEAD", "OUTBOX_LEASE", "SEND_BATCH_MAX", "SEND_RATE_MAX", "SOURCE_DSN"}
	if !slices.Equal(names, want) {
		t.Errorf("reported %v\nwanted   %v\n%v", names, want, err)
	}
	_, err = config.Load([]string{dsn, "ROWFERRY_OUTBOX_LEASE=5s", "ROWFERRY_SEND_TIMEOUT=3"})
	if err == nil || strings.Contains(err.Error(), "longer than") {
		t.Errorf("a guess about a value that is wrong by itself: %v", err)
	}
}

// An empty value is no value, as compose files pass it on.
func TestEmptyMeansDefault(t *testing.T) {
	c := load(t, "ROWFERRY_MODE=", "ROWFERRY_OUTBOX_LEASE=", "ROWFERRY_HTTP_TOKEN_FILE=", "ROWFERRY_LANE_PARK_AFTER=")
	if c.Mode != config.ModeAuto || c.Origin("MODE") != config.FromDefault {
		t.Errorf("MODE is %q from %s", c.Mode, c.Origin("MODE"))
	}
}
