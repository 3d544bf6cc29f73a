package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// growth measures whether a row costs the same when there is more of everything. Each
// case changes one thing; the base has a fifth of the rows of a drain, 100,000 by
// default.
func (b *bench) growth(ctx context.Context) error {
	rows := b.o.rows / 5
	base := growthCase{"base", rows, b.o.keys, b.o.payload, 0, 0}
	cases := []growthCase{
		base,
		{"10 x backlog", 10 * rows, base.keys, base.payload, 0, 0},
		{"50 x backlog", 50 * rows, base.keys, base.payload, 0, 0},
		{"10 x keys", rows, 10 * base.keys, base.payload, 0, 0},
		{"10 x row size", rows, base.keys, 10 * base.payload, 0, 0},
		{"100 x unrelated binlog", rows / 10, base.keys, base.payload, 100 * rows / 10, 0},
		{fmt.Sprintf("%d SENT rows in the table", b.o.sentRows), rows, base.keys, base.payload, 0, b.o.sentRows},
	}
	for _, c := range cases {
		for _, ledger := range []string{"none", "status"} {
			if err := b.grow(ctx, c, ledger); err != nil {
				return fmt.Errorf("%s, ledger %s: %w", c.name, ledger, err)
			}
			if err := b.tidy(ctx); err != nil {
				return err
			}
		}
	}
	for _, c := range cases[1:] {
		for _, ledger := range []string{"none", "status"} {
			goal := "within 0.15 of 1"
			if c.payload != base.payload || c.unrelated != 0 {
				goal = "" // more bytes are more work
			}
			b.results.ratio(c.figure(ledger), base.figure(ledger), goal)
			b.results.ratio(c.figure(ledger)+", peak memory", base.figure(ledger)+", peak memory", goal)
		}
	}
	return nil
}

// growthCase is one amount of work.
type growthCase struct {
	name      string
	rows      int
	keys      int
	payload   int // bytes
	unrelated int // rows of another table, committed between
	sent      int // rows of earlier times in the table
}

func (c growthCase) figure(ledger string) string { return "growth, " + ledger + ", " + c.name }

// grow carries the same work in as many rounds as everything else. The start of the
// process, the same for all, is left out of the rate: the smallest cases are mostly that.
func (b *bench) grow(ctx context.Context, c growthCase, ledger string) error {
	for range b.o.rounds {
		l, err := b.growBacklog(ctx, c)
		if err != nil {
			return err
		}
		got, err := b.drain(ctx, l, ledger)
		if err != nil {
			return err
		}
		name := c.figure(ledger)
		b.results.add(name, float64(c.rows)/(got.took-got.first).Seconds(), "rows/s")
		b.results.add(name+", peak memory", got.peakMiB, "MiB")
		if c.sent > 0 {
			if err := b.putBackSent(ctx, l.schema); err != nil {
				return err
			}
		}
		if err := b.tidy(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) growBacklog(ctx context.Context, c growthCase) (backlog, error) {
	schema, err := b.schema("bench_growth")
	if err != nil {
		return backlog{}, err
	}
	if c.sent > 0 {
		if err := b.takeSent(ctx, schema, c.sent); err != nil {
			return backlog{}, err
		}
	}
	from, err := b.gtids(ctx)
	if err != nil {
		return backlog{}, err
	}
	err = b.relaxed(ctx, func() error {
		const pieces = 10
		for range pieces {
			err := errors.Join(b.fillUnrelated(ctx, schema, c.unrelated/pieces), b.fillPayload(ctx, schema, c.rows/pieces, c.keys, c.payload))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return backlog{schema, from, c.rows / 10 * 10}, err
}

// fillUnrelated commits n rows of another table, 10 a transaction.
func (b *bench) fillUnrelated(ctx context.Context, schema string, n int) error {
	if n == 0 {
		return nil
	}
	if _, err := b.servers.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+schema+".other (id BIGINT AUTO_INCREMENT PRIMARY KEY, a VARCHAR(1000))"); err != nil {
		return err
	}
	const perTransaction = 10
	insert := "INSERT INTO " + schema + ".other (a) VALUES " + strings.TrimSuffix(strings.Repeat("(REPEAT('x',500)),", perTransaction), ",")
	for range n / perTransaction {
		if _, err := b.servers.db.ExecContext(ctx, insert); err != nil {
			return fmt.Errorf("inserting other rows: %w", err)
		}
	}
	return nil
}

// sentSchema keeps the outbox table with the rows of earlier times between its uses:
// filling it takes minutes.
const sentSchema = "bench_sent"

// takeSent moves that table into a schema, in the place of its empty outbox.
func (b *bench) takeSent(ctx context.Context, schema string, n int) error {
	if b.sentMax == 0 {
		if err := b.fillSent(ctx, n); err != nil {
			return err
		}
	}
	return b.execAll(ctx, "DROP TABLE "+schema+".outbox", "RENAME TABLE "+sentSchema+".outbox TO "+schema+".outbox")
}

// putBackSent removes the rows that were carried meanwhile.
func (b *bench) putBackSent(ctx context.Context, schema string) error {
	for {
		res, err := b.servers.db.ExecContext(ctx, "DELETE FROM "+schema+".outbox WHERE id > ? LIMIT 10000", b.sentMax)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, b.execAll(ctx, "RENAME TABLE "+schema+".outbox TO "+sentSchema+".outbox"))
		}
	}
}

// fillSent makes n rows that were sent long ago, past the binlog.
func (b *bench) fillSent(ctx context.Context, n int) error {
	if _, err := b.schema(sentSchema); err != nil {
		return err
	}
	conn, err := b.servers.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // what is set is set back
	const perStatement = 100_000
	insert := fmt.Sprintf(`INSERT INTO %s.outbox (aggregate_type, aggregate_id, event_type, payload, status, created_at, sent_at, attempts)
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < %d)
SELECT 'orders', CONCAT('order-', i %% 1000), 'OrderPlaced', REPEAT('x', 100), 'SENT', NOW(6) - INTERVAL 30 DAY, NOW(6) - INTERVAL 30 DAY, 1 FROM n`,
		sentSchema, perStatement)
	for _, q := range []string{"SET SESSION cte_max_recursion_depth = 10000000", "SET SESSION sql_log_bin = 0"} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	for range n / perStatement {
		if _, err := conn.ExecContext(ctx, insert); err != nil {
			return fmt.Errorf("inserting sent rows: %w", err)
		}
	}
	if _, err := conn.ExecContext(ctx, "SET SESSION sql_log_bin = 1"); err != nil {
		return err
	}
	return b.servers.db.QueryRowContext(ctx, "SELECT MAX(id) FROM "+sentSchema+".outbox").Scan(&b.sentMax)
}

func (b *bench) execAll(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := b.servers.db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%.60s: %w", q, err)
		}
	}
	return nil
}
