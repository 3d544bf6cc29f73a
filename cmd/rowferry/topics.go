package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/rowferry/rowferry/internal/admin"
	"github.com/rowferry/rowferry/internal/app"
)

func (c *cli) topicsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topics",
		Short: "The frozen queue lists of topics: what they are, and their change",
		Long: `The queues of a topic, over which the keys are spread, are frozen when its first
event is sent, so that a broker that comes or goes moves no key. These commands show
and change such lists.`,
	}
	cmd.AddCommand(c.topicsListCommand(), c.topicsRefreezeCommand())
	return cmd
}

func (c *cli) topicsListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Show the frozen queue lists, and how the brokers differ from them now",
		Example: "  rowferry topics list",
		Args:    cobra.NoArgs,
		RunE: c.command(func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			topics, err := app.Topics(cmd.Context(), cfg, c.logger(cfg))
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(topics)
			}
			return app.PrintTopics(c.stdout, topics)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func (c *cli) topicsRefreezeCommand() *cobra.Command {
	var asJSON bool
	var ask admin.RefreezeRequest
	cmd := &cobra.Command{
		Use:   "refreeze TOPIC",
		Short: "Freeze the queues that a topic has now; says which keys move, and needs --yes to do it",
		Long: `Compares the frozen queue list of a topic with the queues that it has now and says
which keys would move; with --yes it replaces the list. A running relay of this NAME
does that without a stop: it sends what is under way for the topic, holds what comes
meanwhile, and goes on by the new list, so the order of each key holds as far as the
broker is concerned. If the queues cannot be drained within 30 s, nothing changes.
When no relay answers, the list is replaced under the leader lock.

Let the consumers catch up before: a message of a key in its old queue may be consumed
after a newer one in its new queue. outbox_seq tells them apart.`,
		Example: `  rowferry topics refreeze orders                    # only says what would move
  rowferry topics refreeze orders --key 4711 --yes`,
		Args: cobra.ExactArgs(1),
		RunE: c.command(func(cmd *cobra.Command, args []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			ask.Topic = args[0]
			done, err := app.Refreeze(cmd.Context(), cfg, ask, c.logger(cfg))
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(c.stdout).Encode(done)
			} else {
				err = app.PrintRefreezing(c.stdout, done)
			}
			if err == nil && done.Changes && !done.Applied {
				err = usageError{errors.New("nothing was changed; add --yes to do it")}
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&ask.Yes, "yes", false, "replace the list")
	cmd.Flags().StringArrayVar(&ask.Keys, "key", nil, "say where this key goes before and after (may be repeated)")
	cmd.Flags().StringArrayVar(&ask.Gone, "gone", nil, "go on without this broker, which is away and will not come back (may be repeated)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}
