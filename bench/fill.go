package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// fill inserts n rows, 200 a transaction, without waiting for the disk.
func (b *bench) fill(ctx context.Context, schema string, n int) error {
	return b.relaxed(ctx, func() error { return b.fillPayload(ctx, schema, n, b.o.keys, b.o.payload) })
}

// relaxed runs do while commits do not wait for the disk: only to fill faster, never
// while something is measured.
func (b *bench) relaxed(ctx context.Context, do func() error) error {
	set := func(n int) error {
		_, err := b.servers.db.ExecContext(ctx, fmt.Sprintf("SET GLOBAL sync_binlog = %d, GLOBAL innodb_flush_log_at_trx_commit = %d", n, n))
		return err
	}
	if err := set(0); err != nil {
		return err
	}
	return errors.Join(do(), set(1))
}

func (b *bench) fillPayload(ctx context.Context, schema string, n, keys, payloadBytes int) error {
	const perTransaction = 200
	payload := payloadOf(payloadBytes)
	for first := 0; first < n; first += perTransaction {
		var values []string
		for i := first; i < first+perTransaction && i < n; i++ {
			values = append(values, fmt.Sprintf("('orders','order-%d','OrderPlaced','%s')", i%keys, payload))
		}
		q := "INSERT INTO " + schema + ".outbox (aggregate_type, aggregate_id, event_type, payload) VALUES " + strings.Join(values, ",")
		if _, err := b.servers.db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("inserting rows: %w", err)
		}
	}
	return nil
}

// payloadOf returns a JSON text of about n bytes.
func payloadOf(n int) string {
	return `{"sku":"` + strings.Repeat("x", max(1, n-12)) + `"}`
}

// tidy gives back the disk: the binlogs so far and what the broker has stored. Nothing
// that is still to be read may be in them.
func (b *bench) tidy(ctx context.Context) error {
	if _, err := b.servers.db.ExecContext(ctx, "FLUSH BINARY LOGS"); err != nil {
		return err
	}
	end, err := b.logEnd(ctx)
	if err != nil {
		return err
	}
	if _, err := b.servers.db.ExecContext(ctx, "PURGE BINARY LOGS TO '"+end.file+"'"); err != nil {
		return fmt.Errorf("purging binlogs: %w", err)
	}
	return b.servers.broker.DropStored()
}
