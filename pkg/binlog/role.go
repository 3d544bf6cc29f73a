package binlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// upstream is how a source that is itself a replica gets its rows.
type upstream struct {
	of      string // host:port; empty: not told
	running bool
	trouble string // the server's own words
}

// String describes it for people; a primary has nothing to say.
func (r *upstream) String() string {
	switch {
	case r == nil:
		return ""
	case r.running:
		return "replica of " + cmp.Or(r.of, "another server")
	}
	text := "replica of " + cmp.Or(r.of, "another server") + " whose replication is not running"
	if r.trouble != "" {
		text += ": " + cut(r.trouble)
	}
	return text
}

// learnRole finds out whether the server is a replica, and refuses one whose binlog
// lacks what it replicates: rows would be missing without a word.
func (s *server) learnRole(ctx context.Context, mariadb bool) error {
	rows, err := s.maps(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'log_replica_updates', 'log_slave_updates')")
	if err != nil {
		return fmt.Errorf("asking whether the server is a replica: %w", err)
	}
	logsCopies := false
	for _, row := range rows {
		switch on := !strings.EqualFold(row["value"], "OFF"); row["variable_name"] {
		case "read_only":
			s.readOnly = on
		default: // old and new name of one variable
			logsCopies = logsCopies || on
		}
	}
	if s.replica, err = s.upstream(ctx, mariadb); err != nil {
		return err
	}
	if s.replica != nil && !logsCopies {
		return &configError{errors.New("it is a " + s.replica.String() + ", and with log_replica_updates=OFF its binlog lacks the rows it replicates; " +
			"start it with log_replica_updates=ON (log_slave_updates on MariaDB and before MySQL 8.0.26), or name the primary in ROWFERRY_SOURCE_DSN")}
	}
	return nil
}

// upstream returns nil for a server that replicates from nobody, or may not be
// asked.
func (s *server) upstream(ctx context.Context, mariadb bool) (*upstream, error) {
	queries := []string{"SHOW REPLICA STATUS", "SHOW SLAVE STATUS"} // the latter before MySQL 8.0.22
	if mariadb {
		queries = []string{"SHOW ALL SLAVES STATUS"}
	}
	var rows []map[string]string
	var err error
	for _, q := range queries {
		if rows, err = s.maps(ctx, q); !isSQLError(err, errParse) {
			break
		}
	}
	switch {
	case isSQLError(err, errNoRight) && mariadb:
		return s.countsReplicas(ctx)
	case isSQLError(err, errNoRight):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("asking whether the server is a replica: %w", err)
	}
	return newUpstream(rows), nil
}

// countsReplicas asks what MariaDB tells without the right SLAVE MONITOR: whether
// replication runs.
func (s *server) countsReplicas(ctx context.Context) (*upstream, error) {
	rows, err := s.maps(ctx, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
	if err != nil {
		return nil, fmt.Errorf("asking whether the server is a replica: %w", err)
	}
	for _, row := range rows {
		if n, err := strconv.Atoi(row["value"]); err == nil && n > 0 {
			return &upstream{running: true}, nil
		}
	}
	return nil, nil
}

// newUpstream reads one row per source the server replicates from, in the words
// of any version. One that stands still makes the whole stand still.
func newUpstream(rows []map[string]string) *upstream {
	var r *upstream
	for _, row := range rows {
		get := func(suffix string) string {
			return cmp.Or(row["replica_"+suffix], row["slave_"+suffix])
		}
		one := &upstream{
			running: get("io_running") == "Yes" && get("sql_running") == "Yes",
			trouble: cmp.Or(row["last_sql_error"], row["last_io_error"]),
		}
		if host := cmp.Or(row["source_host"], row["master_host"]); host != "" {
			one.of = host + ":" + cmp.Or(row["source_port"], row["master_port"])
		}
		if r == nil || r.running {
			r = one
		}
	}
	return r
}

// watchRole looks every now and then whether the source has become a replica, or its
// replication has stopped, until ctx ends. A replica that stands still looks like a
// server where nothing happens.
func (r *Reader) watchRole(ctx context.Context) {
	tick := time.NewTicker(r.cfg.RoleEvery)
	defer tick.Stop()
	shown := r.State().Replication
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !r.askRole(ctx) {
			continue // the stream has troubles of its own to tell, or SQL will answer again
		}
		if now := r.State().Replication; now != shown {
			shown = now
			r.cfg.Logger.Warn().Str("source", cmp.Or(now, "a primary")).Msg("the role of the source has changed")
		}
	}
}

func (r *Reader) askRole(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	srv, _, err := r.openServer(ctx)
	if err != nil {
		return false
	}
	return srv.db.Close() == nil
}
