package simulate

import (
	"fmt"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Horizon is how far ahead of their stamps workers lease jobs, unless their configuration says
// otherwise.
const Horizon = 20 * time.Millisecond

// Workers are the properties of the workers that the run needs. The zero value leases and delivers
// in no time.
type Workers struct {
	// Horizon is how far ahead of their stamps workers lease jobs; with 0 a job counts in the depth
	// until it leaves.
	Horizon time.Duration
	// Service is the time from the departure of a job until it is settled; with 0 the concurrency
	// of the policy does not count.
	Service time.Duration
}

func (w Workers) validate() error {
	var ps shaper.Problems
	if w.Horizon < 0 || w.Horizon > time.Second {
		ps = append(ps, shaper.Problem{Field: "horizon", Value: w.Horizon.String(), Rule: "must be from 0 to 1s"})
	}
	if w.Service < 0 || w.Service > shaper.MaxPeriod {
		ps = append(ps, shaper.Problem{Field: "service", Value: w.Service.String(), Rule: "must be from 0 to 366d"})
	}
	return ps.Err()
}

// Shaper replays the trace through a flow with the policy. The capacity in bytes does not apply,
// because arrivals have no payload. The error is of type shaper.Problems or wraps ErrTrace.
func Shaper(t Trace, p shaper.Policy, w Workers) (*Run, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if err := w.validate(); err != nil {
		return nil, err
	}
	if err := t.validate(); err != nil {
		return nil, err
	}
	if w.Service == 0 {
		p.Concurrency = 0
	}
	if err := endless(t, p, w); err != nil {
		return nil, err
	}
	r := newRun(NameShaper, t, p.Rate)
	r.Capacity = p.Capacity
	switch {
	case p.Draining: // all are refused
	case p.Paused:
		r.pile(p)
	case p.Concurrency > 0 && p.MaxWait == 0:
		r.foreseeCapped(p, w)
	case p.Concurrency == 0 && foreseeable(t, p):
		r.foresee(p, w.Horizon, len(t))
	default:
		r.live(p, w.Service)
	}
	return r, nil
}

// pile is the run of a paused flow. Jobs expire when their max wait is over, or stay. None is
// refused for its max wait, because a paused flow has no estimate.
func (r *Run) pile(p shaper.Policy) {
	depth, head := int64(0), 0
	if p.MaxWait == 0 {
		r.Freed = make([]shaper.Instant, len(r.Trace))
	}
	for i, a := range r.Trace {
		for ; head < i && (r.Fates[head] == Refused || r.Fates[head] == Expired && r.Freed[head] <= a.At); head++ {
			if r.Fates[head] == Expired {
				depth--
			}
		}
		switch {
		case depth >= p.Capacity:
			continue
		case p.MaxWait == 0:
			r.Fates[i], r.Freed[i] = Waiting, latest
		default:
			r.Fates[i], r.Gone[i] = Expired, a.At.Add(p.MaxWait)
		}
		depth++
	}
}

// endless names the setting that would keep jobs in the queue past the last instant.
func endless(t Trace, p shaper.Policy, w Workers) error {
	sum, most := t.cost()
	if p.Concurrency > 0 {
		waves := min(float64(len(t)), float64(p.Capacity))/float64(p.Concurrency) + 1
		if float64(t[len(t)-1].At)+waves*float64(w.Service.Microseconds()) > float64(latest) {
			return shaper.Problems{{
				Field: "concurrency", Value: fmt.Sprint(p.Concurrency),
				Rule: fmt.Sprintf("with deliveries of %v the last job would leave after the year 2255",
					w.Service),
			}}
		}
	}
	for _, c := range p.Paces() {
		waiting := min(float64(sum), float64(p.Capacity)*float64(c.Charged(1, most)))
		if end := float64(t[len(t)-1].At) + waiting*float64(c.Rate.Period.Microseconds())/float64(c.Rate.Limit); end > float64(latest) {
			return shaper.Problems{{Field: "capacity", Value: fmt.Sprint(p.Capacity), Rule: fmt.Sprintf("at %v the last job would leave after the year 2255", c.Rate)}}
		}
	}
	return nil
}

// foreseeable reports whether each job's stamp follows at its arrival. Without a max wait it always
// does, because jobs leave in order and a stamp depends only on earlier ones. With a max wait,
// shaper.Bucket.Start decides in doubles. Where these may round, the run is not foreseeable, and an
// admitted job may expire.
func foreseeable(t Trace, p shaper.Policy) bool {
	if p.MaxWait == 0 {
		return true
	}
	_, most := t.cost()
	for _, c := range p.Paces() {
		if float64(p.Capacity)*float64(most)*float64(c.Rate.Period.Microseconds()) >= 1<<52 {
			return false
		}
	}
	return true
}

// pace is a shaper.Cell with precomputed divisions: one interval is whole + part/limit µs, and the
// credit of the burst is (burst − 1) intervals. It charges as shaper.Pace.Charged does.
type pace struct {
	shaper.Pace
	tat, rem                 int64
	limit                    int64
	whole, part              int64
	creditWhole, creditParts int64
}

func newPaces(p shaper.Policy) []pace {
	var out []pace
	for _, c := range p.Paces() {
		limit, period := c.Rate.Limit, c.Rate.Period.Microseconds()
		credit := (c.Burst - 1) * period
		out = append(out, pace{
			Pace: c, limit: limit, whole: period / limit, part: period % limit, creditWhole: credit / limit,
			creditParts: credit % limit,
		})
	}
	return out
}

// earliest is the first instant at which the pace allows a departure.
func (c *pace) earliest() int64 {
	e := c.tat - c.creditWhole
	if c.rem < c.creditParts {
		e--
	}
	return e
}

// charge moves the pace by the cost of a job that leaves at stamp.
func (c *pace) charge(stamp, cost int64) {
	if stamp > c.tat {
		c.tat, c.rem = stamp, 0
	}
	if cost == 1 || c.ByJobs {
		c.tat, c.rem = c.tat+c.whole, c.rem+c.part
		if c.rem >= c.limit {
			c.tat, c.rem = c.tat+1, c.rem-c.limit
		}
		return
	}
	cost = c.Charged(1, cost)
	sum := c.rem + cost*c.part
	c.tat, c.rem = c.tat+cost*c.whole+sum/c.limit, sum%c.limit
}

// foresee gives each job its stamp at its arrival. The queue is the admitted arrivals from head on,
// which leave in order. It stops and returns false once more than refusals jobs are refused.
//
// Arrivals at one instant, a bunch, are decided together: the first of them leaves after the
// decision on the last.
//
// A worker polls the flow when a job enters an empty queue, and then half a horizon before the
// first waiting stamp. Each poll leases the jobs with stamps up to a horizon later. So the poll
// that leases a job also follows at its arrival.
func (r *Run) foresee(p shaper.Policy, horizon time.Duration, refusals int) bool {
	paces := newPaces(p)
	last, poll, depth, head := int64(0), int64(0), int64(0), 0
	patience, ahead := p.MaxWait.Microseconds(), horizon.Microseconds()
	if ahead > 0 && &r.Freed[0] == &r.Gone[0] {
		r.Freed = make([]shaper.Instant, len(r.Trace))
	}
	gone, freed, fates := r.Gone, r.Freed, r.Fates
	instant, bunch := int64(-1), 0
	for i, a := range r.Trace {
		now := int64(a.At)
		if now != instant {
			instant, bunch = now, i
		}
		for head < bunch {
			if fates[head] == Departed {
				if int64(freed[head]) > now {
					break
				}
				depth--
			}
			head++
		}
		if depth >= p.Capacity {
			fates[i] = Refused // a run may be reused
			if refusals--; refusals < 0 {
				return false
			}
			continue
		}
		stamp := max(now, last)
		for k := range paces {
			stamp = max(stamp, paces[k].earliest())
		}
		if patience > 0 && stamp > now+patience {
			fates[i] = Unreachable
			if refusals--; refusals < 0 {
				return false
			}
			continue
		}
		for k := range paces {
			paces[k].charge(stamp, a.Cost)
		}
		last = stamp
		if poll = max(poll, now); stamp > poll+ahead {
			poll = stamp - ahead/2
		}
		fates[i], gone[i], freed[i] = Departed, shaper.Instant(stamp), shaper.Instant(poll)
		depth++
	}
	return true
}

// foreseeCapped is foresee for a flow with a cap on leased jobs. A job is leased from its poll
// until it is settled. Jobs are leased in order and served equally long, so they are settled in
// order, too. The poll that leases job i comes at the earliest when job i − cap is settled, which
// wakes the shard's owner. The stamp is that of shaper.Bucket.Stamp: a poll that is late by at most
// the slack keeps the grid, and the job leaves at once.
func (r *Run) foreseeCapped(p shaper.Policy, w Workers) {
	paces := newPaces(p)
	last, poll, depth, head := int64(0), int64(0), int64(0), 0
	ahead, service := w.Horizon.Microseconds(), w.Service.Microseconds()
	running, first := int64(0), 0 // leased jobs from the first on that count in the cap, with the newest
	r.Freed = make([]shaper.Instant, len(r.Trace))
	bunch := 0
	for i, a := range r.Trace {
		now := int64(a.At)
		if a.At != r.Trace[bunch].At {
			bunch = i
		}
		for ; head < bunch && (r.Fates[head] != Departed || int64(r.Freed[head]) <= now); head++ {
			if r.Fates[head] == Departed {
				depth--
			}
		}
		if depth >= p.Capacity {
			continue
		}
		poll = max(poll, now)
		if running == p.Concurrency {
			for r.Fates[first] != Departed {
				first++
			}
			poll = max(poll, int64(r.Gone[first])+service)
			first++
			running--
		}
		grid := last
		for k := range paces {
			grid = max(grid, paces[k].earliest())
		}
		stamp := grid
		if now >= grid || grid < poll-shaper.Slack.Microseconds() {
			stamp = poll
		}
		if stamp > poll+ahead {
			poll = stamp - ahead/2
		}
		for k := range paces {
			paces[k].charge(stamp, a.Cost)
		}
		last = stamp
		r.Fates[i], r.Gone[i], r.Freed[i] = Departed, shaper.Instant(max(stamp, poll)), shaper.Instant(poll)
		running++
		depth++
	}
}

// peak is the greatest depth after an admission.
func (r *Run) peak() int64 {
	var depth, peak int64
	head, bunch := 0, 0
	for i, a := range r.Trace {
		if a.At != r.Trace[bunch].At {
			bunch = i
		}
		if !r.Fates[i].Admitted() {
			continue
		}
		for ; head < bunch && (!r.Fates[head].Admitted() || r.Freed[head] <= a.At); head++ {
			if r.Fates[head].Admitted() {
				depth--
			}
		}
		depth++
		peak = max(peak, depth)
	}
	return peak
}
