package main

import (
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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

// TestStreamingPageOpenAI runs the program of docs/streaming.md with OpenAI's client.
func TestStreamingPageOpenAI(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(streamingPage)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	install := exec.CommandContext(t.Context(), "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund",
		"--prefer-offline", "--fetch-retries=1", "--prefix", dir, openAI)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("without npm or its registry there is no OpenAI client: %v\n%s", err, out)
	}
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
