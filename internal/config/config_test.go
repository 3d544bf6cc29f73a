package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"time"

	"pgregory.net/rapid"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/outbox"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

const dsn = "ROWFERRY_SOURCE_DSN=app:geheim@tcp(db:3306)/shop"

func load(t *testing.T, environ ...string) *config.Config {
	t.Helper()
	c, err := config.Load(append([]string{dsn}, environ...))
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	c := load(t)
	if c.Mode != config.ModeAuto || c.SendTimeout != 8*time.Second || c.InflightBytesMax != 64<<20 ||
		c.OutboxPollInterval != 5*time.Minute || c.OutboxGrace != 30*time.Second || c.OnGap != config.OnGapSweep ||
		c.CheckpointStore.Kind != config.StoreMySQL || !c.OutboxTimeZone.Auto() || c.Ledger != "" ||
		c.RocketMQGroup != "rowferry" || c.RocketMQNameServers.String() != "127.0.0.1:9876" ||
		c.OutboxTables.String() != "outbox" || c.RouteKey != "{aggregate_id}" {
		t.Errorf("wrong defaults: %+v", c)
	}
	if c.ServerID == 0 || c.ServerID != load(t).ServerID {
		t.Errorf("ServerID is %d, then %d: wanted one that stays", c.ServerID, load(t).ServerID)
	}
	if c.ServerID == load(t, "ROWFERRY_NAME=other").ServerID {
		t.Error("two names on one host have one server id")
	}
	if got := c.Store(); got.Schema() != "shop" || got.Addr() != "db:3306" {
		t.Errorf("the store is %s: wanted the source", got)
	}
}

// What depends on other values changes only where the operator did not choose.
func TestDerivedDefaults(t *testing.T) {
	poll := load(t, "ROWFERRY_MODE=poll")
	if poll.OutboxPollInterval != time.Second || poll.OutboxGrace != 0 {
		t.Errorf("MODE=poll: interval %s, grace %s", poll.OutboxPollInterval, poll.OutboxGrace)
	}
	chosen := load(t, "ROWFERRY_MODE=poll", "ROWFERRY_OUTBOX_POLL_INTERVAL=7s", "ROWFERRY_OUTBOX_GRACE=3s")
	if chosen.OutboxPollInterval != 7*time.Second || chosen.OutboxGrace != 3*time.Second {
		t.Errorf("MODE=poll overrides what was chosen: %s, %s", chosen.OutboxPollInterval, chosen.OutboxGrace)
	}
	for _, setting := range []string{"ROWFERRY_MODE=tail", "ROWFERRY_LEDGER=none"} {
		if c := load(t, setting); c.OnGap != config.OnGapStop {
			t.Errorf("%s: ON_GAP is %s", setting, c.OnGap)
		}
	}
	if c := load(t, "ROWFERRY_NAME=north"); c.RocketMQGroup != "north" {
		t.Errorf("the group is %q: wanted the name", c.RocketMQGroup)
	}
}

func TestValues(t *testing.T) {
	c := load(t, "ROWFERRY_OUTBOX_TABLES=outbox, shop.*_events", "ROWFERRY_OUTBOX_COLUMNS=payload=body,event_type=kind",
		"ROWFERRY_OUTBOX_STATUS_VALUES=pending=0,sent=1,failed=2", "ROWFERRY_OUTBOX_TIME_ZONE=+05:30",
		"ROWFERRY_CHECKPOINT_STORE=file:/var/lib/rowferry/position", "ROWFERRY_SEND_BATCH_BYTES_MAX=64KiB",
		"ROWFERRY_ROCKETMQ_NAMESRV=mq-0:9876,mq-1:9876", "ROWFERRY_ROUTE_RULES=order.*=orders:o, noise.*=-",
		"ROWFERRY_START_AT=mysql-bin.000003:157", "ROWFERRY_STORE_DSN=w:pw@tcp(primary)/shop", "ROWFERRY_SERVER_ID=4294967295")
	if !reflect.DeepEqual(c.OutboxTables, config.Patterns{"outbox", "shop.*_events"}) {
		t.Errorf("tables %q", c.OutboxTables)
	}
	if c.OutboxColumns[outbox.RolePayload] != "body" || c.OutboxColumns[outbox.RoleEventType] != "kind" {
		t.Errorf("columns %v", c.OutboxColumns)
	}
	if c.OutboxStatusValues[outbox.Failed] != "2" {
		t.Errorf("status values %v", c.OutboxStatusValues)
	}
	if _, offset := time.Now().In(c.OutboxTimeZone.Location()).Zone(); offset != 19800 {
		t.Errorf("offset %d s", offset)
	}
	if c.CheckpointStore != (config.CheckpointStore{Kind: "file", Path: "/var/lib/rowferry/position"}) {
		t.Errorf("checkpoint store %v", c.CheckpointStore)
	}
	if c.SendBatchBytesMax != 64<<10 || len(c.RocketMQNameServers) != 2 || c.Store().Addr() != "primary:3306" || c.ServerID != 1<<32-1 {
		t.Errorf("wrong values: %+v", c)
	}
	if !reflect.DeepEqual(c.RouteRules, config.List{"order.*=orders:o", "noise.*=-"}) {
		t.Errorf("rules %q", c.RouteRules)
	}
}

func TestStartAt(t *testing.T) {
	const uuid = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
	for _, good := range []string{"now", "earliest", "binlog.000001:4", "0-1-4711", "0-1-4711,1-2-3",
		uuid + ":1-5", uuid + ":1-5:7:9-11", uuid + ":1, " + uuid + ":2", uuid + ":blue:1-5"} {
		if c := load(t, "ROWFERRY_START_AT="+good); string(c.StartAt) != good {
			t.Errorf("START_AT=%s became %s", good, c.StartAt)
		}
	}
}

func TestSources(t *testing.T) {
	if _, err := config.Load(nil); err == nil || !strings.Contains(err.Error(), "ROWFERRY_SOURCE_DSN is required") {
		t.Errorf("without a source: %v", err)
	}
	c, err := config.Load([]string{"ROWFERRY_HTTP_ADDR=[::1]:1"}, config.SourceOptional())
	if err != nil || !c.Source().IsZero() || !c.HTTPLoopback() {
		t.Errorf("for a client of the API: %v, %+v", err, c)
	}
	if c := load(t, "ROWFERRY_HTTP_ADDR=:8390"); c.HTTPLoopback() {
		t.Error(":8390 counts as loopback")
	}
}

func TestKubernetesNamesAreIgnored(t *testing.T) {
	for _, name := range []string{"PORT", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8390_TCP",
		"PORT_8390_TCP_PROTO", "PORT_8390_UDP_ADDR", "METRICS_SERVICE_HOST", "METRICS_PORT_9_SCTP_PORT"} {
		load(t, "ROWFERRY_"+name+"=tcp://10.0.0.1:8390")
	}
}

func TestSecretFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(path, []byte("app:file pw?@tcp(db)/shop\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load([]string{"ROWFERRY_SOURCE_DSN_FILE=" + path}); err == nil || strings.Contains(err.Error(), "pw?") {
		t.Errorf("a blank in a password: %v", err)
	}
	if err := os.WriteFile(path, []byte("app:filepw@tcp(db)/shop\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load([]string{"ROWFERRY_SOURCE_DSN_FILE=" + path})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.MySQLConfig(c.Source())
	if err != nil || m.Passwd != "filepw" || c.Origin("SOURCE_DSN") != config.FromFile {
		t.Errorf("password %q, origin %s, error %v", m.Passwd, c.Origin("SOURCE_DSN"), err)
	}
	wantMistake(t, []string{dsn, "ROWFERRY_SOURCE_DSN_FILE=" + path}, "ROWFERRY_SOURCE_DSN and ROWFERRY_SOURCE_DSN_FILE are both set")
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN_FILE=" + path + "x"}, "no such file")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantMistake(t, []string{"ROWFERRY_SOURCE_DSN_FILE=" + path}, "the file is empty")
}

// A list is read again for every connection where it came from a file, and a password
// may hold anything but a blank.
func TestListsOfServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsn")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("app:p@ss:w/rd(1)?x#%=@tcp(one)/shop  \n app:%20'\"\\é@tcp(two:3307)/shop\n")
	c, err := config.Load([]string{"ROWFERRY_SOURCE_DSN_FILE=" + path, "ROWFERRY_MYSQL_TLS=verify-identity"})
	if err != nil {
		t.Fatal(err)
	}
	want := func(list func() ([]*mysql.Config, error), servers ...string) {
		t.Helper()
		configs, err := list()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range configs {
			got = append(got, m.Addr+" "+m.Passwd+" "+m.TLS.ServerName)
		}
		if !slices.Equal(got, servers) {
			t.Errorf("got %q, want %q", got, servers)
		}
	}
	want(c.SourceConfigs, "one:3306 p@ss:w/rd(1)?x#%= one", `two:3307 %20'"\é two`)
	want(c.StoreConfigs, "one:3306 p@ss:w/rd(1)?x#%= one", `two:3307 %20'"\é two`)
	write("app:rotated@tcp(two:3307)/shop")
	want(c.SourceConfigs, "two:3307 rotated two")
	want(c.StoreConfigs, "two:3307 rotated two")
	write("half-written:secret")
	if _, err := c.SourceConfigs(); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "SOURCE_DSN_FILE") {
		t.Errorf("a damaged file gave %v", err)
	}

	c = load(t, "ROWFERRY_STORE_DSN=a:b@tcp(x)/d a:b@tcp(y)/d", "ROWFERRY_MYSQL_TLS=verify-identity")
	want(c.SourceConfigs, "db:3306 geheim db")
	want(c.StoreConfigs, "x:3306 b x", "y:3306 b y")
}

// wantMistake wants exactly one line, which holds every piece of text.
func wantMistake(t *testing.T, environ []string, pieces ...string) {
	t.Helper()
	_, err := config.Load(environ)
	if err == nil {
		t.Errorf("%q was accepted", environ)
		return
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 1 {
		t.Errorf("%q: wanted one mistake, got:\n%v", environ, err)
	}
	for _, piece := range pieces {
		if !strings.Contains(err.Error(), piece) {
			t.Errorf("%q: wanted %q in: %v", environ, piece, err)
		}
	}
}

func TestPrint(t *testing.T) {
	c := load(t, "ROWFERRY_HTTP_TOKEN=topsecret", "ROWFERRY_MODE=poll")
	var table, document bytes.Buffer
	if err := c.PrintTable(&table); err != nil {
		t.Fatal(err)
	}
	if err := c.PrintJSON(&document); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ROWFERRY_HTTP_TOKEN *** environment", "ROWFERRY_SOURCE_DSN app:***@tcp(db:3306)/shop environment",
		"ROWFERRY_MODE poll environment", "ROWFERRY_OUTBOX_POLL_INTERVAL 1s default", "ROWFERRY_OUTBOX_COLUMNS (recognised) default",
		"ROWFERRY_MESSAGE_BYTES_MAX 4MiB default"} {
		if !strings.Contains(strings.Join(strings.Fields(table.String()), " "), line) {
			t.Errorf("wanted %q in\n%s", line, table.String())
		}
	}
	var got struct{ Settings []config.Effective }
	if err := json.Unmarshal(document.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Settings, c.Effective()) {
		t.Errorf("the JSON differs: %v", got.Settings)
	}
}

// Whatever is wrong with a connection string or a key, and however the
// configuration is printed, the secret in it does not show.
func TestSecretsNeverShow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := "Q" + rapid.StringMatching(`[a-z0-9/@:?&=()%]{0,6}`).Draw(t, "head") + "ZQXJ"
		form := rapid.SampledFrom([]string{"app:%s@tcp(db:3306)/shop", "app:%s/shop", "app:%s@tcp(db:3306)", "%s@tcp(db)/shop", "%s",
			"app:%s@tcp(db/shop", "app:%s@udp/shop", "app:%s@tcp(db)/shop?parseTime=x", "app:%s@tcp(db)/shop?tls=x", "app:%s@/", "app:p@tcp(db)/%s"}).Draw(t, "form")
		environ := []string{"ROWFERRY_SOURCE_DSN=" + fmt.Sprintf(form, secret), "ROWFERRY_HTTP_TOKEN=" + secret,
			"ROWFERRY_ROCKETMQ_ACCESS_KEY=" + secret, "ROWFERRY_ROCKETMQ_SECRET_KEY=" + secret}
		if rapid.Bool().Draw(t, "with a key") {
			environ = append(environ, "ROWFERRY_MYSQL_TLS_KEY="+secret, "ROWFERRY_MYSQL_TLS_CERT=-----BEGIN ")
		}
		c, err := config.Load(environ)
		if err != nil {
			if strings.Contains(err.Error(), "ZQXJ") {
				t.Fatalf("the error shows it: %v", err)
			}
			return
		}
		if form == "app:p@tcp(db)/%s" || form == "%s@tcp(db)/shop" {
			return // it is the schema, or begins the user, and no secret
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "%v %+v %#v %v\n", c, c, c, c.Effective())
		j, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String()+string(j), "ZQXJ") {
			t.Fatalf("print of %s shows it", environ[0])
		}
	})
}

func TestDocsAreUpToDate(t *testing.T) {
	const path = "../../docs/configuration.md"
	var b bytes.Buffer
	if err := config.Docs(&b); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Error("docs/configuration.md is out of date; run: go test ./internal/config -run TestDocsAreUpToDate -update")
	}
}

// The names that people rely on. A name may be added; changing or dropping one
// breaks installations.
const promised = `SOURCE_DSN STORE_DSN MYSQL_TLS MYSQL_TLS_CA MYSQL_TLS_CERT MYSQL_TLS_KEY MYSQL_TLS_SERVER_NAME NAME SERVER_ID
MODE START_AT SOURCE_LAG_MAX ON_GAP OUTBOX_TABLES OUTBOX_COLUMNS OUTBOX_STATUS_VALUES OUTBOX_TIME_ZONE OUTBOX_POLL_INTERVAL
OUTBOX_GRACE OUTBOX_BATCH_SIZE OUTBOX_MAX_ATTEMPTS OUTBOX_LEASE OUTBOX_RETENTION LEDGER ON_DEAD ROUTE_TOPIC ROUTE_TAG ROUTE_RULES
ROUTE_KEY LANE_PARK_AFTER SEND_RATE_MAX CATCH_UP SINK ROCKETMQ_NAMESRV ROCKETMQ_GROUP ROCKETMQ_ACCESS_KEY ROCKETMQ_SECRET_KEY ROCKETMQ_TLS
ROCKETMQ_CREATE_TOPICS ROCKETMQ_TOPIC_QUEUES ROCKETMQ_NON_OK SEND_TIMEOUT SEND_BATCH_MAX SEND_BATCH_BYTES_MAX MESSAGE_BYTES_MAX
INFLIGHT_MAX INFLIGHT_BYTES_MAX MARK_ROW_IMAGE UID_PREFIX CHECKPOINT_STORE CHECKPOINT_INTERVAL HA HTTP_ADDR HTTP_TOKEN DRAIN_TIMEOUT
LOG_LEVEL LOG_FORMAT`

func TestPromisedNames(t *testing.T) {
	have := map[string]bool{}
	for _, e := range load(t).Effective() {
		have[strings.TrimPrefix(e.Name, config.Prefix)] = true
	}
	for name := range strings.FieldsSeq(promised) {
		if !have[name] {
			t.Errorf("%s is missing", name)
		}
		delete(have, name)
	}
	if len(have) > 0 {
		t.Errorf("these are not in the list of promised names: %v", have)
	}
}
