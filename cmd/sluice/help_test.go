package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/config"
)

func commandPaths(node *kong.Node, path []string, visit func(path []string, leaf bool)) {
	for _, child := range node.Children {
		if child.Type != kong.CommandNode {
			continue
		}
		at := append(path[:len(path):len(path)], child.Name)
		visit(at, len(child.Children) == 0)
		commandPaths(child, at, visit)
	}
}

// helpOf is what the command prints for --help.
func helpOf(t *testing.T, path ...string) string {
	t.Helper()
	var out, err bytes.Buffer
	code := Run(t.Context(), append(path, "--help"), cli.Stdio{Out: &out, Err: &err}, nil)
	if code != cli.ExitOK || err.Len() > 0 {
		t.Fatalf("%v --help: exit code %d, %s", path, code, err.String())
	}
	return out.String()
}

func TestEveryHelpHasAnExample(t *testing.T) {
	commandPaths(testParser(t).Model.Node, nil, func(path []string, _ bool) {
		_, example, found := strings.Cut(helpOf(t, path...), "Example:")
		if want := "sluice " + strings.Join(path, " "); !found || !strings.Contains(example, want) {
			t.Errorf("%v: the help has no example with %q", path, want)
		}
	})
}

// docs/cli.md has a section with an example for every command that is not hidden, and no other
// sections.
func TestCommandPage(t *testing.T) {
	content, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	known := map[string]bool{}
	root := testParser(t).Model.Node
	commandPaths(root, nil, func(path []string, leaf bool) {
		name := "sluice " + strings.Join(path, " ")
		known[name] = true
		if !leaf || hidden(root, path) {
			return
		}
		_, section, found := strings.Cut(page, "\n## `"+name+"`\n")
		section, _, _ = strings.Cut(section, "\n## ")
		_, example, _ := strings.Cut(section, "```sh\n")
		if !found || !strings.Contains(example, name+" ") && !strings.Contains(example, name+"\n") {
			t.Errorf("docs/cli.md has no section with an example for %s", name)
		}
	})
	for line := range strings.Lines(page) {
		if name, is := strings.CutPrefix(line, "## `"); is && !known[strings.TrimRight(name, "`\n")] {
			t.Errorf("docs/cli.md has a section for what is no command: %s", line)
		}
	}
}

func hidden(node *kong.Node, path []string) bool {
	for _, name := range path {
		if node = childOf(node, name); node.Hidden {
			return true
		}
	}
	return false
}

// Every command is run by a script.
func TestEveryCommandIsInAScript(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var scripts strings.Builder
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		scripts.Write(content)
	}
	commandPaths(testParser(t).Model.Node, nil, func(path []string, leaf bool) {
		if name := "sluice " + strings.Join(path, " "); leaf && !strings.Contains(scripts.String(), name) {
			t.Errorf("no script runs %s", name)
		}
	})
}

func TestServeHelpShowsEverySetting(t *testing.T) {
	help := strings.Join(strings.Fields(helpOf(t, "serve")), " ")
	for _, s := range config.Settings() {
		for _, want := range []string{s.Key + ",", s.Env(), "--" + s.Flag()} {
			if !strings.Contains(help, want) {
				t.Errorf("the help of serve does not show %q", want)
			}
		}
	}
}

// sluice help and sluice help COMMAND are the help, and a number with bounds has them there.
func TestHelpWithoutDashes(t *testing.T) {
	var plain bytes.Buffer
	for _, args := range [][]string{{"help"}, {"help", "tenant", "set"}} {
		plain.Reset()
		code := Run(t.Context(), args, cli.Stdio{Out: &plain, Err: &plain}, nil)
		if want := helpOf(t, args[1:]...); code != cli.ExitOK || plain.String() != want {
			t.Errorf("%v: exit code %d\n%s", args, code, plain.String())
		}
	}
	if help := strings.Join(strings.Fields(plain.String()), " "); !strings.Contains(help, "From 1 to 1000.") {
		t.Errorf("the range of weight is missing in\n%s", help)
	}
}

// The help of a setting has its text without the links of pages.
func TestHelpHasNoLinks(t *testing.T) {
	flags := reflect.TypeOf(settingFlags()).Elem()
	for i := range flags.NumField() {
		if help := flags.Field(i).Tag.Get("help"); help == "" || strings.Contains(help, "](") {
			t.Errorf("%s: %q", flags.Field(i).Tag.Get("setting"), help)
		}
	}
}

// A flag that is given becomes a setting. One that is not given overrides nothing.
func TestFlagsReachTheSettings(t *testing.T) {
	for _, c := range []struct {
		args []string
		want map[string]string
	}{
		{nil, map[string]string{}},
		{[]string{"--api", "127.0.0.1:1", "--admin=127.0.0.1:2"}, map[string]string{
			"api.listen": "127.0.0.1:1", "admin.listen": "127.0.0.1:2",
		}},
		{[]string{"--redis-allow-unsafe"}, map[string]string{"redis.allow_unsafe": "true"}},
		{[]string{"--redis-allow-unsafe=false", "--worker-lease", "5s"}, map[string]string{
			"redis.allow_unsafe": "false", "worker.lease": "5s",
		}},
	} {
		plugins := kong.Plugins{settingFlags()}
		var cli struct {
			Serve struct{ kong.Plugins } `cmd:""`
		}
		cli.Serve.Plugins = plugins
		parser, err := kong.New(&cli)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"serve"}, c.args...)); err != nil {
			t.Fatal(err)
		}
		got := settingValues(plugins)
		if len(got) != len(c.want) {
			t.Errorf("%v: %v, want %v", c.args, got, c.want)
		}
		for key, value := range c.want {
			if got[key] != value {
				t.Errorf("%v: %s = %q, want %q", c.args, key, got[key], value)
			}
		}
	}
}
