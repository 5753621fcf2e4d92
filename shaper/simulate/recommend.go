package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Goals are the bounds that a rate and a capacity should keep on a trace.
type Goals struct {
	MaxRefused float64 // share of the arrivals that may be refused, 0 to 1
	// WaitP99 is the longest wait of 99 % of the admitted jobs; 0 is no goal, and then Upstream
	// must be set.
	WaitP99  time.Duration
	Upstream shaper.Rate // the most that the upstream accepts; the zero value is no bound
	Burst    int64       // of the policy, at least 1
}

// Validate returns every goal that is out of bounds. The result is of type shaper.Problems.
func (g Goals) Validate() error {
	var ps shaper.Problems
	add := func(field, value, rule string) {
		ps = append(ps, shaper.Problem{Field: field, Value: value, Rule: rule})
	}
	if !(g.MaxRefused >= 0 && g.MaxRefused < 1) { // NaN, too
		add("max_refused", fmt.Sprint(g.MaxRefused), "must be from 0 to below 1")
	}
	bounded := g.Upstream != shaper.Rate{}
	if err := g.Upstream.Validate(); bounded && err != nil {
		add("upstream", g.Upstream.String(), err.Error())
	}
	switch {
	case g.WaitP99 < 0 || g.WaitP99 > shaper.MaxPeriod:
		add("wait_p99", g.WaitP99.String(), "must be from 0 to 366d")
	case g.WaitP99 == 0 && !bounded:
		add("wait_p99", "0s", "must be given unless the upstream's rate is: any rate will do for those who "+
			"wait long enough")
	}
	if g.Burst < 1 {
		add("burst", fmt.Sprint(g.Burst), "must be a whole number of at least 1")
	}
	return ps.Err()
}

// Point is a rate with the smallest capacity at which it refuses no more than the goal, and the
// results.
type Point struct {
	Rate     shaper.Rate
	Capacity int64
	Refused  float64 // share of the arrivals
	WaitP99  time.Duration
	WaitMax  time.Duration
	Reached  bool // all goals
}

// Recommendation is the smallest rate that reaches the goals.
type Recommendation struct {
	Point         // the point of the greatest rate, not Reached, if no rate reaches the goals
	Curve []Point // rates around it, the slowest first
}

// Recommend finds the smallest rate, and for it the smallest capacity, that reach the goals on the
// trace. The rate is a whole number a second, or a minute, an hour, a day if it would be below ten.
// Without a goal for the waits it is the upstream's. Jobs count in the depth until they leave: the
// capacity does not rely on workers that lease them earlier. watch, unless nil, is called with the
// number of rates tried so far. The error is of type shaper.Problems or wraps ErrTrace.
func Recommend(t Trace, g Goals, watch func(tried int)) (Recommendation, error) {
	if err := g.Validate(); err != nil {
		return Recommendation{}, err
	}
	if err := t.validate(); err != nil {
		return Recommendation{}, err
	}
	tuner := newTuner(t, g, watch)
	best := tuner.smallest()
	return Recommendation{Point: best, Curve: tuner.curve(best.Rate)}, nil
}

// tuner tries rates on one trace.
type tuner struct {
	goals   Goals
	run     *Run
	waits   []int64
	refused int // at most
	watch   func(tried int)
	known   map[shaper.Rate]Point
}

func newTuner(t Trace, g Goals, watch func(int)) *tuner {
	return &tuner{
		goals: g, run: newRun(NameShaper, t, shaper.Rate{}), waits: make([]int64, 0, len(t)),
		refused: int(g.MaxRefused * float64(len(t))), watch: watch, known: map[shaper.Rate]Point{},
	}
}

// try replays the trace at the rate and finds the smallest capacity for it.
func (u *tuner) try(r shaper.Rate) Point {
	if p, known := u.known[r]; known {
		return p
	}
	p := shaper.DefaultPolicy()
	p.Rate, p.Burst = r, u.goals.Burst
	refuses := func(capacity int64) bool {
		p.Capacity = capacity
		return !u.run.foresee(p, 0, u.refused)
	}
	// A queue without a bound refuses nothing. The capacity never needs to exceed its peak.
	low, high := int64(1), int64(len(u.run.Trace))
	refuses(high)
	high = max(1, u.run.peak())
	for low < high {
		if mid := low + (high-low)/2; refuses(mid) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	refuses(low)
	point := u.measure(Point{Rate: r, Capacity: low})
	u.known[r] = point
	if u.watch != nil {
		u.watch(len(u.known))
	}
	return point
}

// measure returns the figures of the last replay.
func (u *tuner) measure(p Point) Point {
	u.waits = u.waits[:0]
	for i, a := range u.run.Trace {
		if u.run.Fates[i] == Departed {
			u.waits = append(u.waits, int64(u.run.Gone[i]-a.At))
		}
	}
	n := len(u.run.Trace)
	p.Refused = float64(n-len(u.waits)) / float64(n)
	_, _, p.WaitP99, p.WaitMax = quantiles(u.waits)
	p.Reached = n-len(u.waits) <= u.refused && (u.goals.WaitP99 == 0 || p.WaitP99 <= u.goals.WaitP99)
	return p
}

// periods are the units that a rate may be per, the shortest first.
var periods = []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}

// smallest finds the smallest rate that reaches the goals, else the greatest allowed one.
func (u *tuner) smallest() Point {
	bound := u.goals.Upstream
	if bound == (shaper.Rate{}) {
		bound = shaper.Rate{Limit: shaper.MaxPerSecond, Period: time.Second}
	}
	most := u.tryLegal(bound)
	if u.goals.WaitP99 == 0 || !most.Reached {
		return most
	}
	for _, period := range periods {
		found, ok := u.search(period, bound)
		if ok && (found.Rate.Limit >= 10 || period == periods[len(periods)-1]) {
			return found
		}
		if ok {
			most = found
		}
	}
	return most
}

// search finds the smallest limit for the period that reaches the goals within the bound. It
// assumes that greater ones reach them, too.
func (u *tuner) search(period time.Duration, bound shaper.Rate) (Point, bool) {
	// 60 times 0.1 (6/m) is a little less than 6.
	top := int64(bound.PerSecond() * period.Seconds() * (1 + 1e-12))
	// Start at the mean, and double it until it reaches the goals.
	sum, _ := u.run.Trace.cost()
	guess := int64(float64(sum) / max(u.run.Trace.Span().Seconds(), period.Seconds()) * period.Seconds())
	high := min(max(guess, 1), top)
	if high < 1 {
		return Point{}, false
	}
	low := int64(1)
	for !u.tryLegal(shaper.Rate{Limit: high, Period: period}).Reached {
		if high == top {
			return Point{}, false
		}
		low, high = high+1, min(high*2, top)
	}
	for low < high {
		if mid := low + (high-low)/2; u.tryLegal(shaper.Rate{Limit: mid, Period: period}).Reached {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return u.try(shaper.Rate{Limit: high, Period: period}), true
}

// tryLegal is try, or a point without goals reached if the burst is not legal for the rate, or if
// the queue would last beyond the last instant.
func (u *tuner) tryLegal(r shaper.Rate) Point {
	p := shaper.DefaultPolicy()
	p.Rate, p.Burst, p.Concurrency, p.Capacity = r, u.goals.Burst, 0, int64(len(u.run.Trace))
	if p.Validate() != nil || endless(u.run.Trace, p, Workers{}) != nil {
		return Point{Rate: r}
	}
	return u.try(r)
}

// around are the rates of the curve, in percent of the recommended one.
var around = []int64{50, 60, 70, 80, 90, 95, 100, 105, 110, 125, 150, 200, 300, 400}

// curve returns the points of rates around one, within the upstream's.
func (u *tuner) curve(r shaper.Rate) []Point {
	var curve []Point
	for _, percent := range around {
		rate := shaper.Rate{Limit: max(1, (r.Limit*percent+50)/100), Period: r.Period}
		bounded := u.goals.Upstream != shaper.Rate{}
		if bounded && rate.PerSecond() > u.goals.Upstream.PerSecond() || rate.Validate() != nil {
			continue
		}
		p := u.tryLegal(rate)
		if p.Capacity > 0 && !slices.ContainsFunc(curve, func(q Point) bool { return q.Rate == p.Rate }) {
			curve = append(curve, p)
		}
	}
	return curve
}
