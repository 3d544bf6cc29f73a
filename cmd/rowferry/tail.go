package main

import (
	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) tailCommand() *cobra.Command {
	var o app.TailOptions
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print what would be published, one JSON line an event; sends, marks and saves nothing",
		Example: `  rowferry tail                              # what is committed from now on
  rowferry tail --from earliest --limit 10
  rowferry tail --from mysql-bin.000003:157`,
		Args: cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			return app.Tail(cmd.Context(), cfg, o, c.stdout, c.logger(cfg))
		}),
	}
	cmd.Flags().StringVar(&o.From, "from", "now", "where to begin: now, earliest, checkpoint, a GTID set or FILE:POS")
	cmd.Flags().IntVar(&o.Limit, "limit", 0, "end after this many events (0: go on until interrupted)")
	return cmd
}
