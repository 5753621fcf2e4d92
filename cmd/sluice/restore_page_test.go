package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/redistest"
)

// TestRestorePage runs the commands of docs/deploy.md that restore a backup. The Redis that is
// started afterwards must have all of it, also after a crash.
func TestRestorePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(cp sluice-backup\\.rdb .*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page does not restore sluice-backup.rdb")
	}
	const keys = 8000
	dir := t.TempDir()
	from := redistest.Start(t)
	fill(t, from.URL(), keys)
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	run("redis-cli", "-s", strings.TrimPrefix(from.URL(), "unix://"), "--rdb", "sluice-backup.rdb")
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	run("sh", "-c", strings.ReplaceAll(string(block[1]), "/var/lib/redis", data))
	again := redistest.Start(t, "--dir", data, "--appendonly", "yes")
	for _, time := range []string{"once", "twice"} {
		client := connect(t, again.URL())
		if n, err := client.DBSize(context.Background()).Result(); err != nil || n != keys {
			t.Errorf("started %s, it has %d keys (%v), want %d", time, n, err, keys)
		}
		again.Kill()
		again.Restart()
	}
}

// fill writes n keys.
func fill(t *testing.T, url string, n int) {
	t.Helper()
	pipe := connect(t, url).Pipeline()
	for i := range n {
		pipe.Set(context.Background(), fmt.Sprint("key:", i), i, 0)
	}
	if _, err := pipe.Exec(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
