package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"
)

// merge adds the sections of one YAML file to those of another. A value may not be in both.
func merge(into, from map[string]any, path string) error {
	for key, value := range from {
		section, isSection := value.(map[string]any)
		has, inBoth := into[key]
		existing, _ := has.(map[string]any)
		switch {
		case !inBoth:
			into[key] = value
		case !isSection || existing == nil:
			return fmt.Errorf("%s%s is set twice", path, key)
		default:
			if err := merge(existing, section, path+key+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestRecipesPage runs the commands of docs/recipes.md against one server with the lines of all its
// recipes.
func TestRecipesPage(t *testing.T) {
	t.Parallel()
	const name = "recipes.md"
	content, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	ex, err := readPage(string(content))
	if err != nil || len(ex.commands) < 12 {
		t.Fatalf("%d commands, want at least 12: %v", len(ex.commands), err)
	}
	all := map[string]any{"redis": map[string]any{"data_dir": "./data"}}
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllSubmatch(content, -1) {
		var lines map[string]any
		if err := errors.Join(yaml.Unmarshal(m[1], &lines), merge(all, lines, "")); err != nil {
			t.Fatalf("%v, in\n%s", err, m[1])
		}
	}
	file, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	params := scripts("testdata/recipes")
	params.Cmds["page"] = page
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		return errors.Join(setup(env),
			os.WriteFile(filepath.Join(env.WorkDir, name), content, 0o600),
			os.WriteFile(filepath.Join(env.WorkDir, "sluice.yaml"), file, 0o600))
	}
	testscript.Run(t, params)
}
