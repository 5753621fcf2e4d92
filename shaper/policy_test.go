package shaper_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// fields are the names of the settings that break a rule.
func fields(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var problems shaper.Problems
	if !errors.As(err, &problems) {
		t.Fatalf("%v is not of type Problems", err)
	}
	var names []string
	for _, p := range problems {
		if p.Value == "" || p.Rule == "" {
			t.Errorf("%+v names no value or no rule", p)
		}
		names = append(names, p.Field)
	}
	return names
}

func TestPolicyValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*shaper.Policy)
		want   []string
	}{
		{"default", func(*shaper.Policy) {}, nil},
		{"zero value", func(p *shaper.Policy) { *p = shaper.Policy{} }, []string{"rate", "burst"}},
		{"rate and burst both wrong", func(p *shaper.Policy) {
			p.Rate.Limit, p.Burst = 0, -1
		}, []string{"rate", "burst"}},
		{"no burst", func(p *shaper.Policy) { p.Burst = 0 }, []string{"burst"}},
		{"burst beyond all sums", func(p *shaper.Policy) { p.Burst = math.MaxInt64 }, []string{"burst"}},
		{"no capacity", func(p *shaper.Policy) { p.Capacity = 0 }, nil},
		{"greatest capacity", func(p *shaper.Policy) { p.Capacity = shaper.MaxCapacity }, nil},
		{"capacity too great", func(p *shaper.Policy) {
			p.Capacity = shaper.MaxCapacity + 1
		}, []string{"capacity"}},
		{"negative capacity", func(p *shaper.Policy) { p.Capacity = -1 }, []string{"capacity"}},
		{"no cap on concurrency", func(p *shaper.Policy) { p.Concurrency = 0 }, nil},
		{"concurrency too great", func(p *shaper.Policy) {
			p.Concurrency = shaper.MaxConcurrency + 1
		}, []string{"concurrency"}},
		{"negative concurrency", func(p *shaper.Policy) { p.Concurrency = -1 }, []string{"concurrency"}},
		{"longest max wait", func(p *shaper.Policy) { p.MaxWait = 366 * 24 * time.Hour }, nil},
		{"max wait too long", func(p *shaper.Policy) { p.MaxWait = 366*24*time.Hour + 1 }, []string{"max_wait"}},
		{"negative max wait", func(p *shaper.Policy) { p.MaxWait = -time.Millisecond }, []string{"max_wait"}},
		{"max wait in parts of a millisecond", func(p *shaper.Policy) {
			p.MaxWait = time.Microsecond
		}, []string{"max_wait"}},
		{"seven further rates", func(p *shaper.Policy) {
			for range shaper.MaxRates {
				p.Rates = append(p.Rates, pace("1000/d", 1000))
			}
		}, nil},
		{"eight further rates", func(p *shaper.Policy) {
			for range shaper.MaxRates + 1 {
				p.Rates = append(p.Rates, pace("1000/d", 1000))
			}
		}, []string{"rates"}},
		{"everything at once", func(p *shaper.Policy) {
			*p = shaper.Policy{
				Rate: rate("1/s"), Burst: 0, Capacity: -1, Concurrency: -1, MaxWait: -1,
				Rates: []shaper.Pace{pace("1/s", 1), {Burst: 1}, pace("1/d", 0), pace("1/366d", 100)},
			}
		},
			[]string{
				"burst", "rates[1].rate", "rates[2].burst", "rates[3].burst", "capacity", "concurrency",
				"max_wait",
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := shaper.DefaultPolicy()
			tt.change(&p)
			if diff := cmp.Diff(tt.want, fields(t, p.Validate())); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBurstBound: burst × period ≤ 200 years, and so is the time of burst + 100 departures; the
// bound itself is legal.
func TestBurstBound(t *testing.T) {
	check := func(t testing.TB, r shaper.Rate) {
		t.Helper()
		p := shaper.DefaultPolicy()
		p.Rate, p.Burst = r, maxBurst(r)
		if err := p.Validate(); err != nil {
			t.Errorf("%v with burst %d: %v", r, p.Burst, err)
		}
		p.Burst++
		if diff := cmp.Diff([]string{"burst"}, fields(t, p.Validate())); diff != "" {
			t.Errorf("%v with burst %d (-want +got):\n%s", r, p.Burst, diff)
		}
	}
	for _, text := range extremes {
		t.Run(text, func(t *testing.T) { check(t, rate(text)) })
	}
	for text, want := range map[string]int64{"1/366d": 99, "2/366d": 199, "1/d": 72_900, "10/s": 6_307_200_000} {
		if got := maxBurst(rate(text)); got != want {
			t.Errorf("the greatest burst of %s is %d, want %d", text, got, want)
		}
	}
}

func TestProblems(t *testing.T) {
	if err := (shaper.Problems{}).Err(); err != nil {
		t.Errorf("no problems are the error %v", err)
	}
	ps := shaper.Problems{
		{Field: "rate", Value: "0/s", Rule: "too slow"}, {Field: "burst", Value: "0", Rule: "too small"},
	}
	if want := "rate: 0/s: too slow; burst: 0: too small"; ps.Err().Error() != want {
		t.Errorf("Error() = %q, want %q", ps.Err(), want)
	}
	under := ps.Under("tenants.acme")
	if want := "tenants.acme.rate: 0/s: too slow; tenants.acme.burst: 0: too small"; under.Error() != want {
		t.Errorf("Under() = %q, want %q", under, want)
	}
	if ps[0].Field != "rate" {
		t.Error("Under changed its receiver")
	}
}

func TestPaces(t *testing.T) {
	p := shaper.DefaultPolicy()
	p.Rates = append(make([]shaper.Pace, 0, 8), pace("1000/d", 100))
	paces := p.Paces()
	if diff := cmp.Diff([]shaper.Pace{pace("10/s", 1), pace("1000/d", 100)}, paces); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	paces[1].Burst = 7
	if p.Rates[0].Burst != 100 {
		t.Error("the result shares memory with the policy")
	}
}

func TestOverridesOver(t *testing.T) {
	base := shaper.DefaultPolicy()
	base.Rates = []shaper.Pace{pace("1000/d", 100)}
	base.MaxWait = time.Minute
	for _, tt := range []struct {
		name string
		text string
		want func(*shaper.Policy)
		set  []string
	}{
		{"nothing", `{}`, func(*shaper.Policy) {}, nil},
		{"nulls", `{"rate":null,"burst":null,"rates":null,"capacity":null}`, func(*shaper.Policy) {}, nil},
		{"rate", `{"rate":{"limit":7,"period_ms":3000}}`, func(p *shaper.Policy) {
			p.Rate = rate("7/3s")
		}, []string{"rate"}},
		{"further rates", `{"rates":[{"limit":5,"period_ms":60000},{"limit":9,"period_ms":1000,"burst":3}]}`,
			func(p *shaper.Policy) { p.Rates = []shaper.Pace{pace("5/m", 1), pace("9/s", 3)} }, []string{"rates"}},
		{"no further rates", `{"rates":[]}`, func(p *shaper.Policy) {
			p.Rates = []shaper.Pace{}
		}, []string{"rates"}},
		{"zeros are settings", `{"capacity":0,"concurrency":0,"max_wait_ms":0,"paused":false}`,
			func(p *shaper.Policy) { p.Capacity, p.Concurrency, p.MaxWait = 0, 0, 0 },
			[]string{"capacity", "concurrency", "max_wait_ms", "paused"}},
		{"all", `{"rate":{"limit":1,"period_ms":1000},"burst":2,"rates":[],"capacity":3,"concurrency":4,` +
			`"max_wait_ms":5,"paused":true}`,
			func(p *shaper.Policy) {
				*p = shaper.Policy{
					Rate: rate("1/s"), Burst: 2, Rates: []shaper.Pace{}, Capacity: 3, Concurrency: 4,
					MaxWait: 5 * time.Millisecond, Paused: true,
				}
			},
			[]string{"rate", "burst", "rates", "capacity", "concurrency", "max_wait_ms", "paused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var o shaper.Overrides
			if err := json.Unmarshal([]byte(tt.text), &o); err != nil {
				t.Fatal(err)
			}
			want := base
			tt.want(&want)
			if diff := cmp.Diff(want, o.Over(base)); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.set, o.Set()); diff != "" {
				t.Errorf("settings named (-want +got):\n%s", diff)
			}
			again, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			var back shaper.Overrides
			if err := json.Unmarshal(again, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(o, back); diff != "" {
				t.Errorf("%s does not round trip (-want +got):\n%s", again, diff)
			}
		})
	}
}

// TestOverridesOutOfRange: what the API may send but a policy may not hold arrives at Validate as
// such, never wrapped into range.
func TestOverridesOutOfRange(t *testing.T) {
	for _, tt := range []struct{ text, field string }{
		{`{"burst":0}`, "burst"},
		{`{"burst":9223372036854775807}`, "burst"},
		{`{"capacity":-1}`, "capacity"},
		{`{"capacity":9223372036854775807}`, "capacity"},
		{`{"concurrency":9223372036854775807}`, "concurrency"},
		{`{"max_wait_ms":-1}`, "max_wait"},
		{`{"max_wait_ms":-9223372036854775808}`, "max_wait"},
		{`{"max_wait_ms":31622400001}`, "max_wait"},
		{`{"max_wait_ms":9223372036854775807}`, "max_wait"},
		{`{"max_wait_ms":18446744073710}`, "max_wait"}, // 2⁶⁴ ns and a little: 0.4 s if it wrapped
		{`{"rates":[{"limit":0,"period_ms":1000}]}`, "rates[0].rate"},
		{`{"rates":[{"limit":1,"period_ms":0}]}`, "rates[0].rate"},
		{`{"rates":[{"limit":1,"period_ms":-1}]}`, "rates[0].rate"},
		{`{"rates":[{"limit":1,"period_ms":18446744073710}]}`, "rates[0].rate"},
		{`{"rates":[{"limit":1,"period_ms":1000,"burst":-1}]}`, "rates[0].burst"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			var o shaper.Overrides
			if err := json.Unmarshal([]byte(tt.text), &o); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.field}, fields(t, o.Over(shaper.DefaultPolicy()).Validate())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	var o shaper.Overrides
	if err := json.Unmarshal([]byte(`{"rate":{"limit":0,"period_ms":1000}}`), &o); !errors.Is(err,
		shaper.ErrRate) {
		t.Errorf("a rate out of bounds gives %v, want ErrRate", err)
	}
}

func TestValidPolicies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := paces().Draw(t, "pace")
		p := shaper.Policy{
			Rate: first.Rate, Burst: first.Burst,
			Rates:       rapid.SliceOfN(paces(), 0, shaper.MaxRates).Draw(t, "rates"),
			Capacity:    rapid.Int64Range(0, shaper.MaxCapacity).Draw(t, "capacity"),
			Concurrency: rapid.Int64Range(0, shaper.MaxConcurrency).Draw(t, "concurrency"),
			MaxWait: time.Duration(rapid.Int64Range(0, shaper.MaxPeriod.Milliseconds()).Draw(t,
				"max wait")) * time.Millisecond,
			Paused: rapid.Bool().Draw(t, "paused"),
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		p.Burst = 0
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), "burst: 0: ") {
			t.Fatalf("%+v: %v", p, err)
		}
	})
}

// TestSettings: the list of all settings is that of the JSON form of the overrides.
func TestSettings(t *testing.T) {
	for _, name := range shaper.Names(shaper.Settings()) {
		value, ok := map[string]string{"rate": `{"limit":1,"period_ms":1000}`, "rates": `[]`, "paused": `true`, "draining": `true`, "denied": `true`, "types": `[]`, "reserve": `{"limit":1,"period_ms":1000}`}[name]
		if !ok {
			value = "7"
		}
		var o shaper.Overrides
		d := json.NewDecoder(strings.NewReader(`{"` + name + `":` + value + `}`))
		d.DisallowUnknownFields()
		if err := d.Decode(&o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff([]string{name}, o.Set()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	const others = 2 // Tier and Routes, which are no settings of a policy
	if got, want := len(shaper.Settings()), reflect.TypeFor[shaper.Overrides]().NumField()-others; got != want {
		t.Errorf("%d settings, but overrides of %d", got, want)
	}
}
