package lua_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// theme is what a kind of history is about.
type theme struct {
	name    string
	tenants []string
	routes  []string
	weights map[string]int // of the operations, beside the usual ones
	rates   []string
	flood   bool // batches beyond the bounds of one poll
	traced  bool
	pooled  bool  // all routes are in one pool
	classes bool  // there are tiers
	moves   bool  // routes move to and from pools
	costs   bool  // deliveries report their actual costs
	excess  bool  // which are most often far above the estimates
	pauses  bool  // the upstream asks for pauses
	refuses bool  // the upstream refuses most jobs
	deads   int   // dead letters that a flow may have; 0: as many as it likes
	letters int64 // bytes of them; 0: as many as it likes
}

var oddRates = []string{"7/3s", "5/24h", "1000000/s", "3/7ms", "10/s", "200/s", "50/s", "1/s", "999/m"}

var themes = []theme{
	{name: "one flow", tenants: []string{"acme"}, routes: []string{"echo"}, rates: oddRates},
	{name: "flows and tenants", tenants: []string{"acme", "zoë & co"}, routes: []string{"echo", "mail"},
		rates: oddRates},
	{
		name: "policies change", tenants: []string{"acme"}, routes: []string{"echo", "mail"}, rates: oddRates,
		weights: map[string]int{"tune": 8, "declare": 3},
	},
	{
		name: "answers get lost", tenants: []string{"acme"}, routes: []string{"echo"},
		rates:   []string{"50/s", "200/s", "3/7ms", "7/3s"},
		weights: map[string]int{"lost tick": 12, "again": 12, "settle": 12},
	},
	{
		name: "floods", tenants: []string{"acme"}, routes: []string{"echo", "mail"},
		rates: []string{"1000000/s", "200/s", "3/7ms"}, flood: true,
	},
	{
		name: "dead letters", tenants: []string{"acme"}, routes: []string{"echo", "mail"},
		rates: []string{"50/s", "200/s", "7/3s"}, deads: 2,
		weights: map[string]int{"settle": 16, "replay": 4, "cancel": 3, "claim": 6},
	},
	{
		name: "bytes of dead letters", tenants: []string{"acme"}, routes: []string{"echo", "mail"},
		rates: []string{"50/s", "200/s", "7/3s"}, letters: 900,
		weights: map[string]int{"settle": 16, "replay": 6, "cancel": 6},
	},
	{
		name: "pool", tenants: []string{"acme", "zoë & co", "third"}, routes: []string{"echo", "mail"}, rates: []string{"50/s", "200/s", "7/3s", "1000000/s", "999/m"}, pooled: true,
		weights: map[string]int{"tune": 4, "tick": 20},
	},
	{
		name: "routes move between pools", tenants: []string{"acme", "b", "third"}, routes: []string{"echo", "mail"},
		rates: []string{"50/s", "200/s", "7/3s", "1000000/s", "999/m"}, pooled: true, moves: true,
		weights: map[string]int{"tune": 6, "tick": 20, "declare": 4, "jump": 2},
	},
	{name: "pool floods", tenants: []string{"acme", "b", "c"}, routes: []string{"echo", "mail"}, rates: []string{"1000000/s", "200/s", "3/7ms"}, flood: true, pooled: true},
	{
		name: "pool answers get lost", tenants: []string{"acme", "b", "c"}, routes: []string{"echo"}, rates: []string{"50/s", "200/s", "3/7ms", "7/3s"}, pooled: true,
		weights: map[string]int{"lost tick": 12, "again": 12, "settle": 12},
	},
	{name: "pool traced", tenants: []string{"acme", "b"}, routes: []string{"echo", "mail"}, rates: oddRates, traced: true, deads: 3, pooled: true},
	{
		name: "actual costs", tenants: []string{"acme"}, routes: []string{"echo", "mail"}, rates: oddRates, costs: true,
		weights: map[string]int{"settle": 16, "lost tick": 6},
	},
	{
		name: "actual costs in a pool", tenants: []string{"acme", "b"}, routes: []string{"echo", "mail"}, pooled: true, costs: true,
		rates: []string{"50/s", "200/s", "3/7ms", "7/3s", "999/m"}, weights: map[string]int{"settle": 20, "tick": 20, "lost tick": 4, "tune": 8},
	},
	{
		name: "pool floods with actual costs", tenants: []string{"acme", "b", "c"}, routes: []string{"echo", "mail"},
		rates: []string{"50/s", "1000000/s"}, costs: true, flood: true, pooled: true,
		weights: map[string]int{"settle": 20, "tick": 20, "lost tick": 6},
	},
	{
		name: "classes of a pool", tenants: []string{"acme", "b", "third", "d"}, routes: []string{"echo", "mail"}, pooled: true, classes: true,
		rates: []string{"50/s", "200/s", "7/3s", "1000000/s"}, costs: true, weights: map[string]int{"settle": 20, "tick": 24, "admit": 24, "declare": 3},
	},
	{
		name: "classes of pools that routes move between", tenants: []string{"acme", "b", "third"}, routes: []string{"echo", "mail"},
		rates: []string{"50/s", "200/s", "7/3s"}, pooled: true, classes: true, moves: true,
		weights: map[string]int{"tune": 4, "tick": 20, "declare": 4},
	},
	{
		name: "pauses of a pool", tenants: []string{"acme", "b", "third"}, routes: []string{"echo"}, rates: []string{"50/s", "200/s"},
		pooled: true, pauses: true, weights: map[string]int{"settle": 24, "tick": 24},
	},
	{
		name: "excess in a pool", tenants: []string{"acme", "b", "third"}, routes: []string{"echo"}, rates: []string{"50/s", "200/s"},
		pooled: true, classes: true, costs: true, excess: true, weights: map[string]int{"settle": 24, "tick": 24, "admit": 24, "tune": 6},
	},
	{
		name: "refusals of a pool", tenants: []string{"acme", "b", "third"}, routes: []string{"echo"}, rates: []string{"50/s", "200/s"},
		pooled: true, classes: true, refuses: true, weights: map[string]int{"settle": 60, "tick": 60, "admit": 40},
	},
	{name: "traced", tenants: []string{"acme", "zoë & co"}, routes: []string{"echo", "mail"}, rates: oddRates, traced: true, deads: 3},
}

// steps is the length of a history, half of the usual one with -short. SLUICE_PARITY_STEPS makes it
// longer, for a soak.
func steps(t *testing.T, usual int) int {
	given := os.Getenv("SLUICE_PARITY_STEPS")
	if given == "" {
		if testing.Short() {
			return usual / 2
		}
		return usual
	}
	n, err := strconv.Atoi(given)
	if err != nil {
		t.Fatalf("SLUICE_PARITY_STEPS: %v", err)
	}
	return n
}

// TestParity holds the scripts and the model together over random histories: every answer, and
// regularly the whole shard.
func TestParity(t *testing.T) {
	var mu sync.Mutex
	reached, ran := map[string]bool{}, 0
	run := func(t *testing.T, e engine, th theme, length int) {
		var histories, done atomic.Int64
		start := time.Now()
		rapid.Check(t, func(rt *rapid.T) {
			w := newWorld(rt, e, th, int(histories.Add(1)))
			defer w.clean()
			w.T = rt
			w.declare(w.wall, 1, drawBaseline(rt, th))
			w.live(length)
			w.drain()
			done.Add(int64(w.steps))
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(reached, w.m.reached)
		})
		took := time.Since(start)
		mu.Lock()
		ran++
		mu.Unlock()
		t.Logf("%d steps in %d histories, %.0f a second", done.Load(), histories.Load(),
			float64(done.Load())/took.Seconds())
	}
	t.Run("redis", func(t *testing.T) {
		for _, th := range themes {
			t.Run(th.name, func(t *testing.T) {
				t.Parallel()
				run(t, realEngine(t), th, steps(t, 170))
			})
		}
	})
	embedded := append(slices.DeleteFunc(slices.Clone(themes), func(th theme) bool { return !th.costs && !th.refuses }), themes[1])
	t.Run("embedded", func(t *testing.T) {
		if testing.Short() {
			t.Skip("takes long: make test-long runs it")
		}
		for _, th := range embedded {
			t.Run(th.name, func(t *testing.T) { run(t, embeddedEngine(t), th, steps(t, 60)) })
		}
	})
	if t.Failed() || ran != len(themes)+len(embedded) || testing.Short() || os.Getenv("SLUICE_TEST_HISTORIES") != "" {
		return // failed, or only some were asked for, or fewer histories
	}
	for _, situation := range situations {
		if !reached[situation] {
			t.Errorf("no history came to this: %s", situation)
		}
	}
}

// consumer is a worker as it numbers its polls.
type consumer struct {
	name          string
	counter, seen int64
	past          []poll
}

// world is one history: the shard, its model, the clients and the workers.
type world struct {
	rapid.TB
	T       *rapid.T // draws; nil for a fixed story
	ctx     context.Context
	e       engine
	th      theme
	prefix  string
	replid  string // of Redis
	shard   shardKeys
	m       *model
	wall    shaper.Instant // by the server's clock, which may be set back
	began   time.Time      // by that of this machine
	next    shaper.Instant // when something is due
	workers []*consumer
	ids     []string
	held    []leaseRef                // leases that their worker has learnt of
	claims  []scripts.HandedJob       // completions that a worker has learnt of, with the job's id for a key
	left    map[leaseRef]*departure   // what departed, by lease; nil once it was released
	again   []func(at shaper.Instant) // earlier calls, to be sent again
	tags    uint32
	decided []scripts.Decision // by the last admit
	types   atomic.Bool        // whether a policy has needed them
	names   int
	steps   int
	most    map[string]work // of each script that was measured
	log     []string
}

func newWorld(t rapid.TB, e engine, th theme, history int) *world {
	keys := e.keys.Shard(history % shards)
	w := &world{
		TB: t, ctx: context.Background(), e: e, th: th, shard: keys,
		prefix: strings.TrimSuffix(keys.Clock(), "clock"), m: newModel(),
		wall: shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)),
		left: map[leaseRef]*departure{}, began: time.Now(),
	}
	if th.deads > 0 {
		w.m.deadCapacity = th.deads
	}
	if th.letters > 0 {
		w.m.deadBytes = th.letters
	}
	for _, name := range []string{"w1", "w2"} {
		w.workers = append(w.workers, &consumer{name: name, counter: 1})
	}
	return w
}

// clean leaves the shard empty for another history.
func (w *world) clean() {
	keys, err := keysUnder(w.ctx, w.e, w.prefix)
	if err == nil && len(keys) > 0 {
		err = w.e.Del(w.ctx, keys...).Err()
	}
	if err != nil {
		w.Errorf("clean up: %v", err)
	}
}

// run sends a call and returns its answer. A quarter of the calls begins with the script that is
// not for such a shard: one without pools sends itself on, one with pools does the same.
func (w *world) run(call scripts.Call) []any {
	call.Script = call.Script.For(w.th.pooled != (w.steps%4 == 0))
	if w.th.traced {
		call.Script = traced[call.Script]
	}
	values, err := scripts.Run(w.ctx, w.e, nil, call)
	if err != nil {
		w.fail("script: %v", err)
	}
	return values
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	w.Helper()
	const most = 60 // of a long history, the end
	w.Fatalf("%s\nhistory:\n%s", fmt.Sprintf(format, args...), strings.Join(w.log[max(0, len(w.log)-most):],
		"\n"))
}

// same compares what the script and the model answered.
func (w *world) same(what string, got, want any, err error) {
	w.Helper()
	w.steps++
	if err != nil {
		w.fail("%s: %v", what, err)
	}
	if diff := difference(want, got); diff != "" {
		w.fail("%s answers otherwise than the model (-model +script):\n%s", what, diff)
	}
}

// difference is empty for equal values. It asks the slow judge, who knows that nothing is nothing,
// only when the fast one is in doubt.
func difference(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

// compare compares the whole shard, and checks what holds at any time.
func (w *world) compare() snapshot {
	w.Helper()
	got, err := readShard(w.ctx, w.e, w.prefix)
	if err != nil {
		w.fail("read the shard: %v", err)
	}
	want := w.m.snapshot()
	if time.Since(w.began) > 50*time.Second { // by then Redis may have dropped the answers to polls
		want.dropGrants()
		got.dropGrants()
	}
	if diff := difference(want, got); diff != "" {
		w.fail("the shard is not as in the model (-model +script):\n%s", diff)
	}
	return got
}

// live makes the history.
func (w *world) live(length int) {
	weights := map[string]int{
		"nothing": 1, "admit": 16, "tick": 16, "lost tick": 2, "settle": 12, "extend": 2, "cancel": 3,
		"replay": 3, "claim": 2, "handed": 2, "tune": 2, "status": 2,
		"tenant": 1, "scan": 1, "again": 3, "later": 6, "declare": 1, "old tick": 1, "back": 1, "jump": 1,
	}
	for name, n := range w.th.weights {
		weights[name] = n
	}
	var names []string
	for _, o := range operations { // in this order, so that a history shrinks to doing nothing
		for range weights[o.name] {
			names = append(names, o.name)
		}
	}
	by := map[string]func(*world){}
	for _, o := range operations {
		by[o.name] = o.do
	}
	const compareEvery = 20
	for i := range length {
		by[rapid.SampledFrom(names).Draw(w.T, "operation")](w)
		if i%compareEvery == compareEvery-1 {
			w.compare()
		}
	}
	w.compare()
}

// forgive ends what flows and classes still owe to their pools when their jobs have left.
func (w *world) forgive() {
	owing := map[string]bool{}
	for name, f := range w.m.flows {
		if f.owed > 0 {
			owing[tenantOf(name)] = true
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(owing)) {
		r := w.tuningOf(tenant, "api", w.m.policies[tenant].api)
		r.endHolds, r.endCharge = true, isPool(tenant)
		w.tune(r)
	}
}

// drain lets everything leave, and proves that nothing is lost (invariant 4) and that all that left
// conforms (invariant 2).
func (w *world) drain() {
	w.note("drain")
	for _, tenant := range w.th.tenants {
		on := false
		free := shaper.Overrides{Paused: &on, Draining: &on, Routes: map[string]shaper.Overrides{}}
		for _, route := range w.th.routes {
			free.Routes[route] = shaper.Overrides{Paused: &on}
		}
		w.tune(w.tuningOf(tenant, "api", free))
	}
	for _, pool := range slices.Sorted(maps.Keys(w.m.lines.baseline.Pools)) {
		w.tune(w.tuningOf("+"+pool, "api", shaper.Overrides{Paused: new(bool)}))
	}
	worker := w.workers[0]
	for round := 0; ; round++ {
		if round == 20_000 {
			w.fail("not drained: %+v", w.m.stored)
		}
		if round == 10_000 { // a cost of a million is repaid in hours
			w.forgive()
		}
		g := w.tick(worker, w.pollOf(worker, 1000), true)
		var items []scripts.SettleItem
		for _, ref := range w.held {
			items = append(items, scripts.SettleItem{
				Key: ref.id, Epoch: ref.epoch, Outcome: scripts.OutcomeSucceeded, MaxAttempts: 3,
			})
		}
		if len(items) > 0 {
			w.settle(settlement{w.wall, items})
			w.held = nil
		}
		if w.m.stored.depth == 0 && w.m.stored.running == 0 && !g.More {
			w.forgive()
			break
		}
		if !g.More && g.Next > 0 {
			// The server's clock that makes the shard's clock show the next due instant.
			w.wall = max(w.wall, g.Next.Add(-horizon/2)-w.m.stored.off)
		}
	}
	w.wall = w.wall.Add(lease)
	w.claims = nil
	w.claim(w.wall, "last", 10_000)
	w.handed(w.wall, w.claims)
	s := w.compare()
	if open := s.open(); len(open) > 0 {
		w.fail("not in a terminal state: %v", open)
	}
	for _, id := range w.ids {
		if _, stored := s.Keys["job:"+id]; !stored && !w.m.deleted[id] {
			w.fail("%s is lost", id)
		}
	}
	for name := range s.Keys {
		switch kind, _, _ := strings.Cut(name, ":"); kind {
		case "due", "expires", "leases", "queue", "later", "outbox", "wait", "ready", "reserve":
			w.fail("%s is left behind: %v", name, s.Keys[name])
		}
	}
	var departures []departure
	for ref, d := range w.left {
		if d == nil {
			continue
		}
		departures = append(departures, *d)
		if ofPool, ok := w.m.stampedInPool[ref]; ok {
			departures = append(departures, ofPool)
		}
	}
	if err := conformity(departures, w.m.corrected); err != nil {
		w.fail("%v", err)
	}
}
