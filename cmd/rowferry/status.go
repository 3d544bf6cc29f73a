package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how the relay stands: from the running one, else from the database",
		Long: `Asks the running relay through its HTTP address. When none answers, shows
checkpoint and backlog from the database.`,
		Example: "  rowferry status --json | jq .backlog",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			status, err := app.Status(cmd.Context(), cfg, c.logger(cfg))
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(status)
			}
			return app.PrintStatus(c.stdout, status)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
