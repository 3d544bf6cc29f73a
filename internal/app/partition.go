package app

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/ledger"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// Partitioned is a table and its partitions.
type Partitioned struct {
	Table      string      `json:"table"`
	Partitions []Partition `json:"partitions"` // in the order of their ranges
}

// Partition is one of them. 10,001 rows stand for more than 10,000.
type Partition struct {
	Name  string           `json:"name"`
	Below string           `json:"below"` // its rows are less than this
	Rows  map[string]int64 `json:"rows"`  // by status, in small letters
}

// PartitionChange is what was done to the partitions of a table, or would be.
type PartitionChange struct {
	Table     string           `json:"table"`
	Names     []string         `json:"names"`     // that are made or dropped
	Statement string           `json:"statement"` // that does it; empty: nothing is to be done
	Applied   bool             `json:"applied"`
	Rows      map[string]int64 `json:"rows"` // that go, by status; null where none are asked for
}

// Partitions lists the partitions of one outbox table; name may be empty where there is
// one table only.
func Partitions(ctx context.Context, cfg *config.Config, name string, log zerolog.Logger) (Partitioned, error) {
	var found Partitioned
	err := withTable(ctx, cfg, name, log, func(l *ledger.Ledger, t outbox.Table) error {
		parts, err := l.Partitions(ctx, t)
		found = Partitioned{Table: t.String(), Partitions: []Partition{}}
		for _, p := range parts {
			found.Partitions = append(found.Partitions, Partition{p.Name, p.Below, byStatus(p.Rows)})
		}
		return err
	})
	return found, err
}

// EnsurePartitions makes the partitions that are missing ahead.
func EnsurePartitions(ctx context.Context, cfg *config.Config, name string, o ledger.EnsureOptions, dryRun bool, log zerolog.Logger) (PartitionChange, error) {
	var change PartitionChange
	err := withTable(ctx, cfg, name, log, func(l *ledger.Ledger, t outbox.Table) (err error) {
		change = PartitionChange{Table: t.String(), Names: []string{}}
		names, statement, err := l.PlanPartitions(ctx, t, o)
		if err != nil || len(names) == 0 {
			return err
		}
		change.Names, change.Statement = names, statement
		if dryRun {
			return nil
		}
		err = l.ChangePartitions(ctx, t, statement)
		change.Applied = err == nil
		audit(ctx, log, "partition ensure").Str("table", change.Table).Strs("partitions", names).Err(err).Send()
		return err
	})
	return change, err
}

// DropPartition drops a partition in which everything is sent, or says, in a dry run, what
// would go. failed says that FAILED rows may go with it.
func DropPartition(ctx context.Context, cfg *config.Config, name, partition string, failed, dryRun bool, log zerolog.Logger) (PartitionChange, error) {
	var change PartitionChange
	err := withTable(ctx, cfg, name, log, func(l *ledger.Ledger, t outbox.Table) error {
		change = PartitionChange{Table: t.String(), Names: []string{partition}, Statement: fmt.Sprintf("ALTER TABLE %s DROP PARTITION %s", t, partition)}
		if dryRun {
			rows, err := l.MayDropPartition(ctx, t, partition, failed)
			change.Rows = byStatus(rows)
			return err
		}
		rows, err := l.DropPartition(ctx, t, partition, failed)
		change.Rows, change.Applied = byStatus(rows), err == nil
		audit(ctx, log, "partition drop").Str("table", change.Table).Str("partition", partition).Int64("rows", rows[outbox.Sent]+rows[outbox.Failed]).Err(err).Send()
		return err
	})
	return change, err
}

// withTable finds the table that is meant.
func withTable(ctx context.Context, cfg *config.Config, name string, log zerolog.Logger, do func(*ledger.Ledger, outbox.Table) error) error {
	store, err := openPatientStore(cfg)
	if err != nil {
		return usage(err)
	}
	defer store.Close() //nolint:errcheck // what was changed has been answered
	if err := store.Learn(ctx); err != nil {
		return err
	}
	kind, err := store.LedgerKind()
	if err == nil {
		err = store.refuseReplica(ctx)
	}
	if err != nil {
		return err
	}
	tables := store.Tables()
	var names []string
	for _, t := range tables {
		names = append(names, t.String())
		if name == t.String() || name == t.Name && t.Schema == store.Schema {
			tables = []outbox.Table{t}
			name = ""
			break
		}
	}
	if name != "" || len(tables) != 1 {
		return usage(fmt.Errorf("--table: wanted one of the outbox tables, which are %s", strings.Join(names, ", ")))
	}
	return do(ledger.New(store.DB, store.Layouts, ledger.Options{
		Name: cfg.Name, Schema: store.Schema, Delete: kind == config.LedgerDelete, None: kind == config.LedgerNone, Logger: log,
	}), tables[0])
}

func byStatus(rows map[outbox.Status]int64) map[string]int64 {
	counts := map[string]int64{}
	for s, n := range rows {
		counts[strings.ToLower(s.String())] = n
	}
	return counts
}

// Print writes the partitions as a table.
func (p Partitioned) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "PARTITION\tBELOW\tPENDING\tPROCESSING\tFAILED\tSENT\tOTHER") //nolint:errcheck // Flush says it
	for _, part := range p.Partitions {
		fmt.Fprintf(t, "%s\t%s", part.Name, part.Below) //nolint:errcheck // as above
		for _, s := range []string{"pending", "processing", "failed", "sent", "other"} {
			fmt.Fprintf(t, "\t%s", countText(part.Rows[s])) //nolint:errcheck // as above
		}
		fmt.Fprintln(t) //nolint:errcheck // as above
	}
	return t.Flush()
}

func countText(n int64) string {
	if n > 10_000 {
		return ">10000"
	}
	return fmt.Sprint(n)
}

// Print says what was done, or would be.
func (c PartitionChange) Print(w io.Writer) error {
	if c.Statement == "" {
		_, err := fmt.Fprintf(w, "table %s has the partitions it needs\n", c.Table)
		return err
	}
	text := c.Statement
	if c.Rows != nil {
		text += fmt.Sprintf("\nits rows: %s sent, %s failed", countText(c.Rows["sent"]), countText(c.Rows["failed"]))
	}
	if c.Applied {
		text += "\ndone"
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
