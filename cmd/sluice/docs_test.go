package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// markdown is a page without its blocks of code, and the anchors of its headings.
type markdown struct {
	prose   string
	anchors map[string]bool
}

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	link       = regexp.MustCompile(`\]\(\s*([^)\s]+)\s*\)|<img src="([^"]+)"`)
)

func readMarkdown(t *testing.T, file string) markdown {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := markdown{anchors: map[string]bool{"": true}}
	var prose strings.Builder
	inCode := false
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inCode = !inCode
			continue
		}
		if inCode {
			continue
		}
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			page.anchors[anchor(heading)] = true
		}
		prose.WriteString(line)
	}
	page.prose = prose.String()
	return page
}

// anchor is the id that GitHub gives a heading.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(heading, "")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, strings.TrimSpace(heading))
}

// TestLinks checks that every relative link in a Markdown file leads to a file, and to a heading
// of it if it names one. The index docs/README.md links to every page of docs.
func TestLinks(t *testing.T) {
	linked, pages := map[string]bool{}, []string(nil)
	source(t, ".md", func(file string) {
		pages = append(pages, file)
		prose := inlineCode.ReplaceAllString(readMarkdown(t, filepath.Join(repository, file)).prose, "code")
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			target, fragment, _ := strings.Cut(m[1]+m[2], "#")
			if strings.Contains(target, ":") {
				continue // another site
			}
			to := file
			if target != "" {
				to = path.Join(path.Dir(file), target)
			}
			if file == "docs/README.md" {
				linked[to] = true
			}
			if _, err := os.Stat(filepath.Join(repository, to)); err != nil {
				t.Errorf("%s links to %s, which does not exist", file, to)
			} else if fragment != "" && !readMarkdown(t, filepath.Join(repository, to)).anchors[fragment] {
				t.Errorf("%s links to %s#%s, which has no such heading", file, to, fragment)
			}
		}
	})
	for _, page := range pages {
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && !linked[page] {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}

// TestPagesForMachines checks that docs/llms.txt has one line for each page of docs, and no other.
func TestPagesForMachines(t *testing.T) {
	raw, err := os.ReadFile(repository + "/docs/llms.txt")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	source(t, ".md", func(file string) {
		name, page := strings.CutPrefix(file, "docs/")
		if page && !strings.Contains(name, "/") && strings.Count(text, "]("+name+"): ") != 1 {
			t.Errorf("docs/llms.txt has %d lines for %s, want 1", strings.Count(text, "]("+name+"): "), name)
		}
	})
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(repository, "docs", m[1]+m[2])); err != nil {
			t.Errorf("docs/llms.txt links to %s, which does not exist", m[1]+m[2])
		}
	}
}

// TestWidthsOfPages checks that the prose of Markdown files has at most 100 columns. Tables, code
// and the addresses of other sites may be wider.
func TestWidthsOfPages(t *testing.T) {
	source(t, ".md", func(file string) {
		for line := range strings.Lines(readMarkdown(t, filepath.Join(repository, file)).prose) {
			if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 100 && !strings.HasPrefix(line, "|") &&
				!strings.Contains(line, "](http") {
				t.Errorf("%s: more than 100 columns: %s", file, line)
			}
		}
	})
}

// Anchors are the ids that GitHub gives headings.
func TestAnchor(t *testing.T) {
	for heading, want := range map[string]string{
		" A partner's API for thousands": "a-partners-api-for-thousands",
		" `sluice job get`":              "sluice-job-get", " A route: `routes.NAME`": "a-route-routesname",
		" [x](y.md) & z": "x--z",
	} {
		if got := anchor(heading); got != want {
			t.Errorf("%q: %q, want %q", heading, got, want)
		}
	}
}

// TestLogLines checks that every line of the log that docs/observe.md explains is in the code. An
// ellipsis stands for the rest of a line.
func TestLogLines(t *testing.T) {
	raw, err := os.ReadFile(repository + "/docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for row := range strings.Lines(section) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			lines = append(lines, names(cells[1])...)
		}
	}
	if len(lines) < 20 {
		t.Fatalf("%d lines are explained", len(lines))
	}
	var code strings.Builder
	source(t, ".go", func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		content, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		code.Write(content)
	})
	for _, line := range lines {
		if !strings.Contains(code.String(), strings.TrimSuffix(line, "…")) {
			t.Errorf("docs/observe.md explains %q, which nothing logs", line)
		}
	}
}

// word is a word of a shell command, perhaps quoted, or what ends the command.
var word = regexp.MustCompile(`'([^']*)'|"([^"]*)"|([^\s'"#|<>;&)]+)|([#|<>;&)])|\s+`)

// arguments are the words of a shell command up to a pipe, a redirection or a comment.
func arguments(command string) (words []string) {
	end := 0 // of the word before
	for _, at := range word.FindAllStringSubmatchIndex(command, -1) {
		if at[8] >= 0 {
			break
		}
		for i := 2; i < 8; i += 2 {
			if at[i] < 0 {
				continue
			}
			if text := command[at[i]:at[i+1]]; end == at[0] && len(words) > 0 {
				words[len(words)-1] += text // such as --rate='5/s'
			} else {
				words = append(words, text)
			}
			end = at[1]
		}
	}
	return words
}

// Words are split as a shell splits them, up to a comment, a pipe or a redirection.
func TestArguments(t *testing.T) {
	for command, want := range map[string]string{
		`tenant set a --rate 5/s   # why`: "tenant,set,a,--rate,5/s",
		`submit '{"a":1}' | tail`:         `submit,{"a":1}`, `top --sort="x y" >f`: "top,--sort=x y",
		`echo &`:      "echo",
		`key list a)`: "key,list,a",
	} {
		if got := strings.Join(arguments(command), ","); got != want {
			t.Errorf("%q: %q, want %q", command, got, want)
		}
	}
}

// TestCommandsOfPages checks that the program accepts the commands and flags that the pages show
// without their output. Tests of their pages run the others.
func TestCommandsOfPages(t *testing.T) {
	shown := regexp.MustCompile(`(?m)(?:^|\$\(|&& |\./cmd/)sluice (.*)$`)
	parser, commands := testParser(t), 0
	source(t, ".md", func(file string) {
		raw, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range shown.FindAllStringSubmatch(blocks(string(raw), "sh"), -1) {
			commands++
			if _, err := parser.Parse(arguments(m[1])); err != nil {
				t.Errorf("%s shows sluice %s: %v", file, m[1], err)
			}
		}
	})
	if commands < 100 {
		t.Errorf("%d commands were found", commands)
	}
}

// TestAddressesAreQuoted checks the addresses in the commands of the pages. Where one has an
// unquoted question mark, zsh, the shell of macOS, looks for a file and sends nothing.
func TestAddressesAreQuoted(t *testing.T) {
	source(t, ".md", func(file string) {
		raw, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"sh", "console"} {
			for line := range strings.Lines(blocks(string(raw), kind)) {
				for _, m := range word.FindAllStringSubmatch(line, -1) {
					if strings.HasPrefix(m[3], "http") && strings.ContainsAny(m[3], "?*[") {
						t.Errorf("%s: %s has no quotes", file, m[3])
					}
				}
			}
		}
	})
}

// TestGoPage checks that the program in docs/go.md is the tested example of package api.
func TestGoPage(t *testing.T) {
	page, err := os.ReadFile(repository + "/docs/go.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(repository + "/api/example_run_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	lines := strings.Split(strings.TrimSpace(block), "\n")
	if len(lines) > 17 { // 15 without the first and the last
		t.Errorf("the program has %d lines", len(lines)-2)
	}
	if !strings.Contains(string(example), strings.Join(lines, "\n")) {
		t.Errorf("api/example_run_test.go does not contain:\n%s", block)
	}
}
