package httpmsg_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/httpmsg"
)

// TestCheckJobHeader: a job sets no header that Sluice sets, or that concerns one connection,
// however its name is written.
func TestCheckJobHeader(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"X-Request-Id": true, "accept_language": true, "Authorization": true, "Cookie": true, "Idempotency-Key": true,
		"X-Sluice": true, "Hostname": true, "Prefer": true, "!#$%&'*+-.^_`|~": true,
		"": false, "X Y": false, "X-A:": false, "X\r\nY": false, "X-É": false,
		"Connection": false, "Keep-Alive": false, "Proxy-Authorization": false, "te": false, "Trailer": false,
		"Transfer-Encoding": false, "TRANSFER_ENCODING": false, "Upgrade": false, "HTTP2-Settings": false,
		"Expect": false, "Proxy": false,
		"Host": false, "Content-Length": false, "content_length": false, "Content.Length": false,
		"Content-Type": false, "User-Agent": false, "traceparent": false, "Accept-Encoding": false,
		"Sluice-Tenant": false, "sluice_attempt": false, "webhook-id": false, "Webhook_Signature": false,
	} {
		if rule := httpmsg.CheckJobHeader(name); (rule == "") != good {
			t.Errorf("%q: %q, want it allowed: %v", name, rule, good)
		}
	}
}

func TestCheckJobHeaders(t *testing.T) {
	t.Parallel()
	many := func(n, bytes int) map[string]string {
		headers := map[string]string{}
		for i := range n {
			headers[fmt.Sprintf("X-%02d", i)] = strings.Repeat("x", bytes/n-4)
		}
		return headers
	}
	for what, c := range map[string]struct {
		headers map[string]string
		want    []string // the names that are wrong; "all" for all together
	}{
		"none":                   {nil, nil},
		"good ones":              {map[string]string{"X-A": "1", "X-B": "a b\u00a0\u00e9", "X-C": ""}, nil},
		"the most":               {many(16, 4096), nil},
		"one too many":           {many(17, 17*10), []string{"all"}},
		"one byte too many":      {many(1, 4097), []string{"all"}},
		"a name":                 {map[string]string{"X-A": "1", "Host": "x"}, []string{"Host"}},
		"a name twice":           {map[string]string{"X-A": "1", "x_a": "1"}, []string{"x_a"}},
		"a line feed":            {map[string]string{"X-A": "1\nX-B: 2"}, []string{"X-A"}},
		"a carriage return":      {map[string]string{"X-A": "1\r"}, []string{"X-A"}},
		"a tab":                  {map[string]string{"X-A": "1\t2"}, []string{"X-A"}},
		"NUL and DEL":            {map[string]string{"X-A": "\x00", "X-B": "\x7f"}, []string{"X-A", "X-B"}},
		"a control of Latin-1":   {map[string]string{"X-A": "1\u0085"}, []string{"X-A"}},
		"space before and after": {map[string]string{"X-A": " 1", "X-B": "1 ", "X-C": " "}, []string{"X-A", "X-B", "X-C"}},
		"bytes that are no text": {map[string]string{"X-A": "\xff"}, []string{"X-A"}},
	} {
		var got []string
		if httpmsg.CheckJobHeaders(c.headers, func(name, _ string) { got = append(got, name) }) != "" {
			got = append(got, "all")
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: wrong are %q, want %q", what, got, c.want)
		}
	}
}

func TestCheckJobHeaderNames(t *testing.T) {
	t.Parallel()
	var got []int
	httpmsg.CheckJobHeaderNames([]string{"X-A", "Host", "x_a", "X-Static", "X-B", "no token"}, []string{"x-static", "X-C"},
		func(i int, _ string) { got = append(got, i) })
	if want := []int{1, 2, 3, 5}; !slices.Equal(got, want) {
		t.Errorf("wrong are %v, want %v", got, want)
	}
}
