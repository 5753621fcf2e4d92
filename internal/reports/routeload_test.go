package reports

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzRoutes: whatever a report says, it is read or left out, and what was read is written and read
// again as the same.
func FuzzRoutes(f *testing.F) {
	f.Add(`{"default":{"b":2,"i":3,"e":40,"f":5},"other":{"i":1}}`)
	f.Add(`{"a b:c":{"b":1},"":{"b":1},"x":{"b":3},"y":{"b":-1},"z":{"i":-1}}`)
	f.Add(`{"x":{"b":"open"}}`)
	f.Add("default:2:3:40:5")
	f.Fuzz(func(t *testing.T, report string) {
		got, again := map[string]RouteLoad{}, map[string]RouteLoad{}
		addRoutes(got, report)
		// The sum of several.
		maps.DeleteFunc(got, func(_ string, l RouteLoad) bool {
			return max(l.InFlight, l.Ended, l.Failed, l.Streams) > 1<<40
		})
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		addRoutes(again, string(text))
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("%q: (-read +read again)\n%s", report, diff)
		}
		if strings.TrimSpace(report) == "" && len(got) > 0 {
			t.Errorf("%q is read as %v", report, got)
		}
	})
}

func TestReportsOfRoutesAreJoined(t *testing.T) {
	got := map[string]RouteLoad{}
	for _, report := range []string{
		`{"default":{"b":2,"e":10,"f":10,"l":{"t":7,"n":"acme","j":"a","m":"answered 500","d":"x","s":500}},"a b:c/é":{"i":1,"e":2}}`,
		`{"default":{"b":1,"i":3,"e":5,"f":1,"l":{"t":5,"n":"other","j":"b","m":"too old"}}}`, `{"default":{"l":{"t":9}}}`,
	} {
		addRoutes(got, report)
	}
	for _, bad := range []string{
		`{"default":{"b":9,"i":1}}`, `{"default":{"b":-1,"i":1}}`, `{"default":1}`, `{"default":{"i":"x"}}`,
		`{"":{"i":1}}`,
		`{"default":{"f":1152921504606846976}}`, `{"default":{"i":1}`, "default:0:1:1:1", "",
	} {
		addRoutes(got, bad)
	}
	want := map[string]RouteLoad{
		"default": {Breaker: BreakerOpen, InFlight: 3, Ended: 15, Failed: 11, Last: Failure{7, "acme", "a", "answered 500", "x", 500}},
		"a b:c/é": {InFlight: 1, Ended: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestStreamsOfSeveralWorkers(t *testing.T) {
	got := map[string]RouteLoad{}
	for _, report := range []string{`{"a":{"s":2,"o":500}}`, `{"a":{"i":1}}`, `{"a":{"s":1,"o":300}}`, `{"a":{"s":-1,"o":1}}`} {
		addRoutes(got, report)
	}
	if want := (RouteLoad{InFlight: 1, Streams: 3, Oldest: 300}); got["a"] != want {
		t.Errorf("%+v, want %+v", got["a"], want)
	}
}

// A token that one worker lacks is a problem of the route. Of their tokens the one that ends first
// counts; an instant that is none is ignored.
func TestTokensOfSeveralWorkers(t *testing.T) {
	got := map[string]RouteLoad{}
	for _, report := range []string{
		`{"a":{"u":500}}`, `{"a":{"t":"answered 401"}}`, `{"a":{"u":300}}`, `{"a":{"u":-5}}`, `{"a":{"u":9000000000000000}}`,
	} {
		addRoutes(got, report)
	}
	if want := (RouteLoad{Token: "answered 401", Until: 300}); got["a"] != want {
		t.Errorf("%+v, want %+v", got["a"], want)
	}
}
