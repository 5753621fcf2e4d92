package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

func testParser(t testing.TB) *kong.Kong {
	t.Helper()
	parser, err := cli.NewParser(newCommands(), cli.Stdio{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

// A completion offers the commands, flags and values that may follow, and nothing where only the
// user knows what follows.
func TestCandidates(t *testing.T) {
	root := testParser(t).Model.Node
	for _, c := range []struct {
		words string // the last is to be completed
		want  string
	}{
		{"co", "config codec completion"},
		{"job ", "get find show wait list cancel replay"},
		{"job l", "list"},
		{"job x", ""},
		{"job list --stat", "--state"},
		{"job list --state ", "all queued scheduled retrying leased succeeded dead cancelled expired"},
		{"job list --state de", "dead"},
		{"job list --state=d", "--state=dead"},
		{"job list --state = d", "dead"}, // as bash cuts it
		{"job list --state =", "all queued scheduled retrying leased succeeded dead cancelled expired"},
		{"job list --state dead --rou", "--route"},
		{"job list --all --rou", "--route"},
		{"job --tenant", ""},
		{"job get --tenant ", ""},
		{"tenant get acme --js", "--json"},
		{"submit -f ", ""},
		{"submit --file jobs.ndjson --key-", "--key-prefix"},
		{"burst -n 5 --no", ""},
		{"completion ", "bash zsh fish"},
		{"completion f", "fish"},
		{"completion bash ", ""},
		{"serve --log-l", "--log-level"},
		{"job get -- ", ""},
	} {
		var got []string
		for _, candidate := range candidates(root, strings.Split(c.words, " ")) {
			name, meaning, described := strings.Cut(candidate, "\t")
			if described && meaning == "" {
				t.Errorf("%q: %q has no meaning", c.words, name)
			}
			got = append(got, name)
		}
		if want := strings.Fields(c.want); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", c.words, got, want)
		}
	}
	if len(candidates(root, nil)) < 5 {
		t.Error("nothing follows the program's name")
	}
}

// Every candidate continues the word that was begun, whatever was typed.
func FuzzCandidates(f *testing.F) {
	for _, s := range []string{"job list --state ", "--", "= = =", "submit --file=x -f", "\x00"} {
		f.Add(s)
	}
	root := testParser(f).Model.Node
	f.Fuzz(func(t *testing.T, words string) {
		all := strings.Split(words, " ")
		for _, candidate := range candidates(root, all) {
			if current := all[len(all)-1]; !strings.HasPrefix(candidate, strings.TrimPrefix(current, "=")) {
				t.Errorf("%q: %q", words, candidate)
			}
		}
	})
}
