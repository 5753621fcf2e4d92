package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/wire"
)

// fullDisk takes so many bytes.
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
	c := newControl(t, 0)
	tenants := filepath.Join(t.TempDir(), "tenants.yaml")
	if err := os.WriteFile(tenants, []byte("tenants: { a: { burst: 2 }, b: { burst: 3 } }"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"tenant", "diff", "--admin", c.url, "-f", tenants}, {"tenant", "diff", "--admin", c.url, "-f", tenants, "--json"}, {"tenant", "get", "acme", "--admin", c.url},
		{"simulate", "--generate", "steady", "--for", "1s"}, {"recommend", "--generate", "steady", "--for", "1s", "--wait-p99", "10s"}, {"version"}, {"completion", "bash"},
	} {
		var whole, errs bytes.Buffer
		if code := run(t.Context(), args, stdio{Out: &whole, Err: &errs}, nil); code != exitOK {
			t.Fatalf("%v: %s", args, errs.String())
		}
		for _, n := range []int{0, whole.Len() / 2, whole.Len() - 1} {
			errs.Reset()
			if code := run(t.Context(), args, stdio{Out: &fullDisk{n}, Err: &errs}, nil); code != exitFailed || !strings.Contains(errs.String(), "the disk is full") {
				t.Errorf("%v after %d of %d bytes: exit code %d, %s", args, n, whole.Len(), code, errs.String())
			}
		}
	}
	job := wire.Job{State: "dead", Created: time.Now(), AttemptLog: []wire.Attempt{{}}, Response: &wire.Response{Status: 400, Headers: map[string]string{"A": "1"}}}
	for _, print := range []func(w io.Writer) error{
		func(w io.Writer) error { return showJob(w, job) }, func(w io.Writer) error { return printJob(w, job, false) },
		func(w io.Writer) error { return showJob(w, wire.Job{Done: true}) },
	} {
		var whole bytes.Buffer
		if err := print(&whole); err != nil {
			t.Fatal(err)
		}
		for n := range whole.Len() {
			if print(&fullDisk{n}) == nil {
				t.Errorf("no error after %d bytes of\n%s", n, whole.String())
			}
		}
	}
}
