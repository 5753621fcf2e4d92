package codec

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/7509e464/sluice/queue"
)

// TestFirstsAgreeWithSort: Firsts returns the beginning of the sorted list.
func TestFirstsAgreeWithSort(t *testing.T) {
	for range 200 {
		list := make([]int, rand.IntN(60))
		for i := range list {
			list[i] = rand.IntN(20)
		}
		n := rand.IntN(30)
		want := slices.Sorted(slices.Values(list))
		if got := Firsts(list, n, cmp.Compare[int]); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("the first %d of %v are %v", n, list, got)
		}
	}
}

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
