package app

import (
	"context"
	"os"
	"os/user"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
)

// audit begins the line of the log that says who had what done. Every action of an
// operator that changes rows, positions or the relay's conduct writes one, whether or not
// it came to its end: add what was asked for, how many rows it concerned, and the error,
// then send it. Payloads and secrets have no place in it.
//
//	audit(ctx, log, "dead requeue").Int("rows", n).Err(err).Send()
func audit(ctx context.Context, log zerolog.Logger, action string) *zerolog.Event {
	return log.Info().Bool("audit", true).Str("action", action).Str("by", whoAsks(ctx))
}

// whoAsks is the caller of an action over HTTP, or the user who runs this command.
func whoAsks(ctx context.Context) string {
	if who := admin.CallerOf(ctx); who != "" {
		return who
	}
	return osUser()
}

// osUser names the user of this process and the host, as far as the system tells.
func osUser() string {
	name := "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// asCaller has a client of the relay say who runs this command.
func asCaller(ctx context.Context) context.Context { return admin.WithCaller(ctx, osUser()) }
