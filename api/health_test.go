package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/7509e464/sluice/queue"
)

// TestAnotherFileIsShown: a process whose file is not in force is ready, and says so; the figures
// count all such processes.
func TestAnotherFileIsShown(t *testing.T) {
	for _, differs := range []bool{false, true} {
		b := newBench(t)
		if differs {
			b.queue.SetAgreement(queue.Agreement{Differing: 2})
		}
		if r := b.intake.do(t, "GET", "/readyz", nil, ""); r.Code != 200 ||
			strings.Contains(r.Body.String(), "not in force") != differs {
			t.Errorf("differs %v: /readyz is %d %s", differs, r.Code, r.Body)
		}
		if r := b.admin.do(t, "GET", "/v1/stats", nil, ""); r.Code != 200 ||
			strings.Contains(r.Body.String(), `"differing_processes":2`) != differs {
			t.Errorf("differs %v: /v1/stats is %d %s", differs, r.Code, r.Body)
		}
	}
}

// TestReadyzSaysWhatToSet: /readyz says what to set where Redis refuses the process. For a Redis
// that is away it does not.
func TestReadyzSaysWhatToSet(t *testing.T) {
	b := newBench(t)
	for text, want := range map[string]string{
		"WRONGPASS invalid username-password pair": "the store cannot be used: it refuses the user or the password",
		"i/o timeout": "the store does not answer",
	} {
		b.queue.Fail(fmt.Errorf("%w: %s", queue.ErrUnavailable, text))
		if r := b.admin.do(t, "GET", "/readyz", nil, ""); r.Code != 503 ||
			!strings.Contains(r.Body.String(), want) {
			t.Errorf("%s: /readyz is %d %s, want %q", text, r.Code, r.Body, want)
		}
	}
}
