package shaper

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

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
	Denied      bool          // nothing is admitted, as the tenant may not use the route; what waits leaves
	Types       []string      `json:",omitempty"` // of jobs that are admitted, at most MaxTypes; empty: all

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
	Denied        *bool       `json:"denied,omitempty"`
	Types         *[]string   `json:"types,omitempty"`
	MaxCost       *int64      `json:"max_cost,omitempty"`
	Weight        *int64      `json:"weight,omitempty"`
	Reserve       *Rate       `json:"reserve,omitempty"`

	// Tier is the tier of the tenant; empty for none. It cannot be set for a route or a tier.
	Tier *string `json:"tier,omitempty"`
	// Routes are the overrides of single routes, by name: all settings but Draining, Tier and
	// Routes.
	Routes map[string]Overrides `json:"routes,omitempty"`
}

// Kind is the type of a setting's value.
type Kind string

// The kinds of settings, with the field that Overrides have for each.
const (
	KindRate     Kind = "rate"     // *Rate
	KindRates    Kind = "rates"    // *[]PaceJSON
	KindNumber   Kind = "number"   // *int64
	KindDuration Kind = "duration" // *int64, in milliseconds
	KindSwitch   Kind = "switch"   // *bool
	KindTypes    Kind = "types"    // *[]string
)

// Setting is a row of the table of the settings of a policy. Everything that lists settings is
// derived from the table: merge patches, the forms of the API, keys of the configuration file,
// flags of the commands, comparisons, histories and reference pages.
type Setting struct {
	Name      string // in the API, such as "max_wait_ms"
	Kind      Kind
	Low, High int64  // of a number or, in milliseconds, of a duration; High 0: bounded by other settings
	Default   string // of tenants, as in the configuration file; empty for none
	Rule      string // what a value in the configuration file must be; empty: the rule of its kind
	Help      string // what it does for a tenant
	Doc       string // the same for the API, if its name does not say it

	Pool        bool   // pools have it, too
	PoolDefault string // of a pool, as in the configuration file
	PoolHelp    string // what it does for a pool
	PoolDoc     string

	Knob   bool // the dashboard has a field for it; of the kinds rate, number and duration
	Rare   bool // shown only where it has another value than its default
	Verb   bool // has an operation of its own, so that files, patches and routes cannot have it
	NoFlag bool // has commands of its own instead of a flag

	of func(o *Overrides) any // pointer to the field of the overrides
	in func(p *Policy) any    // pointer to the field of the policy
}

const rateRule = "must be LIMIT/PERIOD with the units ms, s, m, h, d, period from 1ms to 366d, at most 1000000 a second"

// settings is the table. The order is that of all lists.
var settings = []Setting{
	{Name: "rate", Kind: KindRate, Default: "10/s", Rule: rateRule,
		Help: "Departures per period, such as 10/s or 5/24h.",
		Pool: true,
		PoolHelp: "Departures of all flows of the pool per period, such as 200/s. Every pool has one, at least the " +
			"reserves of all named tenants together; a lower one that is set live reduces them in proportion.",
		Knob: true,
		of:   func(o *Overrides) any { return &o.Rate },
		in:   func(p *Policy) any { return &p.Rate }},
	{Name: "burst", Kind: KindNumber, Low: 1, Default: "1",
		Rule:        "must be a whole number of at least 1; burst × period at most 200 years",
		Help:        "Jobs that may leave at once after an idle period.",
		Pool:        true,
		PoolDefault: "1",
		PoolHelp:    "Jobs of the pool that may leave at once after an idle period.",
		of:          func(o *Overrides) any { return &o.Burst },
		in:          func(p *Policy) any { return &p.Burst }},
	{Name: "rates", Kind: KindRates,
		Rule: "must be a list of at most 7 sections with a `rate` and optionally a `burst` (1) and `by` (cost or jobs; cost)",
		Help: "Further rates, the strictest wins: `[ { rate: 1000/24h, burst: 100 }, { rate: 60/m, by: jobs } ]`.",
		Doc:  "Further rates; the strictest wins.",
		Pool: true, PoolHelp: "Further rates, the strictest wins.", PoolDoc: "Further rates; the strictest wins.",
		Rare: true,
		of:   func(o *Overrides) any { return &o.Rates },
		in:   func(p *Policy) any { return &p.Rates }},
	{Name: "capacity", Kind: KindNumber, High: MaxCapacity, Default: "1000",
		Help:        "Maximum waiting jobs; more are refused with 429.",
		Pool:        true,
		PoolDefault: "1000000000",
		PoolHelp:    "Maximum waiting jobs of the pool; more are refused with 429.",
		PoolDoc:     "Limit of the waiting jobs of all flows.",
		Knob:        true,
		of:          func(o *Overrides) any { return &o.Capacity },
		in:          func(p *Policy) any { return &p.Capacity }},
	{Name: "capacity_bytes", Kind: KindNumber, High: MaxBytes, Default: "0",
		Help:        "Maximum bytes of the payloads of waiting jobs; more are refused with 429. 0 is no bound.",
		Doc:         "Limit of the payload bytes of waiting jobs; 0 is no limit.",
		Pool:        true,
		PoolDefault: "0",
		PoolHelp: "Maximum bytes of the payloads of waiting jobs of the pool; more are refused with 429. " +
			"0 is no bound.",
		PoolDoc: "Limit of the payload bytes of the waiting jobs of all flows; 0 is no limit.",
		Rare:    true,
		of:      func(o *Overrides) any { return &o.CapacityBytes },
		in:      func(p *Policy) any { return &p.CapacityBytes }},
	{Name: "concurrency", Kind: KindNumber, High: MaxConcurrency, Default: "64",
		Help:        "Maximum concurrent deliveries of all workers; 0 is no bound.",
		Doc:         "0 is no cap.",
		Pool:        true,
		PoolDefault: "0",
		PoolHelp:    "Maximum concurrent deliveries of the pool by all workers; 0 is no bound.",
		PoolDoc:     "Limit of the leased jobs of all flows; 0 is no cap.",
		Knob:        true,
		of:          func(o *Overrides) any { return &o.Concurrency },
		in:          func(p *Policy) any { return &p.Concurrency }},
	{Name: "max_wait_ms", Kind: KindDuration, High: int64(MaxPeriod / time.Millisecond), Default: "0s",
		Help: "Longest wait before a job expires; 0s is no bound.",
		Doc:  "0 is no limit.",
		of:   func(o *Overrides) any { return &o.MaxWaitMS },
		in:   func(p *Policy) any { return &p.MaxWait }},
	{Name: "paused", Kind: KindSwitch, Default: "false",
		Help:        "Admit jobs but stop their departures.",
		Pool:        true,
		PoolDefault: "false",
		PoolHelp:    "Admit jobs but stop the departures of the pool.",
		NoFlag:      true,
		of:          func(o *Overrides) any { return &o.Paused },
		in:          func(p *Policy) any { return &p.Paused }},
	{Name: "draining", Kind: KindSwitch, Verb: true,
		of: func(o *Overrides) any { return &o.Draining },
		in: func(p *Policy) any { return &p.Draining }},
	{Name: "denied", Kind: KindSwitch, Default: "false",
		Help: "Refuse new jobs with 403; waiting jobs still leave. For a route it says who may use it.",
		Doc:  "New jobs are refused with 403; waiting jobs still leave. For a route it says who may use it.",
		Rare: true,
		of:   func(o *Overrides) any { return &o.Denied },
		in:   func(p *Policy) any { return &p.Denied }},
	{Name: "types", Kind: KindTypes,
		Rule: "must be a list of at most 16 types of jobs, each of 1 to 255 bytes without control or format characters",
		Help: "Types of jobs that are admitted, such as `[ order.create, order.cancel ]`; others are refused with 403. " +
			"`[]` is all.",
		Doc:  "Types of jobs that are admitted; others are refused with 403. [] is all.",
		Rare: true,
		of:   func(o *Overrides) any { return &o.Types },
		in:   func(p *Policy) any { return &p.Types }},
	{Name: "max_cost", Kind: KindNumber, High: MaxCost, Default: "0",
		Help: "Maximum cost of one job; more is refused with 422. 0 is no bound: the job delays only its own flow, and " +
			"a pool has a bound of its own.",
		Doc: "Limit of the cost of one job: a higher one is refused with 422; 0 is no limit. A pool has a limit of " +
			"its own.",
		Pool:        true,
		PoolDefault: "0",
		PoolHelp: "Maximum cost of one job in the pool; more is refused with 422, and a higher actual cost counts as " +
			"this. 0 is what the rate leaks in ten seconds, or the burst if that is larger.",
		PoolDoc: "Limit of the cost of one job: a higher one is refused with 422, and a higher actual cost counts as " +
			"this in the pool. 0 is what the rate leaks in ten seconds, or the burst if that is larger.",
		Rare: true,
		of:   func(o *Overrides) any { return &o.MaxCost },
		in:   func(p *Policy) any { return &p.MaxCost }},
	{Name: "weight", Kind: KindNumber, Low: 1, High: MaxWeight, Default: "1",
		Help: "Part of what reserves leave of the rate of a pool, beside the weights of its other flows.",
		Doc:  "On routes in a pool: weight of the flow when the pool's rate, less the reserves, is shared.",
		Rare: true,
		Knob: true,
		of:   func(o *Overrides) any { return &o.Weight },
		in:   func(p *Policy) any { return &p.Weight }},
	{Name: "reserve", Kind: KindRate, Rule: "must be LIMIT/PERIOD, at most the rate",
		Help: "Part of the rate of a pool that a flow has before all others.",
		Doc:  "On routes in a pool: part of the pool's rate that the flow gets before others, at most its rate.",
		Rare: true,
		Knob: true,
		of:   func(o *Overrides) any { return &o.Reserve },
		in:   func(p *Policy) any { return &p.Reserve }},
}

// Settings returns the table, with the settings that have an operation of their own.
func Settings() []Setting { return settings }

// SettingsOfTenants returns the settings that a tenant, a tier or a route of a tenant may have in a
// file or a patch.
func SettingsOfTenants() []Setting { return settingsThat(func(s Setting) bool { return !s.Verb }) }

// SettingsOfPools returns the settings that a pool may have.
func SettingsOfPools() []Setting { return settingsThat(func(s Setting) bool { return s.Pool }) }

func settingsThat(fit func(Setting) bool) (some []Setting) {
	for _, s := range settings {
		if fit(s) {
			some = append(some, s)
		}
	}
	return some
}

// Names returns the names of settings in the API.
func Names(of []Setting) []string {
	names := make([]string, len(of))
	for i, s := range of {
		names[i] = s.Name
	}
	return names
}

// Key returns the name of the setting in the configuration file, where a duration has its unit in
// the value: max_wait for max_wait_ms.
func (s Setting) Key() string { return strings.TrimSuffix(s.Name, "_ms") }

// Label returns the name of the setting for a person: max wait for max_wait_ms.
func (s Setting) Label() string { return strings.ReplaceAll(s.Key(), "_", " ") }

// FileRule returns what a value in the configuration file must be.
func (s Setting) FileRule() string {
	switch {
	case s.Rule != "":
		return s.Rule
	case s.Kind == KindDuration:
		return "must be a duration in whole milliseconds from 0s to 8784h"
	case s.Kind == KindSwitch:
		return "must be true or false"
	}
	return fmt.Sprintf("must be a whole number from %d to %d", s.Low, s.High)
}

// Of returns a pointer to the field of the overrides: to a pointer that is nil while the setting is
// not set, see Kind.
func (s Setting) Of(o *Overrides) any { return s.of(o) }

// IsSet reports whether the overrides set the setting.
func (s Setting) IsSet(o Overrides) bool { return !reflect.ValueOf(s.of(&o)).Elem().IsNil() }

// Copy sets or resets the setting to what it is in from.
func (s Setting) Copy(to *Overrides, from Overrides) {
	reflect.ValueOf(s.of(to)).Elem().Set(reflect.ValueOf(s.of(&from)).Elem())
}

// Text returns the value of the setting for a person, empty if it is not set.
func (s Setting) Text(o Overrides) string {
	if !s.IsSet(o) {
		return ""
	}
	switch v := s.of(&o).(type) {
	case **Rate:
		return (*v).String()
	case **[]PaceJSON:
		texts := make([]string, len(**v))
		for i, pace := range **v {
			texts[i] = pace.String()
		}
		if len(texts) == 0 {
			return "none"
		}
		return strings.Join(texts, ", ")
	case **[]string:
		if len(**v) == 0 {
			return AllTypes
		}
		return strings.Join(**v, ", ")
	case **int64:
		if s.Kind == KindDuration {
			return millis(**v).String()
		}
		if s.Name == "capacity" {
			return CapacityText(**v)
		}
		return strconv.FormatInt(**v, 10)
	default:
		return strconv.FormatBool(**v.(**bool))
	}
}

// AllTypes is the text of an empty list of types.
const AllTypes = "all"

// Unset returns the text of the setting for a person where nothing sets it.
func (s Setting) Unset() string {
	if s.Kind == KindTypes {
		return AllTypes
	}
	return "none"
}

// CapacityText returns a capacity for a person. The greatest one, which pools have by default,
// bounds nothing.
func CapacityText(n int64) string {
	if n >= MaxCapacity {
		return "unbounded"
	}
	return strconv.FormatInt(n, 10)
}

// over puts the override of the setting, if there is one, into the policy.
func (s Setting) over(o *Overrides, p *Policy) {
	switch from := s.of(o).(type) {
	case **Rate:
		put(s.in(p).(*Rate), *from)
	case **bool:
		put(s.in(p).(*bool), *from)
	case **[]PaceJSON:
		if *from != nil {
			paces := make([]Pace, len(**from))
			for i, r := range **from {
				paces[i] = r.Pace()
			}
			*s.in(p).(*[]Pace) = paces
		}
	case **[]string:
		put(s.in(p).(*[]string), *from)
	case **int64:
		switch to := s.in(p).(type) {
		case *int64:
			put(to, *from)
		case *time.Duration:
			if *from != nil {
				*to = millis(**from)
			}
		}
	}
}

// state puts the setting of the policy into the overrides, unless it is none.
func (s Setting) state(p *Policy, o *Overrides) {
	switch to := s.of(o).(type) {
	case **Rate:
		if r := *s.in(p).(*Rate); r != (Rate{}) {
			*to = &r
		}
	case **bool:
		*to = new(*s.in(p).(*bool))
	case **[]PaceJSON:
		if paces := PacesJSON(*s.in(p).(*[]Pace)); paces != nil {
			*to = &paces
		}
	case **[]string:
		if types := *s.in(p).(*[]string); types != nil {
			*to = &types
		}
	case **int64:
		switch v := s.in(p).(type) {
		case *int64:
			*to = new(max(*v, s.Low))
		case *time.Duration:
			*to = new(v.Milliseconds())
		}
	}
}

func put[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// Over returns base with the overrides in place of its settings, except the overrides of single
// routes.
func (o Overrides) Over(base Policy) Policy {
	for _, s := range settings {
		s.over(&o, &base)
	}
	return base
}

// Overrides returns these settings of the policy in the form of the API. A rate or further rates
// that are none are not set.
func (p Policy) Overrides(of []Setting) (o Overrides) {
	for _, s := range of {
		s.state(&p, &o)
	}
	return o
}

// Empty reports whether no setting is set.
func (o Overrides) Empty() bool { return len(o.Set()) == 0 && o.Tier == nil && len(o.Routes) == 0 }

// Set returns the names, as in the API, of the settings that are set, except those of single
// routes.
func (o Overrides) Set() (names []string) {
	for _, s := range settings {
		if s.IsSet(o) {
			names = append(names, s.Name)
		}
	}
	return names
}
