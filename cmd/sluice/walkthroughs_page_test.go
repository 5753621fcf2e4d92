package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestWalkthroughsPage runs the commands of docs/walkthroughs.md against the servers that it
// starts.
func TestWalkthroughsPage(t *testing.T) {
	t.Parallel()
	const name = "walkthroughs.md"
	content, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	ex, err := readPage(string(content))
	if err != nil || len(ex.commands) < 20 {
		t.Fatalf("%d commands, want at least 20: %v", len(ex.commands), err)
	}
	for _, name := range []string{"shop.yaml", "partner.yaml", "quota.yaml", "model.yaml", "legacy.yaml"} {
		if ex.files[name] == "" {
			t.Fatalf("the page has no file %s", name)
		}
	}
	params := scripts("testdata/walkthroughs")
	params.Cmds["page"] = page
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		errs := []error{setup(env), os.WriteFile(filepath.Join(env.WorkDir, name), content, 0o600)}
		for file, text := range ex.files {
			errs = append(errs, os.WriteFile(filepath.Join(env.WorkDir, file), []byte(text), 0o600))
		}
		return errors.Join(errs...)
	}
	testscript.Run(t, params)
}
