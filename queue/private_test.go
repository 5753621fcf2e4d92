package queue_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// shortTemp points TMPDIR at an empty directory whose path leaves room for a socket, and returns it.
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

// TestPrivateEngine follows one data directory through a start, a refusal, an end and another start.
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
	if e.Kind() != queue.EnginePrivate || !strings.Contains(e.String(), "private") || !strings.Contains(e.String(), o.DataDir) {
		t.Errorf("%s: %s", e.Kind(), e)
	}
	if mode, err := os.Stat(o.DataDir); err != nil || mode.Mode().Perm() != 0o700 {
		t.Errorf("the data directory is %v, %v", mode, err)
	}
	v, err := q.Submit(t.Context(), work())
	if err != nil || v.Outcome != shaper.Admitted {
		t.Fatalf("Submit: %+v, %v", v, err)
	}
	if _, err := queue.OpenEngine(t.Context(), o); !errors.Is(err, queue.ErrNoEngine) || !strings.Contains(err.Error(), "in use") {
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
		if _, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
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
		if _, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: path}); err == nil || !strings.Contains(err.Error(), "data directory") {
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
		if err := os.WriteFile(filepath.Join(files, "appendonly.aof.manifest"), []byte("nonsense\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{DataDir: dir})
		if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "redis.log") {
			t.Errorf("OpenEngine: %v, want ErrUnavailable with the log to read", err)
		}
		if left := entries(t, temp); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// TestPrivateEngineDies: the child is killed behind our back; calls fail, and Close does not hang.
func TestPrivateEngineDies(t *testing.T) {
	o := queue.EngineOptions{DataDir: t.TempDir()}
	shortTemp(t)
	before := children(t)
	q := open(t, o, defaults)
	for _, field := range strings.Fields(children(t)) {
		if !strings.Contains(" "+before+" ", " "+field+" ") {
			kill(t, field)
		}
	}
	queuetest.Await(t, "calls to fail", func() bool {
		_, err := q.Submit(t.Context(), work())
		return errors.Is(err, queue.ErrUnavailable)
	})
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
