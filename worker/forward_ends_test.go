package worker

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestForwardedToItsEnd: before holds or expired leases make a forwarded request a dead letter, it
// ends: with the upstream's answer, or as unanswered.
func TestForwardedToItsEnd(t *testing.T) {
	busy := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte("too busy"))
	}
	for _, one := range []struct {
		name          string
		free, attempt int
		expired       bool
		event         shaper.Event
	}{
		{"a hold is left", forwardHolds - 1, 3, false, shaper.Hold},
		{"none is left", forwardHolds, 1, false, shaper.Succeed},
		{"a lease has expired", forwardHolds - 1, 3, true, shaper.Hold},
		{"held as often as may be, then its worker stopped", forwardHolds, 1, true, shaper.Succeed},
		{"too many have", shaper.FreeLeases, 1, true, shaper.Die},
	} {
		s := forwardLease(t, as, httpmsg.Request{Method: "GET", Target: "/"}, func(l *queue.Lease) {
			l.FreeLeases, l.Attempt, l.Expired = one.free, one.attempt, one.expired
		}, busy)
		if s.Event != one.event {
			t.Errorf("%s: %s, want %s", one.name, s.Event, one.event)
		}
		switch one.event {
		case shaper.Succeed:
			a, err := httpmsg.DecodeAnswer(s.Answer)
			if err != nil || a.Status != http.StatusTooManyRequests || string(a.Body) != "too busy" || a.Header.Get("Retry-After") != "7" {
				t.Errorf("%s: %+v, %v", one.name, a, err)
			}
		case shaper.Die:
			queuetest.Compare(t, one.name, []any{s.Final, s.Retention}, []any{true, 10 * time.Minute})
		}
	}
}

// TestHeldRequestsEnd: the breaker's last hold of a forwarded request is its failure, and that of a
// job stays a hold.
func TestHeldRequestsEnd(t *testing.T) {
	for name, r := range map[string]Route{
		"a request": {Forward: &Forward{URL: "http://upstream.test/"}}, "a job": {URL: "http://upstream.test/"},
	} {
		b := guarded(t, Breaker{Failures: 1, Delay: time.Minute}, &upstream{}, slog.New(slog.DiscardHandler))
		b.route.Forward, b.route.URL = r.withDefaults().Forward, r.URL
		b.all.state, b.all.until = reports.BreakerOpen, b.watch.now().add(time.Minute)
		s := b.Deliver(t.Context(), &queue.Lease{Attempt: 1, FreeLeases: forwardHolds, Tenant: "t"})
		want := []any{shaper.Hold, false}
		if name == "a request" {
			want = []any{shaper.Die, true}
		}
		queuetest.Compare(t, name, []any{s.Event, s.Final}, want)
	}
}
