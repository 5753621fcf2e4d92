package lua_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// The bounds of one poll.
const (
	sweepMost, expireMost, flowsMost, flowJobsMost, promoteMost, idleMost = 64, 50, 32, 250, 200, 32
	lookedMost                                                            = 64
	looksMost, long, latest, betweenMost, regularsMost                    = 16, 256, 100, 100, 16
	idleAfter                                                             = 10 * time.Minute
	overriddenAgain                                                       = 24 * time.Hour
	hindered                                                              = time.Second
	leftMost                                                              = 65536
	forgetEvery                                                           = 8
)

// poll is one call of tick, or of the script that its answer said is needed.
type poll struct {
	script        *scripts.Script
	at            shaper.Instant
	worker        string
	counter, seen int64
	most          int
	help          int
	helper        bool
	handsOver     bool
	lead          time.Duration
	bounds        []scripts.Bound
	regulars      []string
}

func (r poll) String() string {
	return fmt.Sprintf("%v %d %s counter %d seen %d most %d help %d helper %v hands over %v lead %v "+
		"bounds %v regulars %v", r.name(), r.at, r.worker, r.counter, r.seen, r.most, r.help, r.helper, r.handsOver,
		r.lead, r.bounds, r.regulars)
}

// polling is a poll under way.
type polling struct {
	*model
	poll
	changed bool
	flows   map[string]*flow
	touched []*flow
	grant   scripts.Grant
	// How many jobs of all flows the poll may still promote, and drop because they are overdue.
	promotable, droppable int
	records               []scripts.Record // of the leases, as the poll found them
	bounds                map[string]int
}

// earliest is the earliest stamp that the poll gives.
func (l *polling) earliest() shaper.Instant { return l.now.Add(l.lead) }

// tick answers the grant and, beside it, the records of its leases.
func (m *model) tick(r poll) (scripts.Grant, []scripts.Record) {
	m.begin(r.at)
	l := &polling{
		model: m, poll: r, flows: map[string]*flow{}, promotable: promoteMost, droppable: expireMost,
		bounds: map[string]int{},
	}
	for _, b := range r.bounds {
		l.bounds[b.Name] = b.Slots
	}
	l.grant = scripts.Grant{Now: m.now}
	more, answered := l.step()
	if !answered {
		l.answer(more)
	}
	return l.grant, l.records
}

// step does what the script does. answered is true for a sending that is too old for an answer.
func (l *polling) step() (more, answered bool) {
	if l.script == nil {
		return l.lease()
	}
	switch l.script {
	case scripts.Commands.Redeliver:
		switch g, ok := l.grants[l.worker]; {
		case !ok || g.counter == l.seen:
		case g.counter > l.counter:
			return false, l.outdated()
		default:
			l.redeliver(g)
		}
	case scripts.Commands.Reclaim:
		if !l.unswept() && l.now >= l.clock.grace {
			l.takeBack(l.leases.upTo(l.now, sweepMost))
		}
	case scripts.Commands.Expire:
		l.expireAll(l.expires.upTo(l.now, expireMost))
	case scripts.Commands.Retune:
		if l.scans() {
			l.scan()
		}
	case scripts.Commands.Forget:
		l.forgetIdle(l.tenants.upTo(l.now.Add(-idleAfter), idleMost))
		return l.tenants.head() < l.now.Add(-idleAfter), false
	}
	return true, false
}

func (r poll) name() string {
	if r.script == nil {
		return scripts.Commands.Tick.Name
	}
	return r.script.Name
}

func (l *polling) outdated() bool {
	l.reach("old sending")
	l.grant.Help = l.clock.help == 1
	return true
}

// unswept says that expired leases were not looked for in long.
func (l *polling) unswept() bool {
	return l.clock.swept > 0 && 3*(l.now-l.clock.swept) > 2*shaper.Instant(lease.Microseconds())
}

// scans says that not all flows obey the policies in force yet.
func (l *polling) scans() bool { return l.clock.scan }

// lease is what tick does: it leases, or says what is to be done first.
func (l *polling) lease() (more, answered bool) {
	if g, ok := l.grants[l.worker]; ok {
		if g.counter > l.counter {
			return false, l.outdated()
		}
		if g.counter != l.seen {
			l.grant.Needed = scripts.Commands.Redeliver
			return true, false
		}
	}
	idle := l.due.head() > l.now.Add(horizon)
	l.grant.Needed = l.chore(idle)
	if !idle && l.most > 0 {
		more = l.leaseAll()
		l.reachIf(l.grant.Needed != nil && len(l.grant.Leases) > 0, "other work beside leasing")
	}
	return more, false
}

// chore is the script whose turn it is among those that have work, nil if none has any.
func (l *polling) chore(idle bool) *scripts.Script {
	var chores []*scripts.Script
	if l.clock.running > 0 && l.now >= l.clock.swept.Add(sweep) {
		lapsed := l.now >= l.clock.grace && l.leases.head() <= l.now
		switch {
		case l.unswept():
			l.clock.grace = l.now.Add(lease)
			l.reach("grace")
			fallthrough
		case !lapsed:
			l.clock.swept, l.changed = l.now, true
		default:
			chores = append(chores, scripts.Commands.Reclaim)
		}
	}
	turn := int(l.counter / 2)
	if l.expires.head() <= l.now {
		chores = append(chores, scripts.Commands.Expire)
	}
	if l.scans() {
		chores = append(chores, scripts.Commands.Retune)
	}
	if (idle || turn%forgetEvery == 0) && l.tenants.head() < l.now.Add(-idleAfter) {
		chores = append(chores, scripts.Commands.Forget)
	}
	if len(chores) == 0 {
		return nil
	}
	return chores[turn%len(chores)]
}

func (l *polling) answer(more bool) {
	// The worker polls half a horizon before the next instant, and an expiry or a sweep is of no
	// use before its time.
	next := min(l.due.head(), l.expires.head().Add(horizon/2))
	if l.clock.running > 0 {
		next = min(next, max(l.now, l.clock.swept.Add(sweep)).Add(horizon/2))
	}
	if head := l.outbox.head(); l.handsOver && head <= l.now {
		l.grant.Outbox = true
	} else if l.handsOver {
		next = min(next, head.Add(horizon/2))
	}
	if next >= never {
		next = 0
	}
	wake, help := l.clock.wake, l.clock.help
	if !l.helper {
		wake = 0
		if next > 0 {
			wake = next.Add(-horizon / 2)
		}
	}
	if l.poll.help > 0 {
		help = int64(2 - l.poll.help)
	}
	if l.changed || l.stepped || wake != l.clock.wake || help != l.clock.help {
		l.clock.wake, l.clock.help = wake, help
		l.save()
	}
	l.grant.Next, l.grant.More, l.grant.Help = next, more, help == 1
}

// touch loads a flow that the poll may change.
func (l *polling) touch(name string) *flow {
	if l.flows[name] == nil {
		l.flows[name] = l.load(name)
		l.touched = append(l.touched, l.flows[name])
	}
	return l.flows[name]
}

func (l *polling) give(id string, ends shaper.Instant, found scripts.Record) {
	j := l.jobs[id]
	l.leases[id] = int64(ends)
	l.records = append(l.records, bare(found))
	l.grant.Leases = append(l.grant.Leases, scripts.LeasedJob{
		ID: id, Epoch: j.Epoch, Stamp: j.Stamp, Ends: ends, Attempts: j.Attempts, Eligible: j.At,
	})
}

// redeliver hands over a grant that its worker has not seen.
func (l *polling) redeliver(g grant) {
	l.changed, l.grant.Counter = true, g.counter
	byFlow := map[string][]string{}
	for _, ref := range g.leases {
		if j := l.jobs[ref.id]; j != nil && j.State == shaper.Leased && j.Epoch == ref.epoch {
			l.touch(j.Flow)
			byFlow[j.Flow] = append(byFlow[j.Flow], ref.id)
		}
	}
	for _, f := range l.touched {
		ids := byFlow[f.name]
		first, last := l.jobs[ids[0]].Stamp, l.jobs[ids[len(ids)-1]].Stamp
		late := first < l.earliest().Add(-shaper.Slack)
		anew := late && last == f.Last && f.pool == nil
		back := late && !anew
		if anew {
			var cost int64
			for _, id := range ids {
				cost += l.jobs[id].Cost
			}
			f.Bucket = f.Rewind(first, int64(len(ids)), cost)
		}
		l.reachIf(anew, "handed over anew")
		l.reachIf(back, "given back unseen")
		l.reachIf(!late, "handed over as it was")
		for _, id := range ids {
			j := l.jobs[id]
			found := *j
			if anew {
				stamp := f.Stamp(j.At, l.earliest())
				if back = back || f.policy.Paused || stamp > l.now.Add(horizon); back {
					j.Stamp = max(f.Last, j.Stamp)
					f.leaves(j.Stamp, j.Cost)
				} else {
					l.stamp(f, id, stamp)
				}
			}
			if !back {
				l.give(id, max(l.now, j.Stamp).Add(lease), found)
				continue
			}
			j.Outcome = byte(scripts.OutcomeReleased)
			if f.pool != nil {
				charge := l.chargeOf(f.pool, j, j.Cost)
				l.correctTurn(f, charge, 0, j.Stamp < f.Ready)
				f.charge(1 - charge)
			}
			l.run(f, -1)
			l.depart(f, -1)
			l.giveBack(id, f, shaper.Release)
			delete(l.leases, id)
		}
	}
	l.storeAll(l.touched, l.helper)
}

// leaves charges a flow for a job that leaves.
func (f *flow) leaves(stamp shaper.Instant, cost int64) {
	var pool shaper.Bucket
	if f.pool != nil {
		pool = f.pool.Bucket
	}
	f.Bucket = f.DepartIn(pool, stamp, cost)
}

// stamp lets a job leave.
func (l *polling) stamp(f *flow, id string, stamp shaper.Instant) {
	j := l.jobs[id]
	j.Stamp = stamp
	l.reachCells("", f.Bucket, j)
	f.leaves(stamp, j.Cost)
	l.stamps++
	l.stamped[id] = stamping{f.segment, l.stamps, f.policy.Paces()}
}

// reachCells notes what a departure of the job meets in a bucket; of begins the situation.
func (l *polling) reachCells(of string, b shaper.Bucket, j *scripts.Record) {
	for _, c := range b.Cells {
		l.reachIf(c.Credit > 0, of+"departed on credit")
		l.reachIf(c.ByJobs && j.Cost > 1, of+"by jobs")
	}
}

// takeBack ends leases whose worker was not heard of in time; their slots stay spent.
func (l *polling) takeBack(ids []string) {
	l.changed = true
	l.reach("taken back")
	for _, id := range ids {
		l.touch(l.jobs[id].Flow)
	}
	for _, id := range ids {
		j := l.jobs[id]
		f := l.touch(j.Flow)
		delete(l.leases, id)
		l.run(f, -1)
		l.clock.lapsed++
		j.Outcome = 'x'
		if chargeFree(j) {
			f.dead++
			l.finish(id, f, shaper.Die, nil)
		} else {
			l.giveBack(id, f, shaper.LeaseExpired)
		}
	}
	l.storeAll(l.touched, l.helper)
}

// expireAll ends waiting jobs whose max wait is over; they take no slot.
func (l *polling) expireAll(ids []string) {
	l.changed = true
	l.reach("expired")
	for _, id := range ids {
		f := l.touch(l.jobs[id].Flow)
		l.leave(id, f)
		l.finish(id, f, shaper.Overdue, nil)
	}
	for _, f := range l.touched {
		f.later = l.laters[f.name].head()
	}
	l.storeAll(l.touched, l.helper)
}

// scan makes every flow that has jobs obey the policies in force. Any other does when it is next
// touched. The script stops after about lookedMost flows and tenants, at a cursor of Redis that the
// model cannot know, so no history may have more then.
func (l *polling) scan() {
	l.reach("scanned all")
	looked := 0
	for entry := range l.tenants {
		looked++
		for name := range l.names[tenantOfEntry(entry)] {
			looked++
			if f := l.model.flows[name]; !isPool(name) && f.Depth+f.Running > 0 {
				if l.touch(name).pool != nil {
					delete(l.due, name)
				}
			}
		}
	}
	if looked > lookedMost {
		panic(fmt.Sprintf("new policies meet %d flows and tenants, want at most %d", looked, lookedMost))
	}
	l.clock.scan, l.changed = false, true
	l.storeAll(l.touched, l.helper)
}

func tenantOfEntry(entry string) string {
	name, _, _ := strings.Cut(entry, " ")
	return name
}

// forgetIdle forgets tenants without waiting, leased and dead jobs, without settings from the API,
// and without a charge to the future.
func (l *polling) forgetIdle(entries []string) {
	l.changed = true
	for _, entry := range entries {
		tenant := tenantOfEntry(entry)
		overridden := l.policies[tenant].fields["api"] != ""
		idle, letters, left := !overridden, false, int64(0)
		for name := range l.names[tenant] {
			f := l.load(name)
			idle = idle && f.Depth == 0 && f.Running == 0 && (f.pool == nil || f.owed == 0) && max(f.seen, f.Last, f.HeldUntil, f.Ready) < l.now.Add(-idleAfter)
			letters = letters || len(l.deads[name]) > 0
			if stored := l.model.flows[name]; stored.deadBytes > 0 {
				l.lapse(&stored)
				l.model.flows[name] = stored
			}
			for _, c := range f.Cells {
				idle = idle && c.TAT < l.now
			}
			left += f.answers.Left(l.now, retention.Finished) + f.keys.Left(l.now, retention.Idempotency)
		}
		idle = idle && !letters
		l.reachIf(idle && left > leftMost, "kept for what it has stored")
		switch {
		case idle && left <= leftMost:
			l.reach("forgotten")
			for name := range l.names[tenant] {
				f := l.model.flows[name]
				delete(l.members[f.class], tenant)
				delete(l.model.flows, name)
				delete(l.due, name) // one that has moved into a pool may still be due by its former paces
			}
			delete(l.names, tenant)
			delete(l.tenants, entry)
		case overridden && !letters:
			l.reach("kept for an override")
			l.tenants[entry] = int64(l.now.Add(overriddenAgain))
		default:
			l.reach("kept for its activity")
			l.tenants[entry] = int64(l.now)
		}
	}
}

// leaseAll leases what is stamped up to the horizon, the flow that is due first at first.
func (l *polling) leaseAll() (more bool) {
	l.changed = true
	budget := l.most
	if l.clock.running == 0 {
		l.clock.swept = l.now
	}
	planned := map[string]bool{}
	limit, all := l.now.Add(horizon), l.due.upTo(l.now.Add(horizon), math.MaxInt)
	taken, loaded, looks := 0, 0, 0
	var plan func(name string)
	plan = func(name string) {
		loaded++
		if isPool(name) && planned[name] {
			return
		}
		var left int
		var stopped bool
		if isPool(name) {
			planned[name] = true
			left, stopped = l.leasePool(l.pool(strings.TrimSuffix(name, "/")), budget)
		} else if f := l.touch(name); f.pool != nil { // the scan of new policies has made it due
			delete(l.due, name)
			plan(f.pool.name)
			return
		} else {
			left, stopped = l.leaseFlow(f, budget)
		}
		more = more || stopped
		budget -= left
	}
	for _, name := range l.dueNames(all) {
		if budget <= 0 || loaded >= flowsMost {
			break
		}
		full := l.full(name)
		if full {
			looks++
		}
		if !full || looks <= looksMost {
			plan(name)
		} else {
			at := l.join(routeOf(name), limit)
			f := l.model.flows[name]
			f.Ready, f.hindered = at, scripts.Hindrance{Cause: "upstream", Until: at.Add(hindered)}
			l.model.flows[name], l.due[name] = f, int64(at)
			l.grant.PutOff++
		}
		taken++
	}
	l.groupByFlow()
	if len(l.grant.Leases) > 0 {
		g := grant{counter: l.counter}
		for _, leased := range l.grant.Leases {
			g.leases = append(g.leases, leaseRef{leased.ID, leased.Epoch})
		}
		l.grants[l.worker] = g
		l.grant.Counter = g.counter
	}
	l.reachIf(l.scans(), "scanned beside leasing")
	l.storeAll(l.touched, l.helper)
	return (more || taken < len(all)) && budget > 0
}

// dueNames is the due flows that the poll reads: all, or the earliest. Of a long list, or while a
// route is bounded, it is also regulars, before them, and the latest, and the routes take turns.
// While a route is bounded, it is also a part between.
func (l *polling) dueNames(all []string) (names []string) {
	bounded := len(l.bounds) > 0
	if len(all) < flowsMost {
		return all
	}
	if !bounded && len(all) < long {
		return all[:flowsMost]
	}
	for _, name := range l.regulars {
		if len(names) < regularsMost && slices.Contains(all, name) && !slices.Contains(names, name) {
			l.reachIf(slices.Index(all, name) >= flowsMost, "a regular in a crowd")
			names = append(names, name)
		}
	}
	end := max(flowsMost, len(all)-latest)
	last := slices.Clone(all[end:])
	slices.Reverse(last)
	for i, name := range all[:flowsMost] {
		names = append(names, name)
		if (i+1)%3 == 0 && len(last) > 0 {
			names, last = append(names, last[0]), last[1:]
		}
	}
	names = append(names, last...)
	if bounded {
		from, to := flowsMost, end
		if choices := end - flowsMost - betweenMost + 1; choices > 0 {
			l.reach("a part of many due flows")
			from += int(l.counter*618034%1_000_000) * choices / 1_000_000
			to = from + betweenMost
		}
		names = append(names, all[from:to]...)
	}
	read := map[string]bool{}
	names = slices.DeleteFunc(names, func(name string) bool {
		was := read[name]
		read[name] = true
		return was
	})
	var routes []string
	place, turns := map[string]int{}, map[string]int{}
	for _, name := range names {
		if turns[routeOf(name)] == 0 {
			routes = append(routes, routeOf(name))
		}
		place[name] = turns[routeOf(name)]
		turns[routeOf(name)]++
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(place[a]-place[b], slices.Index(routes, routeOf(a))-slices.Index(routes, routeOf(b)))
	})
	return names
}

// full says that the route of a flow has no free slot.
func (l *polling) full(name string) bool {
	free, bounded := l.bounds[routeOf(name)]
	return bounded && free <= 0
}

// join is the end of the line of a route without a free slot, for a flow that is put off to an
// instant or later.
func (l *polling) join(route string, least shaper.Instant) shaper.Instant {
	l.reachIf(l.lineEnds[route] >= least, "in a line")
	l.lineEnds[route] = max(least, l.lineEnds[route].Add(time.Millisecond))
	return l.lineEnds[route]
}

// groupByFlow puts the jobs of a flow together: a poll of a pool finds them one by one.
func (l *polling) groupByFlow() {
	at := func(id string) int {
		return slices.IndexFunc(l.touched, func(f *flow) bool { return f.name == l.jobs[id].Flow })
	}
	order := make([]int, len(l.grant.Leases))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return at(l.grant.Leases[a].ID) - at(l.grant.Leases[b].ID) })
	leases, records := slices.Clone(l.grant.Leases), slices.Clone(l.records)
	for i, from := range order {
		l.grant.Leases[i], l.records[i] = leases[from], records[from]
	}
}

// leaseFlow lets jobs of a flow leave, lowest sequence first, until none may leave before the
// horizon or a bound is met; stopped reports the latter. Before each stamp, what is eligible by
// then joins the queue. The poll sees as many queued jobs as it may lease; beyond these it does not
// know who is next.
func (l *polling) leaseFlow(f *flow, budget int) (left int, stopped bool) {
	room := min(budget, flowJobsMost)
	if f.policy.Concurrency > 0 {
		room = min(room, int(f.policy.Concurrency-f.Running))
	}
	if f.policy.Paused || room <= 0 {
		return 0, false
	}
	if route, bounded := l.bounds[routeOf(f.name)]; bounded {
		defer func() { l.bounds[routeOf(f.name)] -= left }()
		share := min(route, int(math.Ceil(float64(3*route-l.bounds[f.name])/4)))
		if share <= 0 {
			l.putOff(f)
			return 0, false
		}
		l.reachIf(share < room, "bounded")
		room = min(room, share)
	}
	line := l.queue[f.name].list() // who is in view, by sequence
	unseen := len(line) > room
	inView := min(len(line), room) // of those that waited in the queue already
	line = line[:inView]
	found := map[string]scripts.Record{} // who was promoted, as it was before
	waited := map[string]bool{}
	for _, w := range line {
		waited[w.Name] = true
	}
	limit := l.now.Add(horizon)
	for left < room {
		if inView == 0 && unseen {
			return left, true
		}
		next := f.Stamp(0, l.earliest())
		if len(line) == 0 {
			if f.later == never {
				return left, false
			}
			if l.promotableOf(f) <= 0 {
				return left, true
			}
			next = f.Stamp(f.later, l.earliest())
		}
		if next > limit {
			return left, false
		}
		if f.later <= next && l.promotableOf(f) > 0 {
			for _, id := range l.laters[f.name].upTo(next, l.promotableOf(f)) {
				found[id] = *l.jobs[id]
				line = append(line, l.promote(f, id))
			}
			slices.SortFunc(line, func(a, b member) int { return int(a.Score - b.Score) })
			f.later = l.laters[f.name].head()
			continue
		}
		id := line[0].Name
		j := l.jobs[id]
		stamp := f.Stamp(j.At, l.earliest())
		if stamp > limit {
			return left, false
		}
		overdue := j.Deadline > 0 && j.Deadline < stamp
		if overdue && l.droppableOf(f) <= 0 {
			return left, true
		}
		line = line[1:]
		if waited[id] {
			inView--
		}
		if _, promoted := found[id]; !promoted {
			found[id] = *j
		}
		if overdue {
			l.leave(id, f)
			l.finish(id, f, shaper.Overdue, nil)
			l.dropped(f)
			continue
		}
		l.leave(id, f)
		become(j, shaper.Stamped)
		j.Epoch++
		l.stamp(f, id, stamp)
		l.give(id, max(l.now, stamp).Add(lease), found[id])
		l.run(f, 1)
		l.depart(f, 1)
		left++
	}
	return left, true
}

// promotableOf is the number of jobs of a flow that the poll may still promote.
func (l *polling) promotableOf(f *flow) int {
	if !f.promotesKnown {
		f.promotes, f.promotesKnown = max(1, (l.promotable+1)/2), true
	}
	return f.promotes
}

// droppableOf is the same for jobs that it drops because they are overdue.
func (l *polling) droppableOf(f *flow) int {
	if !f.dropsKnown {
		f.drops, f.dropsKnown = max(1, (l.droppable+1)/2), true
	}
	return f.drops
}

func (l *polling) dropped(f *flow) {
	f.drops--
	l.droppable--
}

// putOff delays a flow that may take no place of the worker.
func (l *polling) putOff(f *flow) {
	l.reach("put off")
	l.keep(f, "upstream")
	l.grant.PutOff++
}

// keep delays a flow that is kept from leaving by the cause.
func (l *polling) keep(f *flow, cause string) {
	f.Bucket = f.PutOff(l.now, horizon)
	if cause == "upstream" && l.full(f.name) {
		f.Ready = l.join(routeOf(f.name), f.Ready)
	}
	f.hindered = scripts.Hindrance{Cause: cause, Until: f.Ready.Add(hindered)}
}

// promote moves a job whose time has come into the queue: a scheduled one to its end, a retrying
// one to its old place.
func (l *polling) promote(f *flow, id string) member {
	j := l.jobs[id]
	l.reachIf(j.State == shaper.Scheduled, "promoted")
	l.reachIf(j.State == shaper.Retrying, "came back")
	if j.State == shaper.Scheduled {
		f.Seq++
		j.Seq = f.Seq
	}
	become(j, shaper.Due)
	delete(l.laters[f.name], id)
	if f.Queued == 0 {
		f.Bucket = f.MarkReady(j.At)
	}
	f.queued(1, j.Cost)
	set(l.queue, f.name, id, j.Seq)
	f.promotes--
	l.promotable--
	return member{id, j.Seq}
}
