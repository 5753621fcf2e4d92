package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestLimitersPage runs the commands of docs/limiters.md; its pictures must be those that they
// make.
func TestLimitersPage(t *testing.T) {
	t.Parallel()
	const name = "limiters.md"
	content, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	if ex, err := readPage(string(content)); err != nil || len(ex.commands) < 8 {
		t.Fatalf("%d commands: %v", len(ex.commands), err)
	}
	params := scripts("testdata/limiters")
	params.Cmds["page"] = page
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		want := filepath.Join(env.WorkDir, "want")
		errs := []error{
			setup(env), os.WriteFile(filepath.Join(env.WorkDir, name), content, 0o600), os.Mkdir(want, 0o700),
		}
		for _, picture := range []string{"limiters.svg", "limiters-shaper.svg", "limiters-recommend.svg"} {
			file, err := os.ReadFile(filepath.Join("../../docs", picture))
			errs = append(errs, err, os.WriteFile(filepath.Join(want, picture), file, 0o600))
		}
		return errors.Join(errs...)
	}
	testscript.Run(t, params)
}
