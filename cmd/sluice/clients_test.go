package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
)

const clients = "../../api/client/"

// TestClients runs the tests of the clients in other languages against a server.
func TestClients(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	t.Cleanup(sink.Close)
	p := processtest.Start(t, map[string]any{
		"routes":  map[string]any{"default": map[string]any{"url": sink.URL}},
		"tenants": map[string]any{"defaults": map[string]any{"rate": "50/s", "capacity": 100}},
	})
	classes := t.TempDir()
	for name, commands := range map[string][]string{
		"python":     {"python3 -B tests/test_client.py"},
		"typescript": {"node --test test/"},
		"java":       {"javac -Xlint:all -Werror -d " + classes + " src/io/sluice/client/*.java test/ClientTest.java", "java -cp " + classes + " ClientTest"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("javac"); err != nil && name == "java" {
				t.Skip("without a JDK, which make test does not install")
			}
			for _, command := range commands {
				run := exec.CommandContext(t.Context(), "sh", "-c", command)
				run.Dir = filepath.Join(clients, name)
				run.Env = append(os.Environ(), "PYTHONPATH=.", "SLUICE_API=http://"+p.API.String(), "SLUICE_ADMIN=http://"+p.Admin.String())
				if out, err := run.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", command, err, out)
				}
			}
		})
	}
}

// schema is what the types of TypeScript need of a schema of OpenAPI.
type schema struct {
	Type                 any               `json:"type"` // a name, or several
	Ref                  string            `json:"$ref"`
	Description          string            `json:"description"`
	Properties           map[string]schema `json:"properties"`
	Required             []string          `json:"required"`
	Enum                 []string          `json:"enum"`
	Items                *schema           `json:"items"`
	AdditionalProperties any               `json:"additionalProperties"`
}

// typescript is the type of a value.
func (s schema) typescript() string {
	switch {
	case s.Ref != "":
		return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	case len(s.Enum) > 0:
		return `"` + strings.Join(s.Enum, `" | "`) + `"`
	}
	kinds, many := s.Type.([]any)
	if !many {
		kinds = []any{s.Type}
	}
	var names []string
	for _, kind := range kinds {
		switch kind {
		case "integer", "number":
			names = append(names, "number")
		case "array":
			names = append(names, s.Items.typescript()+"[]")
		case "object":
			names = append(names, "Record<string, string>")
		case nil:
			names = append(names, "unknown")
		default: // string, boolean, null
			names = append(names, fmt.Sprint(kind))
		}
	}
	return strings.Join(names, " | ")
}

// TestTypesOfTypeScript: the types of the client are the schemas of the OpenAPI document, so a
// change of the API shows in them. -update writes them anew.
func TestTypesOfTypeScript(t *testing.T) {
	content, err := os.ReadFile(repository + "/docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	out.WriteString("// The schemas of docs/openapi.json, written by go test ./cmd/sluice -run TestTypesOfTypeScript -update.\n")
	all := document.Components.Schemas
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&out, "\nexport interface %s {\n", name)
		for _, field := range slices.Sorted(maps.Keys(all[name].Properties)) {
			of, optional := all[name].Properties[field], "?"
			if slices.Contains(all[name].Required, field) {
				optional = ""
			}
			if of.Description != "" {
				fmt.Fprintf(&out, "  /** %s */\n", strings.ReplaceAll(of.Description, "*/", "*"))
			}
			fmt.Fprintf(&out, "  %s%s: %s;\n", field, optional, of.typescript())
		}
		out.WriteString("}\n")
	}
	file := clients + "typescript/schemas.d.ts"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != out.String() {
		t.Errorf("%s is not the document's (%v): run go test ./cmd/sluice -run TestTypesOfTypeScript -update", file, err)
	}
}
