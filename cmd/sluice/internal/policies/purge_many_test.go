package policies

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestPurgeManyCommand(t *testing.T) {
	for _, c := range []struct {
		args      []string
		code      int
		out, errs string
		left      int
	}{
		{[]string{"--prefix", "ac", "--all", "--yes"}, cli.ExitOK, "tenants  1\npurged   5", "", 0},
		{[]string{"--prefix", "ac", "--state", "dead", "-y", "--json"}, cli.ExitOK, `"count": 5`, "", 0},
		{[]string{"--prefix", "guest:", "--all", "--yes"}, cli.ExitOK, "purged   0", "", 5},
		{[]string{"--tier", "fre", "--all", "--yes"}, cli.ExitFailed, "", "is free meant?", 5},
		{[]string{"--tier", "free", "--all", "--yes"}, cli.ExitOK, "purged   0", "", 5},
		{[]string{"--prefix", "ac", "--route", "defalt", "--all", "-y"}, cli.ExitOK, "purged   0", "is default meant?", 5},
		{[]string{"--prefix", "ac", "--all", "--dry-run"}, cli.ExitOK, "tenants  1\nwaiting  0\ndead     5", "", 5},
		{[]string{"--prefix", "ac", "--all"}, cli.ExitUsage, "", "--yes is required", 5},
		{[]string{"--prefix", "ac", "--yes"}, cli.ExitUsage, "", "one of --state", 5},
		{[]string{"acme", "--prefix", "ac", "--all", "--yes"}, cli.ExitUsage, "", "exclude each other", 5},
		{[]string{"--all", "--yes"}, cli.ExitUsage, "", "--prefix or --tier is required", 5},
		{[]string{"ac*", "--all", "--yes"}, cli.ExitUsage, "", "--prefix ac selects", 5},
		{[]string{"acme", "--all", "--dry-run"}, cli.ExitOK, "to purge  5", "", 5},
		{[]string{"acme", "--state", "queued", "--dry-run"}, cli.ExitOK, "to purge  0", "", 5},
		{[]string{"acme", "--id", "a", "--dry-run"}, cli.ExitUsage, "", "--dry-run and --id exclude", 5},
		{[]string{"--tier", "free", "--id", "a", "--yes"}, cli.ExitUsage, "", "--id needs the name", 5},
		{[]string{"--prefix", "", "--all", "--yes"}, cli.ExitUsage, "", "--prefix must not be empty", 5},
	} {
		with := newControl(t, 5, map[string]shaper.Overrides{"free": {}})
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"tenant", "purge", "--admin", with.url}, c.args...),
			cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%q: %d\n%s%s", c.args, code, out.String(), errs.String())
		}
		if left := with.dead("acme"); left != c.left {
			t.Errorf("%q: %d jobs are left, want %d", c.args, left, c.left)
		}
	}
}

// A purge goes on from step to step: the server looks at some hundred tenants in one.
func TestPurgeOfManySteps(t *testing.T) {
	const tenants = 501
	with := newControl(t, 0)
	for i := range tenants {
		if _, err := with.queue.Submit(t.Context(), queue.Submission{Tenant: fmt.Sprint("guest:", i), Route: "default",
			Type: "t", Payload: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"tenant", "purge", "--prefix", "guest:", "--all", "--yes", "--admin", with.url},
		cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
	if want := fmt.Sprintf("tenants  %d\npurged   %[1]d", tenants); code != cli.ExitOK || !strings.Contains(out.String(), want) {
		t.Errorf("%d\n%s%s", code, out.String(), errs.String())
	}
}
