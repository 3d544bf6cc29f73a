package main

import (
	"context"
	"fmt"
	"time"
)

// giants measures one transaction far larger than any budget, plain and compressed:
// how fast it is carried and how much memory that takes.
func (b *bench) giants(ctx context.Context) error {
	for _, compression := range []string{"OFF", "ON"} {
		if err := b.giant(ctx, compression); err != nil {
			return fmt.Errorf("compression %s: %w", compression, err)
		}
	}
	return nil
}

func (b *bench) giant(ctx context.Context, compression string) error {
	schema, topic, err := b.ground("giant")
	if err != nil {
		return err
	}
	before, err := b.gtids(ctx)
	if err != nil {
		return err
	}
	end, err := b.logEnd(ctx)
	if err != nil {
		return err
	}
	if err := b.fillAtOnce(ctx, schema, compression); err != nil {
		return err
	}
	wire, err := b.bytesFrom(ctx, end.file)
	if err != nil {
		return err
	}
	r, err := b.startRelay(ctx, schema, "ROWFERRY_LEDGER=none", "ROWFERRY_ROUTE_TOPIC="+topic,
		"ROWFERRY_START_AT="+before)
	if err != nil {
		return err
	}
	defer r.stop() //nolint:errcheck // measured already
	if _, err := r.await(ctx, b.o.giant, 200*time.Millisecond); err != nil {
		return err
	}
	took := time.Since(r.started)
	_, peak, _, err := usage(r.cmd.Process.Pid)
	name := fmt.Sprintf("one transaction of %d rows, compression %s", b.o.giant, compression)
	b.results.add(name+": binlog", float64(wire-int64(end.offset))/1e6, "MB")
	b.results.add(name+": rate", float64(b.o.giant)/took.Seconds(), "rows/s")
	b.results.add(name+": peak memory", peak, "MiB")
	return err
}

// fillAtOnce inserts the rows of the giant with one statement.
func (b *bench) fillAtOnce(ctx context.Context, schema, compression string) error {
	conn, err := b.servers.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // what is set is set back
	insert := fmt.Sprintf(`INSERT INTO %s.outbox (aggregate_type, aggregate_id, event_type, payload)
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
SELECT 'orders', CONCAT('order-', a.i), 'OrderPlaced',
  CONCAT('{"order":"', HEX(RANDOM_BYTES(16)), '","line":', b.i, ',"note":"', REPEAT('x', %d), '"}')
FROM n a, n b, n c WHERE c.i <= %d`, schema, max(1, 200-70), b.o.giant/1_000_000)
	for _, q := range []string{
		"SET SESSION cte_max_recursion_depth = 1000000", "SET SESSION binlog_transaction_compression = " + compression,
		insert, "SET SESSION binlog_transaction_compression = OFF",
	} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%.60s: %w", q, err)
		}
	}
	return nil
}
