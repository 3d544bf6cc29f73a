// Command services runs a MySQL and a RocketMQ for trying things by hand and for the
// demo. They go on after the command has ended, until `services down`.
//
//	go run ./internal/testservers/services up      starts what does not run yet
//	go run ./internal/testservers/services status  tells what runs
//	go run ./internal/testservers/services env     prints KEY=VALUE lines for a shell
//	go run ./internal/testservers/services down    stops them; the data stay
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/rowferry/rowferry/internal/testservers"
)

// record is what the state file keeps of one server.
type record struct {
	Port      int    `json:"port"` // the same at every start
	PID       int    `json:"pid"`  // 0 before the first start
	StartTime uint64 `json:"start_time"`
}

// state is the content of the state file.
type state struct {
	MySQL      record `json:"mysql"`
	NameServer record `json:"name_server"`
	Broker     record `json:"broker"`
}

// services are the three servers and where their state is kept.
type services struct {
	dir   string
	state state
}

// member is one of the servers.
type member struct {
	name   string
	dir    string
	server testservers.Server
	record *record
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "services:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("services", flag.ContinueOnError)
	dir := flags.String("dir", filepath.Join(".servers", "run", "services"), "folder for data and state")
	if len(args) == 0 {
		return errors.New("which one: up, down, status or env?")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	s, err := load(*dir)
	if err != nil {
		return err
	}
	switch args[0] {
	case "up":
		return s.up(out)
	case "down":
		return s.down(out)
	case "status":
		return s.status(out)
	case "env":
		return s.env(out)
	}
	return fmt.Errorf("unknown command %q: up, down, status or env?", args[0])
}

// load reads the state file; ports are chosen when there is none.
func load(dir string) (*services, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &services{dir: dir}
	content, err := os.ReadFile(s.file())
	if errors.Is(err, os.ErrNotExist) {
		s.state.MySQL.Port = testservers.FreePort(0)
		s.state.NameServer.Port = testservers.FreePort(0)
		s.state.Broker.Port = testservers.FreePort(testservers.BrokerPortSpan)
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state: %w", err)
	}
	if err := json.Unmarshal(content, &s.state); err != nil {
		return nil, fmt.Errorf("reading the state in %s: %w", s.file(), err)
	}
	return s, nil
}

func (s *services) file() string { return filepath.Join(s.dir, "state.json") }

// save writes the state file in one step.
func (s *services) save() error {
	content, err := json.MarshalIndent(s.state, "", "  ")
	if err != nil {
		return err
	}
	half := s.file() + ".new"
	if err := os.WriteFile(half, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("saving the state: %w", err)
	}
	return os.Rename(half, s.file())
}

// members lists the servers in the order in which they start.
func (s *services) members() []member {
	path := func(name string) string { return filepath.Join(s.dir, name) }
	return []member{
		{"name server", path("namesrv"), s.nameServer(), &s.state.NameServer},
		{"broker", path("broker"), testservers.BrokerServer{
			Dir: path("broker"), Port: s.state.Broker.Port, NameServer: s.nameServer().Addr(),
		}, &s.state.Broker},
		{"mysql", path("mysql"), s.mysql(), &s.state.MySQL},
	}
}

func (s *services) nameServer() testservers.NameServer {
	return testservers.NameServer{Dir: filepath.Join(s.dir, "namesrv"), Port: s.state.NameServer.Port}
}

func (s *services) mysql() testservers.DBServer {
	return testservers.DBServer{
		Flavor: testservers.FlavorMySQL, Dir: filepath.Join(s.dir, "mysql"), Port: s.state.MySQL.Port,
		Flags: []string{"--gtid-mode=ON", "--enforce-gtid-consistency=ON"},
	}
}

// process finds the running process of a server.
func (m member) process() (*testservers.Process, bool) {
	return testservers.Attach(m.record.PID, m.record.StartTime, m.dir)
}

// up starts what does not run and waits for all. What was started is recorded even when
// something fails, for down to end it.
func (s *services) up(out io.Writer) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("making the folder for data: %w", err)
	}
	members := s.members()
	processes := make([]*testservers.Process, len(members))
	for i, m := range members {
		p, alive := m.process()
		if !alive {
			started, err := m.server.Launch(testservers.Launcher{Outlive: true})
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			p = started
			m.record.PID, m.record.StartTime = p.PID, p.StartTime
			if err := s.save(); err != nil {
				return err
			}
		}
		processes[i] = p
	}
	if err := awaitAll(members, processes); err != nil {
		return err
	}
	return s.status(out)
}

func awaitAll(members []member, processes []*testservers.Process) error {
	failures := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { failures[i] = m.server.Await(processes[i]) })
	}
	wg.Wait()
	return errors.Join(failures...)
}

// down stops the servers side by side; each is told by PID and start time that it is ours.
// The broker says goodbye to the name server, which it would wait for if that went first.
func (s *services) down(out io.Writer) error {
	members := s.members()
	failures := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		if p, alive := m.process(); alive {
			wg.Go(func() { failures[i] = p.Stop() })
		}
	}
	wg.Wait()
	fmt.Fprintln(out, "stopped; the data stay in", s.dir)
	return errors.Join(failures...)
}

func (s *services) status(out io.Writer) error {
	for _, m := range s.members() {
		p, alive := m.process()
		if alive {
			fmt.Fprintf(out, "%-12s runs on port %d (pid %d)\n", m.name, m.record.Port, p.PID)
		} else {
			fmt.Fprintf(out, "%-12s does not run\n", m.name)
		}
	}
	fmt.Fprintf(out, "%-12s %s\n", "DSN", s.mysql().DSN())
	fmt.Fprintf(out, "%-12s %s\n", "name server", s.nameServer().Addr())
	return nil
}

// env prints the variables that make the tests use these servers where they share them.
func (s *services) env(out io.Writer) error {
	fmt.Fprintf(out, "export FERRYTEST_MYSQL_DSN='%s'\n", s.mysql().DSN())
	fmt.Fprintf(out, "export FERRYTEST_ROCKETMQ_NAMESRV='%s'\n", s.nameServer().Addr())
	return nil
}
