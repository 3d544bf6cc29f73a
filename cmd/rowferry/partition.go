package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/pkg/ledger"
)

func (c *cli) partitionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "partition",
		Short: "Partitions of an outbox table: make the next ones, list them, drop what is sent",
		Long: `Looks after an outbox table that is partitioned by ranges of its id or of a date
(itself, TO_DAYS or UNIX_TIMESTAMP). Dropping a partition costs next to nothing where
deleting its rows would take hours. The account needs ALTER, and for drop LOCK TABLES and
DROP too; "rowferry run" never does any of this.`,
	}
	cmd.AddCommand(c.partitionListCommand(), c.partitionEnsureCommand(), c.partitionDropCommand())
	return cmd
}

// printed is what commands print, for people.
type printed interface{ Print(w io.Writer) error }

func (c *cli) printAs(asJSON bool, v printed) error {
	if asJSON {
		return json.NewEncoder(c.stdout).Encode(v)
	}
	return v.Print(c.stdout)
}

func (c *cli) partitionListCommand() *cobra.Command {
	var asJSON bool
	var table string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the partitions, with their rows by status",
		Example: "  rowferry partition list",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			found, err := app.Partitions(cmd.Context(), cfg, table, c.logger(cfg))
			if err != nil {
				return err
			}
			return c.printAs(asJSON, found)
		}),
	}
	partitionFlags(cmd, &table, &asJSON)
	return cmd
}

func partitionFlags(cmd *cobra.Command, table *string, asJSON *bool) {
	cmd.Flags().StringVar(table, "table", "", "which outbox table, where there are several")
	cmd.Flags().BoolVar(asJSON, "json", false, "print one JSON document")
}

func (c *cli) partitionEnsureCommand() *cobra.Command {
	var asJSON, dryRun bool
	var table string
	var o ledger.EnsureOptions
	cmd := &cobra.Command{
		Use:   "ensure",
		Short: "Make the next partitions, as far as they are missing",
		Long: `Makes partitions until so many lie ahead of the one that rows go to now: of --days
each where the table is partitioned by a date, of --rows ids each where it is by its id.
Meant to be run every day. A last partition below MAXVALUE is split as long as it is empty;
one that holds rows is refused, because splitting it would copy them while all wait.`,
		Example: "  rowferry partition ensure --ahead 14 --dry-run",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			if o.Ahead < 1 || o.Ahead > 1000 || o.Days < 1 || o.Days > 366 || o.Rows < 1 {
				return usageError{errors.New("wanted --ahead from 1 to 1000, --days from 1 to 366 and --rows of at least 1")}
			}
			cfg, err := c.load()
			if err != nil {
				return err
			}
			change, err := app.EnsurePartitions(cmd.Context(), cfg, table, o, dryRun, c.logger(cfg))
			if err != nil {
				return err
			}
			return c.printAs(asJSON, change)
		}),
	}
	cmd.Flags().IntVar(&o.Ahead, "ahead", 7, "partitions behind the present one")
	cmd.Flags().IntVar(&o.Days, "days", 1, "days of each, where they go by a date")
	cmd.Flags().Int64Var(&o.Rows, "rows", 1_000_000, "ids of each, where they go by the id")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the statement")
	partitionFlags(cmd, &table, &asJSON)
	return cmd
}

func (c *cli) partitionDropCommand() *cobra.Command {
	var asJSON, dryRun, yes, failed bool
	var table string
	cmd := &cobra.Command{
		Use:   "drop NAME",
		Short: "Drop a partition in which everything is sent; needs --yes",
		Long: `Drops a partition with all its rows. It is refused while rows are inside that are not
SENT: that is asked again under a lock of the table, which waits for every open transaction,
so no row slips in. Others wait meanwhile, for moments mostly; behind somebody's long
transaction it gives up. --failed lets dead letters go with the partition.`,
		Example: `  rowferry partition drop p20261101 --dry-run
  rowferry partition drop p20261101 --yes`,
		Args: cobra.ExactArgs(1),
		RunE: c.command(func(cmd *cobra.Command, args []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			log := c.logger(cfg)
			change, err := app.DropPartition(cmd.Context(), cfg, table, args[0], failed, true, log)
			if err != nil {
				return err
			}
			if dryRun {
				return c.printAs(asJSON, change)
			}
			if err := c.confirm(yes, fmt.Sprintf("partition %s of %s would be dropped with its rows", args[0], change.Table)); err != nil {
				return err
			}
			if change, err = app.DropPartition(cmd.Context(), cfg, table, args[0], failed, false, log); err != nil {
				return err
			}
			return c.printAs(asJSON, change)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().BoolVar(&failed, "failed", false, "FAILED rows may go with it")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would go")
	partitionFlags(cmd, &table, &asJSON)
	return cmd
}
