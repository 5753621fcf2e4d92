package queue_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/redistest"
)

// TestEachMasterIsChecked: a cluster is refused if one master may lose jobs. The error names it.
func TestEachMasterIsChecked(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	set := func(node int, name, value string) {
		t.Helper()
		if err := client(t, "redis://"+c.Address(node)).ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for node, other := range []int{1, 0} {
		set(node, "maxmemory-policy", "allkeys-lru")
		set(other, "appendonly", "no")
		_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: c.URL()})
		for _, want := range []string{
			"master " + c.Address(node) + " evicts keys", "set maxmemory-policy noeviction",
			"master " + c.Address(other) + " has no append-only file",
		} {
			if !errors.Is(err, queue.ErrUnsafe) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want ErrUnsafe with %q", err, want)
			}
		}
		set(node, "maxmemory-policy", "noeviction")
		set(other, "appendonly", "yes")
	}
	admit(t, open(t, queue.EngineOptions{URL: c.URL()}, defaults))
}

// lines is a log that a test reads while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// TestNewMasterIsChecked: after a failover to a master that may lose jobs, the log has what to set.
func TestNewMasterIsChecked(t *testing.T) {
	t.Parallel()
	url, servers := sentinelled(t)
	var log lines
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, replica := range servers[1:] {
		if err := client(t, replica.URL()).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if log.has("may lose jobs") {
		t.Error("the master is unsafe")
	}
	if _, err := queue.FailOver(t.Context(), queue.FailoverOptions{URL: url, Step: func(string) {}}); err != nil {
		t.Fatal(err)
	}
	await(t, "the log says that the new master is unsafe", func() bool {
		_ = e.Client().Ping(t.Context()).Err() // connects to it
		return log.has("level=ERROR") && log.has("set maxmemory-policy noeviction")
	})
}
