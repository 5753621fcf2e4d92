package main

import (
	"syscall"
	"testing"
	"time"
)

// TestSignalTwiceAtOnce: timeout(1) sends its signal to the process and to its group. That is one
// stop, and in order.
func TestSignalTwiceAtOnce(t *testing.T) {
	ctx, stop := signalContext()
	defer stop()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} { // two of one kind may merge
		if err := syscall.Kill(syscall.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the signal did not end the context")
	}
	time.Sleep(sameSignal / 5) // for the second one, which would end this process
}
