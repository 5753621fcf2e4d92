package worker

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const payload = "{ \"amount\" : 1e400,\t\"note\":\"\\u00e9\" }"

func lease() *queue.Lease {
	return &queue.Lease{
		LeaseRef: queue.LeaseRef{ID: "0198c5f0job", Epoch: 7}, Tenant: "Åcme/1 b", Route: "default",
		Type:    "order.create\r\nX: y",
		Payload: []byte(payload), Attempt: 2, MaxAttempts: 5,
	}
}

// deliverTo makes one attempt at a server with this handler.
func deliverTo(t *testing.T, r Route, handler http.HandlerFunc) queue.Settlement {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	r.URL = server.URL + "/orders"
	return deliver(t, t.Context(), r)
}

func deliver(t *testing.T, ctx context.Context, r Route) queue.Settlement {
	t.Helper()
	d := newHTTPDeliverer(r.withDefaults(), answerCosts{pooled: noPool})
	defer d.upstream.Load().Close()
	s := d.Deliver(ctx, lease())
	if s.LeaseRef != lease().LeaseRef {
		t.Errorf("settles %+v", s.LeaseRef)
	}
	if s.Error != nil {
		for _, secret := range []string{"amount", "hunter2", "whsec", "http://"} {
			if strings.Contains(s.Error.Message, secret) {
				t.Errorf("the error reveals too much: %q", s.Error.Message)
			}
		}
	}
	return s
}

// messageOf is the message of the settlement's error, empty without one.
func messageOf(s queue.Settlement) string {
	if s.Error == nil {
		return ""
	}
	return s.Error.Message
}

// TestHeadersOfRoutesReplaceThoseOfJobs: also of a job that was admitted before its route set them.
func TestHeadersOfRoutesReplaceThoseOfJobs(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer server.Close()
	r := Route{URL: server.URL, Headers: map[string]string{"X-Static": "route", "X-Other": "route"}}
	l := lease()
	l.Headers = map[string]string{"X_static": "job", "x-other": "job", "X-Request-Id": "17"}
	d := newHTTPDeliverer(r.withDefaults(), answerCosts{pooled: noPool})
	d.Deliver(t.Context(), l)
	for name, want := range map[string][]string{
		"X-Static": {"route"}, "X_static": nil, "X-Other": {"route"}, "X-Request-Id": {"17"},
	} {
		if values := got[name]; !slices.Equal(values, want) {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
}

// TestHeadersOfJobs: the headers of a job reach the upstream, and replace none of Sluice's own.
func TestHeadersOfJobs(t *testing.T) {
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	defer server.Close()
	d := newHTTPDeliverer(Route{URL: strings.Replace(server.URL, "//", "//user:hunter2@", 1)}.withDefaults(),
		answerCosts{pooled: noPool})
	defer d.upstream.Load().Close()
	l := lease()
	l.Headers = map[string]string{
		"X-Request-Id": "17", "accept-language": "de, en;q=0.5", "X_Api_Key": "k",
		"Authorization": "Bearer x", "Sluice-Attempt": "9", "sluice_tenant": "x", "Webhook-Id": "x", "Host": "evil.example",
		"Content-Type": "x", "User-Agent": "x", "Content-Length": "1", "Connection": "close", "Transfer-Encoding": "chunked",
	}
	if s := d.Deliver(t.Context(), l); s.Event != shaper.Succeed {
		t.Fatalf("settled by %+v", s)
	}
	for name, want := range map[string]string{
		"X-Request-Id": "17", "Accept-Language": "de, en;q=0.5", "X_api_key": "k", "Sluice-Attempt": "2",
		"Sluice-Tenant": "%C3%85cme%2F1%20b", "Sluice_tenant": "", "Webhook-Id": l.ID, "Content-Type": "application/json",
		"User-Agent": "sluice", "Connection": "",
	} {
		if values := got.Header.Values(name); strings.Join(values, "|") != want {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
	if user, password, _ := got.BasicAuth(); user != "user" || password != "hunter2" {
		t.Errorf("Authorization: %q", got.Header["Authorization"])
	}
	if got.Host != server.Listener.Addr().String() || got.ContentLength != int64(len(payload)) {
		t.Errorf("host %q, %d bytes", got.Host, got.ContentLength)
	}
}

func TestRequestIsAsTheContractSays(t *testing.T) {
	secrets := []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"}
	var got *http.Request
	var body []byte
	s := deliverTo(t, Route{Secrets: secrets}, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "session=1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"ok":true}`)
	})
	queuetest.Compare(t, "the request", []string{got.Method, got.URL.Path, string(body)},
		[]string{http.MethodPost, "/orders", payload})
	stamp := got.Header.Get("webhook-timestamp")
	if unix, err := strconv.ParseInt(stamp, 10, 64); err != nil ||
		time.Since(time.Unix(unix, 0)).Abs() > time.Minute {
		t.Errorf("webhook-timestamp %q", stamp)
	}
	for _, secret := range secrets {
		hook, err := webhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := hook.Verify(body, got.Header); err != nil {
			t.Errorf("signature: %v", err)
		}
	}
	if n := len(strings.Fields(got.Header.Get("webhook-signature"))); n != 2 {
		t.Errorf("%d signatures, want 2", n)
	}
	got.Header.Del("webhook-timestamp")
	got.Header.Del("webhook-signature")
	want := http.Header{
		"Content-Length":  {strconv.Itoa(len(payload))},
		"Content-Type":    {"application/json"},
		"User-Agent":      {"sluice"},
		"Webhook-Id":      {"0198c5f0job"},
		"Sluice-Attempt":  {"2"},
		"Sluice-Tenant":   {"%C3%85cme%2F1%20b"},
		"Sluice-Job-Type": {"order.create%0D%0AX:%20y"},
	}
	queuetest.Compare(t, "the headers", got.Header, want)
	queuetest.Compare(t, "the event", s.Event, shaper.Succeed)
	answer := &queue.Response{
		Status: 201, Headers: map[string]string{"content-type": "application/json"},
		Body: []byte(`{"ok":true}`),
	}
	queuetest.Compare(t, "the response", s.Response, answer)
}

func TestRequestIsNotSignedWithoutSecrets(t *testing.T) {
	deliverTo(t, Route{}, func(_ http.ResponseWriter, r *http.Request) {
		if s, ok := r.Header["Webhook-Signature"]; ok {
			t.Errorf("signed: %v", s)
		}
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var hits atomic.Int32
	s := deliverTo(t, Route{}, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	queuetest.Compare(t, "the requests", hits.Load(), 1)
	queuetest.Compare(t, "the event", s.Event, shaper.Die)
	queuetest.Compare(t, "the location", s.Response.Headers["location"], "/elsewhere")
	queuetest.Compare(t, "the error", messageOf(s),
		"the upstream answered 307 Temporary Redirect; redirects are not followed")
}

// TestRedirectsAreDeadWhereverTheyLead: the upstream has answered, so the attempt is over and the
// breaker has nothing to count.
func TestRedirectsAreDeadWhereverTheyLead(t *testing.T) {
	for _, location := range []string{
		"", "/ok", "/%zz", "://%zz", "http://[::1", "http://a b/", "http://upstream.test:port/",
	} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			s := deliverTo(t, Route{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", location)
				w.WriteHeader(status)
			})
			what := fmt.Sprintf("%d to %q: ", status, location)
			queuetest.Compare(t, what+"event", s.Event, shaper.Die)
			queuetest.Compare(t, what+"status", s.Error.Status, status)
			queuetest.Compare(t, what+"location", s.Response.Headers["location"], location)
			queuetest.Compare(t, what+"counts against the breaker", unavailable(s), false)
		}
	}
}

// TestUserInformationIsBasicAuthentication: what stands in the route's URL, percent-encoded there.
func TestUserInformationIsBasicAuthentication(t *testing.T) {
	var user, password string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
	}))
	defer server.Close()
	for _, want := range []*url.Userinfo{
		url.UserPassword("me", "hunter2"), url.UserPassword("a@b", "p:/%"), url.User("token"),
	} {
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = want
		user, password = "", ""
		s := deliver(t, t.Context(), Route{URL: u.String()})
		p, _ := want.Password()
		queuetest.Compare(t, "the event", s.Event, shaper.Succeed)
		queuetest.Compare(t, "the credentials", []string{user, password}, []string{want.Username(), p})
	}
}

func TestProxyVariablesAreIgnored(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	d := newHTTPDeliverer(Route{URL: "http://upstream.test"}.withDefaults(), answerCosts{pooled: noPool})
	// Loopback is never proxied, so the transport is asked instead of a server.
	if d.upstream.Load().Transport.Proxy != nil {
		t.Error("a proxy is used")
	}
}

func TestLargeBodyIsCut(t *testing.T) {
	s := deliverTo(t, Route{}, func(w http.ResponseWriter, _ *http.Request) {
		chunk := bytes.Repeat([]byte("x"), 64<<10)
		for range 1 << 14 { // a gigabyte, if anybody reads it
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	queuetest.Compare(t, "the event", s.Event, shaper.Succeed)
	queuetest.Compare(t, "the bytes kept", len(s.Response.Body), outbound.MaxBody)
	queuetest.Compare(t, "truncated", s.Response.Truncated, true)
}

func TestBodyAtTheBoundIsWhole(t *testing.T) {
	s := deliverTo(t, Route{}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, outbound.MaxBody))
	})
	if len(s.Response.Body) != outbound.MaxBody || s.Response.Truncated {
		t.Errorf("%d bytes kept, truncated %v", len(s.Response.Body), s.Response.Truncated)
	}
}

func TestConnectionIsUsedAgain(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, outbound.MaxDrain)) // more than is kept, not more than is drained
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	d := newHTTPDeliverer(Route{URL: server.URL}.withDefaults(), answerCosts{pooled: noPool})
	defer d.upstream.Load().Close()
	for range 5 {
		if s := d.Deliver(t.Context(), lease()); s.Event != shaper.Succeed {
			t.Fatalf("%+v", s.Error)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for 5 deliveries, want 1", n)
	}
}

func TestGzipIsLeftAlone(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Close()
	s := deliverTo(t, Route{}, func(w http.ResponseWriter, r *http.Request) {
		if e := r.Header.Get("Accept-Encoding"); e != "" {
			t.Errorf("Accept-Encoding %q", e)
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	})
	if !bytes.Equal(s.Response.Body, bomb.Bytes()) {
		t.Errorf("%d bytes kept of %d sent", len(s.Response.Body), bomb.Len())
	}
}

func TestHangingUpstreamTimesOut(t *testing.T) {
	for name, first := range map[string]string{
		"before the headers": "", "in the headers": "HTTP/1.1 200 OK\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, first)
				_, _ = io.Copy(io.Discard, conn) // until the client gives up
			})
			s := deliver(t, t.Context(), Route{URL: "http://" + addr, Timeout: 50 * time.Millisecond})
			if s.Event != shaper.Retry || s.Error.Message != "no answer within 50ms" {
				t.Errorf("%s, %+v", s.Event, s.Error)
			}
		})
	}
}

func TestBodyThatBreaksOffIsStillASuccess(t *testing.T) {
	for name, rest := range map[string]bool{"hangs": true, "is cut": false} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhello")
				if rest {
					_, _ = io.Copy(io.Discard, conn)
				}
			})
			s := deliver(t, t.Context(), Route{URL: "http://" + addr, Timeout: time.Second})
			queuetest.Compare(t, "the event", s.Event, shaper.Succeed)
			queuetest.Compare(t, "the response", s.Response,
				&queue.Response{Status: 200, Body: []byte("hello"), Truncated: true})
		})
	}
}

func TestBadAnswersAreFailedAttempts(t *testing.T) {
	const unreadable = "the upstream's answer is not valid HTTP, or its headers are too large"
	tests := map[string]struct {
		serve   func(net.Conn)
		message string
	}{
		"closed at once": {func(net.Conn) {}, "the upstream closed the connection without an answer"},
		"not HTTP": {func(c net.Conn) {
			_, _ = io.WriteString(c, "amount: hunter2\r\n\r\n")
		}, unreadable},
		"endless headers": {func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; err == nil; i++ {
				_, err = fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("a", 1000))
			}
		}, unreadable},
		"endless interim answers": {func(c net.Conn) {
			var err error
			for err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
			}
		}, unreadable},
		"endless continue": {func(c net.Conn) {
			var err error
			for err == nil {
				_, err = io.WriteString(c, strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 40))
			}
		}, unreadable},
		"endless status line": {func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 200 ")
			for err == nil {
				_, err = io.WriteString(c, strings.Repeat("K", 1000))
			}
		}, unreadable},
		"one endless header": {func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
			for err == nil {
				_, err = io.WriteString(c, strings.Repeat("a", 1000))
			}
		}, unreadable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, tt.serve)
			s := deliver(t, t.Context(), Route{URL: "http://" + addr})
			queuetest.Compare(t, "the event", s.Event, shaper.Retry)
			queuetest.Compare(t, "the error", messageOf(s), tt.message)
			queuetest.Compare(t, "the attempts of the route", s.MaxAttempts, 10)
			if s.Delay <= 0 {
				t.Errorf("the delay is %v, want a backoff", s.Delay)
			}
		})
	}
}

// TestHostileUpstreams is the upstream's side of target S3: whatever comes, and however slowly, a
// delivery ends within the route's timeout, with little memory. Where the status has come, it
// counts.
func TestHostileUpstreams(t *testing.T) {
	const timeout = 300 * time.Millisecond
	head := func(more string) string { return "HTTP/1.1 200 OK\r\n" + more + "\r\n" }
	again := func(first, text string, pause time.Duration) func(net.Conn) {
		return func(c net.Conn) {
			_, err := io.WriteString(c, first)
			for bytes := []byte(text); err == nil; <-time.After(pause) {
				_, err = c.Write(bytes)
			}
		}
	}
	mega := strings.Repeat("a", 1<<20)
	for name, c := range map[string]struct {
		serve     func(net.Conn)
		delivered bool
		kept      int // bytes of the body at the least
	}{
		"body without end": {
			again(head("Content-Length: 1099511627776\r\n"), mega, 0), true, outbound.MaxBody,
		},
		"body until closed": {again(head(""), mega, 0), true, outbound.MaxBody},
		"chunks without end": {
			again(head("Transfer-Encoding: chunked\r\n"), "100000\r\n"+mega+"\r\n", 0), true,
			outbound.MaxBody,
		},
		"a chunk for each byte": {
			again(head("Transfer-Encoding: chunked\r\n"), strings.Repeat("1\r\na\r\n", 1000), 0), true, 1,
		},
		"extension of a chunk": {again(head("Transfer-Encoding: chunked\r\n")+"1;", mega, 0), true, 0},
		"trailers without end": {
			again(head("Transfer-Encoding: chunked\r\n")+"1\r\na\r\n0\r\n", "X-A: "+mega+"\r\n", 0), true, 1,
		},
		"gzip bomb": {
			again(head("Content-Encoding: gzip\r\n"), string(bomb(t, 16<<20)), 0), true, outbound.MaxBody,
		},
		"a byte of the body at a time": {
			again(head("Content-Length: 100000\r\n"), "a", 5*time.Millisecond), true, 1,
		},
		"a byte of the headers at a time": {again("HTTP/1.1 200 OK\r\nX: ", "a", 5*time.Millisecond), false, 0},
		"interim answers, slowly":         {again("", "HTTP/1.1 100 Continue\r\n\r\n", 5*time.Millisecond), false, 0},
		"redirect without end":            {again("HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", mega, 0), false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, c.serve)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			s := deliver(t, t.Context(), Route{URL: "http://" + addr, Timeout: timeout})
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if took > timeout+2*time.Second { // what a busy machine adds
				t.Errorf("took %v", took)
			}
			if (s.Event == shaper.Succeed) != c.delivered {
				t.Errorf("%s, %+v", s.Event, s.Error)
			}
			if s.Response != nil && (len(s.Response.Body) > outbound.MaxBody || len(s.Response.Body) < c.kept) {
				t.Errorf("%d bytes kept", len(s.Response.Body))
			}
			// Everything that was allocated meanwhile, by the other side too.
			if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
				t.Errorf("%d bytes allocated", n)
			}
		})
	}
}

// bomb returns size zeros, compressed with gzip.
func bomb(t *testing.T, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSwitchingProtocolsIsDeadAndDoesNotHang(t *testing.T) {
	addr := rawServer(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	})
	s := deliver(t, t.Context(), Route{URL: "http://" + addr})
	if s.Event != shaper.Die || s.Error.Status != 101 {
		t.Errorf("%s, %+v", s.Event, s.Error)
	}
}

func TestRefusedConnection(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	s := deliver(t, t.Context(), Route{URL: (&url.URL{
		Scheme: "http", Host: addr, User: url.UserPassword("me", "hunter2"),
	}).String()})
	queuetest.Compare(t, "the event", s.Event, shaper.Retry)
	detail := s.Error.Detail
	if !strings.Contains(detail, "connection refused") || strings.Contains(detail, "me:") {
		t.Errorf("the detail is %q, want the cause without the credentials", detail)
	}
	// Clients see the message, which reveals nothing of the operator's network.
	queuetest.Compare(t, "what clients see", messageOf(s), "connection failed")
}

func TestUntrustedCertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	s := deliver(t, t.Context(), Route{URL: server.URL})
	queuetest.Compare(t, "the event", s.Event, shaper.Retry)
	queuetest.Compare(t, "the error", messageOf(s), "TLS handshake failed")
	if !strings.Contains(s.Error.Detail, "certificate") {
		t.Errorf("the detail is %q, want it to name the certificate", s.Error.Detail)
	}
}

func TestStoppedWorkerCutsTheDeliveryOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	addr := rawServer(t, func(conn net.Conn) {
		cancel()
		_, _ = io.Copy(io.Discard, conn)
	})
	s := deliver(t, ctx, Route{URL: "http://" + addr})
	if s.Event != shaper.Retry || s.Error.Message != "the worker stopped before the upstream had answered" {
		t.Errorf("%s, %+v", s.Event, s.Error)
	}
}

func TestKeptHeadersAreBounded(t *testing.T) {
	s := deliverTo(t, Route{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", strings.Repeat("x", 20<<10))
		w.WriteHeader(http.StatusBadRequest)
	})
	if n := len(s.Response.Headers["content-type"]); n != outbound.MaxStoredHeader {
		t.Errorf("%d bytes kept", n)
	}
}

func TestPercentEncode(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"acme":                "acme",
		"A-Z.a_z:0@9-":        "A-Z.a_z:0@9-",
		"a b":                 "a%20b",
		"100%":                "100%25",
		"é":                   "%C3%A9",
		"\x00\r\n\xff":        "%00%0D%0A%FF",
		"a/b?c=d&e+f~g{h}#\"": "a%2Fb%3Fc%3Dd%26e%2Bf%7Eg%7Bh%7D%23%22",
	} {
		if got := percentEncode(in); got != want {
			t.Errorf("percentEncode(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzPercentEncode(f *testing.F) {
	f.Add("acme")
	f.Add("a b%\xff\n")
	f.Fuzz(func(t *testing.T, s string) {
		encoded := percentEncode(s)
		if !regexp.MustCompile(`^(%[0-9A-F]{2}|[A-Za-z0-9._:@-])*$`).MatchString(encoded) {
			t.Errorf("%q becomes %q", s, encoded)
		}
		if back, err := url.PathUnescape(encoded); err != nil || back != s {
			t.Errorf("%q comes back as %q, %v", s, back, err)
		}
	})
}

// rawServer reads one request on every connection and hands the connection to serve, which need not
// speak HTTP.
func rawServer(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			head := make([]byte, 64<<10)
			if _, err := conn.Read(head); err == nil {
				serve(conn)
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().String()
}

// TestPathsBelowTheURL: a path goes behind that of the URL as it was encoded. One that the route
// does not allow now is sent nowhere.
func TestPathsBelowTheURL(t *testing.T) {
	for _, c := range []struct {
		base, path, want string
		paths            bool
	}{
		{"", "/a%2Fb", "/a%2Fb", true},
		{"/", "/a", "/a", true},
		{"/base%20x/?key=1", "/a//b", "/base%20x/a//b?key=1", true},
		{"/base", "", "/base", true},
		{"/base", "/a", "", false},
		{"/base", "/../a", "", true},
		{"/base", "/a\r\nX: 1", "", true},
	} {
		got := ""
		upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RequestURI }))
		l := lease()
		l.Path = c.path
		d := newHTTPDeliverer(Route{URL: upstream.URL + c.base, Paths: c.paths}.withDefaults(), answerCosts{pooled: noPool})
		s := d.Deliver(t.Context(), l)
		upstream.Close()
		if got != c.want || (s.Event == shaper.Die) != (c.want == "") {
			t.Errorf("%+v: reached %q, %s %+v", c, got, s.Event, s.Error)
		}
	}
}
