package process_test

import (
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/limitertest"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/sessions"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper/limiter"
)

// TestRightsAreEnoughAndNeeded: with the user of docs/redis.md, everything works, no command is
// denied, and each one in the list is used.
func TestRightsAreEnoughAndNeeded(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	user := &redistest.Rights{Rules: redistest.RulesOf(t, "../../../../docs/redis.md", "## Rights")}
	var servers redistest.Pool
	defer func() { _ = servers.Close() }()
	open := func(t *testing.T) *queue.Engine {
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
			URL: user.Restrict(t, servers.Lend(t)), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	t.Run("queue", func(t *testing.T) { queuetest.Run(t, open) })
	t.Run("limits", func(t *testing.T) {
		limitertest.Run(t, func(t *testing.T) limiter.Store { return openQueue(t, open(t)).Limits() })
	})
	t.Run("repair", func(t *testing.T) {
		e := open(t)
		q := openQueue(t, e)
		for range 2 {
			if _, err := q.Submit(t.Context(), queue.Submission{
				Tenant: "acme", Route: "default", Type: "t", MaxAttempts: 1,
			}); err != nil {
				t.Fatal(err)
			}
			setEach(t, e, "*:flow:acme/default", "seen", 0) // as if that was long ago
		}
		checked, err := q.Check(t.Context(), true, func([]repair.Finding) error { return nil })
		if err != nil || checked.Jobs != 2 {
			t.Errorf("%+v, %v", checked, err)
		}
		if found, err := sessions.New(store.Of(q)).FindSession(t.Context(), [32]byte{}); found.Name != "" || err != nil {
			t.Errorf("a session that was not opened: %v, %v", found, err)
		}
	})
	t.Run("another master", func(t *testing.T) {
		e := open(t)
		poll(t, openQueue(t, e), "a")
		setEach(t, e, "*:clock", "replid", "of another master")
		poll(t, openQueue(t, e), "b")
		queuetest.Await(t, "the append-only file is rewritten", func() bool {
			return strings.Contains(e.Client().Info(t.Context(), "commandstats").Val(), "cmdstat_bgrewriteaof")
		})
	})
	t.Run("process", func(t *testing.T) {
		url := user.Restrict(t, servers.Lend(t))
		useProcess(t, url)
		renewRecord(t, url)
	})
	for _, rule := range user.Rules {
		if name, isCommand := strings.CutPrefix(rule, "+"); isCommand && !user.Used(name) {
			t.Errorf("%s is not used, so it need not be allowed", name)
		}
	}
}

// TestRightsOfScripts: the user of docs/redis.md may run each command that a script can reach, also
// one that it reaches seldom.
func TestRightsOfScripts(t *testing.T) {
	allowed := redistest.RulesOf(t, "../../../../docs/redis.md", "## Rights")
	named := regexp.MustCompile(`(?:call|in_parts)\(\s*'([A-Z]+)'`)
	commands := 0
	for _, pattern := range []string{"*.lua", "lib/*.lua"} {
		files, err := fs.Glob(lua.Sources, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := lua.Sources.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range named.FindAllSubmatch(source, -1) {
				commands++
				if rule := "+" + strings.ToLower(string(found[1])); !slices.Contains(allowed, rule) {
					t.Errorf("%s needs %s", file, rule)
				}
			}
		}
	}
	if commands < 100 {
		t.Errorf("%d commands are found", commands)
	}
}

func openQueue(t *testing.T, e *queue.Engine) *queue.Queue {
	t.Helper()
	q, err := queue.Open(t.Context(), e, queue.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q
}

// setEach sets a field of all hashes whose keys match.
func setEach(t *testing.T, e *queue.Engine, pattern, field string, value any) {
	t.Helper()
	keys := e.Client().Scan(t.Context(), 0, pattern, 1000).Iterator()
	for keys.Next(t.Context()) {
		if err := e.Client().HSet(t.Context(), keys.Val(), field, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := keys.Err(); err != nil {
		t.Fatal(err)
	}
}

// poll polls the first shard once.
func poll(t *testing.T, q *queue.Queue, worker string) {
	t.Helper()
	if _, err := q.Broker().Consumer(worker, 0).Tick(t.Context(), queue.TickOptions{}); err != nil {
		t.Fatal(err)
	}
}

// useProcess delivers jobs by HTTP and to asynq, and calls back with a retry and with an end in the
// archive.
func useProcess(t *testing.T, redisURL string) {
	t.Helper()
	var calls, gone, deliveries atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/gone":
			gone.Add(1)
			w.WriteHeader(http.StatusGone)
		case strings.HasPrefix(r.URL.Path, "/called"):
			if calls.Add(1) == 1 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		case strings.HasPrefix(r.URL.Path, "/large"):
			_, _ = w.Write(make([]byte, 200_000))
		default:
			deliveries.Add(1)
		}
	}))
	defer target.Close()
	now := processtest.Start(t, map[string]any{
		"redis": map[string]any{"url": redisURL},
		"routes": map[string]any{
			"default": map[string]any{"url": target.URL},
			"fleet":   map[string]any{"asynq": map[string]any{"queue": "fleet"}},
			"large":   map[string]any{"forward": target.URL + "/large"},
		},
		"callbacks": map[string]any{"allow": []any{target.URL + "/"}},
		"guards":    map[string]any{"all": map[string]any{"rate": "100/s", "by": []any{"tenant"}, "on_error": "closed"}},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	jobs, err := client.New("http://"+now.API.String(), "", hc)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []wire.Submission{
		{CallbackURL: target.URL + "/called"}, {CallbackURL: target.URL + "/gone"}, {Route: "fleet"},
		{Payload: json.RawMessage(`"` + strings.Repeat("x", 50_000) + `"`)},
	} {
		s.Type = "t"
		if s.Payload == nil {
			s.Payload = json.RawMessage("1")
		}
		if _, err := jobs.Submit(t.Context(), client.Submission{Submission: s}); err != nil {
			t.Fatal(err)
		}
	}
	large, err := hc.Get("http://" + now.API.String() + "/v1/forward/large/")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, large.Body); n != 200_000 || err != nil {
		t.Errorf("%s: %d bytes, %v", large.Status, n, err)
	}
	_ = large.Body.Close()
	queuetest.Await(t, "the callbacks", func() bool { return calls.Load() > 1 && gone.Load() > 0 })
	queuetest.Await(t, "the archive", func() bool { return metric(t, hc, now.Admin.String(), `sluice_callbacks_archived`) })
	for _, path := range []string{"/v1/stats", "/v1/tenants", "/v1/guards/all/blocked", "/metrics", "/readyz"} {
		if got := (asker{T: t, client: hc}).ask("GET", now.Admin.String()+path, "", nil); got != http.StatusOK {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// renewRecord deletes the record of the store under a process, which makes it anew.
func renewRecord(t *testing.T, redisURL string) {
	t.Helper()
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	o.DisableIdentity = true
	store := redis.NewClient(o)
	defer store.Close()
	if err := store.Del(t.Context(), "sluice:meta").Err(); err != nil {
		t.Fatal(err)
	}
	queuetest.Await(t, "the record of the store again", func() bool {
		return store.Exists(t.Context(), "sluice:meta").Val() == 1
	})
}

// metric reports whether a line of the metrics begins with the name and does not end in 0.
func metric(t *testing.T, hc *http.Client, admin, name string) bool {
	t.Helper()
	r, err := hc.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return err == nil && regexp.MustCompile(`(?m)^`+name+`\S* [1-9]`).Match(text)
}
