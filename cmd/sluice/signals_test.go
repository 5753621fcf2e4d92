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
	for range 2 {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
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
