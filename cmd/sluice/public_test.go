package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// public are the packages that other programs may import: all others are in internal, or programs.
var public = []string{
	"api", "api/auth", "api/client", "api/client/wire", "api/guard", "lua", "queue", "shaper", "shaper/limiter",
	"shaper/simulate", "worker", "worker/callback", "worker/handoff",
}

// TestPublicPackages: no other package can be imported, each is explained and has an example, and
// what it exports names no type that another program cannot name. An alias gives such a type a
// name.
func TestPublicPackages(t *testing.T) {
	files := map[string][]*ast.File{} // by folder, without tests
	examples := map[string]bool{}
	source(t, ".go", func(path string) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if slices.Contains(strings.Split(dir, "/"), "internal") || strings.HasPrefix(dir, "tools") {
			return
		}
		raw, err := os.ReadFile(filepath.Join(repository, path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			examples[dir] = examples[dir] || strings.Contains(string(raw), "\nfunc Example")
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, raw, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if file.Name.Name != "main" {
			files[dir] = append(files[dir], file)
		}
	})
	var found []string
	for dir, of := range files {
		found = append(found, dir)
		if !slices.ContainsFunc(of, func(f *ast.File) bool { return f.Doc != nil }) {
			t.Errorf("%s has no package comment", dir)
		}
		if !examples[dir] && dir != "lua" {
			t.Errorf("%s has no example", dir)
		}
		for _, f := range of {
			for _, hidden := range hiddenTypes(f) {
				t.Errorf("%s exports %s", dir, hidden)
			}
		}
	}
	slices.Sort(found)
	if diff := cmp.Diff(public, found); diff != "" {
		t.Errorf("public packages (-want +got):\n%s", diff)
	}
}

// hiddenTypes lists what a file exports with types of internal packages, such as "Queue.Store:
// store.Store".
func hiddenTypes(f *ast.File) (list []string) {
	internal := map[string]bool{}
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		if strings.Contains(path, "7509e464/sluice/") && strings.Contains(path, "/internal/") {
			internal[path[strings.LastIndex(path, "/")+1:]] = true
		}
	}
	look := func(name string, in ast.Node) {
		ast.Inspect(in, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && len(field.Names) > 0 &&
				!slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) && name == "" {
				return false
			}
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && internal[x.Name] {
					list = append(list, name+": "+x.Name+"."+s.Sel.Name)
				}
			}
			return true
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv.List[0].Type)) {
				look(d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				s, ok := spec.(*ast.TypeSpec)
				if ok && s.Name.IsExported() && !s.Assign.IsValid() {
					exportedParts(s.Type, func(n ast.Node) { look(s.Name.Name, n) })
				}
			}
		}
	}
	return list
}

func exportedReceiver(t ast.Expr) bool {
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	name, ok := t.(*ast.Ident)
	return ok && name.IsExported()
}

// exportedParts visits what of a type another package sees: of a struct the exported fields.
func exportedParts(t ast.Expr, visit func(ast.Node)) {
	s, ok := t.(*ast.StructType)
	if !ok {
		visit(t)
		return
	}
	for _, field := range s.Fields.List {
		if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
			visit(field.Type)
		}
	}
}
