package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// TestUpgradeCheck: the new version says whether it takes file and store, and writes nothing.
func TestUpgradeCheck(t *testing.T) {
	server := redistest.Start(t)
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	defer c.Close()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte("routes: { default: { url: \"http://127.0.0.1:9/\" } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(code int, args ...string) (out, errs string) {
		t.Helper()
		var o, e bytes.Buffer
		args = append([]string{"upgrade", "check", file, "--redis-allow-unsafe"}, args...)
		if got := Run(t.Context(), args, cli.Stdio{In: strings.NewReader(""), Out: &o, Err: &e}, nil); got != code {
			t.Errorf("%v: exit code %d, want %d\n%s", args, got, code, e.String())
		}
		return o.String(), e.String()
	}
	says := func(text, part string) {
		t.Helper()
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	at := "--redis-url=" + server.URL()
	out, _ := check(cli.ExitOK, at)
	says(out, "stored data    none\n")
	if keys, err := c.DBSize(t.Context()).Result(); err != nil || keys != 0 {
		t.Errorf("the check has written %d keys, %v", keys, err)
	}

	processtest.Start(t, map[string]any{
		"redis": map[string]any{"url": server.URL()}, "store": map[string]any{"shards": 5},
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
	})
	out, _ = check(cli.ExitOK, at)
	says(out, "stored data    schema 5 in 5 shards\n")
	says(out, "way back       start the version that runs now again\n")
	out, _ = check(cli.ExitOK, at, "--json")
	var got upgrade
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Schema.Stored != queue.Schema ||
		got.Schema.Oldest != queue.OldestSchema || got.Schema.Writes != queue.Schema || got.Shards != 5 || got.Notes == nil {
		t.Errorf("%v: %s", err, out)
	}

	// A store of a later version, a setting that is gone, and a store of one process.
	if err := c.HSet(t.Context(), "sluice:meta", "schema", queue.Schema+1).Err(); err != nil {
		t.Fatal(err)
	}
	_, errs := check(cli.ExitFailed, at)
	says(errs, "the store would refuse this configuration: ")
	_, errs = check(cli.ExitUsage)
	says(errs, "redis.url is not set")
	if err := os.WriteFile(file, []byte("admin: { asynqmon: true }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs = check(cli.ExitUsage, at)
	says(errs, "admin.asynqmon: unknown key")
}
