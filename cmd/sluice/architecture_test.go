package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

const repository = "../.."

// source calls visit for every file with the extension, with its path from the root.
func source(t *testing.T, extension string, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err = filepath.Rel(repository, path)
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata" {
			return fs.SkipDir
		}
		if filepath.Ext(path) == extension {
			visit(filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// architecture returns the page, and the rows of the table under a heading.
func architecture(t *testing.T) (page string, rows func(heading string) [][]string) {
	t.Helper()
	raw, err := os.ReadFile(repository + "/docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	page = string(raw)
	return page, func(heading string) (out [][]string) {
		_, section, _ := strings.Cut(page, "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for line := range strings.Lines(section) {
			if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) > 2 && strings.Contains(line, "`") {
				out = append(out, cells[1:len(cells)-1])
			}
		}
		return out
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

func names(cell string) (out []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestArchitecture checks the tables of docs/architecture.md against the code: packages with their
// imports, scripts, keys, cited tests and files.
func TestArchitecture(t *testing.T) {
	page, rows := architecture(t)
	const module = "github.com/7509e464/sluice/"
	imports, tests := map[string][]string{}, map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	source(t, ".go", func(path string) {
		raw, err := os.ReadFile(filepath.Join(repository, path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range declared.FindAllSubmatch(raw, -1) {
				tests[string(m[1])] = true
			}
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, raw, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		list := imports[dir]
		for _, i := range file.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			if own, ok := strings.CutPrefix(name, module); ok && !slices.Contains(list, own) {
				list = append(list, own)
			}
		}
		slices.Sort(list)
		imports[dir] = list
	})

	described := map[string][]string{}
	for _, row := range rows("Packages") {
		described[names(row[0])[0]] = slices.Sorted(slices.Values(names(row[2])))
	}
	if diff := cmp.Diff(imports, described); diff != "" {
		t.Errorf("packages and their imports (-code +page):\n%s", diff)
	}

	var scripts, found []string
	for _, row := range rows("Scripts") {
		scripts = append(scripts, names(row[0])...)
	}
	for _, folder := range []string{"/lua/*.lua", "/lua/lib/*.lua"} {
		files, _ := filepath.Glob(repository + folder)
		for _, file := range files {
			found = append(found, strings.TrimSuffix(filepath.Base(file), ".lua"))
		}
	}
	slices.Sort(found)
	slices.Sort(scripts)
	if diff := cmp.Diff(found, scripts); diff != "" {
		t.Errorf("scripts and their parts (-code +page):\n%s", diff)
	}

	raw, err := os.ReadFile(repository + "/internal/store/keys.go")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, row := range rows("Keys") {
		for _, key := range names(row[0]) {
			kind, _, _ := strings.Cut(key, ":")
			kinds = append(kinds, kind)
		}
	}
	for _, m := range regexp.MustCompile(`s\.prefix \+ "(\w+)`).FindAllSubmatch(raw, -1) {
		if !slices.Contains(kinds, string(m[1])) {
			t.Errorf("the table of keys does not have %s", m[1])
		}
	}

	for _, name := range names(page) {
		if strings.HasPrefix(name, "Test") && !tests[name] {
			t.Errorf("there is no test %s", name)
		}
	}
	for _, row := range rows("Where to change what") {
		for _, name := range names(row[1]) {
			if !strings.ContainsAny(name, "/") || strings.ContainsAny(name, " ") {
				continue
			}
			if found, _ := filepath.Glob(filepath.Join(repository, name)); len(found) == 0 {
				t.Errorf("to change %s: there is no file %s", strings.TrimSpace(row[0]), name)
			}
		}
	}
}

// TestWidths: prose in comments has at most 100 columns, a tab counting as four. Tables and code in
// comments of Go, which begin with a tab, may be wider.
func TestWidths(t *testing.T) {
	for extension, mark := range map[string]string{".go": "// ", ".lua": "-- "} {
		source(t, extension, func(path string) {
			raw, err := os.ReadFile(filepath.Join(repository, path))
			if err != nil {
				t.Fatal(err)
			}
			number := 0
			for line := range strings.Lines(string(raw)) {
				number++
				line = strings.TrimRight(line, "\n")
				if !strings.HasPrefix(strings.TrimLeft(line, "\t "), mark) {
					continue
				}
				width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
				if width > 100 {
					t.Errorf("%s:%d: a comment of %d columns", path, number, width)
				}
			}
		})
	}
}
