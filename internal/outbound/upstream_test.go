package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func target(t *testing.T, raw string) *url.URL {
	t.Helper()
	to, err := Target(raw)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// post makes a delivery and returns its answer's status and body.
func post(t *testing.T, u *Upstream, url string) (int, string) {
	t.Helper()
	a, err := u.Post(t.Context(), target(t, url), "id", []byte(`{"n":1}`), func(*http.Request) {}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a.Status, string(a.Body)
}

func options() Options {
	return Options{Timeout: 10 * time.Second, Connections: 8, IdleTimeout: time.Minute, MaxAge: time.Minute}
}

// echo answers with what it got.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %q %s %s %s", r.Proto, r.Method, body, r.Header.Get("Content-Type"), r.Header.Get("X-Key"), r.RequestURI)
}

// The route's headers replace others of the same name, and its method decides whether there is a
// body.
func TestMethodAndHeaders(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	for method, want := range map[string]string{
		"":       `HTTP/1.1 POST "{\"n\":1}" application/json k1 /x`,
		"PUT":    `HTTP/1.1 PUT "{\"n\":1}" application/json k1 /x`,
		"PATCH":  `HTTP/1.1 PATCH "{\"n\":1}" application/json k1 /x`,
		"DELETE": `HTTP/1.1 DELETE ""  k1 /x`,
		"GET":    `HTTP/1.1 GET ""  k1 /x`,
	} {
		u := NewUpstream(UpstreamOptions{Options: options(), Method: method, Headers: map[string]string{"x-key": "k1"}}, nil)
		a, err := u.Post(t.Context(), target(t, s.URL+"/x"), "id", []byte(`{"n":1}`), func(r *http.Request) {
			r.Header["X_key"] = []string{"mine"}
		}, nil)
		if err != nil || string(a.Body) != want {
			t.Errorf("%q: %v %q, want %q", method, err, a.Body, want)
		}
		u.Close()
	}
}

// gate is an upstream that accepts one token, and its authorization server.
type gate struct {
	*httptest.Server
	good           atomic.Int64 // the number of the token that it accepts; 0: any
	issued, served atomic.Int64
	away           atomic.Bool
}

func newGate(t *testing.T) *gate {
	g := &gate{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token" && g.away.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/token":
			if id, secret, _ := r.BasicAuth(); id != "me" || secret != "s3cret" || r.FormValue("audience") != "orders" || r.FormValue("scope") != "a b" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"access_token":"t%d","token_type":"bearer","expires_in":3600}`, g.issued.Add(1))
		default:
			if good := g.good.Load(); good != 0 && r.Header.Get("Authorization") != fmt.Sprint("Bearer t", good) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			g.served.Add(1)
			fmt.Fprint(w, r.Header.Get("Authorization"))
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gate) upstream() UpstreamOptions {
	return UpstreamOptions{Options: options(), OAuth2: &OAuth2{
		TokenURL: g.URL + "/token", ClientID: "me", ClientSecret: "s3cret", Scopes: []string{"a", "b"}, Audience: "orders",
	}}
}

// A token that the upstream refuses is replaced within the attempt. The second refusal is the
// upstream's answer. Without a token nothing is sent.
func TestToken(t *testing.T) {
	g := newGate(t)
	u := NewUpstream(g.upstream(), nil)
	defer u.Close()
	if status, body := post(t, u, g.URL); status != 200 || body != "(hidden)" {
		t.Errorf("the first: %d %q", status, body)
	}
	g.good.Store(2)
	if status, body := post(t, u, g.URL); status != 200 || body != "(hidden)" {
		t.Errorf("after a refusal: %d %q", status, body)
	}
	g.good.Store(99)
	if status, _ := post(t, u, g.URL); status != 401 || g.issued.Load() != 3 {
		t.Errorf("refused twice: %d, %d tokens", status, g.issued.Load())
	}
	g.away.Store(true)
	_, err := u.Post(t.Context(), target(t, g.URL), "id", nil, func(*http.Request) {}, nil)
	if !errors.As(err, new(NoToken)) {
		t.Errorf("refused while no other token can be had: %v", err)
	}
	fresh := NewUpstream(g.upstream(), nil)
	defer fresh.Close()
	_, err = fresh.Post(t.Context(), target(t, g.URL), "id", nil, func(*http.Request) {}, nil)
	if no, is := errors.AsType[NoToken](err); !is || no.Retry <= 0 || !strings.Contains(no.Error(), "503") {
		t.Errorf("without a token: %v", err)
	}
	if g.served.Load() != 2 {
		t.Errorf("the upstream served %d deliveries", g.served.Load())
	}
	// A new header keeps the token and the connections, another secret does not.
	o := g.upstream()
	o.Headers = map[string]string{"X-New": "1"}
	if next := NewUpstream(o, u); next.tokens != u.tokens || next.Client != u.Client {
		t.Error("a new header made it fetch another token")
	}
	o.OAuth2.ClientSecret = "other"
	if next := NewUpstream(o, u); next.tokens == u.tokens || next.Client != u.Client {
		t.Error("another secret kept the token of the former one")
	}
}

// The authorization server gets its credentials once: no redirect takes them elsewhere.
func TestTokenFollowsNoRedirect(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	defer thief.Close()
	s := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	u := NewUpstream(UpstreamOptions{Options: options(), OAuth2: &OAuth2{TokenURL: s.URL, ClientID: "me", ClientSecret: "s"}}, nil)
	defer u.Close()
	if _, err := u.Post(t.Context(), target(t, s.URL), "id", nil, func(*http.Request) {}, nil); err == nil || stolen.Load() != 0 {
		t.Errorf("%v, and the target of the redirect got %d requests", err, stolen.Load())
	}
}

// secured starts an upstream with TLS, and returns the settings that trust it.
func secured(t *testing.T, http2, asks bool) (*httptest.Server, *tls.Config) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	s.EnableHTTP2 = http2
	if s.TLS = (&tls.Config{}); asks {
		s.TLS.ClientAuth = tls.RequireAnyClientCert
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, &tls.Config{RootCAs: roots, ServerName: "example.com"}
}

// An upstream is verified, and gets the client certificate. HTTP/2 is used where it has it and the
// route allows it.
func TestTLS(t *testing.T) {
	for _, has := range []bool{true, false} {
		for _, allowed := range []bool{true, false} {
			s, trust := secured(t, has, false)
			o := options()
			o.TLS, o.HTTP2 = trust, allowed
			u := NewUpstream(UpstreamOptions{Options: o, Method: "PUT"}, nil)
			want := "HTTP/1.1"
			if has && allowed {
				want = "HTTP/2.0"
			}
			for range 3 {
				if _, body := post(t, u, s.URL+"/x"); body != want+` PUT "{\"n\":1}" application/json  /x` {
					t.Errorf("HTTP/2 there %v, allowed %v: %s", has, allowed, body)
				}
			}
			u.Close()
		}
	}
	s, trust := secured(t, true, true)
	o := options()
	o.HTTP2 = true
	for name, c := range map[string]struct {
		tls  *tls.Config
		want string
	}{
		"an unknown authority":   {nil, "TLS handshake failed"},
		"no client certificate":  {trust, "TLS connection without an answer or the connection broke"},
		"a client certificate":   {&tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com", Certificates: s.TLS.Certificates}, ""},
		"the name of another":    {&tls.Config{RootCAs: trust.RootCAs, ServerName: "other.test"}, "TLS handshake failed"},
		"an old version allowed": {&tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "connection failed"},
	} {
		o.TLS = c.tls
		u := NewUpstream(UpstreamOptions{Options: o}, nil)
		_, err := u.Post(t.Context(), target(t, s.URL), "id", nil, func(*http.Request) {}, nil)
		no, _ := errors.AsType[NoAnswer](err)
		if (err == nil) != (c.want == "") || !slices.ContainsFunc(strings.Split(c.want, " or "), func(want string) bool { return strings.Contains(no.Message, want) }) {
			t.Errorf("%s: %v (%s)", name, err, no.Message)
		}
		if asked := strings.Contains(no.Detail, "asks for a client certificate, and none is set"); asked != (name == "no client certificate") {
			t.Errorf("%s: %s", name, no.Detail)
		}
		u.Close()
	}
}

// With HTTP/2, too, a connection gets no further request after its greatest age.
func TestAgeOfSharedConnections(t *testing.T) {
	s, trust := secured(t, true, false)
	var conns atomic.Int64
	o := options()
	o.TLS, o.HTTP2, o.MaxAge = trust, true, time.Hour
	u := NewUpstream(UpstreamOptions{Options: o}, nil)
	defer u.Close()
	dial := u.Transport.DialContext
	u.Transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conns.Add(1)
		return dial(ctx, network, address)
	}
	for range 3 {
		post(t, u, s.URL)
	}
	u.shared.Load().began = time.Now().Add(-2 * time.Hour)
	for range 3 {
		post(t, u, s.URL)
	}
	if conns.Load() != 2 {
		t.Errorf("%d connections, want one, and another after its age", conns.Load())
	}
}

// proxy is an HTTP proxy that asks for a password.
func proxy(t *testing.T) (address *url.URL, asked *atomic.Value) {
	asked = &atomic.Value{}
	asked.Store("")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "Basic bWU6cHc=" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		asked.Store(r.Method + " " + r.RequestURI)
		if r.Method != http.MethodConnect {
			echo(w, r)
			return
		}
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		from, _, _ := http.NewResponseController(w).Hijack()
		fmt.Fprint(from, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
		go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
	}))
	t.Cleanup(s.Close)
	address, _ = url.Parse(s.URL)
	return address, asked
}

// Requests go through the proxy: with TLS through a tunnel, else with the whole URL, also where the
// path is sent as the client encoded it.
func TestProxy(t *testing.T) {
	address, asked := proxy(t)
	address.User = url.UserPassword("me", "pw")
	o := options()
	o.Proxy = address.String()
	for _, http2 := range []bool{true, false} {
		s, trust := secured(t, http2, false)
		o.TLS, o.HTTP2 = trust, http2
		u := NewUpstream(UpstreamOptions{Options: o}, nil)
		if status, _ := post(t, u, s.URL+"/x"); status != 200 || asked.Load() != "CONNECT "+strings.TrimPrefix(s.URL, "https://") {
			t.Errorf("HTTP/2 %v: %d, the proxy was asked for %q", http2, status, asked.Load())
		}
		u.Close()
	}
	u := NewUpstream(UpstreamOptions{Options: o}, nil)
	defer u.Close()
	for path, opaque := range map[string]string{"/a/b": "", "/": "/a%2Fb/../c"} {
		a, err := u.Post(t.Context(), target(t, "http://upstream.test:81"+path+"?q=1"), "id", nil, func(r *http.Request) {
			if opaque != "" {
				r.URL.Opaque = opaque
			}
		}, nil)
		if want := "POST http://upstream.test:81" + max(opaque, path) + "?q=1"; err != nil || asked.Load() != want {
			t.Errorf("%s: %v, the proxy was asked for %q, want %q (%v)", path, err, asked.Load(), want, a)
		}
	}
	address.User = nil
	o.Proxy = address.String()
	s, trust := secured(t, true, false)
	o.TLS = trust
	for _, to := range []string{s.URL, strings.Replace(s.URL, "https", "http", 1)} {
		anonymous := NewUpstream(UpstreamOptions{Options: o}, nil)
		_, err := anonymous.Post(t.Context(), target(t, to), "id", nil, func(*http.Request) {}, nil)
		if no, _ := errors.AsType[NoAnswer](err); !no.Unsent || !strings.Contains(no.Detail, "407") {
			t.Errorf("a proxy that refuses, for %s: %v", to, err)
		}
		anonymous.Close()
	}
}

// What a proxy answers to CONNECT is shown to nobody: it may repeat the password.
func TestAnswersToConnect(t *testing.T) {
	upstream, trust := secured(t, false, false)
	for answer, want := range map[string]string{
		"HTTP/1.1 s3cret\r\n\r\n":       "not valid HTTP",
		"s3cret":                        "not valid HTTP",
		"":                              "not valid HTTP",
		"HTTP/1.1 200 OK\r\n\r\ns3cret": "sent bytes before the upstream could",
		"HTTP/1.1 403 s3cret\r\nX: s3cret\r\n\r\n":                "403 Forbidden",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("s3cret", 9999): "not valid HTTP",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}()
		o := options()
		o.TLS, o.Proxy = trust, "http://u:s3cret@"+l.Addr().String()
		u := NewUpstream(UpstreamOptions{Options: o}, nil)
		_, err = u.Post(t.Context(), target(t, upstream.URL), "id", nil, func(*http.Request) {}, nil)
		no, _ := errors.AsType[NoAnswer](err)
		broken := strings.Contains(no.Detail, "reset by peer") // it closed before all was read
		if !no.Unsent || !strings.Contains(no.Detail, want) && !broken || strings.Contains(no.Detail+no.Message, "s3cret") {
			t.Errorf("%.40q: %+v", answer, no)
		}
		u.Close()
		_ = l.Close()
	}
}

// An answer that repeats the credentials of the route is kept without them.
func TestEchoedCredentials(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/?key="+r.Header.Get("X-Key"))
		fmt.Fprint(w, "2026-01-05 0123456789abcdef ", r.Header.Get("Authorization"), " ", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}))
	defer s.Close()
	u := NewUpstream(UpstreamOptions{Options: options(), Headers: map[string]string{
		"X-Key": "s3cret-key", "Authorization": "Bearer s3cret-token", "X-Api-Version": "2026-01", "X-Long": "0123456789abcdef",
	}}, nil)
	defer u.Close()
	a, err := u.Post(t.Context(), target(t, s.URL), "id", nil, func(*http.Request) {}, nil)
	if err != nil || string(a.Body) != "2026-01-05 (hidden) (hidden) (hidden)" || a.Headers["location"] != "/?key=(hidden)" {
		t.Errorf("%v %+v %s", err, a, a.Body)
	}
	plain := NewUpstream(UpstreamOptions{Options: options()}, nil)
	defer plain.Close()
	a, err = plain.Post(t.Context(), target(t, s.URL), "id", nil, func(r *http.Request) { r.SetBasicAuth("user", "s3cret") }, nil)
	if err != nil || strings.Contains(string(a.Body), "dXNlcjpzM2NyZXQ") {
		t.Errorf("the user of a URL: %v %s", err, a.Body)
	}
}

// A request that a receiver refused with HTTP/2 before it looked at it is sent again.
func TestRefusedStreams(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) }))
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 4}
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	o := options()
	o.HTTP2, o.TLS = true, &tls.Config{RootCAs: roots, ServerName: "example.com"}
	for _, method := range []string{"POST", "GET"} {
		u := NewUpstream(UpstreamOptions{Options: o, Method: method}, nil)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := u.Post(t.Context(), target(t, s.URL), "id", []byte("1"), func(*http.Request) {}, nil); err != nil {
					// Such a stream may have been served, so it is not sent again.
					if no, _ := errors.AsType[NoAnswer](err); !strings.Contains(no.cause.Error(), "PROTOCOL_ERROR") {
						t.Errorf("%s: %v %v", method, err, no.cause)
					}
				}
			})
		}
		wg.Wait()
		u.Close()
	}
}

// The settings of a proxy that can be used, and those that cannot.
func TestParseProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://env.test:3128")
	t.Setenv("NO_PROXY", "inside.test")
	for setting, want := range map[string]string{"": "none none", "none": "none none", "env": "env.test:3128 none", "http://u:p@p.test:1": "p.test:1 p.test:1"} {
		p, err := ParseProxy(setting)
		if err != nil {
			t.Errorf("%q: %v", setting, err)
			continue
		}
		c := &Client{proxy: p}
		var got []string
		for _, host := range []string{"outside.test", "inside.test"} {
			u, err := c.proxyFor(&url.URL{Scheme: "https", Host: host})
			name := "none"
			if u != nil {
				name = u.Host
			}
			if got = append(got, name); err != nil {
				t.Errorf("%q for %s: %v", setting, host, err)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q is %v, want %s", setting, got, want)
		}
	}
	for _, setting := range []string{"yes", "https://p.test", "socks5://p.test", "http://", "http://p.test/path", "http://p.test?q", "p.test:3128"} {
		if _, err := ParseProxy(setting); err == nil || strings.Contains(err.Error(), "p.test/") {
			t.Errorf("%q: %v", setting, err)
		}
	}
}

// A stream that the upstream ends, and a connection that breaks, are not called an answer.
func TestBrokenStreams(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	o := options()
	o.HTTP2, o.TLS = true, &tls.Config{RootCAs: roots, ServerName: "example.com"}
	u := NewUpstream(UpstreamOptions{Options: o}, nil)
	defer u.Close()
	_, err := u.Post(t.Context(), target(t, s.URL), "id", []byte("1"), func(*http.Request) {}, nil)
	if no, _ := errors.AsType[NoAnswer](err); no.Message != "the connection broke before the upstream had answered" || no.Unsent {
		t.Errorf("%+v", no)
	}
}
