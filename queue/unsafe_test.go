package queue_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
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

// TestNewMasterIsChecked: after a failover to a master that may lose jobs, the log has what to set.
func TestNewMasterIsChecked(t *testing.T) {
	t.Parallel()
	url, servers := sentinelled(t)
	var log queuetest.Log
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url, Logger: log.Logger(slog.LevelInfo)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, replica := range servers[1:] {
		if err := client(t, replica.URL()).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(log.String(), "may lose jobs") {
		t.Error("the master is unsafe")
	}
	if _, err := queue.FailOver(t.Context(), queue.FailoverOptions{URL: url, Step: func(string) {}}); err != nil {
		t.Fatal(err)
	}
	await(t, "the log says that the new master is unsafe", func() bool {
		_ = e.Client().Ping(t.Context()).Err() // connects to it
		text := log.String()
		return strings.Contains(text, "level=ERROR") && strings.Contains(text, "set maxmemory-policy noeviction")
	})
}
