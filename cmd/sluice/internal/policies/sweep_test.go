package policies

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// control is the admin listener, with n dead jobs of the tenant acme.
type control struct {
	t     *testing.T
	queue *queuetest.Desk
	url   string
	jobs  *client.Client
	fail  func(r *http.Request) bool // answer 503 instead
	step  int                        // jobs that one purge or replay changes at most; 0: as the queue does
	ids   []string                   // of the jobs that died
}

func newControl(t *testing.T, n int, tiers ...map[string]shaper.Overrides) *control {
	t.Helper()
	c := &control{t: t, fail: func(*http.Request) bool { return false }}
	var options queue.Options
	for _, options.Tiers = range tiers {
	}
	c.queue = queuetest.NewDesk(t, options)
	s, err := api.New(c.queue.Queue, api.Config{
		Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.fail(r) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		c.sweep(s.Admin(), w, r)
	}))
	t.Cleanup(admin.Close)
	c.url = admin.URL
	intake := httptest.NewServer(s.Intake())
	t.Cleanup(intake.Close)
	if c.jobs, err = client.New(intake.URL, "", intake.Client()); err != nil {
		t.Fatal(err)
	}
	c.die("acme", slices.Repeat([]string{"502 from upstream"}, n)...)
	return c
}

// sweep serves a request, but of a purge or a replay of more than step jobs only the first step.
func (c *control) sweep(admin http.Handler, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var f wire.Filter
	more := false
	if sweeps := strings.HasSuffix(r.URL.Path, "/purge") || strings.HasSuffix(r.URL.Path, "/replay"); c.step > 0 && sweeps &&
		json.Unmarshal(body, &f) == nil && len(f.IDs) == 0 {
		page, err := c.queue.List(r.Context(), queue.List{Tenant: "acme", State: queue.ListDead, Error: f.Error,
			CreatedBefore: f.CreatedBefore, Limit: c.step + 1})
		if err != nil {
			c.t.Error(err)
		}
		if more = len(page.Jobs) > c.step; more {
			f.All = false
			for _, j := range page.Jobs[:c.step] {
				f.IDs = append(f.IDs, j.ID)
			}
			body, _ = json.Marshal(f)
		}
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if !more {
		admin.ServeHTTP(w, r)
		return
	}
	got := httptest.NewRecorder()
	admin.ServeHTTP(got, r)
	swept := map[string]any{}
	if err := json.Unmarshal(got.Body.Bytes(), &swept); err != nil || got.Code != http.StatusOK {
		c.t.Errorf("%s: %d %s", r.URL.Path, got.Code, got.Body)
	}
	swept["more"] = swept["stopped"] == nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(swept)
}

// die adds a dead job of the tenant with each message as its last error.
func (c *control) die(tenant string, messages ...string) {
	c.t.Helper()
	for _, message := range messages {
		got, err := c.jobs.Submit(c.t.Context(), client.Submission{
			Tenant: tenant, Submission: wire.Submission{Type: "t", Payload: json.RawMessage("1")},
		})
		if err != nil {
			c.t.Fatal(err)
		}
		c.queue.End(got.Job.ID, queue.Settlement{Event: shaper.Die, Error: &queue.JobError{Message: message}})
		c.ids = append(c.ids, got.Job.ID)
	}
}

// dead returns the number of dead jobs of the tenants.
func (c *control) dead(tenants ...string) (n int) {
	c.t.Helper()
	for _, tenant := range tenants {
		page, err := c.queue.List(c.t.Context(), queue.List{Tenant: tenant, State: queue.ListDead, Limit: 100})
		if err != nil {
			c.t.Fatal(err)
		}
		n += len(page.Jobs)
	}
	return n
}

// run runs a command about the tenant acme.
func (c *control) run(verb string, flags ...string) (code int, out, errs string) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	args := append([]string{"tenant", verb, "acme", "--admin", c.url}, flags...)
	switch verb {
	case "set", "pause", "drain":
		args = append(args, "--create") // nobody has heard of acme yet
	}
	code = run(c.t.Context(), args, cli.Stdio{In: strings.NewReader(""), Out: &stdout, Err: &stderr}, nil)
	return code, stdout.String(), stderr.String()
}

// purge and replay handle the jobs that the flags select and no others. A selection must be given.
func TestSweepCommands(t *testing.T) {
	const all = "--created-before=2100-01-01T00:00:00Z"
	for _, c := range []struct {
		what  string
		args  []string
		dead  int
		code  int
		out   string
		errs  string
		left  int // dead jobs
		alive int
	}{
		{"purge", []string{"purge", "--all", "--yes"}, 5, cli.ExitOK, "purged  5", "purged 2, ", 0, 0},
		{"purge of nothing", []string{"purge", "--all", "-y"}, 0, cli.ExitOK, "purged  0", "", 0, 0},
		{"purge by error", []string{"purge", "--error", "502", "--state", "dead", "--route", "default", all,
			"--yes"}, 3, cli.ExitOK, "purged  3", "purged 2, ", 0, 0},
		{"purge by another error", []string{"purge", "--all", "--error", "404", "--yes"}, 3, cli.ExitOK,
			"purged  0", "", 3, 0},
		{"purge of old jobs", []string{"purge", "--all", "--created-before=2020-01-01T00:00:00Z", "--yes"}, 3,
			cli.ExitOK, "purged  0", "", 3, 0},
		{"purge of some ids", []string{"purge", "--id=FIRST,abc", "--id=SECOND", "--yes", "--json"}, 3, cli.ExitOK, `"count": 2`, "", 1,
			0},
		{"purge of all time", []string{"purge", "--all", "--created-before=0001-01-01T00:00:00Z", "--yes"}, 3,
			cli.ExitUsage, "", "after 1970", 3, 0},
		{"purge unasked", []string{"purge", "--state=dead"}, 3, cli.ExitUsage, "", "--yes is required", 3, 0},
		{"purge of no state", []string{"purge", "--state=leased", "--yes"}, 3, cli.ExitUsage, "",
			"--state", 3, 0},
		{"purge of no route", []string{"purge", "--route", "", "--yes"}, 3, cli.ExitUsage, "",
			"--route must not be empty: give a value or omit the flag\nTry: sluice tenant purge --help", 3,
			0},
		{"purge of no error", []string{"purge", "--state=dead", "--error=", "--yes"}, 3, cli.ExitUsage,
			"", "--error must not be empty", 3, 0},
		{"purge of no id", []string{"purge", "--id=", "--yes"}, 3, cli.ExitUsage, "",
			"--id must not be empty", 3, 0},
		{"purge without a selection", []string{"purge", "--yes"}, 3, cli.ExitUsage, "",
			"one of --state, --id or --all", 3, 0},
		{"purge by error alone", []string{"purge", "--error=502", "--yes"}, 3, cli.ExitUsage, "",
			"one of --state, --id or --all", 3, 0},
		{"purge of all of a state", []string{"purge", "--all", "--state=dead", "--yes"}, 3, cli.ExitUsage,
			"", "exclude each other", 3, 0},
		{"replay of no route", []string{"replay", "--route="}, 3, cli.ExitUsage, "",
			"--route must not be empty", 3, 0},
		{"replay of no error", []string{"replay", "--error", ""}, 3, cli.ExitUsage, "",
			"--error must not be empty", 3, 0},
		{"change of no route", []string{"set", "--route", "", "--burst", "7"}, 3, cli.ExitUsage, "",
			"--route must not be empty", 3, 0},
		{"purge of a bad id", []string{"purge", "--id=a/b", "--yes"}, 3, cli.ExitFailed, "",
			"ids[0] (string \"a/b\") must be the id of a job", 3, 0},
		{"replay without a selection", []string{"replay"}, 3, cli.ExitUsage, "",
			"one of --id, --route, --error, --created-before or --all is required", 3, 0},
		{"replay", []string{"replay", "--all"}, 5, cli.ExitOK, "replayed  5", "replayed 4, ", 0, 5},
		{"replay as JSON", []string{"replay", "--json", "--all"}, 1, cli.ExitOK, `"tenant": "acme"`, "", 0, 1},
		{"replay into a full queue", []string{"replay", "--all"}, 9, cli.ExitFailed,
			"stopped   queue-full (route default); capacity is free again in ", "replayed 6, ", 2, 7},
		{"replay into a full queue as JSON", []string{"replay", "--json", "--all"}, 9, cli.ExitFailed,
			`"stopped_route": "default"`, "", 2, 7},
	} {
		t.Run(c.what, func(t *testing.T) {
			with := newControl(t, c.dead)
			with.step = 2
			limit := int64(7)
			if _, err := with.queue.Tune(t.Context(), "acme",
				queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
					o.Capacity = &limit
					return o, nil
				}}); err != nil {
				t.Fatal(err)
			}
			var args []string
			for _, arg := range c.args {
				if len(with.ids) > 1 {
					arg = strings.NewReplacer("FIRST", with.ids[0], "SECOND", with.ids[1]).Replace(arg)
				}
				args = append(args, arg)
			}
			code, out, errs := with.run(args[0], args[1:]...)
			if code != c.code {
				t.Errorf("exit code %d, want %d\n%s%s", code, c.code, out, errs)
			}
			queuetest.Contains(t, "the output", out, c.out)
			queuetest.Contains(t, "the errors", errs, c.errs)
			for state, want := range map[queue.ListState]int{queue.ListDead: c.left, queue.ListQueued: c.alive} {
				page, err := with.queue.List(t.Context(), queue.List{Tenant: "acme", State: state, Limit: 100})
				if err != nil || len(page.Jobs) != want {
					t.Errorf("%d jobs are %s, want %d (%v)", len(page.Jobs), state, want, err)
				}
			}
		})
	}
}

// A failure reports what was done before it, and the same command does the rest.
func TestSweepThatBreaks(t *testing.T) {
	c := newControl(t, 5)
	c.step = 2
	calls := 0
	c.fail = func(*http.Request) bool { calls++; return calls > 2 }
	code, out, errs := c.run("purge", "--all", "--yes")
	if code != cli.ExitFailed {
		t.Errorf("exit code %d, want %d\n%s%s", code, cli.ExitFailed, out, errs)
	}
	queuetest.Contains(t, "the output", out, "purged       4", "ended early  Service Unavailable (503)")
	if code, _, errs := c.run("purge", "--all", "--yes"); code != cli.ExitFailed ||
		!strings.Contains(errs, "purge the jobs: Service Unavailable (503)") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	calls = 0
	if code, out, errs := c.run("purge", "--all", "--yes", "--json"); code != cli.ExitOK ||
		!strings.Contains(out, `"count": 1`) {
		t.Errorf("exit code %d\n%s\n%s", code, out, errs)
	}
}

// The question before a purge names every part of the selection.
func TestFilterText(t *testing.T) {
	for _, c := range []struct {
		filter wire.Filter
		want   string
	}{
		{wire.Filter{}, "all waiting and dead jobs"},
		{wire.Filter{
			State: "dead", IDs: []string{"a", "b"}, Route: "r", Error: "50\n2",
			CreatedBefore: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		},
			`the dead jobs among 2 ids for the route r with "50\n2" in their last error created before 2026-01-02T03:04:05Z`},
	} {
		if got := filterText(c.filter); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// The history lists the changes, the latest first, with revision, actor, reason and values.
func TestHistoryCommand(t *testing.T) {
	c := newControl(t, 0)
	code, out, errs := c.run("history")
	queuetest.Compare(t, "the exit code without changes", code, cli.ExitOK)
	queuetest.Compare(t, "the output without changes", out, "")
	queuetest.Contains(t, "the note without changes", errs, "No settings were changed")
	for _, change := range [][]string{
		{"set", "--rate", "200/s", "--capacity", "5", "--reason", "black friday"},
		{"set", "--reset", "rate", "--max-wait", "5s"}, {"pause"}, {"drain", "--reason", "moves"}, {"resume"},
	} {
		if code, _, errs := c.run(change[0], change[1:]...); code != cli.ExitOK {
			t.Fatalf("%v: %s", change, errs)
		}
	}
	code, out, errs = c.run("history")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != cli.ExitOK || len(lines) != 6 {
		t.Fatalf("exit code %d, want %d and 6 lines\n%s%s", code, cli.ExitOK, out, errs)
	}
	for i, want := range [][]string{
		{"AT", "REVISION", "BY", "REASON", "CHANGE"},
		{" 5 ", "local from 127.0.0.1", " - ", "paused reset, was true, draining reset, was true"},
		{" 4 ", "moves", "draining set to true"}, {" 3 ", "paused set to true"},
		{" 2 ", "rate reset, was 200/s, max_wait_ms set to 5s"},
		{" 1 ", "black friday", "rate set to 200/s, capacity set to 5"},
	} {
		for _, text := range want {
			if !strings.Contains(lines[i]+" ", text) {
				t.Errorf("%q is not in %s", text, lines[i])
			}
		}
	}
	if code, out, _ := c.run("history", "--json"); code != cli.ExitOK ||
		!strings.Contains(out, `"reason": "black friday"`) {
		t.Errorf("with --json: exit code %d, want %d and the reason\n%s", code, cli.ExitOK, out)
	}
}

// The text of a change has both values of each setting. A value of 0 differs from none.
func TestChangeText(t *testing.T) {
	paces := []shaper.PaceJSON{{Limit: 1000, PeriodMS: 86400000, Burst: 100}}
	for _, c := range []struct {
		before, after shaper.Overrides
		want, undone  string
	}{
		{shaper.Overrides{}, shaper.Overrides{}, "-", ""},
		{shaper.Overrides{}, shaper.Overrides{Rates: &paces}, "rates set to 1000/d burst 100", " --reset=rates"},
		{shaper.Overrides{Rates: &paces}, shaper.Overrides{Rates: &[]shaper.PaceJSON{}},
			"rates 1000/d burst 100 → none", " --rates='1000/d burst 100'"},
		{shaper.Overrides{Burst: new(int64(0))}, shaper.Overrides{Concurrency: new(int64(0))},
			"burst reset, was 0, concurrency set to 0", " --burst=0 --reset=concurrency"},
		{shaper.Overrides{MaxWaitMS: new(int64(5000)), Tier: new("free")}, shaper.Overrides{Capacity: new(int64(7))},
			"capacity set to 7, max_wait_ms reset, was 5s, tier reset, was free",
			" --max-wait=5s --tier=free --reset=capacity"},
		{shaper.Overrides{Capacity: new(int64(shaper.MaxCapacity))}, shaper.Overrides{},
			"capacity reset, was unbounded", " --capacity=1000000000"},
		{shaper.Overrides{}, shaper.Overrides{Paused: new(true)}, "paused set to true", ""},
	} {
		if got := changeText(c.before, c.after); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if got := undo(wire.HistoryEntry{Before: c.before, After: c.after}); got != c.undone {
			t.Errorf("%s is undone by %q, want %q", c.want, got, c.undone)
		}
	}
}
