// Command sluice is a queue-backed leaky-bucket request shaper: serve runs it, dev tries it out, the other commands are
// its clients. sluice --help lists them.
//
// The program wires the packages together and owns what belongs to a process: settings (package config), signals, the
// order of starting and stopping, exit codes and what is printed.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"
)

// silence keeps the Redis client from writing to stderr by itself: what matters of it comes back as an error and is logged once.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silence{})
	ctx, stop := signalContext()
	code := run(ctx, os.Args[1:], stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Environ())
	stop()
	os.Exit(code)
}
