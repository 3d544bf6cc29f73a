package shop

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/rowferry/rowferry/demo/reconcile"
)

// Load says how hard the customers press.
type Load struct {
	RatePerSecond int           // attempts to buy
	Duration      time.Duration // of the sale; follow-up events end up to 2 s later
	Workers       int           // buying at the same time
	// Committed, if not nil, is called right after COMMIT has returned.
	Committed func(reconcile.Key, time.Time)
}

// Counts is what the shop remembers of a sale.
type Counts struct {
	Orders     int // committed
	Events     int // committed, orders' first ones included
	SoldOut    int // rolled back because too little was left
	RolledBack int // rolled back on purpose, after the outbox row was written
	Undone     int // outbox rows undone by ROLLBACK TO SAVEPOINT in a transaction that committed
	Retried    int // transactions that MySQL rolled back in a deadlock or lock wait
	Unknown    int // COMMIT failed, the outcome is not known
}

// What customers do, in percent of the attempts or orders.
const (
	declinedPercent = 4  // the card is declined: everything is rolled back
	couponPercent   = 3  // a coupon is tried and refused: its event is undone by a savepoint
	paidPercent     = 60 // of the orders are paid
	shippedPercent  = 60 // of the paid ones are shipped
)

// followUpMax bounds the time from one event of an order to its next.
const followUpMax = time.Second

var errSoldOut = errors.New("sold out")

// Customers buy at a sale. Its counters may be read while they do.
type Customers struct {
	sale   *Sale
	load   Load
	number atomic.Int64
	mu     sync.Mutex
	counts Counts
}

// NewCustomers returns customers who have not started yet.
func NewCustomers(s *Sale, load Load) *Customers { return &Customers{sale: s, load: load} }

// Counts returns a copy of the counters.
func (c *Customers) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

func (c *Customers) count(f func(*Counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.counts)
}

// Rush buys until the duration is over, waits for the follow-up events of the
// orders placed, and returns the first error that is not part of the game.
func (c *Customers) Rush(ctx context.Context) error {
	followUps, followCtx := errgroup.WithContext(ctx)
	workers, workCtx := errgroup.WithContext(followCtx) // follow-ups outlive the workers
	limiter := rate.NewLimiter(rate.Limit(c.load.RatePerSecond), 10)
	end := time.Now().Add(c.load.Duration)
	for range c.load.Workers {
		workers.Go(func() error {
			for time.Now().Before(end) {
				if err := limiter.Wait(workCtx); err != nil {
					return fmt.Errorf("waiting for the next customer: %w", err)
				}
				if err := c.attempt(workCtx, func(o order) { followUps.Go(func() error { return c.followUp(followCtx, o) }) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(workers.Wait(), followUps.Wait())
}

// First places one order outside the rush, to see the first event arrive.
func (c *Customers) First(ctx context.Context) (reconcile.Key, error) {
	o := c.newOrder()
	o.product, o.declined, o.coupon = len(goods)-1, false, false
	err := c.buy(ctx, o)
	return reconcile.Key{Order: o.id, Version: o.version}, err
}

// order is what one customer wants, and later has.
type order struct {
	id       string
	product  int
	quantity int
	version  int
	declined bool
	coupon   bool
}

func percent(p int) bool { return rand.IntN(100) < p }

func (c *Customers) newOrder() order {
	o := order{
		id:       fmt.Sprintf("%s-%06d", c.sale.ID, c.number.Add(1)),
		quantity: 1,
		version:  1,
		declined: percent(declinedPercent),
		coupon:   percent(couponPercent),
	}
	for want := rand.IntN(100); want >= goods[o.product].wantPercent; o.product++ {
		want -= goods[o.product].wantPercent
	}
	return o
}

// attempt is one customer: buys, and sees to it that later events of the order
// follow.
func (c *Customers) attempt(ctx context.Context, later func(order)) error {
	o := c.newOrder()
	err := c.buy(ctx, o)
	switch {
	case errors.Is(err, errSoldOut):
		c.count(func(n *Counts) { n.SoldOut++ })
		return nil
	case err != nil:
		return err
	case o.declined:
		c.count(func(n *Counts) { n.RolledBack++ })
		return nil
	}
	if percent(paidPercent) {
		later(o)
	}
	return nil
}

// buy is the transaction that the outbox pattern is about. The stock comes last
// because every customer wants the same row: it is locked for the shortest time.
func (c *Customers) buy(ctx context.Context, o order) error {
	return c.transact(ctx, o, "buying", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, sale_id, product_id, quantity, status) VALUES (?, ?, ?, ?, 'PLACED')",
			o.id, c.sale.ID, o.product, o.quantity); err != nil {
			return err
		}
		if err := c.insertEvent(ctx, tx, o, "OrderPlaced"); err != nil {
			return err
		}
		if o.coupon {
			if err := c.tryCoupon(ctx, tx, o); err != nil {
				return err
			}
		}
		return c.takeStock(ctx, tx, o)
	})
}

func (c *Customers) takeStock(ctx context.Context, tx *sql.Tx, o order) error {
	res, err := tx.ExecContext(ctx, "UPDATE product SET stock = stock - ? WHERE sale_id = ? AND id = ? AND stock >= ?",
		o.quantity, c.sale.ID, o.product, o.quantity)
	if err != nil {
		return err
	}
	changed, err := res.RowsAffected()
	if err == nil && changed == 0 {
		err = errSoldOut
	}
	return err
}

// tryCoupon writes an event and takes it back: version 0 belongs to no order.
func (c *Customers) tryCoupon(ctx context.Context, tx *sql.Tx, o order) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT coupon"); err != nil {
		return err
	}
	o.version = 0
	if err := c.insertEvent(ctx, tx, o, "CouponApplied"); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT coupon")
	return err
}

// followUp pays and perhaps ships an order, each after a while and in a
// transaction of its own.
func (c *Customers) followUp(ctx context.Context, o order) error {
	o.declined, o.coupon = false, false
	for _, step := range []struct{ status, event string }{{"PAID", "OrderPaid"}, {"SHIPPED", "OrderShipped"}} {
		select {
		case <-ctx.Done():
			return nil // the reason is reported by whoever ended it
		case <-time.After(rand.N(followUpMax)):
		}
		o.version++
		err := c.transact(ctx, o, "following up", func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = ?, version = ? WHERE id = ?", step.status, o.version, o.id); err != nil {
				return err
			}
			return c.insertEvent(ctx, tx, o, step.event)
		})
		if err != nil || !percent(shippedPercent) {
			return err
		}
	}
	return nil
}

// payload is the body of every event of the shop.
type payload struct {
	Sale      string    `json:"sale"`
	Order     string    `json:"order"`
	Version   int       `json:"version"`
	Product   string    `json:"product"`
	Quantity  int       `json:"quantity"`
	WrittenAt time.Time `json:"written_at"`
}

func (c *Customers) insertEvent(ctx context.Context, tx *sql.Tx, o order, eventType string) error {
	body, err := json.Marshal(payload{c.sale.ID, o.id, o.version, goods[o.product].name, o.quantity, time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("encoding the payload: %w", err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (?, ?, ?, ?)",
		Topic, o.id, eventType, string(body))
	return err
}

// transact runs f in a transaction and commits it, or rolls it back if the order
// is to be declined. A deadlock or lock wait starts it again.
func (c *Customers) transact(ctx context.Context, o order, doing string, f func(*sql.Tx) error) error {
	for {
		err := c.transactOnce(ctx, o, f)
		if !rolledBackByMySQL(err) {
			if err != nil && !errors.Is(err, errSoldOut) {
				err = fmt.Errorf("%s order %s: %w", doing, o.id, err)
			}
			return err
		}
		c.count(func(n *Counts) { n.Retried++ })
	}
}

func (c *Customers) transactOnce(ctx context.Context, o order, f func(*sql.Tx) error) error {
	tx, err := c.sale.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	if o.declined {
		return tx.Rollback()
	}
	if err := tx.Commit(); err != nil {
		c.count(func(n *Counts) { n.Unknown++ })
		return fmt.Errorf("committing: %w", err)
	}
	c.committed(o, time.Now())
	return nil
}

// ignoreDone drops the error of a rollback that cancellation has done already.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

func (c *Customers) committed(o order, at time.Time) {
	if c.load.Committed != nil {
		c.load.Committed(reconcile.Key{Order: o.id, Version: o.version}, at)
	}
	c.count(func(n *Counts) {
		n.Events++
		if o.version == 1 {
			n.Orders++
		}
		if o.coupon {
			n.Undone++
		}
	})
}

// rolledBackByMySQL reports a deadlock or a lock wait that timed out.
func rolledBackByMySQL(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && (e.Number == 1213 || e.Number == 1205)
}
