package shaper

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Bounds of a Policy's settings.
const (
	MaxCapacity    = 1_000_000_000 // jobs
	MaxBytes       = 1 << 50       // of CapacityBytes
	MaxConcurrency = 1_000_000     // jobs
	MaxRates       = 7             // further rates beside the first
	MaxCost        = 1_000_000     // intervals one job may take
	MaxReason      = 255           // bytes of the reason given with a change
	maxHorizon     = 200 * 365 * 24 * time.Hour
)

// Pace is one rate a flow must obey, with the number of jobs that may leave at once after an idle
// stretch. Burst 1 is pure spacing. A job takes as many intervals as it costs, or with ByJobs one.
type Pace struct {
	Rate   Rate
	Burst  int64
	ByJobs bool
}

// What a rate counts, as settings name it.
const (
	ByCost = "cost"
	ByJobs = "jobs"
)

// By is what the pace counts: ByCost or ByJobs.
func (p Pace) By() string {
	if p.ByJobs {
		return ByJobs
	}
	return ByCost
}

// Policy is the settings of a tenant; they hold for each of its flows. The zero value is not legal,
// see DefaultPolicy.
type Policy struct {
	Rate     Rate
	Burst    int64  // jobs that may leave at once after an idle period, at least 1
	Rates    []Pace // further rates, each with its own burst; the strictest wins
	Capacity int64  // the greatest depth that an admission may reach

	CapacityBytes int64 // bytes of the payloads that count in the depth; 0 is no bound

	Concurrency int64         // jobs leased at once over all workers; 0 is no cap
	MaxWait     time.Duration // whole milliseconds from admission to departure; 0 is no limit
	Paused      bool          // nothing leaves; admission goes on
	Draining    bool          // nothing is admitted; what waits leaves

	// Of a pool, as its file says.
	HoldPool bool          `json:",omitempty"` // an answer with Retry-After holds the pool, not only the flow
	MaxHold  time.Duration `json:",omitempty"` // how long answers hold the pool at most
	// MaxCost is the greatest cost of one job, at most the constant of that name. 0 is no bound for
	// a flow, and the default of PoolCost for a pool.
	MaxCost int64 `json:",omitzero"`

	// Of a flow whose route is in a pool; see Pool.
	Weight  int64 // 1 to MaxWeight, 0 counts as 1: its part of what reserves leave of the pool's rate
	Reserve Rate  `json:",omitzero"` // the part of the pool's rate that it has before all others, at most Rate; zero for none
	// ClassWeight is the weight of the flow's class, 0 for none: all its flows in a pool share what
	// one flow of that weight gets. Weight and Reserve count for nothing then.
	ClassWeight int64 `json:",omitzero"`
}

// DefaultPolicy returns the policy of a tenant without settings.
func DefaultPolicy() Policy {
	return Policy{Rate: Rate{Limit: 10, Period: time.Second}, Burst: 1, Capacity: 1000, Concurrency: 64}
}

// Strictest is the lowest of the rates, a second.
func (p Policy) Strictest() float64 {
	rate := p.Rate.PerSecond()
	for _, further := range p.Rates {
		rate = min(rate, further.Rate.PerSecond())
	}
	return rate
}

// Paces returns all rates of the policy with their bursts, the first one first.
func (p Policy) Paces() []Pace {
	return append([]Pace{{Rate: p.Rate, Burst: p.Burst}}, p.Rates...)
}

// DrainRate returns the strictest of the rates, at which jobs of cost 1 leave for long.
func (p Policy) DrainRate() Rate {
	of := func(r Rate) float64 { return float64(r.Limit) / float64(r.Period.Microseconds()) }
	strictest := p.Rate
	for _, further := range p.Rates {
		if of(further.Rate) < of(strictest) {
			strictest = further.Rate
		}
	}
	return strictest
}

// CostRate returns the strictest of the rates by cost. Reserves are parts of it; a rate by jobs
// bounds no cost.
func (p Policy) CostRate() Rate {
	strictest := p.Rate
	for _, further := range p.Rates {
		if !further.ByJobs && further.Rate.PerSecond() < strictest.PerSecond() {
			strictest = further.Rate
		}
	}
	return strictest
}

// poolCostSpan is how much of its time a pool lets one job take by default.
const poolCostSpan = 10 * time.Second

// PoolCost is the greatest cost of one job in a pool with this policy: MaxCost or, without it, what
// the rate leaks in ten seconds, or the burst if that is larger. Of several rates by cost, the
// least counts. In doubles, in the same order as in the scripts.
func (p Policy) PoolCost() int64 {
	if p.MaxCost > 0 {
		return min(p.MaxCost, MaxCost)
	}
	most := float64(MaxCost)
	for _, pace := range p.Paces() {
		if !pace.ByJobs {
			leak := float64(pace.Rate.Limit) * float64(poolCostSpan.Microseconds())
			most = min(most, max(math.Floor(leak/float64(pace.Rate.Period.Microseconds())), float64(pace.Burst)))
		}
	}
	return int64(max(1, most))
}

// Problem is one setting that breaks a rule.
type Problem struct {
	Field string // path of the setting, such as "rate" or "rates[1].burst"
	Value string // the value as a person would write it
	Rule  string // what the value must be
}

func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Field, p.Value, p.Rule) }

// Problems is every problem found in one value; as an error it lists them all.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "; ")
}

// Check adds a problem unless the value is ok.
func (ps *Problems) Check(ok bool, field string, value any, rule string) {
	if !ok {
		*ps = append(*ps, Problem{field, fmt.Sprint(value), rule})
	}
}

// Under gives every problem's field the path as a prefix, for a value that is part of a larger one.
func (ps Problems) Under(path string) Problems {
	out := make(Problems, len(ps))
	for i, p := range ps {
		p.Field = path + "." + p.Field
		out[i] = p
	}
	return out
}

// Err returns the problems as an error, nil if there are none.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Validate returns every setting that is out of bounds, not just the first. The result is of type
// Problems.
func (p Policy) Validate() error {
	var ps Problems
	within := func(field string, v, low, high int64) {
		if v < low || v > high {
			ps = append(ps, Problem{
				field, fmt.Sprint(v), fmt.Sprintf("must be a whole number from %d to %d", low, high),
			})
		}
	}
	pace := func(prefix string, pace Pace) {
		rateErr := pace.Rate.Validate()
		if rateErr != nil {
			ps = append(ps, Problem{
				prefix + "rate", fmt.Sprintf("%d per %v", pace.Rate.Limit, pace.Rate.Period), rateErr.Error(),
			})
		}
		if pace.Burst < 1 {
			ps = append(ps, Problem{prefix + "burst", fmt.Sprint(pace.Burst), "must be a whole number of at least 1"})
		}
		if rateErr != nil || pace.Burst < 1 {
			return
		}
		// Products must stay exact in the scripts' doubles: see the package comment.
		tooLong := pace.Burst > int64(maxHorizon/pace.Rate.Period) ||
			pace.Burst+leastCharge > int64(float64(maxHorizon)/float64(pace.Rate.Period)*float64(pace.Rate.Limit))
		if tooLong {
			ps = append(ps, Problem{
				prefix + "burst", fmt.Sprint(pace.Burst),
				"burst × period, and the time that burst + 100 departures take, must be at most 200 years",
			})
		}
	}
	pace("", Pace{Rate: p.Rate, Burst: p.Burst})
	if len(p.Rates) > MaxRates {
		ps = append(ps, Problem{
			"rates", fmt.Sprintf("%d rates", len(p.Rates)), fmt.Sprintf("must be at most %d", MaxRates),
		})
	} else {
		for i, r := range p.Rates {
			pace(fmt.Sprintf("rates[%d].", i), r)
		}
	}
	within("capacity", p.Capacity, 0, MaxCapacity)
	within("capacity_bytes", p.CapacityBytes, 0, MaxBytes)
	within("concurrency", p.Concurrency, 0, MaxConcurrency)
	switch {
	case p.MaxWait < 0 || p.MaxWait > MaxPeriod:
		ps = append(ps, Problem{"max_wait", p.MaxWait.String(), "must be from 0 to 366d"})
	case p.MaxWait%time.Millisecond != 0:
		ps = append(ps, Problem{"max_wait", p.MaxWait.String(), "must be in whole milliseconds"})
	}
	within("max_cost", p.MaxCost, 0, MaxCost)
	within("weight", p.Weight, 0, MaxWeight)
	within("pool_weight", p.ClassWeight, 0, MaxWeight)
	if p.Reserve != (Rate{}) {
		if err := p.Reserve.Validate(); err != nil {
			ps = append(ps, Problem{"reserve", fmt.Sprintf("%d per %v", p.Reserve.Limit, p.Reserve.Period), err.Error()})
		} else if p.Reserve.PerSecond() > p.Rate.PerSecond() {
			ps = append(ps, Problem{"reserve", p.Reserve.String(), "must be at most the rate, " + p.Rate.String()})
		}
	}
	return ps.Err()
}

// Overrides are the settings of a tenant in one source (a file, the API); nil leaves a
// setting to the sources below it.
type Overrides struct {
	Rate          *Rate       `json:"rate,omitempty"`
	Burst         *int64      `json:"burst,omitempty"`
	Rates         *[]PaceJSON `json:"rates,omitempty"`
	Capacity      *int64      `json:"capacity,omitempty"`
	Concurrency   *int64      `json:"concurrency,omitempty"`
	CapacityBytes *int64      `json:"capacity_bytes,omitempty"`
	MaxWaitMS     *int64      `json:"max_wait_ms,omitempty"`
	Paused        *bool       `json:"paused,omitempty"`
	Draining      *bool       `json:"draining,omitempty"`
	MaxCost       *int64      `json:"max_cost,omitempty"`
	Weight        *int64      `json:"weight,omitempty"`
	Reserve       *Rate       `json:"reserve,omitempty"`

	// Tier is the tier of the tenant; empty for none. It cannot be set for a route or a tier.
	Tier *string `json:"tier,omitempty"`
	// Routes are the overrides of single routes, by name: all settings but Draining, Tier and
	// Routes.
	Routes map[string]Overrides `json:"routes,omitempty"`
}

// PaceJSON is the form of a further rate in the API:
// {"limit":1000,"period_ms":86400000,"burst":1000,"by":"jobs"}; burst defaults to 1, by to "cost".
type PaceJSON struct {
	Limit    int64  `json:"limit"`
	PeriodMS int64  `json:"period_ms"`
	Burst    int64  `json:"burst,omitempty"`
	By       string `json:"by,omitempty"`
}

// JSON is the form of the pace in the API.
func (p Pace) JSON() PaceJSON {
	j := PaceJSON{Limit: p.Rate.Limit, PeriodMS: p.Rate.Period.Milliseconds(), Burst: p.Burst}
	if p.ByJobs {
		j.By = ByJobs
	}
	return j
}

// Pace converts the form to a pace, without checks.
func (j PaceJSON) Pace() Pace {
	period := time.Duration(min(max(j.PeriodMS, 0), MaxPeriod.Milliseconds()+1)) * time.Millisecond
	burst := j.Burst
	if burst == 0 {
		burst = 1
	}
	return Pace{Rate: Rate{Limit: j.Limit, Period: period}, Burst: burst, ByJobs: j.By == ByJobs}
}

// Over returns base with the overrides in place of its settings, except the overrides of single
// routes.
func (o Overrides) Over(base Policy) Policy {
	if o.Rate != nil {
		base.Rate = *o.Rate
	}
	if o.Burst != nil {
		base.Burst = *o.Burst
	}
	if o.Rates != nil {
		base.Rates = make([]Pace, len(*o.Rates))
		for i, r := range *o.Rates {
			base.Rates[i] = r.Pace()
		}
	}
	if o.Capacity != nil {
		base.Capacity = *o.Capacity
	}
	if o.CapacityBytes != nil {
		base.CapacityBytes = *o.CapacityBytes
	}
	if o.Concurrency != nil {
		base.Concurrency = *o.Concurrency
	}
	if o.MaxWaitMS != nil {
		base.MaxWait = millis(*o.MaxWaitMS)
	}
	if o.Paused != nil {
		base.Paused = *o.Paused
	}
	if o.Draining != nil {
		base.Draining = *o.Draining
	}
	if o.MaxCost != nil {
		base.MaxCost = *o.MaxCost
	}
	if o.Weight != nil {
		base.Weight = *o.Weight
	}
	if o.Reserve != nil {
		base.Reserve = *o.Reserve
	}
	return base
}

// settings are the names of all settings in the API, and how to tell whether overrides say
// something of one.
var settings = []struct {
	name string
	set  func(Overrides) bool
}{
	{"rate", func(o Overrides) bool { return o.Rate != nil }},
	{"burst", func(o Overrides) bool { return o.Burst != nil }},
	{"rates", func(o Overrides) bool { return o.Rates != nil }},
	{"capacity", func(o Overrides) bool { return o.Capacity != nil }},
	{"capacity_bytes", func(o Overrides) bool { return o.CapacityBytes != nil }},
	{"concurrency", func(o Overrides) bool { return o.Concurrency != nil }},
	{"max_wait_ms", func(o Overrides) bool { return o.MaxWaitMS != nil }},
	{"paused", func(o Overrides) bool { return o.Paused != nil }},
	{"draining", func(o Overrides) bool { return o.Draining != nil }},
	{"max_cost", func(o Overrides) bool { return o.MaxCost != nil }},
	{"weight", func(o Overrides) bool { return o.Weight != nil }},
	{"reserve", func(o Overrides) bool { return o.Reserve != nil }},
}

// Settings returns the name of every setting, as in the API.
func Settings() []string {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.name
	}
	return names
}

// Empty reports whether no setting is set.
func (o Overrides) Empty() bool { return len(o.Set()) == 0 && o.Tier == nil && len(o.Routes) == 0 }

// Set returns the names, as in the API, of the settings that are set, except those of single
// routes.
func (o Overrides) Set() []string {
	var names []string
	for _, s := range settings {
		if s.set(o) {
			names = append(names, s.name)
		}
	}
	return names
}

// millis converts without overflow: what is out of range stays out of range for Validate to name.
func millis(ms int64) time.Duration {
	limit := MaxPeriod.Milliseconds() + 1
	return time.Duration(min(max(ms, -1), limit)) * time.Millisecond
}
