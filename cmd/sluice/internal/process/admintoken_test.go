package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/7509e464/sluice/internal/config"
)

// TestAdminToken: a listener beyond loopback without admin.token has a token that is made once,
// shown once, and kept in a file for its owner alone.
func TestAdminToken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	start := func(edit func(*Process)) (token, shown string, err error) {
		var out bytes.Buffer
		p := &Process{Stderr: &out, Config: config.Config{
			Redis: config.Redis{DataDir: dir}, Admin: config.Admin{Listen: "0.0.0.0:8081"},
		}}
		edit(p)
		token, err = p.adminToken()
		return token, out.String(), err
	}
	none := func(*Process) {}
	for _, listen := range []string{"127.0.0.1:8081", "[::1]:8081"} {
		token, shown, err := start(func(p *Process) { p.Config.Admin.Listen = listen })
		if token != "" || shown != "" || err != nil {
			t.Errorf("%s: %q, %v", listen, shown, err)
		}
	}
	if token, shown, err := start(func(p *Process) { p.Config.Admin.Token = "0123456789abcdef" }); token != "0123456789abcdef" || shown != "" || err != nil {
		t.Errorf("with admin.token: %q, %v", shown, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a file was made for nothing")
	}
	first, shown, err := start(none)
	if err != nil || len(first) != 52 || strings.Count(shown, first) != 1 {
		t.Fatalf("made: %q, %v", shown, err)
	}
	path := filepath.Join(dir, "admin.token")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	if again, shown, err := start(none); again != first || shown != "" || err != nil {
		t.Errorf("the second start: %q, %v", shown, err)
	}
	other := filepath.Join(t.TempDir(), "token")
	own, _, err := start(func(p *Process) { p.Config.Admin.Listen, p.Config.Admin.TokenFile = "127.0.0.1:1", other })
	if err != nil || own == "" || own == first {
		t.Errorf("with admin.token_file on loopback: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v are left, %v", files, err)
	}
	for name, spoil := range map[string]func() error{
		"readable by others": func() error { return os.Chmod(path, 0o640) },
		"empty":              func() error { return os.Truncate(path, 0) },
		"very long":          func() error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 1<<20), 0o600) },
		"two lines":          func() error { return os.WriteFile(path, []byte(first+"\n"+first+"\n"), 0o600) },
		"a directory":        func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if name == "readable by others" || name == "empty" {
			if err := os.WriteFile(path, []byte(first+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		token, shown, err := start(none)
		if token != "" || shown != "" || err == nil || !strings.Contains(err.Error(), "admin.token_file") || strings.Contains(err.Error(), first) {
			t.Errorf("%s: %q, %v", name, shown, err)
		}
	}
}

// TestAdminTokenIsMadeOnce: of processes that start at once, all have the same token, and one shows
// it.
func TestAdminTokenIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	var all sync.WaitGroup
	tokens, shown := make([]string, 20), make([]bool, 20)
	for i := range tokens {
		all.Go(func() {
			var err error
			if tokens[i], shown[i], err = tokenIn(path); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := 0
	for i := range tokens {
		if tokens[i] != tokens[0] || tokens[i] == "" {
			t.Error("two tokens")
		}
		if shown[i] {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d processes say that they made it", n)
	}
}
