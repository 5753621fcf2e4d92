package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

type shardKeys = store.ShardKeys

// operations are what a history is made of; the first is the simplest.
var operations = []struct {
	name string
	do   func(*world)
}{
	{"nothing", func(*world) {}},
	{"later", (*world).later},
	{"tick", func(w *world) { w.drawTick(true) }},
	{"admit", (*world).drawAdmit},
	{"settle", (*world).drawSettle},
	{"lost tick", func(w *world) { w.drawTick(false) }},
	{"extend", (*world).drawExtend},
	{"cancel", (*world).drawCancel},
	{"replay", (*world).drawReplay},
	{"claim", (*world).drawClaim},
	{"handed", (*world).drawHanded},
	{"tune", (*world).drawTune},
	{"declare", (*world).drawDeclare},
	{"status", (*world).drawStatus},
	{"tenant", (*world).drawScanTenant},
	{"scan", (*world).drawScan},
	{"again", (*world).sendAgain},
	{"old tick", (*world).oldTick},
	{"jump", func(w *world) {
		w.wall = w.wall.Add(rapid.SampledFrom([]time.Duration{
			2 * time.Second, 5 * time.Second, time.Minute, 11 * time.Minute, time.Hour, 25 * time.Hour,
		}).Draw(w.T, "jump"))
	}},
	{"back", func(w *world) {
		w.wall = w.wall.Add(-rapid.SampledFrom([]time.Duration{1, 15, 700, 5000, 3_600_000}).Draw(w.T,
			"back") * time.Millisecond)
	}},
}

// later lets time pass: until something is due, or a little.
func (w *world) later() {
	if due := w.next - w.m.stored.off; w.next > 0 && rapid.Bool().Draw(w.T, "to the next due instant") {
		early := rapid.SampledFrom([]time.Duration{
			horizon / 2, 0, -5 * time.Millisecond, -shaper.Slack, -shaper.Slack - time.Microsecond,
			-40 * time.Millisecond,
		})
		w.wall = max(w.wall, due.Add(-early.Draw(w.T, "early")))
		return
	}
	w.pass()
}

func (w *world) pass() {
	w.wall = w.wall.Add(rapid.SampledFrom([]time.Duration{0, 1, 333, 2_500, 9_999, 10_001, 35_000, 140_000,
		600_000}).Draw(w.T, "pass") * time.Microsecond)
}

func drawPaces(t *rapid.T, th theme) (p shaper.Pace) {
	rate, err := shaper.ParseRate(rapid.SampledFrom(th.rates).Draw(t, "rate"))
	if err != nil {
		t.Fatal(err)
	}
	return shaper.Pace{Rate: rate, Burst: rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 5, 50}).Draw(t, "burst")}
}

func drawPolicy(t *rapid.T, th theme) shaper.Policy {
	first := drawPaces(t, th)
	p := shaper.Policy{
		Rate: first.Rate, Burst: first.Burst, Capacity: drawCapacity(t, th),
		Concurrency: rapid.SampledFrom([]int64{0, 64, 1, 2, 3, 4}).Draw(t, "concurrency"),
		MaxWait: rapid.SampledFrom([]time.Duration{0, 0, 0, 50 * time.Millisecond, time.Second}).Draw(t,
			"max wait"),
		Paused:   rapid.IntRange(0, 7).Draw(t, "paused") == 7,
		Draining: rapid.IntRange(0, 15).Draw(t, "draining") == 15,
		Denied:   rapid.IntRange(0, 15).Draw(t, "denied") == 15,

		CapacityBytes: rapid.SampledFrom([]int64{0, 0, 0, 0, 3000, 1150, 30}).Draw(t, "capacity in bytes"),
	}
	if th.flood {
		p.CapacityBytes = 0
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "further rates") {
		further := drawPaces(t, th)
		further.ByJobs = rapid.IntRange(0, 2).Draw(t, "by jobs") == 2
		p.Rates = append(p.Rates, further)
	}
	bounds := []int64{0, 0, 0, 0, 0, 0, 0, 0, 1_000_000, 100, 2, 1}
	if th.costs {
		bounds = bounds[5:]
	}
	p.MaxCost = rapid.SampledFrom(bounds).Draw(t, "max cost")
	p.Weight = 1
	if th.pooled {
		p.Weight = rapid.SampledFrom([]int64{1, 1, 2, 3, 7, 1000}).Draw(t, "weight")
		if rapid.IntRange(0, 2).Draw(t, "reserves") == 2 {
			p.Reserve = rapid.SampledFrom([]shaper.Rate{drawPaces(t, th).Rate, slowest}).Draw(t, "reserve")
		}
	}
	if !th.refuses { // with this draw its histories would miss a rare situation
		p.Types = rapid.SampledFrom([][]string{29: {"test"}, 30: {"test", "x"}, 31: {"other"}}).Draw(t, "types")
	}
	if th.pauses || th.excess {
		p.Capacity, p.CapacityBytes, p.Concurrency, p.MaxCost = 1000, 0, 64, 0
		p.Paused, p.Draining, p.Denied, p.Types = false, false, false, nil
	}
	return p
}

// slowest is the slowest reserve that there is.
var slowest = shaper.Rate{Limit: 1, Period: shaper.MaxPeriod}

func drawCapacity(t *rapid.T, th theme) int64 {
	if th.flood {
		return 2000
	}
	return rapid.SampledFrom([]int64{1000, 20, 5, 3, 2, 1, 0}).Draw(t, "capacity")
}

func entryOf(tenant string) string {
	if name := store.EncodeName(tenant); name != tenant {
		return name + " " + tenant
	}
	return tenant
}

func (w *world) drawAdmit() {
	w.pass()
	r := admission{at: w.wall, tiers: map[string]string{}, atomic: rapid.IntRange(0, 3).Draw(w.T, "atomic") == 3}
	n := rapid.SampledFrom([]int{1, 1, 1, 2, 3, 5}).Draw(w.T, "jobs")
	flood := w.th.flood && rapid.IntRange(0, 9).Draw(w.T, "flood") == 9
	if flood {
		n = rapid.IntRange(90, 260).Draw(w.T, "many")
	}
	var first candidate
	for i := range n {
		if i == 0 || !flood {
			first = w.drawCandidate()
		}
		c := first
		w.names++
		c.id = fmt.Sprintf("j%06d", w.names)
		if _, drawn := r.tiers[tenantOf(c.flow)]; !drawn {
			r.tiers[tenantOf(c.flow)] = rapid.SampledFrom(w.th.tiers()).Draw(w.T, "claim")
		}
		r.jobs = append(r.jobs, c)
	}
	switch rapid.IntRange(0, 11).Draw(w.T, "closed") {
	case 10:
		r.noBytes = true
	case 11:
		r.noTenants = true
	}
	r.share = rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 0, 0, 1 << 40, 1 << 40, 20_000, 3_000, 400}).Draw(w.T,
		"share")
	r.class.Name = rapid.SampledFrom([]string{"", "", "", "guests", "guests", "tier:trial"}).Draw(w.T, "class")
	r.class.NoBytes = rapid.IntRange(0, 11).Draw(w.T, "class without bytes") == 11
	r.class.NoTenants = rapid.IntRange(0, 11).Draw(w.T, "class without tenants") == 11
	if r.class.Name != "" {
		r.class.Share = rapid.SampledFrom([]int64{0, 0, 0, 3_000}).Draw(w.T, "share in the class")
	}
	r.estimated = w.names%3 == 0 // not drawn, or its histories would miss a rare situation
	w.admit(r)
	if rapid.IntRange(0, 5).Draw(w.T, "sent twice") == 5 {
		r.at = w.wall.Add(3 * time.Millisecond)
		w.admit(r)
	}
	w.remember(func(at shaper.Instant) { r.at = at; w.admit(r) })
}

func (w *world) drawCandidate() candidate {
	tenant, route := rapid.SampledFrom(w.th.tenants).Draw(w.T, "tenant"),
		rapid.SampledFrom(w.th.routes).Draw(w.T, "route")
	c := candidate{
		tenant: tenant, route: route, flow: store.EncodeName(tenant) + "/" + store.EncodeName(route),
		entry: entryOf(tenant),
		delay: rapid.SampledFrom([]time.Duration{0, 0, 0, 0, 3, 25, 150, 2000, 600_000}).
			Draw(w.T, "delay") * time.Millisecond,
		maxWait: rapid.SampledFrom([]time.Duration{0, 0, 0, 0, 1, 40, 700, 5000}).
			Draw(w.T, "max wait") * time.Millisecond,
		cost: rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 1, 1, 1, 2, 3, 1, 1, 1, 1, 99_999, 1_000_000}).
			Draw(w.T, "cost"),
		maxAttempts: rapid.IntRange(1, 3).Draw(w.T, "max attempts"),
		kind:        "test",
		payload:     []byte(strings.Repeat("p", rapid.SampledFrom([]int{0, 1, 20, 1100}).Draw(w.T, "payload"))),
	}
	if !w.th.refuses {
		c.kind = rapid.SampledFrom([]string{"test", "test", "test", "test", "other", ""}).Draw(w.T, "type")
	}
	if rapid.IntRange(0, 3).Draw(w.T, "called back") == 3 {
		c.callback, c.trace = "https://partner.example/done", rapid.SampledFrom([]string{
			"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		}).Draw(w.T, "trace")
	}
	if !w.th.flood && rapid.IntRange(0, 4).Draw(w.T, "with a key") == 4 {
		c.idem, c.print = rapid.SampledFrom([]string{"k1", "k2", "k3"}).Draw(w.T, "key"),
			rapid.SampledFrom([]string{"f1", "f1", "f2"}).Draw(w.T, "print")
	}
	return c
}

// remember keeps a call, so that it may be sent again after others.
func (w *world) remember(send func(at shaper.Instant)) {
	const most = 20
	w.again = append(w.again, send)
	if len(w.again) > most {
		w.again = w.again[1:]
	}
}

func (w *world) sendAgain() {
	if len(w.again) == 0 {
		return
	}
	w.pass()
	w.note("again:")
	w.again[rapid.IntRange(0, len(w.again)-1).Draw(w.T, "which")](w.wall)
}

func (w *world) drawWorker() *consumer {
	return w.workers[rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(w.T, "worker")]
}

func (w *world) pollOf(c *consumer, most int) poll {
	return poll{at: w.wall, worker: c.name, counter: c.counter, seen: c.seen, most: most, helper: c != w.workers[0], handsOver: c == w.workers[0]}
}

func (w *world) drawTick(learnt bool) {
	w.pass()
	c := w.drawWorker()
	r := w.pollOf(c, rapid.SampledFrom([]int{200, 5, 2, 1, 0}).Draw(w.T, "most"))
	r.lead = rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, shaper.Slack, horizon}).Draw(w.T, "lead")
	r.help = rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(w.T, "help")
	r.bounds = w.drawBounds()
	for _, tenant := range w.th.tenants {
		if rapid.IntRange(0, 3).Draw(w.T, "regular") == 0 {
			r.regulars = append(r.regulars, store.EncodeName(tenant)+"/"+w.th.routes[0])
		}
	}
	if learnt && rapid.IntRange(0, 5).Draw(w.T, "sent twice") == 5 {
		w.tick(c, r, false)
		r.at = w.wall.Add(3 * time.Millisecond)
	}
	w.tick(c, r, learnt)
}

// drawBounds bounds a route, and perhaps the flows of it.
func (w *world) drawBounds() (bounds []scripts.Bound) {
	room := rapid.SampledFrom([]int{-1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 3, -7}).Draw(w.T, "room of a route")
	if room == -1 {
		return nil
	}
	route := rapid.SampledFrom(w.th.routes).Draw(w.T, "bounded route")
	bounds = []scripts.Bound{{Name: route, Slots: room}}
	for _, tenant := range w.th.tenants {
		if holds := rapid.SampledFrom([]int{0, 1, 3}).Draw(w.T, "places held"); holds > 0 {
			bounds = append(bounds, scripts.Bound{Name: store.EncodeName(tenant) + "/" + route, Slots: holds})
		}
	}
	return bounds
}

// oldTick is an early sending of a poll that arrives after later ones; nobody hears its answer.
func (w *world) oldTick() {
	c := w.drawWorker()
	if len(c.past) == 0 {
		return
	}
	r := c.past[rapid.IntRange(max(0, len(c.past)-4), len(c.past)-1).Draw(w.T, "which")]
	r.at = w.wall
	w.note("old:")
	w.tick(c, r, false)
}

func (w *world) drawSettle() {
	w.pass()
	r := settlement{at: w.wall}
	items := rapid.SampledFrom([]int{1, 2, 4}).Draw(w.T, "items")
	if w.th.refuses {
		items = max(1, len(w.held))
	}
	for range items {
		ref, ok := w.drawLease()
		if !ok {
			return
		}
		if w.th.refuses && rapid.IntRange(0, 9).Draw(w.T, "refused") > 0 {
			s := scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, MaxAttempts: 30, Outcome: scripts.OutcomeOverload}
			s.Delay = rapid.SampledFrom([]time.Duration{0, 5, 60}).Draw(w.T, "delay") * time.Millisecond
			if rapid.Bool().Draw(w.T, "with a pause") {
				s.Outcome, s.Cause, s.Delay = scripts.OutcomeHeld, "retry_after:429", 4*s.Delay
			}
			r.items = append(r.items, s)
			continue
		}
		if rapid.Bool().Draw(w.T, "plainly") {
			r.items = append(r.items, scripts.SettleItem{Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded})
			continue
		}
		s := scripts.SettleItem{
			Key: ref.id, Epoch: ref.epoch, MaxAttempts: rapid.IntRange(0, 3).Draw(w.T, "max attempts"),
			Outcome: rapid.SampledFrom([]scripts.Outcome{
				scripts.OutcomeSucceeded, scripts.OutcomeSucceeded, scripts.OutcomeRetry, scripts.OutcomeOverload,
				scripts.OutcomeReleased, scripts.OutcomeMissed, scripts.OutcomeDead, scripts.OutcomeDead, scripts.OutcomeHeld,
				scripts.OutcomeLapsed,
			}).Draw(w.T, "outcome"),
			Delay:  rapid.SampledFrom([]time.Duration{0, 5, 60, 1000}).Draw(w.T, "delay") * time.Millisecond,
			Result: []byte(strings.Repeat("r", rapid.SampledFrom([]int{0, 0, 3, 30}).Draw(w.T, "result"))),
		}
		if s.Outcome == scripts.OutcomeDead && s.MaxAttempts == 3 {
			s.Outcome = scripts.OutcomeFailed
		}
		if s.Outcome == scripts.OutcomeHeld {
			s.Cause = rapid.SampledFrom([]string{"", "breaker:0", "retry_after:503", "auth:0", "codec:0"}).Draw(w.T, "cause")
		}
		if w.th.pauses && rapid.IntRange(0, 3).Draw(w.T, "pause") == 0 {
			s.Outcome, s.Cause, s.Delay = scripts.OutcomeHeld, "retry_after:429", 5*time.Second
		}
		attempt := s.Outcome != scripts.OutcomeReleased && s.Outcome != scripts.OutcomeMissed
		if w.th.costs && attempt && rapid.IntRange(0, 3).Draw(w.T, "with its cost") > 0 {
			most := int64(1_000_000)
			if w.th.flood {
				most = 100 // that the others of a pool soon leave again
			}
			costs := []int64{0, 1, most, 2, 50, 0, 0, 1, 3, 7, 0, most}
			if w.th.excess {
				costs = []int64{1, most, 1000}
			}
			s.ActualCost = new(rapid.SampledFrom(costs).Draw(w.T, "actual cost"))
		}
		r.items = append(r.items, s)
	}
	w.settle(r)
	if rapid.IntRange(0, 5).Draw(w.T, "sent twice") == 5 {
		w.settle(r)
	}
	w.remember(func(at shaper.Instant) { r.at = at; w.settle(r) })
}

// drawLease is mostly a lease that a worker holds, taken off the list, and now and then a stale one
// or one of a job that is not leased.
func (w *world) drawLease() (ref leaseRef, ok bool) {
	if stray := rapid.IntRange(0, 9).Draw(w.T, "stray lease") == 9; stray && len(w.ids) > 0 {
		return leaseRef{rapid.SampledFrom(w.ids).Draw(w.T, "job"), rapid.Int64Range(0, 3).Draw(w.T, "epoch")}, true
	}
	if len(w.held) == 0 {
		return ref, false
	}
	i := rapid.IntRange(0, len(w.held)-1).Draw(w.T, "lease")
	ref = w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	return ref, true
}

func (w *world) drawExtend() {
	w.pass()
	var refs []leaseRef
	for range rapid.IntRange(1, 3).Draw(w.T, "leases") {
		if ref, ok := w.drawLease(); ok {
			refs = append(refs, ref)
			w.held = append(w.held, ref)
		}
	}
	w.extend(w.wall, refs)
}

func (w *world) drawJob(preferred func(*scripts.Record) bool) (id string, ok bool) {
	var some []string
	for _, id := range w.ids {
		if j := w.m.jobs[id]; j != nil && preferred(j) {
			some = append(some, id)
		}
	}
	if len(some) == 0 || rapid.IntRange(0, 7).Draw(w.T, "any job") == 7 {
		some = append(some, w.ids...)
	}
	if len(some) == 0 {
		return "", false
	}
	return rapid.SampledFrom(some).Draw(w.T, "job"), true
}

// drawTenant is mostly the job's own.
func (w *world) drawTenant(id string) string {
	if j := w.m.jobs[id]; j != nil && rapid.IntRange(0, 9).Draw(w.T, "wrong tenant") != 9 {
		return tenantOf(j.Flow)
	}
	return store.EncodeName(rapid.SampledFrom(w.th.tenants).Draw(w.T, "tenant"))
}

func (w *world) drawCancel() {
	w.pass()
	r := cancellation{at: w.wall, dead: rapid.IntRange(0, 2).Draw(w.T, "dead, too") == 2}
	for range rapid.SampledFrom([]int{1, 1, 3}).Draw(w.T, "jobs") {
		id, ok := w.drawJob(func(j *scripts.Record) bool {
			return j.State.Waiting() || r.dead && j.State == shaper.Dead
		})
		if ok {
			r.ids, r.tenant = append(r.ids, id), w.drawTenant(id)
		}
	}
	if len(r.ids) == 0 {
		return
	}
	w.cancel(r)
	if rapid.IntRange(0, 5).Draw(w.T, "sent twice") == 5 {
		w.cancel(r)
	}
}

func (w *world) drawClaim() {
	w.pass()
	w.names++
	name, most := fmt.Sprintf("claim%d", w.names), rapid.SampledFrom([]int{100, 1, 2}).Draw(w.T, "most")
	w.claim(w.wall, name, most)
	if rapid.IntRange(0, 3).Draw(w.T, "sent twice") == 3 {
		w.drawReplay()
		w.claim(w.wall, name, most)
	}
	w.remember(func(at shaper.Instant) {
		// One that is forgotten is not sent again: the worker repeats a claim until it is answered.
		if w.m.claimed.name == name {
			w.claim(at, name, most)
		}
	})
}

func (w *world) drawHanded() {
	w.pass()
	if len(w.claims) == 0 {
		return
	}
	n := rapid.IntRange(1, min(3, len(w.claims))).Draw(w.T, "completions")
	list := slices.Clone(w.claims[:n])
	w.handed(w.wall, list)
	if rapid.IntRange(0, 1).Draw(w.T, "forgotten") == 1 {
		w.claims = w.claims[n:]
	}
}

func (w *world) drawReplay() {
	w.pass()
	// A dead letter past its retention is gone, though its record is still there by the server's
	// clock.
	id, ok := w.drawJob(func(j *scripts.Record) bool { return j.State == shaper.Dead })
	if !ok {
		return
	}
	if j := w.m.jobs[id]; j != nil && j.State == shaper.Dead {
		if _, kept := w.m.deads[j.Flow][id]; !kept {
			return
		}
	}
	w.tags++
	r := revival{
		at: w.wall, tenant: w.drawTenant(id), id: id, tag: w.tags,
		maxAttempts: rapid.IntRange(1, 3).Draw(w.T, "max attempts"),
	}
	if rapid.Bool().Draw(w.T, "by a client") {
		tier := rapid.SampledFrom(w.th.tiers()).Draw(w.T, "claim")
		r.tier = &tier
	}
	w.replay(r)
	if rapid.IntRange(0, 3).Draw(w.T, "sent twice") == 3 {
		w.replay(r)
	}
	w.remember(func(at shaper.Instant) {
		if j := w.m.jobs[r.id]; j != nil && j.State == shaper.Dead && w.m.deads[j.Flow][r.id] == 0 {
			return
		}
		r.at = at
		w.replay(r)
	})
}

// tierNames are the tiers that there may be, and none.
var tierNames = []string{"", "", "free", "pro"}

// tiers are those that credentials claim: where classes are to exceed their charges, few.
func (th theme) tiers() []string {
	if th.excess {
		return tierNames[1:3]
	}
	return tierNames
}

func (w *world) drawDeclare() {
	revision := max(1, w.m.stored.revision+rapid.SampledFrom([]int64{1, 1, 1, 0, -1}).Draw(w.T, "revision"))
	b := drawBaseline(w.T, w.th)
	if revision == w.m.stored.revision || rapid.IntRange(0, 4).Draw(w.T, "the same") == 4 {
		b = w.m.lines.baseline // a revision names the same policies for ever
	}
	if w.movesRunning(b) {
		return // the queue refuses to
	}
	w.declare(w.wall, revision, b)
	w.remember(func(at shaper.Instant) {
		if !w.movesRunning(b) {
			w.declare(at, revision, b)
		}
	})
}

// movesRunning reports whether a route that has leased jobs would move to another pool.
func (w *world) movesRunning(b shaper.Baseline) bool {
	for name, f := range w.m.flows {
		if !isPool(name) && f.Running > 0 && b.PoolOf(routeOf(name)) != strings.TrimPrefix(f.home, "+") {
			return true
		}
	}
	return false
}

// drawBaseline draws the defaults and, one time in three, what is said of a route and of tiers.
func drawBaseline(t *rapid.T, th theme) shaper.Baseline {
	b := shaper.Baseline{Defaults: drawPolicy(t, th)}
	if th.pooled {
		b.Pools = map[string]shaper.PoolSettings{"erp": {Routes: th.routes, Overrides: drawPool(t, th),
			HoldPool: rapid.IntRange(0, 2).Draw(t, "every answer holds the pool") == 0,
			MaxHold:  rapid.SampledFrom([]time.Duration{0, 20 * time.Millisecond, time.Second}).Draw(t, "max hold")}}
	}
	if th.moves {
		b.Pools = map[string]shaper.PoolSettings{}
		for _, route := range th.routes {
			if name := rapid.SampledFrom([]string{"erp", "erp", "crm", ""}).Draw(t, "pool of "+route); name != "" {
				p, known := b.Pools[name]
				if !known {
					p.Overrides = drawPool(t, th)
				}
				p.Routes = append(p.Routes, route)
				b.Pools[name] = p
			}
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "tiers") > 0 && !th.classes {
		return b
	}
	b.Routes = drawRoutes(t, th)
	b.Tiers = map[string]shaper.Overrides{}
	for _, name := range tierNames[2:] {
		tier := drawSettings(t, th)
		tier.Draining, tier.Routes = nil, drawRoutes(t, th)
		b.Tiers[name] = tier
		weights := []int64{0, 1, 3, 1000}
		if th.excess {
			weights = weights[1:2]
		}
		if weight := rapid.SampledFrom(weights).Draw(t, "weight of "+name); th.pooled && weight > 0 {
			if b.PoolWeights == nil {
				b.PoolWeights = map[string]int64{}
			}
			b.PoolWeights[name] = weight
		}
	}
	return b
}

// drawPool draws the settings of a pool.
func drawPool(t *rapid.T, th theme) shaper.Overrides {
	p := drawPolicy(t, th)
	if rapid.IntRange(0, 2).Draw(t, "a roomy pool") > 0 { // else most jobs are refused
		p.Capacity, p.CapacityBytes, p.Paused = 1000, 0, false
	}
	o := shaper.Overrides{Rate: &p.Rate, Burst: &p.Burst, Capacity: &p.Capacity, CapacityBytes: &p.CapacityBytes, Concurrency: &p.Concurrency, Paused: &p.Paused, MaxCost: &p.MaxCost}
	if len(p.Rates) > 0 {
		o.Rates = &[]shaper.PaceJSON{}
		for _, r := range p.Rates {
			*o.Rates = append(*o.Rates, r.JSON())
		}
	}
	return o
}

// drawRoutes says something of one route or none.
func drawRoutes(t *rapid.T, th theme) map[string]shaper.Overrides {
	if rapid.Bool().Draw(t, "no routes") {
		return nil
	}
	says := drawSettings(t, th)
	says.Draining = nil
	return map[string]shaper.Overrides{rapid.SampledFrom(th.routes).Draw(t, "route said"): says}
}

// drawOverrides draws what one source says of a tenant.
func (w *world) drawOverrides() shaper.Overrides {
	o := drawSettings(w.T, w.th)
	if rapid.IntRange(0, 3).Draw(w.T, "more") == 3 {
		o.Routes = drawRoutes(w.T, w.th)
		o.Tier = new(rapid.SampledFrom(tierNames).Draw(w.T, "tier"))
	}
	return o
}

func drawSettings(t *rapid.T, th theme) (o shaper.Overrides) {
	p := drawPolicy(t, th)
	which := rapid.IntRange(0, 255).Draw(t, "settings")
	wait := p.MaxWait.Milliseconds()
	if which&1 != 0 {
		o.Rate = &p.Rate
	}
	if which&2 != 0 {
		o.Burst = &p.Burst
	}
	if which&4 != 0 {
		o.Capacity = &p.Capacity
	}
	if which&4 != 0 && which&1 == 0 {
		o.CapacityBytes = &p.CapacityBytes
	}
	if which&8 != 0 {
		o.Concurrency = &p.Concurrency
	}
	if which&16 != 0 {
		o.MaxWaitMS = &wait
	}
	if which&16 != 0 && which&4 != 0 {
		o.MaxCost = &p.MaxCost
	}
	if which&32 != 0 {
		o.Paused = &p.Paused
	}
	if which&128 != 0 {
		o.Draining, o.Denied, o.Types = &p.Draining, &p.Denied, &p.Types
	}
	if which&2 != 0 && th.pooled {
		o.Weight = &p.Weight
	}
	if which&4 != 0 && th.pooled {
		o.Reserve = &p.Reserve
	}
	if which&64 != 0 {
		list := []shaper.PaceJSON{}
		for _, pace := range p.Rates {
			list = append(list, pace.JSON())
		}
		o.Rates = &list
	}
	return o
}

// tuningOf is a change of what one source says of a tenant.
func (w *world) tuningOf(tenant, source string, o shaper.Overrides) tuning {
	name, entry := store.EncodeName(tenant), entryOf(tenant)
	if isPool(tenant) {
		name, entry = tenant, tenant
	}
	w.names++
	r := tuning{
		at: w.wall, tenant: name, entry: entry, name: fmt.Sprintf("call%d", w.names), source: source,
		file: w.m.policies[name].file, api: w.m.policies[name].api, reason: fmt.Sprintf("reason %d", w.names), historyEntry: fmt.Sprintf("entry %d", w.names),
	}
	if len(o.Set()) > 0 {
		r.says = strings.Join(o.Set(), ",")
	}
	if source == "api" {
		r.api = o
	} else {
		r.file = o
	}
	r.resolved = w.resolved(r)
	return r
}

// resolved are the policies in force, resolved for the tenant.
func (w *world) resolved(r tuning) obeyed {
	return obeyed{w.m.lines.baseline, shaper.Statements{File: r.file, API: r.api}, w.m.stored.revision}
}

func (w *world) drawTune() {
	w.pass()
	tenant := rapid.SampledFrom(w.th.tenants).Draw(w.T, "tenant")
	r := w.tuningOf(tenant, rapid.SampledFrom([]string{"api", "file"}).Draw(w.T, "source"), w.drawOverrides())
	pools := slices.Sorted(maps.Keys(w.m.lines.baseline.Pools))
	if len(pools) > 0 && rapid.IntRange(0, 2).Draw(w.T, "a pool") == 2 {
		r = w.tuningOf("+"+rapid.SampledFrom(pools).Draw(w.T, "which"), "api", drawPool(w.T, w.th))
	}
	switch rapid.IntRange(0, 9).Draw(w.T, "resolved") {
	case 8: // the policies change, and the settings of the tenant do not
		r.source, r.says, r.file, r.api = "", "", w.m.policies[r.tenant].file, w.m.policies[r.tenant].api
		r.resolved = w.resolved(r)
	case 9: // by a process that knows of others
		r.resolved.revision--
	}
	if expect := rapid.IntRange(0, 3).Draw(w.T, "expected"); expect > 0 {
		revision := w.m.policies[r.tenant].revision
		if expect == 3 {
			revision--
		}
		r.expected = &revision
	}
	r.endHolds = rapid.IntRange(0, 2).Draw(w.T, "end holds") == 0
	r.endCharge = r.endHolds && isPool(r.entry) && rapid.Bool().Draw(w.T, "end the charge")
	w.tune(r)
	if rapid.IntRange(0, 3).Draw(w.T, "sent twice") == 3 {
		w.tune(r)
	}
	w.remember(func(at shaper.Instant) { r.at = at; w.tune(r) })
}

func (w *world) drawStatus() {
	w.pass()
	if id, ok := w.drawJob(func(j *scripts.Record) bool { return !j.State.Done() }); ok {
		w.status(w.wall, w.drawTenant(id), id)
	}
}

func (w *world) drawScanTenant() {
	w.pass()
	w.scanTenant(w.wall, store.EncodeName(rapid.SampledFrom(w.th.tenants).Draw(w.T, "tenant")))
}

func (w *world) drawScan() {
	w.pass()
	w.scan(w.wall)
}
