package arrivals

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
	l := New()
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
	if got, want := l.Counts("acme", from, time.Second, 3), []Count{{2, 1}, {1, 1}, {}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := l.Counts("nobody", from, time.Second, 2); !slices.Equal(got, make([]Count, 2)) {
		t.Errorf("of nobody: %v", got)
	}
}

// However a run lies, each of its arrivals inside is counted once, near where it was.
func TestShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := run{at: shaper.Instant(rapid.Int64Range(0, 3000).Draw(t, "at")), span: rapid.Uint32Range(0, 5000).Draw(t, "span"), n: rapid.Uint32Range(1, 10_000).Draw(t, "n")}
		r.no = rapid.Uint32Range(0, r.n).Draw(t, "no")
		counts := make([]Count, 10)
		r.share(counts, 1000, 500) // to 6000
		var sum, refused int64
		for k, c := range counts {
			if c.Admitted < 0 || c.Refused < 0 {
				t.Fatalf("%+v: %v", r, counts)
			}
			begin := shaper.Instant(1000 + 500*k)
			if outside := begin+500 <= r.at || begin > r.at+shaper.Instant(r.span); outside && c != (Count{}) {
				t.Fatalf("%+v: %v counted in %d", r, c, k)
			}
			sum += c.Admitted + c.Refused
			refused += c.Refused
		}
		if inside := r.at >= 1000 && r.at+shaper.Instant(r.span) < 6000; inside && (sum != int64(r.n) || refused != int64(r.no)) {
			t.Fatalf("%+v: %d, %d refused", r, sum, refused)
		}
	})
}
