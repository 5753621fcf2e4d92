package config_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/config"
)

var update = flag.Bool("update", false, "write the tables of docs/configuration.md anew")

const (
	page  = "../../docs/configuration.md"
	begin = "<!-- settings: written by go test ./internal/config -update -->\n"
	end   = "<!-- end of settings -->\n"
)

// The tables of docs/configuration.md are those of the settings.
func TestReferencePage(t *testing.T) {
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	got, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		t.Fatalf("%s does not hold the lines\n%s%s", page, begin, end)
	}
	want := "\n" + config.Reference() + "\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is not what the settings are (go test ./internal/config -update):\n%s", page, diff)
	}
}

// Every setting has a help, a rule, and names that no other setting has.
func TestSettingsAreComplete(t *testing.T) {
	seen := map[string]string{}
	for _, s := range config.Settings() {
		for _, name := range []string{s.Key, s.Env(), "--" + s.Flag()} {
			if other := seen[name]; other != "" {
				t.Errorf("%s belongs to %s and %s", name, other, s.Key)
			}
			seen[name] = s.Key
		}
		if !strings.HasSuffix(s.Help, ".") {
			t.Errorf("%s: the help is %q, want a sentence", s.Key, s.Help)
		}
		if s.Rule == "" {
			t.Errorf("%s has no rule", s.Key)
		}
	}
}
