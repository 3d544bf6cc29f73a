// Package doctor is the preflight: it looks at everything that `rowferry run`
// will rely on and says, line by line, what is well, what is wrong and what
// mends it.
//
// It promises to change nothing: no row, no lock, no topic, no frozen queue
// list. It reports causes rather than consequences: what cannot be judged because
// something before it failed is "skipped: needs X". A lock or a server id that
// the running relay of the same NAME holds is fine. Passwords appear nowhere.
package doctor

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Status is the verdict of a check.
type Status string

// The verdicts.
const (
	OK      Status = "ok"
	Warn    Status = "warn"    // works, but not as well as it could
	Fail    Status = "fail"    // `run` will not work, or not safely
	Skipped Status = "skipped" // cannot be judged, or does not apply
)

// Check is one line of the report.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`            // what is there; why, if skipped
	Wanted string `json:"wanted,omitempty"` // what should be there instead
	Fix    string `json:"fix,omitempty"`    // SQL, setting or command that mends it; always set for Fail
}

// Report is the outcome of Run.
type Report struct {
	Name   string  `json:"name"`   // of the relay
	OK     bool    `json:"ok"`     // nothing fails; there may be warnings
	Checks []Check `json:"checks"` // in the order they were made
}

// Misconfigured reports whether the environment alone is wrong: nothing else was
// looked at then.
func (r Report) Misconfigured() bool {
	c, ok := r.find(checkConfiguration)
	return ok && c.Status == Fail
}

// Passed reports whether nothing fails and, if strict, nothing warns.
func (r Report) Passed(strict bool) bool {
	for _, c := range r.Checks {
		if c.Status == Fail || strict && c.Status == Warn {
			return false
		}
	}
	return true
}

func (r Report) find(name string) (Check, bool) {
	for _, c := range r.Checks {
		if c.Name == name {
			return c, true
		}
	}
	return Check{}, false
}

// Names of checks that others need.
const (
	checkConfiguration = "configuration"
	checkSource        = "source"
	checkGrants        = "replication grants"
	checkLogBin        = "log_bin"
	checkServerID      = "server id"
	checkStore         = "store"
	checkTables        = "outbox tables"
	checkLedger        = "ledger"
	checkNameServers   = "name servers"
)

// checkTimeout bounds one check; a server that does not answer costs it once,
// because what depends on it is then skipped.
const checkTimeout = 15 * time.Second

// task is one check before it is made.
type task struct {
	name  string
	needs []string // names of checks that must not have failed or been skipped
	look  func(context.Context) Check
}

// exam is one examination: what is known so far.
type exam struct {
	cfg *config.Config
	log zerolog.Logger

	source *server
	store  *server
	app    *app.Store
	tables []outbox.Table
	kind   string // ledger in force, once the tables are known

	report Report
}

// Run makes all checks of a configuration that config.Load accepted. It takes
// up to a few seconds for each server that does not answer.
func Run(ctx context.Context, cfg *config.Config, log zerolog.Logger) Report {
	e := &exam{cfg: cfg, log: log, report: Report{Name: cfg.Name}}
	if err := e.open(); err != nil {
		c := fail(clean(err), "a configuration that can be used", "correct the variable that is named; `rowferry config docs` lists them all")
		c.Name = checkConfiguration
		e.report.Checks = append(e.report.Checks, c)
		return e.report
	}
	defer e.close()
	e.make(ctx, e.sourceTasks()...)
	e.make(ctx, e.storeTasks()...)
	for _, t := range e.tables {
		e.make(ctx, e.tableTasks(t)...)
	}
	e.make(ctx, e.ledgerTask())
	e.make(ctx, e.progressTasks()...)
	e.make(ctx, e.sinkTasks()...)
	if ctx.Err() != nil {
		e.report.Checks = append(e.report.Checks, Check{"doctor", Fail, "interrupted", "every check made", "rowferry doctor"})
	}
	e.report.OK = e.report.Passed(false)
	return e.report
}

// open makes what needs no connection, the way `run` does.
func (e *exam) open() error {
	_, err := app.NewRouter(e.cfg)
	if err != nil {
		return err
	}
	if e.app, err = app.OpenStore(e.cfg); err != nil {
		return err
	}
	c, err := e.cfg.MySQLConfig(e.cfg.Source())
	if err == nil {
		e.source, err = newServer("ROWFERRY_SOURCE_DSN", c, nil)
	}
	if err != nil {
		return errors.Join(err, e.app.Close())
	}
	variable := "ROWFERRY_SOURCE_DSN"
	if len(e.cfg.StoreDSN) > 0 {
		variable = "ROWFERRY_STORE_DSN"
	}
	if c, err = e.cfg.MySQLConfig(e.cfg.Store()); err == nil {
		e.store, err = newServer(variable, c, e.app.DB)
	}
	return err
}

func (e *exam) close() {
	for _, db := range []*sql.DB{e.source.db, e.app.DB} {
		if err := db.Close(); err != nil {
			e.log.Debug().Err(err).Msg("closing a connection pool of doctor")
		}
	}
}

// make runs tasks in order and notes their verdicts.
func (e *exam) make(ctx context.Context, tasks ...task) {
	for _, t := range tasks {
		c, blocked := e.blocked(t)
		switch {
		case blocked:
		case ctx.Err() != nil:
			c = skipped("interrupted")
		default:
			one, cancel := context.WithTimeout(ctx, checkTimeout)
			c = t.look(one)
			cancel()
		}
		c.Name = t.name
		e.report.Checks = append(e.report.Checks, c)
	}
}

// blocked finds the first check that a task needs and that did not pass.
func (e *exam) blocked(t task) (Check, bool) {
	for _, name := range t.needs {
		if c, made := e.report.find(name); made && (c.Status == Fail || c.Status == Skipped) {
			return skipped("needs " + name), true
		}
	}
	return Check{}, false
}

// reads reports whether the binlog is read at all.
func (e *exam) reads() bool { return e.cfg.Mode != config.ModePoll }

// ledgerOf is the ledger for a table, before it is known whether all tables
// agree on one.
func (e *exam) ledgerOf(l *outbox.Layout) string {
	switch {
	case e.cfg.Ledger != "":
		return e.cfg.Ledger
	case l.Has(outbox.RoleStatus):
		return config.LedgerStatus
	}
	return config.LedgerNone
}

func ok(found string) Check { return Check{Status: OK, Found: found} }

func skipped(why string) Check { return Check{Status: Skipped, Found: why} }

func warn(found, wanted, fix string) Check {
	return Check{Status: Warn, Found: found, Wanted: wanted, Fix: fix}
}

func fail(found, wanted, fix string) Check {
	return Check{Status: Fail, Found: found, Wanted: wanted, Fix: fix}
}

// noAnswer is the verdict on a question that a server refused for a reason that
// no check expects.
func noAnswer(question string, err error) Check {
	return fail(clean(err), "an answer to "+question, "run `rowferry doctor` again; if it stays, look into the server's error log")
}

// newServer makes a pool of a few connections unless one is given.
func newServer(variable string, c *mysqlConfig, db *sql.DB) (*server, error) {
	s := &server{variable: variable, cfg: c, db: db}
	if db != nil {
		return s, nil
	}
	var err error
	s.db, err = mysqlconn.OpenConfig(c, mysqlconn.Options{MaxConns: 2, Role: "doctor"})
	return s, err
}
