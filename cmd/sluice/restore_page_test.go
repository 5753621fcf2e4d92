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

// TestRestorePage runs the commands of docs/deploy.md that restore a backup, on one that Redis
// needs seconds to read. The Redis that is started afterwards must have all of it.
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
	short, err := os.MkdirTemp("/tmp", "s") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	from := redistest.Start(t)
	fill(t, from.URL(), keys)
	socket := filepath.Join(short, "s")
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	run("redis-cli", "-s", strings.TrimPrefix(from.URL(), "unix://"), "--rdb", "sluice-backup.rdb")
	// The programs of the page, at a socket of this test. The server pauses 200 µs after each key,
	// and answers meanwhile that it is loading.
	for name, options := range map[string]string{
		"redis-cli": "-s " + socket,
		"redis-server": "--port 0 --unixsocket " + socket +
			" --key-load-delay 200 --loading-process-events-interval-bytes 1024",
	} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\nexec %s %s \"$@\"\n", path, options)
		if name == "redis-server" {
			script = fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" %s >>log\n", path, options)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	run("sh", "-c", strings.ReplaceAll(string(block[1]), "/var/lib/redis", data)+"\nwait\n")
	again := redistest.Start(t, "--dir", data, "--appendonly", "yes")
	client := connect(t, again.URL())
	if n, err := client.DBSize(context.Background()).Result(); err != nil || n != keys {
		t.Errorf("it has %d keys (%v), want %d", n, err, keys)
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
