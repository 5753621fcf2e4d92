package api

import (
	"testing"
	"time"

	"github.com/7509e464/sluice/api/wire"
)

// Who opens a stream is told of the minutes before, also where nobody has followed them.
func TestStreamBeginsWithThePast(t *testing.T) {
	filmed(t, func(t *testing.T, b *bench) {
		b.s.Remember()
		for range 3 {
			b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
		}
		b.submit(plainJob, headers{"Sluice-Tenant": "other"})
		time.Sleep(21 * time.Second)
		b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
		time.Sleep(10 * time.Second)
		r := b.rollFor(100*time.Millisecond, "?tenant=acme", 0)
		if r.events[0].Event != "history" {
			t.Fatalf("it begins with %q", r.notes)
		}
		var h wire.FigureHistory
		r.last("history", &h)
		// Three of before, and perhaps the stream's own first reading.
		if n := len(h.Overviews); n < 3 || n > 4 || h.Overviews[0].Depth != 4 || h.Overviews[2].Depth != 5 || h.Overviews[1].At.Sub(h.Overviews[0].At) != 10*time.Second {
			t.Errorf("the overviews are %+v", h.Overviews)
		}
		sum, last := int64(0), 0
		for i, n := range h.Arrivals.Admitted {
			if sum += n; n > 0 {
				last = i
			}
		}
		ago := r.began.Sub(h.Arrivals.From) - time.Duration(int64(last)*h.Arrivals.WidthMS)*time.Millisecond
		if sum != 4 || len(h.Arrivals.Refused) != 120 || ago < 10*time.Second || ago > 10500*time.Millisecond {
			t.Errorf("%d arrivals, the last of them in a bin that began %v before: %+v", sum, ago, h.Arrivals)
		}
		r = b.rollFor(100*time.Millisecond, "", 0)
		if r.last("history", &h); len(h.Overviews) < 3 {
			t.Errorf("without a tenant: %+v", h)
		}
	})
}
