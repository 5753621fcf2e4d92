package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// TestMigratePage runs the programs of docs/migrate.md: in each language, what the first block
// submits reaches the service of the second one.
func TestMigratePage(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, interpreter, extension, works string }{
		{"js", "node", ".mjs", "const create = (order) => console.log(`created ${order.sku}`);\n"},
		{"python", "python3", ".py", "def create_order(sku):\n    print('created', sku, flush=True)\n"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			blocks := regexp.MustCompile("(?ms)^```"+c.kind+"\n(.*?)^```$").FindAllStringSubmatch(string(content), -1)
			if len(blocks) != 2 {
				t.Fatalf("%d blocks of %s, want 2", len(blocks), c.kind)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().String()
			_, port, _ := net.SplitHostPort(address)
			_ = l.Close()
			p := processtest.Start(t, map[string]any{
				"routes": map[string]any{"default": map[string]any{
					"url": "http://" + address, "retry": map[string]any{"min_backoff": "100ms", "max_backoff": "200ms"},
				}},
			})
			dir := t.TempDir()
			modules := filepath.Join(dir, "node_modules")
			if err := os.Mkdir(modules, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(root, "api/client/typescript"), filepath.Join(modules, "sluice-client")); err != nil {
				t.Fatal(err)
			}
			start := func(name, text string) *exec.Cmd {
				if err := os.WriteFile(filepath.Join(dir, name+c.extension), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				run := exec.CommandContext(t.Context(), c.interpreter, name+c.extension)
				run.Dir = dir
				run.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+filepath.Join(root, "api/client/python"))
				run.Stderr = t.Output()
				return run
			}
			service := start("service", c.works+strings.ReplaceAll(blocks[1][1], "9000", port))
			out, err := service.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := service.Start(); err != nil {
				t.Fatal(err)
			}
			text := strings.NewReplacer("127.0.0.1:8080", p.API.String(), "delay_ms: 60000", "delay_ms: 1").Replace(blocks[0][1])
			if err := start("client", text).Run(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "created 1\n" {
				t.Errorf("the service prints %q, %v", line, err)
			}
			if err := service.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = service.Wait() // it was killed
		})
	}
}
