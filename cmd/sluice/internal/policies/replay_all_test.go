package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
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

// A dry run counts what the replay would queue: it ends where a queue or a pool is full, where the
// tenant is draining, and names an unknown tenant.
func TestReplayTrial(t *testing.T) {
	for _, c := range []struct {
		name, tenant, patch string
		capacity            int64 // of the pool; 0: without one
		code                int
		want                string // N stands for what the number is called
	}{
		{"room for all", "acme", `{}`, 0, cli.ExitOK, "N 4"},
		{"draining", "acme", "drain", 0, cli.ExitFailed, "N 0 stopped draining"},
		{"full", "acme", `{"capacity":2}`, 0, cli.ExitFailed, "N 2 stopped queue-full"},
		{"no capacity", "acme", `{"capacity":0}`, 0, cli.ExitFailed, "N 0 stopped never-fits"},
		{"full route", "acme", `{"routes":{"default":{"capacity":1}}}`, 0, cli.ExitFailed, "N 1 stopped queue-full"},
		{"full pool", "acme", `{}`, 2, cli.ExitFailed, "N 2 stopped queue-full"},
		{"part of a pool", "acme", `{}`, 4, cli.ExitFailed, "N 3 stopped queue-full"},
		{"denied", "acme", `{"routes":{"default":{"denied":true}}}`, 0, cli.ExitFailed, "N 0 stopped forbidden (route default)"},
		{"unknown", "acmee", `{}`, 0, cli.ExitFailed, "no setting names this tenant"},
	} {
		with := newControl(t, 0)
		if c.capacity > 0 {
			pool := shaper.PoolSettings{Routes: []string{"default"}}
			pool.Overrides = shaper.Overrides{Rate: &shaper.Rate{Limit: 10, Period: time.Second}, Capacity: &c.capacity}
			err := with.queue.SetPolicies(t.Context(), shaper.Baseline{Defaults: shaper.DefaultPolicy(),
				Pools: map[string]shaper.PoolSettings{"erp": pool}}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}
		with.die("acme", slices.Repeat([]string{"502 from upstream"}, 4)...)
		remote, err := client.New(with.url, "", http.DefaultClient)
		if err == nil && c.patch == "drain" {
			_, err = remote.Drain(t.Context(), "acme", "")
		} else if err == nil {
			_, err = remote.Patch(t.Context(), "acme", json.RawMessage(c.patch))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"to replay", "replayed"} { // the replay ends as its dry run says
			args := []string{"tenant", "replay", "--admin", with.url, c.tenant, "--all"}
			if verb == "to replay" {
				args = append(args, "--dry-run")
			}
			var out, errs bytes.Buffer
			code := run(t.Context(), args, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
			got := strings.Join(strings.Fields(out.String()+errs.String()), " ")
			if want := strings.Replace(c.want, "N", verb, 1); code != c.code || !strings.Contains(got, want) {
				t.Errorf("%s: exit code %d, %q, want %d and %q", c.name, code, got, c.code, want)
			}
		}
	}
}
