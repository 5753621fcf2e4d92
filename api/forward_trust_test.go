package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// spellings are the ways to write a name that some server takes for the same.
func spellings(name string) []string {
	name = strings.Replace(name, "*", "Any", 1)
	return []string{name, strings.ToLower(name), strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, "-", ".")}
}

// unsendable are headers that a client of net/http cannot send with any value.
var unsendable = []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Upgrade", "Expect", "Te", "Http2-Settings"}

// TestForwardTable: whatever the table says of a header is what the upstream and the client get.
func TestForwardTable(t *testing.T) {
	var claims http.Header
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range claims {
			w.Header()[name] = values
		}
	}, asIs)
	for _, rule := range httpmsg.Headers {
		for _, name := range rule.Names {
			if slices.Contains(unsendable, name) {
				continue
			}
			for _, spelt := range spellings(name) {
				claims = http.Header{spelt: {"claimed=1"}}
				req, err := http.NewRequestWithContext(t.Context(), "GET", p.listener+"/x", nil)
				if err != nil {
					t.Fatal(err)
				}
				if name != "Sluice-*" && name != "Idempotency-Key" {
					req.Header[spelt] = []string{"claimed=1"}
				}
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %s", spelt, resp.Status)
					continue
				}
				for _, way := range []struct {
					to  string
					use httpmsg.Use
					got http.Header
				}{{"the upstream", rule.ToUpstream, p.last().Header}, {"the client", rule.ToClient, resp.Header}} {
					gone := way.use == httpmsg.Removed || way.use == httpmsg.Set
					for name, values := range way.got {
						if gone && httpmsg.Is(name, spelt) && slices.Contains(values, "claimed=1") {
							t.Errorf("%s: %s reaches %s", spelt, name, way.to)
						}
					}
				}
			}
		}
	}
}

// TestForwardOperators: what signs in to Sluice never reaches an upstream.
func TestForwardOperators(t *testing.T) {
	const token = "0123456789abcdef-operators"
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) { c.AdminToken = token })
	for _, header := range []http.Header{
		{"Cookie": {"a=1; sluice_session_8081=secret; b=2"}}, {"Cookie": {"sluice_session=secret"}},
		{"Cookie": {"__Host-sluice_session=secret", "c=3"}}, {"Authorization": {"Bearer " + token}},
		{"X-Api-Key": {token}}, {"X_Api_Key": {token}},
	} {
		for _, url := range []string{p.listener + "/x", p.url + "/v1/forward/partner/x"} {
			req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = header.Clone()
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if got := fmt.Sprint(p.last().Header); strings.Contains(got, "secret") || strings.Contains(got, token) {
				t.Errorf("%v at %s: the upstream got %s", header, url, got)
			}
		}
	}
	p.ask("GET", "/v1/forward/partner/x", "", "Cookie", "a=1; sluice_session=secret; b=2", "Authorization", "Bearer other")
	if h := p.last().Header; h.Get("Cookie") != "a=1; b=2" || h.Get("Authorization") != "Bearer other" {
		t.Errorf("%v", h)
	}
}

// TestForwardOrigin: the upstream is told where a request came from as the route says.
func TestForwardOrigin(t *testing.T) {
	claims := []string{"X-Forwarded-For", "192.0.2.1", "Forwarded", "for=192.0.2.1", "X-Real-Ip", "192.0.2.1",
		"X-Forwarded-Host", "evil.example", "X_forwarded_for", "192.0.2.1", "True-Client-Ip", "192.0.2.1"}
	for _, one := range []struct {
		mode           string
		claims         []string
		list, real, of string
	}{
		{"", claims, "127.0.0.1", "", ""},
		{"", nil, "", "", ""},
		{api.AppendForwarded, claims, "192.0.2.1, 127.0.0.1", "192.0.2.1", "evil.example"},
		{api.AppendForwarded, []string{"X_Forwarded_For", "192.0.2.9"}, "127.0.0.1", "", ""},
		{api.AppendForwarded, nil, "127.0.0.1", "", ""},
		{api.PassForwarded, claims, "192.0.2.1", "192.0.2.1", "evil.example"},
	} {
		p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) { c.Routes["partner"].Forward.Forwarded = one.mode })
		p.send(t.Context(), "GET", p.listener+"/x", "", one.claims...)
		h := p.last().Header
		if h.Get("X-Forwarded-For") != one.list || h.Get("X-Real-Ip") != one.real || h.Get("X-Forwarded-Host") != one.of {
			t.Errorf("%q, %v: %v", one.mode, one.claims, h)
		}
		if one.mode != api.PassForwarded && h["X_forwarded_for"] != nil {
			t.Errorf("%q: %v", one.mode, h)
		}
		if replaced := one.mode == ""; replaced && strings.Contains(fmt.Sprint(h), "192.0.2.1") {
			t.Errorf("%v", h)
		}
	}
}

// TestForwardPreferences: Sluice takes what is meant for it, and the upstream gets the rest.
func TestForwardPreferences(t *testing.T) {
	p := proxy(t, echo, asIs)
	for sent, want := range map[string]string{
		"return=representation":                           "return=representation",
		"wait=10, return=minimal; foo=\"a, wait=1\"":      "return=minimal; foo=\"a, wait=1\"",
		"respond-async;x, handling=lenient, WAIT = \"5\"": "handling=lenient",
		"wait=10": "",
	} {
		resp, _ := p.ask("GET", "/v1/forward/partner/x", "", "Prefer", sent)
		if resp.StatusCode == http.StatusAccepted {
			p.ask("GET", resp.Header.Get("Location"), "", "Prefer", "wait=10")
		}
		if got := p.last().Header.Get("Prefer"); got != want {
			t.Errorf("%q is sent as %q, want %q", sent, got, want)
		}
	}
}

// TestForwardMethods: what must not be passed on reaches nobody. A target in absolute form is that
// of a client which takes Sluice for its proxy.
func TestForwardMethods(t *testing.T) {
	p := proxy(t, echo, asIs)
	resp, body := p.ask("TRACE", "/v1/forward/partner/x", "")
	p.want("TRACE", http.StatusNotImplemented, "not-forwarded", resp, body)
	resp, body = p.send(t.Context(), "TRACE", p.listener+"/x", "")
	p.want("TRACE at the listener", http.StatusNotImplemented, "not-forwarded", resp, body)
	resp, body = p.send(t.Context(), "OPTIONS", p.listener+"/x", "", "Max-Forwards", "0")
	p.want("a last OPTIONS", http.StatusNotImplemented, "not-forwarded", resp, body)
	if n := p.reached(); n != 0 {
		t.Errorf("%d reached the upstream", n)
	}
	p.send(t.Context(), "OPTIONS", p.listener+"/x", "", "Max-Forwards", "3")
	if got := p.last().Header.Get("Max-Forwards"); got != "2" {
		t.Errorf("Max-Forwards: %q", got)
	}
	for line, want := range map[string]string{
		"GET http://localhost/v1/forward/partner/a%2Fb?c": "GET /base/a%2Fb?c ",
		"GET HTTP://127.0.0.1/v1/forward/partner":         "GET /base ",
	} {
		resp, body := p.line(line)
		if resp.StatusCode != http.StatusTeapot || body != want {
			t.Errorf("%s: %d %q", line, resp.StatusCode, body)
		}
	}
}

// line sends a request with this request line but its version.
func (p *proxied) line(line string) (*http.Response, string) {
	p.t.Helper()
	conn := p.raw(line + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(conn)
	if err != nil {
		p.t.Fatal(err)
	}
	head, body, _ := bytes.Cut(b, []byte("\r\n\r\n"))
	resp := &http.Response{}
	_, _ = fmt.Sscanf(string(head), "HTTP/1.1 %d", &resp.StatusCode)
	return resp, string(body)
}

// TestForwardOnTheAddressOfTheAPI: what an upstream answers there can neither run in a browser nor
// leave anything in it. At a listener of its own it is as it was.
func TestForwardOnTheAddressOfTheAPI(t *testing.T) {
	kind := ""
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Content-Type"] = []string{kind}
		if kind == "" {
			h["Content-Type"] = nil
		}
		h["Set-Cookie"] = []string{"a=1", "sluice_session_8081=mine"}
		h.Set("Clear-Site-Data", `"*"`)
		h.Set("Content-Security-Policy", "default-src *")
		if kind == "304" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, "<script>")
	}, asIs)
	const browser = "Mozilla/5.0 (X11; Linux x86_64)"
	for k, runs := range map[string]bool{
		"text/html; charset=utf-8": true, "": true, "image/svg+xml": true, "application/xml": true, "application/xhtml+xml": true,
		"text/javascript": true, "multipart/related": true, "broken/": true, "application/pdf": true,
		"image/x+xml": true, "font/html": true,
		"application/json": false, "application/problem+json": false, "image/png": false, "application/octet-stream": false,
	} {
		kind = k
		resp, _ := p.ask("GET", "/v1/forward/partner/x", "", "User-Agent", browser)
		later, _ := p.ask("GET", "/v1/jobs/"+resp.Header.Get("Sluice-Job")+"/response", "", "Sec-Fetch-Mode", "navigate")
		for what, h := range map[string]http.Header{"the answer": resp.Header, "the stored one": later.Header} {
			if guarded := h.Get("Content-Security-Policy") == "sandbox" && h.Get("X-Content-Type-Options") == "nosniff"; guarded != runs {
				t.Errorf("%s of %q: %v", what, kind, h)
			}
			if h["Set-Cookie"] != nil || h["Clear-Site-Data"] != nil {
				t.Errorf("%s of %q reaches a browser with %v", what, kind, h)
			}
		}
	}
	resp, _ := p.ask("GET", "/v1/forward/partner/x", "", "User-Agent", "curl/8")
	if got := resp.Header["Set-Cookie"]; !slices.Equal(got, []string{"a=1"}) {
		t.Errorf("to a program: %v", got)
	}
	// A 304 must not bring another policy for what a browser keeps.
	kind = "304"
	resp, _ = p.ask("GET", "/v1/forward/partner/x", "", "User-Agent", browser)
	if h := resp.Header; resp.StatusCode != http.StatusNotModified || h.Get("Content-Security-Policy") != "" || h["Set-Cookie"] != nil {
		t.Errorf("a 304: %d %v", resp.StatusCode, h)
	}
	kind = "text/html"
	resp, _ = p.send(t.Context(), "GET", p.listener+"/x", "", "User-Agent", browser)
	if h := resp.Header; !slices.Equal(h["Set-Cookie"], []string{"a=1"}) || h.Get("Content-Security-Policy") != "default-src *" {
		t.Errorf("at the listener: %v", h)
	}
}

// TestForwardKeyOfAUser: an idempotency key gives an answer only to the user who asked for it.
func TestForwardKeyOfAUser(t *testing.T) {
	p := proxy(t, echo, asIs)
	ask := func(key string, header ...string) int {
		resp, _ := p.ask("POST", "/v1/forward/partner/x", "b", append([]string{"Idempotency-Key", key}, header...)...)
		return resp.StatusCode
	}
	for i, one := range []struct {
		first, second []string
		want          int
	}{
		{[]string{"Authorization", "Bearer a"}, []string{"Authorization", "Bearer a", "X-Other", "1"}, http.StatusTeapot},
		{[]string{"Authorization", "Bearer a"}, []string{"Authorization", "Bearer b"}, http.StatusUnprocessableEntity},
		{[]string{"Authorization", "Bearer a"}, nil, http.StatusUnprocessableEntity},
		{nil, []string{"Cookie", "s=1"}, http.StatusUnprocessableEntity},
		{[]string{"Cookie", "s=1"}, []string{"Cookie", "s=1; sluice_session=x"}, http.StatusTeapot},
		{[]string{"X-Api-Key", "ab"}, []string{"X-Api-Key", "a"}, http.StatusUnprocessableEntity},
		{[]string{"X_Api_Key", "a"}, []string{"X_Api_Key", "b"}, http.StatusUnprocessableEntity},
		{[]string{"X-Auth-Token", "a"}, []string{"X-Auth-Token", "b"}, http.StatusUnprocessableEntity},
		{[]string{"Authorization", "a", "Cookie", "b"}, []string{"Authorization", "b", "Cookie", "a"}, http.StatusUnprocessableEntity},
	} {
		key := fmt.Sprint("key-", i)
		if got := ask(key, one.first...); got != http.StatusTeapot {
			t.Fatalf("%v: %d", one.first, got)
		}
		if got := ask(key, one.second...); got != one.want {
			t.Errorf("%v, then %v: %d, want %d", one.first, one.second, got, one.want)
		}
	}
}

// TestForwardNamedByConnection: a header that the upstream names in Connection stays with it, also
// where net/http has removed Connection.
func TestForwardNamedByConnection(t *testing.T) {
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: X-Secret, close\r\nX-Secret: 1\r\nX_secret: 1\r\nX-Open: 1\r\nContent-Length: 0\r\n\r\n")
	}, asIs)
	resp, _ := p.ask("GET", "/v1/forward/partner/x", "")
	if h := resp.Header; resp.StatusCode != http.StatusOK || h.Get("X-Secret") != "" || h["X_secret"] != nil || h.Get("X-Open") != "1" {
		t.Errorf("%d %v", resp.StatusCode, h)
	}
}

// TestForwardHTTP2Shapes: what HTTP/2 lets through is refused, or reaches the upstream as exactly
// one request whose parts stay in their places.
func TestForwardHTTP2Shapes(t *testing.T) {
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s", r.Method, r.RequestURI)
	}, asIs)
	type fields [][2]string
	shape := func(method, path string, more ...[2]string) fields {
		return append(fields{{":method", method}, {":scheme", "http"}, {":authority", "localhost"}, {":path", path}}, more...)
	}
	for name, one := range map[string]struct {
		send fields
		want string // the answer; empty: refused
	}{
		"an ordinary one":                {shape("GET", "/x?y"), "GET /base/x?y"},
		"a lower-case method":            {shape("get", "/x"), "get /base/x"},
		"a version in the path":          {shape("GET", "/x HTTP/1.0"), ""},
		"a request in the path":          {shape("GET", "/x HTTP/1.1\r\nHost: a\r\n\r\nGET /y"), ""},
		"a blank in the query":           {shape("GET", "/x?a b"), ""},
		"a tab in the path":              {shape("GET", "/x\ty"), ""},
		"NUL in the path":                {shape("GET", "/x\x00"), ""},
		"a fragment":                     {shape("GET", "/x#y"), ""},
		"a path without a slash":         {shape("GET", "x"), ""},
		"an empty path":                  {shape("GET", ""), ""},
		"an asterisk":                    {shape("OPTIONS", "*"), ""},
		"dots":                           {shape("GET", "/../x"), ""},
		"dots encoded twice":             {shape("GET", "/%252e%252e/x"), ""},
		"dots and a blank":               {shape("GET", "/..%20/x"), ""},
		"dots in overlong UTF-8":         {shape("GET", "/%c0%ae%c0%ae/x"), ""},
		"raw bytes":                      {shape("GET", "/\xc3\xa9"), "GET /base/%C3%A9"},
		"brackets":                       {shape("GET", "/x?a[]=1|2"), "GET /base/x?a%5B%5D=1%7C2"},
		"a method with a path":           {shape("GET /evil HTTP/1.1", "/x"), ""},
		"a method with a line":           {shape("GET\r\nX: y", "/x"), ""},
		"an empty method":                {shape("", "/x"), ""},
		"CONNECT":                        {fields{{":method", "CONNECT"}, {":authority", "evil:1"}}, ""},
		"TRACE":                          {shape("TRACE", "/x"), ""},
		"a line in a value":              {shape("GET", "/x", [2]string{"x-a", "1\r\nX-B: 2"}), ""},
		"NUL in a value":                 {shape("GET", "/x", [2]string{"x-a", "1\x002"}), ""},
		"a name in upper case":           {shape("GET", "/x", [2]string{"X-A", "1"}), ""},
		"a name with a colon":            {shape("GET", "/x", [2]string{"x-a: 1", "1"}), ""},
		"a name with a blank":            {shape("GET", "/x", [2]string{"x a", "1"}), ""},
		"a name with a line":             {shape("GET", "/x", [2]string{"x\r\ny", "1"}), ""},
		"Transfer-Encoding":              {shape("GET", "/x", [2]string{"transfer-encoding", "chunked"}), ""},
		"Connection":                     {shape("GET", "/x", [2]string{"connection", "x-a"}), ""},
		"Upgrade":                        {shape("GET", "/x", [2]string{"upgrade", "websocket"}), ""},
		"a wrong length":                 {shape("POST", "/x", [2]string{"content-length", "7"}), "POST /base/x"},
		"a length with a sign":           {shape("POST", "/x", [2]string{"content-length", "+0"}), "POST /base/x"},
		"two methods":                    {append(fields{{":method", "GET"}}, shape("GET", "/x")...), ""},
		"a late pseudo header":           {append(shape("GET", "/x"), [2]string{"x-a", "1"}, [2]string{":path", "/y"}), ""},
		"an unknown pseudo header":       {shape("GET", "/x", [2]string{":evil", "1"}), ""},
		"a userinfo in the authority":    {fields{{":method", "GET"}, {":scheme", "http"}, {":authority", "u:p@localhost"}, {":path", "/x"}}, ""},
		"a line in the authority":        {fields{{":method", "GET"}, {":scheme", "http"}, {":authority", "localhost\r\nX: y"}, {":path", "/x"}}, ""},
		"two cookies":                    {shape("GET", "/x", [2]string{"cookie", "a=1"}, [2]string{"cookie", "sluice_session=2"}), "GET /base/x"},
		"a header named like a method":   {shape("GET", "/x", [2]string{"get", "1"}), "GET /base/x"},
		"a name that CGI reads as ours":  {shape("GET", "/x", [2]string{"sluice_tenant", "victim"}), "GET /base/x"},
		"a name that CGI reads as a hop": {shape("GET", "/x", [2]string{"transfer_encoding", "chunked"}), "GET /base/x"},
		"two slashes":                    {shape("GET", "//evil.example/x"), "GET /base//evil.example/x"},
		"an absolute path":               {shape("GET", "http://evil.example/x"), ""},
	} {
		before := p.reached()
		status, body := p.overFrames(t, one.send)
		reached := p.reached() - before
		switch {
		case one.want == "" && (reached != 0 || status/100 == 2 && body != ""):
			t.Errorf("%s: %d %q; %d reached the upstream", name, status, body, reached)
		case one.want != "" && (status != 200 || body != one.want || reached != 1):
			t.Errorf("%s: %d %q, want %q; %d reached the upstream", name, status, body, one.want, reached)
		case one.want != "":
			if h := fmt.Sprint(p.last().Header); strings.Contains(h, "victim") || strings.Contains(h, "sluice_session") ||
				strings.Contains(strings.ToLower(h), "transfer_encoding") {
				t.Errorf("%s: the upstream got %s", name, h)
			}
		}
	}
}

// overFrames sends a request to the listener of the route as frames of HTTP/2, as they are, and
// returns the answer; 0 where the connection or the stream was ended.
func (p *proxied) overFrames(t *testing.T, fields [][2]string) (status int, body string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.listener, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	_, _ = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return status, body
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			_, _ = fmt.Sscan(f.PseudoValue("status"), &status)
		case *http2.DataFrame:
			body += string(f.Data())
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0, body
		}
		if frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagDataEndStream) {
			return status, body
		}
	}
}

// TestPagesOfOtherPorts: another port of this host is another party, though the same site to a
// browser.
func TestPagesOfOtherPorts(t *testing.T) {
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) { c.LocalOnly = true })
	for site, want := range map[string]int{
		"same-site": http.StatusForbidden, "cross-site": http.StatusForbidden, "same-origin": http.StatusTeapot, "none": http.StatusTeapot,
	} {
		resp, body := p.ask("GET", "/v1/forward/partner/x", "", "Sec-Fetch-Site", site)
		p.want(site, want, "", resp, body)
		resp, body = p.send(context.Background(), "GET", p.listener+"/x", "", "Sec-Fetch-Site", site)
		p.want(site+" at the listener", want, "", resp, body)
	}
}
