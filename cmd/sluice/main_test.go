package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// TestMain builds the program for the scripts. It has no race detector, whose start takes longer
// than most commands: there are hundreds of starts. In-process tests have it.
func TestMain(m *testing.M) {
	code, err := withProgram(m.Run)
	if err == nil && code == 0 {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withProgram(run func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "sluice-program-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir, ".").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("build the program: %w\n%s", err, out)
	}
	if err := os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
		return 0, err
	}
	return run(), nil
}

// TestScripts runs the real program; the scripts are in testdata/script.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts("testdata/script"))
}

// scripts are those of a directory, with the commands that they have beside testscript's own.
func scripts(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"await":    await,
			"exitcode": exitcode,
			"take":     take,
		},
		Setup: func(env *testscript.Env) error {
			// Nothing of the machine's own settings may reach the scripts.
			for _, entry := range os.Environ() {
				name, _, _ := strings.Cut(entry, "=")
				if strings.HasPrefix(name, "SLUICE_") || strings.HasPrefix(name, "OTEL_") {
					env.Setenv(name, "")
				}
			}
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			return nil
		},
	}
}
