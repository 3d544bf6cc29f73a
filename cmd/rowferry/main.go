// Command rowferry carries rows of a transactional outbox table from MySQL or
// MariaDB to Apache RocketMQ. Each subcommand is a file of its own: it parses,
// has internal/app build what it needs, runs it, and maps the result to an exit
// code.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/app"
	"github.com/rowferry/rowferry/internal/config"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // wrong usage or configuration
)

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

// run is main with its surroundings given.
func run(args, environ []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	c := &cli{environ: environ, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return c.report(root.ExecuteContext(ctx))
}

// cli is what every subcommand is given.
type cli struct {
	environ        []string
	stdout, stderr io.Writer
	entered        bool // a command's own code has begun: errors are no longer about usage
}

// usageError is a mistake in the command line or in the environment.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errQuiet ends a command with exit code 1 after it has said everything itself.
var errQuiet = errors.New("failed")

func (c *cli) report(err error) int {
	var usage usageError
	var mistake app.ConfigError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errQuiet):
		return exitFailed
	case errors.As(err, &usage), errors.As(err, &mistake), !c.entered:
		for _, line := range strings.Split(err.Error(), "\n") {
			fmt.Fprintln(c.stderr, "rowferry:", line) //nolint:errcheck // nowhere left to say it
		}
		return exitUsage
	default:
		fmt.Fprintln(c.stderr, "rowferry:", err) //nolint:errcheck // nowhere left to say it
		return exitFailed
	}
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "rowferry",
		Short:         "Carries transactional outbox rows from MySQL or MariaDB to Apache RocketMQ",
		SilenceUsage:  true,
		SilenceErrors: true,
		Long: `rowferry tails the binlog of MySQL or MariaDB for INSERTs on an outbox table and
publishes each row to Apache RocketMQ a few milliseconds after the commit. It is
configured by environment variables only: see "rowferry config docs".`,
	}
	root.AddCommand(c.runCommand(), c.tailCommand(), c.sweepCommand(), c.doctorCommand(), c.statusCommand(),
		c.pauseCommand(), c.resumeCommand(), c.purgeCommand(), c.deadCommand(), c.replayCommand(), c.partitionCommand(),
		c.checkpointCommand(), c.topicsCommand(), c.migrateCommand(), c.configCommand(), c.healthcheckCommand(), c.versionCommand())
	return root
}

// command wraps a subcommand's function so that errors before and in it can be
// told apart.
func (c *cli) command(do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c.entered = true
		return do(cmd, args)
	}
}

// load reads the configuration; its mistakes are usage errors.
func (c *cli) load(options ...config.Option) (*config.Config, error) {
	cfg, err := config.Load(c.environ, options...)
	if err != nil {
		return nil, usageError{err}
	}
	return cfg, nil
}

// logger writes to stderr as LOG_FORMAT says: JSON unless on a terminal.
func (c *cli) logger(cfg *config.Config) zerolog.Logger {
	level, err := zerolog.ParseLevel(cfg.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // config accepts no other names than zerolog's
	}
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	var w = c.stderr
	if cfg.LogFormat == "console" || cfg.LogFormat == "auto" && isTerminal(c.stderr) {
		w = zerolog.ConsoleWriter{Out: c.stderr, TimeFormat: "15:04:05.000"}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Str("name", cfg.Name).Logger()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
