package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// calm waits, everything being healed, until every row is SENT or FAILED. It gives up when
// nothing has moved for long: the checks then say which rows are left.
func (w *world) calm(ctx context.Context) error {
	w.log.say("all is healed; %d rows are committed, %d wait to be sent", w.writers.committed.Load(), w.unsent())
	left, since := -2, time.Now()
	for ctx.Err() == nil {
		n := w.unsent()
		if n == 0 {
			w.log.note("it is quiet")
			return w.endFerries()
		}
		if n >= 0 && n != left {
			left, since = n, time.Now()
		}
		if time.Since(since) > w.o.patience {
			w.log.violation("%d rows have waited for %v with everything healed", n, w.o.patience)
			return w.endFerries()
		}
		pause(ctx, 200*time.Millisecond)
	}
	return ctx.Err()
}

// endFerries stops both, which they must do in time and without an error.
func (w *world) endFerries() error {
	for _, f := range w.ferries {
		if text := f.ended(); text != "" {
			w.log.violation("%s", text)
			continue
		}
		if err := f.stop(); err != nil {
			w.log.violation("%v", err)
		} else if _, err := f.process().Ended(); err != nil {
			w.log.violation("%s ended with %v when it was told to; its log ends:\n%s", f.name, err, f.process().LogTail())
		}
		signs, err := f.logSigns()
		if err != nil {
			return err
		}
		for _, sign := range signs {
			w.log.violation("the log of %s holds %q", f.name, sign)
		}
	}
	return nil
}

// judge does the checks, unless the run itself went wrong, and prints what there is to say.
func (w *world) judge(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	total, stalls, err := w.compare(ctx)
	if err != nil {
		return err
	}
	w.report(total, stalls)
	broken := w.log.broken()
	if len(broken) == 0 {
		w.log.say("nothing is wrong")
		return nil
	}
	const shown = 20
	for _, text := range broken[:min(shown, len(broken))] {
		w.log.say("VIOLATION: %s", text)
	}
	w.log.say("%d violations in all; replay with\n  %s\nlogs are in %s", len(broken), w.o.replay(), w.dir)
	return fmt.Errorf("%w: seed %d, %s", errViolation, w.o.seed, strings.SplitN(broken[0], "\n", 2)[0])
}

// stall is a time in which nothing reached the broker.
type stall struct {
	from   time.Time
	lasted time.Duration
}

// compare checks every table, and returns also the longest times in which nothing reached
// the broker.
func (w *world) compare(ctx context.Context) (total tally, stalls []stall, err error) {
	var times []time.Time
	for _, t := range w.tables {
		rows, err := w.readTable(ctx, t)
		if err != nil {
			return total, nil, err
		}
		stored, err := w.brokerServer.ReadAll(t.name)
		if err != nil {
			return total, nil, err
		}
		for _, m := range stored {
			times = append(times, m.StoredAt)
		}
		c := checker{table: t, facts: w.writers.facts[t.name], rows: rows, stored: stored, strict: w.o.tail, grace: grace, wrong: w.log.violation, note: w.log.note}
		total.add(c.check())
	}
	if total.copies > int(w.copiesMax.Load()) {
		w.log.violation("%d copies, more than the %d that were in flight at the faults", total.copies, w.copiesMax.Load())
	}
	return total, longestStalls(times, 3), nil
}

// longestStalls returns the n longest between the times, longest first.
func longestStalls(times []time.Time, n int) []stall {
	slices.SortFunc(times, time.Time.Compare)
	var all []stall
	for i := 1; i < len(times); i++ {
		all = append(all, stall{times[i-1], times[i].Sub(times[i-1])})
	}
	slices.SortStableFunc(all, func(a, b stall) int { return cmp.Compare(b.lasted, a.lasted) })
	return all[:min(n, len(all))]
}

// readTable reads the rows with the reasons of those that are FAILED.
func (w *world) readTable(ctx context.Context, t *table) (rows []row, err error) {
	reason := "NULL"
	if t.create == "" {
		reason = "o.last_error"
	}
	claims := "0"
	if t.claims {
		claims = "o.chaos_claims"
	}
	query := fmt.Sprintf(`SELECT o.id, o.aggregate_id, o.payload, o.chaos_n, o.chaos_tx, IF(o.status = %s, 1, IF(o.status = %s, 2, 0)),
  COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.chaos_sent_at), 0), %s, o.chaos_wrong, COALESCE(%s, d.reason, '')
  FROM %s o LEFT JOIN rowferry_dead d ON d.tbl = '%s.%s' AND d.id = CAST(o.id AS CHAR) COLLATE utf8mb4_bin ORDER BY o.id`,
		t.sent, t.failed, claims, reason, t.name, schema, t.name)
	found, err := w.pool.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("reading table %s: %w", t.name, err)
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		r, err := scanRow(found)
		if err != nil {
			return nil, fmt.Errorf("reading table %s: %w", t.name, err)
		}
		rows = append(rows, r)
	}
	return rows, found.Err()
}

func scanRow(found *sql.Rows) (row, error) {
	var r row
	var sent int64
	err := found.Scan(&r.id, &r.key, &r.payload, &r.n, &r.tx, &r.state, &sent, &r.claims, &r.wrong, &r.reason)
	if sent > 0 {
		r.sentAt = time.UnixMicro(sent)
	}
	return r, err
}

func (w *world) report(total tally, stalls []stall) {
	ws := w.writers
	w.log.say("rows: %d committed (%d can never be sent), %d rolled back, %d transactions with a skewed clock, %d commits without an answer",
		total.rows, ws.refused.Load(), ws.gone.Load(), ws.skewed.Load(), ws.unsure.Load())
	var faults []string
	sum := 0
	for _, k := range slices.Sorted(maps.Keys(w.log.counts)) {
		sum += w.log.counts[k]
		faults = append(faults, fmt.Sprintf("%d %s", w.log.counts[k], k))
	}
	w.log.say("faults: %d (%s)", sum, strings.Join(faults, ", "))
	w.log.say("SENT %d, FAILED %d; %d messages, %d of them copies (at most %d), %d of those sent after the row was SENT",
		total.sent, total.failed, total.messages, total.copies, w.copiesMax.Load(), total.late)
	w.log.say("order: judged for %d rows, %d more may have been swept", total.judged, total.exempt)
	for _, s := range stalls {
		w.log.say("no message for %v from %s on", s.lasted.Round(time.Millisecond), clock(s.from))
	}
}
