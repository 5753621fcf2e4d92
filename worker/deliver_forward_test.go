package worker

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// forward makes one attempt to forward a request to a server with this handler, below the path
// /base.
func forward(t *testing.T, edit func(*Route), m httpmsg.Request, attempt int, h http.HandlerFunc) queue.Settlement {
	t.Helper()
	return forwardLease(t, edit, m, func(l *queue.Lease) { l.Attempt = attempt }, h)
}

// forwardLease does so for a lease that change completes.
func forwardLease(
	t *testing.T, edit func(*Route), m httpmsg.Request, change func(*queue.Lease), h http.HandlerFunc,
) queue.Settlement {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	r := Route{Forward: &Forward{URL: server.URL + "/base/", RetryOn: []int{502, 503}}, Timeout: 5 * time.Second}
	r.Retry.MaxAttempts = 3
	edit(&r)
	d := newForwarder(r.withDefaults(), answerCosts{noPool, func(*queue.Lease, error) {}})
	defer d.upstream.Load().Close()
	if m.Header == nil {
		m.Header = http.Header{}
	}
	l := lease()
	l.Payload = m.Encode()
	change(l)
	s := d.Deliver(t.Context(), l)
	if s.LeaseRef != l.LeaseRef || s.Retention != 10*time.Minute && s.Event != shaper.Retry && s.Event != shaper.Hold {
		t.Errorf("settles %+v", s)
	}
	return s
}

func as(*Route) {}

// TestForwardedExactly: an upstream gets what the client sent, and the answer is kept as it was.
func TestForwardedExactly(t *testing.T) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	sent := http.Header{
		"X-Two": {"a", "b"}, "Content-Type": {"x/y; z"}, "Content-Encoding": {"br"}, "Authorization": {"Bearer upstreams"},
		"Cookie": {"s=1"},
	}
	var got *http.Request
	var body []byte
	s := forward(t, as, httpmsg.Request{Method: "PROPFIND", Target: "/a%2Fb//%c3%A9?x=%00&x=2;y", Header: sent, Body: binary}, 2,
		func(w http.ResponseWriter, r *http.Request) {
			got = r
			body, _ = io.ReadAll(r.Body)
			h := w.Header()
			h["Set-Cookie"], h["Content-Encoding"], h["Connection"] = []string{"a=1", "b=2"}, []string{"gzip"}, []string{"X-Hop"}
			h.Set("X-Hop", "1")
			h.Set("Location", "http://elsewhere.example/")
			h.Set("Date", "then")
			h["Content-Type"] = nil
			w.WriteHeader(307)
			_, _ = w.Write(binary)
		})
	if got.Method != "PROPFIND" || got.RequestURI != "/base/a%2Fb//%c3%A9?x=%00&x=2;y" || !bytes.Equal(body, binary) {
		t.Errorf("the upstream got %s %s with %d bytes", got.Method, got.RequestURI, len(body))
	}
	sent.Set("Sluice-Job", "0198c5f0job")
	sent.Set("Sluice-Attempt", "2")
	sent.Set("Sluice-Tenant", "%C3%85cme%2F1%20b")
	sent.Set("Content-Length", "256")
	if !reflect.DeepEqual(got.Header, sent) {
		t.Errorf("the upstream got %v\nwant %v", got.Header, sent)
	}
	a, err := httpmsg.DecodeAnswer(s.Answer)
	want := http.Header{
		"Set-Cookie": {"a=1", "b=2"}, "Content-Encoding": {"gzip"}, "Location": {"http://elsewhere.example/"}, "Date": {"then"},
	}
	if err != nil || a.Status != 307 || !bytes.Equal(a.Body, binary) || a.Truncated || !reflect.DeepEqual(a.Header, want) {
		t.Errorf("the answer is kept as %+v, %v", a, err)
	}
	if s.Event != shaper.Succeed || s.Response.Status != 307 {
		t.Errorf("settles %+v", s)
	}
}

// TestForwardedOutcomes: which answers end a request, which are repeated, and for which requests.
func TestForwardedOutcomes(t *testing.T) {
	status := func(n int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(n)
		}
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	broken := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = w.Write([]byte("short"))
		panic(http.ErrAbortHandler)
	}
	late := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	large := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) }
	keyed := http.Header{"Idempotency-Key": {"k"}}
	brief := func(r *Route) { r.Timeout = 50 * time.Millisecond }
	for _, tt := range []struct {
		name    string
		method  string
		header  http.Header
		attempt int
		edit    func(*Route)
		handler http.HandlerFunc
		event   shaper.Event
		answer  int // 0: none
	}{
		{"an error of the client", "GET", nil, 1, as, status(404), shaper.Succeed, 404},
		{"an error of the server", "GET", nil, 1, as, status(500), shaper.Succeed, 500},
		{"a status to repeat", "GET", nil, 1, as, status(502), shaper.Retry, 0},
		{"the same at the last attempt", "GET", nil, 3, as, status(502), shaper.Succeed, 502},
		{"the same of a POST", "POST", nil, 1, as, status(502), shaper.Succeed, 502},
		{"the same of a POST with a key", "POST", keyed, 1, as, status(502), shaper.Retry, 0},
		{"the same of a POST that may be repeated", "POST", nil, 1, func(r *Route) { r.Forward.RetryUnsafe = true }, status(502),
			shaper.Retry, 0},
		{"too many requests", "POST", nil, 1, as, status(429), shaper.Succeed, 429},
		{"with the time to wait", "POST", nil, 3, as, status(429, "Retry-After", "7"), shaper.Hold, 0},
		{"no answer", "GET", nil, 1, as, hangUp, shaper.Retry, 0},
		{"no answer to a POST", "POST", nil, 1, as, hangUp, shaper.Die, 0},
		{"no answer at the last attempt", "GET", nil, 3, as, hangUp, shaper.Die, 0},
		{"half an answer", "GET", nil, 3, as, broken, shaper.Die, 0},
		{"no answer in time", "POST", nil, 1, brief, late, shaper.Die, 0},
		{"a large answer", "GET", nil, 1, as, large, shaper.Succeed, 200},
		{"a large answer that must not be cut", "GET", nil, 1, func(r *Route) { r.Forward.FailLarge = true }, large, shaper.Die, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := forward(t, tt.edit, httpmsg.Request{Method: tt.method, Target: "/x", Header: tt.header}, tt.attempt, tt.handler)
			got := 0
			if s.Answer != nil {
				a, err := httpmsg.DecodeAnswer(s.Answer)
				if err != nil {
					t.Fatal(err)
				}
				got = a.Status
				queuetest.Compare(t, "cut", a.Truncated, strings.HasPrefix(tt.name, "a large"))
			}
			if s.Event != tt.event || got != tt.answer {
				t.Errorf("%s with the answer %d, want %s with %d: %+v", s.Event, got, tt.event, tt.answer, s.Error)
			}
			if s.Event == shaper.Die && (!s.Final || s.Error == nil || s.Error.Timeout != (tt.name == "no answer in time")) {
				t.Errorf("final %v, error %+v", s.Final, s.Error)
			}
			if s.Event == shaper.Hold {
				queuetest.Compare(t, "the hold", s.Delay, 7*time.Second)
			}
		})
	}
}

// TestForwardedNowhere: a request that reached nobody is sent again, whatever its method.
func TestForwardedNowhere(t *testing.T) {
	s := forward(t, func(r *Route) { r.Forward.URL = "http://127.0.0.1:1/" }, httpmsg.Request{Method: "POST", Target: "/x"}, 1, nil)
	if s.Event != shaper.Retry || s.Error.Message != "connection failed" {
		t.Errorf("%+v, %+v", s, s.Error)
	}
	d := newForwarder(Route{Forward: &Forward{URL: "http://127.0.0.1:1"}}.withDefaults(), answerCosts{pooled: noPool})
	for _, payload := range []string{"", "GET /../x\r\n\r\n", "GET //evil.example\r\n\r\n", "G T /\r\n\r\n"} {
		l := lease()
		l.Payload = []byte(payload)
		if s := d.Deliver(context.Background(), l); s.Event != shaper.Die || !s.Final {
			t.Errorf("%q: %+v", payload, s)
		}
	}
}

// TestForwardedHead: the answer to HEAD keeps the length of the body that it does not have.
func TestForwardedHead(t *testing.T) {
	s := forward(t, as, httpmsg.Request{Method: "HEAD", Target: ""}, 1, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/base" {
			t.Errorf("the upstream got %s", r.RequestURI)
		}
		w.Header().Set("Content-Length", "99")
	})
	a, err := httpmsg.DecodeAnswer(s.Answer)
	if err != nil || a.Header.Get("Content-Length") != "99" || len(a.Body) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}
