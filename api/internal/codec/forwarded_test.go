package codec

import (
	"net/http"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/queuetest"
)

// Names of credentials are recognised however they are written, and other names are not hidden.
func TestCredentialsAreHidden(t *testing.T) {
	for name, secret := range map[string]bool{
		"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Set-Cookie": true, "X-Api-Key": true,
		"Apikey": true, "X-Amz-Security-Token": true, "X-Amz-Signature": true, "Private-Token": true,
		"X-Client-Secret": true, "X-Session-Id": true, "X-Auth": true, "AWSAccessKeyId": true,
		"Content-Type": false, "Idempotency-Key": false, "Www-Authenticate": false, "X-Request-Id": false,
		"Accept": false, "Author": false, "X-Signing-Key": true, "x_functions_key": true, "X-Monkey": false,
	} {
		want := "shown"
		if secret {
			want = "hidden"
		}
		got := Forwarded(httpmsg.Request{Header: http.Header{name: {"shown"}}})
		queuetest.Compare(t, name, got.Headers[name], want)
		queuetest.Compare(t, name+" of a job", JobHeaders(map[string]string{name: "shown"})[name], want)
	}
	for target, want := range map[string]string{
		"":                           "",
		"/a?":                        "/a?",
		"/a=1?b=2&c":                 "/a=1?b=2&c",
		"?access_token=x":            "?access_token=hidden",
		"/a?Key=x&monkey=y":          "/a?Key=hidden&monkey=y",
		"/a?%zz=1&client%5fsecret=x": "/a?%zz=1&client%5fsecret=hidden",
		"/a?token":                   "/a?token",
	} {
		queuetest.Compare(t, target, Forwarded(httpmsg.Request{Target: target}).Target, want)
	}
}

// A cut body ends with a whole character, where it is text.
func TestBodiesAreCut(t *testing.T) {
	for _, c := range []struct {
		name, body string
		shown      int // bytes
		encoding   string
	}{
		{"short", "a", 1, ""},
		{"exact", strings.Repeat("a", maxShown), maxShown, ""},
		{"long", strings.Repeat("a", maxShown+1), maxShown, ""},
		{"in a character of two", "a" + strings.Repeat("\u00e9", maxShown), maxShown - 1, ""},
		{"in a character of four", "abc" + strings.Repeat("\U0001f600", maxShown), maxShown - 1, ""},
		{"binary", strings.Repeat("\xff\x80", maxShown), (maxShown + 2) / 3 * 4, "base64"},
	} {
		got := Forwarded(httpmsg.Request{Body: []byte(c.body)})
		queuetest.Compare(t, c.name+": bytes shown", len(got.Body), c.shown)
		queuetest.Compare(t, c.name+": encoding", got.BodyEncoding, c.encoding)
		queuetest.Compare(t, c.name+": size", got.BodyBytes, len(c.body))
		queuetest.Compare(t, c.name+": cut", got.BodyTruncated, len(c.body) > maxShown)
	}
}

// TestShortType: operators see in lists where a request went, but no segment that may be a secret.
func TestShortType(t *testing.T) {
	for text, want := range map[string]string{
		"order.create":                 "order.create",
		"GET here":                     "GET here",
		"OPTIONS *":                    "OPTIONS *",
		"GET /orders/7":                "GET /orders/7",
		"GET /a/b/c/d/e/f":             "GET /a/b/c/d/e/…",
		"PUT /hooks/aXbYcZdWeVfUgThS":  "PUT /hooks/*",
		"GET /sk_live_0123456789abc/x": "GET /*/x",
	} {
		if got := ShortType(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
