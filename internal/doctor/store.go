package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/leader"
	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/checkpoint"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// storeTasks are the checks of the server that holds the tables, up to finding
// the outbox tables.
func (e *exam) storeTasks() []task {
	var needs []string
	if len(e.cfg.StoreDSN) == 0 {
		needs = []string{checkSource}
	}
	return []task{
		{checkStore, needs, func(ctx context.Context) Check { return e.store.check(ctx, e.someTable()) }},
		{checkTables, []string{checkStore}, e.checkTables},
	}
}

// ledgerTask needs every table to be recognised.
func (e *exam) ledgerTask() task {
	needs := []string{checkStore, checkTables}
	for _, t := range e.tables {
		needs = append(needs, layoutCheck(t))
	}
	return task{checkLedger, needs, e.checkLedger}
}

// progressTasks are the checks of where progress is kept, once the ledger is
// known.
func (e *exam) progressTasks() []task {
	onStore := []string{checkStore}
	tasks := []task{{"store writable", onStore, e.checkWritable}}
	for _, t := range e.ownTables() {
		tasks = append(tasks, task{"table " + t, onStore, func(ctx context.Context) Check { return e.checkOwnTable(ctx, t) }})
	}
	tasks = append(tasks,
		task{"row image of marks", []string{checkStore, checkLedger}, e.checkMarkImage},
		task{"leader lock", onStore, e.checkLock})
	if e.reads() {
		needs := []string{checkSource, checkLogBin, "binlog_format", checkGrants, checkServerID, checkStore}
		if e.cfg.CheckpointStore.Kind == config.StoreMySQL {
			needs = append(needs, "table "+app.CheckpointTable)
		}
		if e.cfg.CheckpointStore.Kind == config.StoreFile {
			tasks = append(tasks, task{checkFile, nil, e.checkFile})
			needs = append(needs, checkFile)
		}
		tasks = append(tasks, task{"position", needs, e.checkPosition})
	}
	return tasks
}

// schemas are those that the patterns name, with * where a pattern does not say.
func (e *exam) schemas() []string {
	var all []string
	for _, p := range e.cfg.OutboxTables {
		schema, _, dotted := strings.Cut(p, ".")
		if !dotted {
			schema = e.cfg.Store().Schema()
		}
		if !strings.Contains(schema, "*") && !slices.Contains(all, schema) {
			all = append(all, schema)
		}
	}
	return all
}

// someTable is what a right to enter the schema of the connection is best
// granted on: the outbox table, or all if that is a pattern.
func (e *exam) someTable() string {
	schema := e.cfg.Store().Schema()
	for _, p := range e.cfg.OutboxTables {
		if !strings.ContainsAny(p, ".*") {
			return quote(schema) + "." + quote(p)
		}
	}
	return quote(schema) + ".*"
}

// checkTables finds the outbox tables; each gets checks of its own.
func (e *exam) checkTables(ctx context.Context) Check {
	tables, err := outbox.FindTables(ctx, e.app.DB, e.cfg.OutboxTables, e.app.Schema)
	if err != nil {
		return noAnswer("the list of tables", err)
	}
	if len(tables) == 0 {
		return fail("no table matches "+e.cfg.OutboxTables.String(), "at least one table",
			fmt.Sprintf("correct ROWFERRY_OUTBOX_TABLES, or GRANT SELECT ON %s TO %s;", e.someTable(), e.store.account))
	}
	e.tables = tables
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.String()
	}
	return ok(strings.Join(names, ", "))
}

func (e *exam) checkLedger(context.Context) Check {
	kind, err := e.app.LedgerKind()
	if err != nil {
		return fail(clean(err), "a status column in every table", "ROWFERRY_LEDGER=none")
	}
	if kind == config.LedgerNone && e.cfg.Mode == config.ModePoll {
		return fail("no table has a status column, so the ledger is none", "a status column, or LEDGER=delete: with MODE=poll only the table says what is still to be sent",
			"ROWFERRY_LEDGER=delete")
	}
	e.kind = kind
	return ok(kind)
}

// writes reports whether anything is written to the store.
func (e *exam) writes() bool {
	return e.kind != config.LedgerNone || e.cfg.CheckpointStore.Kind == config.StoreMySQL
}

func (e *exam) checkWritable(ctx context.Context) Check {
	if !e.writes() {
		return skipped("nothing is written to the store")
	}
	if format := e.store.vars["binlog_format"]; strings.EqualFold(format, "STATEMENT") && e.store.on("log_bin") && (len(e.cfg.StoreDSN) > 0 || !e.reads()) {
		// On the source this has a check of its own.
		return fail("binlog_format=STATEMENT, which refuses writes under READ COMMITTED", "ROW", e.store.set("binlog_format", "'ROW'"))
	}
	if !e.store.on("read_only") {
		return ok("read_only=OFF")
	}
	found := "read_only=" + e.store.vars["read_only"]
	of, err := e.store.replicaOf(ctx)
	if err == nil && of != "" {
		return fail(found+", replica of "+of, "the primary", "set ROWFERRY_STORE_DSN to the primary: 'user:password@tcp("+of+")/"+e.app.Schema+"'")
	}
	return fail(found, "OFF", "SET GLOBAL read_only = OFF; -- if this is the primary; else set ROWFERRY_STORE_DSN to the primary")
}

// ownTables are rowferry's tables that the configuration needs. As long as the
// ledger is unknown it is taken for one that writes.
func (e *exam) ownTables() []string {
	var names []string
	inStore := e.cfg.CheckpointStore.Kind == config.StoreMySQL
	marks := e.kind != config.LedgerNone
	if inStore || marks && e.reads() {
		names = append(names, app.CheckpointTable) // for the fence, even with the position elsewhere
	}
	if inStore {
		names = append(names, "rowferry_topic")
	}
	if inStore || marks {
		names = append(names, "rowferry_dead")
	}
	return names
}

// ownRights are statements that need the rights on a table of ours; EXPLAIN asks
// for them without doing anything.
var ownRights = map[string][]string{
	app.CheckpointTable: {
		"SELECT 1 FROM %s LIMIT 0", "EXPLAIN INSERT INTO %s (name, `position`) VALUES ('', '')", "EXPLAIN UPDATE %s SET epoch = 0 WHERE name = ''",
	},
	"rowferry_topic": {
		"SELECT 1 FROM %s LIMIT 0", "EXPLAIN INSERT INTO %s (name, topic, queues) VALUES ('', '', '')", "EXPLAIN UPDATE %s SET version = 0 WHERE name = ''",
	},
	"rowferry_dead": {
		"SELECT 1 FROM %s LIMIT 0", "EXPLAIN INSERT INTO %s (name, tbl, id, reason) VALUES ('', '', '', '')", "EXPLAIN UPDATE %s SET attempts = 0 WHERE name = ''",
		"EXPLAIN DELETE FROM %s WHERE name = ''",
	},
}

func (e *exam) checkOwnTable(ctx context.Context, table string) Check {
	rights := "SELECT, INSERT, UPDATE"
	if table == "rowferry_dead" {
		rights += ", DELETE"
	}
	name := quote(e.app.Schema) + "." + quote(table)
	for _, q := range ownRights[table] {
		_, err := e.store.maps(ctx, fmt.Sprintf(q, name))
		switch {
		case err == nil:
		case isNumber(err, errNoTable):
			return fail("missing", "the table", "rowferry migrate up")
		case isNumber(err, errNoRightTable, errNoRightCol):
			return fail(clean(err), rights, e.grantOwn(ctx, table, rights))
		case isNumber(err, errReadOnly, errStatement): // these have checks of their own
		default:
			return noAnswer(fmt.Sprintf(q, table), err)
		}
	}
	return ok(rights)
}

// grantOwn can be executed before the table exists too: CREATE allows that.
func (e *exam) grantOwn(ctx context.Context, table, rights string) string {
	name := quote(e.app.Schema) + "." + quote(table)
	if _, err := e.store.maps(ctx, "SELECT 1 FROM "+name+" LIMIT 0"); err != nil {
		return fmt.Sprintf("GRANT CREATE, %s ON %s TO %s; -- then `rowferry migrate up`, if the table does not exist", rights, name, e.store.account)
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s;", rights, name, e.store.account)
}

// checkMarkImage tries on a connection of its own what marking sessions do.
func (e *exam) checkMarkImage(ctx context.Context) Check {
	switch {
	case e.kind == config.LedgerNone:
		return skipped("ledger none marks nothing")
	case e.cfg.MarkRowImage == mysqlconn.ImageFull:
		return skipped("ROWFERRY_MARK_ROW_IMAGE=full")
	}
	var image string
	if err := e.store.db.QueryRowContext(ctx, "SELECT @@SESSION.binlog_row_image").Scan(&image); err != nil {
		return noAnswer("binlog_row_image", err)
	}
	if strings.EqualFold(image, "MINIMAL") {
		return ok(image)
	}
	return warn(image, "MINIMAL, or every mark puts the payload into the binlog twice (the right also allows sql_log_bin=0, writing past the binlog)",
		e.store.grantRowImage(e.store.account))
}

func (e *exam) checkLock(ctx context.Context) Check {
	if !app.NeedsLock(e.cfg, e.app.Layouts) {
		return skipped("ROWFERRY_HA is off here")
	}
	holder, held, err := leader.HolderOf(ctx, e.app.DB, e.app.Schema, e.cfg.Name)
	switch {
	case err != nil:
		return noAnswer("IS_USED_LOCK", err)
	case !held:
		return ok("free")
	}
	return ok("held by the running relay " + e.cfg.Name + ": " + holder.String())
}

const checkFile = "checkpoint file"

// checkFile looks at the file without touching it or its lock.
func (e *exam) checkFile(ctx context.Context) Check {
	path := e.cfg.CheckpointStore.Path
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil || !folder.IsDir() {
		return fail(fmt.Sprintf("folder %s is not there", filepath.Dir(path)), "a folder in which this user may write", "mkdir -p "+filepath.Dir(path))
	}
	_, found, err := checkpoint.NewFile(path, e.cfg.Name).Load(ctx)
	switch {
	case err != nil:
		return fail(clean(err), "a checkpoint of "+e.cfg.Name, "name another file in ROWFERRY_CHECKPOINT_STORE, or let this user read it")
	case !found:
		return ok(path + " will be made")
	}
	return ok(path)
}

// checkPosition asks whether the source still serves where the relay would begin.
func (e *exam) checkPosition(ctx context.Context) Check {
	from, what := string(e.cfg.StartAt), "ROWFERRY_START_AT="+string(e.cfg.StartAt)
	if e.cfg.CheckpointStore.Kind != config.StoreMemory {
		saved, err := app.ShowCheckpoint(ctx, e.cfg)
		if err != nil {
			return noAnswer("the checkpoint", err)
		}
		if saved.Position != "" {
			from, what = saved.Position, "the checkpoint"
		}
	}
	reader, err := app.NewReader(app.BesideRelay(e.cfg), e.app, app.NewSources(e.cfg), app.ReaderEvents{}, e.log)
	if err != nil {
		return noAnswer("the position", err)
	}
	_, err = reader.Resolve(ctx, from)
	switch {
	case err == nil:
		return ok(what + " is served")
	case !errors.Is(err, binlog.ErrGap):
		return noAnswer("the position of "+what, err)
	case e.cfg.OnGap == config.OnGapSweep && e.kind != config.LedgerNone:
		return warn(what+": "+clean(err), "a position that the source still has; `run` goes on from the present and sweeps what is PENDING", "rowferry checkpoint reset")
	}
	return fail(what+": "+clean(err), "a position that the source still has; rows since then may be unsent, look at them first", "rowferry checkpoint reset")
}
