package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "Dead letters: rows that were given up as FAILED",
		Long: `Dead letters are rows that can never be published as they are, or whose attempts are
used up. They stay in the table as FAILED, with the reason. These commands list and show
them, have them tried again, or note that they need not be sent.`,
	}
	cmd.AddCommand(c.deadListCommand(), c.deadShowCommand(), c.deadRequeueCommand(), c.deadDiscardCommand())
	return cmd
}

// deadFlags are the filters as they are given.
type deadFlags struct {
	by           admin.DeadFilter
	since, until string
	asJSON       bool
}

func (f *deadFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.by.Table, "table", "", "only of this table, as table or schema.table")
	flags.StringVar(&f.by.Type, "type", "", "only of this event type")
	flags.StringVar(&f.by.Key, "key", "", "only of this ordering key (ROUTE_KEY: the aggregate id, by default)")
	flags.StringVar(&f.since, "since", "", "only rows created at this moment or later: 2026-01-31T15:04:05Z, a date, or how long ago, as 24h")
	flags.StringVar(&f.until, "until", "", "only rows created before this moment")
	flags.StringArrayVar(&f.by.IDs, "id", nil, "only this id (may be repeated)")
	flags.IntVar(&f.by.Limit, "limit", 0, "at most so many")
	flags.BoolVar(&f.by.Discarded, "discarded", false, "also those that were discarded")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON document")
}

// filter reads the flags.
func (f *deadFlags) filter() (admin.DeadFilter, error) {
	for name, flag := range map[string]struct {
		text string
		into **time.Time
	}{"--since": {f.since, &f.by.Since}, "--until": {f.until, &f.by.Until}} {
		if flag.text == "" {
			continue
		}
		t, err := app.ParseWhen(flag.text, time.Now())
		if err != nil {
			return f.by, usageError{fmt.Errorf("%s %w", name, err)}
		}
		*flag.into = &t
	}
	if mistake := f.by.Mistake(); mistake != "" {
		return f.by, usageError{errors.New(mistake)}
	}
	return f.by, nil
}

func (c *cli) deadListCommand() *cobra.Command {
	var f deadFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, by created_at: the first 100, or as many as --limit says",
		Example: `  rowferry dead list
  rowferry dead list --type order.paid --since 24h --json | jq -r '.dead[].reason'`,
		Args: cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			by, err := f.filter()
			if err != nil {
				return err
			}
			cfg, err := c.load()
			if err != nil {
				return err
			}
			page, err := app.DeadList(cmd.Context(), cfg, by, c.logger(cfg))
			if err != nil {
				return err
			}
			if f.asJSON {
				return json.NewEncoder(c.stdout).Encode(page)
			}
			return app.PrintDead(c.stdout, page)
		}),
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.by.All, "all", false, "list without a filter, which is the default")
	return cmd
}

func (c *cli) deadShowCommand() *cobra.Command {
	var table string
	var payload, asJSON bool
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show all there is to one dead letter; its payload and headers only with --payload",
		Example: "  rowferry dead show 4711 --payload",
		Args:    cobra.ExactArgs(1),
		RunE: c.command(func(cmd *cobra.Command, args []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			letter, err := app.DeadShow(cmd.Context(), cfg, table, args[0], payload, c.logger(cfg))
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(letter)
			}
			return app.PrintDeadLetter(c.stdout, letter)
		}),
	}
	cmd.Flags().StringVar(&table, "table", "", "the table, where several have this id")
	cmd.Flags().BoolVar(&payload, "payload", false, "with payload and headers")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func (c *cli) deadRequeueCommand() *cobra.Command {
	return c.deadRevise(false, &cobra.Command{
		Use:   "requeue",
		Short: "Have dead letters tried again, once what was wrong with them is mended",
		Long: `Makes the dead letters that are selected PENDING again, as if they had never been
tried, and sends them: through the running relay of this NAME if one answers, else by
itself under the leader lock. Rows that somebody has changed meanwhile are left alone.

With ON_DEAD=skip they arrive behind the later events of their keys. With ON_DEAD=block
the later events have waited, and follow them in their order.`,
		Example: `  rowferry dead requeue --type order.paid --dry-run
  rowferry dead requeue --id 4711 --id 4712
  rowferry dead requeue --all`,
	})
}

func (c *cli) deadDiscardCommand() *cobra.Command {
	return c.deadRevise(true, &cobra.Command{
		Use:   "discard",
		Short: "Note that dead letters need not be sent; needs --yes",
		Long: `Notes that the dead letters that are selected need not be sent. Their rows stay FAILED,
and last_error begins with "discarded: "; lists leave them out unless --discarded is
given, and "dead requeue --discarded" still finds them. With ON_DEAD=block the later
events of their keys go on, which cannot be undone.`,
		Example: "  rowferry dead discard --key customer-7 --yes",
	})
}

func (c *cli) deadRevise(discard bool, cmd *cobra.Command) *cobra.Command {
	var f deadFlags
	var yes bool
	cmd.Args = cobra.NoArgs
	cmd.RunE = c.command(func(cmd *cobra.Command, _ []string) error {
		by, err := f.filter()
		if err != nil {
			return err
		}
		if !by.Selects() {
			return usageError{errors.New("nothing is selected: give a filter, or --all for all dead letters")}
		}
		cfg, err := c.load()
		if err != nil {
			return err
		}
		if discard && !by.DryRun && !yes {
			would := by
			would.DryRun = true
			counted, err := app.DeadRevise(cmd.Context(), cfg, discard, would, c.logger(cfg))
			if err != nil {
				return err
			}
			if err := c.confirm(yes, fmt.Sprintf("%d dead letters would be discarded", counted.Selected)); err != nil {
				return err
			}
		}
		done, err := app.DeadRevise(cmd.Context(), cfg, discard, by, c.logger(cfg))
		if err != nil {
			return err
		}
		if f.asJSON {
			return json.NewEncoder(c.stdout).Encode(done)
		}
		return app.PrintDeadDone(c.stdout, done)
	})
	f.add(cmd)
	cmd.Flags().BoolVar(&f.by.All, "all", false, "all dead letters, as far as no filter says otherwise")
	cmd.Flags().BoolVar(&f.by.DryRun, "dry-run", false, "only count them")
	if discard {
		cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	}
	return cmd
}
