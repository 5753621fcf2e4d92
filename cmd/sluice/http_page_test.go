package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

const httpPage = "../../docs/http.md"

// blocks joins the code blocks of one kind into one program.
func blocks(page, kind string) string {
	var program strings.Builder
	for _, m := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		program.WriteString(m[1])
	}
	return program.String()
}

// TestHTTPPage runs the commands and the programs of docs/http.md against sluice dev.
func TestHTTPPage(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(httpPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"curl", "python3", "node", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Errorf("the page needs %s: %v", tool, err)
		}
	}
	goEnv, err := exec.Command("go", "env", "-json", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		t.Fatal(err)
	}
	var goDirs map[string]string
	if err := json.Unmarshal(goEnv, &goDirs); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}

	params := scripts("testdata/http")
	params.Cmds["page"] = page
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("REPOSITORY", root)
		for name, value := range goDirs {
			env.Setenv(name, value)
		}
		errs := []error{setup(env)}
		for name, text := range map[string]string{
			"http.md":    string(content),
			"client.py":  blocks(string(content), "python"),
			"client.mjs": blocks(string(content), "js"),
			"client.go":  blocks(string(content), "go") + "}\n", // the page leaves main open
		} {
			errs = append(errs, os.WriteFile(filepath.Join(env.WorkDir, name), []byte(text), 0o600))
		}
		return errors.Join(errs...)
	}
	testscript.Run(t, params)
}

var problemType = regexp.MustCompile(`urn:sluice:problem:([a-z-]+)`)

var update = flag.Bool("update", false, "write the OpenAPI files anew")

// operations are the requests that a document describes, such as "GET /v1/jobs/{}".
func operations(t *testing.T, document []byte) (out []string) {
	t.Helper()
	var parsed struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal(document, &parsed); err != nil {
		t.Fatal(err)
	}
	for path, methods := range parsed.Paths {
		for method := range methods {
			out = append(out, strings.ToUpper(method)+" "+anyName(path))
		}
	}
	return out
}

// anyName is a path without the names of its parameters.
func anyName(path string) string { return regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "{}") }

// request is one in a page, such as `GET /v1/jobs`, or several methods as in `GET, POST /v1/jobs`.
var request = regexp.MustCompile(
	"`((?:GET|HEAD|OPTIONS|POST|PUT|PATCH|DELETE)(?:, [A-Z]+)*) (/[^`? …]+)")

// requests returns the operations that a text names.
func requests(text string) (out []string) {
	for _, m := range request.FindAllStringSubmatch(text, -1) {
		for method := range strings.SplitSeq(m[1], ", ") {
			out = append(out, method+" "+anyName(m[2]))
		}
	}
	return out
}

// TestOpenAPI holds the OpenAPI files in docs and the program together. The pages name no other
// requests, and docs/http.md names all of them, by listener.
func TestOpenAPI(t *testing.T) {
	p := processtest.Start(t, map[string]any{
		"admin":  map[string]any{"submit": true}, // everything that can be turned on
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
	})
	page, err := os.ReadFile(httpPage)
	if err != nil {
		t.Fatal(err)
	}
	_, all, _ := strings.Cut(string(page), "\n## All requests\n")
	all, _, _ = strings.Cut(all, "\n## ")
	clients, operators, _ := strings.Cut(all, "\nOperators, ")
	var known []string
	for file, of := range map[string]struct{ address, table string }{
		"openapi.json":       {p.API.String(), clients},
		"openapi-admin.json": {p.Admin.String(), operators},
	} {
		resp, err := http.Get("http://" + of.address + "/openapi.json")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		served, told := operations(t, raw), requests(of.table)
		known = append(known, served...)
		slices.Sort(served)
		slices.Sort(told)
		if diff := cmp.Diff(served, slices.Compact(told)); diff != "" {
			t.Errorf("the requests of %s against those in %s:\n%s", httpPage, file, diff)
		}
		var want bytes.Buffer
		if err := json.Indent(&want, raw, "", " "); err != nil {
			t.Fatal(err)
		}
		want.WriteByte('\n')
		path := filepath.Join("../../docs", file)
		if *update {
			if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s is not what the program serves: go test ./cmd/sluice -run TestOpenAPI -update", path)
		}
	}
	source(t, ".md", func(file string) {
		raw, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, operation := range requests(string(raw)) {
			if !slices.Contains(known, operation) {
				t.Errorf("%s names %s, which is no operation", file, operation)
			}
		}
	})
}
