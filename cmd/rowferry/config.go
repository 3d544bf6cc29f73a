package main

import (
	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/config"
)

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "The configuration: what is in force, and what there is"}
	var asJSON bool
	print := &cobra.Command{
		Use:     "print",
		Short:   "Print the effective configuration with its origins; secrets are hidden",
		Example: "  rowferry config print --json",
		Args:    cobra.NoArgs,
		RunE: c.command(func(*cobra.Command, []string) error {
			cfg, err := c.load(config.SourceOptional())
			if err != nil {
				return err
			}
			if asJSON {
				return cfg.PrintJSON(c.stdout)
			}
			return cfg.PrintTable(c.stdout)
		}),
	}
	print.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	docs := &cobra.Command{
		Use:     "docs",
		Short:   "Print the reference page of all variables, in Markdown",
		Example: "  rowferry config docs > docs/configuration.md",
		Args:    cobra.NoArgs,
		RunE:    c.command(func(*cobra.Command, []string) error { return config.Docs(c.stdout) }),
	}
	cmd.AddCommand(print, docs)
	return cmd
}
