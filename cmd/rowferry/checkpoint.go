package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "checkpoint", Short: "The saved position: what it is, and its change"}
	cmd.AddCommand(c.checkpointShowCommand(), c.checkpointSetCommand(), c.checkpointResetCommand())
	return cmd
}

func (c *cli) checkpointShowCommand() *cobra.Command {
	var asJSON bool
	show := &cobra.Command{
		Use:     "show",
		Short:   "Show the saved position and who saved it",
		Example: "  rowferry checkpoint show",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			saved, err := app.ShowCheckpoint(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(saved)
			}
			return saved.Print(c.stdout)
		}),
	}
	show.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return show
}

func (c *cli) checkpointSetCommand() *cobra.Command {
	return c.changeCheckpoint(&cobra.Command{
		Use:   "set POSITION",
		Short: "Have the relay go on from another position; says what is skipped or repeated, and needs --yes",
		Long: `Changes where the relay of this NAME reads on. POSITION is now, earliest, a GTID set,
FILE:POS, or a position as "rowferry checkpoint show" prints it. It says what would be
skipped or read again, and does it with --yes. A position that the source does not serve,
or that is of another server, is refused.

The relay must not run: this needs the leader lock, or the checkpoint file. The epoch is
raised, so that a relay which runs without the lock begins anew from this position.`,
		Example: `  rowferry checkpoint set now                         # only says what it means
  rowferry checkpoint set mysql-bin.000003:157 --yes`,
		Args: cobra.ExactArgs(1),
	})
}

func (c *cli) checkpointResetCommand() *cobra.Command {
	return c.changeCheckpoint(&cobra.Command{
		Use:   "reset",
		Short: "Forget the saved position, so that START_AT applies; needs --yes",
		Long: `Forgets where the relay of this NAME has read to. Its next start begins at
ROWFERRY_START_AT, as the first one did. The epoch goes on growing; a pause, dead letters
and frozen queue lists stay. The relay must not run.`,
		Example: "  ROWFERRY_START_AT=earliest rowferry checkpoint reset --yes",
		Args:    cobra.NoArgs,
	})
}

func (c *cli) changeCheckpoint(cmd *cobra.Command) *cobra.Command {
	var asJSON, yes bool
	cmd.RunE = c.command(func(cmd *cobra.Command, args []string) error {
		position := ""
		if len(args) > 0 {
			position = args[0]
			if err := app.CheckPosition(position); err != nil {
				return err
			}
		}
		cfg, err := c.load()
		if err != nil {
			return err
		}
		log := c.logger(cfg)
		plan, err := app.PlanCheckpoint(cmd.Context(), cfg, position, log)
		if err != nil {
			return err
		}
		if !asJSON {
			if err := plan.Print(c.stdout); err != nil {
				return err
			}
		}
		refused := c.confirm(yes, "the saved position would be changed")
		if refused == nil {
			plan, err = app.ApplyCheckpoint(cmd.Context(), cfg, plan, log)
			if err == nil && !asJSON {
				_, err = fmt.Fprintln(c.stdout, "done")
			}
		}
		if asJSON {
			err = errors.Join(err, json.NewEncoder(c.stdout).Encode(plan))
		}
		return errors.Join(err, refused)
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
