package api_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// withJobHeaders makes the route of a proxy one whose jobs may set headers.
func withJobHeaders(cfg *api.Config, route *worker.Route, _ *queue.Queue) {
	route.URL, route.Forward = route.Forward.URL, nil
	cfg.Routes["partner"] = api.RouteInfo{MaxAttempts: 2, JobHeaders: []string{"X-Request-Id", "Accept-Language", "X-Api-Key"}}
}

const withHeaders = `{"type":"t","payload":1,"route":"partner","headers":`

// TestJobHeaders: headers of a job reach the upstream, by JSON, in a batch and beside a raw body.
func TestJobHeaders(t *testing.T) {
	seen := make(chan http.Header, 10)
	p := proxy(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }, withJobHeaders)
	arrived := func(what, id, language, key, contentType string) {
		t.Helper()
		h := <-seen
		got := []string{h.Get("X-Request-Id"), h.Get("Accept-Language"), h.Get("X-Api-Key"), h.Get("Content-Type"), h.Get("Sluice-Set-X-Request-Id")}
		if want := []string{id, language, key, contentType, ""}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: delivered with %q, want %q", what, got, want)
		}
	}
	resp, body := p.ask("POST", "/v1/jobs", withHeaders+`{"X-Request-Id":"17","accept_LANGUAGE":"d\u00e9","X-Api-Key":"a-secret"}}`,
		"Content-Type", "application/json", "Prefer", "wait=10")
	p.want("in JSON", http.StatusOK, "", resp, body)
	arrived("in JSON", "17", "d\u00e9", "a-secret", "application/json")
	if strings.Contains(body, "a-secret") {
		t.Errorf("the answer shows the key: %s", body)
	}
	resp, body = p.ask("POST", "/v1/jobs/batch", `{"jobs":[`+withHeaders+`{"X-Request-Id":"18"}},`+withHeaders+`{"X-Other":"1"}},`+
		withHeaders+`{"X-Request-Id":" 1"}}]}`, "Content-Type", "application/json")
	p.want("in a batch", http.StatusOK, "", resp, body)
	arrived("in a batch", "18", "", "", "application/json")
	if strings.Count(body, `"status":422`) != 2 || !strings.Contains(body, "headers.X-Other") {
		t.Errorf("a batch with unlisted headers: %s", body)
	}
	resp, body = p.ask("POST", "/v1/jobs?type=t&route=partner", "a;b", "Content-Type", "text/csv",
		"Sluice-Set-X-Request-Id", "19", "sluice-set-accept_language", "en", "Prefer", "wait=10")
	p.want("beside a raw body", http.StatusOK, "", resp, body)
	arrived("beside a raw body", "19", "en", "", "text/csv")
	c, err := client.New(p.url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, contentType := range []string{"", "text/csv"} {
		_, err = c.Submit(t.Context(), client.Submission{ContentType: contentType, Submission: wire.Submission{
			Type: "t", Route: "partner", Payload: []byte("1"), Headers: map[string]string{"X-Request-Id": "20", "X-Api-Key": "k"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		arrived("by the client", "20", "", "k", cmp.Or(contentType, "application/json"))
	}
}

// TestJobHeadersRefused: the problem has the name of the header and the rule.
func TestJobHeadersRefused(t *testing.T) {
	p := proxy(t, echo, withJobHeaders)
	refused := func(what, path, body, field string, header ...string) {
		t.Helper()
		resp, got := p.ask("POST", path, body, header...)
		if resp.StatusCode != 422 || !strings.Contains(got, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s, want 422 and the field %s", what, resp.StatusCode, got, field)
		}
	}
	for _, name := range []string{
		"X-Other", "Connection", "Transfer-Encoding", "Keep-Alive", "Upgrade", "Te", "Content-Length", "Host", "host", "Sluice-Tenant",
		"sluice_attempt", "webhook-id", "Content-Type", "User-Agent", "Accept-Encoding", "X Request", "", "X-Request", "X-Request-Idd",
	} {
		refused(name, "/v1/jobs", withHeaders+`{"`+name+`":"1"}}`, "headers."+name, "Content-Type", "application/json")
	}
	many, half := map[string]string{}, strings.Repeat("a", 2048)
	for i := range 17 {
		many[fmt.Sprintf("X-%d", i)] = "1"
	}
	var names []string
	for name := range many {
		names = append(names, `"`+name+`":"1"`)
	}
	for what, headers := range map[string][2]string{
		"a line feed":            {`{"X-Request-Id":"a\nX-Evil: 1"}`, "headers.X-Request-Id"},
		"a tab":                  {`{"X-Request-Id":"a\tb"}`, "headers.X-Request-Id"},
		"space at the end":       {`{"X-Request-Id":"a "}`, "headers.X-Request-Id"},
		"a number":               {`{"X-Request-Id":17}`, "headers.X-Request-Id"},
		"half a surrogate pair":  {`{"X-Request-Id":"\ud800"}`, "headers.X-Request-Id"},
		"a list":                 {`["X-Request-Id"]`, "headers"},
		"null":                   {`null`, "headers"},
		"the same name":          {`{"X-Request-Id":"1","X-Request-Id":"1"}`, "headers.X-Request-Id"},
		"a name in two cases":    {`{"X-Request-Id":"1","x-request-id":"1"}`, "headers.x-request-id"},
		"a name with underlines": {`{"X-Request-Id":"1","X_Request_Id":"1"}`, "headers.X_Request_Id"},
		"5,000 bytes":            {`{"X-Request-Id":"` + strings.Repeat("a", 5000) + `"}`, "headers.X-Request-Id"},
		"4,096 bytes and names":  {`{"X-Request-Id":"` + half + `","X-Api-Key":"` + half + `"}`, "headers"},
		"17 headers":             {`{` + strings.Join(names, ",") + `}`, "headers"},
	} {
		refused(what, "/v1/jobs", withHeaders+headers[0]+`}`, headers[1], "Content-Type", "application/json")
	}
	refused("a route that lists none", "/v1/jobs", `{"type":"t","payload":1,"route":"jobs","headers":{"X-Request-Id":"1"}}`,
		"headers.X-Request-Id", "Content-Type", "application/json")
	refused("an atomic batch", "/v1/jobs/batch", `{"atomic":true,"jobs":[`+withHeaders+`{"X-Request-Id":"1"}},`+withHeaders+`{"Host":"1"}}]}`,
		"jobs[1].headers.Host", "Content-Type", "application/json")
	refused("beside JSON", "/v1/jobs", `{"type":"t","payload":1,"route":"partner"}`, "Sluice-Set-X-Request-Id",
		"Content-Type", "application/json", "Sluice-Set-X-Request-Id", "1")
	refused("beside a batch", "/v1/jobs/batch", `{"jobs":[{"type":"t","payload":1,"route":"partner"}]}`, "Sluice-Set-X-Request-Id",
		"Content-Type", "application/json", "Sluice-Set-X-Request-Id", "1")
	for name, field := range map[string]string{
		"Sluice-Set-Host": "Sluice-Set-Host", "Sluice-Set-Sluice-Tenant": "Sluice-Set-Sluice-Tenant",
		"Sluice-Set-X-Other": "headers.X-Other", "Sluice-Set-": "Sluice-Set-",
	} {
		refused(name, "/v1/jobs?type=t&route=partner", "x", field, name, "1")
	}
	refused("a name in two spellings", "/v1/jobs?type=t&route=partner", "x", "Sluice-Set-X_request_id",
		"Sluice-Set-X-Request-Id", "1", "Sluice-Set-X_Request_Id", "1")
	req, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/jobs?type=t&route=partner", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Sluice-Set-X-Request-Id"] = []string{"1", "2"}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || resp.StatusCode != 422 {
		t.Errorf("a header twice: %v %v", resp, err)
	}
	if err == nil {
		resp.Body.Close()
	}
	if p.reached() != 0 {
		t.Errorf("the upstream was reached %d times", p.reached())
	}
}

// TestJobHeadersAreOfTheFingerprint: a key with other headers is another submission; the spelling
// of names and their order are no difference.
func TestJobHeadersAreOfTheFingerprint(t *testing.T) {
	p := proxy(t, echo, withJobHeaders)
	first := ""
	for _, c := range []struct {
		headers string
		status  int
	}{
		{`{"X-Request-Id":"17","Accept-Language":"de"}`, 202},
		{`{"accept-language":"de","X_REQUEST_ID":"17"}`, 202},
		{`{"X-Request-Id":"18","Accept-Language":"de"}`, 422},
		{`{"X-Request-Id":"17"}`, 422},
		{`{}`, 422},
	} {
		resp, body := p.ask("POST", "/v1/jobs", withHeaders+c.headers+`}`, "Content-Type", "application/json", "Idempotency-Key", "k",
			"Sluice-Tenant", "paused")
		if resp.StatusCode != c.status || c.status == 422 && !strings.Contains(body, "idempotency-key-reused") {
			t.Errorf("%s: %d %s", c.headers, resp.StatusCode, body)
		}
		if first == "" {
			first = resp.Header.Get("Location")
		} else if c.status == 202 && (resp.Header.Get("Location") != first || resp.Header.Get("Idempotent-Replayed") != "true") {
			t.Errorf("%s is another job", c.headers)
		}
	}
	// Without headers the fingerprint is what it was before jobs had any.
	for _, body := range []string{`{"type":"t","payload":1,"route":"partner"}`, withHeaders + `{}}`} {
		resp, got := p.ask("POST", "/v1/jobs", body, "Content-Type", "application/json", "Idempotency-Key", "none", "Sluice-Tenant", "paused")
		p.want(body, 202, "", resp, got)
	}
}

// TestJobHeadersAreShown: operators see the headers of a job without credentials, until it has
// ended. Its client does not see them, and nothing else has their values.
func TestJobHeadersAreShown(t *testing.T) {
	var log safeBuffer
	p := proxy(t, echo, func(cfg *api.Config, route *worker.Route, q *queue.Queue) {
		withJobHeaders(cfg, route, q)
		cfg.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		route.Retry.MaxAttempts = 1
	})
	submit := func(tenant string) string {
		resp, body := p.ask("POST", "/v1/jobs", withHeaders+`{"X-Request-Id":"value-17","X-Api-Key":"a-secret"}}`,
			"Content-Type", "application/json", "Sluice-Tenant", tenant, "Prefer", "wait=0")
		p.want("submitted", 202, "", resp, body)
		return strings.TrimPrefix(resp.Header.Get("Location"), "/v1/jobs/")
	}
	admin := func(path string) string {
		w := httptest.NewRecorder()
		p.admin.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", "http://localhost"+path, nil))
		return w.Body.String()
	}
	waiting := submit("paused")
	for _, path := range []string{"/v1/jobs/", "/v1/tenants/paused/jobs/"} {
		if got := admin(path + waiting); !strings.Contains(got, `"headers":{"X-Api-Key":"hidden","X-Request-Id":"value-17"}`) {
			t.Errorf("%s: %s", path, got)
		}
	}
	if _, body := p.ask("GET", "/v1/jobs/"+waiting, "", "Sluice-Tenant", "paused"); strings.Contains(body, "value-17") {
		t.Errorf("the client sees %s", body)
	}
	dead := submit("acme") // echo answers 418
	_, body := p.ask("GET", "/v1/jobs/"+dead, "", "Sluice-Tenant", "acme", "Prefer", "wait=10")
	if !strings.Contains(body, `"state":"dead"`) || !strings.Contains(admin("/v1/jobs/"+dead), "value-17") {
		t.Errorf("a dead job: %s %s", body, admin("/v1/jobs/"+dead))
	}
	for _, path := range []string{"/metrics", "/v1/tenants/paused", "/v1/tenants/paused/jobs?state=all", "/v1/routes"} {
		if got := admin(path); strings.Contains(got, "value-17") || strings.Contains(got, "a-secret") {
			t.Errorf("%s has the headers: %s", path, got)
		}
	}
	if text := log.String(); strings.Contains(text, "value-17") || strings.Contains(text, "a-secret") {
		t.Errorf("logged: %s", text)
	}
}

// safeBuffer is a buffer for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
