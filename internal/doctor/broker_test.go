package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/doctor"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
)

func TestTopicsAndNameServers(t *testing.T) {
	p := newPatient(t, testservers.SharedMySQL(t))
	b := testservers.SharedRocketMQ(t)
	topic := b.Topic(t, 4)
	dead := fmt.Sprintf("127.0.0.1:%d", testservers.FreePort(0))
	look := func(more map[string]string) doctor.Report {
		env := maps.Clone(p.env)
		delete(env, "SINK")
		env["ROCKETMQ_NAMESRV"] = b.NameServer()
		env["ROUTE_RULES"] = "Order*=" + topic
		maps.Copy(env, more)
		return examine(t, env)
	}

	good := p.named(look(nil), doctor.OK)
	if got := good["topic "+topic].Found; got != "4 queues" {
		t.Errorf("the topic has %q, want 4 queues", got)
	}
	if got := good["name servers"].Found; got != "1 of 1 answer" {
		t.Errorf("name servers: %q", got)
	}
	if rows := queryInt(t, p, "SELECT COUNT(*) FROM rowferry_topic"); rows != 0 {
		t.Errorf("doctor has frozen %d queue lists", rows)
	}
	if s := p.named(look(nil), doctor.Skipped)["topics"]; !strings.Contains(s.Found, "known only from the events") {
		t.Errorf("topics named by a column: %+v", s)
	}

	wantOnly(t, p, look(map[string]string{"ROCKETMQ_NAMESRV": dead}), "name servers", dead, "ROWFERRY_ROCKETMQ_NAMESRV", "topic "+topic)
	half := p.named(look(map[string]string{"ROCKETMQ_NAMESRV": dead + "," + b.NameServer()}), doctor.Warn)["name servers"]
	if !strings.HasPrefix(half.Found, "1 of 2 answer; "+dead) || half.Fix == "" {
		t.Errorf("one of two name servers is away: %+v", half)
	}

	missing := topic + "-missing"
	wantOnly(t, p, look(map[string]string{"ROUTE_TOPIC": missing}), "topic "+missing, "no such topic", "mqadmin updateTopic -n "+b.NameServer()+" -c CLUSTER -t "+missing)
	created := p.named(look(map[string]string{"ROUTE_TOPIC": missing, "ROCKETMQ_CREATE_TOPICS": "true"}), doctor.OK)["topic "+missing]
	if !strings.Contains(created.Found, "creates it") {
		t.Errorf("a topic that run creates: %+v", created)
	}
	wantOnly(t, p, look(map[string]string{"ROUTE_TOPIC": missing}), "topic "+missing, "no such topic", "mqadmin") // not created by looking

	p.freeze(t, topic, queues(t, b, topic)[:2])
	if got := p.named(look(nil), doctor.OK)["topic "+topic].Found; got != "4 queues, 2 of them frozen and in use" {
		t.Errorf("fewer frozen than live: %q", got)
	}
	p.freeze(t, topic, []string{"nobody:7"})
	wantOnly(t, p, look(nil), "topic "+topic, "nobody:7", "rowferry topics refreeze "+topic)
}

// queues are the names of a topic's queues.
func queues(t *testing.T, b *testservers.Broker, topic string) []string {
	t.Helper()
	sink, err := rocketmq.New(rocketmq.Config{NameServers: []string{b.NameServer()}, Group: "doctor-test", Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close() //nolint:errcheck // nothing was sent
	all, err := sink.LiveQueues(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (p *patient) freeze(t *testing.T, topic string, queues []string) {
	t.Helper()
	text, err := json.Marshal(queues)
	if err != nil {
		t.Fatal(err)
	}
	p.db.Exec(t, p.schema, "REPLACE INTO rowferry_topic (name, topic, queues) VALUES ('rowferry', ?, ?)", topic, string(text))
}

func queryInt(t *testing.T, p *patient, query string) (n int) {
	t.Helper()
	if err := p.db.Open(t, p.schema).QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWhatTheRunningRelayHoldsIsFine(t *testing.T) {
	p := newPatient(t, testservers.SharedMySQL(t))
	const id = 4711
	p.env["SERVER_ID"] = fmt.Sprint(id)
	p.readAs(t, id)

	wantOnly(t, p, examine(t, p.env), "server id", "4711 is in use by rowferry", "ROWFERRY_SERVER_ID=4712", "position")
	p.env["HA"] = "false"
	if w := p.named(examine(t, p.env), doctor.Warn)["server id"]; !strings.Contains(w.Wanted, "without its leader lock") {
		t.Errorf("without a lock: %+v", w)
	}
	delete(p.env, "HA")

	lock, err := leader.TryAcquire(t.Context(), p.db.Open(t, p.schema), p.schema, "rowferry", zerolog.Nop())
	if err != nil || lock == nil {
		t.Fatalf("lock %v, error %v", lock, err)
	}
	defer func() {
		if err := lock.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	r := examine(t, p.env)
	good := p.named(r, doctor.OK)
	for name, part := range map[string]string{"server id": "the running relay rowferry", "leader lock": "held by the running relay rowferry: connection "} {
		if !strings.Contains(good[name].Found, part) {
			t.Errorf("%s: %+v, want ok with %q", name, good[name], part)
		}
	}
	if !r.OK {
		t.Errorf("fails beside the running relay: %+v", p.named(r, doctor.Fail))
	}
}

// readAs reads the binlog as the relay does, and returns when the server knows
// this client.
func (p *patient) readAs(t *testing.T, id uint32) {
	t.Helper()
	dsn, err := mysql.ParseDSN(p.db.DSN(p.schema))
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan struct{}, 1)
	reader, err := binlog.New(binlog.Config{DSN: dsn, ServerID: id, OnConnect: func() { connected <- struct{}{} }, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	from, err := reader.Resolve(t.Context(), "now")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- reader.Run(ctx, from, func(context.Context, outbox.Batch) error { return nil })
	}()
	t.Cleanup(func() { stop(); <-done })
	select {
	case <-connected:
	case err := <-done:
		t.Fatalf("the reader ended: %v", err)
	}
}

// TestRightsHeldThroughRolesCount: doctor tries rights instead of reading them.
func TestRightsHeldThroughRolesCount(t *testing.T) {
	flavors(t, func(t *testing.T, d *testservers.DB) {
		p := newPatient(t, d)
		role := "'r" + strings.TrimPrefix(p.user, "'u")
		global, defaults := "REPLICATION SLAVE, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN", "SET DEFAULT ROLE "+role+" TO "+p.user
		if d.Flavor() == testservers.FlavorMariaDB {
			role, _, _ = strings.Cut(role, "@")
			global, defaults = "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, BINLOG ADMIN", "SET DEFAULT ROLE "+role+" FOR "+p.user
		}
		p.exec(t, "REVOKE ALL PRIVILEGES, GRANT OPTION FROM "+p.user+"; CREATE ROLE "+role+"; GRANT "+global+" ON *.* TO "+role+
			"; GRANT SELECT, INSERT, UPDATE, DELETE ON `"+p.schema+"`.* TO "+role+"; GRANT "+role+" TO "+p.user+"; "+defaults)
		t.Cleanup(func() { p.exec(t, "DROP ROLE "+role) })
		if r := examine(t, p.env); !r.OK {
			t.Errorf("rights through a role: %+v", p.named(r, doctor.Fail))
		}
	})
}
