package shaper

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/7509e464/sluice/internal/numbers"
)

// Bounds of a Policy's settings.
const (
	MaxCapacity    = 1_000_000_000 // jobs
	MaxBytes       = 1 << 50       // of CapacityBytes
	MaxConcurrency = 1_000_000     // jobs
	MaxRates       = 7             // further rates beside the first
	MaxCost        = 1_000_000     // intervals one job may take
	MaxTypes       = 16            // of Types, each of at most maxType bytes
	maxType        = 255
	MaxReason      = 255 // bytes of the reason given with a change
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

// DefaultPolicy returns the policy of a tenant without settings.
func DefaultPolicy() Policy {
	return Policy{Rate: Rate{Limit: 10, Period: time.Second}, Burst: 1, Capacity: 1000, Concurrency: 64}
}

// AllowsType reports whether jobs of the type are admitted; empty is a job without one.
func (p Policy) AllowsType(name string) bool {
	return len(p.Types) == 0 || slices.Contains(p.Types, name)
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

// String names the field, the value if there is one, and the rule.
func (p Problem) String() string {
	if p.Value == "" {
		return p.Field + ": " + p.Rule
	}
	return fmt.Sprintf("%s: %s: %s", p.Field, p.Value, p.Rule)
}

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
	for _, setting := range settings {
		switch v := setting.in(&p).(type) {
		case *int64:
			if setting.High > 0 && (*v != 0 || setting.Low == 0) { // a burst is bounded by its rate
				within(setting.Name, *v, setting.Low, setting.High)
			}
		case *time.Duration:
			switch {
			case *v < 0 || *v > millis(setting.High):
				ps = append(ps, Problem{setting.Key(), v.String(), "must be from 0 to 366d"})
			case *v%time.Millisecond != 0:
				ps = append(ps, Problem{setting.Key(), v.String(), "must be in whole milliseconds"})
			}
		case *[]string:
			for i, name := range *v {
				if i >= MaxTypes || len(name) < 1 || len(name) > maxType || strings.ContainsFunc(name, unicode.IsControl) {
					ps = append(ps, Problem{fmt.Sprintf("%s[%d]", setting.Name, i), strconv.Quote(name), setting.Rule})
					break
				}
			}
		}
	}
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

// PacesJSON is the form of paces in the API; nil for none.
func PacesJSON(paces []Pace) (out []PaceJSON) {
	for _, p := range paces {
		out = append(out, p.JSON())
	}
	return out
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

// String writes the form that ParsePace reads, such as 1000/24h burst 1000 by jobs.
func (j PaceJSON) String() string {
	p := j.Pace()
	text := fmt.Sprintf("%s burst %d", p.Rate, p.Burst)
	if p.ByJobs {
		text += " by jobs"
	}
	return text
}

// ParsePace reads a further rate: 1000/24h, with burst 1000 or by jobs or both behind it.
func ParsePace(text string) (PaceJSON, error) {
	words := strings.Fields(text)
	if len(words)%2 == 0 {
		words = append(words, "") // a rate is missing, or the value of the last word
	}
	r, err := ParseRate(words[0])
	if err != nil {
		return PaceJSON{}, err
	}
	pace := Pace{Rate: r, Burst: 1}.JSON()
	rule := errors.New("must be like 1000/24h, 1000/24h burst 1000 or 1000/24h burst 1000 by jobs")
	for i := 1; i < len(words); i += 2 {
		if slices.Contains(words[1:i], words[i]) {
			return PaceJSON{}, fmt.Errorf("%s must not be repeated", words[i])
		}
		switch value := words[i+1]; words[i] {
		case "burst":
			n, ok := numbers.ParseWhole(value)
			switch like := numbers.WholeLike(value); {
			case !ok && like != "":
				return PaceJSON{}, fmt.Errorf("burst %s: must be a whole number; is %s meant?", value, like)
			case !ok:
				return PaceJSON{}, rule
			}
			if pace.Burst = n; n < 1 { // the server would take 0 for left out
				return PaceJSON{}, errors.New("the burst must be at least 1")
			}
		case "by":
			if value != ByCost && value != ByJobs {
				return PaceJSON{}, fmt.Errorf("by %s: a rate counts by cost or by jobs", value)
			}
			pace.By = value
		default:
			return PaceJSON{}, rule
		}
	}
	return pace, nil
}

// millis converts without overflow: what is out of range stays out of range for Validate to name.
func millis(ms int64) time.Duration {
	limit := MaxPeriod.Milliseconds() + 1
	return time.Duration(min(max(ms, -1), limit)) * time.Millisecond
}
