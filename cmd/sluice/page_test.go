package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/7509e464/sluice/internal/queuetest"
)

// shown is one command of a page with the output that the page shows for it.
type shown struct {
	command string
	output  []string
}

// pageExamples are what a page can be tested by: its console blocks, and its YAML blocks that begin
// with the name of a file.
type pageExamples struct {
	commands []shown
	files    map[string]string
}

// readPage collects the examples of a page.
func readPage(page string) (pageExamples, error) {
	ex := pageExamples{files: map[string]string{}}
	kind, block := "", []string(nil)
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && kind == "":
			kind, block = fence, nil
			if kind == "" {
				return ex, fmt.Errorf("a block without a kind, near %q", line)
			}
		case isFence:
			if err := ex.add(kind, block); err != nil {
				return ex, err
			}
			kind = ""
		default:
			block = append(block, line)
		}
	}
	if kind != "" {
		return ex, fmt.Errorf("a block of %s has no end", kind)
	}
	return ex, nil
}

func (ex *pageExamples) add(kind string, block []string) error {
	switch kind {
	case "yaml":
		if name, named := strings.CutPrefix(block[0], "# "); named && filepath.Ext(name) == ".yaml" {
			ex.files[name] = strings.Join(block, "\n") + "\n"
		}
	case "console":
		for i, line := range block {
			command, is := strings.CutPrefix(line, "$ ")
			switch {
			case is:
				ex.commands = append(ex.commands, shown{command: command})
			case i == 0:
				return fmt.Errorf("a console block that begins without a command: %q", line)
			default:
				last := &ex.commands[len(ex.commands)-1]
				last.output = append(last.output, line)
			}
		}
	}
	return nil
}

// fits reports whether the output is as shown: an ellipsis stands for anything, on a line of its
// own for any number of lines. Runs of spaces count as one, for the width of a column may hang on
// what is left out.
func (s shown) fits(output string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range s.output {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		words := regexp.QuoteMeta(strings.Join(strings.Fields(line), " "))
		pattern.WriteString(strings.ReplaceAll(words, "…", `[^\n]*`) + `\n`)
	}
	pattern.WriteString(`\z`)
	var lines strings.Builder
	for line := range strings.Lines(output) {
		lines.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return regexp.MustCompile(pattern.String()).MatchString(lines.String())
}

// page FILE runs the commands of a page in order, the addresses of its server's listeners put in
// the place of the usual ones. What is only read is read again until it is as shown, for a change
// may take a moment.
func page(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: page FILE")
	}
	ex, err := readPage(ts.ReadFile(args[0]))
	ts.Check(err)
	here := strings.NewReplacer("127.0.0.1:8080", ts.Getenv("API"), "127.0.0.1:8081", ts.Getenv("ADMIN"),
		"127.0.0.1:9080", ts.Getenv("PUBLIC_API"), "127.0.0.1:9081", ts.Getenv("PUBLIC_ADMIN"),
		"127.0.0.1:7080", ts.Getenv("QUOTA_API"), "127.0.0.1:7081", ts.Getenv("QUOTA_ADMIN"),
		"127.0.0.1:6080", ts.Getenv("LEGACY_API"), "127.0.0.1:6081", ts.Getenv("LEGACY_ADMIN"),
		"127.0.0.1:5080", ts.Getenv("MODEL_API"), "127.0.0.1:5081", ts.Getenv("MODEL_ADMIN"),
		"127.0.0.1:8090", ts.Getenv("LEGACY_FORWARD"), "127.0.0.1:9100", ts.Getenv("LEGACY_ECHO"))
	for _, s := range ex.commands {
		if strings.HasSuffix(s.command, "&") {
			continue // the script has started it
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			// As on a terminal, where both go.
			err := ts.Exec("sh", "-c", "{ "+here.Replace(s.command)+"\n} 2>&1")
			got := ts.ReadFile("stdout")
			if err == nil && s.fits(got) {
				break
			}
			reads := strings.HasPrefix(s.command, "sluice tenant get ") ||
				strings.HasPrefix(s.command, "sluice pool get ") || strings.HasPrefix(s.command, "sluice top ")
			if !reads || time.Now().After(deadline) {
				ts.Fatalf("$ %s\n%v: it prints\n%swhere the page shows\n%s", s.command, err, got,
					strings.Join(s.output, "\n"))
			}
		}
	}
}

// TestTenantsPage runs the commands of docs/tenants.md, which must print what the page shows.
func TestTenantsPage(t *testing.T) {
	t.Parallel()
	const source = "../../docs/tenants.md"
	content, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	ex, err := readPage(string(content))
	if err != nil {
		t.Fatal(err)
	}
	if len(ex.commands) < 20 {
		t.Fatalf("%d commands, want at least 20", len(ex.commands))
	}
	for _, name := range []string{"sluice.yaml", "tenants.yaml"} {
		if ex.files[name] == "" {
			t.Fatalf("the page has no file %s", name)
		}
	}
	if ex.commands[0].command != "sluice echo &" ||
		ex.commands[1].command != "sluice serve --config sluice.yaml &" {
		t.Error("the page does not start upstream and server as the script does")
	}
	params := scripts("testdata/page")
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		for name, text := range ex.files {
			if err := os.WriteFile(filepath.Join(env.WorkDir, name), []byte(text), 0o600); err != nil {
				return err
			}
		}
		return errors.Join(setup(env), os.WriteFile(filepath.Join(env.WorkDir, "tenants.md"), content, 0o600))
	}
	params.Cmds["page"] = page
	testscript.Run(t, params)
}

// readPage finds the commands with their output, and the files. A block that it cannot understand
// is an error.
func TestReadPage(t *testing.T) {
	ex, err := readPage("# T\n```console\n$ a b\none\n$ c\n```\n```yaml\n# x.yaml\nk: v\n```\n```yaml\n" +
		"no: file\n```\n```sh\nd\n```\n")
	if err != nil || len(ex.commands) != 2 {
		t.Fatalf("%v, the commands %+v, want two", err, ex.commands)
	}
	queuetest.Compare(t, "the first command", ex.commands[0].command, "a b")
	queuetest.Compare(t, "its output", ex.commands[0].output, []string{"one"})
	queuetest.Compare(t, "the lines of the second one's output", len(ex.commands[1].output), 0)
	queuetest.Compare(t, "the files", ex.files, map[string]string{"x.yaml": "# x.yaml\nk: v\n"})
	for _, bad := range []string{"```console\none\n```\n", "```console\n$ a\n", "```\nx\n```\n"} {
		if _, err := readPage(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// An ellipsis stands for any text or lines, and any blanks for others. The rest must be equal.
func TestShownOutput(t *testing.T) {
	for _, c := range []struct {
		shown, output string
		fits          bool
	}{
		{"", "", true}, {"", "x\n", false}, {"a  b", "a b\n", true}, {"a", "a\nb\n", false},
		{"a\n…", "a\nb\nc\n", true}, {"a\n…", "a\n", true},
		{"…\nc", "a\nb\nc\n", true}, {"a … c", "a b c\n", true}, {"a…", "ab\n", true},
		{"a.b", "axb\n", false}, {"…", "", true}, {"a\n…\nc", "a\nb\nd\n", false},
	} {
		s := shown{}
		if c.shown != "" {
			s.output = strings.Split(c.shown, "\n")
		}
		if s.fits(c.output) != c.fits {
			t.Errorf("%q as %q: fits is %v", c.output, c.shown, !c.fits)
		}
	}
}
