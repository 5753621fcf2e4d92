package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/redistest"
)

// A process of another environment does not start on the Redis of this one, and says both names.
func TestAnotherEnvironmentDoesNotStart(t *testing.T) {
	url := redistest.Start(t).URL()
	processtest.Start(t, map[string]any{
		"redis": map[string]any{"url": url}, "store": map[string]any{"environment": "production"},
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
	})
	for given, says := range map[string]string{
		"--store-environment=staging": "store.environment: staging: the store belongs to another environment: it is of production",
		"--store-environment=":        "store.environment: not set: the store belongs to another environment: it is of production",
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), []string{"serve", "--route=default=http://127.0.0.1:9/", "--redis-url", url, given,
			"--redis-allow-unsafe", "--api=127.0.0.1:0", "--admin=127.0.0.1:0"},
			cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
		if code != cli.ExitUsage || !strings.Contains(errs.String(), says) {
			t.Errorf("%s: exit code %d\n%s", given, code, errs.String())
		}
	}
}
