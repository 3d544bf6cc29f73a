package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "checkpoint", Short: "The saved position"}
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
	cmd.AddCommand(show)
	return cmd
}
