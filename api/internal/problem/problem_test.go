package problem

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/7509e464/sluice/queue"
)

// TestStoreThatAnswers: a store that has refused a change is not said to have been silent, and
// perhaps to have made it.
func TestStoreThatAnswers(t *testing.T) {
	full := errors.New("OOM command not allowed when used memory > 'maxmemory'.")
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: %w", queue.ErrUnavailable, errors.New("i/o timeout")), "it did not answer: a change may have been made, or not"},
		{fmt.Errorf("%w: %w: %w", queue.ErrUnavailable, queue.ErrState, full), "it is at its maxmemory"},
		{fmt.Errorf("%w: %w", queue.ErrUnavailable, queue.ErrState), "it answers that it cannot serve now"},
		{queue.ErrRefused, "the store has too few replicas"},
	} {
		p := Of(c.err)
		if p.Type != URN+StorageUnavailable.Name || !strings.HasPrefix(p.Detail, c.want) {
			t.Errorf("%v: %+v, want %q", c.err, p, c.want)
		}
	}
}
