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

// TestOpenAPI holds the OpenAPI files in docs and the program together. The pages name no other
// requests, and docs/http.md names every kind of problem.
func TestOpenAPI(t *testing.T) {
	p := processtest.Start(t, map[string]any{
		"admin":  map[string]any{"submit": true}, // everything that can be turned on
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
	})
	page, err := os.ReadFile(httpPage)
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for file, address := range map[string]string{
		"openapi.json": p.API.String(), "openapi-admin.json": p.Admin.String(),
	} {
		resp, err := http.Get("http://" + address + "/openapi.json")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		known = append(known, operations(t, raw)...)
		for _, m := range problemType.FindAllSubmatch(raw, -1) {
			if !bytes.Contains(page, []byte("`"+string(m[1])+"`")) {
				t.Errorf("%s does not name the problem %s", httpPage, m[1])
			}
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
	request := regexp.MustCompile("`((?:GET|POST|PUT|PATCH|DELETE) /[^`? …]+)")
	source(t, ".md", func(file string) {
		raw, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range request.FindAllSubmatch(raw, -1) {
			if !slices.Contains(known, anyName(string(m[1]))) {
				t.Errorf("%s names %s, which is no operation", file, m[1])
			}
		}
	})
}
