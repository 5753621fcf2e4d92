// Command sluice is a queue-backed leaky-bucket request shaper: serve runs it, dev tries it out,
// the other commands are its clients. sluice --help lists them.
//
// The program wires the packages together and owns what belongs to a process: settings (package
// config), signals, the order of starting and stopping, exit codes and what is printed.
package main

import (
	"context"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// silence discards the log of the Redis client. Its failures are returned as errors and logged
// once.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// dropEmpty unsets empty variables of Sluice, because compose files cannot omit a variable. An
// empty variable is not set, for flags and for settings.
func dropEmpty(environ []string) {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); value == "" && strings.HasPrefix(name, "SLUICE_") {
			_ = os.Unsetenv(name) // fails for invalid names alone
		}
	}
}

func main() {
	redis.SetLogger(silence{})
	dropEmpty(os.Environ())
	ctx, stop := signalContext()
	code := Run(ctx, os.Args[1:], cli.Screens(cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}), os.Environ())
	stop()
	os.Exit(code)
}
