package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// TestFailoverCommand: the command prints its steps and its result, and exits with what came of it.
func TestFailoverCommand(t *testing.T) {
	t.Parallel()
	master, port := redistest.StartTCP(t)
	redistest.StartTCP(t, "--replicaof", fmt.Sprint("127.0.0.1 ", port))
	at := redistest.StartSentinel(t, "main", port)
	failover := func(want int, args ...string) (out, errs string) {
		t.Helper()
		var o, e bytes.Buffer
		if code := Run(t.Context(), append([]string{"redis", "failover"}, args...), cli.Stdio{Out: &o, Err: &e}, nil); code != want {
			t.Fatalf("%v: exit code %d, want %d: %s%s", args, code, want, o.String(), e.String())
		}
		return o.String(), e.String()
	}
	if _, errs := failover(cli.ExitUsage, "--redis-url", master.URL()); !strings.Contains(errs, "redis.url must name Sentinel") {
		t.Errorf("of one server: %s", errs)
	}
	url := "redis+sentinel://" + at + "?master_name=main"
	if _, errs := failover(cli.ExitFailed, "--redis-url", url, "--master", "127.0.0.1:1"); !strings.Contains(errs, "nothing was changed") {
		t.Errorf("of another master: %s", errs)
	}
	s := redis.NewSentinelClient(&redis.Options{Addr: at, DisableIdentity: true})
	defer s.Close()
	queuetest.Await(t, "the sentinel to know the replica", func() bool {
		list, err := s.Replicas(t.Context(), "main").Result()
		return err == nil && len(list) == 1 && list[0]["flags"] == "slave" && list[0]["master-link-status"] == "ok"
	})
	out, errs := failover(cli.ExitOK, "--redis-url", url, "--json")
	var result queue.Failover
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.From != fmt.Sprint("127.0.0.1:", port) || result.To == "" {
		t.Errorf("%s, %v", out, err)
	}
	if !strings.Contains(errs, "pausing writes …") || !strings.Contains(errs, "failing over …") {
		t.Errorf("the steps are %s", errs)
	}
}
