package queue_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// shortTemp points TMPDIR at an empty directory whose path leaves room for a socket, and returns
// it.
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // looked at by the test itself
	t.Setenv("TMPDIR", dir)
	return dir
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// children are the processes that this one has started and not yet seen end.
func children(t *testing.T) string {
	t.Helper()
	text, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, path := range text {
		raw, _ := os.ReadFile(path) // of a thread that has ended since: no children
		all.Write(raw)
	}
	return strings.TrimSpace(all.String())
}

// TestPrivateEngine follows one data directory through a start, a refusal, an end and another
// start.
func TestPrivateEngine(t *testing.T) {
	o := queue.EngineOptions{DataDir: filepath.Join(t.TempDir(), "made here", "data")}
	temp, before := shortTemp(t), children(t)
	start := func() (*queue.Engine, *queue.Queue) {
		e, err := queue.OpenEngine(t.Context(), o)
		if err != nil {
			t.Fatalf("OpenEngine: %v", err)
		}
		q, err := queue.Open(t.Context(), e, queue.Options{})
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		return e, q
	}
	end := func(e *queue.Engine, q *queue.Queue) {
		if err := errors.Join(q.Close(), e.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if left := entries(t, temp); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if now := children(t); now != before {
			t.Errorf("children are %q, before the start they were %q", now, before)
		}
	}
	e, q := start()
	if e.Kind() != queue.EnginePrivate || !strings.Contains(e.String(), "private") ||
		!strings.Contains(e.String(), o.DataDir) {
		t.Errorf("%s: %s", e.Kind(), e)
	}
	if mode, err := os.Stat(o.DataDir); err != nil || mode.Mode().Perm() != 0o700 {
		t.Errorf("the data directory is %v, %v", mode, err)
	}
	v, err := q.Submit(t.Context(), work())
	if err != nil || v.Outcome != shaper.Admitted {
		t.Fatalf("Submit: %+v, %v", v, err)
	}
	if _, err := queue.OpenEngine(t.Context(), o); !errors.Is(err, queue.ErrNoEngine) ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("a second engine on the same directory: %v, want ErrNoEngine", err)
	}
	end(e, q)
	e, q = start()
	if j, err := q.Job(t.Context(), "acme", v.Job.ID); err != nil || j.State != shaper.Queued {
		t.Errorf("after the restart the job is %+v, %v", j, err)
	}
	end(e, q)
}

// TestPrivateEngineSaysWhyNot: a start that fails names its reason and leaves nothing behind.
func TestPrivateEngineSaysWhyNot(t *testing.T) {
	t.Run("long temporary directory", func(t *testing.T) {
		dir := t.TempDir()
		long := filepath.Join(shortTemp(t), strings.Repeat("x", 100))
		if err := os.Mkdir(long, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", long)
		if _, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: dir}); err == nil ||
			!strings.Contains(err.Error(), "TMPDIR") {
			t.Errorf("OpenEngine: %v, want it to name TMPDIR", err)
		}
		if left := entries(t, long); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		t.Setenv("TMPDIR", "/tmp")
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: dir})
		if err != nil {
			t.Fatalf("the directory is not free again: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	t.Run("data directory is a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: path}); err == nil ||
			!strings.Contains(err.Error(), "data directory") {
			t.Errorf("OpenEngine: %v", err)
		}
	})
	t.Run("broken append-only file", func(t *testing.T) {
		dir := t.TempDir()
		temp := shortTemp(t)
		files := filepath.Join(dir, "appendonlydir")
		if err := os.Mkdir(files, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(files, "appendonly.aof.manifest"), []byte("nonsense\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: dir})
		if !errors.Is(err, queue.ErrNoEngine) || errors.Is(err, queue.ErrUnavailable) ||
			!strings.Contains(err.Error(), "redis.log") {
			t.Errorf("OpenEngine: %v, want ErrNoEngine with the log to read", err)
		}
		if left := entries(t, temp); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// childOf returns the process that was started since the children were those before, empty for
// none.
func childOf(t *testing.T, before string) string {
	t.Helper()
	for field := range strings.FieldsSeq(children(t)) {
		if !strings.Contains(" "+before+" ", " "+field+" ") {
			return field
		}
	}
	return ""
}

// TestPrivateEngineDies: the child is killed behind our back, twice. It is started again on the
// same data, which is logged and counted.
func TestPrivateEngineDies(t *testing.T) {
	var log bytes.Buffer
	o := queue.EngineOptions{DataDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	shortTemp(t)
	before := children(t)
	registry := prometheus.NewRegistry()
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), e, queue.Options{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	v, err := q.Submit(t.Context(), work())
	if err != nil {
		t.Fatal(err)
	}
	// Redis answers up to two seconds before it writes its file, while the disk is slow.
	queuetest.Await(t, "the job in the file", func() bool {
		files, err := filepath.Glob(filepath.Join(o.DataDir, "appendonlydir", "*.incr.aof"))
		return err == nil && slices.ContainsFunc(files, func(name string) bool {
			content, err := os.ReadFile(name)
			return err == nil && bytes.Contains(content, []byte(v.Job.ID))
		})
	})
	for i := range 2 {
		pid := childOf(t, before)
		kill(t, pid)
		queuetest.Await(t, "another child with the job", func() bool {
			j, err := q.Job(t.Context(), "acme", v.Job.ID)
			return err == nil && j.State == shaper.Queued && childOf(t, before) != pid
		})
		if err := testutil.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`# HELP sluice_redis_restarts_total Restarts of the private redis-server of this process after it ended by itself; 0 with a Redis of yours.
# TYPE sluice_redis_restarts_total counter
sluice_redis_restarts_total %d
`, i+1)), "sluice_redis_restarts_total"); err != nil {
			t.Error(err)
		}
		if _, err := q.Submit(t.Context(), work()); err != nil {
			t.Errorf("Submit after a restart: %v", err)
		}
	}
	if err := errors.Join(q.Close(), e.Close()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if now := children(t); now != before {
		t.Errorf("children are %q, before the start they were %q", now, before)
	}
	if n := strings.Count(log.String(), "the private redis-server ended and is started again"); n != 2 {
		t.Errorf("logged %d times, want twice:\n%s", n, &log)
	}
}

// TestPrivateEngineCannotBeStartedAgain: Failed tells, and Close does not hang.
func TestPrivateEngineCannotBeStartedAgain(t *testing.T) {
	o := queue.EngineOptions{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	shortTemp(t)
	queue.HasteRestarts(t)
	before := children(t)
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(o.DataDir, "appendonlydir", "appendonly.aof.manifest")
	if err := os.WriteFile(manifest, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kill(t, childOf(t, before))
	select {
	case err := <-e.Failed():
		if err == nil || !strings.Contains(err.Error(), "cannot be started again") {
			t.Errorf("Failed: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("nothing tells that the child cannot be started again")
	}
	if err := e.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func kill(t *testing.T, pid string) {
	t.Helper()
	n := 0
	for _, digit := range pid {
		n = 10*n + int(digit-'0')
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
