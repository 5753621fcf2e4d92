package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// TestCommandsMakeNoStore: a command for a store refuses a directory without one, and makes none.
func TestCommandsMakeNoStore(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "codec.key")
	if err := os.WriteFile(keys, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "--route", "default=http://127.0.0.1:9"}, {"store", "rotate-keys", "--codec-key-file", keys},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		var out, errs bytes.Buffer
		code := Run(t.Context(), append(args, "--redis-data-dir", dir), cli.Stdio{Out: &out, Err: &errs}, nil)
		if code != cli.ExitUsage || !strings.Contains(errs.String(), "redis.data_dir") || !strings.Contains(errs.String(), "it has no data") {
			t.Errorf("%v: exit code %d, %s%s", args, code, out.String(), errs.String())
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v made the directory: %v", args, err)
		}
	}
}

// TestCheckCommand: a damaged store is reported with kinds, counts and examples, repaired when
// asked to, and clean after that.
func TestCheckCommand(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	check := func(want int, args ...string) string {
		t.Helper()
		var out, err bytes.Buffer
		args = append([]string{"check", "--route", "default=http://127.0.0.1:9", "--redis-url", server.URL()},
			args...)
		if code := Run(t.Context(), args, cli.Stdio{Out: &out, Err: &err}, nil); code != want {
			t.Fatalf("%v: exit code %d, want %d: %s%s", args, code, want, out.String(), err.String())
		}
		return out.String() + err.String()
	}
	if out := check(cli.ExitUsage); !strings.Contains(out, "sluice:meta is missing") {
		t.Errorf("of a Redis without a store: %s", out)
	}
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	q, err := queue.Open(t.Context(), e, queue.Options{Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	if _, err := q.Submit(t.Context(), queue.Submission{Tenant: "acme", Route: "default", Type: "t",
		MaxAttempts: 3}); err != nil {
		t.Fatal(err)
	}
	if out := check(cli.ExitOK); !strings.Contains(out, "2 shards, 1 tenants, 1 flows and 1 jobs") {
		t.Errorf("of a sound store: %s", out)
	}
	keys := store.NewKeyspace(2).ShardOf("acme")
	if err := e.Client().Del(t.Context(), keys.Queue("acme/default")).Err(); err != nil {
		t.Fatal(err)
	}
	queuetest.Contains(t, "the report of a deleted queue", check(cli.ExitFailed), "unindexed: 1 (",
		"job:", "sluice check --repair")
	var report checkReport
	text, _, _ := strings.Cut(check(cli.ExitFailed, "--repair", "--json"), "Repaired.")
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("the report is %s: %v", text, err)
	}
	queuetest.Compare(t, "jobs found without an index", report.Counts["unindexed"], 1)
	queuetest.Compare(t, "the findings are repaired", report.Repaired, true)
	check(cli.ExitOK)
}

// Each step of a check looks at the keys of the whole shard, and finds the same damage there.
func TestCheckFindsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	q, err := queue.Open(t.Context(), e, queue.Options{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	for i := range 30 { // flows: several steps
		if _, err := q.Submit(t.Context(), queue.Submission{
			Tenant: fmt.Sprint("tenant", i), Route: "default", Type: "t", MaxAttempts: 3,
		}); err != nil {
			t.Fatal(err)
		}
	}
	keys := store.NewKeyspace(1).Shard(0)
	e.Client().ZAdd(t.Context(), keys.Leases(), redis.Z{Score: 1, Member: "nowhere"})
	var out, errs bytes.Buffer
	args := []string{"check", "--route", "default=http://127.0.0.1:9", "--redis-url", server.URL()}
	if code := Run(t.Context(), args, cli.Stdio{Out: &out, Err: &errs}, nil); code != cli.ExitFailed {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if got := out.String(); !strings.Contains(got, "no_record: 1 (") || strings.Count(got, "nowhere") != 1 {
		t.Errorf("a lease of a job that is not stored, in 30 flows:\n%s", got)
	}
}
