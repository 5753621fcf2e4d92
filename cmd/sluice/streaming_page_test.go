package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

const streamingPage = "../../docs/streaming.md"

// TestStreamingPage runs the commands of docs/streaming.md.
func TestStreamingPage(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(streamingPage)
	if err != nil {
		t.Fatal(err)
	}
	ex, err := readPage(string(content))
	if err != nil || ex.files["sluice.yaml"] == "" || ex.files["local.yaml"] == "" {
		t.Fatalf("the files %v, %v", ex.files, err)
	}
	params := scripts("testdata/streaming")
	params.Cmds["page"] = page
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		errs := []error{setup(env), os.WriteFile(filepath.Join(env.WorkDir, "streaming.md"), content, 0o600)}
		for file, text := range ex.files {
			errs = append(errs, os.WriteFile(filepath.Join(env.WorkDir, file), []byte(text), 0o600))
		}
		return errors.Join(errs...)
	}
	testscript.Run(t, params)
}

// openAI is the client that the test of the page uses. It runs on Node 20.
const openAI = "openai@6.10.0"

// npmInstall installs packages into dir. It skips the test without npm or its registry.
func npmInstall(t *testing.T, dir string, packages ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", append([]string{"install", "--ignore-scripts", "--no-audit", "--no-fund",
		"--prefer-offline", "--fetch-retries=1", "--fetch-timeout=20000", "--prefix", dir}, packages...)...)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("without npm or its registry there is no %v: %v\n%s", packages, err, out)
	}
}

// TestStreamingPageOpenAI runs the program of docs/streaming.md with OpenAI's client.
func TestStreamingPageOpenAI(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(streamingPage)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	npmInstall(t, dir, openAI)
	model := httptest.NewServer(modelHandler(cli.NewLogger(t.Output(), "warn")))
	t.Cleanup(model.Close)
	p := processtest.Start(t, map[string]any{
		"routes": map[string]any{"model": map[string]any{
			"forward": model.URL + "/v1", "cost": 1000, "cost_from": "/usage/total_tokens",
		}},
		"tenants": map[string]any{"defaults": map[string]any{"rate": "100000/m"}},
	})
	program := strings.ReplaceAll(blocks(string(content), "js"), "127.0.0.1:8080", p.API.String())
	if err := os.WriteFile(filepath.Join(dir, "client.mjs"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), "node", "client.mjs")
	run.Dir, run.Env = dir, append(os.Environ(), "OPENAI_API_KEY=of-the-model")
	out, err := run.CombinedOutput()
	if err != nil || string(out) != "You said: Hello" {
		t.Errorf("%v: %s", err, out)
	}
}
