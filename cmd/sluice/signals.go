package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

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
		select {
		case s := <-signals:
			fmt.Fprintf(os.Stderr, "sluice: second signal (%v): ending at once\n", s)
			os.Exit(cli.ExitFailed)
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
