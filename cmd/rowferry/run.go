package main

import (
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/config"
)

func (c *cli) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Relay until SIGTERM: binlog path, sweep, ledger, checkpoint and HTTP",
		Long: `Relays until SIGTERM or SIGINT, then drains within ROWFERRY_DRAIN_TIMEOUT; a
second signal exits at once. A database or broker that is away is waited for;
only mistakes in the environment end the process with exit code 2.`,
		Example: `  ROWFERRY_SOURCE_DSN='ferry:secret@tcp(127.0.0.1:3306)/shop' \
  ROWFERRY_ROCKETMQ_NAMESRV=127.0.0.1:9876 rowferry run`,
		Args: cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			r, err := app.NewRelay(cfg, c.logger(cfg))
			if err != nil {
				return usageError{err}
			}
			c.limitMemory(cfg)
			return r.Run(cmd.Context())
		}),
	}
}

// limitMemory tells the collector what the budget of what is in flight implies.
// Left alone it lets the heap grow to twice what is live, which through an outage
// is the whole budget; near the limit it collects more often instead. What the
// operator has set for the collector is left alone.
func (c *cli) limitMemory(cfg *config.Config) {
	const rest = 32 << 20 // all that is not in flight, in bytes
	const growth = 80     // percent; measured in drains: a tenth less memory than 100
	given := func(name string) bool {
		return slices.ContainsFunc(c.environ, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
	}
	if !given("GOGC") {
		debug.SetGCPercent(growth)
	}
	if !given("GOMEMLIMIT") {
		debug.SetMemoryLimit(rest + int64(cfg.InflightBytesMax)*3/2)
	}
}
