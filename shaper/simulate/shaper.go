package simulate

import (
	"fmt"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Horizon is how far ahead of their stamps workers lease jobs, unless their configuration says otherwise.
const Horizon = 20 * time.Millisecond

// Shaper replays the trace through a flow with the policy, of which all counts but the capacity in bytes and the concurrency, and with workers
// that lease so far ahead. With a horizon of 0 a job holds its place until it leaves. The error is of type shaper.Problems or wraps ErrTrace.
func Shaper(t Trace, p shaper.Policy, horizon time.Duration) (*Run, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if horizon < 0 || horizon > time.Second {
		return nil, shaper.Problems{{Field: "horizon", Value: horizon.String(), Rule: "must be from 0 to 1s"}}
	}
	if err := t.validate(); err != nil {
		return nil, err
	}
	if err := endless(t, p); err != nil {
		return nil, err
	}
	r := newRun(NameShaper, t, p.Rate)
	r.Capacity = p.Capacity
	switch {
	case p.Draining: // all are refused
	case p.Paused:
		r.pile(p)
	case foreseeable(t, p):
		r.foresee(p, horizon, len(t))
	default:
		r.live(p)
	}
	return r, nil
}

// pile is a run in which nothing leaves. Jobs go when their max wait is over, or never; that they could not leave in time is not said of a flow
// that is paused.
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

// endless names the setting that would keep jobs in the queue past the last instant that there is.
func endless(t Trace, p shaper.Policy) error {
	sum, most := t.cost()
	waiting := min(float64(sum), float64(p.Capacity)*float64(most))
	for _, c := range p.Paces() {
		if end := float64(t[len(t)-1].At) + waiting*float64(c.Rate.Period.Microseconds())/float64(c.Rate.Limit); end > float64(latest) {
			return shaper.Problems{{Field: "capacity", Value: fmt.Sprint(p.Capacity), Rule: fmt.Sprintf("at %v the last of so many would leave after the year 2255", c.Rate)}}
		}
	}
	return nil
}

// foreseeable reports whether each job's stamp can be told when it arrives. It can, for jobs leave in their order and the stamp of each
// follows from those before it, whenever it is looked for. A max wait is judged by shaper.Bucket.Start, which says the same in doubles, but
// where these may round, only it knows what it says, and a job that it lets in may expire.
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

// pace is a shaper.Cell with its divisions done beforehand: one interval is whole + part/limit µs, and the credit of the burst, (burst − 1)
// intervals, likewise.
type pace struct {
	tat, rem                 int64
	limit, period            int64
	whole, part              int64
	creditWhole, creditParts int64
}

func newPaces(p shaper.Policy) []pace {
	var out []pace
	for _, c := range p.Paces() {
		limit, period := c.Rate.Limit, c.Rate.Period.Microseconds()
		credit := (c.Burst - 1) * period
		out = append(out, pace{
			limit: limit, period: period, whole: period / limit, part: period % limit, creditWhole: credit / limit, creditParts: credit % limit,
		})
	}
	return out
}

// earliest is the first instant at which the pace lets a job leave.
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
	if cost == 1 {
		c.tat, c.rem = c.tat+c.whole, c.rem+c.part
		if c.rem >= c.limit {
			c.tat, c.rem = c.tat+1, c.rem-c.limit
		}
		return
	}
	sum := c.rem + cost*c.period
	c.tat, c.rem = c.tat+sum/c.limit, sum%c.limit
}

// foresee gives each job its stamp as it arrives. The queue is the arrivals from head on that were admitted: they leave in their order. It gives
// up, and reports false, once more than so many are refused.
//
// A worker looks at the flow when a job comes into an empty queue, and then half a horizon before the first stamp that waits; each look
// leases what is stamped up to a horizon later. So the look that leases a job is known as it arrives, too.
func (r *Run) foresee(p shaper.Policy, horizon time.Duration, refusals int) bool {
	paces := newPaces(p)
	last, look, depth, head := int64(0), int64(0), int64(0), 0
	patience, ahead := p.MaxWait.Microseconds(), horizon.Microseconds()
	if ahead > 0 && &r.Freed[0] == &r.Gone[0] {
		r.Freed = make([]shaper.Instant, len(r.Trace))
	}
	gone, freed, fates := r.Gone, r.Freed, r.Fates
	for i, a := range r.Trace {
		now := int64(a.At)
		for head < i {
			if fates[head] == Departed {
				if int64(freed[head]) > now {
					break
				}
				depth--
			}
			head++
		}
		if depth >= p.Capacity {
			fates[i] = Refused // a run may be made anew over an old one
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
		if look = max(look, now); stamp > look+ahead {
			look = stamp - ahead/2
		}
		fates[i], gone[i], freed[i] = Departed, shaper.Instant(stamp), shaper.Instant(look)
		depth++
	}
	return true
}

// peak is the most that waited after an admission, the one admitted included.
func (r *Run) peak() int64 {
	var depth, peak int64
	head := 0
	for i, a := range r.Trace {
		if !r.Fates[i].Admitted() {
			continue
		}
		for ; head < i && (!r.Fates[head].Admitted() || r.Freed[head] <= a.At); head++ {
			if r.Fates[head].Admitted() {
				depth--
			}
		}
		depth++
		peak = max(peak, depth)
	}
	return peak
}
