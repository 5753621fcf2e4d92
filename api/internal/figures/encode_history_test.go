package figures

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// Arrivals at other processes are counted from sample to sample, not in the half seconds in which
// this process had some.
func TestHistoryIncludesOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := NewArrivals()
		time.Sleep(2 * time.Minute) // nothing is known from the beginning
		now := time.Now()
		ago := func(s float64) time.Time { return now.Add(-time.Duration(s * float64(time.Second))) }
		for i := range 10 { // in the last second before the sample 20 s ago
			log.Note("acme", Arrival{
				At: shaper.InstantOf(ago(20.9 - float64(i)/100)), Cost: 1, Admitted: true,
			})
		}
		log.Note("acme", Arrival{At: shaper.InstantOf(ago(5)), Cost: 1})
		samples := []sample{
			{at: ago(70), admitted: 100}, {at: ago(30), admitted: 100}, {at: ago(20), admitted: 400},
			{at: ago(10), gap: true, admitted: 900}, {at: now, admitted: 900, refused: 1},
		}
		spans := arrivalSpans(log.Since(now), now, samples, log.CountsOfAll)
		var wide, fine []wire.PastArrivals
		for _, s := range spans {
			if s.Until.Sub(s.From) > fineSpan {
				wide = append(wide, s)
			} else {
				fine = append(fine, s)
			}
		}
		if len(wide) != 1 || !wide[0].From.Equal(ago(30)) || !wide[0].Until.Equal(ago(20)) ||
			wide[0].Admitted != 300 {
			t.Errorf("what came to all is %+v", wide)
		}
		if len(fine) != 60+20 || !fine[0].From.Equal(ago(60)) ||
			slices.ContainsFunc(fine, func(s wire.PastArrivals) bool { return s.Admitted != 0 }) {
			t.Errorf("what came here is %+v", fine)
		}
	})
}

// Spans count each arrival at most once, whatever the times of the readings.
func TestSpans(t *testing.T) {
	log := NewArrivals()
	now := time.Now().Add(2 * ArrivalsAge)
	rapid.Check(t, func(t *rapid.T) {
		var came []time.Duration // before now
		counts := func(edges []shaper.Instant) []Count {
			out := make([]Count, len(edges)-1)
			for k := range out {
				for _, d := range came {
					if at := shaper.InstantOf(now.Add(-d)); at >= edges[k] && at < edges[k+1] {
						out[k].Admitted++
					}
				}
			}
			return out
		}
		var samples []sample
		all := int64(0)
		for at := 80 * time.Second; at >= 0; at -= time.Duration(rapid.Int64Range(1, 20e9).Draw(t, "step")) {
			n := rapid.Int64Range(0, 40).Draw(t, "came")
			if rapid.Bool().Draw(t, "here") && len(samples) > 0 {
				for range n {
					came = append(came, at+time.Duration(rapid.Int64Range(0,
						int64(now.Sub(samples[len(samples)-1].at)-at)).Draw(t, "at")))
				}
			}
			if len(samples) == 0 {
				n = 0
			}
			all += n
			samples = append(samples, sample{at: now.Add(-at), admitted: all})
		}
		spans, sum := arrivalSpans(log.Since(now), now, samples, counts), int64(0)
		for i, s := range spans {
			if i > 0 && s.From.Before(spans[i-1].Until) || s.Until.Before(s.From) {
				t.Fatalf("%+v after %+v", s, spans[i-1])
			}
			sum += s.Admitted
		}
		if slack := all/25 + 3*int64(len(samples)); sum > all+slack {
			t.Fatalf("%d of %d arrivals returned", sum, all)
		}
	})
}
