package api

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/api/internal/arrivals"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/shaper"
)

// Who opens a stream is told of the minutes before, also where nobody has followed them.
func TestStreamBeginsWithThePast(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		b.s.Remember()
		time.Sleep(3 * time.Second)
		for range 3 {
			b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
		}
		b.submit(plainJob, headers{"Sluice-Tenant": "other"})
		time.Sleep(21 * time.Second)
		b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
		time.Sleep(10 * time.Second)
		r := b.rollFor(100*time.Millisecond, "?tenant=acme", 0)
		var h wire.FigureHistory
		var o wire.Overview
		r.last("history", &h)
		r.last("overview", &o)
		n := len(h.Overviews)
		if n < 10 || h.Overviews[0].Admitted != 0 || h.Overviews[3].Depth != 4 || !h.Overviews[n-1].At.Equal(o.At) || h.Overviews[n-1].Depth != 5 {
			t.Errorf("%d overviews of the past are %.900s, then %+v", n, fmt.Sprintf("%+v", h.Overviews), o)
		}
		checkPast(t, "of all", r.began, h.Arrivals, 31*time.Second, 5)
		var past wire.TenantHistory
		var now wire.TenantNow
		r.last("tenant_history", &past)
		r.last("tenant", &now)
		n = len(past.Looks)
		if n < 5 || past.Looks[0].Admitted != 0 || past.Looks[1].Admitted != 3 || past.Looks[1].Capacity != 1000 ||
			!past.Looks[n-1].At.Equal(now.At) || past.Looks[n-1].Admitted != 4 {
			t.Errorf("%d looks are %.900s, then %+v", n, fmt.Sprintf("%+v", past.Looks), now)
		}
		checkPast(t, "of a tenant", r.began, past.Arrivals, 31*time.Second, 4)
		for _, one := range [][2]string{{"history", "overview"}, {"tenant_history", "tenant"}} {
			before := slices.IndexFunc(r.events, func(e event) bool { return e.Event == one[0] })
			if then := slices.IndexFunc(r.events, func(e event) bool { return e.Event == one[1] }); before < 0 || then < before {
				t.Errorf("%s is not before %s: %q", one[0], one[1], r.notes)
			}
		}
		r = b.rollFor(100*time.Millisecond, "", 0)
		if slices.ContainsFunc(r.events, func(e event) bool { return e.Event == "tenant_history" }) {
			t.Errorf("without a tenant: %q", r.notes)
		}
	})
}

// checkPast checks that the spans are in order and have want arrivals in total. If first is not 0,
// the first arrival must be that long before the stream began.
func checkPast(t *testing.T, whose string, began time.Time, spans []wire.PastArrivals, first time.Duration, want int64) {
	t.Helper()
	var sum int64
	for i, s := range spans {
		if i > 0 && s.From.Before(spans[i-1].Until) || !s.From.Before(s.Until) || s.Until.Sub(s.From) > time.Second {
			t.Errorf("%s: span %d is %+v", whose, i, s)
		}
		if sum += s.Admitted; sum > 0 && first > 0 {
			if ago := began.Sub(s.From); ago < first || ago > first+time.Second {
				t.Errorf("%s: the first came %v ago", whose, ago)
			}
			first = 0
		}
	}
	if sum != want {
		t.Errorf("%s: %d arrivals in %d spans", whose, sum, len(spans))
	}
}

// Jobs that came to other processes are counted, where they came: from one look to the next, not in
// the half seconds in which this process had some.
func TestThePastKnowsOtherProcesses(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		time.Sleep(2 * time.Minute) // nothing is known from the beginning
		now := time.Now()
		ago := func(s float64) time.Time { return now.Add(-time.Duration(s * float64(time.Second))) }
		for i := range 10 { // in the last second before the look 20 s ago
			b.s.arrivals.Note("acme", arrivals.Arrival{At: shaper.InstantOf(ago(20.9 - float64(i)/100)), Cost: 1, Admitted: true})
		}
		b.s.arrivals.Note("acme", arrivals.Arrival{At: shaper.InstantOf(ago(5)), Cost: 1})
		looks := []look{{at: ago(70), admitted: 100}, {at: ago(30), admitted: 100}, {at: ago(20), admitted: 400}, {at: ago(10), gap: true, admitted: 900}, {at: now, admitted: 900, refused: 1}}
		spans := b.s.spans(now, looks, b.s.arrivals.CountsOfAll)
		var wide, fine []wire.PastArrivals
		for _, s := range spans {
			if s.Until.Sub(s.From) > fineSpan {
				wide = append(wide, s)
			} else {
				fine = append(fine, s)
			}
		}
		if len(wide) != 1 || !wide[0].From.Equal(ago(30)) || !wide[0].Until.Equal(ago(20)) || wide[0].Admitted != 300 {
			t.Errorf("what came to all is %+v", wide)
		}
		if len(fine) != 60+20 || !fine[0].From.Equal(ago(60)) || slices.ContainsFunc(fine, func(s wire.PastArrivals) bool { return s.Admitted != 0 }) {
			t.Errorf("what came here is %+v", fine)
		}
	})
}

// Spans count each arrival at most once, whatever the times of the readings.
func TestSpans(t *testing.T) {
	s := &Server{arrivals: arrivals.New()}
	now := time.Now().Add(2 * arrivals.Kept)
	rapid.Check(t, func(t *rapid.T) {
		var came []time.Duration // before now
		counts := func(edges []shaper.Instant) []arrivals.Count {
			out := make([]arrivals.Count, len(edges)-1)
			for k := range out {
				for _, d := range came {
					if at := shaper.InstantOf(now.Add(-d)); at >= edges[k] && at < edges[k+1] {
						out[k].Admitted++
					}
				}
			}
			return out
		}
		var looks []look
		all := int64(0)
		for at := 80 * time.Second; at >= 0; at -= time.Duration(rapid.Int64Range(1, 20e9).Draw(t, "step")) {
			n := rapid.Int64Range(0, 40).Draw(t, "came")
			if rapid.Bool().Draw(t, "here") && len(looks) > 0 {
				for range n {
					came = append(came, at+time.Duration(rapid.Int64Range(0, int64(now.Sub(looks[len(looks)-1].at)-at)).Draw(t, "at")))
				}
			}
			if len(looks) == 0 {
				n = 0
			}
			all += n
			looks = append(looks, look{at: now.Add(-at), admitted: all})
		}
		spans, sum := s.spans(now, looks, counts), int64(0)
		for i, s := range spans {
			if i > 0 && s.From.Before(spans[i-1].Until) || s.Until.Before(s.From) {
				t.Fatalf("%+v after %+v", s, spans[i-1])
			}
			sum += s.Admitted
		}
		if slack := all/25 + 3*int64(len(looks)); sum > all+slack {
			t.Fatalf("%d of %d arrivals told", sum, all)
		}
	})
}
