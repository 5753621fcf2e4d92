package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// sameSignal is how soon after the first signal others are the same wish: timeout(1) signals a
// process and its group, and so does what passes on Ctrl-C of a terminal.
const sameSignal = 250 * time.Millisecond

// signalContext returns a context that ends with the first SIGTERM or SIGINT, so that the process
// can stop in order. A second signal ends the process at once, with exit code 1.
func signalContext() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	done := make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		first := time.Now()
		for {
			select {
			case s := <-signals:
				if time.Since(first) > sameSignal {
					fmt.Fprintf(os.Stderr, "sluice: second signal (%v): ending at once\n", s)
					os.Exit(cli.ExitFailed)
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
