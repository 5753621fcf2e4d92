package api_test

import (
	"context"
	"testing"
	"time"
)

// TestPrintedProgram: the program of docs/go.md starts, and ends in order.
func TestPrintedProgram(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	if err := run(ctx); err != nil {
		t.Error(err)
	}
}
