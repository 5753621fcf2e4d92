package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

func TestPrefer(t *testing.T) {
	for _, tt := range []struct {
		values []string
		want   string // as Preference-Applied, "" if there is no preference
	}{
		{nil, ""},
		{[]string{"wait=10"}, "wait=10"},
		{[]string{"WAIT = 10"}, "wait=10"},
		{[]string{`wait="10"`}, "wait=10"},
		{[]string{"wait=30"}, "wait=30"},
		{[]string{"wait=31"}, "wait=30"},
		{[]string{"wait=99999999999999999999999"}, "wait=30"},
		{[]string{"wait=0"}, "wait=0"},
		{[]string{"wait=007"}, "wait=7"},
		{[]string{"respond-async, wait=5"}, "wait=5"},
		{[]string{"respond-async; x=1, wait=5; y"}, "wait=5"},
		{[]string{"respond-async", "wait=5"}, "wait=5"},
		{[]string{`x="a, wait=9", wait=5`}, "wait=5"},
		{[]string{`x="a\", wait=9", wait=5`}, "wait=5"},
		{[]string{"wait=5, wait=6"}, "wait=5"},
		{[]string{"wait"}, ""}, {[]string{"wait="}, ""}, {[]string{"wait=-1"}, ""}, {[]string{"wait=1.5"}, ""}, {[]string{"wait=x"}, ""},
		{[]string{"waiting=5"}, ""}, {[]string{",,;=,"}, ""}, {[]string{`"wait=5`}, ""}, {[]string{""}, ""},
	} {
		got := preferOf(http.Header{"Prefer": tt.values})
		applied := ""
		if got.given {
			applied = got.applied()
		}
		if applied != tt.want {
			t.Errorf("%q: %q, want %q", tt.values, applied, tt.want)
		}
	}
}

func TestIdempotencyKeyForms(t *testing.T) {
	long := strings.Repeat("k", 255)
	for value, want := range map[string]string{
		`"k-1"`: "k-1", "k-1": "k-1", "0-0": "0-0", `"a\"b"`: `a"b`, "a b": "a b", "é": "é", "\xff": "\xff", long: long, `"` + long + `"`: long,
		`"k";v=1`: "k", `'k'`: "'k'", "?1": "?1", `k"`: `k"`,
	} {
		if got, err := idempotencyKeyOf(http.Header{keyHeader: {value}}); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", value, got, err, want)
		}
	}
	for _, values := range [][]string{{""}, {`""`}, {`"`}, {`"k`}, {`"é"`}, {`"a" "b"`}, {"a\tb"}, {"a\x7f"}, {long + "k"}, {`"` + long + `k"`}, {"a", "b"}} {
		if got, err := idempotencyKeyOf(http.Header{keyHeader: values}); err == nil || problemOf(err).Status != 422 {
			t.Errorf("%q: %q %v, want a 422", values, got, err)
		}
	}
}

func TestIfMatch(t *testing.T) {
	for value, want := range map[string][]int64{
		`"7"`: {7}, `W/"7"`: {7}, `"7", W/"8" ,"x"`: {7, 8}, `"x"`: nil, `"a,b"`: nil, `"-1"`: {-1}, `"99999999999999999999"`: nil,
	} {
		if got, err := ifMatchOf(http.Header{"If-Match": {value}}); err != nil || !got.listed || !slices.Equal(got.revisions, want) {
			t.Errorf("%s: %+v %v, want %v", value, got, err, want)
		}
	}
	for _, value := range []string{"", ",", "7", `"7`, `7"`, `"`, `w/"7"`, `"7"8"`, `*, "7"`} {
		if got, err := ifMatchOf(http.Header{"If-Match": {value}}); err == nil {
			t.Errorf("%s: %+v, want an error", value, got)
		}
	}
}

func TestDrainPolicyIsInWholeSeconds(t *testing.T) {
	for rate, want := range map[string][2]int64{
		"10/s": {10, 1}, "5/24h": {5, 86400}, "7/500ms": {14, 1}, "7/1500ms": {14, 3}, "1/1ms": {1000, 1}, "1000/1ms": {1_000_000, 1},
		"7/3s": {7, 3}, "1/1001ms": {1000, 1001}, "1/366d": {1, 31622400}, "10/60s": {10, 60},
	} {
		r, err := shaper.ParseRate(rate)
		if err != nil {
			t.Fatal(err)
		}
		if q, w := wholeWindow(r); q != want[0] || w != want[1] {
			t.Errorf("%s: q=%d w=%d, want %v", rate, q, w, want)
		}
	}
	// Where the exact quota would not fit a structured field.
	q, w := wholeWindow(shaper.Rate{Limit: 31_000_000_000_000, Period: shaper.MaxPeriod - time.Millisecond})
	if q != 31_000_000_000_000 || w != 31622400 {
		t.Errorf("q=%d w=%d", q, w)
	}
}

func TestLimitHeaders(t *testing.T) {
	a := shaper.Admission{Capacity: 1000, Remaining: 983, NextSlot: 1500 * time.Millisecond, Rate: shaper.Rate{Limit: 5, Period: 24 * time.Hour}}
	ietf := map[string]string{"Ratelimit-Policy": `"queue";q=1000, "drain";q=5;w=86400`, "Ratelimit": `"queue";r=983;t=2`}
	legacy := map[string]string{"X-Ratelimit-Limit": "1000", "X-Ratelimit-Remaining": "983", "X-Ratelimit-Retry-After": "0"}
	for mode, want := range map[HeaderMode][]map[string]string{
		HeadersIETF: {ietf}, HeadersLegacy: {legacy}, HeadersBoth: {ietf, legacy}, HeadersNone: nil,
	} {
		h := http.Header{}
		mode.limitHeaders(h, a, 0)
		n := 0
		for _, set := range want {
			for name, value := range set {
				n++
				if h.Get(name) != value {
					t.Errorf("%s: %s: %q, want %q", mode, name, h.Get(name), value)
				}
			}
		}
		if len(h) != n {
			t.Errorf("%s: %v", mode, h)
		}
	}
	a.Remaining = 0
	h := http.Header{}
	HeadersBoth.limitHeaders(h, a, 0)
	if h.Get("X-RateLimit-Retry-After") != "2" {
		t.Errorf("the last place taken: %v", h)
	}
	h = http.Header{}
	HeadersBoth.limitHeaders(h, shaper.Admission{Capacity: 1}, 30)
	if h.Get("RateLimit") != `"queue";r=0` || h.Get("RateLimit-Policy") != `"queue";q=1` || h.Get("X-RateLimit-Retry-After") != "30" {
		t.Errorf("nothing known but the capacity: %v", h)
	}
}

func TestRetryAfterIsNeverEarlyAndScattered(t *testing.T) {
	for _, wait := range []time.Duration{time.Millisecond, time.Second, 1001 * time.Millisecond, time.Minute, 24 * time.Hour} {
		seen := map[int64]bool{}
		for range 1000 {
			s := retryAfterSeconds(wait)
			if time.Duration(s)*time.Second < wait {
				t.Fatalf("%v: %d s is early", wait, s)
			}
			if time.Duration(s)*time.Second > wait+wait/10+3*time.Second {
				t.Fatalf("%v: %d s is far too late", wait, s)
			}
			seen[s] = true
		}
		if len(seen) < 2 {
			t.Errorf("%v: everyone is told %v", wait, seen)
		}
	}
}

const traced = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"

var traceParents = []struct{ in, out string }{
	{"00-" + traced + "-01", "00-" + traced + "-01"},
	{"00-" + traced + "-00", "00-" + traced + "-00"},
	{"00-" + traced + "-ff", "00-" + traced + "-ff"},
	{"01-" + traced + "-03", "00-" + traced + "-01"},
	{"cc-" + traced + "-02-what-is-to-come", "00-" + traced + "-00"},
	{"cc-" + traced + "-0b.what", ""},
	{"00-" + traced + "-01-", ""},
	{"00-" + traced + "-01-more", ""},
	{"00-" + traced + "-0", ""},
	{"00-" + traced + "-0G", ""},
	{"ff-" + traced + "-01", ""},
	{"0-" + traced + "-001", ""},
	{"00-" + strings.ToUpper(traced) + "-01", ""},
	{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", ""},
	{"00-0af7651916cd43dd8448eb211c80319c-" + strings.Repeat("0", 16) + "-01", ""},
	{"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01", ""},
	{"", ""},
	{"\xff", ""},
}

func TestTraceParent(t *testing.T) {
	for _, c := range traceParents {
		if got := traceParentOf(http.Header{"Traceparent": {c.in}}); got != c.out {
			t.Errorf("%q: %q, want %q", c.in, got, c.out)
		}
	}
	if got := traceParentOf(http.Header{"Traceparent": {traceParents[0].in, traceParents[1].in}}); got != "" {
		t.Errorf("of two: %q", got)
	}
	b := newBench(t)
	h := headers{"traceparent": traceParents[0].in}
	b.submit(plainJob, h)
	b.intake.do(t, "POST", "/v1/jobs/batch", h, `{"jobs":[`+plainJob+`,`+plainJob+`]}`)
	ids := b.queue.IDs()
	b.submit(plainJob, headers{"traceparent": "nonsense"})
	for i, id := range b.queue.IDs() {
		want := traceParents[0].out
		if i >= len(ids) {
			want = ""
		}
		if got := b.queue.Submission(id).TraceParent; got != want {
			t.Errorf("job %d: %q, want %q", i, got, want)
		}
	}
}
