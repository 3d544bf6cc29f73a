package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/config"
)

func (c *cli) healthcheckCommand() *cobra.Command {
	var ready bool
	cmd := &cobra.Command{
		Use:     "healthcheck",
		Short:   "Ask the running relay whether it is alive, for container health checks",
		Example: "  rowferry healthcheck --ready",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load(config.SourceOptional())
			if err != nil {
				return err
			}
			if err := app.Healthcheck(cmd.Context(), cfg, ready); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.stdout, "ok")
			return err
		}),
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it is ready, not only alive")
	return cmd
}
