package httpmsg_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	pathlib "path"
	"reflect"
	"strings"
	"testing"

	"github.com/7509e464/sluice/queue/httpmsg"
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

// TestEndToEnd: what concerns one connection goes, also what Connection names.
func TestEndToEnd(t *testing.T) {
	t.Parallel()
	h := http.Header{
		"Connection": {"close, x-mine", "X-Other"}, "X-Mine": {"1"}, "X-Other": {"1"}, "Te": {"trailers"},
		"Trailer": {"X"}, "Transfer-Encoding": {"chunked"}, "Upgrade": {"h2c"}, "Keep-Alive": {"1"},
		"Proxy-Authorization": {"1"}, "Proxy-Authenticate": {"1"}, "Proxy-Connection": {"1"}, "X-Kept": {"a", "b"},
	}
	if got := httpmsg.EndToEnd(h); !reflect.DeepEqual(got, http.Header{"X-Kept": {"a", "b"}}) {
		t.Errorf("kept %v", got)
	}
	if got := httpmsg.EndToEnd(nil); got == nil || len(got) != 0 {
		t.Errorf("of no headers: %v", got)
	}
}

// leaving are targets that could leave their base URL.
var leaving = []string{
	"a", "*", "http://evil.example/", "/..", "/../x", "/a/..", "/%2e%2e/x", "/.%2E/x", "/a%2F..%2Fb", `/a\..\b`,
	"/a/%5c../b", "/..;x=1/b", "/.", "/%zz",
}

// TestCheckTarget: no target leaves the path of its base URL.
func TestCheckTarget(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"", "/", "?a", "/a//b", "/a%2Fb", "/a;b=c", "/...", "/x?y=/../z", "//b", "/a..b", "/%C3%A9",
	} {
		if rule := httpmsg.CheckTarget("/base", target); rule != "" {
			t.Errorf("%q: %s", target, rule)
		}
	}
	for _, target := range leaving {
		if httpmsg.CheckTarget("/base", target) == "" {
			t.Errorf("%q may be sent on", target)
		}
	}
	for _, base := range []string{"", "/"} {
		if httpmsg.CheckTarget(base, "//evil.example/x") == "" {
			t.Errorf("below %q, two slashes may be sent on", base)
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
