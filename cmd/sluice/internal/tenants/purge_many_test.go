package tenants

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/command"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
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
		{[]string{"--prefix", "ac", "--all", "--yes"}, command.ExitOK, "tenants  1\npurged   5", "", 0},
		{[]string{"--prefix", "ac", "--state", "dead", "-y", "--json"}, command.ExitOK, `"count": 5`, "", 0},
		{[]string{"--prefix", "guest:", "--all", "--yes"}, command.ExitOK, "purged   0", "", 5},
		{[]string{"--tier", "fre", "--all", "--yes"}, command.ExitFailed, "", "is free meant?", 5},
		{[]string{"--tier", "free", "--all", "--yes"}, command.ExitOK, "purged   0", "", 5},
		{[]string{"--prefix", "ac", "--route", "defalt", "--all", "-y"}, command.ExitOK, "purged   0", "is default meant?", 5},
		{[]string{"--prefix", "ac", "--all", "--dry-run"}, command.ExitOK, "tenants  1\nwaiting  0\ndead     5", "", 5},
		{[]string{"--prefix", "ac", "--all"}, command.ExitUsage, "", "--yes is required", 5},
		{[]string{"--prefix", "ac", "--yes"}, command.ExitUsage, "", "one of --state", 5},
		{[]string{"acme", "--prefix", "ac", "--all", "--yes"}, command.ExitUsage, "", "exclude each other", 5},
		{[]string{"--all", "--yes"}, command.ExitUsage, "", "--prefix or --tier is required", 5},
		{[]string{"ac*", "--all", "--yes"}, command.ExitUsage, "", "--prefix ac selects", 5},
		{[]string{"acme", "--all", "--dry-run"}, command.ExitUsage, "", "--dry-run needs", 5},
		{[]string{"--tier", "free", "--id", "a", "--yes"}, command.ExitUsage, "", "--id needs the name", 5},
		{[]string{"--prefix", "", "--all", "--yes"}, command.ExitUsage, "", "--prefix must not be empty", 5},
	} {
		with := newControl(t, 5, map[string]shaper.Overrides{"free": {}})
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"tenant", "purge", "--admin", with.url}, c.args...),
			console.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
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
		console.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
	if want := fmt.Sprintf("tenants  %d\npurged   %[1]d", tenants); code != command.ExitOK || !strings.Contains(out.String(), want) {
		t.Errorf("%d\n%s%s", code, out.String(), errs.String())
	}
}
