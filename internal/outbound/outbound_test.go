package outbound_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/outbound"
)

func newClient(t *testing.T, o outbound.Options) *outbound.Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = time.Minute
	}
	if o.MaxAge == 0 {
		o.MaxAge = time.Hour
	}
	o.Connections = 8
	c := outbound.New("worker", "upstream", o)
	t.Cleanup(c.Transport.CloseIdleConnections)
	return c
}

// send makes one request, and returns its answer's body, and why there is none.
func send(t *testing.T, c *outbound.Client, method, url, body string, header http.Header) (string, outbound.NoAnswer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	_, answer, _, err := c.Send(req, []byte(body), 1<<10)
	no, _ := errors.AsType[outbound.NoAnswer](err)
	return string(answer), no
}

// upstream is a server that reads requests as they come over the wire.
type upstream struct {
	url string
	mu  sync.Mutex
	got []string // the first lines and headers of requests
}

// raw starts an upstream. serve gets each request of each connection with its number there, and
// returns the answer; an empty one closes the connection.
func raw(t *testing.T, serve func(nth int, request string) (answer string)) *upstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{url: "http://" + l.Addr().String()}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for nth := 1; ; nth++ {
					head := ""
					for !strings.HasSuffix(head, "\r\n\r\n") {
						line, err := r.ReadString('\n')
						if err != nil {
							return
						}
						head += line
					}
					var length int
					for line := range strings.SplitSeq(head, "\r\n") {
						_, _ = fmt.Sscanf(line, "Content-Length: %d", &length)
					}
					_, _ = io.CopyN(io.Discard, r, int64(length))
					u.mu.Lock()
					u.got = append(u.got, head)
					u.mu.Unlock()
					answer := serve(nth, head)
					if answer == "" {
						return
					}
					_, _ = io.WriteString(conn, answer)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return u
}

func (u *upstream) requests() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string{}, u.got...)
}

const answered = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// TestOneSending: a request that was written is never sent again, whatever its method, body and
// headers are and however a connection that was used before ends. On a new connection nothing was
// repeated before either.
func TestOneSending(t *testing.T) {
	u := raw(t, func(nth int, _ string) string {
		if nth > 1 {
			return ""
		}
		return answered
	})
	c := newClient(t, outbound.Options{})
	keys := []http.Header{nil, {"Idempotency-Key": {"k"}}, {"X-Idempotency-Key": {"k"}}}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"} {
		for _, body := range []string{"", "order=1"} {
			for _, key := range keys {
				c.Transport.CloseIdleConnections()
				if _, no := send(t, c, "GET", u.url, "", nil); no.Message != "" {
					t.Fatal(no)
				}
				before := len(u.requests())
				_, no := send(t, c, method, u.url+"/x", body, key)
				if no.Message != "the upstream closed the connection without an answer" &&
					no.Message != "the connection broke before the upstream had answered" || no.Unsent {
					t.Errorf("%s %q %v: %+v", method, body, key, no)
				}
				if n := len(u.requests()) - before; n != 1 {
					t.Errorf("%s %q %v: sent %d times", method, body, key, n)
				}
			}
		}
	}
}

// TestAsWritten: what the protections change is not seen by the upstream.
func TestAsWritten(t *testing.T) {
	u := raw(t, func(int, string) string { return answered })
	c := newClient(t, outbound.Options{})
	for _, one := range []struct{ method, body, has, hasNot string }{
		{"GET", "", "GET / HTTP/1.1", "ontent-length transfer-encoding"},
		{"OPTIONS", "", "OPTIONS / HTTP/1.1", "content-length transfer-encoding"},
		{"GET", "b", "content-length: 1", "transfer-encoding"},
		{"POST", "", "content-length: 0", "transfer-encoding"},
		{"DELETE", "", "DELETE / HTTP/1.1", "transfer-encoding"},
		{"PATCH", "abc", "content-length: 3", "transfer-encoding"},
		{"POST", "abc", "idempotency-key: k", "transfer-encoding"},
	} {
		if _, no := send(t, c, one.method, u.url, one.body, http.Header{"Idempotency-Key": {"k"}}); no.Message != "" {
			t.Fatalf("%s: %v", one.method, no)
		}
		got := u.requests()
		head := strings.ToLower(got[len(got)-1])
		if !strings.Contains(head, strings.ToLower(one.has)) {
			t.Errorf("%s %q has no %q:\n%s", one.method, one.body, one.has, head)
		}
		for name := range strings.FieldsSeq(one.hasNot) {
			if strings.Contains(head, name+":") {
				t.Errorf("%s %q has %s:\n%s", one.method, one.body, name, head)
			}
		}
	}
}

// TestUnusedConnections: a connection that the upstream closed while it was unused, that it will
// close soon, that is too old or that may be signed in gets no further request, and none is lost
// for it.
func TestUnusedConnections(t *testing.T) {
	connections := func(t *testing.T, o outbound.Options, answer string, header http.Header) int {
		var opened atomic.Int64
		u := raw(t, func(nth int, _ string) string {
			if nth == 1 {
				opened.Add(1)
			}
			return answer
		})
		c := newClient(t, o)
		for range 3 {
			if _, no := send(t, c, "POST", u.url, "b", header); no.Message != "" {
				t.Errorf("%+v", no)
			}
		}
		return int(opened.Load())
	}
	with := func(header string) string { return strings.Replace(answered, "\r\n\r\n", "\r\n"+header+"\r\n\r\n", 1) }
	for _, one := range []struct {
		name, answer string
		o            outbound.Options
		header       http.Header
		want         int
	}{
		{"an ordinary one", answered, outbound.Options{}, nil, 1},
		{"kept for an hour", with("Keep-Alive: timeout=3600, max=100"), outbound.Options{}, nil, 1},
		{"closed at once", with("Keep-Alive: timeout=0"), outbound.Options{}, nil, 3},
		{"too old", answered, outbound.Options{MaxAge: time.Nanosecond}, nil, 3},
		{"signed in by NTLM", answered, outbound.Options{}, http.Header{"Authorization": {"NTLM TlRMTVNTUAAB"}}, 3},
		{"signed in by Negotiate", answered, outbound.Options{}, http.Header{"Authorization": {"negotiate YII"}}, 3},
		{"asks for NTLM", with("WWW-Authenticate: Basic realm=x, NTLM"), outbound.Options{}, nil, 3},
		{"a bearer", with("WWW-Authenticate: Bearer"), outbound.Options{}, http.Header{"Authorization": {"Bearer ntlm"}}, 1},
	} {
		if got := connections(t, one.o, one.answer, one.header); got != one.want {
			t.Errorf("%s: %d connections for 3 requests, want %d", one.name, got, one.want)
		}
	}
}

// TestConnectionOptions: the headers that Connection names are known also where it contains close.
func TestConnectionOptions(t *testing.T) {
	u := raw(t, func(int, string) string {
		return "HTTP/1.1 103 Early Hints\r\nConnection: x-early\r\n\r\n" +
			"HTTP/1.1 200 OK\r\nConnection: X-Secret, close\r\nX-Secret: 1\r\nContent-Length: 0\r\n\r\n"
	})
	c := newClient(t, outbound.Options{})
	req, err := http.NewRequestWithContext(t.Context(), "GET", u.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, _, _, err := c.Send(req, nil, 1)
	if err != nil || strings.Join(resp.Header["Connection"], ",") != "X-Secret, close" {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestSurplus: bytes behind an answer never begin the answer to another request.
func TestSurplus(t *testing.T) {
	const evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL"
	answers := map[string]string{
		"HEAD": "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + evil,
		"POST": "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + evil,
		"GET":  answered,
	}
	u := raw(t, func(_ int, request string) string {
		method, _, _ := strings.Cut(request, " ")
		return answers[method]
	})
	c := newClient(t, outbound.Options{})
	for range 200 {
		for _, method := range []string{"HEAD", "GET", "POST", "GET"} {
			want := map[string]string{"HEAD": "", "GET": "ok", "POST": "ok"}[method]
			if got, no := send(t, c, method, u.url, "", nil); got != want || no.Message != "" {
				t.Fatalf("%s: %q, %v", method, got, no)
			}
		}
	}
}

// TestFailures: messages name what failed, and Unsent is exact.
func TestFailures(t *testing.T) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	quiet := func(s *httptest.Server) *httptest.Server {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		return s
	}
	secure := quiet(httptest.NewUnstartedServer(nothing))
	secure.TLS = &tls.Config{MaxVersion: tls.VersionTLS12, MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert}
	secure.StartTLS()
	defer secure.Close()
	old := quiet(httptest.NewUnstartedServer(nothing))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10} // #nosec G402 -- an old upstream
	old.StartTLS()
	defer old.Close()
	certain := quiet(httptest.NewUnstartedServer(nothing))
	certain.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert}
	certain.StartTLS()
	defer certain.Close()
	plain := raw(t, func(int, string) string { return answered })
	web := quiet(httptest.NewUnstartedServer(nothing))
	web.Start()
	defer web.Close()
	garbage := raw(t, func(int, string) string { return "what?\r\n\r\n" })
	pool := x509.NewCertPool()
	for _, s := range []*httptest.Server{secure, old, certain} {
		pool.AddCert(s.Certificate())
	}
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	dialing := func(err error) func(*outbound.Client) {
		return func(c *outbound.Client) {
			c.Transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", err)}
			}
		}
	}
	lookup := func(err *net.DNSError) func(*outbound.Client) {
		return func(c *outbound.Client) {
			c.Transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
			}
		}
	}
	trusting := func(c *outbound.Client) {
		c.Transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	const lacking = "no connection could be made: this machine lacks the means"
	for _, one := range []struct {
		name, url, message string
		unsent, shortage   bool
		change             func(*outbound.Client)
	}{
		{"nobody listens", "http://" + refused.Addr().String(), "connection failed", true, false, nil},
		{"an unknown authority", secure.URL, "TLS handshake failed", true, false, nil},
		{"wants a certificate", secure.URL, "TLS handshake failed", true, false, trusting},
		{"an old version", old.URL, "TLS handshake failed", true, false, trusting},
		{"wants one behind the request", certain.URL, "the upstream ended the TLS connection without an answer", false, false, trusting},
		{"speaks no TLS", strings.Replace(web.URL, "http:", "https:", 1), "TLS handshake failed", true, false, nil},
		{"speaks no HTTP", garbage.url, "the upstream's answer is not valid HTTP, or its headers are too large", false, false, nil},
		{"no descriptors", plain.url, lacking, true, true, dialing(syscall.EMFILE)},
		{"no descriptors at all", plain.url, lacking, true, true, dialing(syscall.ENFILE)},
		{"no ports", plain.url, lacking, true, true, dialing(syscall.EADDRNOTAVAIL)},
		{"no network", plain.url, lacking, true, true, dialing(syscall.ENETUNREACH)},
		{"no such host in reach", plain.url, "connection failed", true, false, dialing(syscall.EHOSTUNREACH)},
		{"no resolver", plain.url, lacking, true, true, lookup(&net.DNSError{Err: "i/o timeout", IsTimeout: true})},
		{"no such name", plain.url, "connection failed", true, false, lookup(&net.DNSError{Err: "no such host", IsNotFound: true})},
	} {
		c := newClient(t, outbound.Options{})
		if one.change != nil {
			one.change(c)
		}
		_, no := send(t, c, "POST", one.url, "b", nil)
		if no.Unsent && one.url == certain.URL { // the alert may also be there before the request is written
			one.unsent, one.message = true, "TLS handshake failed"
		}
		if no.Message != one.message || no.Unsent != one.unsent || no.Shortage != one.shortage {
			t.Errorf("%s: %q, detail %q, unsent %v, shortage %v", one.name, no.Message, no.Detail, no.Unsent, no.Shortage)
		}
	}
}

// slow is a connection that, once secured, is read and closed when it is said.
type slow struct {
	net.Conn
	broken            bool // writes fail before the upstream's refusal is read
	secured           atomic.Bool
	release           sync.Once
	reads, ends, fail sync.WaitGroup
}

func (s *slow) Read(p []byte) (int, error) {
	if s.secured.Load() {
		s.reads.Wait()
	}
	return s.Conn.Read(p)
}

// Write gets the notice of the end alone, or with broken the request.
func (s *slow) Write(p []byte) (int, error) {
	switch {
	case !s.secured.Load():
		return s.Conn.Write(p)
	case s.broken:
		s.release.Do(s.reads.Done)
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	s.ends.Done()
	s.fail.Wait()
	return s.Conn.Write(p)
}

// TestCauseOfAnEnd: where the upstream refuses a certificate before the request is written, the
// refusal is the cause, and not that the connection is closed or broken.
func TestCauseOfAnEnd(t *testing.T) {
	certain := httptest.NewUnstartedServer(http.NotFoundHandler())
	certain.Config.ErrorLog = log.New(io.Discard, "", 0)
	certain.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert}
	certain.StartTLS()
	defer certain.Close()
	pool := x509.NewCertPool()
	pool.AddCert(certain.Certificate())
	for _, broken := range []bool{false, true} {
		c := newClient(t, outbound.Options{TLS: &tls.Config{RootCAs: pool}})
		dial := c.Transport.DialContext
		conn := slow{broken: broken}
		conn.reads.Add(1)
		conn.ends.Add(1)
		conn.fail.Add(1)
		c.Transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			var err error
			conn.Conn, err = dial(ctx, network, address)
			return &conn, err
		}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			TLSHandshakeDone: func(tls.ConnectionState, error) { conn.secured.Store(true) },
			WroteHeaders: func() { // into a buffer
				if !broken {
					conn.reads.Done()
					conn.ends.Wait()
				}
			},
			WroteRequest: func(httptrace.WroteRequestInfo) { conn.fail.Done() },
		})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, certain.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _, _, err = c.Send(req, make([]byte, 64<<10), 1<<10)
		no, _ := errors.AsType[outbound.NoAnswer](err)
		if no.Message != "TLS handshake failed" || !strings.Contains(no.Detail, "certificate required") || !no.Unsent {
			t.Errorf("broken %v: %q, detail %q, unsent %v", broken, no.Message, no.Detail, no.Unsent)
		}
	}
}

// TestNoProxy: no proxy variable redirects deliveries, forwarded requests and callbacks, which all
// use this client. The variables never concern loopback; 0.0.0.0 leads there, and is another
// address to them.
func TestNoProxy(t *testing.T) {
	proxy := raw(t, func(int, string) string { return answered })
	t.Setenv("HTTP_PROXY", proxy.url)
	u := raw(t, func(int, string) string { return answered })
	c := newClient(t, outbound.Options{})
	if _, no := send(t, c, "GET", strings.Replace(u.url, "127.0.0.1", "0.0.0.0", 1), "", nil); no.Message != "" {
		t.Error(no)
	}
	if direct, redirected := len(u.requests()), len(proxy.requests()); direct != 1 || redirected != 0 {
		t.Errorf("%d requests come directly and %d through the proxy", direct, redirected)
	}
}
