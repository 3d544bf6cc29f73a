package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) sweepCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Sweep the tables once, until nothing eligible is left",
		Long: `Sweeps the tables once: through the running relay of this NAME if one answers,
else by itself under the leader lock. Prints what became of the rows.`,
		Example: "  rowferry sweep --json",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			result, err := app.Sweep(cmd.Context(), cfg, c.logger(cfg))
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(result)
			}
			_, err = fmt.Fprintf(c.stdout, "sent      %d\nfailed    %d\nattempts  %d\nreleased  %d\n",
				result.Sent, result.Failed, result.Attempts, result.Released)
			return err
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
