package policies

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// tiered is a control with the tiers free and pro.
func tiered(t *testing.T) *control {
	t.Helper()
	return newControl(t, 0, map[string]shaper.Overrides{
		"free": {Rate: &shaper.Rate{Limit: 2, Period: time.Second}},
		"pro": {
			Rate:   &shaper.Rate{Limit: 50, Period: time.Second},
			Routes: map[string]shaper.Overrides{"default": {Burst: new(int64(9))}},
		},
	})
}

// file runs diff or apply with a file of this content.
func (c *control) file(verb, content string, flags ...string) (code int, out, errs string) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "tenants.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	args := append([]string{"tenant", verb, "--admin", c.url, "-f", path}, flags...)
	code = run(c.t.Context(), args, cli.Stdio{In: strings.NewReader(""), Out: &stdout, Err: &stderr}, nil)
	return code, stdout.String(), stderr.String()
}

// must runs a command about the tenant acme that goes well.
func (c *control) must(verb string, flags ...string) {
	c.t.Helper()
	if code, _, errs := c.run(verb, flags...); code != cli.ExitOK {
		c.t.Fatalf("%s %v: %s", verb, flags, errs)
	}
}

func (c *control) revision(name string) int64 {
	c.t.Helper()
	t, err := c.queue.Tenant(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	return t.Revision
}

// diff prints what apply changes. apply makes the changes once, and leaves drains alone.
func TestDiffAndApply(t *testing.T) {
	for _, c := range []struct {
		what   string
		before [][]string // changes of acme
		file   string
		flags  []string
		diff   string // the whole of what is printed
	}{
		{"a tenant never seen", nil, "acme: { rate: 200/s }", nil, "acme: rate 10/s (default) → 200/s\n"},
		{"nothing", nil, "acme:", nil, ""},
		{"what is equal", [][]string{{"set", "--rate", "200/s", "--tier", "pro"}},
			"acme: { tier: pro, rate: 200/s }", nil, ""},
		{"a value that holds anyway", nil, "acme: { capacity: 1000 }", nil,
			"acme: capacity 1000 (default) → 1000\n"},
		{"a reset of bytes", [][]string{{"set", "--capacity-bytes", "4096"}}, "acme: {}", nil,
			"acme: capacity_bytes 4096 (api) → 0 (default)\n"},
		{"a reset", [][]string{{"set", "--rate", "200/s", "--capacity", "5"}}, "acme: { capacity: 6 }", nil,
			"acme: rate 200/s (api) → 10/s (default)\nacme: capacity 5 (api) → 6\n"},
		{"a tier", [][]string{{"set", "--tier", "free"}}, "acme: { tier: pro }", nil,
			"acme: tier free (api) → pro\nacme: rate 2/s (tier:free) → 50/s (tier:pro)\n" +
				"acme: routes.default.burst 1 (default) → 9 (tier:pro)\n"},
		{"a tier under a rate", [][]string{{"set", "--tier", "free", "--rate", "7/s"}},
			"acme: { tier: free }", nil, "acme: rate 7/s (api) → 2/s (tier:free)\n"},
		{"the tier is removed", [][]string{{"set", "--tier", "free"}}, "acme: {}", nil,
			"acme: tier free (api) → none (default)\nacme: rate 2/s (tier:free) → 10/s (default)\n"},
		{"a route", [][]string{{"set", "--route", "default", "--rate", "5/m"}},
			"acme: { routes: { default: { burst: 3, paused: true } } }", nil,
			"acme: routes.default.rate 5/m (api) → 10/s (default)\n" +
				"acme: routes.default.burst 1 (default) → 3\n" +
				"acme: routes.default.paused false (default) → true\n"},
		{"a route like the tenant", [][]string{{"set", "--rate", "5/m"}},
			"acme: { rate: 5/m, routes: { default: { rate: 5/m } } }", nil,
			"acme: routes.default.rate 5/m (api) → 5/m\n"},
		{"every setting", nil, "acme: { burst: 2, rates: [ { rate: 1000/24h, burst: 1000 } ], " +
			"capacity_bytes: 4096, concurrency: 0, max_wait: 90s, paused: true }", nil,
			"acme: burst 1 (default) → 2\nacme: rates none (default) → 1000/d burst 1000\n" +
				"acme: capacity_bytes 0 (default) → 4096\nacme: concurrency 64 (default) → 0\n" +
				"acme: max_wait 0s (default) → 1m30s\nacme: paused false (default) → true\n"},
		{"weight and reserve", [][]string{{"set", "--weight", "3", "--reserve", "2/s"}},
			"acme: { weight: 8, routes: { default: { reserve: 5/s } } }", nil,
			"acme: weight 3 (api) → 8\nacme: reserve 2/s (api) → none (default)\n" +
				"acme: routes.default.reserve 2/s (api) → 5/s\n"},
		{"a reserve above the default rate", [][]string{{"set", "--tier", "pro"}},
			"acme: { tier: pro, reserve: 40/s }", nil, "acme: reserve none (default) → 40/s\n"},
		{"a pause made by hand", [][]string{{"pause"}}, "acme: {}", nil,
			"acme: paused true (api) → false (default)\n"},
		{"a drain is left alone", [][]string{{"drain"}}, "acme: {}", []string{"--prune", "--yes"}, ""},
		{"one that is not named", [][]string{{"set", "--rate", "200/s"}}, "shop: { capacity: 5 }", nil,
			"shop: capacity 1000 (default) → 5\n"},
		{"one that is not named, pruned", [][]string{{"set", "--rate", "200/s"}, {"drain"}},
			"shop: { capacity: 5 }", []string{"--prune", "--yes"},
			"shop: capacity 1000 (default) → 5\nacme: rate 200/s (api) → 10/s (default)\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			with := tiered(t)
			for _, change := range c.before {
				with.must(change[0], change[1:]...)
			}
			file := "tenants: { " + c.file + " }"
			flags := c.flags
			if len(flags) > 0 {
				flags = flags[:1] // diff does not ask
			}
			want := cli.ExitOK
			if c.diff != "" {
				want = cli.ExitFailed
			}
			was := with.revision("acme")
			if code, out, errs := with.file("diff", file,
				slices.Concat(flags, []string{"--exit-code"})...); code != want || out != c.diff {
				t.Errorf("diff: exit code %d, want %d\n%s%s", code, want, out, errs)
			}
			if code, out, _ := with.file("apply", file,
				slices.Concat(c.flags, []string{"--dry-run"})...); code != cli.ExitOK || out != c.diff {
				t.Errorf("apply --dry-run: exit code %d\n%s", code, out)
			}
			if got := with.revision("acme"); got != was {
				t.Errorf("looking changed revision %d to %d", was, got)
			}
			if code, out, errs := with.file("apply", file,
				slices.Concat(c.flags, []string{"--reason", "contract"})...); code != cli.ExitOK ||
				!strings.HasPrefix(out, c.diff) {
				t.Errorf("apply: exit code %d\n%s%s", code, out, errs)
			}
			acme, err := with.queue.Tenant(t.Context(), "acme")
			if err != nil || acme.Policy.Draining != strings.Contains(fmt.Sprint(c.before), "drain") {
				t.Errorf("draining: %v %v", acme.Policy.Draining, err)
			}
			if acme.Revision > was && acme.Reason != "contract" {
				t.Errorf("the reason is %q", acme.Reason)
			}
			if code, out, errs := with.file("apply", file, c.flags...); code != cli.ExitOK ||
				!strings.HasPrefix(out, "changed  0\n") {
				t.Errorf("again: exit code %d\n%s%s", code, out, errs)
			}
			queuetest.Compare(t, "the revision after it was applied again", with.revision("acme"),
				acme.Revision)
		})
	}
}

func TestApplyGoesOnAfterARefusal(t *testing.T) {
	c := tiered(t)
	const file = "tenants: { a: { tier: gold }, b: { rate: 5/s }, c: { routes: { nowhere: { burst: 2 } } " +
		"}, d: { rate: 1/366d, burst: 4 } }"
	for _, verb := range []string{"diff", "apply"} {
		code, out, errs := c.file(verb, file)
		queuetest.Compare(t, verb+": the exit code", code, cli.ExitFailed)
		queuetest.Contains(t, verb+": the differences", out, "b: rate 10/s (default) → 5/s\n")
		queuetest.Contains(t, verb+": the refusals", errs, "a: refused: tier must be one of free, pro\n",
			"c: refused: routes.nowhere must be one of the routes: default\n")
		queuetest.Compare(t, verb+": the number of refusals", strings.Count(errs, "refused: "), 2)
	}
	for name, want := range map[string]int64{"a": 0, "b": 1, "d": 1} {
		queuetest.Compare(t, "the revision of "+name, c.revision(name), want)
	}
	code, out, _ := c.file("apply", file, "--json")
	var got struct {
		Tenants []struct{ Tenant, Error string }
		Equal   int
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	queuetest.Compare(t, "the exit code", code, cli.ExitFailed)
	queuetest.Compare(t, "equal tenants", got.Equal, 2)
	if len(got.Tenants) != 2 || got.Tenants[0].Error == "" {
		t.Errorf("the tenants are %+v, want two, the first with an error", got.Tenants)
	}
}

// diff --json prints each change with the sources of both values.
func TestDiffAsJSON(t *testing.T) {
	c := tiered(t)
	code, out, _ := c.file("diff", "tenants: { acme: { rate: 200/s, tier: pro } }", "--json")
	var got differences
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	queuetest.Compare(t, "the exit code", code, cli.ExitOK)
	if len(got.Tenants) != 1 || len(got.Tenants[0].Changes) != 3 {
		t.Fatalf("the tenants are %+v, want one with three changes", got.Tenants)
	}
	text, err := json.Marshal(got.Tenants[0].Changes[1])
	want := `{"setting":"rate","from":{"value":{"limit":10,"period_ms":1000},"source":"default"},` +
		`"to":{"value":{"limit":200,"period_ms":1000},"source":"api"}}`
	if err != nil || string(text) != want {
		t.Errorf("%v, the change is\n%s, want\n%s", err, text, want)
	}
	if _, out, _ := c.file("diff", "tenants: {}", "--json"); out != "{\n  \"tenants\": [],\n"+
		"  \"equal\": 0\n}\n" {
		t.Errorf("nothing: %s", out)
	}
}

// Wrong usage, a refusal and an outage have their exit codes, and a message with the cause.
func TestUseOfDiffAndApply(t *testing.T) {
	c := tiered(t)
	for _, s := range []struct {
		verb, file string
		flags      []string
		code       int
		says       string
	}{
		{"apply", "tenants: {}", []string{"--prune"}, cli.ExitUsage, "--yes is required without a terminal"},
		{"apply", "tenants: {}", []string{"--prune", "--dry-run"}, cli.ExitOK, "0 tenants differ, 0 equal."},
		{"apply", "tenants: { defaults: {}, a: { rat: 5 } }", nil, cli.ExitUsage, "tenants.a.rat: unknown key"},
		{"diff", "redis: {}", nil, cli.ExitUsage, "redis: not read here"},
		{"diff", "tenants: { a: {} }", []string{"--admin", "http://127.0.0.1:1"}, cli.ExitFailed,
			"compare the tenants: "},
		{"apply", "tenants: { a: {} }", []string{"--admin", "ftp://x"}, cli.ExitUsage, "--admin: "},
		{"apply", "tenants: { a: { burst: 2 } }", []string{"--reason", strings.Repeat("x", 300)},
			cli.ExitFailed, "a: refused: reason must"},
	} {
		if code, _, errs := c.file(s.verb, s.file, s.flags...); code != s.code || !strings.Contains(errs, s.says) {
			t.Errorf("%s %v: exit code %d, want %d: %s", s.verb, s.flags, code, s.code, errs)
		}
	}
}

// A tenant that changes between the read and the write is read again, so no change is overwritten
// unseen.
func TestApplyOverwritesNothingUnseen(t *testing.T) {
	c := newControl(t, 0)
	var once sync.Once
	c.fail = func(r *http.Request) bool {
		if r.Method == http.MethodPut && r.URL.RawQuery == "" {
			once.Do(func() {
				if _, err := c.queue.Tune(r.Context(), "acme",
					queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
						o.Capacity = new(int64(7))
						return o, nil
					}}); err != nil {
					t.Error(err)
				}
			})
		}
		return false
	}
	code, out, errs := c.file("apply", "tenants: { acme: { rate: 5/s } }")
	if code != cli.ExitOK || !strings.Contains(out, "changed  1\n") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	got, err := c.queue.Tenant(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	queuetest.Compare(t, "the revision", got.Revision, 2)
	queuetest.Compare(t, "the capacity, which the file does not set", got.Policy.Capacity, 1000)
	queuetest.Compare(t, "the limit of the rate", got.Policy.Rate.Limit, 5)
}

// An outage ends apply with the number of tenants left. Repeated, it changes those alone.
func TestApplyStopsWhenTheServerIsAway(t *testing.T) {
	c := newControl(t, 0)
	var mu sync.Mutex
	writes := 0
	c.fail = func(r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPut && r.URL.RawQuery == "" {
			writes++
		}
		return writes > 3
	}
	var file strings.Builder
	file.WriteString("tenants:\n")
	for i := range 200 {
		fmt.Fprintf(&file, "  t%d: { capacity: 5 }\n", i)
	}
	code, out, _ := c.file("apply", file.String())
	queuetest.Compare(t, "the exit code", code, cli.ExitFailed)
	queuetest.Contains(t, "the summary", out[max(0, strings.Index(out, "changed")):],
		"changed      3\n", "left         197\n", "ended early  Service Unavailable (503)")
	if writes > 3+planCalls {
		t.Errorf("%d writes", writes)
	}
	c.fail = func(*http.Request) bool { return false }
	if code, out, _ := c.file("apply", file.String()); code != cli.ExitOK ||
		!strings.Contains(out, "changed  197\nequal    3\n") {
		t.Errorf("the rest: exit code %d\n%s", code, out[strings.Index(out, "changed"):])
	}
}

// side calls its function for every number, until the first error or the end of the context.
func TestSideBySide(t *testing.T) {
	broken := errors.New("broken")
	var mu sync.Mutex
	seen := map[int]bool{}
	err := side(t.Context(), 1000, func(ctx context.Context, i int) error {
		mu.Lock()
		seen[i] = true
		mu.Unlock()
		switch {
		case i == 20:
			return broken
		case i > 500: // on a busy machine the others would be done before that one
			<-ctx.Done()
		}
		return nil
	})
	if err != broken || len(seen) >= 1000 {
		t.Errorf("%v after %d", err, len(seen))
	}
	clear(seen)
	if err := side(t.Context(), 1000, func(_ context.Context, i int) error {
		mu.Lock()
		defer mu.Unlock()
		seen[i] = true
		return nil
	}); err != nil || len(seen) != 1000 {
		t.Errorf("%v after %d", err, len(seen))
	}
	if err := side(t.Context(), 0, nil); err != nil {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := side(gone, 5, func(ctx context.Context, _ int) error {
		return ctx.Err()
	}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// set prints what it has changed, get all settings of tenant and routes, with their sources. Wrong
// flags are refused.
func TestTenantPolicyFlags(t *testing.T) {
	c := tiered(t)
	for _, s := range []struct {
		args []string
		code int
		says string // in what is printed, spaces folded
	}{
		{[]string{"set", "--tier", "pro"}, cli.ExitOK, "tenant acme tier pro api depth 0 running 0 limited by idle"},
		{[]string{"set", "--tier", "gold"}, cli.ExitFailed, `tier (string "gold") must be one of free, pro`},
		{[]string{"set", "--route", "default", "--rate", "5/m"}, cli.ExitOK,
			"tenant acme route default rate 5/m api depth 0 running 0 limited by idle"},
		{[]string{"set", "--route", "nowhere", "--rate", "5/m"}, cli.ExitFailed,
			"routes.nowhere (object) must be one of the routes: default"},
		{[]string{"set", "--route", "default", "--tier", "pro"}, cli.ExitUsage,
			"--tier and --route exclude each other: only a tenant has a tier"},
		{[]string{"set", "--rates", "1000/24h burst 1000,5/m"}, cli.ExitOK,
			"rates 1000/d burst 1000, 5/m burst 1 api"},
		{[]string{"set", "--rates", "1000/24h bust 5"}, cli.ExitUsage, "must be like 1000/24h"},
		{[]string{"set", "--rates", "1000/24h burst"}, cli.ExitUsage, "must be like 1000/24h"},
		{[]string{"set", "--rates", "60/m by jobs,5/m burst 2 by cost"}, cli.ExitOK, "rates 60/m burst 1 by jobs, 5/m burst 2 api"},
		{[]string{"set", "--rates", "60/m by jobs burst 3"}, cli.ExitOK, "rates 60/m burst 3 by jobs api"},
		{[]string{"set", "--rates", "60/m by day"}, cli.ExitUsage, "by day: a rate counts by cost or by jobs"},
		{[]string{"set", "--rates", "1000/24h burst 1000,5/m"}, cli.ExitOK, "rates 1000/d burst 1000, 5/m burst 1 api"},
		{[]string{"set", "--rates", "fast"}, cli.ExitUsage, `--rates: "fast"`},
		{[]string{"get"}, cli.ExitOK, "rates 1000/d burst 1000, 5/m burst 1 api"},
		{[]string{"set", "--route", "default", "--reset", "rate"}, cli.ExitOK,
			"tenant acme route default rate 50/s tier:pro depth 0"},
		{[]string{"set", "--reset", "rates,tier"}, cli.ExitOK, "tenant acme tier none default rates none default depth 0"},
		{[]string{"set", "--reset", "draining"}, cli.ExitUsage, "must be one of the settings of a tenant: "},
		{[]string{"get", "--json"}, cli.ExitOK, `"revision": 8`},
		{[]string{"pause", "--route", "default"}, cli.ExitOK,
			"tenant acme route default paused true api depth 0 running 0 limited by paused"},
		{[]string{"drain"}, cli.ExitOK, "tenant acme draining true api depth 0 running 0 limited by"},
		{[]string{"resume"}, cli.ExitOK, "tenant acme paused false default route default still paused --route default resumes it depth 0"},
		{[]string{"resume", "--route", "default"}, cli.ExitOK, "tenant acme route default paused false"},
		{[]string{"resume"}, cli.ExitOK, "tenant acme paused false default depth 0"},
	} {
		code, out, errs := c.run(s.args[0], s.args[1:]...)
		if text := strings.Join(strings.Fields(out+errs), " "); code != s.code || !strings.Contains(text, s.says) {
			t.Errorf("%v: exit code %d, want %d: %s", s.args, code, s.code, text)
		}
	}
}

// A replacement needs the current revision. A dry run changes nothing.
func TestReplaceOfTheClient(t *testing.T) {
	c := newControl(t, 0)
	remote, err := client.New(c.url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Replace(t.Context(), "a/b",
		client.Replacement{Revision: 1}); statusOf(err) != http.StatusPreconditionFailed {
		t.Errorf("another revision: %v", err)
	}
	got, err := remote.Replace(t.Context(), "a/b", client.Replacement{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	queuetest.Compare(t, "the tenant of a dry run", got.Tenant, "a/b")
	queuetest.Compare(t, "its revision", got.Revision, 0)
	if got, err := remote.Replace(t.Context(), "a/b", client.Replacement{}); err != nil || got.Revision != 1 {
		t.Errorf("%v, %+v, want the revision 1", err, got)
	}
}
