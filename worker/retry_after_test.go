package worker

import (
	"context"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

// TestDatesByTheUpstreamsClock: a date in Retry-After counts from the Date of the same answer, so
// an upstream whose clock is ten minutes behind is obeyed.
func TestDatesByTheUpstreamsClock(t *testing.T) {
	there := time.Now().Add(-10 * time.Minute).UTC()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", there.Format(http.TimeFormat))
		w.Header().Set("Retry-After", there.Add(30*time.Second).Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	}
	s := deliverTo(t, Route{}, answer)
	queuetest.Compare(t, "the hold of a job", []any{s.Event, s.Delay}, []any{shaper.Hold, 30 * time.Second})
	s = forward(t, as, httpmsg.Request{Method: "GET", Target: "/"}, 1, answer)
	queuetest.Compare(t, "the hold of a request", []any{s.Event, s.Delay}, []any{shaper.Hold, 30 * time.Second})
}

// TestShortageCostsNoAttempt: while this machine has no file descriptors, jobs and requests are
// given back, after a pause, and nothing counts against the upstream.
func TestShortageCostsNoAttempt(t *testing.T) {
	short := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		job := newHTTPDeliverer(Route{URL: "http://upstream.test/"}.withDefaults(), answerCosts{pooled: noPool})
		job.upstream.Load().Transport.DialContext = short
		request := newForwarder(Route{Forward: &Forward{URL: "http://upstream.test/"}}.withDefaults(),
			answerCosts{pooled: noPool})
		request.upstream.Load().Transport.DialContext = short
		l := lease()
		for name, d := range map[string]deliverer{"a job": job, "a request": request} {
			if l.Payload = []byte(payload); name == "a request" {
				l.Payload = httpmsg.Request{Method: "POST", Target: "/"}.Encode()
			}
			s := d.Deliver(t.Context(), l)
			queuetest.Compare(t, name, []any{s.Event, s.NotSent}, []any{shaper.Release, true})
		}
		queuetest.Compare(t, "the pauses", time.Since(began), 2*shortagePause)
	})
}
