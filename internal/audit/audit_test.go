package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

var servers redistest.Pool

func TestMain(m *testing.M) {
	code := m.Run()
	_ = servers.Close()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// sink gets the lines of an audit.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *sink) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(strings.Split(s.buf.String(), "\n"), func(l string) bool { return l == "" })
}

// openQueue opens a queue at a Redis; without a URL in memory.
func openQueue(t *testing.T, url string) *queue.Queue {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url, Embedded: url == "", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), e, queue.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = q.Close()
		_ = e.Close()
	})
	return q
}

func open(t *testing.T, q *queue.Queue, o audit.Options) *audit.Log {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	l, err := audit.New(store.Of(q), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(t.Context()) })
	return l
}

// all reads the whole chain, page by page, and verifies it.
func all(t *testing.T, l *audit.Log, q audit.Query) []audit.Item {
	t.Helper()
	var items []audit.Item
	var v audit.Verifier
	for {
		page, err := l.Find(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range page.Items {
			v.Add(i)
		}
		items = append(items, page.Items...)
		if q.Before = page.Next; page.Next == 0 {
			break
		}
	}
	if v.End(); q.Actor+q.Action+q.Subject == "" && q.Since.IsZero() && q.Until.IsZero() && len(v.Faults) > 0 {
		t.Errorf("the chain is not whole: %q", v.Faults)
	}
	return items
}

func change(n int) audit.Entry {
	return audit.Entry{
		Actor: "olaf", Role: "operator", Address: "192.0.2.1", Action: "tenant.patch", Subject: fmt.Sprint("t", n), Outcome: audit.OK,
		Before: map[string]any{"capacity": n}, After: map[string]any{"capacity": n + 1},
	}
}

// engines are the kinds of Redis that the chain works on.
func engines(t *testing.T, test func(t *testing.T, q *queue.Queue)) {
	t.Run("redis", func(t *testing.T) { test(t, openQueue(t, servers.Lend(t).URL())) })
	t.Run("embedded", func(t *testing.T) { test(t, openQueue(t, "")) })
	t.Run("cluster", func(t *testing.T) { test(t, openQueue(t, redistest.StartCluster(t).URL())) })
}

// TestChain: entries come back the newest first, page by page and filtered, and make one chain.
func TestChain(t *testing.T) {
	engines(t, func(t *testing.T, q *queue.Queue) {
		var lines sink
		l := open(t, q, audit.Options{Lines: &lines})
		for n := range 7 {
			l.Record(t.Context(), change(n))
			// Entries chained together have one time, and Record waits for a second at most.
			queuetest.Await(t, "the entry", func() bool { return len(all(t, l, audit.Query{Limit: 100})) == n+1 })
		}
		l.Record(t.Context(), audit.Entry{Actor: "vera", Role: "viewer", Address: "::1", Action: "tenant.purge", Subject: "t3", Outcome: "forbidden"})
		items := all(t, l, audit.Query{Limit: 3})
		if len(items) != 8 || items[0].Outcome != "forbidden" || string(items[1].Before) != `{"capacity":6}` ||
			string(items[0].After) != "null" || items[7].Previous != "" || items[7].Subject != "t0" {
			t.Errorf("%+v", items)
		}
		if got := lines.lines(); len(got) != 8 || !strings.Contains(got[0], items[7].Hash) {
			t.Errorf("lines %q", got)
		}
		at := func(n int) time.Time {
			at, err := time.Parse(time.RFC3339Nano, items[n].At)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		// Entries have one time where the clock that a process knows of Redis was ahead before.
		within := func(since, until time.Time) (subjects []string) {
			for n, i := range items {
				if !at(n).Before(since) && at(n).Before(until) {
					subjects = append(subjects, i.Subject)
				}
			}
			return subjects
		}
		for name, c := range map[string]struct {
			q    audit.Query
			want []string
		}{
			"subject":          {audit.Query{Subject: "t3"}, []string{"t3", "t3"}},
			"actor":            {audit.Query{Actor: "vera"}, []string{"t3"}},
			"action":           {audit.Query{Action: "tenant.purge"}, []string{"t3"}},
			"kind of actions":  {audit.Query{Action: "tenant.", Subject: "t0"}, []string{"t0"}},
			"no action":        {audit.Query{Action: "tenant"}, nil},
			"since":            {audit.Query{Since: at(2)}, within(at(2), at(0).Add(time.Hour))},
			"until":            {audit.Query{Until: at(5)}, within(time.Time{}, at(5))},
			"before all":       {audit.Query{Until: at(7)}, nil},
			"after all, until": {audit.Query{Until: at(0).Add(time.Hour), Since: at(0)}, within(at(0), at(0).Add(time.Hour))},
			"between":          {audit.Query{Since: at(5), Until: at(2)}, within(at(5), at(2))},
		} {
			c.q.Limit = 2
			var got []string
			for _, i := range all(t, l, c.q) {
				got = append(got, i.Subject)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	})
}

// TestTwoProcesses: two processes that append at once make one whole chain, and nothing is missing.
func TestTwoProcesses(t *testing.T) {
	url := servers.Lend(t).URL()
	var logs [2]*audit.Log
	var work sync.WaitGroup
	for p := range logs {
		logs[p] = open(t, openQueue(t, url), audit.Options{})
		for w := range 20 {
			work.Go(func() {
				for n := range 50 {
					logs[p].Record(t.Context(), change(p*1000+w*50+n))
				}
			})
		}
	}
	work.Wait()
	items := all(t, logs[0], audit.Query{Limit: 1000})
	seen := map[string]bool{}
	for _, i := range items {
		seen[i.Subject] = true
	}
	if len(items) != 2000 || len(seen) != 2000 {
		t.Errorf("%d entries on %d subjects, want 2000", len(items), len(seen))
	}
}

// TestBounds: the oldest entries go when there are too many bytes, and when they are old; the chain
// says so and stays verifiable.
func TestBounds(t *testing.T) {
	engines(t, func(t *testing.T, q *queue.Queue) {
		l := open(t, q, audit.Options{MaxBytes: 20_000})
		for n := range 200 {
			l.Record(t.Context(), change(n))
		}
		l.Close(t.Context()) // the last trim has ended
		items := all(t, l, audit.Query{Limit: 1000})
		size := 0
		for _, i := range items {
			raw, _ := json.Marshal(i)
			size += len(raw)
		}
		if size > 21_000 || size < 15_000 || !slices.ContainsFunc(items, func(i audit.Item) bool { return i.Action == audit.Trimmed }) ||
			items[len(items)-1].Previous == "" {
			t.Errorf("%d entries of %d bytes", len(items), size)
		}
		old := open(t, q, audit.Options{Retention: -time.Hour}) // all is older than in an hour
		old.Record(t.Context(), change(1))
		old.Close(t.Context())
		if items = all(t, l, audit.Query{Limit: 1000}); len(items) != 2 {
			t.Errorf("%d entries past retention are left", len(items))
		}
	})
}

// TestAway: while Redis is away, entries wait in memory and have their lines; later they are
// chained, each once.
func TestAway(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	var lines sink
	l := open(t, openQueue(t, server.URL()), audit.Options{Lines: &lines})
	l.Record(t.Context(), change(0))
	server.Kill()
	for n := range 5 {
		l.Record(t.Context(), change(1+n))
	}
	queuetest.Await(t, "the lines", func() bool { return len(lines.lines()) == 6 })
	server.Restart()
	l.Record(t.Context(), change(6))
	queuetest.Await(t, "the chain", func() bool {
		page, err := l.Find(t.Context(), audit.Query{Limit: 100})
		return err == nil && len(page.Items) == 7
	})
	l.Close(t.Context())
	if items := all(t, l, audit.Query{Limit: 100}); len(items) != 7 {
		t.Errorf("%d entries", len(items))
	}
	if got := lines.lines(); len(got) != 7 || strings.Contains(got[5], `"hash"`) || !strings.Contains(got[0], `"hash"`) {
		t.Errorf("lines %q", got)
	}
}

// TestOnce: a command chains its entry and removes none, whatever the bounds of the processes are.
func TestOnce(t *testing.T) {
	q := openQueue(t, servers.Lend(t).URL())
	l := open(t, q, audit.Options{})
	l.Record(t.Context(), change(0))
	e := audit.Entry{Action: "store.repair", Outcome: audit.OK}
	if err := audit.Once(t.Context(), store.Of(q), e, map[string]any{"count": 3}); err != nil {
		t.Fatal(err)
	}
	items := all(t, l, audit.Query{Limit: 10})
	if len(items) != 2 || items[0].Actor != audit.Command || !strings.Contains(string(items[0].Detail), `"count":3`) {
		t.Errorf("%+v", items)
	}
}

// TestLoss: entries that Redis has lost, as in a failover, are noticed by the process that had
// written them.
func TestLoss(t *testing.T) {
	q := openQueue(t, servers.Lend(t).URL())
	l := open(t, q, audit.Options{})
	for n := range 5 {
		l.Record(t.Context(), change(n))
	}
	if err := store.Of(q).Fast.Del(t.Context(), store.AuditClock, store.AuditKey).Err(); err != nil {
		t.Fatal(err)
	}
	l.Record(t.Context(), change(5))
	l.Close(t.Context())
	items := all(t, l, audit.Query{Limit: 100})
	if len(items) != 2 || items[0].Action != audit.Lost || !strings.Contains(string(items[0].Detail), `"count":5`) {
		t.Errorf("%+v", items)
	}
}

// TestVerifier: a changed, a missing and a moved entry show, and a chain that was computed anew.
func TestVerifier(t *testing.T) {
	l := open(t, openQueue(t, servers.Lend(t).URL()), audit.Options{})
	for n := range 6 {
		l.Record(t.Context(), change(n))
	}
	items := all(t, l, audit.Query{Limit: 100})
	for name, c := range map[string]struct {
		damage func(of []audit.Item) []audit.Item
		expect string
		want   string
	}{
		"changed":   {func(of []audit.Item) []audit.Item { of[2].Actor = "eve"; return of }, "", "was changed"},
		"missing":   {func(of []audit.Item) []audit.Item { return slices.Delete(of, 2, 3) }, "", "gap before"},
		"beginning": {func(of []audit.Item) []audit.Item { return of[:4] }, "", "beginning is missing"},
		"swapped":   {func(of []audit.Item) []audit.Item { of[1], of[2] = of[2], of[1]; return of }, "", "gap before"},
		"anew":      {func(of []audit.Item) []audit.Item { return of }, strings.Repeat("0", 64), "no entry has the hash"},
	} {
		v := audit.Verifier{Expect: c.expect}
		for _, i := range c.damage(slices.Clone(items)) {
			v.Add(i)
		}
		if v.End(); !slices.ContainsFunc(v.Faults, func(f string) bool { return strings.Contains(f, c.want) }) {
			t.Errorf("%s: %q, want one with %q", name, v.Faults, c.want)
		}
	}
}

// hostile are texts that clients and operators may send.
var hostile = []string{
	"\x1b]52;c;aGk=\x07", "\u009b31mred", "\u202eevil", "<script>alert(1)</script>", "a\nb\r\n\x00c", "\xff\xfe", "\u2028",
	"😀", "\u007f", `"}\`, strings.Repeat("é", 1<<19),
}

// TestHostile: what others wrote is plain ASCII in the line and in Redis, bounded, and verifiable.
func TestHostile(t *testing.T) {
	var lines sink
	q := openQueue(t, servers.Lend(t).URL())
	l := open(t, q, audit.Options{Lines: &lines})
	for _, text := range hostile {
		l.Record(t.Context(), audit.Entry{
			Actor: text, Role: text, Address: text, Action: "tenant.patch", Subject: text, Outcome: audit.OK,
			Before: text, After: map[string]any{text: []any{text, 1.5, math.Copysign(0, -1), 1e300, 1 << 60, nil, true}}, Detail: func() {},
		})
	}
	items := all(t, l, audit.Query{Limit: 1000})
	if len(items) != len(hostile) {
		t.Fatalf("%d entries", len(items))
	}
	for _, line := range lines.lines() {
		if len(line) > 20_000 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%d bytes: %.200q", len(line), line)
		}
	}
	if got := items[len(items)-8].After; string(got) != `{"\ud83d\ude00":["\ud83d\ude00","1.5",0,"1e+300","1152921504606846976",null,true]}` {
		t.Errorf("%s", got)
	}
	byPython(t, items)
}

// byPython verifies the entries with the program on the page.
func byPython(t *testing.T, items []audit.Item) {
	t.Helper()
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, ok := strings.Cut(string(page), "```python\n")
	program, _, ends := strings.Cut(program, "```")
	if !ok || !ends {
		t.Fatal("the page has no program")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("make test installs python3: %v", err)
	}
	run := func(items []audit.Item) string {
		var in bytes.Buffer
		for _, i := range slices.Backward(items) {
			raw, err := json.Marshal(i)
			if err != nil {
				t.Fatal(err)
			}
			in.Write(append(raw, '\n'))
		}
		cmd := exec.CommandContext(t.Context(), python, "-c", program)
		cmd.Stdin = &in
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := run(items); !strings.Contains(out, fmt.Sprint(len(items), " entries")) || strings.Contains(out, "gap") || strings.Contains(out, "changed") {
		t.Errorf("python: %s", out)
	}
	broken := slices.Delete(slices.Clone(items), 2, 3)
	broken[0].Subject = "other"
	if out := run(broken); !strings.Contains(out, "gap") || !strings.Contains(out, "changed") {
		t.Errorf("python takes a broken chain for whole: %s", out)
	}
}
