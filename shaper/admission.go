package shaper

import (
	"math"
	"time"
)

// Flow is the state of one flow that admission depends on.
type Flow struct {
	Bucket
	Depth   int64 // jobs that are scheduled, queued or retrying
	Queued  int64 // of these, the jobs that wait for a stamp
	Bytes   int64 // payload bytes of the jobs that Depth counts
	Stored  int64 // bytes that the store keeps of the flow, dead letters and answers too
	Cost    int64 // sum of the costs of the queued jobs
	Running int64 // jobs leased
	Seq     int64 // the last sequence given

	// Slots is how many deliveries at once keep the flow from leaving further jobs: all that its
	// concurrency allows, or those that it has while its upstream gives it no more. 0: none must
	// end first.
	Slots int64
	// Took is how long the slowest of its last deliveries took, by which a flow with Slots is
	// estimated; 0 when unknown.
	Took time.Duration
}

// Sampled is how many recent jobs Flow.Took is of.
const Sampled = 8

// Request is a job to admit.
type Request struct {
	// Size is the capacity that must be free: 1, or for an atomic batch the number of its jobs that
	// are not admitted yet, this one included.
	Size    int64
	Bytes   int64         // of the payloads of these jobs
	Payload int64         // bytes of the payload of this one
	Cost    int64         // intervals of one job, 1 to MaxCost
	Stored  int64         // bytes that this one takes in the store
	Type    string        // of the job
	Share   int64         // bytes that may be stored of the flow; 0 is no bound
	Closed  bool          // the store accepts no more bytes, or no new tenants
	Delay   time.Duration // not eligible before; 0 is at once
	MaxWait time.Duration // from admission to departure; 0 is no limit
	// Estimated says that deliveries replace the costs of the flow's jobs by actual ones. MaxWait
	// then refuses only what could not leave in time at a sixteenth of them, see Bucket.Correct.
	Estimated bool
	Replay    bool    // of a dead letter: its cost was admitted before, and no bound refuses it
	Pool      *Shared // that the flow is in; nil for none
}

// Outcome is the result of a submission.
type Outcome string

// The outcomes of a submission.
const (
	Admitted Outcome = "admitted" // stored; it will be delivered
	// Replayed: the idempotency key exists; the earlier job is the answer.
	Replayed            Outcome = "replayed"
	Full                Outcome = "full"                 // depth + size > capacity
	DeadlineUnreachable Outcome = "deadline_unreachable" // could not start within its max wait
	FullOfBytes         Outcome = "full_of_bytes"        // bytes + those of the job or batch > capacity in bytes
	// OverShare: the bytes stored of the flow would exceed its share of the store.
	OverShare Outcome = "over_share"
	StoreFull Outcome = "store_full" // the store accepts no more bytes, or no new tenants
	// TooCostly: the cost exceeds max_cost of the flow or of its pool.
	TooCostly Outcome = "too_costly"
	Draining  Outcome = "draining" // the tenant takes no jobs until it is resumed
	Denied    Outcome = "denied"   // the tenant may not use the route
	// TypeDenied: the tenant may not have jobs of this type.
	TypeDenied Outcome = "type_denied"
	KeyReused  Outcome = "key_reused" // the idempotency key exists with another fingerprint
)

// StorePart is a part of the store, by what bounds it.
type StorePart string

// The parts of the store.
const (
	PartNetwork StorePart = "network" // new guests of one address, or of one /48 of IPv6
	PartTenants StorePart = "tenants" // tenants of a class
	PartBytes   StorePart = "bytes"   // bytes of a class
	PartReserve StorePart = "reserve" // the store without its reserve
)

// Admission is the decision on one request, with every fact that the client gets.
type Admission struct {
	Outcome   Outcome
	OfPool    bool    // of Full and FullOfBytes: the pool is full, and depth, capacity and bytes are those of the pool; of TooCostly: the bound is the pool's
	OfPart    bool    // of OfPool: only the part of the pool that the flow may hold now is full, and the figures are those
	Now       Instant // the instant of the decision
	Position  int64   // 1 is next; 0 unless the job is queued
	Start     Instant // estimated departure; of Full and FullOfBytes: when all jobs queued now have left; 0 while paused or unknown
	Depth     int64   // after the decision, e.g. 17
	Capacity  int64   // e.g. 1000
	Remaining int64   // capacity left after the decision, e.g. 983

	Bytes, CapacityBytes int64 // of the payloads after the decision; their bound, 0 for none

	// Part is the bound that refused with StoreFull and OfPart, and PartGuests the new guests that
	// PartNetwork allows.
	Part       StorePart
	PartGuests int64

	Stored, Share int64 // of OverShare: bytes stored of the flow, and their bound
	Cost, MaxCost int64 // of TooCostly: the cost, and the bound that it exceeds

	// RetryAfter is the time until the job or batch fits, at least 1 ms. It is 0 when admitted,
	// paused, unknown or if it can never fit.
	RetryAfter time.Duration
	Estimated  bool // RetryAfter is no exact time: it depends on deliveries, other flows, bytes or costs
	// Of Full and FullOfBytes: the jobs, and bytes as they are stored, that needed capacity at
	// once, and whether they never fit, not even into an empty queue.
	Asked, AskedBytes int64
	Never             bool
	// NextSlot is the time until a departure frees capacity; 0 when the queue is empty, or when it
	// is unknown.
	NextSlot time.Duration
	Rate     Rate // the flow's drain rate, the strictest of its paces
}

// Admit decides whether the request enters the flow at now under the policy. The returned flow has
// the job counted in; it is unchanged when the job is refused. later lists the eligible times of
// the scheduled and retrying jobs, earliest first; only a refusal of a flow with too few queued
// jobs needs it.
func Admit(f Flow, p Policy, now Instant, r Request, later []Instant) (Flow, Admission) {
	a := Admission{Now: now, Capacity: p.Capacity, CapacityBytes: p.CapacityBytes, Rate: p.DrainRate()}
	eligible := now.Add(r.Delay)
	var drained, sure Instant // sure is by the paces alone: an estimate of deliveries refuses nothing
	if !p.Paused {
		drained = max(f.StartIn(r.Pool, f.Queued, f.Cost, now), 0)
		sure = max(f.pacedStart(r.Pool, f.Queued, f.Cost, now), 0)
	}
	start := drained
	if start != 0 {
		start = max(start, eligible)
	}
	soonest := sure // with costs that are estimates
	if sure != 0 {
		if r.Estimated {
			soonest = now + (sure-now)/leastApart
		}
		sure, soonest = max(sure, eligible), max(soonest, eligible)
	}
	full, departures := fullOf(f, p, r.Size, r.Bytes)
	inPool := Admission{Now: now, Rate: p.DrainRate()}
	ofPool := r.Pool.refuses(&inPool, f, r, now)
	bound, boundOfPool := costBound(p, r.Pool)
	switch {
	case p.Denied:
		a.Outcome = Denied
	case !p.AllowsType(r.Type):
		a.Outcome = TypeDenied
	case bound > 0 && r.Cost > bound && !r.Replay:
		a.Outcome, a.Cost, a.MaxCost = TooCostly, r.Cost, bound
	case p.Draining:
		a.Outcome = Draining
	case ofPool && (full == "" || departures > 0 && inPool.Never): // never is the better answer
		a = inPool
		a.Start = drained
	case full != "":
		a.Outcome, a.Start, a.Asked, a.AskedBytes, a.Never = full, drained, r.Size, r.Bytes, departures == 0
		if departures > 0 {
			var exact bool
			a.RetryAfter, exact = f.retryAfter(p, r.Pool, now, departures, later)
			a.Estimated = a.RetryAfter > 0 && !(exact && full == Full)
		}
	case r.Closed:
		a.Outcome = StoreFull
	case r.Share > 0 && f.Stored+r.Bytes > r.Share:
		a.Outcome, a.Stored, a.Share = OverShare, f.Stored, r.Share
	case r.MaxWait > 0 && !p.Paused && (sure == 0 || soonest > now.Add(r.MaxWait)):
		a.Outcome, a.Start = DeadlineUnreachable, sure
	default:
		a.Outcome = Admitted
		if r.Delay <= 0 {
			if f.Queued == 0 {
				f.Bucket = f.MarkReady(now)
			}
			f.Queued++
			f.Cost += r.Cost
			a.Position = f.Queued
		}
		f.Depth++
		f.Bytes += r.Payload
		f.Stored += r.Stored
		f.Seq++
		a.Start = start
	}
	if !a.OfPool {
		a.Depth, a.Bytes = f.Depth, f.Bytes
		a.Remaining = max(0, p.Capacity-f.Depth)
	}
	a.OfPool = a.OfPool || a.Outcome == TooCostly && boundOfPool
	if f.Queued > 0 && !p.Paused {
		if next := f.StartIn(r.Pool, 0, 0, now); next != 0 {
			a.NextSlot = next.Sub(now)
		}
	}
	return f, a
}

// costBound is the greatest cost that the flow admits, 0 for no bound, and whether it is the
// pool's.
func costBound(p Policy, pool *Shared) (bound int64, ofPool bool) {
	if pool == nil {
		return p.MaxCost, false
	}
	bound = pool.Policy.PoolCost()
	if p.MaxCost > 0 && p.MaxCost <= bound {
		return p.MaxCost, false
	}
	return bound, true
}

// part is how much of a pool's capacity a flow may hold that holds some of it: at most three times
// what it leaves, and one more. So a greedy flow never keeps the others out.
func (s *Shared) part(capacity, taken, holds int64) int64 {
	return holds + floorDiv(3*(capacity-taken)-holds+3, 4)
}

// fullOf returns Full or FullOfBytes if size jobs with these bytes exceed that capacity, else "".
// departures is their number until they fit, 0 if they never do. Bytes are taken as spread evenly
// over the jobs. In doubles, as in the script.
func fullOf(f Flow, p Policy, size, bytes int64) (full Outcome, departures int64) {
	switch {
	case size > p.Capacity:
		return Full, 0
	case p.CapacityBytes > 0 && bytes > p.CapacityBytes:
		return FullOfBytes, 0
	case f.Depth+size > p.Capacity:
		return Full, f.Depth + size - p.Capacity
	case p.CapacityBytes > 0 && f.Bytes+bytes > p.CapacityBytes:
		return FullOfBytes, int64(math.Ceil(float64(f.Bytes+bytes-p.CapacityBytes) * float64(f.Depth) / float64(f.Bytes)))
	}
	return "", 0
}

// refuses reports whether a pool has no capacity for the request, or the flow has its part of it,
// and describes the refusal.
func (s *Shared) refuses(a *Admission, f Flow, r Request, now Instant) bool {
	if s == nil {
		return false
	}
	p, bytes := s.Policy, s.Flow.Bytes
	full, departures := fullOf(s.Flow, p, s.Size, s.Bytes)
	a.Asked, a.AskedBytes = s.Size, s.Bytes
	a.Depth, a.Capacity, a.Bytes, a.CapacityBytes = s.Depth, p.Capacity, bytes, p.CapacityBytes
	jobs, stored := s.part(p.Capacity, s.Depth, f.Depth), s.part(p.CapacityBytes, bytes, f.Bytes)
	alone, aloneBytes := s.part(p.Capacity, 0, 0), s.part(p.CapacityBytes, 0, 0)
	if p.CapacityBytes == 0 {
		stored, aloneBytes = 0, 0
	}
	tooMany, tooLarge := r.Size > alone, p.CapacityBytes > 0 && r.Bytes > aloneBytes
	part := func(outcome Outcome, left int64) {
		full, departures = outcome, min(s.Depth, left)
		a.OfPart, a.Depth, a.Capacity, a.Bytes, a.CapacityBytes = true, f.Depth, jobs, f.Bytes, stored
		a.Asked, a.AskedBytes = r.Size, r.Bytes
	}
	switch {
	case full != "" && departures == 0: // nothing of it fits, ever
	case tooMany || tooLarge: // not even into the empty pool
		full, departures, a.Asked, a.AskedBytes = FullOfBytes, 0, r.Size, r.Bytes
		if a.Capacity, a.CapacityBytes = alone, aloneBytes; tooMany {
			full = Full
		}
	case full != "":
	case f.Depth+r.Size > jobs:
		part(Full, (f.Depth+4*r.Size-3*(p.Capacity-s.Depth)-3+2)/3)
	case p.CapacityBytes > 0 && f.Bytes+r.Bytes > stored:
		over := float64(f.Bytes + 4*r.Bytes - 3*(p.CapacityBytes-bytes) - 3)
		part(FullOfBytes, int64(math.Ceil(over/3*float64(s.Depth)/float64(bytes))))
	default:
		return false
	}
	a.Outcome, a.Never = full, departures == 0
	a.OfPool, a.Remaining = true, max(0, a.Capacity-a.Depth)
	if departures > 0 {
		a.RetryAfter, _ = s.bounded().retryAfter(p, nil, now, departures, nil)
		a.Estimated = a.RetryAfter > 0
	}
	return true
}

// retryAfter is the time until the given number of jobs, at least 1, have left; 0 when unknown. It
// is exact while nothing but the paces of the flow decides, and no cost is unknown.
func (f Flow) retryAfter(
	p Policy, pool *Shared, now Instant, departures int64, later []Instant,
) (wait time.Duration, exact bool) {
	if p.Paused {
		return 0, false
	}
	var at Instant
	if departures <= f.Queued {
		at = f.StartIn(pool, departures-1, (departures-1)*f.Cost/f.Queued, now)
	} else {
		at = f.startOfLater(departures-f.Queued, now, later)
	}
	if at == 0 {
		return 0, false
	}
	exact = departures <= f.Queued && pool == nil && f.Slots == 0 &&
		(departures == 1 || f.Cost == f.Queued && f.Share == 0)
	return max(time.Millisecond, (at.Sub(now) + time.Millisecond - 1).Truncate(time.Millisecond)), exact
}

// LaterMost is how many scheduled and retrying jobs an estimate reads at most.
const LaterMost = 1000

// startOfLater estimates when the nth of the scheduled and retrying jobs leaves, after all that are
// queued now; 0 when unknown.
func (f Flow) startOfLater(n int64, now Instant, later []Instant) Instant {
	first := max(f.Earliest(), now)
	if n > int64(len(later)) || n > LaterMost || f.Start(f.Queued, f.Cost, now) == 0 {
		return 0
	}
	for _, c := range f.Cells {
		if float64(f.Cost)*float64(c.period()) > float64(farthest) {
			return 0
		}
	}
	b := f.Bucket
	if f.Cost > 0 {
		b = b.depart(nil, first, f.Queued, f.Cost)
	}
	var at Instant
	for _, eligible := range later[:n] {
		at = max(b.Earliest(), eligible, now)
		b = b.Depart(at, 1)
	}
	slot := f.slotAfter(f.Queued+n-1, f.Took, now)
	if slot == 0 {
		return 0
	}
	return max(at, slot)
}
