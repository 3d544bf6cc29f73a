// Command demo is a flash sale that shows rowferry at work: a shop on MySQL sells
// out its stock, a consumer of RocketMQ receives the events, and at the end both
// sides are held against each other.
//
//	demo run       all of it on this machine: servers, relay, shop, consumer
//	demo shop      the shop alone
//	demo consume   the consumer alone; reconciles the sale when it is over
//
// Exit codes: 0 when everything agrees, 1 when it does not or something failed,
// 2 for wrong usage, 130 after Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `A flash sale that shows rowferry at work.

  demo run [--rate N] [--duration D] [--workers N] [--kill]   everything on this machine
  demo shop --dsn DSN [--rate N] [--duration D]               the shop alone
  demo consume --dsn DSN --namesrv HOST:PORT                  the consumer alone

demo COMMAND --help shows the flags of a command.
`

// errDiffers is returned when the two sides do not agree.
var errDiffers = errors.New("the two sides do not agree")

// errUsage is returned when the flag package has already said what is wrong.
var errUsage = errors.New("wrong usage")

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, args)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		return 130
	}
	fmt.Fprintln(os.Stderr, "demo:", err)
	return 1
}

func dispatch(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, []string) error{
		"run": runCommand, "shop": shopCommand, "consume": consumeCommand,
	}
	if len(args) > 0 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
		fmt.Print(usage)
		return nil
	}
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprint(os.Stderr, usage)
		return errUsage
	}
	return commands[args[0]](ctx, args[1:])
}

// parse reads flags and refuses anything beside them.
func parse(flags *flag.FlagSet, args []string) error {
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err != nil {
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "%s: %q is no flag\n", flags.Name(), flags.Arg(0))
		return errUsage
	}
	return nil
}
