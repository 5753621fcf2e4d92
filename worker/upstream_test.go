package worker

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// newAlone returns a worker with one route that is not run.
func newAlone(t *testing.T, r Route) *Worker {
	t.Helper()
	w, err := newWorker(newFakeQueue(1), nil, nil, Config{
		Routes: map[string]Route{"default": r}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.loads["default"].upstream.Load().Close() })
	return w
}

// A change of how an upstream is called reaches the next delivery. A mistake changes nothing.
func TestSetUpstream(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Method, " ", r.Header.Get("X-Key"))
	}))
	defer s.Close()
	w := newAlone(t, Route{URL: s.URL, Headers: map[string]string{"X-Key": "one"}})
	want := func(what, want string) {
		t.Helper()
		if got := w.deliverers["default"].Deliver(t.Context(), lease()); string(got.Response.Body) != want {
			t.Errorf("%s: %q, want %q", what, got.Response.Body, want)
		}
	}
	want("at first", "POST one")
	if err := w.SetUpstream("default", Route{Method: "PUT", Headers: map[string]string{"X-Key": "two"}}); err != nil {
		t.Error(err)
	}
	want("then", "PUT two")
	for name, c := range map[string]struct {
		route string
		r     Route
		want  string
	}{
		"another route":     {"other", Route{}, `no upstream of a route "other"`},
		"a header of ours":  {"default", Route{Headers: map[string]string{"Sluice-Tenant": "hunter2"}}, "must be another header"},
		"a line break":      {"default", Route{Headers: map[string]string{"X-A": "hunter2\n"}}, "no line breaks"},
		"a method":          {"default", Route{Method: "post"}, "must be one of POST"},
		"a proxy":           {"default", Route{Proxy: "socks5://hunter2"}, "http:// URL of a proxy"},
		"no verification":   {"default", Route{TLS: &tls.Config{InsecureSkipVerify: true}}, "must verify the upstream"},
		"a token of nobody": {"default", Route{OAuth2: &OAuth2{TokenURL: "hunter2"}}, "oauth2.token_url"},
		"two credentials":   {"default", Route{OAuth2: &OAuth2{TokenURL: "http://t", ClientID: "c"}, Headers: map[string]string{"authorization": "hunter2"}}, "together with oauth2"},
	} {
		if err := w.SetUpstream(c.route, c.r); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	want("after the mistakes", "PUT two")
}

// A forwarded request gets the route's headers in place of its own, however the client wrote them.
func TestForwardedHeadersAreReplaced(t *testing.T) {
	var got http.Header
	forwardLease(t, func(r *Route) { r.Headers = map[string]string{"Authorization": "Bearer route", "X-Key": "route"} },
		httpmsg.Request{Method: "POST", Header: http.Header{
			"Authorization": {"Bearer client"}, "X_key": {"client"}, "X-Kept": {"1"},
		}}, func(*queue.Lease) {}, func(w http.ResponseWriter, r *http.Request) { got = r.Header })
	if strings.Contains(fmt.Sprint(got), "client") || got.Get("Authorization") != "Bearer route" || got.Get("X-Key") != "route" || got.Get("X-Kept") != "1" {
		t.Errorf("the upstream got %v", got)
	}
}

// A job that waits for a token holds its flow until the next fetch, spends no attempt, and says
// why. The operator sees what the authorization server answered.
func TestHeldForAToken(t *testing.T) {
	var served atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client","error_description":"hunter2"}`)
			return
		}
		served.Add(1)
	}))
	defer s.Close()
	credentials := &OAuth2{TokenURL: s.URL + "/token", ClientID: "c", ClientSecret: "hunter2"}
	w := newAlone(t, Route{URL: s.URL, OAuth2: credentials, Breaker: Breaker{Failures: 1}})
	for range 5 {
		got := w.deliverers["default"].Deliver(t.Context(), lease())
		if got.Event != shaper.Hold || got.Cause.By != queue.HeldByAuth || got.Delay < 100*time.Millisecond || got.Delay > 2*time.Second ||
			got.Error.Message != noToken || !strings.Contains(got.Error.Detail, "401 invalid_client") {
			t.Fatalf("held as %+v: %+v", got, got.Error)
		}
	}
	report := w.loads.recent(0, w.log)["default"]
	if served.Load() != 0 || !strings.Contains(report.Token, "401 invalid_client") || report.Failed != 0 {
		t.Errorf("the upstream got %d requests; the report is %+v", served.Load(), report)
	}
	client := func(r *Route) { r.OAuth2 = credentials }
	waits := func(holds int) queue.Settlement {
		return forwardLease(t, client, httpmsg.Request{Method: "GET"}, func(l *queue.Lease) { l.FreeLeases = holds },
			func(http.ResponseWriter, *http.Request) {})
	}
	if s := waits(0); s.Event != shaper.Hold || s.Cause.By != queue.HeldByAuth || s.Retention == 0 {
		t.Errorf("a forwarded request: %+v", s)
	}
	if s := waits(forwardHolds); !s.Final || s.Error.Message != noToken {
		t.Errorf("a forwarded request after its last hold: %+v", s)
	}
}

// The metrics of a route's credentials follow SetUpstream, and a route without any has none.
func TestMetricsOfCredentials(t *testing.T) {
	var grants atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/token" && !grants.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, `{"access_token":"t"}`)
	}))
	defer s.Close()
	const missing, expiry = "sluice_route_token_missing", "sluice_route_certificate_expiry_timestamp_seconds"
	w := newAlone(t, Route{URL: s.URL})
	want := func(when string, missings, expiries string) {
		t.Helper()
		text := ""
		if missings != "" {
			text += "# HELP " + missing + " 1 if this worker has no token for the upstream of a route, " +
				"because its last request for one failed; else 0.\n# TYPE " + missing + " gauge\n" +
				missing + "{route=\"default\"} " + missings + "\n"
		}
		if expiries != "" {
			text += "# HELP " + expiry + " When the client certificate of a route ends, in seconds since 1970.\n# TYPE " +
				expiry + " gauge\n" + expiry + "{route=\"default\"} " + expiries + "\n"
		}
		if err := testutil.GatherAndCompare(w.metrics.registry, strings.NewReader(text), missing, expiry); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	set := func(r Route) {
		t.Helper()
		if err := w.SetUpstream("default", r); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(at int64) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{{Leaf: &x509.Certificate{NotAfter: time.Unix(at, 0)}}}}
	}
	credentials := func(id string) *OAuth2 { return &OAuth2{TokenURL: s.URL + "/token", ClientID: id} }

	want("without credentials", "", "")
	set(Route{OAuth2: credentials("a"), TLS: ends(2_000_000_000)})
	want("before the first job", "0", "2e+09")
	w.deliverers["default"].Deliver(t.Context(), lease())
	want("after a token was refused", "1", "2e+09")
	set(Route{OAuth2: credentials("a"), TLS: ends(2_100_000_000)})
	want("with another certificate", "0", "2.1e+09")
	w.deliverers["default"].Deliver(t.Context(), lease())
	grants.Store(true)
	want("while none was requested again", "1", "2.1e+09")
	set(Route{OAuth2: credentials("b")})
	w.deliverers["default"].Deliver(t.Context(), lease())
	want("with a token, without a certificate", "0", "")
	set(Route{TLS: &tls.Config{}})
	want("without them again", "", "")
}
