package httpmsg_test

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"net/url"
	pathlib "path"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/7509e464/sluice/internal/httpmsg"
)

// TestRoundTrip: what is stored is read back, byte for byte.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	for _, r := range []httpmsg.Request{
		{Method: "GET", Target: "", Header: http.Header{}},
		{Method: "GET", Target: "?a=b", Header: http.Header{}},
		{Method: "PROPFIND", Target: "/a%2Fb//c?x=%00&x=2;y", Header: http.Header{
			"Accept": {"text/html", "*/*;q=0.1"}, "X-Empty": {""}, "X-Colon": {"a: b"}, "X-Latin": {"\xe9"},
		}, Body: binary},
		{Method: "POST", Target: "/", Header: http.Header{}, Body: []byte("\r\n\r\nGET / HTTP/1.1\r\n\r\n")},
	} {
		got, err := httpmsg.DecodeRequest(r.Encode())
		if err != nil || got.Method != r.Method || got.Target != r.Target ||
			!reflect.DeepEqual(got.Header, r.Header) || !bytes.Equal(got.Body, r.Body) {
			t.Errorf("%+v is read back as %+v, %v", r, got, err)
		}
	}
	for _, a := range []httpmsg.Answer{
		{Status: 204, Header: http.Header{"Set-Cookie": {"a=1", "b=2"}}},
		{Status: 999, Header: http.Header{}, Body: binary, Truncated: true},
	} {
		got, err := httpmsg.DecodeAnswer(a.Encode())
		if err != nil || got.Status != a.Status || got.Truncated != a.Truncated ||
			!reflect.DeepEqual(got.Header, a.Header) || !bytes.Equal(got.Body, a.Body) {
			t.Errorf("%+v is read back as %+v, %v", a, got, err)
		}
	}
}

// TestHeadersOfOneConnection: what concerns one connection goes, also what Connection names,
// however it is written.
func TestHeadersOfOneConnection(t *testing.T) {
	t.Parallel()
	h := http.Header{
		"Connection": {"close, x-mine", "X_Other"}, "X-Mine": {"1"}, "X_Mine": {"1"}, "X-Other": {"1"}, "Te": {"trailers"},
		"Trailer": {"X"}, "Transfer-Encoding": {"chunked"}, "Upgrade": {"h2c"}, "Keep-Alive": {"1"},
		"Proxy-Authorization": {"1"}, "Proxy-Authenticate": {"1"}, "Proxy-Connection": {"1"}, "X-Kept": {"a", "b"},
	}
	for _, end := range []func(http.Header) http.Header{httpmsg.ToUpstream, httpmsg.ToClient} {
		if got := end(h); !reflect.DeepEqual(got, http.Header{"X-Kept": {"a", "b"}}) {
			t.Errorf("kept %v", got)
		}
		if got := end(nil); got == nil || len(got) != 0 {
			t.Errorf("of no headers: %v", got)
		}
	}
}

// TestHeaderTable: each rule holds for each of its names in both directions, however the name is
// written. What is passed in part is left to those who know more.
func TestHeaderTable(t *testing.T) {
	t.Parallel()
	spellings := func(name string) []string {
		name = strings.Replace(name, "*", "Any-Thing", 1)
		return []string{
			name, strings.ReplaceAll(name, "-", "_"), strings.ToUpper(name), strings.ToLower(name),
			strings.ReplaceAll(name, "-", "."),
		}
	}
	for _, rule := range httpmsg.Headers {
		for _, name := range rule.Names {
			for _, spelt := range spellings(name) {
				for _, way := range []struct {
					use httpmsg.Use
					end func(http.Header) http.Header
				}{{rule.ToUpstream, httpmsg.ToUpstream}, {rule.ToClient, httpmsg.ToClient}} {
					got := way.end(http.Header{spelt: {"1"}})
					if passed := way.use == httpmsg.Passed || way.use == httpmsg.Partly; (got[spelt] != nil) != passed {
						t.Errorf("%s (%s): %v", spelt, way.use, got)
					}
				}
			}
		}
	}
	for _, other := range []string{"Content-Type", "Sluicegate", "Webhooks", "X-Forward", "Date", "Cookies", "Tea"} {
		if rule := httpmsg.RuleOf(other); rule != nil {
			t.Errorf("%s has the rule %+v", other, rule)
		}
	}
}

// TestTrailers: a trailer changes nothing of an answer for a client that merges it into the
// headers.
func TestTrailers(t *testing.T) {
	got := httpmsg.Trailers(http.Header{
		"Sum": {"1"}, "Content-Digest": {"2"}, "Server-Timing": {"3"}, "X-Named": {"no"}, "Set_Cookie": {"no"}, "Host": {"no"},
		"Content-Length": {"no"}, "Transfer-Encoding": {"no"}, "Content-Type": {"no"}, "Content_Encoding": {"no"},
		"Content-Range": {"no"}, "Authorization": {"no"}, "Cache-Control": {"no"}, "Location": {"no"}, "Clear-Site-Data": {"no"},
		"Strict-Transport-Security": {"no"}, "Content-Security-Policy": {"no"}, "Access-Control-Allow-Origin": {"no"},
		"Www-Authenticate": {"no"}, "Sluice-Job": {"no"}, "Date": {"no"}, "Idempotent-Replayed": {"no"},
	}, http.Header{"Connection": {"X-Named"}})
	want := http.Header{"Sum": {"1"}, "Content-Digest": {"2"}, "Server-Timing": {"3"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestCookies: the dashboard's cookies go, all others stay as they are.
func TestCookies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want []string }{
		{[]string{"a=1; b=2"}, []string{"a=1; b=2"}},
		{[]string{"sluice_session_8081=secret"}, nil},
		{[]string{"a=1; sluice_session=secret; b=\"x y\""}, []string{"a=1; b=\"x y\""}},
		{[]string{"sluice_session=1;a=1"}, []string{"a=1"}},
		{[]string{"__Host-sluice_session=1; a=1", "sluice_session_1=2", "c"}, []string{"a=1", "c"}},
		{[]string{"a=sluice_session; sluice=1"}, []string{"a=sluice_session; sluice=1"}},
		{nil, nil},
	} {
		if got := httpmsg.WithoutOwnCookies(c.in); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
	set := httpmsg.WithoutOwnSetCookies([]string{"a=1; Path=/", " sluice_session_8081=x", "__Secure-sluice=1", "b=sluice_session"})
	if !reflect.DeepEqual(set, []string{"a=1; Path=/", "b=sluice_session"}) {
		t.Errorf("%q", set)
	}
}

// leaving are targets that could leave their base URL.
var leaving = []string{
	"a", "*", "http://evil.example/", "/..", "/../x", "/a/..", "/%2e%2e/x", "/.%2E/x", "/a%2F..%2Fb", `/a\..\b`,
	"/a/%5c../b", "/..;x=1/b", "/.", "/%zz", "/%252e%252e/x", "/%25252e./x", "/..%20/x", "/..%00/x", "/..%00.html/x", "/%20../x",
	"/..%09/x", "/%c0%ae%c0%ae/x", "/%C0%AE./x", "/a%c0%af..%c0%afb", "/%25c0%25ae./x", "/..%3bx/y",
	"/a/..%3fx", "/a/%2e%2e%3fq", "/a/..%23", "/a/..%c2%a0/b", "/a/..%01/b", "/a/%f0%80%80%ae%f0%80%80%ae/b",
	"/a/%EF%BC%8E%EF%BC%8E/b", "/a%EF%BC%8F..%EF%BC%8Fb",
}

// odd are targets with which a request line could be another.
var odd = []string{"/x HTTP/1.1", "/x\tHTTP/1.1", "/x\r\nHost: evil", "/x\x00", "/x\x7f", "/x?a b", "/x#y", "/x?y#z", "/x\n"}

// TestTarget: no target leaves the path of its base URL or changes the request line. Others are
// sent as they are, or with what must be encoded.
func TestTarget(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"": "", "/": "/", "?a": "?a", "/a//b": "/a//b", "/a%2Fb": "/a%2Fb", "/a;b=c": "/a;b=c", "/...": "/...",
		"/x?y=/../z": "/x?y=/../z", "//b": "//b", "/a..b": "/a..b", "/%C3%A9": "/%C3%A9", "/x?": "/x?", "/x?q=%00%ff": "/x?q=%00%ff",
		"/x?a=b;c=d": "/x?a=b;c=d", "/x?a[]=1": "/x?a%5B%5D=1", "/x?q=a|b\"{}<>^`": "/x?q=a%7Cb%22%7B%7D%3C%3E%5E%60",
		"/\xc3\xa9?\xe9": "/%C3%A9?%E9", "/x?q=100%": "/x?q=100%25", "/x?%zz": "/x?%25zz", "/x?a?b": "/x?a?b", "/100%25": "/100%25",
	} {
		if sent, rule := httpmsg.Target("/base", target); sent != want || rule != "" {
			t.Errorf("%q: %q, %s; want %q", target, sent, rule, want)
		}
	}
	for _, target := range append(odd, leaving...) {
		if _, rule := httpmsg.Target("/base", target); rule == "" {
			t.Errorf("%q may be sent on", target)
		}
	}
	for _, base := range []string{"", "/"} {
		if _, rule := httpmsg.Target(base, "//evil.example/x"); rule == "" {
			t.Errorf("below %q, two slashes may be sent on", base)
		}
	}
}

// TestCheckMethod: a method is a token, and neither of two that a proxy must not pass on.
func TestCheckMethod(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "PROPFIND", "get", "M-SEARCH", "X!#$%&'*+-.^_`|~9"} {
		if rule := httpmsg.CheckMethod(method); rule != "" {
			t.Errorf("%q: %s", method, rule)
		}
	}
	for _, method := range []string{"", "TRACE", "CONNECT", "trace", "Connect", "GET /evil HTTP/1.1", "GET\r\n", "G\xc3\x89T", "A:B", "(x)", "\x00"} {
		if httpmsg.CheckMethod(method) == "" {
			t.Errorf("%q may be sent on", method)
		}
	}
}

// TestCheckURL: URLs of routes obey the rule for targets.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"http://a", "https://a.example:8443/b/c?d=e&f", "http://u:p@[::1]:80/%C3%A9", "http://a/?", "http://a/b//c",
	} {
		if rule := httpmsg.CheckURL(raw); rule != "" {
			t.Errorf("%q: %s", raw, rule)
		}
	}
	for _, raw := range []string{
		"", "a", "/a", "ftp://a/", "http://", "http://a/#b", "http://a/../b", "http://a/%2e%2e/b", "http://a/%252e%252e",
		"http://a//b", "http://a/b c", "http://a/b?c d", "http://a/b?c={d}",
	} {
		if httpmsg.CheckURL(raw) == "" {
			t.Errorf("%q is accepted", raw)
		}
	}
}

// TestCheckPath: a path of a job is that of one segment or more below the base, and nothing else.
func TestCheckPath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/a", "/a/", "/a//b", "/a%2Fb", "/a;b=c", "/...", "/%C3%A9", "/100%25", "/a..b", "/a:80@b"} {
		if rule := httpmsg.CheckPath(path); rule != "" {
			t.Errorf("%q: %s", path, rule)
		}
	}
	for _, path := range append([]string{
		"", "?", "/a?b", "/a#b", "/a b", "/a\r\nX: 1", "/\x00", "/\x7f", "/\xc3\xa9", "//evil.example/", "/%2Fevil.example",
		"/a/%252e%252e/b", "/%25252e%25252e", "/a%255c..%255cb", "*", "evil.example:443",
	}, leaving...) {
		if httpmsg.CheckPath(path) == "" {
			t.Errorf("%q may be sent", path)
		}
	}
}

// FuzzCheckPath: whatever passes stays below the base URL, for the parser of Go and for one that
// decodes first.
func FuzzCheckPath(f *testing.F) {
	for _, path := range append([]string{"/a", "/a%2Fb", "/%252e%252e/", "/a//b;c"}, leaving...) {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if httpmsg.CheckPath(path) != "" {
			return
		}
		u, err := url.Parse("http://host.example/base" + path)
		if err != nil || u.Host != "host.example" || u.RawQuery != "" || u.Fragment != "" {
			t.Fatalf("%q: %v, %v", path, u, err)
		}
		for _, plain := range []string{u.EscapedPath(), u.Path, strings.ReplaceAll(u.Path, `\\`, "/")} {
			for range 5 {
				if clean := pathlib.Clean(plain); clean != "/base" && !strings.HasPrefix(clean, "/base/") {
					t.Fatalf("%q leads to %q", path, clean)
				}
				if plain, err = url.PathUnescape(plain); err != nil {
					break
				}
			}
		}
	})
}

// FuzzTarget: whatever passes makes one request line that is read back as it was, stays below the
// base URL, and passes unchanged when it is checked once more.
func FuzzTarget(f *testing.F) {
	for _, target := range append(append([]string{"/a?b", "/\xff{}|?%", ""}, odd...), leaving...) {
		f.Add("GET", target, "X-Name", "a: b", []byte("body"))
	}
	f.Fuzz(func(t *testing.T, method, target, name, value string, body []byte) {
		sent, rule := httpmsg.Target("/base", target)
		if rule != "" || httpmsg.CheckMethod(method) != "" ||
			!httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return
		}
		if again, rule := httpmsg.Target("/base", sent); again != sent || rule != "" {
			t.Fatalf("%q is sent as %q, and that as %q, %s", target, sent, again, rule)
		}
		line := method + " /base" + sent + " HTTP/1.1\r\nHost: a\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line)))
		if err != nil || r.Method != method || r.RequestURI != "/base"+sent {
			t.Fatalf("%q is read as %+v, %v", line, r, err)
		}
		m := httpmsg.Request{Method: method, Target: sent, Header: http.Header{name: {value, ""}}, Body: body}
		got, err := httpmsg.DecodeRequest(m.Encode())
		if err != nil || got.Method != method || got.Target != sent || !reflect.DeepEqual(got.Header, m.Header) ||
			!bytes.Equal(got.Body, body) {
			t.Fatalf("%+v is read back as %+v, %v", m, got, err)
		}
		for plain := r.URL.EscapedPath(); ; {
			if clean := pathlib.Clean(strings.ReplaceAll(plain, `\`, "/")); clean != "/base" && !strings.HasPrefix(clean, "/base/") {
				t.Fatalf("%q leads to %q", sent, clean)
			}
			next, err := url.PathUnescape(plain)
			if err != nil || next == plain {
				break
			}
			plain = next
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("GET /a?b\r\nX: 1\r\n\r\nbody"))
	f.Add([]byte("HTTP/1.1 200\r\nX: 1\r\nX: 2\r\n\r\n"))
	f.Add([]byte("HTTP/1.1-cut 200\r\n\r\n\r\n\r\n"))
	f.Add([]byte("\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := httpmsg.DecodeRequest(b); err == nil {
			if again, err := httpmsg.DecodeRequest(r.Encode()); err != nil || !reflect.DeepEqual(again, r) {
				t.Errorf("%q: %+v is read back as %+v, %v", b, r, again, err)
			}
		} else if !errors.Is(err, httpmsg.ErrForm) {
			t.Errorf("%q: %v", b, err)
		}
		if a, err := httpmsg.DecodeAnswer(b); err == nil {
			if again, err := httpmsg.DecodeAnswer(a.Encode()); err != nil || !reflect.DeepEqual(again, a) {
				t.Errorf("%q: %+v is read back as %+v, %v", b, a, again, err)
			}
		} else if !errors.Is(err, httpmsg.ErrForm) {
			t.Errorf("%q: %v", b, err)
		}
	})
}

// What Sluice sets or removes, and what is no header, cannot be set by a route or a job, however it
// is written.
func TestSettable(t *testing.T) {
	for _, name := range []string{
		"", "X Request", "X:Y", "X\nY", "Ünder", "Connection", "connection", "Keep_Alive", "TE", "Trailer", "Transfer-Encoding",
		"Upgrade", "Host", "content_length", "Expect", "Sluice-Tenant", "sluice_attempt", "webhook-id", "Webhook_Signature", "Proxy",
		"Proxy-Authorization",
	} {
		if httpmsg.CheckSettable(name) == "" {
			t.Errorf("%q can be set", name)
		}
	}
	for _, name := range []string{"Authorization", "X-Api-Key", "x_request_id", "Accept-Language", "Content-Type", "Idempotency-Key"} {
		if rule := httpmsg.CheckSettable(name); rule != "" {
			t.Errorf("%s cannot be set: %s", name, rule)
		}
	}
	for value, good := range map[string]bool{"": true, "a b": true, "ü": true, "a\nb": false, "a\r\nb": false, "\x00": false, " a": false, "a\t": false} {
		if (httpmsg.CheckValue(value) == "") != good {
			t.Errorf("the value %q: %q", value, httpmsg.CheckValue(value))
		}
	}
}

// TestManyParts: the work for a head of 32 KB is linear in its bytes.
func TestManyParts(t *testing.T) {
	cookie := []string{strings.Repeat("a;", 16<<10)}
	allocated := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			httpmsg.WithoutOwnCookies(cookie)
		}
	}).AllocedBytesPerOp()
	if allocated > 256<<10 {
		t.Errorf("32 KB of cookies take %d bytes", allocated)
	}
}
