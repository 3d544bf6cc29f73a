package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	_ "github.com/go-sql-driver/mysql" // the driver of every pool here

	"github.com/rowferry/rowferry/internal/testservers"
)

const (
	brokerJVM  = "-Xms1g -Xmx1g -XX:+UseSerialGC"
	brokerName = "testbroker"
)

// servers are the private servers of a run, at their durable defaults
// (innodb_flush_log_at_trx_commit=1, sync_binlog=1; the broker flushes
// asynchronously).
type servers struct {
	dsn        string // without a schema
	nameServer string
	broker     testservers.BrokerServer
	db         *sql.DB
	running    []*testservers.Process // database, name server, broker
}

func startServers(dir, mysqlFlags string) (*servers, error) {
	// The tests start RocketMQ for a quick start; here it shall run at full speed.
	if err := os.Setenv("FERRYTEST_JVM", brokerJVM); err != nil {
		return nil, err
	}
	var l testservers.Launcher
	mysqld := testservers.DBServer{
		Flavor: testservers.FlavorMySQL, Dir: filepath.Join(dir, "mysql"), Port: testservers.FreePort(0),
		Flags: []string{
			"--server-id=1", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
			"--innodb-buffer-pool-size=1G", "--innodb-redo-log-capacity=1G",
		},
	}
	names := testservers.NameServer{Dir: filepath.Join(dir, "namesrv"), Port: testservers.FreePort(0)}
	mysqld.Flags = append(mysqld.Flags, strings.Fields(mysqlFlags)...)
	broker := testservers.BrokerServer{
		Dir: filepath.Join(dir, "broker"), Port: testservers.FreePort(testservers.BrokerPortSpan), NameServer: names.Addr(),
		// Full files may go at once when they are asked to; see tidy.
		Conf: []string{"mappedFileSizeCommitLog=1073741824", "fileReservedTime=0"},
	}
	s := &servers{dsn: mysqld.DSN(), nameServer: names.Addr(), broker: broker}
	for _, server := range []testservers.Server{mysqld, names, broker} {
		p, err := server.Launch(l)
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		s.running = append(s.running, p)
		if err := server.Await(p); err != nil {
			return nil, errors.Join(err, s.stop())
		}
	}
	var err error
	if s.db, err = sql.Open("mysql", s.dsn+"?interpolateParams=true&maxAllowedPacket=0"); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.db.SetMaxIdleConns(100) // as many as there are writers: none shall dial while it is measured
	return s, nil
}

// killBroker ends the broker as a crash does.
func (s *servers) killBroker() error { return s.running[2].Kill() }

// startBroker starts it again over its files.
func (s *servers) startBroker() error {
	p, err := s.broker.Launch(testservers.Launcher{})
	if err != nil {
		return err
	}
	s.running[2] = p
	return s.broker.Await(p)
}

func (s *servers) stop() error {
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	for i := len(s.running) - 1; i >= 0; i-- {
		errs = append(errs, s.running[i].Kill())
	}
	return errors.Join(errs...)
}

// ground makes the schema and the topic of a part.
func (b *bench) ground(part string) (schema, topic string, err error) {
	if schema, err = b.schema("bench_" + part); err != nil {
		return "", "", err
	}
	topic, err = b.topic(part)
	return schema, topic, err
}

// schema makes an empty schema with an outbox table and returns its name.
func (b *bench) schema(name string) (string, error) {
	for _, q := range []string{
		"DROP DATABASE IF EXISTS " + name,
		"CREATE DATABASE " + name,
		"CREATE TABLE " + name + `.outbox (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  aggregate_type VARCHAR(64) NOT NULL, aggregate_id VARCHAR(64) NOT NULL, event_type VARCHAR(64) NOT NULL,
  payload TEXT NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'PENDING',
  created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), sent_at DATETIME(6) NULL,
  attempts INT NOT NULL DEFAULT 0, KEY idx_status_created (status, created_at)) ENGINE=InnoDB`,
	} {
		if _, err := b.servers.db.Exec(q); err != nil {
			return "", fmt.Errorf("preparing schema %s: %w", name, err)
		}
	}
	return name, nil
}
