package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) pauseCommand() *cobra.Command {
	return c.switchCommand(true, &cobra.Command{
		Use:   "pause",
		Short: "Have nothing published until resume, whoever leads; survives restarts",
		Long: `Writes down that publishing is paused: through the running relay of this NAME if one
answers, which then returns when nothing is being sent any more; else in the checkpoint
row, which a relay that runs elsewhere looks at every 2 seconds, or in the checkpoint
file. It holds for whoever leads, over restarts, until "rowferry resume".

Nothing is lost: events wait in the relay, then in the binlog (keep it long enough) and
in the table. While it is paused a relay is not ready, sweeps nothing and purges nothing.`,
		Example: "  rowferry pause\n  rowferry resume",
	})
}

func (c *cli) resumeCommand() *cobra.Command {
	return c.switchCommand(false, &cobra.Command{
		Use:     "resume",
		Short:   "End a pause",
		Long:    `Ends what "rowferry pause" began: what waited is published, in its order.`,
		Example: "  rowferry resume --json",
	})
}

func (c *cli) switchCommand(on bool, cmd *cobra.Command) *cobra.Command {
	var asJSON bool
	cmd.Args = cobra.NoArgs
	cmd.RunE = c.command(func(cmd *cobra.Command, _ []string) error {
		cfg, err := c.load()
		if err != nil {
			return err
		}
		done, err := app.SetPaused(cmd.Context(), cfg, on, c.logger(cfg))
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.stdout).Encode(done)
		}
		return app.PrintPausing(c.stdout, done)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
