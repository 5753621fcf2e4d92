package worker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

const (
	// maxOpen bounds the growing delay of a breaker, unless the one that is set is longer.
	maxOpen = time.Minute
	// minWait is the least time that jobs wait while another one probes.
	minWait = time.Second
	// minStreak is how long deliveries must have failed in a row: at a high rate, ten of them in a row
	// may be chance.
	minStreak = time.Second
	// minOverload is the same for an upstream that answers that it is overloaded: its flows slow down
	// first.
	minOverload = 10 * time.Second
)

// breaker is a deliverer that sends nothing to an unavailable upstream, so that jobs do not lose
// attempts on it:
//
//	closed     every job is sent; Breaker.Failures in a row open it
//	open       no job is sent; after the delay, the next job half-opens it
//	half-open  only that job, the probe, is sent; its failure opens the breaker for a longer delay,
//	           any other end closes it
//
// A failure is a delivery that found the upstream unavailable, or that takes longer than
// Breaker.SlowAfter. A slow delivery counts as soon as it exceeds SlowAfter, so a hanging upstream
// opens the breaker long before the first timeout. The end of that delivery is ignored. A probe may
// take its whole timeout, so a slow upstream that answers closes the breaker again. A job that is
// not sent holds its flow and costs no attempt, within the bounds that the queue sets to holds.
type breaker struct {
	next    deliverer
	route   Route
	watch   stopwatch
	log     *slog.Logger
	state   prometheus.Gauge
	held    prometheus.Counter
	load    *routeLoad // has the state, too; only written with the lock held
	mu      sync.Mutex
	turn    int            // grows with every change of state
	changed moment         // when that last was
	until   moment         // when it may half-open
	opened  int            // times since it was closed
	failing int            // deliveries in a row that have failed
	since   moment         // when the first of them did
	last    queue.JobError // of the last failure
}

// sending is a delivery under way.
type sending struct {
	turn int  // of the breaker when it began
	slow bool // it has counted as a failure already
}

var stateNames = [...]string{queue.BreakerClosed: "closed", queue.BreakerHalfOpen: "half-open", queue.BreakerOpen: "open"}

// newBreaker puts a breaker before the deliverer of an upstream.
func newBreaker(name string, r Route, next deliverer, watch stopwatch, m *metrics, load *routeLoad, log *slog.Logger) *breaker {
	return &breaker{
		next: next, route: r, watch: watch, log: log.With("route", name), load: load,
		state: m.breakerState.WithLabelValues(name), held: m.breakerHeld.WithLabelValues(name),
	}
}

func (b *breaker) Deliver(ctx context.Context, l queue.Lease) (s queue.Settlement) {
	turn, refused := b.enter()
	if refused != nil {
		b.held.Inc()
		refused.LeaseRef = l.LeaseRef
		return *refused
	}
	sent := &sending{turn: turn}
	slow := time.AfterFunc(b.route.Breaker.SlowAfter, func() { b.slow(sent) })
	// The end of a delivery that panics: a probe must not be out for ever.
	s = b.route.Retry.again(l, "the delivery panicked", 0)
	defer func() {
		slow.Stop()
		b.leave(ctx, sent, s)
	}()
	return b.next.Deliver(ctx, l)
}

// enter lets a job pass in a turn, or returns how it is settled instead.
func (b *breaker) enter() (turn int, refused *queue.Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, state := b.watch.now(), b.is()
	wait := b.until.since(now)
	switch {
	case state == queue.BreakerOpen && wait <= 0:
		b.become(queue.BreakerHalfOpen)
		b.log.Info("circuit breaker is half-open")
		return b.turn, nil
	case state == queue.BreakerClosed:
		return b.turn, nil
	case state == queue.BreakerHalfOpen:
		// A job has a limited number of holds, so it waits longer the longer the probe is out.
		wait = max(minWait, 2*now.since(b.changed))
	}
	return 0, &queue.Settlement{
		Event:       shaper.Hold,
		Delay:       wait + rand.N(wait/10+1), // flows held together do not come back together
		MaxAttempts: b.route.Retry.MaxAttempts,
		Cause:       queue.HoldCause{By: queue.HeldByBreaker, Status: b.last.Status},
		Error: &queue.JobError{
			Message: fmt.Sprintf("the route's circuit breaker is %s: %s", stateNames[state], b.last.Message), Detail: b.last.Detail,
		},
	}
}

// leave takes the end of a delivery into account. One that began in an earlier turn says nothing
// about this one, and neither does one that the worker's stop has cut off.
func (b *breaker) leave(ctx context.Context, sent *sending, s queue.Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case sent.turn != b.turn || sent.slow || ctx.Err() != nil:
	case unavailable(s):
		streak := minStreak
		if s.Overload {
			streak = minOverload
		}
		b.last = queue.JobError{Message: outbound.Cut(s.Error.Message), Detail: outbound.Cut(s.Error.Detail), Status: s.Error.Status}
		b.fail(b.watch.now(), streak)
	default:
		b.failing = 0
		if b.is() == queue.BreakerHalfOpen {
			b.log.Info("circuit breaker is closed", "openings", b.opened)
			b.opened = 0
			b.become(queue.BreakerClosed)
		}
	}
}

// slow takes a delivery into account that is under way for too long, unless it is a probe.
func (b *breaker) slow(sent *sending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if sent.turn != b.turn || b.is() == queue.BreakerHalfOpen {
		return
	}
	sent.slow = true
	after := b.route.Breaker.SlowAfter
	b.last = queue.JobError{Message: fmt.Sprintf("no answer within %v", after)}
	b.fail(b.watch.now().add(-after), minStreak)
}

// The rest is called with the lock held.

// fail counts a failure of an upstream that is unavailable since the given moment at least.
func (b *breaker) fail(since moment, streak time.Duration) {
	if b.failing == 0 {
		b.since = since
	}
	b.failing++
	long := b.failing >= b.route.Breaker.Failures && b.watch.now().since(b.since) >= streak
	if !long && b.is() != queue.BreakerHalfOpen {
		return
	}
	b.opened++
	growing := Retry{MinBackoff: b.route.Breaker.Delay, MaxBackoff: max(b.route.Breaker.Delay, maxOpen)}
	delay := growing.backoff(b.opened)
	b.become(queue.BreakerOpen)
	b.until = b.changed.add(delay)
	b.log.Warn("circuit breaker is open", "reason", b.last.Message, "detail", b.last.Detail, "for", delay.Round(time.Millisecond))
}

// become starts a new turn.
func (b *breaker) become(state queue.BreakerState) {
	b.turn++
	b.changed = b.watch.now()
	b.state.Set(float64(state))
	b.load.breaker.Store(int64(state))
}

func (b *breaker) is() queue.BreakerState { return queue.BreakerState(b.load.breaker.Load()) }

// unavailable reports whether a delivery found nobody who could decide what becomes of the job: it
// had no answer, or that of a gateway or of a server that is overloaded and does not know for how
// long.
func unavailable(s queue.Settlement) bool {
	if s.Event != shaper.Retry {
		return false
	}
	switch s.Error.Status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
