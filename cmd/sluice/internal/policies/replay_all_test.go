package policies

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
)

// A replay of all tenants counts each, asks before it begins, and is in each tenant's history.
func TestReplayOfAllTenants(t *testing.T) {
	for _, c := range []struct {
		args      []string
		code      int
		out, errs string
		left      int // dead jobs
	}{
		{[]string{"--all-tenants", "--error", "502", "--yes"}, cli.ExitOK, "TENANT REPLAYED STOPPED\nacme 3 -\nglobex 1 -\nall 4\n", "", 1},
		{[]string{"--all-tenants", "--all", "-y", "--json"}, cli.ExitOK, `"count": 5`, "", 0},
		{[]string{"--all-tenants", "--error", "502", "--dry-run"}, cli.ExitOK, "TENANT TO REPLAY STOPPED\nacme 3 -\nglobex 1 -\nall 4\n", "", 5},
		{[]string{"--all-tenants", "--all", "--dry-run", "--json"}, cli.ExitOK, `"dry_run": true`, "", 5},
		{[]string{"--all-tenants", "--route", "defalt", "--dry-run"}, cli.ExitFailed, "", "default", 5},
		{[]string{"globex", "--error", "502", "--dry-run"}, cli.ExitOK, "to replay 1\n", "", 5},
		{[]string{"globex", "--id", "a", "--dry-run"}, cli.ExitUsage, "", "exclude each other", 5},
		{[]string{"--all-tenants", "--error", "404", "--yes"}, cli.ExitOK, "all 0\n", "", 5},
		{[]string{"--all-tenants", "--route", "defalt", "--yes"}, cli.ExitFailed, "", "default", 5},
		{[]string{"--all-tenants", "--error", "502"}, cli.ExitUsage, "", "--yes is required", 5},
		{[]string{"--all-tenants", "--yes"}, cli.ExitUsage, "", "one of --id, --route", 5},
		{[]string{"--all-tenants", "acme", "--all", "--yes"}, cli.ExitUsage, "", "exclude each other", 5},
		{[]string{"--all-tenants", "--id", "a", "--yes"}, cli.ExitUsage, "", "--id needs the name", 5},
		{[]string{"--all", "--yes"}, cli.ExitUsage, "", "or --all-tenants, is required", 5},
	} {
		with := newControl(t, 3)
		with.die("globex", "502 from upstream", "the upstream answered 422")
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"tenant", "replay", "--admin", with.url}, c.args...),
			cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
		var narrow strings.Builder
		for line := range strings.Lines(out.String()) {
			narrow.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		if code != c.code || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%q: %d\n%s%s", c.args, code, narrow.String(), errs.String())
		}
		queuetest.Contains(t, fmt.Sprint(c.args), narrow.String(), slices.Collect(strings.Lines(c.out))...) // in any order
		if left := with.dead("acme", "globex"); left != c.left {
			t.Errorf("%q: %d jobs are dead, want %d", c.args, left, c.left)
		}
	}
}
