package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/redistest"
)

// A process of another environment does not start on the Redis of this one, and says both names. It
// opens no listener first: the address is in use.
func TestAnotherEnvironmentDoesNotStart(t *testing.T) {
	url := redistest.Start(t).URL()
	processtest.Start(t, map[string]any{
		"redis": map[string]any{"url": url}, "store": map[string]any{"environment": "production"},
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
	})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for given, says := range map[string]string{
		"--store-environment=staging": "store.environment: staging: the store belongs to another environment: it is of production",
		"--store-environment=":        "store.environment: not set: the store belongs to another environment: it is of production",
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), []string{"serve", "--route=default=http://127.0.0.1:9/", "--redis-url", url, given,
			"--redis-allow-unsafe", "--api=" + taken.Addr().String(), "--admin=127.0.0.1:0"},
			cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
		if code != cli.ExitUsage || !strings.Contains(errs.String(), says) {
			t.Errorf("%s: exit code %d\n%s", given, code, errs.String())
		}
	}
}

// config check --redis says what the store would refuse, and writes nothing.
func TestConfigCheckOfTheStore(t *testing.T) {
	server := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte("store: { environment: production }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(code int, says string, environ []string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"config", "check", file, "--redis", "--route=default=http://127.0.0.1:9/", "--redis-allow-unsafe"}, args...)
		got := Run(t.Context(), args, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, environ)
		if got != code || !strings.Contains(errs.String(), says) {
			t.Errorf("%v: exit code %d, want %d\n%s", args, got, code, errs.String())
		}
	}
	at := "--redis-url=" + server.URL()
	check(cli.ExitOK, "No problems.", nil, at)
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	defer c.Close()
	if keys, err := c.DBSize(t.Context()).Result(); err != nil || keys != 0 {
		t.Errorf("the check has written %d keys, %v", keys, err)
	}
	running := processtest.Start(t, map[string]any{
		"redis": map[string]any{"url": server.URL()}, "store": map[string]any{"environment": "production", "shards": 5},
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
	})
	check(cli.ExitOK, "No problems.", nil, at)
	check(cli.ExitFailed, "the store would refuse this configuration: the store belongs to another environment: it is of production",
		nil, at, "--store-environment=staging")
	check(cli.ExitFailed, "it has 5 shards, this process is set to 3", nil, at, "--store-shards=3")
	check(cli.ExitFailed, "note: SLUICE_STORE_ENVIRONMENT sets store.environment to staging, over production in the file",
		[]string{"SLUICE_STORE_ENVIRONMENT=staging"}, at)
	check(cli.ExitUsage, "--redis: redis.url is not set", nil)

	remote, err := client.New("http://"+running.Admin.String(), "", http.DefaultClient)
	if err == nil {
		_, err = remote.Patch(t.Context(), "acme", json.RawMessage(`{"rate":"5/s","capacity":7}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("store: { environment: production }\n"+
		"tenants: { acme: { rate: 10/s, capacity: 7, burst: 3 } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(cli.ExitOK, `note: tenant "acme": rate is 5/s by the API, which outranks 10/s of the file`+"\nNo problems.", nil, at)
}
