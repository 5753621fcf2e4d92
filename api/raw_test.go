package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// withPaths makes the route of a proxy one with jobs, whose paths may be named.
func withPaths(cfg *api.Config, route *worker.Route, _ *queue.Queue) {
	route.URL, route.Paths, route.Forward = route.Forward.URL+"?key=1", true, nil
	cfg.Routes["partner"] = api.RouteInfo{MaxAttempts: 2, Paths: true}
}

// TestRawBody: the bytes of a body and their type reach the upstream as they are.
func TestRawBody(t *testing.T) {
	type delivery struct{ target, contentType, kind, body string }
	seen := make(chan delivery, 10)
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		b := new(strings.Builder)
		_, _ = io.Copy(b, r.Body)
		seen <- delivery{r.RequestURI, r.Header.Get("Content-Type"), r.Header.Get("Sluice-Job-Type"), b.String()}
	}, withPaths)
	for _, c := range []struct {
		query, contentType, body string
		want                     delivery
	}{
		{"type=t", "text/csv; charset=latin1", "a;b\r\n\xe9\x00", delivery{"/base?key=1", "text/csv; charset=latin1", "t", "a;b\r\n\xe9\x00"}},
		{"type=t&path=/orders/%25C3%25A9", "application/json", "{not json", delivery{"/base/orders/%C3%A9?key=1", "application/json", "t", "{not json"}},
		{"type=a%20b&cost=2&max_wait_ms=60000&delay_ms=1", "", "x", delivery{"/base?key=1", "application/octet-stream", "a%20b", "x"}},
		{"type=t", "text/plain", "", delivery{"/base?key=1", "text/plain", "t", ""}},
	} {
		header := []string{"Prefer", "wait=10"}
		if c.contentType != "" {
			header = append(header, "Content-Type", c.contentType)
		}
		resp, body := p.ask("POST", "/v1/jobs?route=partner&"+c.query, c.body, header...)
		p.want(c.query, http.StatusOK, "", resp, body)
		if got := <-seen; got != c.want {
			t.Errorf("%s: delivered %+v, want %+v", c.query, got, c.want)
		}
	}
	resp, body := p.ask("POST", "/v1/jobs", `{"type":"t","payload":{"a": 1},"route":"partner","path":"/x"}`,
		"Content-Type", "application/json", "Prefer", "wait=10")
	p.want("in JSON with a path", http.StatusOK, "", resp, body)
	if got := <-seen; got != (delivery{"/base/x?key=1", "application/json", "t", `{"a": 1}`}) {
		t.Errorf("delivered %+v", got)
	}
}

// TestRawBodyRefused: what a raw body or a path must not have is refused with its field.
func TestRawBodyRefused(t *testing.T) {
	p := proxy(t, echo, withPaths)
	for _, c := range []struct {
		what, query, field string
		status             int
		header             []string
	}{
		{"no type", "route=partner", "query.route", 422, []string{"Content-Type", "application/json"}},
		{"no type, no JSON", "", "urn:sluice:problem:unsupported-media-type", 415, []string{"Content-Type", "text/plain"}},
		{"an empty type", "type=", "query.type", 422, nil},
		{"a cost that is no number", "type=t&cost=1e3", "query.cost", 422, nil},
		{"a path that leaves", "type=t&route=partner&path=/..", "query.path", 422, nil},
		{"an encoded path that leaves", "type=t&route=partner&path=/%252e%252e/x", "query.path", 422, nil},
		{"a path with a query", "type=t&route=partner&path=/a?b", "query.path", 422, nil},
		{"a path of another host", "type=t&route=partner&path=//evil.example", "query.path", 422, nil},
		{"a path of a route without", "type=t&route=jobs&path=/a", "path", 422, nil},
		{"an unknown parameter", "type=t&key=1", "query.key", 422, nil},
		{"a coding", "type=t&route=partner", "Content-Encoding", 422, []string{"Content-Encoding", "gzip"}},
		{"a long content type", "type=t&route=partner", "Content-Type", 422, []string{"Content-Type", strings.Repeat("x", 256)}},
		{"another origin", "type=t&route=partner", "", 403, []string{"Sec-Fetch-Site", "cross-site", "Origin", "http://evil.example"}},
	} {
		resp, body := p.ask("POST", "/v1/jobs?"+c.query, "x", c.header...)
		if resp.StatusCode != c.status || !strings.Contains(body, `"`+c.field) {
			t.Errorf("%s: %d %s, want %d and %s", c.what, resp.StatusCode, body, c.status, c.field)
		}
	}
	if p.reached() != 0 {
		t.Errorf("the upstream was reached %d times", p.reached())
	}
}
