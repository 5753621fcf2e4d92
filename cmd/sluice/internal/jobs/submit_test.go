package jobs

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// A submit that waits for its payload from a terminal can be interrupted.
func TestPayloadThatDoesNotComeCanBeInterrupted(t *testing.T) {
	in, typing := io.Pipe()
	defer typing.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"submit", "--type", "t"},
			cli.Stdio{In: in, Out: io.Discard, Err: &errs}, nil)
	}()
	if _, err := typing.Write([]byte("{")); err != nil { // it reads
		t.Fatal(err)
	}
	cancel()
	select {
	case code := <-ended:
		if code != cli.ExitFailed || errs.String() != "sluice: read the payload: interrupted\n" {
			t.Errorf("exit code %d\n%s", code, errs.String())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it reads on")
	}
}
