package testservers_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) {
	rlog.SetLogLevel("fatal")
	testservers.Main(m)
}

func queryString(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	var value string
	if err := db.QueryRow(query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

func TestMySQLKeepsItsDataThroughStopsAndCrashes(t *testing.T) {
	t.Parallel()
	d := testservers.MySQL(t, "--max-allowed-packet=32M")
	db := d.Open(t, "")
	if got := queryString(t, db, "SELECT CONCAT(@@gtid_mode, @@binlog_format, @@max_allowed_packet)"); got != "ONROW33554432" {
		t.Errorf("the server runs with %s", got)
	}
	schema := d.Schema(t)
	d.Exec(t, schema, "CREATE TABLE t (id INT PRIMARY KEY)")
	for i, end := range []func(testing.TB){d.Stop, d.Kill} {
		d.Exec(t, schema, "INSERT INTO t VALUES (?)", i)
		end(t)
		d.Start(t)
		if got := queryString(t, db, "SELECT COUNT(*) FROM "+schema+".t"); got != fmt.Sprint(i+1) {
			t.Errorf("after restart %d the table has %s rows", i, got)
		}
	}
}

func TestFrozenMySQLAnswersAfterItIsThawed(t *testing.T) {
	t.Parallel()
	d := testservers.MySQLNoGTID(t)
	db := d.Open(t, "")
	if got := queryString(t, db, "SELECT @@gtid_mode"); got != "OFF" {
		t.Errorf("gtid_mode is %s", got)
	}
	d.Freeze(t)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := db.PingContext(ctx); err == nil {
		t.Error("a frozen server answered")
	}
	d.Thaw(t)
	queryString(t, db, "SELECT 1")
}

func TestSharedServersAnswerAndSchemasDiffer(t *testing.T) {
	t.Parallel()
	for _, d := range []*testservers.DB{
		testservers.SharedMySQL(t), testservers.SharedMySQLNoGTID(t), testservers.SharedMariaDB(t), testservers.SharedMariaDB1011(t),
	} {
		a, b := d.Schema(t), d.Schema(t)
		if a == b {
			t.Errorf("%s: two schemas have the name %s", d.Flavor(), a)
		}
		d.Exec(t, "", "CREATE USER IF NOT EXISTS app@'%' IDENTIFIED BY 'secret'")
		d.Exec(t, "", "GRANT ALL ON "+a+".* TO app@'%'")
		db, err := sql.Open("mysql", d.UserDSN("app", "secret", a))
		if err != nil {
			t.Fatal(err)
		}
		if got := queryString(t, db, "SELECT DATABASE()"); got != a {
			t.Errorf("%s: connected to schema %s, want %s", d.Flavor(), got, a)
		}
		db.Close()
	}
}

func TestMariaDBRestarts(t *testing.T) {
	for version, start := range map[string]func(testing.TB, ...string) *testservers.DB{
		"11.8.": testservers.MariaDB, "10.11.": testservers.MariaDB1011,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			d.Kill(t)
			d.Start(t, "--binlog-row-image=MINIMAL")
			db := d.Open(t, "")
			if got := queryString(t, db, "SELECT CONCAT(@@gtid_strict_mode, @@binlog_format, @@binlog_row_image)"); got != "ONROWMINIMAL" {
				t.Errorf("the server runs with %s", got)
			}
			if got := queryString(t, db, "SELECT VERSION()"); !strings.HasPrefix(got, version) {
				t.Errorf("the server is %s, want %s", got, version)
			}
		})
	}
}

func newProducer(t *testing.T, b *testservers.Broker) rocketmq.Producer {
	t.Helper()
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{b.NameServer()}),
		producer.WithInstanceName(fmt.Sprint("producer", time.Now().UnixNano())),
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(8*time.Second),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Shutdown() })
	return p
}

func send(p rocketmq.Producer, topic, body string) error {
	m := primitive.NewMessage(topic, []byte(body)).WithTag("tag").WithKeys([]string{"k1", "k2"})
	m.WithProperty("colour", "blue")
	_, err := p.SendSync(context.Background(), m)
	return err
}

func TestReadAllReturnsWhatWasSent(t *testing.T) {
	t.Parallel()
	b := testservers.SharedRocketMQ(t)
	p := newProducer(t, b)
	topic := b.Topic(t, 4)
	const n = 100
	for i := range n {
		if err := send(p, topic, fmt.Sprint("body ", i)); err != nil {
			t.Fatal(err)
		}
	}
	messages := b.ReadAll(t, topic)
	if len(messages) != n {
		t.Fatalf("read %d messages, want %d", len(messages), n)
	}
	seen := map[string]bool{}
	for i, m := range messages {
		seen[string(m.Body)] = true
		if m.Topic != topic || m.Tag != "tag" || m.Keys != "k1 k2" || m.Properties["colour"] != "blue" {
			t.Errorf("message %d is %+v", i, m)
		}
		if since := time.Since(m.StoredAt); since < 0 || since > time.Minute {
			t.Errorf("message %d was stored %v ago", i, since)
		}
		if i > 0 && m.Queue == messages[i-1].Queue && m.Offset != messages[i-1].Offset+1 {
			t.Errorf("offset %d follows %d in queue %d", m.Offset, messages[i-1].Offset, m.Queue)
		}
	}
	if len(seen) != n {
		t.Errorf("read %d different bodies, want %d", len(seen), n)
	}
}

func TestMissingTopicIsNotCreatedBySending(t *testing.T) {
	t.Parallel()
	if err := send(newProducer(t, testservers.SharedRocketMQ(t)), "missing-topic", "body"); err == nil {
		t.Error("the broker took a message for a topic that does not exist")
	}
}

func TestRocketMQKeepsItsMessagesThroughStopsAndCrashes(t *testing.T) {
	t.Parallel()
	b := testservers.RocketMQ(t)
	p := newProducer(t, b)
	topic := b.Topic(t, 1)
	if err := send(p, topic, "before"); err != nil {
		t.Fatal(err)
	}
	b.KillBroker(t)
	b.StartBroker(t)
	b.StopNameServer(t)
	b.StartNameServer(t)
	b.FreezeBroker(t)
	if err := send(p, topic, "frozen"); err == nil {
		t.Error("a frozen broker acknowledged a message")
	}
	b.ThawBroker(t)
	if got := b.Await(t, topic, 1, 10*time.Second); string(got[0].Body) != "before" {
		t.Errorf("the first message is %q", got[0].Body)
	}
	b.StopBroker(t)
}
