package shaper

import (
	"math"
	"math/bits"
	"time"
)

// Instant is a moment in whole microseconds since the Unix epoch, by the store's clock; 0 is
// "never" or "none".
type Instant int64

// InstantOf returns t as an instant, rounded down to microseconds.
func InstantOf(t time.Time) Instant { return Instant(t.UnixMicro()) }

// Time returns the instant in UTC; the zero time for 0.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(i)).UTC()
}

// Add returns the instant d later; d is rounded down to whole microseconds.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d.Microseconds()) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i-j) * time.Microsecond }

// Slack is how late a poll may be and still keep the grid of stamps; a later poll restarts the
// grid.
const Slack = 10 * time.Millisecond

// farthest is the last instant that the scripts' doubles can hold exactly; an estimate beyond it is
// not given.
const farthest = Instant(1<<53 - 1)

// Cell is the state of one pace: its theoretical arrival time, exact as TAT + Rem/Limit µs with 0 ≤
// Rem < Limit.
type Cell struct {
	Pace
	TAT Instant
	Rem int64
	// Credit is the time in µs that corrected costs gave back and that no later charge has used;
	// see Correct.
	Credit int64
}

// Bucket is the pacing state of a flow: GCRA (ITU-T I.371) for each pace, used to schedule
// departures instead of policing arrivals. The methods return a new bucket and do not change the
// old one.
type Bucket struct {
	Cells []Cell
	Last  Instant // the last stamp given
	// Ready is when an admission or give-back into an empty queue, a resume or a retune last made
	// the flow ready.
	Ready     Instant
	HeldUntil Instant // the upstream requested a pause until then
	// Probe, of a pool that is held, is when one job may leave nevertheless; 0 for never.
	Probe Instant
	// After a hold the flow returns to its rate step by step. Share is the part of the rate in
	// force at the end of the hold, in millionths, 0 for all of it. Nothing leaves before Spaced.
	Share  int64
	Spaced Instant
}

// The way back to the rate after a hold: additive increase, multiplicative decrease, as in TCP's
// congestion avoidance (RFC 5681).
const (
	shareAll    = 1_000_000
	shareLeast  = shareAll / 16
	shareRegain = 20 // µs for each millionth: a twentieth of the rate per second
)

// NewBucket returns the bucket of a flow that has never sent anything.
func NewBucket(paces []Pace) Bucket {
	b := Bucket{Cells: make([]Cell, len(paces))}
	for i, p := range paces {
		b.Cells[i].Pace = p
	}
	return b
}

// earliest is e = TAT − (burst − 1)·T, rounded down: the first instant at which the pace lets a job
// leave.
func (c Cell) earliest() Instant {
	return c.TAT + Instant(floorDiv(c.Rem-(c.Burst-1)*c.period(), c.Rate.Limit))
}

// seconds is T in µs, as a double.
func (c Cell) seconds() float64 { return float64(c.period()) / float64(c.Rate.Limit) }

func (c Cell) period() int64 { return c.Rate.Period.Microseconds() }

// A job is charged for at most chargeSpan, and with the burst for at most maxHorizon: no job
// waits longer, and a TAT stays below 2⁵³ µs. A policy is legal only if leastCharge intervals and
// the burst fit into maxHorizon.
const (
	chargeSpan  = 20 * 365 * 24 * time.Hour
	leastCharge = 100
)

// mostCharged is the greatest cost that the pace charges in full. In doubles, in the same order as
// in the script.
func (p Pace) mostCharged() float64 {
	period, limit := float64(p.Rate.Period.Microseconds()), float64(p.Rate.Limit)
	span := min(float64(chargeSpan.Microseconds()),
		float64(maxHorizon.Microseconds())-float64(float64(p.Burst)*period)/limit)
	return max(leastCharge, math.Floor(float64(span/period)*limit))
}

// Charged is the number of intervals that the pace charges for jobs with this cost together.
func (p Pace) Charged(jobs, cost int64) int64 {
	if p.ByJobs {
		cost = jobs
	}
	if cost <= leastCharge {
		return cost
	}
	return min(cost, int64(p.mostCharged()))
}

// charge moves the TAT by the cost of jobs from max(TAT, stamp). Time that passed since the TAT
// uses up credit, because the pace did not hold the flow back. Of the rest, the charge uses at most
// half of itself, so that stamps stay apart by half of what their jobs are charged for.
func (c Cell) charge(stamp Instant, jobs, cost int64) Cell {
	if stamp > c.TAT {
		c.Credit = max(0, c.Credit-int64(stamp-c.TAT))
		c.TAT, c.Rem = stamp, 0
	}
	from := c.TAT
	c = c.move(c.Charged(jobs, cost))
	used := min(c.Credit, int64(c.TAT-from)/2)
	c.TAT, c.Credit = c.TAT-Instant(used), c.Credit-used
	return c
}

// correct moves the TAT by n intervals. Where they are negative, it stops at least, and the rest
// becomes credit. Where they are positive, they use up credit first, and the TAT stops chargeSpan
// after least.
func (c Cell) correct(n int64, least Instant, most int64) Cell {
	from := c.TAT
	c = c.move(n)
	if least = min(least, from); c.TAT < least {
		c.TAT, c.Credit = least, min(c.Credit+int64(least-c.TAT), max(c.Credit, most))
	}
	used := min(c.Credit, max(0, int64(c.TAT-from)))
	c.TAT, c.Credit = min(c.TAT-Instant(used), max(from, least.Add(chargeSpan))), c.Credit-used
	return c
}

// move shifts the TAT by n intervals, which may be negative: n·period may pass 2⁶³.
func (c Cell) move(n int64) Cell {
	whole, part := c.period()/c.Rate.Limit, c.period()%c.Rate.Limit
	high, low := bits.Mul64(uint64(max(n, -n)), uint64(part))
	q, r := bits.Div64(high, low, uint64(c.Rate.Limit))
	moved, rem := int64(q), int64(r)
	if n < 0 {
		moved, rem = -moved, -rem
	}
	carry := floorDiv(c.Rem+rem, c.Rate.Limit)
	c.TAT += Instant(n*whole + moved + carry)
	c.Rem += rem - carry*c.Rate.Limit
	return c
}

// share is the part of the rate in force at an instant, in millionths.
func (b Bucket) share(at Instant) int64 {
	if b.Share == 0 {
		return shareAll
	}
	return min(shareAll, b.Share+max(0, floorDiv(int64(at-b.HeldUntil), shareRegain)))
}

// Pace returns the part of its rate that the flow has at an instant, from 1/16 to 1.
func (b Bucket) Pace(at Instant) float64 { return float64(b.share(at)) / shareAll }

// Earliest returns the instant at which the next job may leave: the latest of the last stamp, Ready
// and the earliest instant of every pace. It is in the past for a late poll.
func (b Bucket) Earliest() Instant {
	return max(b.grid(), b.Ready, b.stopped())
}

// stopped is the instant until which the hold keeps everything from leaving.
func (b Bucket) stopped() Instant {
	if b.Probe > 0 {
		return min(b.HeldUntil, b.Probe)
	}
	return b.HeldUntil
}

// grid is the instant from which the paces alone let the next job leave.
func (b Bucket) grid() Instant {
	e := max(b.Last, b.Spaced)
	for _, c := range b.Cells {
		e = max(e, c.earliest())
	}
	return e
}

// Stamp returns the stamp of a job that is eligible since the given instant. from is the earliest
// stamp that can still be kept: now, or later where the worker is far away. A job that the paces
// hold back keeps its slot on their grid while that is at most Slack before from. Older slots are
// lost, never bunched. A job that only had to become ready has no grid: it starts one, at from if
// it was ready earlier.
func (b Bucket) Stamp(eligible, from Instant) Instant {
	grid, ready := b.grid(), max(b.Ready, b.stopped(), eligible)
	switch {
	case ready >= grid:
		return max(ready, from)
	case grid < from.Add(-Slack):
		return from
	}
	return grid
}

// Depart charges every pace for a job of the given cost that leaves at stamp.
func (b Bucket) Depart(stamp Instant, cost int64) Bucket { return b.depart(nil, stamp, 1, cost) }

// DepartIn is Depart for a flow of a pool. The share of the rate that a hold leaves is a part of
// the slower of both rates: a flow with a rate far above that of its pool would not slow down.
func (b Bucket) DepartIn(pool Bucket, stamp Instant, cost int64) Bucket {
	return b.depart(pool.Cells, stamp, 1, cost)
}

// probeEvery is the time between two probes of a pool that is held.
const probeEvery = 5 * time.Second

// depart charges every pace for jobs that leave together at stamp.
func (b Bucket) depart(pool []Cell, stamp Instant, jobs, cost int64) Bucket {
	if b.Probe > 0 && stamp < b.HeldUntil {
		b.Probe = stamp.Add(probeEvery)
	}
	b.Cells = append([]Cell(nil), b.Cells...)
	for i, c := range b.Cells {
		b.Cells[i] = c.charge(stamp, jobs, cost)
	}
	b.Last = stamp
	share := b.share(stamp)
	if share == shareAll || len(b.Cells) == 0 {
		b.Share, b.Spaced = 0, 0
		return b
	}
	first := b.Cells[0]
	if len(pool) > 0 && pool[0].seconds() > first.seconds() {
		first = pool[0]
	}
	// In doubles, in the same order as in the script.
	intervals := float64(cost) * float64(first.period()) / float64(first.Rate.Limit)
	space := math.Ceil(intervals * shareAll / float64(share))
	b.Spaced = stamp + Instant(min(float64(MaxPeriod.Microseconds()), space))
	return b
}

// Refund gives back the slot of a job that was stamped and never departed, if it was the last one
// stamped; otherwise the slot is lost.
func (b Bucket) Refund(stamp Instant, cost int64) Bucket {
	if stamp != b.Last {
		return b
	}
	return b.Rewind(stamp, 1, cost)
}

// Rewind takes back the last stamps given, which no worker has seen: first is the first of them,
// jobs their number, cost the sum of all costs. The next stamps conform to the departures before
// them. A pace whose credit the stamps have used up does not get it back.
func (b Bucket) Rewind(first Instant, jobs, cost int64) Bucket {
	b.Cells = append([]Cell(nil), b.Cells...)
	for i, c := range b.Cells {
		if n := -c.Charged(jobs, cost); c.Credit > 0 {
			b.Cells[i] = c.correct(n, first, chargeSpan.Microseconds())
		} else {
			b.Cells[i] = c.move(n)
		}
	}
	b.Last, b.Spaced = first, min(b.Spaced, first)
	return b
}

// leastApart is the part of a charge that stays between two stamps, whatever is given back: with
// estimates that are sixteen times too high, the flow still uses all of its rate.
const leastApart = 16

// mostCredit is how many charges of a job its correction may leave as credit. With estimates ten
// times too high and 64 jobs in flight, the flow still uses its rate. What it did not use for a
// longer time is lost: credit makes a flow leave at twice its rate.
const mostCredit = 4

// Correct replaces the cost that a departure was charged for by the actual one, in every pace that
// counts costs. A TAT moves by the difference, but not before now, because no job leaves in the
// past, and not closer to the last stamp than leastApart allows, so that nothing bunches. What a
// pace cannot give back this way it keeps as credit, and later charges use it. So the flow uses its
// rate exactly, although costs are estimates.
func (b Bucket) Correct(charged, actual int64, now Instant) Bucket {
	b.Cells = append([]Cell(nil), b.Cells...)
	for i, c := range b.Cells {
		before := c.Charged(1, charged)
		if n := c.Charged(1, actual) - before; n != 0 {
			// In doubles, in the same order as in the script.
			takes := float64(float64(before)*float64(c.period())) / float64(c.Rate.Limit)
			most := int64(math.Floor(min(float64(chargeSpan.Microseconds()), takes*mostCredit)))
			b.Cells[i] = c.correct(n, max(now, b.Last+Instant(math.Floor(takes/leastApart))), most)
		}
	}
	return b
}

// Limit brings back each TAT that is further ahead than a job of the cost may take it from the last
// stamp, or from now, and beyond ahead.
func (b Bucket) Limit(cost int64, ahead, now Instant) Bucket {
	from := max(now, b.Last)
	b.Cells = append([]Cell(nil), b.Cells...)
	for i, c := range b.Cells {
		// In doubles, in the same order as in the script.
		intervals := float64(c.Burst - 1 + c.Charged(1, cost))
		most := from + 1 + Instant(math.Floor(float64(intervals*float64(c.period()))/float64(c.Rate.Limit)))
		if most = max(most, ahead); c.TAT > most {
			b.Cells[i].TAT, b.Cells[i].Rem = most, 0
		}
	}
	if b.Spaced > from && len(b.Cells) > 0 {
		first := b.Cells[0]
		space := math.Ceil(float64(cost) * float64(first.period()) / float64(first.Rate.Limit) * (shareAll / shareLeast))
		b.Spaced = min(b.Spaced, from+Instant(min(float64(MaxPeriod.Microseconds()), space)))
	}
	return b
}

// Retune lays new paces over the bucket at now and reports whether anything changed. A pace that
// stays keeps its state at any place in the list. The wait that a changed pace had left since
// the last stamp is scaled by T'/T, so a backlog obeys at once and never bursts, and its credit
// ends; an added pace starts one interval after the last stamp. What changed and what is left of
// the old paces is paired in order.
func (b Bucket) Retune(paces []Pace, now Instant) (Bucket, bool) {
	same := len(paces) == len(b.Cells)
	for i := 0; same && i < len(paces); i++ {
		same = b.Cells[i].Pace == paces[i]
	}
	if same {
		return b, false
	}
	kept := make([]*Cell, len(paces))
	var left []Cell
	for _, c := range b.Cells {
		stays := false
		for i, p := range paces {
			if kept[i] == nil && c.Pace == p {
				kept[i], stays = &c, true
				break
			}
		}
		if !stays {
			left = append(left, c)
		}
	}
	cells := make([]Cell, len(paces))
	for i, p := range paces {
		switch {
		case kept[i] != nil:
			cells[i] = *kept[i]
		case b.Last == 0:
			cells[i] = Cell{Pace: p}
		case len(left) > 0:
			cells[i], left = left[0].retune(p, b.Last), left[1:]
		default:
			cells[i] = Cell{Pace: p, TAT: b.Last}.move(1)
		}
	}
	b.Cells, b.Ready, b.Spaced = cells, now, 0
	return b, true
}

// retune is e' = L + (e − L)·T'/T, rounded up, and TAT' = e' + (burst' − 1)·T', but not before L,
// which gives the same stamps. The products exceed 2⁶³ for slow rates, so they are computed in
// doubles, in the same order as in the script; the error stays below a microsecond because e − L is
// at most as many intervals as the last job cost. The wait is at most what a job is charged for.
func (c Cell) retune(p Pace, last Instant) Cell {
	before := float64(c.TAT-last) + float64(c.Rem-(c.Burst-1)*c.period())/float64(c.Rate.Limit)
	period := p.Rate.Period.Microseconds()
	ratio := float64(float64(period)*float64(c.Rate.Limit)) / float64(float64(c.period())*float64(p.Rate.Limit))
	after := math.Ceil(min(float64(before*ratio),
		float64(p.mostCharged()*float64(period))/float64(p.Rate.Limit)))
	tolerance := Cell{Pace: p}.move(p.Burst - 1)
	if after+float64(tolerance.TAT) < 0 {
		return Cell{Pace: p, TAT: last}
	}
	tolerance.TAT += last + Instant(after)
	return tolerance
}

// Hold stops all departures of the flow until the given instant; an earlier end than the one in
// force changes nothing. It halves the share of the rate that is in force afterwards, down to a
// sixteenth. Of several holds at once only the first does.
func (b Bucket) Hold(until, now Instant) Bucket {
	if b.HeldUntil <= now {
		b.Share = max(shareLeast, b.share(now)/2)
	}
	b.HeldUntil = max(b.HeldUntil, until)
	return b
}

// Suspend is Hold for a cause that says nothing of what the upstream can take, such as a token that
// cannot be had: the share stays as it is.
func (b Bucket) Suspend(until, now Instant) Bucket {
	if b.HeldUntil <= now {
		if b.Share = b.share(now); b.Share == shareAll {
			b.Share = 0
		}
	}
	b.HeldUntil = max(b.HeldUntil, until)
	return b
}

// Resume ends a hold.
func (b Bucket) Resume(now Instant) Bucket {
	b.HeldUntil, b.Probe = min(b.HeldUntil, now), 0
	return b
}

// PutOffMost bounds what PutOff delays a flow by.
const PutOffMost = time.Second

// PutOff delays a flow whose worker has no slot for it, so that many flows of a hanging upstream
// cost few polls. The delay is an eighth of the time since its last departure, at least an eighth
// of the horizon and at most PutOffMost. Until shortly before the next stamp it changes nothing, so
// that another worker with slots can still give that stamp, also one that polls late.
func (b Bucket) PutOff(now Instant, horizon time.Duration) Bucket {
	rest := max(Instant(horizon.Microseconds()/8), min(Instant(PutOffMost.Microseconds()), (now-b.Last)/8))
	return b.MarkReady(now + rest)
}

// Trial counts what an upstream refuses, out of the departures of a flow since an instant. The zero
// value counts nothing.
type Trial struct {
	Since    Instant // of the first refusal, which is not counted itself
	Departed int64   // departures of the flow until then
	Refused  int64   // refusals since then
}

// Rules of a trial. The simulation in refusal_test.go shows what they reach.
const (
	trialSpan      = Instant(1_000_000) // µs that it lasts at least
	trialLeast     = 10                 // departures that it takes at least
	trialTolerated = 20                 // departures per refusal that are still no overload
)

// Refuse counts that the upstream refused a job of the flow because of its load, without a time to
// wait. departed is the number of departures of the flow so far. Once a trial has enough of them,
// the share of the rate falls by the refused part, at most by half, and grows again as after a
// hold. So the flow stays close to what the upstream accepts.
func (b Bucket) Refuse(t Trial, departed int64, now Instant) (Bucket, Trial) {
	age, departures := now-t.Since, departed-t.Departed
	if overdue(t.Since, age, departures) {
		return b, Trial{Since: now, Departed: departed}
	}
	t.Refused++
	if age < trialSpan || departures < trialLeast {
		return b, t
	}
	return b.slow(min(t.Refused, departures), departures, now), Trial{Since: now, Departed: departed}
}

// overdue reports whether a trial begins anew: there is none, it is over for long, or the counts
// were set back.
func overdue(since, age Instant, departures int64) bool {
	return since == 0 || departures < 0 || age > 3*trialSpan && departures > 3*trialLeast
}

// slow reduces the share of the rate by the part that the upstream refuses, at most by half. A part
// that is tolerated changes nothing, nor does one of a flow that is held.
func (b Bucket) slow(refused, of int64, now Instant) Bucket {
	if refused*trialTolerated <= of || b.HeldUntil > now {
		return b
	}
	share := b.share(now)
	b.Share, b.HeldUntil = max(shareLeast, share/2, share*(of-refused)/of), now
	return b
}

// MarkReady records that at now the flow became able to send: an admission or give-back into an
// empty queue, or a resume. It changes no TAT, so at most burst jobs leave at once.
func (b Bucket) MarkReady(now Instant) Bucket {
	b.Ready = max(b.Ready, now)
	return b
}

// Start estimates when a job leaves that has the given number of jobs, and their cost, waiting
// before it, if nothing changes; 0 when that is beyond every calendar. While a hold lets probes
// leave, each of these jobs is one.
func (b Bucket) Start(jobs, cost int64, now Instant) Instant {
	first := max(b.Earliest(), now)
	if b.Probe > 0 && jobs > 0 {
		first = max(first, min(b.HeldUntil, b.Probe+Instant(jobs*probeEvery.Microseconds())))
	}
	start := first
	for _, c := range b.Cells {
		base, rem, credit, ahead := c.TAT, c.Rem, c.Credit, cost
		if c.ByJobs {
			ahead = jobs
		}
		if first > base {
			base, rem, credit = first, 0, max(0, credit-int64(first-base))
		}
		// In doubles, as in the script: cost × period may pass 2⁵³ for slow flows, where a
		// microsecond does not matter.
		wait := math.Floor((float64(rem) + float64(float64(ahead-c.Burst+1)*float64(c.period()))) / float64(c.Rate.Limit))
		if credit > 0 {
			wait -= min(float64(credit), math.Floor(float64(ahead)*float64(c.period())/float64(c.Rate.Limit)/2))
		}
		if float64(base)+wait > float64(farthest) {
			return 0
		}
		start = max(start, base+Instant(wait))
	}
	return start
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
