package lua_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// hostility bounds what the hostile tenants of TestSharedFate do.
type hostility struct {
	costs, actual []int64 // of a job, at most one of these
	outcomes      []scripts.Outcome
	crowd         int // tenants with a job each that come at once, at most
}

// hostile is what a tenant can do today without a loss for the others.
var hostile = hostility{
	costs: []int64{5, fateCost, 2 * fateCost, shaper.MaxCost}, actual: []int64{0, 10, 2 * fateCost, shaper.MaxCost}, crowd: 80,
	outcomes: []scripts.Outcome{
		scripts.OutcomeSucceeded, scripts.OutcomeRetry, scripts.OutcomeDead, scripts.OutcomeFailed, scripts.OutcomeReleased,
		scripts.OutcomeMissed, scripts.OutcomeHeld, scripts.OutcomeLapsed,
	},
}

// fated is a flow of the pool of TestSharedFate. The quiet ones wait all the time and change
// nothing.
type fated struct {
	tenant, flow string
	weight       int64
	reserve      shaper.Rate
}

// What hostile tenants set live. The slowest reserve adds nothing to the sum of the reserves, which
// is rounded.
var (
	hostileWeights  = []int64{1, 2, 5}
	hostileReserves = []shaper.Rate{{}, slowest, {Limit: 3, Period: time.Second}}
	hostileRates    = []shaper.Rate{slowest, {Limit: 7, Period: 3 * time.Second}, {Limit: 1_000_000, Period: time.Second}}
)

const (
	fatePool    = 200 // of the pool, a second
	fateCost    = 20  // max_cost of the pool
	fateStep    = 25 * time.Millisecond
	fateWindow  = 2 * time.Second
	fateHostile = 3 // flows
)

// TestSharedFate: whatever the tenants of a pool do, the others lose at most 1 % of what they are
// entitled to in every window of 2 s, and what the costs of its jobs in flight take. The exception
// is the first time that two of them hold the pool, until a probe has succeeded. The script
// and the model run beside each other on both engines.
//
// SLUICE_PARITY_STEPS=1000 makes it 100,000 steps.
func TestSharedFate(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			length := steps(t, map[string]int{"redis": 130, "embedded": 100}[kind.name])
			var histories atomic.Int64
			history := func(rt *rapid.T) {
				w := newWorld(rt, e, theme{name: "fate", routes: []string{"echo"}, pooled: true}, int(histories.Add(1)))
				defer w.clean()
				w.T, w.th.classes = rt, rapid.Bool().Draw(rt, "the crowd is a class")
				quiet, others := w.openFate()
				for range length {
					w.stepFate(quiet, others)
				}
				for _, f := range quiet {
					w.keepsItsPart(f, quiet)
				}
				w.compare()
			}
			if kind.name == "redis" || !testing.Short() {
				rapid.Check(t, history)
			}
			t.Logf("%d histories of %d steps", histories.Load(), length)
		})
	}
}

// openFate declares the pool, its quiet flows and the hostile ones.
func (w *world) openFate() (quiet, others []*fated) {
	p := shaper.DefaultPolicy()
	p.Capacity, p.Concurrency, p.Weight, p.Rate = 10_000, 0, 1, shaper.Rate{Limit: 1_000_000, Period: time.Second}
	p.Reserve = rapid.SampledFrom([]shaper.Rate{{}, slowest}).Draw(w.T, "reserve of all")
	b := shaper.Baseline{Defaults: p, Tiers: map[string]shaper.Overrides{"free": {}}, Pools: map[string]shaper.PoolSettings{"erp": {
		Routes: w.th.routes, Overrides: shaper.Overrides{
			Rate: &shaper.Rate{Limit: fatePool, Period: time.Second}, MaxCost: new(int64(fateCost)),
		},
	}}}
	if w.th.classes {
		b.PoolWeights = map[string]int64{"free": 1}
	}
	w.declare(w.wall, 1, b)
	vip := rapid.SampledFrom([]shaper.Rate{slowest, {Limit: 60, Period: time.Second}}).Draw(w.T, "reserve of vip")
	quiet = []*fated{
		{tenant: "vip", weight: 1, reserve: vip}, {tenant: "b", weight: 3, reserve: p.Reserve}, {tenant: "c", weight: 1, reserve: p.Reserve},
	}
	for i := range fateHostile {
		others = append(others, &fated{tenant: fmt.Sprint("evil", i)})
	}
	for _, f := range append(append([]*fated{}, quiet...), others...) {
		f.flow = f.tenant + "/echo"
		if f.weight > 0 {
			o := shaper.Overrides{Weight: &f.weight}
			if f.reserve != (shaper.Rate{}) {
				o.Reserve = &f.reserve
			}
			w.tune(w.tuningOf(f.tenant, "file", o))
		}
		w.th.tenants = append(w.th.tenants, f.tenant)
	}
	w.pollFate() // so that all flows obey the file: the model looks at all of a crowd at once
	return quiet, others
}

func (w *world) send(tenant string, n int, edit func(c *candidate)) {
	r := admission{at: w.wall}
	for range n {
		w.names++
		c := candidate{
			id: fmt.Sprintf("j%06d", w.names), tenant: tenant, route: "echo", flow: tenant + "/echo", entry: tenant,
			cost: 1, maxAttempts: 30,
		}
		if edit != nil {
			edit(&c)
		}
		r.jobs = append(r.jobs, c)
	}
	if n > 0 {
		w.admit(r)
	}
}

// stepFate fills up the quiet flows, lets a hostile tenant do something, and polls in time.
func (w *world) stepFate(quiet, others []*fated) {
	t := w.T
	for _, f := range quiet {
		if waits := len(w.m.queue[f.flow]); waits < 20 {
			w.send(f.tenant, 40-waits, nil)
		}
	}
	evil := rapid.SampledFrom(others).Draw(t, "hostile")
	switch rapid.SampledFrom([]string{"", "", "", "submit", "submit", "tune", "tune", "crowd", "purge", "expire"}).Draw(t, "does") {
	case "submit":
		w.send(evil.tenant, rapid.SampledFrom([]int{1, 3, 60}).Draw(t, "jobs"), func(c *candidate) {
			c.cost = rapid.Int64Range(1, rapid.SampledFrom(hostile.costs).Draw(t, "most cost")).Draw(t, "cost")
			c.delay = rapid.SampledFrom([]time.Duration{0, 0, fateStep, time.Second}).Draw(t, "delay")
		})
	case "expire": // many at one instant
		w.send(evil.tenant, 60, func(c *candidate) { c.maxWait = 4 * fateStep })
	case "tune":
		for _, f := range others { // the turn of the one that left last is not renewed by the next slot
			if w.m.flows[f.flow].Last == w.m.flows["+erp/"].Last {
				evil = f
			}
		}
		o := shaper.Overrides{
			Weight:  new(rapid.SampledFrom(hostileWeights).Draw(t, "weight")),
			Reserve: new(rapid.SampledFrom(hostileReserves).Draw(t, "reserve")),
			Rate:    new(rapid.SampledFrom(hostileRates).Draw(t, "rate")),
			Paused:  new(rapid.IntRange(0, 5).Draw(t, "paused") == 5),
		}
		if *o.Reserve == (shaper.Rate{}) {
			o.Reserve = nil
		}
		w.tune(w.tuningOf(evil.tenant, "api", o))
	case "crowd":
		for range rapid.IntRange(1, hostile.crowd).Draw(t, "tenants") {
			if w.th.classes { // each is of the tier free
				w.sendAs(fmt.Sprintf("crowd%d", w.names%400), "free", 1, rapid.Int64Range(1, fateCost).Draw(t, "cost of one"))
			} else {
				w.send(fmt.Sprintf("crowd%d", w.names%400), 1, nil)
			}
		}
	case "purge":
		r := cancellation{at: w.wall, tenant: evil.tenant}
		for _, waits := range w.m.queue[evil.flow].list() {
			r.ids = append(r.ids, waits.Name)
		}
		if len(r.ids) > 0 {
			w.cancel(r)
		}
	}
	w.wall = w.wall.Add(fateStep)
	w.pollFate()
	w.settleFate()
}

// pollFate leases what is due.
func (w *world) pollFate() {
	c := w.workers[0]
	for range 8 {
		r := w.pollOf(c, 200)
		if g := w.tick(c, r, true); !g.More && g.Needed == nil {
			break
		}
	}
}

// settleFate settles all leases: those of hostile tenants as their upstream likes to.
func (w *world) settleFate() {
	r := settlement{at: w.wall}
	for _, ref := range w.held {
		s := scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded}
		if flow := w.m.jobs[ref.id].Flow; len(flow) > 4 && flow[:4] == "evil" {
			s.Outcome = rapid.SampledFrom(hostile.outcomes).Draw(w.T, "outcome")
			s.Delay = rapid.SampledFrom([]time.Duration{0, fateStep, time.Second}).Draw(w.T, "delay")
			if flow != "evil2/echo" { // three could keep probes of the others from leaving in the hold
				s.Outcome = rapid.SampledFrom([]scripts.Outcome{s.Outcome, s.Outcome, scripts.OutcomeOverload, scripts.OutcomeHeld}).Draw(w.T, "refused")
			}
			if s.Outcome == scripts.OutcomeHeld {
				s.Cause = "breaker:0"
				if flow != "evil2/echo" && rapid.Bool().Draw(w.T, "asks for a pause") {
					s.Cause = rapid.SampledFrom([]string{"retry_after:429", "retry_after:503"}).Draw(w.T, "cause")
					s.Delay = rapid.SampledFrom([]time.Duration{0, fateStep, 4 * fateStep, time.Second, time.Hour}).Draw(w.T, "pause")
				}
			} else if s.Outcome != scripts.OutcomeReleased && s.Outcome != scripts.OutcomeMissed && rapid.Bool().Draw(w.T, "with its cost") {
				most := rapid.SampledFrom(hostile.actual).Draw(w.T, "most actual cost")
				s.ActualCost = new(rapid.Int64Range(0, most).Draw(w.T, "actual cost"))
			}
		}
		r.items = append(r.items, s)
	}
	w.held = nil
	if len(r.items) > 0 {
		w.settle(r)
	}
}

// keepsItsPart checks that a quiet flow got what it is entitled to in every window: its reserve,
// and by its weight its part of what the crowd and all reserves leave, as if each hostile flow
// waited all the time with the most that it may set. A crowd that is a class has its weight alone.
func (w *world) keepsItsPart(f *fated, quiet []*fated) {
	weights, reserves := float64(fateHostile*hostileWeights[len(hostileWeights)-1]), 0.0
	reserves += fateHostile * hostileReserves[len(hostileReserves)-1].PerSecond()
	mine := map[string]bool{}
	for _, q := range quiet {
		weights += float64(q.weight)
		mine[q.flow] = true
		if q.reserve != (shaper.Rate{}) {
			reserves += q.reserve.PerSecond()
		}
	}
	reserve := 0.0
	if f.reserve != (shaper.Rate{}) {
		reserve = f.reserve.PerSecond()
	}
	// What a hostile flow has taken before the window, and takes at its end, as a job that has left
	// has used the quota.
	allowance := float64(fateHostile*fateCost + fateCost + 2)
	if w.th.classes {
		weights, allowance = weights+1, allowance+fateCost
	}
	served, first := w.m.served, 0
	if len(served) == 0 {
		w.fail("nothing left")
	}
	last := served[0].at.Add(w.wall.Sub(served[0].at) - fateWindow - 2*fateStep)
	for at := served[0].at.Add(4 * fateStep); at <= last; at = at.Add(4 * fateStep) {
		if first := w.m.firstHold; first > 0 && at.Add(fateWindow) > first && at < first.Add(2*fateStep) {
			continue // a job of a quiet flow is the probe, and ends it
		}
		for first < len(served) && served[first].at < at {
			first++
		}
		got, crowd := 0.0, 0.0
		for _, s := range served[first:] {
			if s.at >= at.Add(fateWindow) {
				break
			}
			if s.flow == f.flow {
				got += float64(s.cost)
			} else if len(s.flow) > 5 && s.flow[:5] == "crowd" && !w.th.classes {
				crowd += float64(s.cost)
			}
		}
		seconds := fateWindow.Seconds()
		left := fatePool*seconds - crowd - allowance
		part := reserve*seconds + (left-reserves*seconds)*float64(f.weight)/weights
		if reserve > 1 && crowd > 0 {
			part = min(part, left*reserve/fatePool) // each newcomer's first job is reserved, too
		}
		if want := 0.99*part - 2; got < want {
			w.fail("%+v got %v in the 2 s from %v on, want at least %v; the crowd got %v", f, got, at, want, crowd)
		}
	}
}
