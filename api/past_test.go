package api

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// A new stream has the history of the last minutes, also if there was no stream before.
func TestStreamBeginsWithTheHistory(t *testing.T) {
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
		if n < 10 || h.Overviews[0].Admitted != 0 || h.Overviews[3].Depth != 4 ||
			!h.Overviews[n-1].At.Equal(o.At) || h.Overviews[n-1].Depth != 5 {
			t.Errorf("%d overviews of the past are %.900s, then %+v", n, fmt.Sprintf("%+v", h.Overviews), o)
		}
		checkPast(t, "of all", r.began, h.Arrivals, 31*time.Second, 5)
		var past wire.TenantHistory
		var now wire.TenantNow
		r.last("tenant_history", &past)
		r.last("tenant", &now)
		n = len(past.Samples)
		if n < 5 || past.Samples[0].Admitted != 0 || past.Samples[1].Admitted != 3 ||
			past.Samples[1].Capacity != 1000 ||
			!past.Samples[n-1].At.Equal(now.At) || past.Samples[n-1].Admitted != 4 {
			t.Errorf("%d samples are %.900s, then %+v", n, fmt.Sprintf("%+v", past.Samples), now)
		}
		checkPast(t, "of a tenant", r.began, past.Arrivals, 31*time.Second, 4)
		for _, one := range [][2]string{{"history", "overview"}, {"tenant_history", "tenant"}} {
			before := slices.IndexFunc(r.events, func(e event) bool { return e.Event == one[0] })
			then := slices.IndexFunc(r.events, func(e event) bool { return e.Event == one[1] })
			if before < 0 || then < before {
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
func checkPast(
	t *testing.T, whose string, began time.Time, spans []wire.PastArrivals, first time.Duration, want int64,
) {
	t.Helper()
	var sum int64
	for i, s := range spans {
		if i > 0 && s.From.Before(spans[i-1].Until) || !s.From.Before(s.Until) ||
			s.Until.Sub(s.From) > time.Second {
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
