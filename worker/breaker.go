package worker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/reports"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

const (
	// maxOpen bounds the growing delay, unless the one that is set is longer.
	maxOpen = time.Minute
	// minWait is the least time that jobs wait while another one is the probe.
	minWait = time.Second
	// minStreak is how long deliveries must have failed in a row. At a high rate, ten failures in a
	// row may be chance.
	minStreak = time.Second
	// minOverload is the same for an upstream that answers that it is overloaded: it is reachable,
	// and its flows slow down first.
	minOverload = 10 * time.Second
)

// breaker is a deliverer that stops sending to an unavailable upstream. Its jobs keep their
// attempts meanwhile:
//
//	closed     every job is sent; Breaker.Failures in a row open it
//	open       no job is sent; after the delay the next job half-opens it
//	half-open  only that job, the probe, is sent; its failure opens the breaker for a longer delay,
//	           any other end closes it
//
// A failure is a delivery that found the upstream unavailable, or that takes longer than
// Breaker.SlowAfter. A slow delivery counts as soon as it exceeds SlowAfter, so a hanging upstream
// opens the breaker long before the first timeout. The end of that delivery is ignored. A probe may
// take its whole timeout, so a slow upstream that answers closes the breaker again. A job that is
// not sent holds its flow and costs no attempt, within the bounds that the queue sets to holds.
//
// The library keeps the state. It counts failures in a row without their duration, and its delay
// cannot grow; both are kept here, hence the many fields.
type breaker struct {
	next  deliverer
	route Route
	watch stopwatch
	log   *slog.Logger
	load  *routeLoad // counts what it holds, and has its state

	mu      sync.Mutex
	circuit circuitbreaker.CircuitBreaker[any] // used under mu, and so is its listener
	turn    int                                // grows with every change of state
	changed moment                             // when that last was
	until   moment                             // when it may half-open
	opened  int                                // times since it was closed
	cause   queue.JobError                     // the last failure
	failing int                                // deliveries in a row that have failed
	since   moment                             // when the first of them did
}

// newBreaker puts a breaker before the deliverer of an upstream.
func newBreaker(r Route, next deliverer, watch stopwatch, load *routeLoad, log *slog.Logger) *breaker {
	b := &breaker{next: next, route: r, watch: watch, log: log, load: load}
	b.circuit = circuitbreaker.NewBuilder[any]().WithSuccessThreshold(1).WithDelay(0).
		OnStateChanged(b.onChange).Build()
	return b
}

// counted is the turn of a delivery that has counted as a failure before its end.
const counted = -1

func (b *breaker) Deliver(ctx context.Context, l queue.Lease) (s queue.Settlement) {
	turn, refused := b.enter()
	if refused != nil {
		b.load.held.Add(1)
		refused.LeaseRef = l.LeaseRef
		return *refused
	}
	slow := time.AfterFunc(b.route.Breaker.SlowAfter, func() { b.slow(&turn) })
	// The end of a delivery that panics: a probe must not be under way for ever.
	s = b.route.Retry.again(l, "the delivery panicked", 0)
	defer func() {
		slow.Stop()
		b.leave(ctx, &turn, s)
	}()
	return b.next.Deliver(ctx, l)
}

// enter returns the turn in which the job is sent, or how it is settled instead.
func (b *breaker) enter() (turn int, refused *queue.Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.watch.now()
	wait := b.until.since(now)
	if wait <= 0 {
		if b.circuit.TryAcquirePermit() {
			return b.turn, nil
		}
		// The longer the probe runs, the less likely it succeeds, and the holds of a job are
		// limited.
		wait = max(minWait, 2*now.since(b.changed))
	}
	return 0, &queue.Settlement{
		Event:       shaper.Hold,
		Delay:       wait + rand.N(wait/10+1), // spreads flows that were held together
		MaxAttempts: b.route.Retry.MaxAttempts,
		Cause:       queue.HoldCause{By: queue.HeldByBreaker, Status: b.cause.Status},
		Error: &queue.JobError{
			Message: fmt.Sprintf("the route's circuit breaker is %s: %s", b.circuit.State(), b.cause.Message),
			Detail:  b.cause.Detail,
		},
	}
}

// leave takes the end of a delivery into account, unless it began in an earlier turn or was cut off
// by the worker's stop.
func (b *breaker) leave(ctx context.Context, turn *int, s queue.Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case *turn != b.turn || ctx.Err() != nil:
	case unavailable(s):
		streak := minStreak
		if s.Overload {
			streak = minOverload
		}
		b.fail(*s.Error, b.watch.now(), streak)
	default:
		b.failing = 0
		b.circuit.RecordSuccess()
	}
}

// slow takes a delivery into account that is under way for too long, unless it is a probe.
func (b *breaker) slow(turn *int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *turn != b.turn || b.circuit.IsHalfOpen() {
		return
	}
	*turn = counted
	after := b.route.Breaker.SlowAfter
	b.fail(queue.JobError{Message: fmt.Sprintf("no answer within %v", after)}, b.watch.now().add(-after),
		minStreak)
}

// fail counts a failure of an upstream that is unavailable since the given moment at least. That of
// a probe always counts, or the breaker would stay half-open. The lock is held.
func (b *breaker) fail(cause queue.JobError, since moment, streak time.Duration) {
	cause.Message, cause.Detail = outbound.Cut(cause.Message), outbound.Cut(cause.Detail)
	b.cause = cause
	if b.failing == 0 {
		b.since = since
	}
	b.failing++
	enough := b.failing >= b.route.Breaker.Failures && b.watch.now().since(b.since) >= streak
	if enough || b.circuit.IsHalfOpen() {
		b.circuit.Open()
	}
}

// unavailable reports whether a delivery had no answer, that of a gateway, or that of a server that
// is overloaded and gives no Retry-After.
func unavailable(s queue.Settlement) bool {
	statuses := []int{0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	return (s.Event == shaper.Retry || s.Final) && slices.Contains(statuses, s.Error.Status)
}

// onChange starts a new turn in a state.
func (b *breaker) onChange(e circuitbreaker.StateChangedEvent) {
	b.turn++
	b.changed = b.watch.now()
	state := reports.BreakerClosed
	switch e.NewState {
	case circuitbreaker.OpenState:
		state = reports.BreakerOpen
		first := b.route.Breaker.Delay
		b.opened++
		delay := Retry{MinBackoff: first, MaxBackoff: max(first, maxOpen)}.backoff(b.opened)
		b.until = b.changed.add(delay)
		b.log.Warn("circuit breaker is open",
			"reason", b.cause.Message, "detail", b.cause.Detail, "for", delay.Round(time.Millisecond))
	case circuitbreaker.HalfOpenState:
		state = reports.BreakerHalfOpen
		b.log.Info("circuit breaker is half-open")
	case circuitbreaker.ClosedState:
		b.log.Info("circuit breaker is closed", "openings", b.opened)
		b.opened = 0
	}
	b.load.breaker.Store(int64(state))
}
