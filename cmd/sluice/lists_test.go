package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/shaper/simulate"
)

// enum returns the values of a field in the API.
func enum[T any](t *testing.T, field string) []string {
	t.Helper()
	f, found := reflect.TypeFor[T]().FieldByName(field)
	if !found || f.Tag.Get("enum") == "" {
		t.Fatalf("%s has no values", field)
	}
	return strings.Split(f.Tag.Get("enum"), ",")
}

// texts returns names as plain strings.
func texts[T ~string](names []T) (out []string) {
	for _, name := range names {
		out = append(out, string(name))
	}
	return out
}

// observed is what a process shows of itself: the headers of a delivery, its metrics and the kinds
// of problems in its OpenAPI documents.
type observed struct {
	headers, kinds []string
	metrics        string
}

// label returns the values of a label of a metric.
func (o observed) label(metric, label string) (out []string) {
	series := regexp.MustCompile(`(?m)^` + metric + `\{(?:[^}]*,)?` + label + `="([^"]*)"`)
	for _, m := range series.FindAllStringSubmatch(o.metrics, -1) {
		out = append(out, m[1])
	}
	return out
}

// observe runs a process with all ways of authentication, a guard and a signed route, and delivers
// a job that has a trace.
func observe(t *testing.T) (out observed) {
	t.Helper()
	delivered := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		delivered <- r.Header
	}))
	t.Cleanup(upstream.Close)
	p := processtest.Start(t, map[string]any{
		"admin": map[string]any{"submit": true},
		"auth": map[string]any{"mode": "keys,jwt,guest", "jwt": map[string]any{
			"issuer": "issuer", "audience": "sluice",
			"keys": []any{map[string]any{"algorithm": "HS256", "secret": strings.Repeat("s", 32)}},
		}},
		"guards": map[string]any{"all": map[string]any{"rate": "1000/s", "by": []any{"tenant"}}},
		"routes": map[string]any{"default": map[string]any{"url": upstream.URL,
			"secrets": []any{"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}}},
	})
	ask := func(method, url, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode > 299 {
			t.Fatalf("%s %s: %d, %v: %s", method, url, resp.StatusCode, err, text)
		}
		return string(text)
	}
	admin := "http://" + p.Admin.String()
	ask("POST", admin+"/v1/tenants/acme/jobs", `{"type":"t","payload":1}`)
	select {
	case headers := <-delivered:
		for name := range headers {
			switch name = strings.ToLower(name); name {
			case "accept-encoding", "content-length", "user-agent": // of any request
			default:
				out.headers = append(out.headers, name)
			}
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the job was not delivered")
	}
	out.metrics = ask("GET", admin+"/metrics", "")
	documents := ask("GET", "http://"+p.API.String()+"/openapi.json", "")
	for _, file := range []string{"openapi.json", "openapi-admin.json"} { // TestOpenAPI keeps them true
		raw, err := os.ReadFile(repository + "/docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		documents += string(raw)
	}
	for _, m := range problemType.FindAllStringSubmatch(documents, -1) {
		out.kinds = append(out.kinds, m[1])
	}
	return out
}

// told is a list of names that a page tells by hand.
type told struct {
	page string
	from string // what the page has before the list; of a table, how its first row begins
	to   string // what comes behind the list; of a table, nothing
	cell int    // of a table: the column with the names, from 1
	want []string
}

// TestLists compares the lists that pages tell by hand with the code, in both directions.
func TestLists(t *testing.T) {
	t.Parallel()
	now := observe(t)
	states := enum[wire.Job](t, "State")
	var final, events, fields, pool []string
	for _, name := range states {
		var state shaper.State
		if err := state.UnmarshalText([]byte(name)); err != nil {
			t.Fatal(err)
		}
		if state.Done() {
			final, events = append(final, name), append(events, "job."+name)
		}
	}
	for f := range reflect.TypeFor[wire.Submission]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields = append(fields, name)
	}
	for _, s := range config.PoolSettings() {
		pool = append(pool, s.Key)
	}
	algorithms := texts(limiter.Algorithms())
	var sorts struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				Name   string
				Schema struct{ Enum []string }
			}
		}
	}
	raw, err := os.ReadFile(repository + "/docs/openapi-admin.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &sorts); err != nil {
		t.Fatal(err)
	}
	var orders []string
	for _, p := range sorts.Paths["/v1/stream"]["get"].Parameters {
		if p.Name == "sort" {
			orders = p.Schema.Enum
		}
	}
	for _, list := range []told{
		{"repair.md", "| `limited_by` |", "", 1, queue.LimitCauses},
		{"repair.md", "| `held_by` |", "", 1, enum[wire.Tenant](t, "HeldBy")},
		{"repair.md", "| outcome |", "", 1, enum[wire.Attempt](t, "Outcome")},
		{"repair.md", "| kind | what it means |", "", 1, slices.Collect(maps.Keys(repair.Kinds))},
		{"http.md", "| status | kind |", "", 2, now.kinds},
		{"http.md", "| field | default |", "", 1, fields},
		{"http.md", "| header | holds |", "", 1, now.headers},
		{"http.md", "`done` is true once the state is final:", ". ", 0, final},
		{"callbacks.md", "- `type` is", ". ", 0, events},
		{"cli.md", "`--state` selects one state:", ".\n", 0, states},
		{"cli.md", "- `--generate` creates arrivals:", ".\n", 0, texts(simulate.Shapes())},
		{"cli.md", "- `--through` is one or several of", ".\n", 0, append([]string{"shaper", "all"}, algorithms...)},
		{"limiters.md", "| | keeps for each key |", "", 1, algorithms},
		{"limiters.md", "- `by` is what is counted together:", " of jobs. ", 0, texts(guard.Bys())},
		{"limiters.md", "counts by guard and decision:", ".\n", 0,
			now.label("sluice_guard_decisions_total", "decision")},
		{"authentication.md", "counts refusals by class:", ".\n", 0, now.label("sluice_auth_refusals_total", "class")},
		{"observe.md", "in the order of `sort` (", ")", 0, orders},
		{"pools.md", "A pool has", ". ", 0, append(pool, "rates")},
	} {
		raw, err := os.ReadFile(repository + "/docs/" + list.page)
		if err != nil {
			t.Fatal(err)
		}
		_, text, found := strings.Cut(string(raw), list.from)
		if !found {
			t.Errorf("%s has no text %q", list.page, list.from)
			continue
		}
		var got []string
		if list.to != "" {
			text, _, found = strings.Cut(text, list.to)
			got = names(text)
		}
		if list.to == "" {
			table, _, _ := strings.Cut(text, "\n\n")
			for row := range strings.Lines(table) {
				if cells := strings.Split(row, "|"); strings.HasPrefix(row, "| ") && len(cells) > list.cell {
					got = append(got, names(cells[list.cell])...)
				}
			}
		}
		if diff := cmp.Diff(set(list.want), set(got)); diff != "" || !found || len(list.want) == 0 {
			t.Errorf("%s, the list behind %q, against the code:\n%s", list.page, list.from, diff)
		}
	}
}

// TestStatusesOfProblems compares the statuses in the table of problems with the OpenAPI documents.
func TestStatusesOfProblems(t *testing.T) {
	page, err := os.ReadFile(httpPage)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "| status | kind |")
	table, _, _ := strings.Cut(text, "\n\n")
	told := map[string]string{} // the cell of each kind
	for row := range strings.Lines(table) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			for _, kind := range names(cells[2]) {
				told[kind] += cells[1]
			}
		}
	}
	seen := 0
	for _, file := range []string{"openapi.json", "openapi-admin.json"} {
		raw, err := os.ReadFile(repository + "/docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Paths map[string]map[string]struct{ Responses map[string]json.RawMessage }
		}
		if err := json.Unmarshal(raw, &document); err != nil {
			t.Fatal(err)
		}
		for path, methods := range document.Paths {
			for method, operation := range methods {
				for status, answer := range operation.Responses {
					for _, m := range problemType.FindAllSubmatch(answer, -1) {
						seen++
						if kind := string(m[1]); !strings.Contains(told[kind], status) {
							t.Errorf("%s %s answers %s with %s, the page says%s", method, path, kind, status, told[kind])
						}
					}
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d answers were found", seen)
	}
}

// set returns the names in order, each once and in lower case.
func set(names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, strings.ToLower(name))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
