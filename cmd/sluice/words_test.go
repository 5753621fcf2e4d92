package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
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
	"turn":     {"baton, slot, generation", []string{"shaper", "internal/scripts", "lua/lib"}}, // of a flow in its pool
	"mend":     {"repair", nil},
	"lane":     {"flusher, queue", nil},
	"trouble":  {"error log, unhealthy", nil},
	"forecast": {"predict", nil},
	"census":   {"scan", nil},
	"survey":   {"scan", nil},
	"verdict":  {"decision", nil},
	"lot":      {"batch", nil},

	// A limiter in front of handlers.
	"guard": {"check, receivers", []string{
		"api", "api/client/wire", "api/guard", "api/internal/contract", "api/internal/problem",
		"cmd/sluice/internal/process", "internal/config",
	}},
	// Limiters, where they are stored. A limit is of a rate, of a limiter or of a page.
	"limits": {"bounds", []string{"api", "internal/scripts", "queue"}},
	// What is stored of forwarded requests that have ended, and in api of their answers.
	"kept": {"age, max, stored", []string{"api", "internal/scripts", "internal/store", "lua", "lua/lib"}},
	// The part that one of several may use of what is bounded.
	"share": {"part, fraction", []string{
		"api", "api/client/wire", "api/internal/budget", "api/internal/contract", "api/internal/figures",
		"cmd/sluice/internal/simulate", "cmd/sluice/internal/top", "internal/audit", "internal/config",
		"internal/scripts", "lua/lib", "queue", "shaper", "shaper/simulate", "worker",
	}},
	// A submission or a request of a trace, admitted or refused.
	"arrival": {"ingress, entry", []string{
		"api", "api/client", "api/client/wire", "api/internal/contract", "api/internal/figures",
		"cmd/sluice/internal/simulate", "cmd/sluice/internal/top", "shaper/simulate",
	}},
}

// TestWords: no package, and no script, declares a word in a meaning that is not in the glossary.
func TestWords(t *testing.T) {
	parts := regexp.MustCompile(`[A-Z]?[a-z0-9]+`)
	check := func(path, name string) {
		for _, part := range parts.FindAllString(name, -1) {
			word, known := words[strings.ToLower(part)]
			if !known {
				word, known = words[strings.TrimSuffix(strings.ToLower(part), "s")]
			}
			if known && !slices.Contains(word.in, filepath.Dir(path)) {
				t.Errorf("%s declares %s: say %s", path, name, word.instead)
			}
		}
	}
	inLua := regexp.MustCompile(`(?m)^ *local (?:function )?([a-z][a-z0-9_, ]*)`)
	source(t, ".lua", func(path string) {
		text, err := os.ReadFile(filepath.Join(repository, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range inLua.FindAllSubmatch(text, -1) {
			check(path, string(names[1]))
		}
	})
	source(t, ".go", func(path string) {
		dir := filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "tools/") || strings.HasSuffix(dir, "test") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, path), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			var names []*ast.Ident
			switch n := n.(type) {
			case *ast.GenDecl:
				if !slices.Contains(file.Decls, ast.Decl(n)) {
					return true // within a function
				}
				for _, spec := range n.Specs {
					if v, is := spec.(*ast.ValueSpec); is {
						names = append(names, v.Names...)
					}
				}
			case *ast.FuncDecl:
				names = []*ast.Ident{n.Name}
			case *ast.TypeSpec:
				names = []*ast.Ident{n.Name}
			case *ast.Field:
				names = n.Names
			}
			for _, name := range names {
				check(path, name.Name)
			}
			return true
		})
	})
}
