package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/doctor"
)

func (c *cli) doctorCommand() *cobra.Command {
	var asJSON, strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything that run relies on, and say what is wrong and what mends it",
		Long: `Looks at databases, rights, tables and broker, one line a check: ok, warn, fail
or skipped, with the value found, the value wanted, and the SQL or setting that
mends it. Changes nothing. Ends with 1 when something fails, and with 2 when the
configuration itself is wrong.`,
		Example: `  rowferry doctor
  rowferry doctor --strict --json | jq '.checks[] | select(.status != "ok")'`,
		Args: cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			report := doctor.Run(cmd.Context(), cfg, c.logger(cfg))
			if asJSON {
				err = json.NewEncoder(c.stdout).Encode(report)
			} else {
				err = report.Print(c.stdout)
			}
			switch {
			case err != nil:
				return err
			case report.Misconfigured():
				return usageError{errors.New("the configuration cannot be used")}
			case !report.Passed(strict):
				return errQuiet
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings too")
	return cmd
}
