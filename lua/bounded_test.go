package lua_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// meter is put before a script and counts its commands, the values in their arguments and replies,
// and the bytes of those.
const meter = `
local redis = (function(real)
  local commands, values, bytes = 0, 0, 0
  local function count(v)
    if type(v) == 'table' then
      for i = 1, #v do
        count(v[i])
      end
    else
      values, bytes = values + 1, bytes + #tostring(v)
    end
  end
  return { REDIS_VERSION_NUM = real.REDIS_VERSION_NUM, pcall = real.pcall, call = function(cmd, ...)
    local reply = real.call(cmd, ...)
    commands = commands + 1
    count({ ... })
    count(reply)
    real.call('SET', 'meter', commands .. ' ' .. values .. ' ' .. bytes)
    return reply
  end }
end)(redis)
`

// work is what one call of a script has done.
type work struct{ commands, values, bytes int }

// limits is what any call may do, which takes Redis about 10 ms. The bytes are those of arguments
// and replies. An admission has as many of them as one batch of a client.
var limits = work{commands: 6000, values: 60_000, bytes: 2 << 20}

const batchBytes = 20 << 20

// metered is a script with the meter before it.
func metered(s *scripts.Script) *scripts.Script {
	if s == nil {
		return nil
	}
	out := scripts.NewScript(s.Name, meter+s.Source())
	out.Pools = metered(s.Pools)
	return out
}

// measured makes a call, and fails the test if it did more than any call may do.
func (w *world) measured(call scripts.Call) []any {
	w.Helper()
	var name string // of the script that has answered
	observe := func(script string, _ time.Duration, _ error) { name = script }
	call.Script = metered(call.Script)
	w.e.Set(w.ctx, "meter", "0 0 0", 0)
	values, err := scripts.Run(w.ctx, w.e, observe, call)
	if err != nil {
		w.Fatalf("%s: %v", name, err)
	}
	var did work
	if _, err := fmt.Sscan(w.e.Get(w.ctx, "meter").Val(), &did.commands, &did.values, &did.bytes); err != nil {
		w.Fatal(err)
	}
	may := limits
	if strings.HasPrefix(name, "admit") {
		may.bytes = batchBytes
	}
	if did.commands > may.commands || did.values > may.values || did.bytes > may.bytes {
		w.Errorf("%s: %+v, want at most %+v", name, did, may)
	}
	w.reachedMost(name, did)
	return values
}

// reachedMost notes the greatest work of a script.
func (w *world) reachedMost(name string, did work) {
	if w.most == nil {
		w.most = map[string]work{}
	}
	m := w.most[name]
	w.most[name] = work{max(m.commands, did.commands), max(m.values, did.values), max(m.bytes, did.bytes)}
}

// crowd submits one job to each of a tenant's routes.
func (w *world) crowd(tenant string, routes, payload int, delay, wait time.Duration) {
	for from := 0; from < routes; from += 250 {
		call := scripts.AdmitCall{
			At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
			Tenants: w.shard.Tenants(), Horizon: horizon,
		}
		for i := from; i < min(from+250, routes); i++ {
			call = w.with(call, tenant, "r"+strconv.Itoa(i), 1, payload, delay, wait)
		}
		w.measured(call.Call())
	}
}

// heap submits n jobs to one route of a tenant.
func (w *world) heap(tenant string, n, payload int, delay, wait time.Duration) {
	call := scripts.AdmitCall{
		At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Tenants: w.shard.Tenants(), Horizon: horizon,
	}
	w.measured(w.with(call, tenant, "r0", n, payload, delay, wait).Call())
}

// with adds jobs of a flow to a call.
func (w *world) with(call scripts.AdmitCall, tenant, route string, n, payload int, delay, wait time.Duration) scripts.AdmitCall {
	flow := tenant + "/" + route
	call.Flows = append(call.Flows, scripts.AdmitFlow{
		Flow: w.shard.Flow(flow), Queue: w.shard.Queue(flow), Later: w.shard.Later(flow), Lines: w.shard.LinesOf(tenant),
		Names: w.shard.Names(tenant), Entry: tenant,
	})
	for range n {
		w.names++
		rest, err := (&scripts.Record{Flow: flow, Cost: 1, MaxAttempts: 3, Payload: make([]byte, payload)}).Rest()
		if err != nil {
			w.Fatal(err)
		}
		call.Jobs = append(call.Jobs, scripts.AdmitJob{
			Flow: len(call.Flows) - 1, Key: w.shard.Job(fmt.Sprintf("j%06d", w.names)), Rest: rest, Delay: delay,
			MaxWaitMS: wait.Milliseconds(),
		})
	}
	return call
}

// polls makes n calls of a script of a poll, and returns the last answer and all leases. None finds
// damage.
func (w *world) polls(script *scripts.Script, n int, bounds ...scripts.Bound) (last scripts.Grant, leases []scripts.LeasedJob) {
	w.Helper()
	last, leases = w.pollsWith(script, n, bounds...)
	if len(last.Damaged) > 0 {
		w.Fatalf("%s: %q", script.Name, last.Damaged)
	}
	return last, leases
}

// pollsWith is polls, with the damage that the last call has found.
func (w *world) pollsWith(script *scripts.Script, n int, bounds ...scripts.Bound) (last scripts.Grant, leases []scripts.LeasedJob) {
	w.Helper()
	c := w.workers[0]
	for range n {
		call := scripts.TickCall{
			Script: script, At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(),
			Expires: w.shard.Expires(), Leases: w.shard.Leases(), Grant: w.shard.Grant(c.name),
			Tenants: w.shard.Tenants(), Outbox: w.shard.Outbox(), Counter: c.counter, Seen: c.seen, Max: 1000,
			Lease: lease, Horizon: horizon, Sweep: sweep, Retention: w.retention(), Restored: w.replid, Bounds: bounds,
		}
		g, err := call.Decode(w.measured(call.Call()))
		if err != nil {
			w.Fatalf("%s: %v", script.Name, err)
		}
		if g.Restore {
			restore := scripts.RestoreCall{At: call.At, Clock: call.Clock, Due: call.Due, Tenants: call.Tenants}
			restored, err := restore.Decode(w.measured(restore.Call()))
			if err != nil {
				w.Fatal(err)
			}
			w.replid = restored.ReplicationID
			continue
		}
		c.counter++
		if g.Counter != 0 {
			c.seen = g.Counter
		}
		last, leases = g, append(leases, g.Leases...)
	}
	return last, leases
}

// settled ends leases well.
func (w *world) settled(leases []scripts.LeasedJob) {
	for len(leases) > 0 {
		n := min(len(leases), 500)
		call := scripts.SettleCall{
			At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
			Leases: w.shard.Leases(), Outbox: w.shard.Outbox(), Horizon: horizon, Retention: w.retention(),
		}
		for _, l := range leases[:n] {
			call.Items = append(call.Items, scripts.SettleItem{Key: w.shard.Job(l.ID), Epoch: l.Epoch, Outcome: scripts.OutcomeSucceeded})
		}
		w.measured(call.Call())
		leases = leases[n:]
	}
}

// TestCommandsOfABatch: what all jobs of a flow need is read once, however many a call admits.
func TestCommandsOfABatch(t *testing.T) {
	w := newWorld(t, realEngine(t), themes[0], 1)
	defer w.clean()
	p := shaper.DefaultPolicy()
	p.Capacity, p.Concurrency = 10_000, 0
	w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
	w.heap("one", 1000, 10, 0, 0)
	w.heap("one", 1000, 10, 0, 0)
	if n := w.most["admit"].commands; n > 30 {
		t.Errorf("%d commands admit 1,000 jobs of a flow, want at most 30", n)
	}
}

// TestBoundedWork: whatever a shard holds, no call does more than a bounded number of commands on a
// bounded number of values and bytes. The shard has 20 tenants with a flow for each of 130 routes,
// one with 1,500 flows, thousands of jobs that end or become due at one instant, and payloads that
// no poll could take at once.
func TestBoundedWork(t *testing.T) {
	w := newWorld(t, realEngine(t), themes[0], 1)
	defer w.clean()
	p := shaper.DefaultPolicy()
	p.Rate, p.Burst, p.Capacity, p.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, 1000, 100_000, 0
	w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
	const tenants, routes, many = 20, 130, 1500
	for i := range tenants {
		w.crowd(fmt.Sprintf("t%d", i), routes, 10, 0, 0)
	}
	w.crowd("many", many, 10, 0, 0)

	// Many flows that wait, of routes that have no free slot.
	full := []scripts.Bound{}
	for i := range routes {
		full = append(full, scripts.Bound{Name: "r" + strconv.Itoa(i), Slots: 0})
	}
	_, leases := w.polls(scripts.Commands.Tick, 20, full...)
	w.settled(leases)
	// New policies, and then all leave.
	w.declare(w.wall, 2, shaper.Baseline{Defaults: p})
	retunes := 0
	for ; w.e.HGet(w.ctx, w.shard.Clock(), "looked").Val() != "0"; retunes++ {
		w.polls(scripts.Commands.Retune, 1)
		if retunes > 1000 {
			t.Fatal("retune does not end")
		}
	}
	w.wall = w.wall.Add(time.Minute)
	left := tenants*routes + many - len(leases)
	for rounds := 0; left > 0 && rounds < 1000; rounds++ {
		_, leases = w.polls(scripts.Commands.Tick, 1)
		w.settled(leases)
		left -= len(leases)
	}
	if left > 0 {
		t.Fatalf("%d jobs do not leave", left)
	}

	// Scans read all flows once.
	flows := map[string]bool{}
	for cursor, policy, flow := "0", "", ""; ; {
		call := scripts.ScanCall{
			At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Tenants: w.shard.Tenants(), Cursor: cursor, Most: 200,
			Dead: retention.Dead, Policy: policy, FlowCursor: flow,
		}
		page, err := call.Decode(w.measured(call.Call()))
		if err != nil {
			t.Fatal(err)
		}
		for _, tenant := range page.Tenants {
			rest := tenant
			for {
				for _, f := range rest.Flows {
					flows[f.Flow] = true
				}
				if rest.More == "" {
					break
				}
				part := call
				part.Policy, part.FlowCursor = w.shard.Policy(tenant.Entry), rest.More
				got, err := part.Decode(w.measured(part.Call()))
				if err != nil {
					t.Fatal(err)
				}
				rest = got.Tenants[0]
			}
		}
		if cursor = page.Cursor; cursor == "0" {
			break
		}
	}
	if len(flows) != tenants*routes+many {
		t.Errorf("scans read %d flows, want %d", len(flows), tenants*routes+many)
	}

	// Ten minutes later they are forgotten.
	w.wall = w.wall.Add(idleAfter + 2*retention.Finished + time.Minute)
	for rounds := 0; w.e.ZCard(w.ctx, w.shard.Tenants()).Val() > 0 && rounds < 500; rounds++ {
		w.polls(scripts.Commands.Forget, 1)
	}
	if n := w.e.ZCard(w.ctx, w.shard.Tenants()).Val(); n > 0 {
		t.Errorf("%d tenants are not forgotten", n)
	}
	if keys, err := keysUnder(w.ctx, w.e, w.prefix+"flow"); err != nil || len(keys) > 0 {
		t.Errorf("%d keys are left of forgotten flows; %v", len(keys), err)
	}

	// Payloads that no poll could take at once: 250 of 64 KiB, twice.
	w.heap("fat", 250, 1<<16, 0, 0)
	w.heap("fat2", 250, 1<<16, time.Second, 0)
	w.heap("steady", 5, 10, 0, 0)
	w.wall = w.wall.Add(2 * time.Second)
	c := w.workers[0]
	_, leases = w.polls(scripts.Commands.Tick, 1)
	small := 0
	for _, l := range leases {
		if len(l.Record) < 1000 {
			small++
		}
	}
	if small != 5 {
		t.Errorf("beside large payloads %d of 5 small jobs leave", small)
	}
	for left = 505 - len(leases); left > 0; {
		_, more := w.polls(scripts.Commands.Tick, 1)
		if len(more) == 0 {
			t.Fatalf("%d large jobs do not leave", left)
		}
		leases, left = append(leases, more...), left-len(more)
	}
	c.seen-- // the last answer was lost
	w.polls(scripts.Commands.Redeliver, 1)
	w.wall = w.wall.Add(lease + time.Second)
	w.polls(scripts.Commands.Tick, 1) // the shard was not polled for long
	for until := w.wall.Add(lease + time.Second); w.wall < until; w.wall = w.wall.Add(lease / 4) {
		if g, _ := w.polls(scripts.Commands.Tick, 1); g.Needed == scripts.Commands.Reclaim {
			w.polls(scripts.Commands.Reclaim, 10)
			break
		}
	}
	if n := w.e.HGet(w.ctx, w.shard.Clock(), "lapsed").Val(); n != "505" {
		t.Errorf("%s of 505 expired leases are taken back", n)
	}

	// Jobs that expire together, also while their flow may leave.
	w.heap("late", 1000, 10, 0, time.Second)
	w.heap("late2", 1000, 10, 10*time.Millisecond, time.Second)
	w.wall = w.wall.Add(2 * time.Second)
	w.heap("steady", 5, 10, 0, 0)
	_, leases = w.polls(scripts.Commands.Tick, 1)
	steady := 0
	for _, l := range leases {
		if strings.Contains(string(l.Record), "steady/r0") {
			steady++
		}
	}
	if steady != 10 { // with those that were taken back
		t.Errorf("beside jobs that have expired %d of 10 jobs leave", steady)
	}
	w.polls(scripts.Commands.Expire, 20)

	w.sharedPool()
	w.callsOfClients()
	for _, s := range scripts.Commands.All() {
		// A repair reads what it repairs, and its caller names the flows.
		if _, called := w.most[s.Name]; !called && s != scripts.Commands.Repair {
			t.Errorf("nothing is known of the work of %s", s.Name)
		}
	}
	for name, m := range w.most {
		t.Logf("%-10s %+v", name, m)
	}
}

// sharedPool lets the flows of thousands of tenants leave a pool, most of them of a class.
func (w *world) sharedPool() {
	p, fast := shaper.DefaultPolicy(), shaper.Rate{Limit: 100_000, Period: time.Second}
	p.Weight, p.Rate = 1, fast
	b := shaper.Baseline{Defaults: p, Tiers: map[string]shaper.Overrides{"free": {}}, PoolWeights: map[string]int64{"free": 1}, Pools: map[string]shaper.PoolSettings{"erp": {
		Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: &fast, Burst: new(int64(1000)), Capacity: new(int64(100_000))},
	}}}
	w.declare(w.wall, 3, b)
	const tenants = 3000
	for from := 0; from < tenants; from += 250 {
		call := scripts.AdmitCall{
			At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
			Tenants: w.shard.Tenants(), Horizon: horizon,
		}
		for i := from; i < from+250; i++ {
			call = w.with(call, "x"+strconv.Itoa(i), "erp", 1, 10, 0, 0)
			if i%3 > 0 {
				call.Flows[len(call.Flows)-1].Tier = "free"
			}
		}
		w.measured(call.Call())
	}
	for left, rounds := tenants, 0; left > 0; rounds++ {
		_, leases := w.polls(scripts.Commands.Tick.Pools, 1)
		left -= len(leases)
		w.settled(leases)
		if w.wall = w.wall.Add(5 * time.Millisecond); rounds > 1000 {
			w.Fatalf("%d jobs do not leave their pool", left)
		}
	}
}

// callsOfClients makes the calls that no poll makes, each with as many jobs or flows as callers put
// into one.
func (w *world) callsOfClients() {
	at := scripts.AtInstant(w.wall)
	job := func(n int) string { return w.shard.Job(fmt.Sprintf("j%06d", n)) }

	// A tenant with a flow for each of 130 routes gets settings of its own.
	w.crowd("t0", 130, 10, 0, 0)
	p := shaper.DefaultPolicy()
	p.Rate, p.Burst, p.Capacity, p.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, 1000, 100_000, 0
	lines := scripts.Lines{"/": scripts.EncodePolicy(p)}
	for i := range 130 {
		lines["/r"+strconv.Itoa(i)] = scripts.EncodePolicy(p)
	}
	w.measured(scripts.TuneCall{
		At: at, Clock: w.shard.Clock(), Due: w.shard.Due(), Policy: w.shard.Policy("t0"), History: w.shard.History("t0"),
		Names: w.shard.Names("t0"), Tenants: w.shard.Tenants(), Tuned: w.shard.Tuned(), Lines: w.shard.LinesOf("t0"),
		Horizon: horizon, Policies: 3, Name: "call", Source: "api", Says: "{}", Entry: "t0", Settings: lines,
	}.Call())
	w.measured(scripts.DeclareCall{Clock: w.shard.Clock(), Lines: w.shard.Lines(), At: at, Revision: 4, Settings: lines}.Call())

	w.measured(scripts.EraseCall{At: at, Clock: w.shard.Clock(), Due: w.shard.Due(), Flow: w.shard.Flow("late/r0"), Horizon: horizon}.Call())

	// Jobs are cancelled, leased for longer, shown, and replayed.
	w.crowd("t1", 130, 10, 0, 0)
	w.heap("t1", 70, 10, time.Hour, 0)
	cancel := scripts.CancelCall{
		At: at, Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(), Outbox: w.shard.Outbox(),
		Tenant: "t1", Horizon: horizon, Retention: w.retention(),
	}
	for i := range 200 {
		cancel.Jobs = append(cancel.Jobs, job(w.names-i))
	}
	w.measured(cancel.Call())
	w.heap("fat", 500, 1000, 0, 0)
	w.measured(scripts.StatusCall{At: at, Clock: w.shard.Clock(), Job: job(w.names), Tenant: "fat", MostResult: 1 << 20}.Call())
	var leases []scripts.LeasedJob
	for rounds := 0; len(leases) < 500 && rounds < 100; rounds++ {
		_, some := w.polls(scripts.Commands.Tick, 1)
		leases, w.wall = append(leases, some...), w.wall.Add(10*time.Millisecond)
	}
	at = scripts.AtInstant(w.wall)
	beat := scripts.ExtendCall{At: at, Clock: w.shard.Clock(), Leases: w.shard.Leases(), Lease: lease}
	for _, l := range leases[:500] {
		beat.Jobs, beat.Epochs = append(beat.Jobs, w.shard.Job(l.ID)), append(beat.Epochs, l.Epoch)
	}
	w.measured(beat.Call())
	for call := range int64(3) {
		id := beat.Jobs[0][strings.LastIndex(beat.Jobs[0], ":")+1:]
		w.measured(scripts.RelayCall{
			At: at, Clock: w.shard.Clock(), Job: beat.Jobs[0], Stream: w.shard.Stream(id), Beyond: w.shard.Beyond(id),
			Reading: w.shard.Reading(id), Epoch: beat.Epochs[0], Number: 16*call + 1,
			Parts: slices.Repeat([]scripts.RelayPart{{Text: make([]byte, 16<<10), Bytes: 1}}, 16),
			Past:  call > 0, Most: 160, Keep: time.Minute, More: call == 2,
		}.Call())
	}
	dead := leases[0]
	w.measured(scripts.SettleCall{
		At: at, Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(), Leases: w.shard.Leases(),
		Outbox: w.shard.Outbox(), Horizon: horizon, Retention: w.retention(),
		Items: []scripts.SettleItem{{Key: w.shard.Job(dead.ID), Epoch: dead.Epoch, Outcome: scripts.OutcomeDead}},
	}.Call())
	w.settled(leases[1:])
	record, err := scripts.DecodeRecord(dead.Record)
	if err != nil {
		w.Fatal(err)
	}
	w.measured(scripts.ReplayCall{
		At: at, Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(), Job: w.shard.Job(dead.ID),
		Outbox: w.shard.Outbox(), Tenant: tenantOf(record.Flow), Horizon: horizon, Tag: 1, MaxAttempts: 3,
	}.Call())

	// Ends of jobs are handed over.
	call := scripts.AdmitCall{
		At: at, Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(), Tenants: w.shard.Tenants(), Horizon: horizon,
	}
	call = w.with(call, "t1", "r0", 40, 10, 0, 0)
	for i := range call.Jobs {
		r := scripts.Record{Flow: "t1/r0", Cost: 1, MaxAttempts: 3, CallbackURL: "https://partner.example/done"}
		if call.Jobs[i].Rest, err = r.Rest(); err != nil {
			w.Fatal(err)
		}
	}
	w.measured(call.Call())
	var handed scripts.HandedCall
	for rounds := 0; len(handed.Jobs) < 40 && rounds < 500; rounds++ {
		w.wall = w.wall.Add(20 * time.Millisecond)
		_, some := w.polls(scripts.Commands.Tick, 1)
		w.settled(some)
		claim := scripts.ClaimCall{
			At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Outbox: w.shard.Outbox(), Claim: w.shard.Claim(),
			Name: strconv.Itoa(rounds), Max: 32, Lease: time.Minute,
		}
		got, err := claim.Decode(w.measured(claim.Call()))
		if err != nil {
			w.Fatal(err)
		}
		for _, j := range got.Jobs {
			handed.Jobs = append(handed.Jobs, scripts.HandedJob{Key: w.shard.Job(j.ID), Epoch: 1, State: shaper.Succeeded})
		}
	}
	if len(handed.Jobs) < 40 {
		w.Errorf("%d of 40 ends are handed over", len(handed.Jobs))
	}
	handed.At, handed.Clock, handed.Outbox, handed.Retention = at, w.shard.Clock(), w.shard.Outbox(), w.retention()
	w.measured(handed.Call())

	w.measured(scripts.HeartbeatCall{At: at, Clock: w.shard.Clock(), Workers: w.prefix + "workers", Worker: "w", TTL: time.Second}.Call())
	chain := scripts.ChainCall{At: at, Clock: w.prefix + "audit:clock", Entries: w.prefix + "audit:entries", Name: "0123456789abcdef",
		Last: "h", LastAt: "t", Append: slices.Repeat([]string{"c{}"}, 500)}
	w.measured(chain.Call())
	chain.Name, chain.Previous, chain.Last, chain.Remove = "fedcba9876543210", "h", "i", 500
	w.measured(chain.Call())
	w.measured(scripts.TrailCall{Clock: chain.Clock, Entries: chain.Entries, Most: 200}.Call())
	w.measured(scripts.PublishCall{Clock: w.shard.Clock(), Channel: "wake", Message: ""}.Call())
	w.measured(scripts.UsedCall{Clock: w.shard.Clock(), Keys: []string{w.shard.Key("k")}, At: []time.Time{time.UnixMilli(1)}}.Call())
	for i, a := range limiter.Algorithms() {
		p := limiter.Policy{Algorithm: a, Rate: shaper.Rate{Limit: limiter.MaxLog, Period: time.Second}, Burst: 10}
		l := newLimited(w.TB, w.e, p, 1000+i)
		for n := range 3 {
			l.call.At, l.call.Cost = at, limiter.MaxLog/3
			l.call.Tag = fmt.Sprintf("%0*d", scripts.TagLength, n)
			w.measured(l.call.Call())
		}
	}
}
