package api

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// What the log has on bursts of refusals, on an outage of the store and its end, and on one
// without memory: a line for each, with the tenant encoded.
func TestErrorLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began := time.Now()
		l := newErrorLog(slog.New(slog.NewTextHandler(&out,
			&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Duration("t", a.Value.Time().Sub(began))
				}
				return a
			}})))
		acme := queue.Submission{Tenant: "acme", Route: "default"}
		for range 500 {
			l.decided(acme, false, shaper.Admission{Outcome: shaper.Full})
			l.decided(acme, false, shaper.Admission{Outcome: shaper.Admitted})
			l.decided(acme, false, shaper.Admission{Outcome: shaper.KeyReused})
		}
		l.decided(queue.Submission{Tenant: "Käse & Söhne", Route: "default"}, false, shaper.Admission{Outcome: shaper.Draining})
		time.Sleep(10 * time.Second)
		l.worked() // nothing was away
		away := problem.Of(fmt.Errorf("%w: dial tcp 127.0.0.1:6379: connect: connection refused",
			queue.ErrUnavailable))
		for range 40 {
			l.fault(away)
			time.Sleep(99 * time.Millisecond)
		}
		l.worked() // perhaps only a part of the store is back
		time.Sleep(time.Second)
		l.worked()
		l.worked()
		p := problem.Of(fmt.Errorf("%w: WRONGTYPE", queue.ErrScript))
		if p.Status != 500 || p.Type != problem.URN+"stored-data-damaged" || p.Header != nil {
			t.Errorf("damaged data is answered with %+v", p)
		}
		l.fault(problem.Of(fmt.Errorf("%w: OOM command not allowed when used memory > 'maxmemory'",
			queue.ErrUnavailable)))
		l.fault(problem.Of(errors.New("a fault")))
		l.end()
		want := `t=1s level=WARN msg="jobs were refused" tenant=acme route=default kind=queue-full count=500 within=1s
t=1s level=WARN msg="jobs were refused" tenant=ENCODED route=default kind=draining count=1 within=1s
t=11s level=WARN msg="requests failed" kind=unavailable count=11 within=1s error="queue: redis is unavailable: dial tcp 127.0.0.1:6379: connect: connection refused"
t=14.96s level=INFO msg="the store answers requests again" after=4.96s
t=14.96s level=WARN msg="requests failed" kind=unavailable count=29 within=3.871s error="queue: redis is unavailable: dial tcp 127.0.0.1:6379: connect: connection refused"
t=14.96s level=WARN msg="requests failed" kind=internal count=1 within=0s error="a fault"
t=14.96s level=WARN msg="requests failed" kind=out-of-memory count=1 within=0s error="queue: redis is unavailable: OOM command not allowed when used memory > 'maxmemory'" advice="it has reached its maxmemory: raise that, or purge what is stored"
`
		want = strings.Replace(want, "ENCODED", store.EncodeName("Käse & Söhne"), 1)
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(out.String(), "\n")); diff != "" {
			t.Error(diff)
		}
	})
}

// A panic is logged without the value, which might quote what a client sent, unless it is the
// runtime's.
func TestFaultText(t *testing.T) {
	for _, c := range []struct {
		do   func()
		want string
	}{
		{func() { panic(errors.New("secret")) }, "*errors.errorString"},
		{func() { panic("secret") }, "string"},
		{func() { _ = nobody[len(nobody)] }, "runtime error: index out of range [0] with length 0"},
	} {
		func() {
			defer func() {
				if got := faultText(recover()); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			}()
			c.do()
		}()
	}
}

var nobody []int

// The log names a forwarded request that cannot leave in time by the kind of its answer, which is
// another than that of a job.
func TestHopelessWaitInTheLog(t *testing.T) {
	for forwarded, want := range map[bool]string{false: "deadline-unreachable", true: "wait-hopeless"} {
		var out bytes.Buffer
		l := newErrorLog(slog.New(slog.NewTextHandler(&out, nil)))
		l.decided(queue.Submission{Tenant: "acme", Route: "erp"}, forwarded,
			shaper.Admission{Outcome: shaper.DeadlineUnreachable})
		l.end()
		if !strings.Contains(out.String(), "kind="+want+" ") {
			t.Errorf("forwarded %v: %s", forwarded, out.String())
		}
	}
}

// The log names a refusal by the kind of its answer.
func TestKindsInTheLog(t *testing.T) {
	for _, c := range []struct {
		a    shaper.Admission
		want problem.Kind
	}{
		{shaper.Admission{Outcome: shaper.Full, Asked: 3}, problem.QueueFull},
		{shaper.Admission{Outcome: shaper.Full, Asked: 3, Never: true}, problem.NeverFits},
		{shaper.Admission{Outcome: shaper.Full, Asked: 1, Never: true}, problem.QueueFull}, // a capacity of 0
		{shaper.Admission{Outcome: shaper.FullOfBytes, Asked: 1, Never: true}, problem.NeverFits},
	} {
		if got := outcomeOf(c.a.Outcome).kind(c.a); got != c.want {
			t.Errorf("%+v is logged as %s, want %s", c.a, got.Name, c.want.Name)
		}
	}
}
