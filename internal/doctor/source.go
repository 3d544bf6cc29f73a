package doctor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/leader"
)

// sourceTasks are the checks of the server whose binlog is read.
func (e *exam) sourceTasks() []task {
	onSource := []string{checkSource}
	tasks := []task{
		{checkSource, nil, func(ctx context.Context) Check { return e.source.check(ctx, e.someTable()) }},
		{"source version", onSource, e.checkVersion},
		{"clock", onSource, e.checkClock},
	}
	if !e.reads() {
		return append(tasks, task{"binlog", nil, func(context.Context) Check {
			return skipped("MODE=poll reads no binlog")
		}})
	}
	withLog := []string{checkSource, checkLogBin}
	return append(tasks,
		task{checkGrants, onSource, e.checkGrants},
		task{checkLogBin, onSource, e.checkLogBin},
		task{"binlog_format", withLog, e.checkFormat},
		task{"binlog_row_image", withLog, e.checkImage},
		task{"binlog_row_metadata", withLog, e.checkMetadata},
		task{"gtid", withLog, e.checkGTID},
		task{"binlog expiry", withLog, e.checkExpiry},
		task{"binlog filters", []string{checkSource, checkLogBin, checkGrants}, e.checkFilters},
		task{checkServerID, []string{checkSource, checkGrants}, e.checkServerID},
		task{"source role", []string{checkSource, checkGrants}, e.checkRole},
		task{"log_replica_updates", []string{checkSource, checkLogBin, checkGrants}, e.checkReplicaLogs},
		task{"commit order", []string{checkSource, checkLogBin, checkGrants}, e.checkCommitOrder},
	)
}

func (e *exam) checkVersion(context.Context) Check {
	version := e.source.vars["version"]
	flavor, atLeast := "MySQL", []int{8, 0}
	if e.source.mariadb {
		flavor, atLeast = "MariaDB", []int{10, 6}
	}
	found := flavor + " " + version
	if slices.Compare(numbers(version), atLeast) < 0 {
		return warn(found, "MySQL 8.0 or MariaDB 10.6 or later: older ones are not tested", "upgrade the server")
	}
	return ok(found)
}

// numbers reads 10.11.19-MariaDB as 10, 11, 19.
func numbers(version string) []int {
	version, _, _ = strings.Cut(version, "-")
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		all = append(all, n)
	}
	return all
}

// checkClock compares clocks. Nothing is decided by them, but lags and ages that
// people look at are off by as much.
func (e *exam) checkClock(ctx context.Context) Check {
	before := time.Now()
	text, err := e.source.text(ctx, "SELECT UNIX_TIMESTAMP(NOW(6))")
	if err != nil {
		return noAnswer("SELECT NOW()", err)
	}
	server, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return noAnswer("SELECT NOW()", err)
	}
	return judgeClock(server, before, time.Now())
}

// judgeClock allows for the time that the question was under way. server is in
// seconds of Unix time.
func judgeClock(server float64, before, after time.Time) Check {
	way := after.Sub(before) / 2
	apart := time.Duration(server*float64(time.Second)) - time.Duration(before.Add(way).UnixNano())
	word := "ahead of"
	if apart < 0 {
		word = "behind"
	}
	found := fmt.Sprintf("the source is %s %s us", apart.Abs().Round(time.Millisecond), word)
	if apart.Abs() < time.Millisecond {
		found = "the same to a millisecond"
	}
	if apart.Abs()-way > time.Second {
		return warn(found, "at most 1s apart, or lag and age are shown wrong", "synchronise both hosts with a time server (chrony or ntpd)")
	}
	return ok(found)
}

// checkGrants asks what needs each right rather than reading grants, so that
// rights held through roles count.
func (e *exam) checkGrants(ctx context.Context) Check {
	if e.source.mariadb {
		return e.checkGrantsMariaDB(ctx)
	}
	var missing []string
	for _, r := range []struct {
		right   string
		queries []string
	}{
		{"REPLICATION SLAVE", []string{"SHOW REPLICAS", "SHOW SLAVE HOSTS"}},
		{"REPLICATION CLIENT", []string{"SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"}},
	} {
		_, err := e.source.either(ctx, r.queries...)
		switch {
		case isNumber(err, errNoRight):
			missing = append(missing, r.right)
		case err != nil && !isNumber(err, errNoBinlog):
			return noAnswer(r.queries[0], err)
		}
	}
	const wanted = "REPLICATION SLAVE, REPLICATION CLIENT"
	if len(missing) > 0 {
		return fail("missing: "+strings.Join(missing, ", "), wanted, e.grantGlobal(wanted))
	}
	return ok(wanted)
}

// checkGrantsMariaDB reads one of the rights from SHOW GRANTS, which includes
// those of active roles: no statement needs it, only the replication protocol.
func (e *exam) checkGrantsMariaDB(ctx context.Context) Check {
	const wanted = "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR"
	rows, err := e.source.db.QueryContext(ctx, "SHOW GRANTS")
	if err != nil {
		return noAnswer("SHOW GRANTS", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	var missing []string
	replicates := false
	for rows.Next() {
		var grant string
		if err := rows.Scan(&grant); err != nil {
			return noAnswer("SHOW GRANTS", err)
		}
		replicates = replicates || grantsGlobally(grant, "REPLICATION SLAVE")
	}
	if err := rows.Err(); err != nil {
		return noAnswer("SHOW GRANTS", err)
	}
	if !replicates {
		missing = append(missing, "REPLICATION SLAVE")
	}
	if _, err := e.source.maps(ctx, "SHOW MASTER STATUS"); isNumber(err, errNoRight) {
		missing = append(missing, "BINLOG MONITOR")
	}
	tail := len(missing) > 0
	if _, err := e.source.maps(ctx, "SHOW ALL SLAVES STATUS"); isNumber(err, errNoRight) {
		missing = append(missing, "SLAVE MONITOR")
	}
	found := "missing: " + strings.Join(missing, ", ")
	switch {
	case tail:
		return fail(found, wanted, e.grantGlobal(wanted))
	case len(missing) > 0:
		return warn(found, wanted+"; without the last a stopped replica is taken for a primary", e.grantGlobal(wanted))
	}
	return ok(wanted)
}

// grantsGlobally reports whether a line of SHOW GRANTS gives a right on *.*.
func grantsGlobally(grant, right string) bool {
	rights, _, global := strings.Cut(grant, " ON *.* TO ")
	rights, isGrant := strings.CutPrefix(rights, "GRANT ")
	if !global || !isGrant {
		return false
	}
	all := strings.Split(rights, ", ")
	return slices.Contains(all, right) || slices.Contains(all, "ALL PRIVILEGES")
}

func (e *exam) grantGlobal(rights string) string {
	return fmt.Sprintf("GRANT %s ON *.* TO %s;", rights, e.source.account)
}

func (e *exam) checkLogBin(context.Context) Check {
	if e.source.on("log_bin") {
		return ok("ON")
	}
	return fail("OFF", "ON", "put log_bin=binlog into the server's configuration file and restart it, or set ROWFERRY_MODE=poll")
}

func (e *exam) checkFormat(context.Context) Check {
	format := e.source.vars["binlog_format"]
	if format == "" || strings.EqualFold(format, "ROW") { // a server without the variable knows nothing else
		return ok("ROW")
	}
	return fail(format, "ROW, or inserted rows are not in the binlog; applications must reconnect after the change", e.source.set("binlog_format", "'ROW'"))
}

func (e *exam) checkImage(context.Context) Check {
	image := e.source.vars["binlog_row_image"]
	if image == "" || strings.HasPrefix(strings.ToUpper(image), "FULL") {
		return ok(image)
	}
	return warn(image, "FULL: columns missing from the image are read by key, a query for each batch of rows", e.source.set("binlog_row_image", "'FULL'"))
}

func (e *exam) checkMetadata(context.Context) Check {
	const wanted = "FULL, so that the binlog names its columns; without, rows written before an ALTER TABLE cannot be told apart for certain"
	metadata, known := e.source.first("binlog_row_metadata")
	switch {
	case !known:
		return warn("the server does not have it", wanted, "upgrade to MySQL 8.0 or MariaDB 10.5")
	case !strings.EqualFold(metadata, "FULL"):
		return warn(metadata, wanted, e.source.set("binlog_row_metadata", "'FULL'"))
	}
	return ok(metadata)
}

func (e *exam) checkGTID(context.Context) Check {
	if e.source.mariadb {
		return ok("domains (MariaDB always has them); gtid_strict_mode=" + e.source.vars["gtid_strict_mode"])
	}
	mode := e.source.vars["gtid_mode"]
	if mode == "ON" {
		return ok("gtid_mode=ON")
	}
	return warn("gtid_mode="+mode, "ON, or positions are files of this one server and are lost in a failover",
		"on every server of the topology, each step everywhere before the next: "+
			"SET PERSIST enforce_gtid_consistency = ON; SET PERSIST gtid_mode = OFF_PERMISSIVE; SET PERSIST gtid_mode = ON_PERMISSIVE; SET PERSIST gtid_mode = ON;")
}

func (e *exam) checkExpiry(context.Context) Check {
	seconds, err := e.expirySeconds()
	switch {
	case err != nil:
		return noAnswer("binlog_expire_logs_seconds", err)
	case seconds == 0:
		return ok("never")
	}
	found := (time.Duration(seconds) * time.Second).String()
	if seconds >= 24*60*60 {
		return ok(found)
	}
	fix := e.source.set("binlog_expire_logs_seconds", "604800")
	if _, known := e.source.first("binlog_expire_logs_seconds"); !known {
		fix = e.source.set("expire_logs_days", "7")
	}
	return warn(found, "at least 24h: a relay that is away for longer loses its position", fix)
}

// expirySeconds returns how long binlog files are kept; 0: for ever.
func (e *exam) expirySeconds() (int64, error) {
	if v, known := e.source.first("binlog_expire_logs_auto_purge"); known && isOff(v) {
		return 0, nil
	}
	if v, known := e.source.first("binlog_expire_logs_seconds"); known && v != "0" {
		return strconv.ParseInt(v, 10, 64)
	}
	v, known := e.source.first("expire_logs_days")
	if !known {
		return 0, nil
	}
	days, err := strconv.ParseFloat(v, 64) // MariaDB takes fractions
	return int64(math.Round(days * 24 * 60 * 60)), err
}

// checkFilters looks for schemas that the server keeps out of its binlog.
func (e *exam) checkFilters(ctx context.Context) Check {
	rows, err := e.source.either(ctx, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
	if err != nil || len(rows) == 0 {
		return noAnswer("SHOW BINARY LOG STATUS", fmt.Errorf("%d rows, error %v", len(rows), err))
	}
	only, ignored := rows[0]["binlog_do_db"], rows[0]["binlog_ignore_db"]
	found := strings.TrimSpace("binlog_do_db=" + only + " binlog_ignore_db=" + ignored)
	if only == "" && ignored == "" {
		return ok("none")
	}
	for _, schema := range e.schemas() {
		if only != "" && !slices.Contains(strings.Split(only, ","), schema) || slices.Contains(strings.Split(ignored, ","), schema) {
			return fail(found, "schema "+schema+" in the binlog", "change binlog_do_db and binlog_ignore_db in the server's configuration file and restart it")
		}
	}
	return ok(found)
}

// checkServerID looks for another client of the same id: two of them throw each
// other off the server, or worse, do not notice.
func (e *exam) checkServerID(ctx context.Context) Check {
	id := strconv.FormatUint(uint64(e.cfg.ServerID), 10)
	fix := fmt.Sprintf("ROWFERRY_SERVER_ID=%d", e.cfg.ServerID%math.MaxUint32+1)
	if e.source.vars["server_id"] == id {
		return fail(id+" is the source's own server_id", "a number that no server or replica uses", fix)
	}
	rows, err := e.source.either(ctx, "SHOW REPLICAS", "SHOW SLAVE HOSTS")
	if isNumber(err, errNoRight) {
		return ok(id + " is not the source's own; who else uses it cannot be seen without REPLICATION MASTER ADMIN")
	}
	if err != nil {
		return noAnswer("SHOW REPLICAS", err)
	}
	for _, r := range rows {
		if r["server_id"] == id {
			return e.judgeTaken(ctx, id, r["host"], fix)
		}
	}
	return ok(id + " is free")
}

// judgeTaken tells the running relay of this name, which holds the leader lock,
// from a stranger.
func (e *exam) judgeTaken(ctx context.Context, id, host, fix string) Check {
	found := id + " is in use"
	if host != "" {
		found += " by " + host
	}
	_, held, err := leader.HolderOf(ctx, e.app.DB, e.app.Schema, e.cfg.Name)
	switch {
	case err == nil && held:
		return ok(found + ": the running relay " + e.cfg.Name)
	case host == "rowferry" && !app.NeedsLock(e.cfg, e.app.Layouts):
		return warn(found, "the running relay "+e.cfg.Name+", which cannot be told apart without its leader lock", fix)
	}
	wanted := "a number that no server or replica uses"
	if host == "rowferry" {
		wanted += "; the server lets go of that of a relay that has just ended within half a minute"
	}
	return fail(found, wanted, fix)
}

// checkRole finds out whether the source is a replica, where marks would make it
// differ from its primary.
func (e *exam) checkRole(ctx context.Context) Check {
	of, err := e.source.replicaOf(ctx)
	switch {
	case err != nil:
		return noAnswer("SHOW REPLICA STATUS", err)
	case of == "":
		return ok("primary")
	}
	found := "replica of " + of
	if len(e.cfg.StoreDSN) == 0 || e.cfg.Store().Addr() == e.cfg.Source().Addr() {
		return fail(found, "a store elsewhere: what is written on a replica makes it differ from its primary",
			"set ROWFERRY_STORE_DSN to the primary: 'user:password@tcp("+of+")/"+e.cfg.Store().Schema()+"'")
	}
	return ok(found + "; the store is " + e.cfg.Store().Addr())
}

func (e *exam) checkReplicaLogs(ctx context.Context) Check {
	of, err := e.source.replicaOf(ctx)
	switch {
	case err != nil:
		return noAnswer("SHOW REPLICA STATUS", err)
	case of == "":
		return skipped("the source is no replica")
	case e.source.on("log_replica_updates", "log_slave_updates"):
		return ok("ON")
	}
	name := "log_replica_updates"
	if _, known := e.source.first(name); !known {
		name = "log_slave_updates"
	}
	return fail("OFF", "ON, or what the replica receives is not in its binlog", "put "+name+"=ON into the server's configuration file and restart it")
}

// checkCommitOrder: a fence proves that all before it was seen only if a replica
// commits in its primary's order.
func (e *exam) checkCommitOrder(ctx context.Context) Check {
	of, err := e.source.replicaOf(ctx)
	switch {
	case err != nil:
		return noAnswer("SHOW REPLICA STATUS", err)
	case of == "":
		return skipped("the source is no replica")
	case e.source.mariadb:
		return ok("kept within a domain by every slave_parallel_mode of MariaDB")
	}
	workers, _ := e.source.first("replica_parallel_workers", "slave_parallel_workers")
	if n, err := strconv.Atoi(workers); err == nil && n <= 1 || e.source.on("replica_preserve_commit_order", "slave_preserve_commit_order") {
		return ok("preserved")
	}
	name := "replica_preserve_commit_order"
	if _, known := e.source.first(name); !known {
		name = "slave_preserve_commit_order"
	}
	return fail(name+"=OFF with "+workers+" workers", "ON, or a sweep can send a row again that the tail has yet to see",
		"STOP REPLICA SQL_THREAD; "+e.source.set(name, "ON")+" START REPLICA SQL_THREAD;")
}
