package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/testservers"
)

// What the relays are told, as far as the checks rely on it.
const (
	schema       = "chaos"
	inflightMax  = 300
	sendTimeout  = 2 * time.Second
	grace        = 2 * time.Second
	messageBytes = 64 << 10
	topicQueues  = 4
)

// world is all that a run is made of.
type world struct {
	o    options
	dir  string
	log  *journal
	disk *disk // nil: the broker shares the machine's

	db, broker, names *server
	brokerServer      testservers.BrokerServer
	ferries           []*ferry
	ways              []*way
	dsn               string // of the database, without a schema
	pool              *sql.DB
	tables            []*table
	writers           *writers

	dbTarget, brokerTarget, namesTarget *target
	ferryTargets, wayTargets            []*target
	running                             sync.WaitGroup // faults
	copiesMax                           atomic.Int64
}

// newWorld starts everything. It returns a world with an error too, to be closed.
func newWorld(ctx context.Context, o options) (*world, error) {
	w := &world{o: o, dir: o.dir}
	if w.dir == "" {
		dir, err := os.MkdirTemp("", "rowferry-chaos-")
		if err != nil {
			return nil, fmt.Errorf("making a folder: %w", err)
		}
		w.dir = dir
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	var err error
	if w.log, err = newJournal(w.dir, o.out); err != nil {
		return nil, err
	}
	if w.o.rowferry == "" {
		if w.o.rowferry, err = build(w.dir); err != nil {
			return w, err
		}
	}
	if err := w.startServers(); err != nil {
		return w, err
	}
	if err := w.makeTables(ctx); err != nil {
		return w, err
	}
	return w, w.startFerries()
}

// build makes the program under test, with the race detector.
func build(dir string) (string, error) {
	path := filepath.Join(dir, "rowferry")
	cmd := exec.Command("go", "build", "-race", "-o", path, "github.com/rowferry/rowferry/cmd/rowferry")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building rowferry: %w\n%s", err, out)
	}
	return path, nil
}

func (w *world) startServers() error {
	var err error
	if w.disk, err = mountDisk(filepath.Join(w.dir, "broker-disk")); err != nil {
		return err
	}
	db := w.newDB()
	names := testservers.NameServer{Dir: filepath.Join(w.dir, "namesrv"), Port: testservers.FreePort(0)}
	w.names = newServer("the name server", names, func(p *testservers.Process) error {
		if err := names.Await(p); err != nil {
			return err
		}
		return w.register()
	})
	w.newBroker(names.Addr())
	w.dbTarget, w.brokerTarget, w.namesTarget = newTarget(), newTarget(), newTarget()
	var starting sync.WaitGroup
	errs := make([]error, 3)
	for i, s := range []*server{w.db, w.names, w.broker} {
		starting.Go(func() { errs[i] = s.start() })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	w.dsn = db.DSN()
	if w.pool, err = openPool(w.dsn); err != nil {
		return err
	}
	return w.openWays(db, names)
}

func newServer(name string, s testservers.Server, await func(*testservers.Process) error) *server {
	return &server{name: name, await: await, launch: func() (*testservers.Process, error) {
		return s.Launch(testservers.Launcher{})
	}}
}

func (w *world) newDB() testservers.DBServer {
	db := testservers.DBServer{Flavor: w.o.flavor, Dir: filepath.Join(w.dir, w.o.flavor), Port: testservers.FreePort(0),
		Flags: []string{"--max-binlog-size=8M", "--server-id=1"}}
	if w.o.tail || w.o.seed%2 == 0 {
		// Otherwise rows that were written before a table was altered cannot always be read
		// from the binlog, and only a sweep finds them.
		db.Flags = append(db.Flags, "--binlog-row-metadata=FULL")
	}
	if w.o.flavor == testservers.FlavorMySQL {
		db.Flags = append(db.Flags, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
	}
	w.db = newServer("the database", db, db.Await)
	return db
}

// newBroker tells clients an address of its own, where the way to it begins.
func (w *world) newBroker(nameServer string) {
	dir := filepath.Join(w.dir, "broker")
	b := testservers.BrokerServer{Dir: dir, Port: testservers.FreePort(testservers.BrokerPortSpan), NameServer: nameServer, Advertised: brokerIP}
	if w.disk != nil {
		b.Conf = []string{
			fmt.Sprintf("mappedFileSizeCommitLog=%d", commitLogBytes),
			"storePathRootDir=" + w.disk.dir, "storePathCommitLog=" + filepath.Join(w.disk.dir, "commitlog"),
		}
	}
	w.brokerServer = b
	w.broker = newServer("the broker", b, func(p *testservers.Process) error {
		if err := awaitBroker(b, p); err != nil {
			return err
		}
		return w.register()
	})
}

// register has the broker tell the name server of itself at once, if both are there; by
// itself it does so every 10 s.
func (w *world) register() error {
	if w.brokerServer.Answers() != nil {
		return nil
	}
	return w.brokerServer.Register()
}

const brokerWay = "broker"

// brokerIP is an address of this machine that no server listens on.
const brokerIP = "127.0.0.2"

// awaitBroker waits until it answers, whether or not its name server is there.
func awaitBroker(b testservers.BrokerServer, p *testservers.Process) error {
	deadline := time.Now().Add(5 * time.Minute)
	for {
		err := b.Answers()
		switch {
		case err == nil:
			return nil
		case !p.Alive():
			return fmt.Errorf("the broker has ended; its log ends:\n%s", p.LogTail())
		case time.Now().After(deadline):
			return fmt.Errorf("the broker does not answer: %w", err)
		}
		pause(context.Background(), 100*time.Millisecond)
	}
}

// openPool's sessions give up on a server that does not answer.
func openPool(dsn string) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("reading the DSN: %w", err)
	}
	cfg.Logger = &mysql.NopLogger{}
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = 5*time.Second, 10*time.Second, 10*time.Second
	cfg.InterpolateParams = true
	cfg.MaxAllowedPacket = 0
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	return sql.OpenDB(connector), nil
}

// openWays gives each relay its own ways to the database and the name server; the way to
// the broker is one for all, since the broker tells everybody the same address.
func (w *world) openWays(db testservers.DBServer, names testservers.NameServer) error {
	damage := "" // what is not encrypted would carry damaged rows as if they were right
	if w.o.flavor == testservers.FlavorMySQL {
		damage = "both"
	}
	open := func(name, listen, upstream, corrupt string) error {
		way, err := newWay(name, listen, upstream, corrupt)
		if err != nil {
			return err
		}
		w.ways = append(w.ways, way)
		w.wayTargets = append(w.wayTargets, newTarget())
		return nil
	}
	for i := range instances {
		if err := open(fmt.Sprintf("database-%d", i), "127.0.0.1:"+freePort(), db.Addr(), damage); err != nil {
			return err
		}
		if err := open(fmt.Sprintf("name-server-%d", i), "127.0.0.1:"+freePort(), names.Addr(), ""); err != nil {
			return err
		}
	}
	_, port, _ := strings.Cut(w.brokerServer.Addr(), ":")
	return open(brokerWay, brokerIP+":"+port, w.brokerServer.Addr(), "down")
}

func freePort() string { return fmt.Sprint(testservers.FreePort(0)) }

func (w *world) startFerries() error {
	var names []string
	for _, t := range w.tables {
		names = append(names, t.name)
	}
	for i := range instances {
		env := map[string]string{
			"SOURCE_DSN":       fmt.Sprintf("root@tcp(%s)/%s", w.ways[2*i].proxy.Listen, schema),
			"ROCKETMQ_NAMESRV": w.ways[2*i+1].proxy.Listen,
			"HTTP_ADDR":        "127.0.0.1:" + freePort(),
			"NAME":             "chaos", "OUTBOX_TABLES": strings.Join(names, ","), "ROUTE_TOPIC": "{table}",
			"LOG_FORMAT": "json", "LOG_LEVEL": "debug", "HA": "true",
			"INFLIGHT_MAX": fmt.Sprint(inflightMax), "INFLIGHT_BYTES_MAX": "4MiB", "SEND_BATCH_MAX": "64",
			"MESSAGE_BYTES_MAX": fmt.Sprint(messageBytes), "SEND_TIMEOUT": sendTimeout.String(),
			"OUTBOX_GRACE": grace.String(), "OUTBOX_POLL_INTERVAL": "2s", "OUTBOX_BATCH_SIZE": "100", "OUTBOX_LEASE": "15s",
			"LANE_PARK_AFTER": "5s", "CHECKPOINT_INTERVAL": "200ms", "SOURCE_LAG_MAX": "20s", "DRAIN_TIMEOUT": "5s",
		}
		if w.o.tail {
			env["MODE"] = "tail"
		}
		f := newFerry(fmt.Sprintf("rowferry-%d", i), w.o.rowferry, filepath.Join(w.dir, fmt.Sprintf("rowferry-%d", i)), env)
		w.ferries = append(w.ferries, f)
		w.ferryTargets = append(w.ferryTargets, newTarget())
		if err := f.start(); err != nil {
			return err
		}
	}
	return w.awaitRelaying()
}

// awaitRelaying returns when one of the relays leads: rows committed before it reads are
// not the tail's.
func (w *world) awaitRelaying() error {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		for _, f := range w.ferries {
			text, err := os.ReadFile(filepath.Join(f.dir, "server.log"))
			if err == nil && strings.Contains(string(text), `"message":"relaying"`) {
				return nil
			}
		}
		pause(context.Background(), 50*time.Millisecond)
	}
	return fmt.Errorf("no relay leads after a minute; the log of one ends:\n%s", w.ferries[0].process().LogTail())
}

// close ends everything. The folder is removed if nothing is wrong with the run, and it
// was not asked for.
func (w *world) close(fine bool) error {
	var errs []error
	servers := []*server{w.db, w.names, w.broker}
	for _, f := range w.ferries {
		servers = append(servers, &f.server)
	}
	for _, s := range servers {
		if s != nil {
			errs = append(errs, s.kill())
		}
	}
	for _, way := range w.ways {
		errs = append(errs, way.cut())
	}
	if w.pool != nil {
		errs = append(errs, w.pool.Close())
	}
	if w.disk != nil {
		errs = append(errs, w.disk.unmount())
	}
	if fine && w.o.dir == "" {
		return errors.Join(append(errs, os.RemoveAll(w.dir))...)
	}
	for _, bulky := range []string{w.o.flavor + "/data", "broker/store", "rowferry"} {
		errs = append(errs, os.RemoveAll(filepath.Join(w.dir, bulky)))
	}
	return errors.Join(errs...)
}
