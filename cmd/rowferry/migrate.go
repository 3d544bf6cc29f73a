package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/migrations"
)

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "rowferry's own tables: make them, list them, print their SQL",
	}
	cmd.AddCommand(c.migrateUp(), c.migrateStatus(), c.migratePrint())
	return cmd
}

func (c *cli) migrateUp() *cobra.Command {
	var o migrations.Options
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Make the tables that are missing",
		Example: "  rowferry migrate up --outbox   # an outbox table in our layout as well",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			store, err := c.openStore()
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // the work is done and committed
			applied, err := migrations.Up(cmd.Context(), store.DB, o)
			for _, name := range applied {
				if _, err := fmt.Fprintln(c.stdout, "applied", name); err != nil {
					return err
				}
			}
			if err == nil && len(applied) == 0 {
				_, err = fmt.Fprintln(c.stdout, "nothing to do")
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&o.Outbox, "outbox", false, "also make an outbox table")
	return cmd
}

func (c *cli) migrateStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "List the steps and whether they are applied",
		Example: "  rowferry migrate status",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			store, err := c.openStore()
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // nothing was written
			steps, err := migrations.Status(cmd.Context(), store.DB)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(steps)
			}
			return c.printSteps(steps)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func (c *cli) printSteps(steps []migrations.Migration) error {
	w := tabwriter.NewWriter(c.stdout, 0, 4, 2, ' ', 0)
	for _, s := range steps {
		state := "pending"
		if s.Applied {
			state = "applied"
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\n", s.Name, state); err != nil {
			return err
		}
	}
	return w.Flush()
}

func (c *cli) migratePrint() *cobra.Command {
	var o migrations.Options
	cmd := &cobra.Command{
		Use:     "print",
		Short:   "Print the SQL, for teams that run their own DDL",
		Example: "  rowferry migrate print --outbox | mysql shop",
		Args:    cobra.NoArgs,
		RunE: c.command(func(*cobra.Command, []string) error {
			return migrations.Print(c.stdout, o)
		}),
	}
	cmd.Flags().BoolVar(&o.Outbox, "outbox", false, "also an outbox table")
	return cmd
}

func (c *cli) openStore() (*app.Store, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	return app.OpenStore(cfg)
}
