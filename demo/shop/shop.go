// Package shop is the application of the demo: a flash sale on MySQL that writes
// its events into an outbox table, as an application with a transactional outbox
// does.
//
// It promises that an order, the stock it takes and its outbox row are written
// in one transaction; that a part of the transactions is rolled back after the
// outbox row was written, so that a relay that publishes what never happened is
// found out; and that [Sale.Facts] tells from the tables alone, not from memory,
// what a consumer must have received.
package shop

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/demo/reconcile"
)

// Topic is the aggregate type of every event, and so the topic that the relay
// routes them to by default.
const Topic = "order"

//go:embed schema.sql
var schema string

// Open connects to the shop's database. The dsn is of the go-sql-driver form and
// names the schema.
func Open(dsn string) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("reading the shop's DSN: %w", err)
	}
	if cfg.DBName == "" {
		return nil, fmt.Errorf("the shop's DSN names no schema; it ends in /SCHEMA")
	}
	cfg.InterpolateParams = true // one round trip a statement
	cfg.ParseTime = true
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("reading the shop's DSN: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(40)
	db.SetMaxIdleConns(40)
	return db, nil
}

// CreateTables makes the tables that are missing.
func CreateTables(ctx context.Context, db *sql.DB) error {
	for statement := range strings.SplitSeq(schema, ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("creating the shop's tables: %w", err)
		}
	}
	return nil
}

// Sale is one flash sale. Several may share a database, one after another: each
// looks at its own rows only.
type Sale struct {
	ID string
	db *sql.DB
}

// goods are what is for sale, with their share of the stock in percent. The
// first is what everybody wants: it sells out.
var goods = []struct {
	name         string
	stockPercent int
	wantPercent  int
}{
	{"console", 5, 30},
	{"phone", 30, 25},
	{"headphones", 30, 20},
	{"keyboard", 30, 15},
	{"cable", 30, 10},
}

// Start opens a sale with a stock for about the given number of orders.
func Start(ctx context.Context, db *sql.DB, orders int) (*Sale, error) {
	s := &Sale{ID: strconv.FormatInt(time.Now().UnixMilli(), 36), db: db}
	if _, err := db.ExecContext(ctx, "INSERT INTO sale (id) VALUES (?)", s.ID); err != nil {
		return nil, fmt.Errorf("opening a sale: %w", err)
	}
	for i, g := range goods {
		stock := orders*g.stockPercent/100 + 1
		if _, err := db.ExecContext(ctx, "INSERT INTO product (sale_id, id, name, stock_initial, stock) VALUES (?, ?, ?, ?, ?)",
			s.ID, i, g.name, stock, stock); err != nil {
			return nil, fmt.Errorf("stocking %s: %w", g.name, err)
		}
	}
	return s, nil
}

// Unreconciled returns the newest sale that nobody has reconciled yet, nil if
// there is none.
func Unreconciled(ctx context.Context, db *sql.DB) (*Sale, error) {
	s := &Sale{db: db}
	err := db.QueryRowContext(ctx, "SELECT id FROM sale WHERE reconciled_at IS NULL ORDER BY started_at DESC LIMIT 1").Scan(&s.ID)
	if err == sql.ErrNoRows {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for a sale: %w", err)
	}
	return s, nil
}

// Schema returns the name of the schema that the sale is in.
func (s *Sale) Schema(ctx context.Context) (string, error) {
	var name string
	if err := s.db.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&name); err != nil {
		return "", fmt.Errorf("asking for the schema: %w", err)
	}
	return name, nil
}

// Finish closes the sale with what the shop knows of its commits.
func (s *Sale) Finish(ctx context.Context, c Counts) error {
	if _, err := s.db.ExecContext(ctx, "UPDATE sale SET finished_at = NOW(6), committed = ?, unknown = ? WHERE id = ?",
		c.Orders, c.Unknown, s.ID); err != nil {
		return fmt.Errorf("closing the sale: %w", err)
	}
	return nil
}

// Finished reports whether the sale is closed.
func (s *Sale) Finished(ctx context.Context) (bool, error) {
	var finished bool
	if err := s.db.QueryRowContext(ctx, "SELECT finished_at IS NOT NULL FROM sale WHERE id = ?", s.ID).Scan(&finished); err != nil {
		return false, fmt.Errorf("asking whether the sale is over: %w", err)
	}
	return finished, nil
}

// Reconciled notes that somebody has compared the sale with what arrived.
func (s *Sale) Reconciled(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "UPDATE sale SET reconciled_at = NOW(6) WHERE id = ?", s.ID); err != nil {
		return fmt.Errorf("noting the reconciliation: %w", err)
	}
	return nil
}

// Committed returns the number of orders committed so far, and the number of
// events that they stand for.
func (s *Sale) Committed(ctx context.Context) (orders, events int, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(SUM(version), 0) FROM orders WHERE sale_id = ?", s.ID).Scan(&orders, &events)
	if err != nil {
		return 0, 0, fmt.Errorf("counting the orders: %w", err)
	}
	return orders, events, nil
}

// Rows returns the number of the sale's outbox rows by status.
func (s *Sale) Rows(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	err := s.each(ctx, "SELECT status, COUNT(*) FROM outbox WHERE aggregate_id LIKE CONCAT(?, '-%') GROUP BY status",
		func(scan func(...any) error) error {
			var status string
			var n int
			err := scan(&status, &n)
			counts[status] = n
			return err
		})
	return counts, err
}

// StockMin returns the lowest stock of any product now.
func (s *Sale) StockMin(ctx context.Context) (int, error) {
	var n int
	if err := s.db.QueryRowContext(ctx, "SELECT MIN(stock) FROM product WHERE sale_id = ?", s.ID).Scan(&n); err != nil {
		return 0, fmt.Errorf("reading the stock: %w", err)
	}
	return n, nil
}

// Facts reads from the tables what the sale came to.
func (s *Sale) Facts(ctx context.Context) (reconcile.Facts, error) {
	f := reconcile.Facts{Orders: map[string]int{}}
	err := s.db.QueryRowContext(ctx, "SELECT committed, unknown FROM sale WHERE id = ?", s.ID).Scan(&f.Committed, &f.Unknown)
	if err != nil {
		return f, fmt.Errorf("reading the sale: %w", err)
	}
	err = s.each(ctx, "SELECT id, version FROM orders WHERE sale_id = ?", func(scan func(...any) error) error {
		var id string
		var version int
		err := scan(&id, &version)
		f.Orders[id] = version
		return err
	})
	if err != nil {
		return f, err
	}
	if f.Rows, err = s.Rows(ctx); err != nil {
		return f, err
	}
	return f, s.readStock(ctx, &f)
}

func (s *Sale) readStock(ctx context.Context, f *reconcile.Facts) error {
	return s.each(ctx, `SELECT p.name, p.stock_initial, p.stock,
		(SELECT COALESCE(SUM(o.quantity), 0) FROM orders o WHERE o.sale_id = p.sale_id AND o.product_id = p.id)
		FROM product p WHERE p.sale_id = ?`, func(scan func(...any) error) error {
		var p reconcile.Stock
		err := scan(&p.Product, &p.Initial, &p.Left, &p.Sold)
		f.Stock = append(f.Stock, p)
		f.StockMin = min(f.StockMin, p.Left)
		return err
	})
}

// each runs a query about this sale and gives row after row to f.
func (s *Sale) each(ctx context.Context, query string, f func(scan func(...any) error) error) error {
	rows, err := s.db.QueryContext(ctx, query, s.ID)
	if err != nil {
		return fmt.Errorf("reading the sale: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return fmt.Errorf("reading the sale: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading the sale: %w", err)
	}
	return nil
}
