package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// storeConns is the size of the pool: leader lock, marker, sweep, look-up, fence,
// status, a purge with its lock, and two to spare.
const storeConns = 10

// Store is the database in which the outbox tables are written, and what is
// known of those tables.
type Store struct {
	DB      *sql.DB
	Schema  string
	Layouts []*outbox.Layout
	Zone    *time.Location

	cfg     *config.Config
	patient bool // statements may take as long as they like: see openPatientStore
}

// OpenStore makes the pool; it does not connect.
func OpenStore(cfg *config.Config) (*Store, error) {
	zone := cfg.OutboxTimeZone.Location() // nil: to be asked of the server
	s := &Store{cfg: cfg, Schema: cfg.Store().Schema(), Zone: zone}
	return s, s.open()
}

// openPatientStore is OpenStore for what may take minutes, such as dropping a partition
// of many gigabytes.
func openPatientStore(cfg *config.Config) (*Store, error) {
	s := &Store{cfg: cfg, Schema: cfg.Store().Schema(), Zone: cfg.OutboxTimeZone.Location(), patient: true}
	return s, s.open()
}

// servers are the connections of the pool.
func (s *Store) servers() ([]*mysql.Config, error) {
	list, err := s.cfg.StoreConfigs()
	if s.patient {
		for _, c := range list {
			c.ReadTimeout = time.Hour
		}
	}
	return list, err
}

func (s *Store) open() error {
	choice := mysqlconn.PrimaryOnly
	switch {
	case len(s.cfg.StoreDSN) > 0:
		choice = mysqlconn.Writable // whoever names stores may write to replicas
	case s.cfg.Ledger == config.LedgerNone && s.cfg.CheckpointStore.Kind != config.StoreMySQL:
		choice = mysqlconn.AnyServer // nothing is written
	}
	var err error
	s.DB, err = mysqlconn.OpenList(s.servers, choice, mysqlconn.Options{
		Zone: s.Zone, MarkImage: s.cfg.MarkRowImage, MaxConns: storeConns, Role: "store",
	})
	return err
}

// refuseReplica refuses a store that was not named and is a replica: what is written
// to it would make it differ from its primary. In a list such servers are passed over.
func (s *Store) refuseReplica(ctx context.Context) error {
	if len(s.cfg.StoreDSN) > 0 || len(s.cfg.SourceDSN) > 1 {
		return nil
	}
	return mysqlconn.RefuseReplica(ctx, s.DB)
}

// Close closes the pool.
func (s *Store) Close() error { return s.DB.Close() }

// Learn connects, finds out the zone if that is left to us, and recognises the
// tables.
func (s *Store) Learn(ctx context.Context) error {
	if err := s.checkFormat(ctx); err != nil {
		return err
	}
	if s.Zone == nil {
		if err := s.learnZone(ctx); err != nil {
			return err
		}
	}
	tables, err := outbox.FindTables(ctx, s.DB, s.cfg.OutboxTables, s.Schema)
	if err != nil {
		return fmt.Errorf("looking for the outbox tables: %w", err)
	}
	if len(tables) == 0 {
		return fmt.Errorf("no table matches ROWFERRY_OUTBOX_TABLES=%s", s.cfg.OutboxTables)
	}
	s.Layouts = nil
	for _, t := range tables {
		l, err := s.ReadLayout(ctx, t)
		if errors.Is(err, outbox.ErrNoTable) {
			return fmt.Errorf("%w; create it (`rowferry migrate print --outbox` shows one), name another with ROWFERRY_OUTBOX_TABLES, or GRANT SELECT on it", err)
		}
		if err != nil {
			return err
		}
		s.Layouts = append(s.Layouts, l)
	}
	return nil
}

// checkFormat refuses a server that writes statements to its binlog: inserted rows
// are not in there, and sessions in READ COMMITTED, as ours, may not write at all.
func (s *Store) checkFormat(ctx context.Context) error {
	var logged bool
	var format string
	err := s.DB.QueryRowContext(ctx, "SELECT @@GLOBAL.log_bin, @@SESSION.binlog_format").Scan(&logged, &format)
	if err != nil {
		return fmt.Errorf("connecting to the store: %w (`rowferry doctor` says what mends it)", err)
	}
	if !logged || format != "STATEMENT" {
		return nil
	}
	s.DB.SetMaxIdleConns(0) // sessions keep the format they began with
	s.DB.SetMaxIdleConns(storeConns)
	return errors.New("binlog_format is STATEMENT, so inserted rows are not in the binlog; SET GLOBAL binlog_format=ROW, then reconnect the applications")
}

// ReadLayout reads the present layout of one table.
func (s *Store) ReadLayout(ctx context.Context, t outbox.Table) (*outbox.Layout, error) {
	return outbox.ReadTable(ctx, s.DB, t, outbox.Options{
		Columns: s.cfg.OutboxColumns, Status: s.cfg.OutboxStatusValues, Zone: s.Zone,
	})
}

// learnZone takes the offset of the server's global time zone for the one in
// which the application writes DATETIME, and opens the pool anew with it.
func (s *Store) learnZone(ctx context.Context) error {
	var seconds sql.NullInt64
	err := s.DB.QueryRowContext(ctx, `SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(),
  CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@GLOBAL.time_zone))`).Scan(&seconds)
	if err != nil {
		return fmt.Errorf("asking the store for its time zone: %w", err)
	}
	s.Zone = time.FixedZone("", int(seconds.Int64))
	if seconds.Int64 == 0 { // UTC, or a named zone on a server without zone tables
		s.Zone = time.UTC
		return nil
	}
	if err := s.DB.Close(); err != nil {
		return fmt.Errorf("closing the first pool: %w", err)
	}
	return s.open()
}

// Tables returns the names of the tables.
func (s *Store) Tables() []outbox.Table {
	tables := make([]outbox.Table, len(s.Layouts))
	for i, l := range s.Layouts {
		tables[i] = l.Table
	}
	return tables
}

// LedgerKind returns the ledger in force: the configured one, or what the tables
// suggest.
func (s *Store) LedgerKind() (string, error) {
	kind := s.cfg.Ledger
	for _, l := range s.Layouts {
		switch {
		case kind == "" && l.Has(outbox.RoleStatus):
			kind = config.LedgerStatus
		case kind == "":
			kind = config.LedgerNone
		}
		if kind == config.LedgerStatus && !l.Has(outbox.RoleStatus) {
			return "", fmt.Errorf("table %s has no status column, which LEDGER=status needs; name it with ROWFERRY_OUTBOX_COLUMNS=status=COLUMN, or set ROWFERRY_LEDGER=none or delete", l.Table)
		}
	}
	return kind, nil
}
