package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/version"
)

func (c *cli) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, date and Go version",
		Example: "  rowferry version --json",
		Args:    cobra.NoArgs,
		RunE: c.command(func(*cobra.Command, []string) error {
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(version.Get())
			}
			_, err := fmt.Fprintln(c.stdout, version.Get())
			return err
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
