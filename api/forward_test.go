package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// proxied is an upstream behind a whole Sluice in this process.
type proxied struct {
	t        *testing.T
	q        *queue.Queue
	url      string // of the intake
	listener string // whose requests all go to the route
	admin    http.Handler
	server   *api.Server
	metrics  *prometheus.Registry

	stirred chan struct{} // has a signal since a submission was decided, or a request ended
	serving atomic.Int64  // requests

	mu   sync.Mutex
	seen []*http.Request // at the upstream
}

// stir signals that something has changed.
func (p *proxied) stir() {
	select {
	case p.stirred <- struct{}{}:
	default: // a signal is pending
	}
}

// until waits until the condition holds. Only submissions and ends of requests may change it.
func (p *proxied) until(what string, holds func() bool) {
	p.t.Helper()
	for limit := time.After(20 * time.Second); !holds(); {
		select {
		case <-p.stirred:
		case <-limit:
			p.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// watched stirs at the end of every request.
func (p *proxied) watched(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serving.Add(1)
		defer func() {
			p.serving.Add(-1)
			p.stir()
		}()
		h.ServeHTTP(w, r)
	})
}

// stirring stirs after each decision on a submission.
type stirring struct {
	api.Admitter
	p *proxied
}

func (s stirring) Submit(ctx context.Context, sub queue.Submission) (queue.Decision, error) {
	defer s.p.stir()
	return s.Admitter.Submit(ctx, sub)
}

// proxy starts it. handler is the upstream; edit changes the settings, wrap the queue of the API.
func proxy(
	t *testing.T, handler http.HandlerFunc, edit func(*api.Config, *worker.Route, *queue.Queue),
	wrap ...func(*api.Ports),
) *proxied {
	t.Helper()
	p := &proxied{t: t, metrics: prometheus.NewRegistry(), stirred: make(chan struct{}, 1)}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, r)
		p.mu.Unlock()
		handler(w, r)
	}))
	ctx, stop := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	fast := shaper.DefaultPolicy()
	fast.Rate = shaper.Rate{Limit: 1000, Period: time.Second}
	p.q, err = queue.Open(ctx, engine, queue.Options{Logger: log, Defaults: fast, Tenants: map[string]shaper.Overrides{
		"paused": {Paused: new(true)}, "slow": {Rate: &shaper.Rate{Limit: 1, Period: time.Hour}},
		"each": {Rate: &shaper.Rate{Limit: 1, Period: time.Second}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	route := worker.Route{Forward: &worker.Forward{URL: upstream.URL + "/base"}, Timeout: 20 * time.Second}
	route.Retry.MaxAttempts = 2
	cfg := api.Config{
		Logger: log, Registerer: p.metrics,
		Routes: map[string]api.RouteInfo{
			"partner": {MaxAttempts: 2, Forward: &api.Forward{Path: "/base", Wait: 20 * time.Second}},
			"jobs":    {MaxAttempts: 2},
		},
	}
	edit(&cfg, &route, p.q)
	wrap = append([]func(*api.Ports){func(ports *api.Ports) {
		*ports.Admitter() = stirring{*ports.Admitter(), p}
	}}, wrap...)
	server, err := api.NewOver(p.q, cfg, wrap...)
	if err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(p.q, worker.Config{Routes: map[string]worker.Route{"partner": route}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	intake, listener := serveHTTP2(p.watched(server.Intake())), serveHTTP2(p.watched(server.Forward("partner")))
	p.url, p.listener, p.admin, p.server = intake.URL, listener.URL, server.Admin(), server
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		intake.Close()
		listener.Close()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		upstream.Close()
		if err := p.q.Close(); err != nil {
			t.Error(err)
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// serveHTTP2 serves as a process does: HTTP/1.1, and HTTP/2 without TLS.
func serveHTTP2(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config = listen.Server("", h, slog.New(slog.DiscardHandler))
	listen.AllowHTTP2(s.Config)
	s.Start()
	return s
}

// asIs changes no setting.
func asIs(*api.Config, *worker.Route, *queue.Queue) {}

// ask sends a request to a path of the intake, header as pairs.
func (p *proxied) ask(method, path, body string, header ...string) (*http.Response, string) {
	p.t.Helper()
	return p.send(context.Background(), method, p.url+path, body, header...)
}

func (p *proxied) send(ctx context.Context, method, url, body string, header ...string) (*http.Response, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ""
		}
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil && ctx.Err() == nil {
		p.t.Fatal(err)
	}
	return resp, string(b)
}

// want insists on the status and the type of the problem, empty for none.
func (p *proxied) want(what string, status int, problem string, resp *http.Response, body string) {
	p.t.Helper()
	if resp.StatusCode != status || problem != "" && !strings.Contains(body, `"urn:sluice:problem:`+problem+`"`) {
		p.t.Errorf("%s: %d %s, want %d %s", what, resp.StatusCode, body, status, problem)
	}
}

// await waits until that many requests of the tenant wait.
func (p *proxied) await(what, tenant string, want int64) {
	p.t.Helper()
	p.until(fmt.Sprintf("%s: until %d wait", what, want), func() bool {
		f, err := p.q.Tenant(p.t.Context(), tenant)
		if err != nil {
			p.t.Fatal(err)
		}
		return f.Depth == want
	})
}

// reached is how many requests the upstream has seen.
func (p *proxied) reached() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.seen)
}

// last is the last of them.
func (p *proxied) last() *http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[len(p.seen)-1]
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Mine", "1")
	w.WriteHeader(http.StatusTeapot)
	_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, b)
}

// TestForward: a request goes through the queue, and its client gets the upstream's answer.
func TestForward(t *testing.T) {
	p := proxy(t, echo, asIs)
	resp, body := p.ask("POST", "/v1/forward/partner/a%2Fb?x=%00&y", "hello", "Content-Type", "text/plain", "Prefer", "wait=10",
		"Sluice-Tenant", "acme", "Authorization", "Bearer upstreams")
	p.want("the answer", http.StatusTeapot, "", resp, body)
	if body != "POST /base/a%2Fb?x=%00&y hello" || resp.Header.Get("X-Mine") != "1" || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%q, %v", body, resp.Header)
	}
	for _, name := range []string{"Sluice-Job", "Sluice-Waited-Ms"} {
		if resp.Header.Get(name) == "" {
			t.Errorf("no %s: %v", name, resp.Header)
		}
	}
	for _, name := range []string{"Cache-Control", "X-Content-Type-Options"} {
		if resp.Header.Get(name) != "" {
			t.Errorf("%s is not the upstream's: %v", name, resp.Header)
		}
	}
	up := p.last()
	if up.Header.Get("Authorization") != "Bearer upstreams" || up.Header.Get("Prefer") != "" || up.Header.Get("Sluice-Tenant") != "acme" {
		t.Errorf("the upstream got %v", up.Header)
	}
	resp, body = p.send(t.Context(), "BREW", p.listener+"/pot//x?q", "")
	p.want("on its own listener", http.StatusTeapot, "", resp, body)
	if body != "BREW /base/pot//x?q " {
		t.Errorf("%q", body)
	}
	j, err := p.q.Job(t.Context(), "acme", p.last().Header.Get("Sluice-Job"))
	if err == nil {
		t.Errorf("the job of the default tenant is acme's: %+v", j)
	}
}

// TestForwardRefuses: what is not forwarded gets a problem, and reaches nobody.
func TestForwardRefuses(t *testing.T) {
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) { c.MaxBody = 10 })
	for _, tt := range []struct {
		method, path, body string
		status             int
		problem            string
		header             []string
	}{
		{"GET", "/v1/forward/nobody/x", "", 404, "unknown-route", nil},
		{"GET", "/v1/forward/jobs/x", "", 404, "unknown-route", nil},
		{"GET", "/v1/forward/partner/../x", "", 422, "invalid-request", nil},
		{"GET", "/v1/forward/partner/a/%2e%2E%2fx", "", 422, "invalid-request", nil},
		{"GET", "/v1/forward/partner/x", "", 501, "not-forwarded", []string{"Connection", "Upgrade", "Upgrade", "websocket"}},
		{"POST", "/v1/forward/partner/x", "more than 10", 413, "too-large", nil},
		{"GET", "/v1/forward/partner/x", "", 422, "invalid-request", []string{"Sluice-Max-Wait-Ms", "soon"}},
		{"GET", "/v1/forward/partner/x", "", 422, "invalid-request", []string{"Idempotency-Key", `"open`}},
		{"GET", "/v1/forward/partner/x", "", 422, "invalid-request", []string{"Sluice-Tenant", strings.Repeat("x", 300)}},
	} {
		resp, body := p.ask(tt.method, tt.path, tt.body, tt.header...)
		p.want(tt.method+" "+tt.path, tt.status, tt.problem, resp, body)
	}
	if p.reached() != 0 {
		t.Errorf("the upstream was reached %d times", p.reached())
	}
}

// TestForwardOnly: a route that forwards takes no jobs, and says what to do.
func TestForwardOnly(t *testing.T) {
	p := proxy(t, echo, asIs)
	for path, body := range map[string]string{
		"/v1/jobs":       `{"type":"a","route":"partner","payload":1}`,
		"/v1/jobs/batch": `{"jobs":[{"type":"a","route":"partner","payload":1}]}`,
	} {
		resp, got := p.ask("POST", path, body, "Content-Type", "application/json")
		if !strings.Contains(got, "forward-only") || !strings.Contains(got, "/v1/forward/partner") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

// TestForwardSmuggling: shapes that two parsers could read differently are refused before the
// queue.
func TestForwardSmuggling(t *testing.T) {
	p := proxy(t, echo, asIs)
	for name, head := range map[string]string{
		"two lengths":           "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
		"length and chunks":     "Content-Length: 3\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"a folded header":       "X-A: 1\r\n 2\r\n X: 3\r\nTransfer-Encoding : chunked\r\n\r\n",
		"a blank before colon":  "Content-Length : 3\r\n\r\nabc",
		"a bare carriage":       "X-A: 1\rX-B: 2\r\n\r\n",
		"a length with a sign":  "Content-Length: +3\r\n\r\nabc",
		"an unknown encoding":   "Transfer-Encoding: xchunked\r\n\r\n",
		"a null in a header":    "X-A: \x00\r\n\r\n",
		"two hosts":             "Host: evil.example\r\n\r\n",
		"a chunk of bad length": "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
		"two equal encodings":   "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks, then identity": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"an encoding in quotes": "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
		"an encoding with more": "Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n",
		"an empty encoding":     "Transfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc",
		"a tab before colon":    "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
		"a list of lengths":     "Content-Length: 3, 4\r\n\r\nabc",
		"a length in hex":       "Content-Length: 0x3\r\n\r\nabc",
		"a length of less":      "Content-Length: -1\r\n\r\nabc",
		"a length of a float":   "Content-Length: 3.0\r\n\r\nabc",
		"a length too large":    "Content-Length: 99999999999999999999\r\n\r\nabc",
		"an empty name":         ": chunked\r\n\r\n",
		"a name with a blank":   "X A: 1\r\n\r\n",
		"a name in UTF-8":       "X-\xc3\xa9: 1\r\n\r\n",
		"no colon":              "X-A\r\n\r\n",
		"a null in a name":      "X\x00A: 1\r\n\r\n",
		"a delete in a value":   "X-A: a\x7fb\r\n\r\n",
		"a bell in a value":     "X-A: a\x07b\r\n\r\n",
		"a chunk with a sign":   "Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
		"a chunk of less":       "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
		"a chunk too large":     "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
		"a chunk with no end":   "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
		"a chunk without size":  "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
		"an unknown trailer":    "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n",
		"an expectation":        "Expect: 200-ok\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST /v1/forward/partner/x HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=1\r\n"+head)
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && (resp.StatusCode/100 != 4 && resp.StatusCode != 501 || resp.StatusCode == http.StatusTeapot) {
			t.Errorf("%s: %s", name, resp.Status)
		}
		_ = conn.Close()
	}
	for _, line := range []string{
		"POST  /v1/forward/partner/x HTTP/1.1", "POST /v1/forward/partner/x  HTTP/1.1", "POST\t/v1/forward/partner/x HTTP/1.1",
		"POST /v1/forward/partner/x HTTP/1.1 ", "POST /v1/forward/partner/x HTTP/9.1", "POST /v1/forward/partner/x http/1.1",
		"POST /v1/forward/partner/x\x00 HTTP/1.1", "PO ST /v1/forward/partner/x HTTP/1.1", "POST /v1/forward/partner/x",
		" POST /v1/forward/partner/x HTTP/1.1", "P\xc3\x96ST /v1/forward/partner/x HTTP/1.1", "POST /v1/forward/partner/x#y HTTP/1.1",
		"POST /v1/forward/partner/\\..\\x HTTP/1.1", "CONNECT /v1/forward/partner/x HTTP/1.1", "GET * HTTP/1.1",
	} {
		conn := p.raw(line + "\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		b, _ := io.ReadAll(conn)
		if status := string(b[:min(len(b), 12)]); len(b) > 0 && !strings.HasPrefix(status, "HTTP/1.1 4") &&
			!strings.HasPrefix(status, "HTTP/1.1 5") || status == "HTTP/1.1 418" {
			t.Errorf("%q: %s", line, status)
		}
	}
	if p.reached() != 0 {
		t.Errorf("the upstream was reached %d times, last by %+v", p.reached(), p.last())
	}
}

// TestForwardLater: an answer that nobody waited for is read later, by its tenant alone.
func TestForwardLater(t *testing.T) {
	p := proxy(t, echo, asIs)
	resp, body := p.ask("PUT", "/v1/forward/partner/x", "later", "Prefer", "respond-async", "Sluice-Tenant", "acme")
	p.want("the request", http.StatusAccepted, "", resp, body)
	at := resp.Header.Get("Location")
	if resp.Header.Get("Preference-Applied") != "respond-async" || !strings.HasSuffix(at, "/response") {
		t.Fatalf("%v", resp.Header)
	}
	resp, body = p.ask("GET", at, "", "Prefer", "wait=20", "Sluice-Tenant", "acme")
	p.want("its answer", http.StatusTeapot, "", resp, body)
	if body != "PUT /base/x later" {
		t.Errorf("%q", body)
	}
	resp, _ = p.ask("HEAD", "/v1/forward/partner/x", "", "Sluice-Tenant", "acme")
	resp, body = p.ask("GET", "/v1/jobs/"+resp.Header.Get("Sluice-Job")+"/response", "", "Sluice-Tenant", "acme")
	p.want("the answer to a HEAD, read by a GET", http.StatusTeapot, "", resp, body)
	resp, body = p.ask("GET", at, "", "Sluice-Tenant", "other")
	p.want("the answer of another tenant", http.StatusNotFound, "unknown-job", resp, body)
	gone := []byte(at)
	gone[len("/v1/jobs/")] ^= 1 // of another time
	resp, body = p.ask("GET", string(gone), "", "Sluice-Tenant", "acme")
	p.want("an answer past its retention", http.StatusGone, "job-gone", resp, body)

	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "Prefer", "wait=0", "Sluice-Tenant", "paused")
	p.want("a request of a paused tenant", http.StatusAccepted, "", resp, body)
	at = resp.Header.Get("Location")
	resp, body = p.ask("GET", at, "", "Prefer", "wait=1", "Sluice-Tenant", "paused")
	p.want("its answer", http.StatusAccepted, "", resp, body)
	if limit := resp.Header.Get("RateLimit"); limit != "" {
		t.Errorf("who reads an answer hears of a queue: %s", limit)
	}
	resp, body = p.ask("DELETE", strings.TrimSuffix(at, "/response"), "", "Sluice-Tenant", "paused")
	p.want("its cancellation", http.StatusOK, "", resp, body)
	resp, body = p.ask("GET", at, "", "Sluice-Tenant", "paused")
	p.want("its answer then", http.StatusGone, "job-gone", resp, body)
}

// late is an intake that learns of an admission when the request has its answer already.
type late struct {
	api.Admitter
	p **proxied
}

func (l late) Submit(ctx context.Context, sub queue.Submission) (queue.Decision, error) {
	v, err := l.Admitter.Submit(ctx, sub)
	queuetest.Await((*l.p).t, "the end of the job", func() bool {
		j, err := (*l.p).q.Job(ctx, sub.Tenant, v.Job.ID)
		return err == nil && j.State.Done()
	})
	return v, err
}

// TestForwardAcceptsAtOnce: respond-async is 202 also where the answer is there at once. A page
// takes the Location from it.
func TestForwardAcceptsAtOnce(t *testing.T) {
	var p *proxied
	p = proxy(t, echo, asIs, func(ports *api.Ports) {
		admitter := *ports.Admitter()
		*ports.Admitter() = late{admitter, &p}
	})
	resp, body := p.ask("PUT", "/v1/forward/partner/x", "at once", "Prefer", "respond-async", "Sluice-Tenant", "acme")
	p.want("the request", http.StatusAccepted, "", resp, body)
	resp, body = p.ask("GET", resp.Header.Get("Location"), "", "Sluice-Tenant", "acme")
	p.want("its answer", http.StatusTeapot, "", resp, body)
}

// TestForwardOwnHeaders: what Sluice says is said by Sluice alone. Neither a client nor an
// upstream, which may be another Sluice, can set its headers, at any of the places where answers
// are read.
func TestForwardOwnHeaders(t *testing.T) {
	claimed := []string{
		"Sluice-Cost", "sluice-tenant", "SLUICE_TENANT", "Sluice_Job", "Sluice-Job", "Sluice-Waited-Ms", "Sluice-Truncated",
		"Sluice-Attempt", "Sluice-", "Idempotent-Replayed", "idempotent-replayed",
	}
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for _, name := range claimed {
			h[name] = []string{"claimed"}
		}
		h["Trailer"], h["X-Sluice-Like"] = []string{"Sluice-Late"}, []string{"kept"}
		_, _ = io.WriteString(w, "body")
		h["Sluice-Late"], h[http.TrailerPrefix+"Sluice-Later"] = []string{"claimed"}, []string{"claimed"}
	}, asIs)
	header := []string{"Sluice_Tenant", "victim", "sluice-cost-of", "claimed", "Sluice_Job", "claimed", "Idempotency-Key", "k"}
	check := func(what string, resp *http.Response, body string) {
		t.Helper()
		p.want(what, http.StatusOK, "", resp, body)
		for _, h := range []http.Header{resp.Header, resp.Trailer} {
			for name, values := range h {
				if slices.Contains(values, "claimed") {
					t.Errorf("%s: %s is the upstream's", what, name)
				}
			}
		}
		if body != "body" || resp.Header.Get("X-Sluice-Like") != "kept" || len(resp.Header.Get("Sluice-Job")) < 10 {
			t.Errorf("%s: %q, %v", what, body, resp.Header)
		}
	}
	resp, body := p.send(t.Context(), "GET", p.listener+"/x", "", header...)
	check("the listener", resp, body)
	job := "/v1/jobs/" + resp.Header.Get("Sluice-Job") + "/response"
	for name, values := range p.last().Header {
		if values[0] == "claimed" || values[0] == "victim" {
			t.Errorf("the upstream got the client's %s", name)
		}
	}
	resp, body = p.send(t.Context(), "GET", p.listener+"/x", "", header...)
	check("the same key", resp, body)
	resp, body = p.send(t.Context(), "GET", p.listener+job, "")
	check("the answer at the listener", resp, body)
	resp, body = p.ask("GET", job, "")
	check("the answer", resp, body)
	resp, body = p.ask("HEAD", job, "")
	p.want("its head", http.StatusOK, "", resp, body)
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", header[:6]...)
	check("the intake", resp, body)
}

// TestForwardKey: one key is one request at the upstream, and everybody gets its answer; other
// headers do not make it another request, another body does.
func TestForwardKey(t *testing.T) {
	var nth atomic.Int64
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, nth.Add(1)) }, asIs)
	for i, want := range []string{"1", "1", "1"} {
		resp, body := p.ask("POST", "/v1/forward/partner/once", "x", "Idempotency-Key", "k", "X-Try", fmt.Sprint(i))
		p.want("the answer", http.StatusOK, "", resp, body)
		if body != want || (resp.Header.Get("Idempotent-Replayed") == "true") != (i > 0) {
			t.Errorf("answer %q, want %q: %v", body, want, resp.Header)
		}
	}
	if key := p.last().Header.Get("Idempotency-Key"); key != "k" {
		t.Errorf("the upstream got the key %q", key)
	}
	resp, body := p.ask("POST", "/v1/forward/partner/once", "y", "Idempotency-Key", "k")
	p.want("another body", http.StatusUnprocessableEntity, "idempotency-key-reused", resp, body)
}

// TestForwardFails: a request without an answer ends in a problem, and the flow goes on.
func TestForwardFails(t *testing.T) {
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/late":
			<-r.Context().Done()
		case "/base/none":
			panic(http.ErrAbortHandler)
		}
	}, func(_ *api.Config, r *worker.Route, _ *queue.Queue) { r.Timeout = 100 * time.Millisecond })
	resp, body := p.ask("POST", "/v1/forward/partner/late", "")
	p.want("no answer in time", http.StatusGatewayTimeout, "upstream-timeout", resp, body)
	if resp.Header.Get("Sluice-Job") == "" {
		t.Errorf("%v", resp.Header)
	}
	resp, body = p.ask("POST", "/v1/forward/partner/none", "")
	p.want("no answer", http.StatusBadGateway, "upstream-no-answer", resp, body)
	resp, body = p.ask("POST", "/v1/forward/partner/well", "")
	p.want("the next", http.StatusOK, "", resp, body)
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Tenant", "slow")
	p.want("the first of a slow tenant", http.StatusOK, "", resp, body)
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Tenant", "slow", "Sluice-Max-Wait-Ms", "1000")
	p.want("the next, in vain", http.StatusServiceUnavailable, "wait-hopeless", resp, body)
	if resp.Header.Get("Retry-After") == "" {
		t.Errorf("%v", resp.Header)
	}
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Tenant", "paused", "Sluice-Max-Wait-Ms", "1000")
	p.want("one that waited too long", http.StatusServiceUnavailable, "wait-hopeless", resp, body)
}

// TestForwardAbandoned: nobody would read the answer of a client that has left, unless it has a
// key.
func TestForwardAbandoned(t *testing.T) {
	p := proxy(t, echo, asIs)
	waiting := func() int64 {
		f, err := p.q.Tenant(t.Context(), "paused")
		if err != nil {
			t.Fatal(err)
		}
		return f.Depth
	}
	leave := func(header ...string) {
		t.Helper()
		before := waiting()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.send(ctx, "POST", p.url+"/v1/forward/partner/x", "", append(header, "Sluice-Tenant", "paused")...)
		}()
		p.await("while the client is there", "paused", before+1)
		cancel()
		<-done
	}
	leave("Idempotency-Key", "k")
	leave()
	p.await("once it has left", "paused", 1)
	p.until("until the requests have ended", func() bool { return p.serving.Load() == 0 })
	if err := testutil.GatherAndCompare(p.metrics, bytes.NewBufferString(`# HELP sluice_forward_abandoned_total Forwarded requests without an Idempotency-Key that were cancelled while they waited, because their client had left.
# TYPE sluice_forward_abandoned_total counter
sluice_forward_abandoned_total 1
`), "sluice_forward_abandoned_total"); err != nil {
		t.Error(err)
	}
}

// TestForwardCredentials: Sluice's credential stays with Sluice, and the upstream's goes to it.
func TestForwardCredentials(t *testing.T) {
	var secret string
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, q *queue.Queue) {
		keys := q.Keys()
		secretOf := auth.NewSecret()
		k, err := keys.CreateKey(t.Context(), queue.Key{Tenant: "acme", Name: "test", Hash: secretOf.Hash()})
		if err != nil {
			t.Fatal(err)
		}
		secret = secretOf.Key(k.ID)
		a, err := auth.New(t.Context(), auth.Config{Modes: []auth.Mode{auth.Keys}, Keys: keys, Logger: c.Logger})
		if err != nil {
			t.Fatal(err)
		}
		c.Auth = a
	})
	resp, body := p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Api-Key", secret, "Authorization", "Bearer upstreams", "X-Api-Key", "too")
	p.want("both credentials", http.StatusTeapot, "", resp, body)
	if h := p.last().Header; h.Get("Authorization") != "Bearer upstreams" || h.Get("X-Api-Key") != "too" || h.Get("Sluice-Api-Key") != "" {
		t.Errorf("the upstream got %v", h)
	}
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "Authorization", "Bearer "+secret)
	p.want("Sluice's alone", http.StatusTeapot, "", resp, body)
	if h := p.last().Header; h.Get("Authorization") != "" {
		t.Errorf("the upstream got %v", h)
	}
	n := p.reached()
	for _, header := range [][]string{{}, {"Authorization", "Bearer upstreams"}, {"Sluice-Api-Key", "sluice_wrong"}} {
		resp, body = p.ask("GET", "/v1/forward/partner/x", "", header...)
		p.want(fmt.Sprint(header), http.StatusUnauthorized, "unauthorized", resp, body)
	}
	if p.reached() != n {
		t.Error("a request without a credential reached the upstream")
	}
}
