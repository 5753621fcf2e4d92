package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestWorkflows: each workflow has few rights, names a commit of what it uses, with its version,
// and calls targets of the Makefile that exist.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v, want the workflows", files, err)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	exact := regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40}$`)
	target := regexp.MustCompile(`\bmake ([a-z-]+)`)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var flow struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Strategy struct{ Matrix struct{ Target []string } }
				Steps    []struct{ Uses, Run string }
			}
		}
		if err := yaml.Unmarshal(raw, &flow); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if len(flow.Permissions) != 1 || flow.Permissions["contents"] != "read" {
			t.Errorf("%s: permissions %v, want to read contents", file, flow.Permissions)
		}
		for name, job := range flow.Jobs {
			text := ""
			for _, s := range job.Steps {
				if s.Uses != "" && !(exact.MatchString(s.Uses) && strings.Contains(string(raw), s.Uses+" # v")) {
					t.Errorf("%s: %s uses %s, want a commit and its version in a comment", file, name, s.Uses)
				}
				text += s.Run + "\n"
			}
			for _, name := range job.Strategy.Matrix.Target {
				text += "make " + name + "\n"
			}
			for _, m := range target.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(string(makefile), "\n"+m[1]+":") {
					t.Errorf("%s: there is no target %s", file, m[1])
				}
			}
		}
	}
}
