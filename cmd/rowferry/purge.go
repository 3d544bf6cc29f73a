package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) purgeCommand() *cobra.Command {
	var asJSON, dryRun bool
	var age time.Duration
	cmd := &cobra.Command{
		Use:   "purge --older-than DURATION",
		Short: "Delete rows that were sent long ago; never any that is not SENT",
		Long: `Deletes the rows of the outbox tables that are SENT and were sent longer ago than
DURATION by the database's clock: by the column sent_at, or updated_at, or created_at,
whichever the table has. Rows that are PENDING, PROCESSING or FAILED stay, however old.

It goes in small batches by primary key, with a pause behind each, so that applications
do not feel it, and may run beside the relay. Set ROWFERRY_OUTBOX_RETENTION to have the
running relay do the same all the time. The account needs DELETE on the tables.`,
		Example: `  rowferry purge --older-than 168h --dry-run    # counts them
  rowferry purge --older-than 168h`,
		Args: cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			if age < time.Second {
				return usageError{errors.New("--older-than: wanted a duration of at least 1s, such as 168h")}
			}
			cfg, err := c.load()
			if err != nil {
				return err
			}
			done, err := app.Purge(cmd.Context(), cfg, age, dryRun, c.logger(cfg))
			if len(done.Tables) == 0 {
				return err
			}
			if asJSON {
				err = errors.Join(err, json.NewEncoder(c.stdout).Encode(done))
			} else {
				err = errors.Join(err, done.Print(c.stdout))
			}
			return err
		}),
	}
	cmd.Flags().DurationVar(&age, "older-than", 0, "how long ago a row must have been sent, such as 168h (required)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count the rows")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
