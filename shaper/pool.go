package shaper

import (
	"cmp"
	"math"
	"strings"
	"time"
)

// Bounds of what a flow has in its pool.
const (
	MaxWeight = 1000
	MaxPools  = 256
)

// leadMost is more than a flow's virtual start can be ahead of the pool's virtual time. A tag that
// is further ahead is older than the last reduction of all virtual times, which the scripts make.
const leadMost = 2 * MaxCost * virtualUnit

// virtualUnit is how many units of virtual time a cost of 1 takes a flow of weight 1.
const virtualUnit = 1000

// Pool is the pacing state of a rate that several flows share. Its bucket gives the stamps. For
// each stamp, Pick chooses the flow that departs: first by reserves, as in mClock (Gulati et al.,
// OSDI 2010), then by weights, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
// A candidate is a flow with a waiting job that nothing of its own keeps from leaving at the stamp.
//
// The flows of a class are one candidate, whose tag has no reserve. When it is picked, the flow of
// the class leaves that could have left first. So the class gets no more for being many.
type Pool struct {
	Bucket
	Virtual int64 // V: the virtual start of the last departure by weight
	// Behind is how far, in µs, the clock of the reserves is behind that of the stamps. It grows
	// while the pool cannot give all reserves, see Advance.
	Behind int64
	// MaxCost is the greatest cost that a job is charged for, here and in the turns; 0 is no bound.
	// So a job delays the other flows by at most that many intervals.
	MaxCost int64
	// Earlier is the least bound of departures up to Changed, 0 if the bound has never changed.
	Earlier int64
	Changed Instant
	// Ahead is the instant up to which actual costs above the charges have taken the TATs. They may
	// take them further than a job could: see Exceed.
	Ahead  Instant
	Owed   int64 // the cost that all parties owe, see Exceed
	Spared int64 // µs that costly jobs have left the pool idle for others, see Spare
}

// Bounded returns the pool with another bound of costs, while this many jobs are leased. The TATs
// may be as far ahead as a job may take them by the new bound.
func (p Pool) Bounded(most, running int64, now Instant) Pool {
	if most != p.MaxCost && p.MaxCost > 0 {
		p.Ahead = 0
		if running > 0 && p.Earlier > 0 {
			p.Earlier = min(p.Earlier, p.MaxCost)
		} else {
			p.Earlier = p.MaxCost
		}
		p.Changed = max(now, p.Last)
	}
	p.MaxCost = most
	return p
}

// Charge is what a job of the cost is charged for.
func (p Pool) Charge(cost int64) int64 {
	if p.MaxCost > 0 {
		return min(cost, p.MaxCost)
	}
	return cost
}

// ChargeOf is what counts of a cost of a job that departed at the stamp, when its charge is
// corrected or given back. It is at most what the departure was charged for where that is cut: a
// bound that was raised since gives back no more.
func (p Pool) ChargeOf(cost int64, stamp Instant) int64 {
	if p.Earlier > 0 && stamp <= p.Changed {
		cost = min(cost, p.Earlier)
	}
	return p.Charge(cost)
}

// Exceed takes the actual cost of a departure that is above what it was charged for, both as of
// ChargeOf, and what its party owes, which is the flow or its class. It returns the part of the
// cost that counts at once, for the pool and for CorrectTag. The party owes the rest.
//
// The cost has left, and nobody expected it. If the pool paid for it at once, the others would wait
// for one party's jobs in flight. If it never did, the first jobs of many parties would leave as if
// they cost nothing. So while all together owe MaxCost, it does for the first job of a party that
// owes nothing: all but 1, so that the party owes for what else it has in flight.
//
// So what departs in an interval exceeds the rate by at most two jobs, and by what the jobs cost
// that are in flight before the first answer to their party.
func (p Pool) Exceed(owed, charged, actual int64, now Instant) (Pool, int64) {
	counts := charged
	if owed == 0 && p.MaxCost > 0 && p.Owed+actual-charged > p.MaxCost {
		counts = actual - 1
		p.Bucket = p.Correct(charged, counts, now)
		for _, cell := range p.Cells {
			p.Ahead = max(p.Ahead, cell.TAT)
		}
	}
	p.Owed += actual - counts
	return p, counts
}

// repaySpan is how long a pool pays for a debt at one turn: the others wait no longer for it. In a
// shorter one, a debt would cost more polls.
const repaySpan = 20 * time.Millisecond

// Repays is what a party repays at its turn at the stamp, of what it owes, and the part of that for
// which the pool has time that nobody used. It is a candidate while it owes, with or without jobs,
// and its turns repay before they take jobs. So the others get what they would beside a party whose
// jobs cost as much. The only candidate repays until a flow before it in turn comes, at next, or 0.
func (p Pool) Repays(owed int64, at, next Instant) (cost, unused int64) {
	cost, unused = p.Charge(owed), owed // without a pace by costs, no time is needed
	span := repaySpan.Microseconds()
	if next > 0 {
		span = min(span, int64(next-at))
	}
	for _, c := range p.Cells {
		if !c.ByJobs {
			// In doubles, in the same order as in the script.
			limit, period := float64(c.Rate.Limit), float64(c.period())
			cost = min(cost, int64(max(1, math.Floor(limit*float64(span)/period))))
			unused = int64(min(float64(unused), max(0, math.Floor(float64(at-c.TAT)*limit/period))))
		}
	}
	return min(owed, cost+unused), unused
}

// Coming is a flow with a waiting job that its own paces keep from leaving until an instant, or a
// class, until its first flow may leave.
type Coming struct {
	Candidate
	Due    Instant
	Missed bool // see Awaited.Missed
}

// Awaited is what a pool knows of the flow or the class for which it has idled. The zero value is
// that of one for which it has not.
type Awaited struct {
	Due      Instant // when the flow was to come
	Departed int64   // how many jobs of it had left before; of a class, its virtual start
}

// Missed reports whether the flow did not come when it was awaited, or now comes later, at due.
// departed is how many of its jobs have left: the pool idles for it again once a job of it has.
func (a Awaited) Missed(due, at Instant, departed int64) bool {
	return a.Due > 0 && a.Departed == departed && (at >= a.Due || due > a.Due)
}

// spareStep is how long a pool idles for a flow before it looks again: that flow may be paused, or
// its job cancelled. In shorter steps it would be polled more often.
const spareStep = 100 * time.Millisecond

// Spare returns the instant until which a job of the cost lets the pool idle at a stamp, for a flow
// whose turn is before its own and that comes soon; 0 for not at all. c is the only candidate, and
// has no reserve that is due. At that instant it is a candidate again.
//
// A job takes the pool for as long as it costs. A flow whose own rate is near its part of the pool
// cannot catch up with what it misses meanwhile: it would get one job for each job of the other,
// whatever that costs. So the pool waits if the job would delay that flow by more than one interval
// of the pool. For one flow it waits at most half as long as the job takes, or a step if that is
// longer, for all of them as long as the job takes, and a job of cost 1 never waits. A flow that
// did not come is not waited for: it would stay before the others in turn, since it never pays.
// Beside another candidate no job waits: then the turns alone give each its part.
//
// waited is the flow in coming that the pool idles for: the caller notes that it is Awaited.
func (p Pool) Spare(c Candidate, cost int64, at Instant, coming []Coming) (_ Pool, waited int, until Instant) {
	span := p.beyondOne(cost)
	end := at + Instant(min(span-p.Spared, max(span/2, spareStep.Microseconds())))
	waited = p.next(c, at, end, coming, func(f Coming) bool { return !f.Missed })
	if waited < 0 {
		return p, waited, 0
	}
	until = min(coming[waited].Due, at.Add(spareStep))
	p.Spared += int64(until - at)
	return p, waited, until
}

// Next returns when the first flow comes whose turn is before that of c, the only candidate at a
// stamp: after the stamp and before the end. 0 if none does.
func (p Pool) Next(c Candidate, at, end Instant, coming []Coming) Instant {
	if i := p.next(c, at, end, coming, func(Coming) bool { return true }); i >= 0 {
		return coming[i].Due
	}
	return 0
}

// next is the index of the flow that Next is about, of those that count; -1 for none.
func (p Pool) next(c Candidate, at, end Instant, coming []Coming, counts func(Coming) bool) int {
	next := -1
	for i, f := range coming {
		first := f.Due < end || next >= 0 && f.Due == end && f.Name < coming[next].Name
		if f.Due <= at || !first {
			continue
		}
		start := f.Start
		if start < p.Virtual || start > p.Virtual+leadMost {
			start = p.Virtual // as Enter will
		}
		if (start < c.Start || f.Reserve != (Cell{}) && f.Reserve.TAT <= f.Due-Instant(p.Behind)) && counts(f) {
			next, end = i, f.Due
		}
	}
	return next
}

// unspare notes that a job of the cost leaves, for which the pool may have idled.
func (p Pool) unspare(reserved bool, cost int64) Pool {
	if !reserved {
		p.Spared = max(0, p.Spared-p.beyondOne(cost))
	}
	return p
}

// beyondOne is how much longer than one interval a job of the cost takes the pool, in µs. In
// doubles, in the same order as in the script.
func (p Pool) beyondOne(cost int64) (span int64) {
	for _, c := range p.Cells {
		if !c.ByJobs {
			span = max(span, int64(math.Floor(float64(p.Charge(cost)-1)*float64(c.period())/float64(c.Rate.Limit))))
		}
	}
	return span
}

// Repay is Serve for a cost that the candidate owes: no job leaves, so the paces by jobs count
// none, and the pool has no other last stamp. For the unused part it takes no time.
func (p Pool) Repay(c Candidate, reserved bool, at Instant, cost, unused int64) (Pool, Tag) {
	p.Cells = append([]Cell(nil), p.Cells...)
	for i, cell := range p.Cells {
		p.Cells[i] = cell.charge(at, 0, cost-unused)
	}
	p.Owed -= cost
	return p.turn(c, reserved, at, cost)
}

// Tag is the turn of a flow in its pool. The zero value is that of a flow that was never served.
type Tag struct {
	Start   int64 // σ: the virtual start of its next job, in whole units
	Rem     int64 // and Rem/weight of a unit
	Reserve Cell  // ρ: the instant, by the clock of the reserves, from which its next job is reserved; zero without a reserve
	// Reserved says that the reserve took the flow's last departure.
	Reserved bool
}

// Candidate is a flow that may depart.
type Candidate struct {
	Name   string
	Weight int64 // 1 to MaxWeight
	Tag
}

// Obey returns the tag of a flow that has this weight and reserve from now on, zero for none. A new
// reserve is due at once, one job behind the clock of the reserves. A changed one is as far ahead
// of that clock as before, or behind it, in intervals.
func (p Pool) Obey(t Tag, weight int64, reserve Rate, now Instant) Tag {
	t.Rem = min(t.Rem, weight-1)
	before := t.Reserve
	if before.Rate == reserve {
		return t
	}
	if t.Reserve = (Cell{}); reserve == (Rate{}) {
		t.Reserved = false
		return t
	}
	t.Reserve.Pace = Pace{Rate: reserve, Burst: 1}
	due, ahead := now-Instant(p.Behind), -t.Reserve.interval()
	if before.Rate != (Rate{}) {
		longer := float64(float64(t.Reserve.period()) * float64(before.Rate.Limit))
		ratio := longer / float64(float64(before.period())*float64(reserve.Limit))
		scaled := float64(float64(before.TAT-due) * ratio)
		ahead = max(ahead, Instant(math.Floor(min(float64(chargeSpan.Microseconds()), scaled))))
	}
	t.Reserve.TAT = due + ahead
	return t
}

// Advance sets the clock of the reserves for a stamp. head is the candidate whose reserve was due
// first of those that were candidates for the stamp before, or left at it. The clock is at most one
// job ahead of it. So reserves above the pool's rate degrade in proportion, and nothing is owed
// afterwards.
func (p Pool) Advance(head Tag, at Instant) Pool {
	p.Behind = max(p.Behind, int64(at-head.Reserve.TAT-head.Reserve.interval()))
	return p
}

// Enter returns the tag of a flow that becomes a candidate for a stamp, and was none for the one
// before. Idleness earns no credit: the flow starts at the pool's virtual time, and its reserve is
// at most one job behind. A reserve further ahead than charges can take it is of damaged data, and
// begins anew.
func (p Pool) Enter(t Tag, at Instant) Tag {
	if t.Start < p.Virtual || t.Start > p.Virtual+leadMost {
		t.Start, t.Rem = p.Virtual, 0
	}
	if t.Reserve == (Cell{}) {
		return t
	}
	clock, interval := at-Instant(p.Behind), t.Reserve.interval()
	if behind := clock - interval; t.Reserve.TAT < behind || t.Reserve.TAT > clock.Add(chargeSpan)+interval {
		t.Reserve.TAT, t.Reserve.Rem, t.Reserve.Credit = behind, 0, 0
	}
	return t
}

// interval is T of the cell in whole µs, rounded up.
func (c Cell) interval() Instant {
	return Instant((c.period() + c.Rate.Limit - 1) / c.Rate.Limit)
}

// Pick chooses the candidate that departs at the stamp, and whether its reserve says so. There must
// be one. Ties are broken by name.
func (p Pool) Pick(candidates []Candidate, at Instant) (index int, reserved bool) {
	index = -1
	for i, c := range candidates {
		if c.Reserve == (Cell{}) || c.Reserve.TAT > at-Instant(p.Behind) {
			continue
		}
		if index < 0 || before(c, candidates[index], c.Reserve.TAT, candidates[index].Reserve.TAT) {
			index = i
		}
	}
	if index >= 0 {
		return index, true
	}
	for i, c := range candidates {
		if index < 0 || before(c, candidates[index], c.Start, candidates[index].Start) {
			index = i
		}
	}
	return index, false
}

func before[T cmp.Ordered](a, b Candidate, of, than T) bool {
	return cmp.Or(cmp.Compare(of, than), strings.Compare(a.Name, b.Name)) < 0
}

// Serve lets a job of the cost leave at the stamp, and returns the pool and the flow's next tag.
func (p Pool) Serve(c Candidate, reserved bool, at Instant, cost int64) (Pool, Tag) {
	cost = p.Charge(cost)
	p = p.unspare(reserved, cost)
	p.Bucket = p.Depart(at, cost)
	return p.turn(c, reserved, at, cost)
}

// turn lets a flow pay for a cost, with its reserve or by its weight.
func (p Pool) turn(c Candidate, reserved bool, at Instant, cost int64) (Pool, Tag) {
	t := c.Tag
	t.Reserved = reserved
	if !reserved {
		p.Virtual = max(p.Virtual, t.Start)
		sum := t.Rem + cost*virtualUnit
		t.Start, t.Rem = t.Start+sum/c.Weight, sum%c.Weight
		return p, t
	}
	t.Reserve = t.Reserve.pay(t.Reserve.Charged(1, cost), at-Instant(p.Behind))
	return p, t
}

// TurnCost is what the turn of a flow pays for a departure of the actual cost. A correction does
// not give the whole charge back to the pool, see leastApart. So the turn pays for that part, too:
// else a flow whose estimates are too high would always be next, and the others would get almost
// nothing.
func TurnCost(charged, actual int64) int64 {
	return max(actual, (charged+leastApart-1)/leastApart)
}

// CorrectTag replaces the cost that a departure of the flow was charged for by the actual one, both
// as of ChargeOf, and returns the flow's next tag. The reserve pays the difference if it took the
// flow's last departure; otherwise the weight does. Together they have paid for what the flow used.
//
// A refund may take σ below V, because the flow got too little while it was a candidate. idle says
// that it has become ready since the departure. Then a refund stops at V: idleness earns no credit.
//
// While two flows without a reserve are both candidates all the time, what they used for their
// weights differs by at most one job each, and twice the errors of their jobs in flight: where the
// interval begins, and where it ends.
func (p Pool) CorrectTag(c Candidate, charged, actual int64, idle bool, now Instant) Tag {
	t := c.Tag
	if t.Reserved {
		before := t.Reserve
		t.Reserve = before.pay(before.Charged(1, actual)-before.Charged(1, charged), now-Instant(p.Behind))
		if idle {
			t.Reserve.Credit = min(t.Reserve.Credit, before.Credit)
		}
		return t
	}
	least := int64(0)
	if idle {
		least = p.Virtual
	}
	sum := t.Rem + (actual-charged)*virtualUnit
	by := floorDiv(sum, c.Weight)
	start := max(min(t.Start, least), min(t.Start+by, max(t.Start, p.Virtual+leadMost)))
	if t.Rem = sum - by*c.Weight; start != t.Start+by {
		t.Rem = 0
	}
	t.Start = start
	return t
}

// pay moves the TAT of a reserve by n intervals. Where they are negative, it stops at due, and the
// rest becomes credit. Where they are positive, they use up credit, but only as far as the reserve
// is not due. So the reserve with credit is due at once, and never further behind: see Advance.
func (c Cell) pay(n int64, due Instant) Cell {
	from := c.TAT
	c = c.move(n)
	if least := min(due, from); c.TAT < least {
		c.TAT, c.Credit = least, min(c.Credit+int64(least-c.TAT), chargeSpan.Microseconds())
	}
	used := min(c.Credit, max(0, int64(c.TAT-max(from, due))))
	c.TAT, c.Credit = min(c.TAT-Instant(used), max(from, due.Add(chargeSpan))), c.Credit-used
	return c
}

// Part returns the part of the pool's rate that a flow has while the same flows wait, from 0 to 1.
// weights and reserves are the sums over the waiting flows, this one included; reserves and reserve
// are in costs a second, and so is rate.
func Part(weight, weights int64, reserve, reserves, rate float64) float64 {
	if reserves >= rate {
		if reserve > 0 {
			return reserve / reserves
		}
		return 0
	}
	return (reserve + float64(float64((rate-reserves)*float64(weight))/float64(max(weights, weight)))) / rate
}

// Shared is a pool as the admission to one of its flows sees it.
type Shared struct {
	Flow                 // sums over its flows, and its bucket
	Policy        Policy // of the pool
	Size, Bytes   int64  // capacity that must be free in it for the job or batch
	Weight        int64  // of the flow
	Reserve       Rate   // of the flow, zero for none
	Owing         int64  // cost that the flow and its class owe: see Pool.Exceed
	Owed          int64  // cost that all parties owe
	Members       int64  // flows of its class that wait and this one, which share Weight; 0 without a class
	Weights       int64  // sum over the flows that wait and this one; of a class, once its weight
	ReservesMicro int64  // the same, in millionths of a cost a second: see ReserveMicro
}

// ReserveMicro is a reserve in millionths of a cost a second, rounded down; 0 for none.
func ReserveMicro(r Rate) int64 {
	if r == (Rate{}) {
		return 0
	}
	return int64(math.Floor(float64(r.Limit) * 1e12 / float64(r.Period.Microseconds())))
}

// Before estimates the cost that the pool gives away before a job of the flow that has the given
// cost waiting before it there, while the same flows wait. What the flow owes comes first. In
// doubles, in the same order as in the script.
func (s Shared) Before(f Flow, ahead int64) int64 {
	s, f, ahead = s.bounded(), s.boundedFlow(f), min(ahead, f.Queued*s.Policy.PoolCost())+s.Owing
	all := s.Cost + s.Owed
	rate := float64(farthest)
	for _, c := range s.Cells {
		each := 1.0 // cost of what the pace counts
		if c.ByJobs {
			each = float64(s.Cost) / float64(max(1, s.Queued))
		}
		rate = min(rate, float64(c.Rate.Limit)*1e12/float64(c.period())*each)
	}
	part := Part(s.Weight, s.Weights, float64(ReserveMicro(s.Reserve)), float64(s.ReservesMicro), rate) / float64(max(1, s.Members))
	if float64(part*float64(all)) <= float64(ahead) {
		return all
	}
	half := float64(float64(f.Cost)/float64(max(1, f.Queued))) / 2
	before := math.Floor(float64(float64(float64(ahead)+half)/part) - half)
	return int64(max(0, min(float64(all), before)))
}

// bounded is the pool with the cost that its queued jobs are charged for at most, boundedFlow a
// flow of it. Jobs that were admitted under a higher bound count less than they cost.
func (s Shared) bounded() Shared {
	s.Cost = min(s.Cost, s.Queued*s.Policy.PoolCost())
	return s
}

func (s Shared) boundedFlow(f Flow) Flow {
	f.Cost = min(f.Cost, f.Queued*s.Policy.PoolCost())
	return f
}

// pacedStart is StartIn by the paces alone: no job leaves before it.
func (f Flow) pacedStart(s *Shared, jobs, ahead int64, now Instant) Instant {
	own := f.Start(jobs, ahead, now)
	if s == nil || own == 0 {
		return own
	}
	before := s.Before(f, ahead)
	in := s.Start(s.jobsIn(before), before, now)
	if in == 0 {
		return 0
	}
	return max(own, in)
}

// jobsIn estimates how many of the pool's waiting jobs have this cost together.
func (s Shared) jobsIn(cost int64) int64 {
	return min(s.Queued, int64(float64(cost)*float64(s.Queued)/float64(max(1, s.bounded().Cost))))
}

// StartIn is Start for a flow that is in a pool, nil for none: every flow that waits now keeps
// waiting. It is 0 where deliveries must end first and nobody knows how long they take.
func (f Flow) StartIn(s *Shared, jobs, ahead int64, now Instant) Instant {
	start, slot := f.pacedStart(s, jobs, ahead, now), f.slotAfter(jobs, f.Took, now)
	if start == 0 || slot == 0 {
		return 0
	}
	if start = max(start, slot); s == nil || s.Slots == 0 {
		return start
	}
	if slot = s.slotAfter(s.jobsIn(s.Before(f, ahead)), f.Took, now); slot == 0 {
		return 0
	}
	return max(start, slot)
}

// slotAfter estimates when the flow has a slot for a job that has these jobs waiting before it; 0
// when unknown. Nobody knows when a delivery ends: this one takes as long as the slowest of the
// last ones.
func (f Flow) slotAfter(jobs int64, took time.Duration, now Instant) Instant {
	if f.Slots == 0 {
		return now
	}
	if took == 0 {
		return 0
	}
	first := f.Last.Add(took)
	if first <= now {
		first = now.Add(took)
	}
	each, rounds := took.Microseconds(), jobs/f.Slots
	if rounds > int64(farthest-first)/each {
		return 0
	}
	return first + Instant(rounds*each)
}
