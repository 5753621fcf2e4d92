package api_test

import (
	"context"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
)

// TestPrintedProgram: the program of docs/go.md starts, and ends in order.
func TestPrintedProgram(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	if err := run(ctx, api.Addresses{Intake: "127.0.0.1:0", Admin: "127.0.0.1:0"}); err != nil {
		t.Error(err)
	}
}
