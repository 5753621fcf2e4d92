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

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// breaker is a deliverer that stops sending to an unavailable upstream. Its jobs keep their
// attempts meanwhile. It has a circuit for the route, and one for each flow:
//
//	closed     every job is sent; failures open it, see circuit.broken
//	open       no job is sent; after the delay the next job half-opens it
//	half-open  only that job, the probe, is sent; its failure opens the circuit for a longer delay,
//	           any other end closes it
//
// A failure is a delivery that found the upstream unavailable. One tenant does not decide for the
// others, whose paths may be well. The circuit of the route opens only if at least half of the
// tenants with deliveries in the last shareSpan fail, and at least two of them if there are two.
// Otherwise the circuit of the flow opens alone. A circuit of the route that one tenant alone has
// opened, because no other had deliveries, holds no other tenant.
//
// A slow upstream is no failure: only after a delivery has failed, and while none succeeds, those
// under way for more than Breaker.SlowAfter count too, until they end. So an upstream that hangs
// opens the circuit at the first timeout.
//
// A job that is not sent holds its flow and costs no attempt, within the bounds that the queue sets
// to holds.
type breaker struct {
	next  deliverer
	route Route
	watch stopwatch
	log   *slog.Logger
	load  *routeLoad    // counts what it holds, and has the state of the route
	slows *burstlog.Log // of circuits of flows that open
	named burstlog.Key  // the route

	mu      sync.Mutex
	changes int // of the states of circuits
	all     circuit
	by      int                     // tenants whose failures opened the circuit of the route
	alone   string                  // that tenant, if by is 1
	clean   bool                    // since then, a flow without failures was held
	flows   map[string]*flowCircuit // by tenant: those with a delivery in the last shareSpan, or not closed
	checked moment                  // when flows was last looked through
}

// flowCircuit is the circuit of a flow.
type flowCircuit struct {
	circuit
	last         moment // when a delivery last ended
	failed, well bool   // how that one ended
}

// sending is a delivery that the breaker has let pass.
type sending struct {
	tenant      string
	began       moment
	route, flow int  // generations of the circuits
	ofRoute     bool // it is the probe of the route's circuit
	ofFlow      bool // it is the probe of the flow's circuit
	slow        bool // it counts as slow
	ended       bool
}

// newBreaker puts a breaker before the deliverer of an upstream.
func newBreaker(
	name string, r Route, next deliverer, watch stopwatch, load *routeLoad, log *slog.Logger, slows *burstlog.Log,
) *breaker {
	return &breaker{
		next: next, route: r, watch: watch, log: log.With("route", name), load: load, slows: slows,
		named: burstlog.Key{Route: name}, flows: map[string]*flowCircuit{},
	}
}

func (b *breaker) Deliver(ctx context.Context, l *queue.Lease) (s queue.Settlement) {
	d, refused := b.enter(l.Tenant)
	if refused != nil {
		b.load.held.Add(1)
		if b.route.lastHold(l) {
			return b.route.unanswered(l, *refused.Error)
		}
		refused.LeaseRef = l.LeaseRef
		return *refused
	}
	slow := time.AfterFunc(b.route.Breaker.SlowAfter, func() { b.slow(d) })
	// The end of a delivery that panics says nothing, and a probe must not be under way for ever.
	s = queue.Settlement{NotSent: true}
	defer func() {
		slow.Stop()
		b.leave(ctx, d, s)
	}()
	return b.next.Deliver(context.WithValue(ctx, answeringKey{}, func() {
		slow.Stop()
		b.answering(d)
	}), l)
}

// answering ends the slowness of a delivery whose answer comes.
func (b *breaker) answering(d *sending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flows[d.tenant]; d.slow && f != nil {
		d.slow = false
		b.all.slow, f.slow = b.all.slow-1, f.slow-1
	}
}

// enter returns the delivery of a job that is sent, or how the job is settled instead.
func (b *breaker) enter(tenant string) (*sending, *queue.Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.watch.now()
	b.forget(now)
	f := b.flows[tenant]
	if f != nil {
		if wait := f.wait(now); wait > 0 {
			return nil, b.hold(&f.circuit, queue.HeldByFlowBreaker, "flow", wait)
		}
	}
	bound := b.by != 1 || tenant == b.alone
	if bound {
		wait := b.all.wait(now)
		clean := f == nil || f.failing == 0
		if b.all.state == reports.BreakerOpen {
			b.clean = b.clean || clean
			if wait == 0 && b.clean && !clean {
				// A flow without failures is a better probe. Its hold ends a tenth later at most.
				latest := b.all.until.add(b.all.until.since(b.all.changed)/10 + minWait)
				wait = min(minWait, max(0, latest.since(now)))
			}
		}
		if wait > 0 {
			return nil, b.hold(&b.all, queue.HeldByBreaker, "route", wait)
		}
	}
	d := &sending{tenant: tenant, began: now}
	if f != nil {
		if f.state == reports.BreakerOpen {
			b.change(&f.circuit, reports.BreakerHalfOpen, now)
			d.ofFlow = true
		}
		d.flow = f.generation
	}
	if bound && b.all.state == reports.BreakerOpen {
		b.changeRoute(reports.BreakerHalfOpen, now)
		d.ofRoute = true
	}
	d.route = b.all.generation
	return d, nil
}

// hold returns how a job is settled that a circuit does not let pass.
func (b *breaker) hold(c *circuit, by, of string, wait time.Duration) *queue.Settlement {
	return &queue.Settlement{
		Event:       shaper.Hold,
		Delay:       wait + rand.N(wait/10+1), // spreads flows that were held together
		MaxAttempts: b.route.Retry.MaxAttempts,
		Cause:       queue.HoldCause{By: by, Status: c.cause.Status},
		Error: &queue.JobError{
			Message: fmt.Sprintf("the %s's circuit breaker is %s: %s", of, c.state, c.cause.Message),
			Detail:  c.cause.Detail,
		},
	}
}

// flow returns the circuit of a tenant's flow.
func (b *breaker) flow(tenant string) *flowCircuit {
	f := b.flows[tenant]
	if f == nil {
		f = &flowCircuit{}
		b.flows[tenant] = f
	}
	return f
}

// forget drops the flows that had no delivery in the last shareSpan, once a second. While the
// circuit of the route is not closed, it must know who failed.
func (b *breaker) forget(now moment) {
	if now.since(b.checked) < time.Second {
		return
	}
	b.checked = now
	for tenant, f := range b.flows {
		switch {
		case now.since(f.last) <= shareSpan, f.slow > 0, f.state == reports.BreakerHalfOpen,
			f.state == reports.BreakerOpen && now.since(f.until) <= maxOpen,
			f.failing > 0 && b.all.state != reports.BreakerClosed:
		default:
			b.load.flows.Add(-notClosed(f.state))
			delete(b.flows, tenant)
		}
	}
}

// notClosed is 1 for a circuit that is not closed.
func notClosed(state reports.BreakerState) int64 { return int64(min(state, 1)) }

// leave takes the end of a delivery into account, unless it began in an earlier generation or was
// cut off by the worker's stop.
func (b *breaker) leave(ctx context.Context, d *sending, s queue.Settlement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.watch.now()
	b.forget(now)
	f := b.flow(d.tenant)
	if d.ended = true; d.slow {
		b.all.slow, f.slow = b.all.slow-1, f.slow-1
	}
	if ctx.Err() != nil || d.route != b.all.generation || d.flow != f.generation {
		return
	}
	f.last = now
	switch {
	case s.NotSent:
		b.spoilt(d, f, now)
	case unavailable(s):
		b.failed(d, f, s, now)
	default:
		b.succeeded(f, now)
	}
}

// spoilt ends a delivery that says nothing about the upstream. The next job may be the probe.
func (b *breaker) spoilt(d *sending, f *flowCircuit, now moment) {
	if d.ofFlow {
		b.change(&f.circuit, reports.BreakerOpen, now)
		f.until = now
	}
	if d.ofRoute {
		b.change(&b.all, reports.BreakerOpen, now)
		b.all.until = now
		b.load.breaker.Store(int64(reports.BreakerOpen))
	}
}

func (b *breaker) failed(d *sending, f *flowCircuit, s queue.Settlement, now moment) {
	f.failed, f.well = true, false
	b.all.fail(*s.Error, d.began, now, s.Overload)
	f.fail(*s.Error, d.began, now, s.Overload)
	// The failure of a probe always counts, or the circuit would stay half-open.
	if d.ofFlow {
		b.openFlow(d.tenant, f, now)
	}
	if d.ofRoute {
		b.openRoute(d.tenant, now)
		return
	}
	streak := minStreak
	if s.Overload {
		streak = minOverload
	}
	b.judge(d.tenant, f, streak, now)
}

// slow takes a delivery into account that is under way for too long, unless it is a probe.
func (b *breaker) slow(d *sending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.flow(d.tenant)
	if d.ended || d.ofRoute || d.ofFlow || d.route != b.all.generation || d.flow != f.generation {
		return
	}
	d.slow = true
	b.all.slow, f.slow = b.all.slow+1, f.slow+1
	b.judge(d.tenant, f, minStreak, b.watch.now())
}

// judge opens the circuit of the route, or else that of the flow, if it must.
func (b *breaker) judge(tenant string, f *flowCircuit, streak time.Duration, now moment) {
	rules := b.route.Breaker
	if b.all.broken(rules, now, streak) {
		bad, well := b.tenants(now)
		switch {
		case bad < well || bad == 1 && well > 0:
		case b.all.state == reports.BreakerClosed:
			b.openRoute(tenant, now)
			return
		default: // a tenant opened it alone, and another finds the same
			b.by = max(b.by, bad)
			return
		}
	}
	if f.state == reports.BreakerClosed && b.all.state == reports.BreakerClosed && f.broken(rules, now, streak) {
		b.openFlow(tenant, f, now)
	}
}

// tenants counts the tenants by the end of their last delivery in the last shareSpan. All guests
// count as one, because a client may be as many as it likes.
func (b *breaker) tenants(now moment) (bad, well int) {
	var guest *flowCircuit // whose delivery ended last
	count := func(f *flowCircuit) {
		switch {
		case f.failed:
			bad++
		case f.well:
			well++
		}
	}
	for tenant, f := range b.flows {
		switch {
		case now.since(f.last) > shareSpan:
		case !queue.IsGuest(tenant):
			count(f)
		case guest == nil || now.since(f.last) < now.since(guest.last):
			guest = f
		}
	}
	if guest != nil {
		count(guest)
	}
	return bad, well
}

// succeeded closes the circuits. If the flow had failed before, the upstream is back. Otherwise the
// flows that failed are probed one by one.
func (b *breaker) succeeded(f *flowCircuit, now moment) {
	clean := f.failing == 0
	f.failed, f.well = false, true
	f.succeed(now)
	b.all.succeed(now)
	if f.state != reports.BreakerClosed {
		b.change(&f.circuit, reports.BreakerClosed, now)
	}
	if b.all.state == reports.BreakerClosed {
		return
	}
	for _, other := range b.flows {
		switch {
		case other.failing == 0 || other.state != reports.BreakerClosed:
		case clean:
			b.change(&other.circuit, reports.BreakerOpen, now)
			other.opened = b.all.opened
			if other.until = now; b.by == 1 {
				other.until = max(b.all.until, now.add(minWait))
			}
		default:
			other.failing = 0
		}
	}
	b.changeRoute(reports.BreakerClosed, now)
}

// openFlow opens the circuit of a flow.
func (b *breaker) openFlow(tenant string, f *flowCircuit, now moment) {
	b.change(&f.circuit, reports.BreakerOpen, now)
	f.until = now.add(b.delay(&f.circuit))
	key := b.named
	key.Tenant, key.Kind = tenant, f.cause.Message
	b.slows.Add(key, 1, "detail", f.cause.Detail)
}

// openRoute opens the circuit of the route.
func (b *breaker) openRoute(tenant string, now moment) {
	bad, _ := b.tenants(now)
	b.by, b.alone, b.clean = max(b.by, bad), tenant, false
	b.changeRoute(reports.BreakerOpen, now)
}

// delay is how long a circuit is open that opens once more.
func (b *breaker) delay(c *circuit) time.Duration {
	c.opened++
	first := b.route.Breaker.Delay
	return Retry{MinBackoff: first, MaxBackoff: max(first, maxOpen)}.backoff(c.opened)
}

// change starts a new generation of a circuit in a state.
func (b *breaker) change(c *circuit, to reports.BreakerState, now moment) {
	b.changes++
	if c != &b.all {
		b.load.flows.Add(notClosed(to) - notClosed(c.state))
	}
	c.state, c.generation, c.changed = to, b.changes, now
	if to == reports.BreakerClosed {
		c.opened, c.ends = 0, ends{}
	}
}

// changeRoute does the same with the circuit of the route, and logs it.
func (b *breaker) changeRoute(to reports.BreakerState, now moment) {
	opened := b.all.opened
	b.change(&b.all, to, now)
	switch to {
	case reports.BreakerOpen:
		delay := b.delay(&b.all)
		b.all.until = now.add(delay)
		b.log.Warn("circuit breaker is open", "reason", b.all.cause.Message, "detail", b.all.cause.Detail,
			"tenants", b.by, "for", delay.Round(time.Millisecond))
	case reports.BreakerHalfOpen:
		b.log.Info("circuit breaker is half-open")
	case reports.BreakerClosed:
		b.by = 0
		b.log.Info("circuit breaker is closed", "openings", opened)
	}
	b.load.breaker.Store(int64(to))
}

// unavailable reports whether a delivery had no answer, that of a gateway, or that of a server that
// is overloaded and gives no Retry-After.
func unavailable(s queue.Settlement) bool {
	statuses := []int{0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	return (s.Event == shaper.Retry || s.Final) && slices.Contains(statuses, s.Error.Status)
}
