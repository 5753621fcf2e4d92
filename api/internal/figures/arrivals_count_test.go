package figures

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

func TestCounts(t *testing.T) {
	from := time.UnixMicro(1_000_000_000)
	at := func(ms int64) shaper.Instant { return shaper.InstantOf(from) + shaper.Instant(ms*1000) }
	l := NewArrivals()
	for _, a := range []Arrival{
		{At: at(-500), Cost: 1, Admitted: true}, // before
		{At: at(0), Cost: 5, Admitted: true},
		{At: at(0), Cost: 1},
		{At: at(999), Cost: 1, Admitted: true},
		{At: at(1500), Cost: 1, Route: "mail"},
		{At: at(1501), Cost: 1, Admitted: true},
		{At: at(3000), Cost: 1, Admitted: true}, // after
	} {
		if a.Route == "" {
			a.Route = "default"
		}
		l.Note("acme", a)
	}
	edges := []shaper.Instant{at(0), at(1000), at(2500), at(3000)}
	if got, want := l.Counts("acme", edges), []Count{{2, 1}, {1, 1}, {}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := l.Counts("nobody", edges); !slices.Equal(got, make([]Count, 3)) {
		t.Errorf("of nobody: %v", got)
	}
	l.Note("other", Arrival{At: at(2600), Cost: 1, Admitted: true})
	if got, want := l.CountsOfAll(edges), []Count{{2, 1}, {1, 1}, {1, 0}}; !slices.Equal(got, want) {
		t.Errorf("of all: %v, want %v", got, want)
	}
	for _, few := range [][]shaper.Instant{nil, {at(0)}} {
		if got := l.CountsOfAll(few); len(got) != 0 {
			t.Errorf("%v between %d edges", got, len(few))
		}
	}
}

// However a run lies, each of its arrivals inside is counted once, near where it was.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := run{
			at:   shaper.Instant(rapid.Int64Range(0, 3000).Draw(t, "at")),
			span: rapid.Uint32Range(0, 5000).Draw(t, "span"), n: rapid.Uint32Range(1, 10_000).Draw(t, "n"),
		}
		r.no = rapid.Uint32Range(0, r.n).Draw(t, "no")
		counts, edges := make([]Count, 10), []shaper.Instant{1000}
		for len(edges) <= len(counts) {
			edges = append(edges, edges[len(edges)-1]+shaper.Instant(rapid.Int64Range(1, 900).Draw(t, "width")))
		}
		end := edges[len(counts)]
		r.count(counts, edges)
		var sum, refused int64
		for k, c := range counts {
			if c.Admitted < 0 || c.Refused < 0 {
				t.Fatalf("%+v: %v", r, counts)
			}
			if outside := edges[k+1] <= r.at || edges[k] > r.at+shaper.Instant(r.span); outside && c != (Count{}) {
				t.Fatalf("%+v: %v counted in %d", r, c, k)
			}
			sum += c.Admitted + c.Refused
			refused += c.Refused
		}
		inside := r.at >= 1000 && r.at+shaper.Instant(r.span) < end
		if inside && (sum != int64(r.n) || refused != int64(r.no)) {
			t.Fatalf("%+v: %d, %d refused", r, sum, refused)
		}
	})
}
