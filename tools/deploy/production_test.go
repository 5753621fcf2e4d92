package deploy_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// prepared is a copy of deploy/production after prepare.sh.
func prepared(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Fatalf("make test installs openssl: %v", err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("production")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", filepath.Join(dir, "prepare.sh"), "api.example.com").CombinedOutput(); err != nil {
		t.Fatalf("prepare.sh: %v\n%s", err, out)
	}
	return dir
}

// contents are the files below a directory, by their paths.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestProductionIsPreparedOnce: what exists stays, and nobody else may read it.
func TestProductionIsPreparedOnce(t *testing.T) {
	dir := prepared(t)
	secrets := filepath.Join(dir, "secrets")
	before := contents(t, secrets)
	if out, err := exec.Command("sh", filepath.Join(dir, "prepare.sh"), "other.example.com").CombinedOutput(); err != nil {
		t.Fatalf("prepare.sh again: %v\n%s", err, out)
	}
	if diff := cmp.Diff(before, contents(t, secrets)); diff != "" {
		t.Errorf("prepare.sh changed what was there (-before +after):\n%s", diff)
	}
	for path := range before {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

// TestProductionFile: the program accepts the file, every listener speaks TLS, and clients need
// keys.
func TestProductionFile(t *testing.T) {
	c, err := config.Load(config.Sources{File: filepath.Join(prepared(t), "sluice.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	if c.API.TLS.Cert == "" || c.Admin.TLS.Cert == "" || len(c.Admin.Token) != 64 || !strings.HasPrefix(c.Redis.URL, "rediss://sluice:") {
		t.Errorf("not secured: %+v %+v", c.API.TLS, c.Admin.TLS)
	}
}

// TestProductionContainers: no container may write to its image, has capabilities, or publishes a
// port to other machines but the one of clients, and Redis is in a network without a way out.
func TestProductionContainers(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"production/docker-compose.yml"},
		cli.WithEnv([]string{"SLUICE_UID=1000", "SLUICE_GID=1000", "SLUICE_PUBLISH=0.0.0.0"}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range p.Services {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.User != "1000:1000" || s.HealthCheck == nil ||
			!slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s is not hardened", name)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" && port.Target != 8443 {
				t.Errorf("%s publishes %d at %s", name, port.Target, port.HostIP)
			}
		}
		if _, floating := strings.CutSuffix(s.Image, ":latest"); floating || !strings.Contains(s.Image, ":") {
			t.Errorf("%s: the image %q is not pinned", name, s.Image)
		}
	}
	if len(p.Services["redis"].Networks) != 1 || !p.Networks["store"].Internal {
		t.Errorf("Redis is in the networks %v", p.Services["redis"].Networks)
	}
}

// TestProductionRedis: the Redis of the compose file refuses whoever has no password, and its user
// has the rights of docs/redis.md.
func TestProductionRedis(t *testing.T) {
	dir := prepared(t)
	acl, err := os.ReadFile(filepath.Join(dir, "secrets/users.acl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range redistest.RulesOf(t, "../docs/redis.md", "## Rights") {
		if !strings.Contains(string(acl), " "+rule) {
			t.Errorf("users.acl lacks %s", rule)
		}
	}
	options, err := cli.NewProjectOptions([]string{"production/docker-compose.yml"},
		cli.WithEnv([]string{"SLUICE_UID=1000", "SLUICE_GID=1000"}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(free.Addr().(*net.TCPAddr).Port)
	_ = free.Close()
	var args []string
	for _, arg := range p.Services["redis"].Command[1:] {
		args = append(args, strings.NewReplacer("/secrets", dir+"/secrets", "/data", dir+"/data", "6379", port).Replace(arg))
	}
	redis := exec.Command("redis-server", append(args, "--bind", "127.0.0.1")...)
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = redis.Process.Kill(); _ = redis.Wait() })

	c, err := config.Load(config.Sources{File: filepath.Join(dir, "sluice.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	url := strings.NewReplacer("redis:6379", "127.0.0.1:"+port, "/etc/sluice/", dir+"/").Replace(c.Redis.URL)
	open := func(url string) error {
		q, err := queue.Connect(t.Context(), queue.EngineOptions{URL: url, Logger: slog.New(slog.DiscardHandler)}, queue.Options{})
		if err == nil {
			err = q.Ping(t.Context())
			q.Close()
		}
		return err
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if err = open(url); err == nil || time.Since(began) > 20*time.Second {
			break
		}
	}
	if err != nil {
		t.Fatalf("with the password: %v", err)
	}
	if err := open(strings.Replace(url, c.Redis.URL[len("rediss://sluice:"):strings.Index(c.Redis.URL, "@")], "wrong", 1)); err == nil {
		t.Error("a wrong password is accepted")
	}

	// The user of backups may copy all, and nothing else.
	password, err := os.ReadFile(filepath.Join(dir, "secrets/backup.password"))
	if err != nil {
		t.Fatal(err)
	}
	backup := func(args ...string) (string, error) {
		cmd := exec.Command("redis-cli", append([]string{"-p", port, "--tls", "--cacert", filepath.Join(dir, "secrets/ca.pem"),
			"--user", "backup", "--no-auth-warning", "-e"}, args...)...)
		cmd.Env = append(os.Environ(), "REDISCLI_AUTH="+strings.TrimSpace(string(password)))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	file := filepath.Join(dir, "data/sluice-backup.rdb")
	if out, err := backup("--rdb", file); err != nil {
		t.Errorf("no backup: %v\n%s", err, out)
	}
	if content, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(content), "REDIS") {
		t.Errorf("the backup begins with %q (%v)", content[:min(5, len(content))], err)
	}
	if out, err := backup("get", "sluice:meta"); err == nil || !strings.Contains(out, "NOPERM") {
		t.Errorf("the user of backups reads a key: %v\n%s", err, out)
	}
}
