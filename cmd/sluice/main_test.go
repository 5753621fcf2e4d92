package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testscript.Main(leakFree{m}, map[string]func(){"sluice": main})
}

// leakFree runs the tests and then looks for goroutines that they left behind.
type leakFree struct{ m *testing.M }

func (l leakFree) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
	}
	return code
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
			// A program with the race detector sleeps a second at its end, for goroutines that go
			// on meanwhile; there are hundreds of starts.
			env.Setenv("GORACE", "atexit_sleep_ms=20 "+os.Getenv("GORACE"))
			return nil
		},
	}
}
