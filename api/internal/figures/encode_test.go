package figures

import (
	"context"
	"fmt"
	"testing"

	"github.com/7509e464/sluice/queue"
)

func TestStoreErrors(t *testing.T) {
	for text, want := range map[string]string{
		"OOM command not allowed": "out of memory", "i/o timeout": "no answer in time",
		"BUSY Redis is busy":                         "busy with a script",
		"WRONGPASS invalid username-password pair":   "refuses the credentials",
		"CLUSTERDOWN":                                "part of the cluster is down",
		"dial tcp 10.1.2.3:6379: connection refused": "cannot be reached",
	} {
		if got := storeError(fmt.Errorf("%w: %s", queue.ErrUnavailable, text)); got != want {
			t.Errorf("%s is shown as %q, want %q", text, got, want)
		}
	}
	if got := storeError(fmt.Errorf("x: %w", context.DeadlineExceeded)); got != "no answer in time" {
		t.Error(got)
	}
}
