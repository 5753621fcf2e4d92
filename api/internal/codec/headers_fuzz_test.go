package codec

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

func FuzzPrefer(f *testing.F) {
	for _, s := range []string{
		"wait=10", `x="a, wait=9";y, wait = "5"`, `"`, `\`, "wait=99999999999999999999", ",;=",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		p := Prefer(http.Header{"Prefer": {value}})
		if p.Wait < 0 || p.Wait > wire.MaxWaitSeconds*time.Second || (!p.Given && p.Wait != 0) {
			t.Errorf("%q: %+v", value, p)
		}
		if p.Given && Prefer(http.Header{"Prefer": {p.Applied()}}) != p {
			t.Errorf("%q: %q is read differently", value, p.Applied())
		}
	})
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, s := range []string{`"k-1"`, "k-1", `"a\"b";x=1`, `"`, "", "\xff", strings.Repeat("k", 256)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := ReadKey(http.Header{KeyHeader: {value}})
		if err != nil {
			if problem.Of(err).Status != http.StatusUnprocessableEntity {
				t.Errorf("%q: %v", value, err)
			}
			return
		}
		if key == "" || len(key) > wire.MaxKeyBytes || HasControl(key) ||
			(!strings.HasPrefix(value, `"`) && key != value) {
			t.Errorf("%q: key %q", value, key)
		}
	})
}

func FuzzTenant(f *testing.F) {
	for _, s := range []string{"acme", "a/b", "é", "\xff", "a\tb", "\u0085", "", strings.Repeat("t", 256)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		name, err := ReadTenant(http.Header{TenantHeader: {value}})
		if err != nil {
			return
		}
		if name != value || name == "" || len(name) > wire.MaxTenantBytes || HasControl(name) ||
			!utf8.ValidString(name) {
			t.Errorf("%q: tenant %q", value, name)
		}
	})
}

func FuzzIfMatch(f *testing.F) {
	for _, s := range []string{`"7"`, `W/"7", "8"`, "*", `"a,b"`, `"`, ",", "7"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		m, err := IfMatch(http.Header{"If-Match": {value}})
		if err == nil && !m.Listed && strings.TrimSpace(value) != "*" {
			t.Errorf("%q lets everything through", value)
		}
		for _, r := range m.Revisions {
			if again, err := IfMatch(http.Header{"If-Match": {ETag(r)}}); err != nil ||
				len(again.Revisions) != 1 || again.Revisions[0] != r {
				t.Errorf("%s is not read back", ETag(r))
			}
		}
	})
}

func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "YQ", "%00", "YQ==", "AA"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if cursor, err := OpenCursor(value); err == nil && SealCursor(cursor) != value {
			t.Errorf("%q is read as %q, which is written %q", value, cursor, SealCursor(cursor))
		}
	})
}

func FuzzListQuery(f *testing.F) {
	for _, s := range []string{
		"state=queued&route=default&limit=1000&cursor=x", "state=done", "limit=0", "state=dead&limit=%2B1",
		"state=queued&route=", ";",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		l, err := ReadList(query)
		if err != nil {
			if problem.Of(err).Status != http.StatusUnprocessableEntity {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if l.Limit < 1 || l.Limit > wire.MaxPage || !slices.Contains(queue.ListStates(), l.State) ||
			HasControl(l.Route) {
			t.Errorf("%q: %+v", text, l)
		}
	})
}

func FuzzTraceParent(f *testing.F) {
	for _, s := range traceParents {
		f.Add(s.in)
	}
	f.Fuzz(func(t *testing.T, value string) {
		got := TraceParent(http.Header{"Traceparent": {value}})
		if got == "" {
			return
		}
		if len(got) != 55 || !strings.HasPrefix(got, "00-") || !strings.HasPrefix(value[2:], got[2:52]) ||
			TraceParent(http.Header{"Traceparent": {got}}) != got {
			t.Errorf("%q: %q", value, got)
		}
	})
}
