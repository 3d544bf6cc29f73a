package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) replayCommand() *cobra.Command {
	var by admin.ReplayFilter
	var since, until string
	var asJSON, yes bool
	cmd := &cobra.Command{
		Use:   "replay --since T --until T",
		Short: "Publish rows again that are SENT; needs --yes",
		Long: `Publishes the SENT rows once more that were created from --since on and before
--until, oldest first: through the running relay of this NAME if one answers, else by
itself under the leader lock. Consumers get copies with the same outbox_uid and a newer
outbox_seq, behind whatever was published since. The rows stay SENT. Rows of parked
lanes and of keys that wait for a dead letter are not sent, and counted as released.`,
		Example: `  rowferry replay --since 2026-01-31T10:00:00Z --until 2026-01-31T11:00:00Z --dry-run
  rowferry replay --since 2h --until 1h --key customer-7 --yes`,
		Args: cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			for name, flag := range map[string]struct {
				text string
				into *time.Time
			}{"--since": {since, &by.Since}, "--until": {until, &by.Until}} {
				var err error
				if *flag.into, err = app.ParseWhen(flag.text, now); err != nil {
					return usageError{fmt.Errorf("%s %w", name, err)}
				}
			}
			if mistake := by.Mistake(); mistake != "" {
				return usageError{errors.New(mistake)}
			}
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if !by.DryRun && !yes {
				would := by
				would.DryRun = true
				counted, err := app.Replay(cmd.Context(), cfg, would, c.logger(cfg))
				if err != nil {
					return err
				}
				if err := c.confirm(yes, fmt.Sprintf("%d rows would be published again", counted.Selected)); err != nil {
					return err
				}
			}
			done, err := app.Replay(cmd.Context(), cfg, by, c.logger(cfg))
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(done)
			}
			return app.PrintReplayed(c.stdout, done)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&since, "since", "", "rows created at this moment or later: 2026-01-31T15:04:05Z, a date, or how long ago, as 24h (required)")
	flags.StringVar(&until, "until", "", "rows created before this moment (required)")
	flags.StringVar(&by.Table, "table", "", "only of this table, as table or schema.table")
	flags.StringVar(&by.Type, "type", "", "only of this event type")
	flags.StringVar(&by.Key, "key", "", "only of this ordering key")
	flags.BoolVar(&by.DryRun, "dry-run", false, "only count the rows")
	flags.BoolVar(&yes, "yes", false, "do it")
	flags.BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
