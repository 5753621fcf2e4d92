package codec

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/internal/problem"
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
		{[]string{"wait"}, ""}, {[]string{"wait="}, ""}, {[]string{"wait=-1"}, ""},
		{[]string{"wait=1.5"}, ""}, {[]string{"wait=x"}, ""},
		{[]string{"waiting=5"}, ""}, {[]string{",,;=,"}, ""}, {[]string{`"wait=5`}, ""}, {[]string{""}, ""},
	} {
		got := Prefer(http.Header{"Prefer": tt.values})
		applied := ""
		if got.Given {
			applied = got.Applied()
		}
		if applied != tt.want {
			t.Errorf("%q: %q, want %q", tt.values, applied, tt.want)
		}
	}
}

func TestIdempotencyKeyForms(t *testing.T) {
	long := strings.Repeat("k", 255)
	for value, want := range map[string]string{
		`"k-1"`: "k-1", "k-1": "k-1", "0-0": "0-0", `"a\"b"`: `a"b`, "a b": "a b", "é": "é", "\xff": "\xff",
		long: long, `"` + long + `"`: long,
		`"k";v=1`: "k", `'k'`: "'k'", "?1": "?1", `k"`: `k"`,
	} {
		if got, err := ReadKey(http.Header{KeyHeader: {value}}); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", value, got, err, want)
		}
	}
	for _, values := range [][]string{
		{""}, {`""`}, {`"`}, {`"k`}, {`"é"`}, {`"a" "b"`}, {"a\tb"}, {"a\x7f"}, {long + "k"},
		{`"` + long + `k"`}, {"a", "b"},
	} {
		if got, err := ReadKey(http.Header{KeyHeader: values}); err == nil || problem.Of(err).Status != 422 {
			t.Errorf("%q: %q %v, want a 422", values, got, err)
		}
	}
}

func TestIfMatch(t *testing.T) {
	for value, want := range map[string][]int64{
		`"7"`: {7}, `W/"7"`: {7}, `"7", W/"8" ,"x"`: {7, 8}, `"x"`: nil, `"a,b"`: nil, `"-1"`: {-1},
		`"99999999999999999999"`: nil,
	} {
		if got, err := IfMatch(http.Header{"If-Match": {value}}); err != nil || !got.Listed ||
			!slices.Equal(got.Revisions, want) {
			t.Errorf("%s: %+v %v, want %v", value, got, err, want)
		}
	}
	for _, value := range []string{"", ",", "7", `"7`, `7"`, `"`, `w/"7"`, `"7"8"`, `*, "7"`} {
		if got, err := IfMatch(http.Header{"If-Match": {value}}); err == nil {
			t.Errorf("%s: %+v, want an error", value, got)
		}
	}
}

const Traced = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"

var traceParents = []struct{ in, out string }{
	{"00-" + Traced + "-01", "00-" + Traced + "-01"},
	{"00-" + Traced + "-00", "00-" + Traced + "-00"},
	{"00-" + Traced + "-ff", "00-" + Traced + "-ff"},
	{"01-" + Traced + "-03", "00-" + Traced + "-01"},
	{"cc-" + Traced + "-02-what-is-to-come", "00-" + Traced + "-00"},
	{"cc-" + Traced + "-0b.what", ""},
	{"00-" + Traced + "-01-", ""},
	{"00-" + Traced + "-01-more", ""},
	{"00-" + Traced + "-0", ""},
	{"00-" + Traced + "-0G", ""},
	{"ff-" + Traced + "-01", ""},
	{"0-" + Traced + "-001", ""},
	{"00-" + strings.ToUpper(Traced) + "-01", ""},
	{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", ""},
	{"00-0af7651916cd43dd8448eb211c80319c-" + strings.Repeat("0", 16) + "-01", ""},
	{"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01", ""},
	{"", ""},
	{"\xff", ""},
}

func TestTraceParent(t *testing.T) {
	for _, c := range traceParents {
		if got := TraceParent(http.Header{"Traceparent": {c.in}}); got != c.out {
			t.Errorf("%q: %q, want %q", c.in, got, c.out)
		}
	}
	if got := TraceParent(http.Header{"Traceparent": {traceParents[0].in, traceParents[1].in}}); got != "" {
		t.Errorf("of two: %q", got)
	}
}
