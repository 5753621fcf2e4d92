package api

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// outcome is what becomes of a submission: its label in metrics, the kind of problem that the log
// for operators names it by, and the answer. Without a kind the log leaves it out, without an
// answer the job was admitted.
type outcome struct {
	of     shaper.Outcome
	logged problem.Kind
	answer func(refusal) error
}

// outcomes has a row for every outcome that the queue decides. A reused key is not logged: it is
// the client's mistake, which an operator cannot mend.
var outcomes = []outcome{
	{of: shaper.Admitted},
	{of: shaper.Replayed},
	{shaper.Full, problem.QueueFull, refusal.full},
	{shaper.FullOfBytes, problem.QueueBytesFull, refusal.fullOfBytes},
	{shaper.OverShare, problem.QueueBytesFull, refusal.overShare},
	{shaper.StoreFull, problem.StoreFull, refusal.storeFull},
	{shaper.Draining, problem.TenantDraining, refusal.draining},
	{shaper.Denied, problem.Forbidden, refusal.denied},
	{shaper.TypeDenied, problem.Forbidden, refusal.typeDenied},
	{shaper.DeadlineUnreachable, problem.DeadlineFarAway, refusal.tooLate},
	{shaper.TooCostly, problem.TooCostly, refusal.tooCostly},
	{of: shaper.KeyReused, answer: refusal.keyReused},
}

// kind returns the kind that the log names a refusal by.
func (o outcome) kind(a shaper.Admission) problem.Kind {
	if fits := a.Asked == 1 && o.of == shaper.Full; a.Never && !fits { // with a capacity of 0, one is full
		return problem.NeverFits
	}
	return o.logged
}

// outcomeOf returns the row of an outcome; one that this version does not know is a fault.
func outcomeOf(of shaper.Outcome) outcome {
	for _, o := range outcomes {
		if o.of == of {
			return o
		}
	}
	return outcome{of: of, answer: refusal.unknown}
}

const (
	storeRetryAfter  = 5 * time.Second  // a guess: the store frees memory as jobs of any tenant leave
	pausedRetryAfter = 30 * time.Second // a guess: operators end pauses
)

// refusal explains why jobs were not admitted.
type refusal struct {
	shaper.Admission
	server *Server
	flow   string // whose retry slots Retry-After takes; empty where the answer has no headers
	route  string
	kind   string // type of the job; empty for none, and where it is not told
	pool   string // that bounds the jobs; empty: their flow does
	where  string // what is full
}

// refusal returns the problem of a rejected admission, nil if the jobs were admitted. For a full
// queue, Retry-After is the next turn of the flow, or of the pool that is full. flow is empty where
// the answer has no headers, and kind, the type of the job, where the answer must not have it.
func (s *Server) refusal(a shaper.Admission, flow, route, kind string) error {
	o := outcomeOf(a.Outcome)
	if o.answer == nil {
		return nil
	}
	r := refusal{Admission: a, server: s, flow: flow, route: route, kind: kind, where: "the queue"}
	if a.OfPool {
		r.pool = s.queue.PoolOf(route)
		r.where = "the pool " + r.pool
		if flow != "" {
			r.flow = flowName("", r.pool) // no tenant has the empty name
		}
	}
	if a.OfPart {
		r.where = "the part that the tenant may hold of the pool " + r.pool + " now"
	}
	return o.answer(r)
}

func (r refusal) full() error {
	depth, capacity, asked := strconv.FormatInt(r.Depth, 10), strconv.FormatInt(r.Capacity, 10), strconv.FormatInt(r.Asked, 10)
	p := r.scoped(problem.QueueFull.With(r.where + " holds " + depth + " of " + capacity + " jobs"))
	p.Depth, p.Capacity = new(r.Depth), new(r.Capacity)
	switch {
	case !r.Never:
		return r.again(p)
	case r.Asked == 1: // a capacity of 0
		p.Detail += "; it accepts none until its capacity is raised"
		return r.withState(p)
	}
	return r.neverFits(p, "a batch of "+asked+" jobs can never fit into a queue of "+capacity+
		": send fewer at once, or raise the capacity")
}

func (r refusal) fullOfBytes() error {
	capacity := strconv.FormatInt(r.CapacityBytes, 10)
	p := r.scoped(problem.QueueBytesFull.With("the payloads in " + r.where + " have " +
		strconv.FormatInt(r.Bytes, 10) + " of " + capacity + " bytes"))
	p.Bytes, p.CapacityBytes = new(r.Bytes), new(r.CapacityBytes)
	if !r.Never {
		return r.again(p)
	}
	return r.neverFits(p, "payloads of "+strconv.FormatInt(r.AskedBytes, 10)+" bytes at once can never fit into a "+
		"queue of "+capacity+", as they are stored: send less at once, or raise capacity_bytes")
}

func (r refusal) overShare() error {
	p := problem.QueueBytesFull.With("the route's stored jobs, dead letters and answers have " +
		strconv.FormatInt(r.Stored, 10) + " of the " + strconv.FormatInt(r.Share, 10) + " bytes that they may have now")
	p.Scope = "flow"
	p.StoredBytes, p.ShareBytes = new(r.Stored), new(r.Share)
	p.Header = http.Header{}
	seconds := problem.RetryAfter(storeRetryAfter)
	p.Retry(seconds)
	r.server.cfg.Headers.Queue(p.Header, r.Admission, seconds)
	return p
}

func (r refusal) storeFull() error {
	if r.OfPart {
		p := problem.StoreFull.With(partText(r.Admission))
		p.Scope = "share"
		return p.RetryIn(cmp.Or(r.RetryAfter, storeRetryAfter))
	}
	return problem.StoreFull.With("memory becomes free when jobs have left, or tenants have been idle " +
		"for ten minutes").RetryIn(storeRetryAfter)
}

// partText names the part of the store that is full, its settings, and what to do.
func partText(a shaper.Admission) string {
	const leave = "there is room again when jobs of it have left, or its tenants have been idle for ten minutes"
	switch a.Part {
	case shaper.PartNetwork:
		return "an address, of IPv6 a /48, may bring " + strconv.FormatInt(a.PartGuests, 10) + " new guests in ten " +
			"minutes, a 50th of those that store.guest_tenants allows but at least 16: wait, or use an API key " +
			"or an address that has sent jobs"
	case shaper.PartTenants:
		return "the tenant's class has as many tenants as store.guest_tenants, or tenant_share of its tier, allows: " +
			leave
	case shaper.PartBytes:
		return "the tenant's class has as many bytes as store.guest_share, or store_share of its tier, allows: " + leave
	}
	return "only the reserve of the store is left (store.reserve), for tenants with an API key or settings of their " +
		"own: memory becomes free when jobs have left, or tenants have been idle for ten minutes"
}

func (r refusal) draining() error {
	return problem.TenantDraining.With("it accepts jobs again when it is resumed").RetryIn(pausedRetryAfter)
}

// denied names what is missing, as the refusal of a credential does that does not allow the route.
func (r refusal) denied() error {
	p := problem.Forbidden.With("the tenant may not use the route " + r.route)
	p.Missing, p.Scope = r.route, "tenant"
	return p
}

func (r refusal) typeDenied() error {
	of := "of the type " + r.kind
	if r.kind == "" {
		of = "of this type"
	}
	p := problem.Forbidden.With("the tenant may not have jobs " + of + " on the route " + r.route)
	p.Missing, p.Scope = cmp.Or(r.kind, "type"), "tenant"
	return p
}

func (r refusal) tooLate() error {
	p := problem.DeadlineFarAway.With("no estimate: it would leave too far in the future")
	if r.Start != 0 {
		p.EstimatedStart = r.Start.Time()
		p.EstimatedWaitMS = max(0, r.Start.Sub(r.Now).Milliseconds())
		p.Detail = "the job would leave in about " + strconv.FormatInt(p.EstimatedWaitMS, 10) + " ms"
	}
	return p
}

func (r refusal) tooCostly() error {
	setting, most := "max_cost", strconv.FormatInt(r.MaxCost, 10)
	if r.pool != "" {
		setting = "pools." + r.pool + ".max_cost"
	}
	p := problem.TooCostly.With("cost " + strconv.FormatInt(r.Cost, 10) + " exceeds " + setting + ", which is " + most)
	p.Errors = []wire.FieldError{{Field: "cost", Kind: "number", Value: strconv.FormatInt(r.Cost, 10), Rule: "must be at most " + most + ": " + setting}}
	p.Cost, p.MaxCost = r.Cost, r.MaxCost
	return r.scoped(p)
}

func (r refusal) keyReused() error {
	if r.server.cfg.Routes[r.route].Forward != nil {
		return problem.KeyReused.With("the first request with this Idempotency-Key had another method, path, query or " +
			"body, or another Authorization, Cookie or X-Api-Key for the upstream")
	}
	return problem.KeyReused.With("the first submission with this Idempotency-Key had another payload, " +
		"content type, path, headers, type, route, delay or cost")
}

func (r refusal) unknown() error {
	p := problem.InternalFault.With("the server's log has the cause")
	p.Cause = errors.New("api: no answer for the outcome " + string(r.Outcome))
	return p
}

// scoped names whose figures p has: those of the flow, of the pool, or of the tenant's part of it.
func (r refusal) scoped(p *problem.Problem) *problem.Problem {
	p.Scope, p.Pool = "flow", r.pool
	switch {
	case r.OfPart && r.Outcome != shaper.TooCostly:
		p.Scope = "share"
	case r.pool != "":
		p.Scope = "pool"
	}
	return p
}

// neverFits is the refusal p of a full queue for good: it has no Retry-After.
func (r refusal) neverFits(p *problem.Problem, detail string) error {
	permanent := problem.NeverFits.With(detail)
	permanent.Depth, permanent.Capacity, permanent.Bytes, permanent.CapacityBytes = p.Depth, p.Capacity,
		p.Bytes, p.CapacityBytes
	permanent.Scope, permanent.Pool = p.Scope, p.Pool
	return r.withState(permanent)
}

// withState completes the 429 p, for which the client need not wait, with the state of the queue.
func (r refusal) withState(p *problem.Problem) error {
	p.Header = http.Header{}
	r.server.cfg.Headers.Queue(p.Header, r.Admission, 0)
	return p
}

// again completes the 429 p with when to come again: at the next retry slot of the flow or the
// pool, or, while that is not known, as for one that is paused, after a guess. Retry-After is never
// earlier than the t of RateLimit.
func (r refusal) again(p *problem.Problem) error {
	p.Header = http.Header{}
	seconds := problem.RetryAfter(max(r.NextSlot, pausedRetryAfter))
	if wait := r.server.retries.Take(r.flow, r.Admission, r.Asked); wait > 0 {
		seconds = problem.Seconds(wait)
	}
	p.RetryAfterMS, p.RetryAfterEstimated = problem.Millis(r.RetryAfter), r.Estimated
	p.Retry(seconds)
	r.server.cfg.Headers.Queue(p.Header, r.Admission, seconds)
	return p
}
