package main

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

// fullDisk accepts left bytes.
type fullDisk struct{ left int }

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.left)
	if d.left -= n; n < len(p) {
		return n, errors.New("the disk is full")
	}
	return n, nil
}

// A command whose output could not be written whole has failed, wherever it broke.
func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	server, err := api.New(queuetest.NewDesk(t, queue.Options{}).Queue, api.Config{
		Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := httptest.NewServer(server.Admin())
	defer admin.Close()
	tenants := filepath.Join(t.TempDir(), "tenants.yaml")
	if err := os.WriteFile(tenants, []byte("tenants: { a: { burst: 2 }, b: { burst: 3 } }"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"tenant", "diff", "--admin", admin.URL, "-f", tenants}, {"tenant", "diff", "--admin", admin.URL,
			"-f", tenants, "--json"}, {"tenant", "get", "acme", "--admin", admin.URL},
		{"simulate", "--generate", "steady", "--for", "1s"}, {"recommend", "--generate", "steady", "--for",
			"1s", "--wait-p99", "10s"}, {"version"}, {"completion", "bash"},
	} {
		var whole, errs bytes.Buffer
		if code := Run(t.Context(), args, cli.Stdio{Out: &whole, Err: &errs}, nil); code != cli.ExitOK {
			t.Fatalf("%v: %s", args, errs.String())
		}
		for _, n := range []int{0, whole.Len() / 2, whole.Len() - 1} {
			errs.Reset()
			if code := Run(t.Context(), args, cli.Stdio{Out: &fullDisk{n}, Err: &errs},
				nil); code != cli.ExitFailed || !strings.Contains(errs.String(), "the disk is full") {
				t.Errorf("%v after %d of %d bytes: exit code %d, %s", args, n, whole.Len(), code, errs.String())
			}
		}
	}
}
