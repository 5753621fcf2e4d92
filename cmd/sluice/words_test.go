package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words have one meaning, see the glossary in docs/architecture.md. in lists the packages that
// declare something by it. A word without packages is not used; instead names the one that is.
var words = map[string]struct {
	instead string
	in      []string
}{
	"turn":     {"baton, slot, generation", []string{"shaper", "internal/scripts"}}, // of a flow in its pool
	"mend":     {"repair", nil},
	"lane":     {"flusher, queue", nil},
	"trouble":  {"error log, unhealthy", nil},
	"forecast": {"predict", nil},
	"census":   {"scan", nil},
	"survey":   {"scan", nil},
	"verdict":  {"decision", nil},
	"lot":      {"batch", nil},
}

// TestWords: no package declares a word in a meaning that is not in the glossary.
func TestWords(t *testing.T) {
	parts := regexp.MustCompile(`[A-Z]?[a-z0-9]+`)
	source(t, ".go", func(path string) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "tools/") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, path), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			var names []*ast.Ident
			switch n := n.(type) {
			case *ast.FuncDecl:
				names = []*ast.Ident{n.Name}
			case *ast.TypeSpec:
				names = []*ast.Ident{n.Name}
			case *ast.Field:
				names = n.Names
			}
			for _, name := range names {
				for _, part := range parts.FindAllString(name.Name, -1) {
					word, known := words[strings.TrimSuffix(strings.ToLower(part), "s")]
					if known && !slices.Contains(word.in, filepath.Dir(path)) {
						t.Errorf("%s declares %s: say %s", path, name.Name, word.instead)
					}
				}
			}
			return true
		})
	})
}
