package lua_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// This file and its neighbours model_*_test.go are the specification of the scripts: one shard in
// plain Go, with the arithmetic of package shaper. Every method is one command and does what the
// script of that name promises. What the model leaves out is what Redis does by itself: keys that
// run out, and who listens on a channel.

// The timings of every history. They are short against the jumps that histories make.
const (
	horizon = 20 * time.Millisecond
	lease   = 2 * time.Second
	sweep   = 500 * time.Millisecond
)

// retention is long by the server's clock, so no key runs out during a history; dead letters are
// also trimmed by the shard's clock.
var retention = scripts.Retention{Finished: 2 * time.Hour, Dead: time.Hour, Idempotency: 3 * time.Hour}

// zset is a sorted set as Redis orders it: by score, then by member.
type zset map[string]int64

type member struct {
	Name  string
	Score int64
}

func (z zset) list() []member {
	list := make([]member, 0, len(z))
	for name, score := range z {
		list = append(list, member{name, score})
	}
	slices.SortFunc(list, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.Score, b.Score), strings.Compare(a.Name, b.Name))
	})
	return list
}

// upTo is the first most members with a score of at most limit.
func (z zset) upTo(limit shaper.Instant, most int) (names []string) {
	for _, m := range z.list() {
		if m.Score > int64(limit) || len(names) == most {
			break
		}
		names = append(names, m.Name)
	}
	return names
}

// never stands for no instant at all in a minimum.
const never = shaper.Instant(1<<53 - 1)

// head is the lowest score, never when the set is empty.
func (z zset) head() shaper.Instant {
	first := never
	for _, score := range z {
		first = min(first, shaper.Instant(score))
	}
	return first
}

func (z zset) rank(name string) int64 {
	return int64(slices.IndexFunc(z.list(), func(m member) bool { return m.Name == name }))
}

// clock is the shard's clock and what is kept beside it.
type clock struct {
	last, off, wake, swept, grace shaper.Instant
	depth, bytes, running, help   int64
	stored                        int64 // live and dead bytes of all flows
	admitted, rejected, departed  int64
	revision                      int64 // of the policies in force, 0 before there were any
	scan                          bool  // all flows are to be made due
	lapsed, dead                  int64
}

// policy is what is kept of a tenant's settings.
type policy struct {
	fields    map[string]string // as they are stored
	revision  int64
	file, api shaper.Overrides // in force
	history   []string
}

// obeyed are the policies of a tenant's flows, or of all tenants without settings of their own.
type obeyed struct {
	baseline shaper.Baseline
	says     shaper.Statements
	revision int64 // of the policies in force when they were resolved
}

// of is the policy of a flow whose tenant's credential claims the tier, or of a pool.
func (o obeyed) of(claimed, flow string) shaper.Policy {
	if isPool(flow) {
		p, _ := o.baseline.ResolvePool(tenantOf(flow)[1:], o.says.API)
		return p
	}
	o.says.Claimed = claimed
	resolved, _ := o.baseline.Resolve(o.says, routeOf(flow))
	return resolved
}

func (o obeyed) lines() scripts.Lines {
	lines := scripts.Lines{}
	for class, p := range o.baseline.Policies(o.says) {
		lines[class.Tier+"/"+class.Route] = o.line("/"+class.Route, p)
	}
	return lines
}

// baselineLines are those of all tenants without settings of their own, and of the pools.
func (o obeyed) baselineLines() scripts.Lines {
	lines := o.lines()
	for name := range o.baseline.Pools {
		lines["+"+name+"/"] = scripts.EncodePolicy(o.of("", "+"+name+"/"))
	}
	return lines
}

// stored is the hash that holds them.
func (o obeyed) stored(lines scripts.Lines) map[string]string {
	fields := map[string]string(lines)
	fields["revision"] = text(o.revision)
	return fields
}

// flow is a flow with its policy at the time it was loaded.
type flow struct {
	shaper.Flow
	name                                          string
	policy                                        shaper.Policy
	fresh, retuned                                bool
	seen                                          shaper.Instant
	admitted, rejected, departed, succeeded, dead int64
	extra                                         int64          // costs of its departures beyond one each, in a pool
	later                                         shaper.Instant // head of the scheduled and retrying jobs, never for none
	full                                          shaper.Instant // stopped by its dead letters until then
	tier                                          string         // that the credential claimed last
	revision                                      int64          // of the policies in force when it took its own
	hindered                                      scripts.Hindrance
	trial                                         shaper.Trial
	cause                                         string // of the hold that ends last; empty before the first
	class                                         string // that its bytes are counted in; empty for none
	owed                                          int64  // to its pool, or to the pool that it is, see shaper.Pool.Exceed
	live, deadBytes                               int64  // stored: of waiting and leased jobs, of dead letters
	answers, keys                                 shaper.Aged
	segment                                       int // counts the policies that the flow has had, see conformity

	awaited shaper.Awaited // by its pool

	home string // the pool of its policy, as +NAME; empty for none
	turn turn
	line string // the class that it is filed in; empty for none
	// Of the command under way.
	pool       *pooled        // nil for none
	left       *leaving       // nil for none
	dueBefore  shaper.Instant // while nextDue is this, its place in the pool stays; 0: it does not
	candidate  bool           // with a turn that was corrected
	planned    bool
	share      int // slots of the worker that it may take, if shareKnown
	shareKnown bool
	// How many of its jobs the poll may still promote, and drop, if known; and whether it must wait
	// for a later poll.
	promotes, drops                   int
	promotesKnown, dropsKnown, barred bool
	found                             map[string]scripts.Record // promoted jobs, as they were before
}

// paused is the policy that estimates go by: as many dead letters as are kept pause a flow, too.
func (m *model) paused(f *flow) shaper.Policy {
	p := f.policy
	p.Paused = p.Paused || f.full > m.now || f.pool != nil && f.pool.policy.Paused
	return p
}

type grant struct {
	counter int64
	leases  []leaseRef
}

type leaseRef struct {
	id    string
	epoch int64
}

// claimed is the last claim.
type claimed struct {
	name string
	ids  []string
}

// stamping is what the check of conformity knows of a stamp: the segment of the flow, the paces
// then, and the order of stamps.
type stamping struct {
	segment, order int
	paces          []shaper.Pace
}

// model is one shard.
type model struct {
	stored  clock // as saved
	clock   clock // of the command under way
	stepped bool  // the wall clock was set back before it
	now     shaper.Instant

	due, expires, leases, tenants zset
	lines                         obeyed            // of tenants without settings of their own
	tuned                         map[string]obeyed // of the others, by entry
	flows                         map[string]flow
	names                         map[string]map[string]bool // tenant → its flows
	queue, laters, deads          map[string]zset            // by flow
	returned                      map[string]zset            // by flow: jobs that came back from a worker, by since when they could have left
	done                          map[string][]string        // by flow, latest first
	jobs                          map[string]*scripts.Record
	idem                          map[string]string // tenant:hash → what is kept
	grants                        map[string]grant
	policies                      map[string]policy
	outbox                        zset
	claimed                       claimed
	deleted                       map[string]bool    // jobs
	pools                         map[string]*pooled // by +NAME
	classes                       map[string]scripts.ClassSums
	members                       map[string]map[string]bool // by class: its tenants
	open                          map[string]*pooled         // those that the command under way has read
	moving                        []*leaving
	stampedInPool                 map[leaseRef]departure
	served                        []serving      // by pools
	firstHold                     shaper.Instant // of a pool by several parties
	deadCapacity                  int
	deadBytes                     int64

	lineEnds  map[string]shaper.Instant // by route without free slots: until when its last flow was put off
	corrected map[string]bool           // flows with a job that reported its actual cost

	segments, stamps int
	stamped          map[string]stamping // by job

	reached map[string]bool // what a history has come to
}

func newModel() *model {
	return &model{
		lineEnds: map[string]shaper.Instant{},
		due:      zset{}, expires: zset{}, leases: zset{}, tenants: zset{}, tuned: map[string]obeyed{}, flows: map[string]flow{},
		names: map[string]map[string]bool{}, queue: map[string]zset{}, laters: map[string]zset{}, deads: map[string]zset{}, returned: map[string]zset{},
		done: map[string][]string{}, jobs: map[string]*scripts.Record{}, idem: map[string]string{}, grants: map[string]grant{},
		policies: map[string]policy{}, outbox: zset{}, deleted: map[string]bool{}, pools: map[string]*pooled{}, classes: map[string]scripts.ClassSums{}, members: map[string]map[string]bool{}, stampedInPool: map[leaseRef]departure{}, deadCapacity: 1000, deadBytes: 1 << 40, stamped: map[string]stamping{}, corrected: map[string]bool{}, reached: map[string]bool{},
	}
}

// situations is what all histories together must come to; else they prove less than they seem to.
var situations = []string{
	"admitted", "replayed", "full", "deadline_unreachable", "key_reused", "sent before", "refused whole",
	"old sending", "handed over as it was",
	"handed over anew", "given back unseen", "grace", "taken back", "expired", "scanned all", "forgotten",
	"kept for an override",
	"kept for its activity", "retuned", "retuned by a change", "promoted", "came back", "another revision",
	"other policies",
	"call known", "settled", "repeated", "stale", "held", "refunded", "slot gone", "out of attempts",
	"replay full", "replay repeated", "replay in another tier", "clock back",
	"draining", "denied", "denied and unseen", "type_denied", "type_denied and unseen", "full of dead letters", "went on after a dead letter left",
	"to be called back", "called back unsent", "claimed",
	"claimed again", "claimed after a replay",
	"handed over", "handed over too late", "deleted", "kept for its callback", "slowed", "full_of_bytes",
	"store_full", "in a tier",
	"hold ended", "a pool held by two tenants", "a pool held by one answer", "a probe ended the hold", "a pool slowed by refusals",
	"held again before a success", "a hold was wrong", "no hold, because the last was wrong", "contradicted before a hold", "contradicted again",
	"recovered after a hold", "no longer refused",
	"declared too late", "scanned beside leasing", "other work beside leasing", "bounded", "put off", "in a line",
	"reserved", "shared by weight", "reserves degrade", "kept in its pool", "kept as a candidate", "pool full", "part of the pool full",
	"has its part of the concurrency", "pool retuned",
	"left its pool", "took its jobs to another pool", "own lines of an older file", "a pool of no file",
	"corrected in its pool", "the reserve pays", "credit of a reserve", "refunded below the virtual time",
	"refunded after it was idle",
	"estimated by its concurrency", "estimated by its slots",
	"class full", "reserve left", "left its class", "held without a charge",
	"over_share", "full of bytes of dead letters", "dead letters past retention", "lapsed",
	"cost more", "cost less", "credit left", "departed on credit", "by jobs",
	"in a class", "joined a class", "left its class in a pool", "a class beside others", "class forgotten", "class ahead",
	"corrected for its class",
	"brought back", "cut in its pool", "cut by an earlier bound", "charged less in its pool", "owes to its pool",
	"a class owes to its pool", "owes without a job", "paid at once", "repaid", "repaid with unused time",
	"too_costly",
	"too costly for its pool", "pool cost more", "pool cost less", "pool departed on credit", "pool by jobs",
	"leaves its slot to one before it", "repays until another comes",
	"a class leaves its slot to one before it", "idles for a class",
}

func (m *model) reach(situation string) { m.reached[situation] = true }

// reachIf is reach under a condition.
func (m *model) reachIf(condition bool, situation string) {
	if condition {
		m.reach(situation)
	}
}

func tenantOf(flow string) string { return flow[:strings.IndexByte(flow, '/')] }

func routeOf(flow string) string { return flow[strings.IndexByte(flow, '/')+1:] }

// set adds to a set that may not be there yet.
func set(sets map[string]zset, name, member string, score int64) {
	if sets[name] == nil {
		sets[name] = zset{}
	}
	sets[name][member] = score
}

// begin reads the clock; only save keeps what it became.
func (m *model) begin(at shaper.Instant) {
	m.open, m.moving = nil, nil
	m.clock = m.stored
	m.stepped = at+m.clock.off < m.clock.last
	m.reachIf(m.stepped, "clock back")
	m.clock.off = max(m.clock.off, m.clock.last-at)
	m.now = at + m.clock.off
}

func (m *model) save() {
	m.clock.last = m.now
	m.stored = m.clock
}

// wakeFor plans an earlier poll, or replaces one that is overdue.
func (m *model) wakeFor(due shaper.Instant) {
	poll := max(due.Add(-horizon/2), m.now)
	if m.clock.wake == 0 || poll < m.clock.wake || m.clock.wake < m.now.Add(-100*time.Millisecond) {
		m.clock.wake = poll
	}
}

// declare is the command of that name.
func (m *model) declare(at shaper.Instant, revision int64, b shaper.Baseline) bool {
	m.begin(at)
	if revision < m.clock.revision {
		m.reach("declared too late")
		return false
	}
	m.lines = obeyed{baseline: b, revision: revision}
	if revision != m.clock.revision {
		m.clock.revision, m.clock.scan = revision, true
		m.save()
	}
	return true
}

// load is a copy of a flow under the policies in force, retuned if its own has changed.
func (m *model) load(name string) *flow { return m.loadClaimed(name, m.flows[name].tier) }

// loadAnew is load under the policies in force, even if the flow took its own from them.
func (m *model) loadAnew(name string) *flow {
	f := m.flows[name]
	f.revision = 0
	m.flows[name] = f
	return m.load(name)
}

// loadClaimed is load for a tenant whose credential claims a tier.
func (m *model) loadClaimed(name, tier string) *flow {
	f, known := m.flows[name]
	f.name, f.fresh, f.retuned = name, !known, false
	f.planned, f.shareKnown, f.found = false, false, nil
	f.promotesKnown, f.dropsKnown, f.barred = false, false, false
	obeys := !known || f.revision != m.clock.revision || f.tier != tier
	if obeys {
		f.tier = tier
		m.obey(&f)
	}
	f.later = m.laters[name].head()
	m.join(&f)
	m.sample(&f)
	return &f
}

// sample sets what estimates know of the flow's deliveries.
func (m *model) sample(f *flow) {
	paced := f.Bucket
	paced.Ready = 0
	switch most := f.policy.Concurrency; {
	case isPool(f.name):
		return
	case most > 0 && f.Running >= most:
		f.Slots = most
		m.reach("estimated by its concurrency")
	case f.Queued > 0 && paced.Earliest() <= m.now && f.hindered.Until > m.now &&
		(f.hindered.Cause == "upstream" || f.hindered.Cause == "pool"):
		f.Slots = max(1, f.Running)
		m.reach("estimated by its slots")
	default:
		f.Slots = 0
	}
	f.Took = 0
	for _, id := range m.done[f.name][:min(shaper.Sampled, len(m.done[f.name]))] {
		if j := m.jobs[id]; j != nil && (j.State == shaper.Succeeded || j.State == shaper.Dead) && j.Stamp > 0 {
			f.Took = max(f.Took, j.At.Sub(j.Stamp))
		}
	}
}

// linesFor are the lines that a flow or a pool is to obey.
func (m *model) linesFor(flow string) (lines obeyed, tuned bool) {
	for entry, own := range m.tuned {
		if tenantOfEntry(entry) == tenantOf(flow) {
			return own, true
		}
	}
	return m.lines, false
}

// obey makes a flow obey the policies in force.
func (m *model) obey(f *flow) {
	lines, tuned := m.linesFor(f.name)
	if _, declared := lines.baseline.Pools[strings.Trim(f.name, "+/")]; isPool(f.name) && !tuned && !declared {
		m.reach("a pool of no file")
		return // its policy stays
	}
	f.revision, f.dueBefore = m.clock.revision, 0
	f.policy, f.home = lines.of(f.tier, f.name), lines.poolOf(f.name)
	if older := tuned && !isPool(f.name) && lines.revision != m.clock.revision; older { // the file in force names its pool
		if m.reachIf(m.lines.poolOf(f.name) != f.home, "own lines of an older file"); f.home == "" {
			as := m.lines.of(f.tier, f.name)
			f.policy.Weight, f.policy.Reserve = as.Weight, as.Reserve
		}
		f.home = m.lines.poolOf(f.name)
	}
	if f.fresh {
		f.Bucket = shaper.NewBucket(f.policy.Paces())
		f.segment = m.newSegment()
	} else {
		m.retune(f)
	}
}

func (m *model) retune(f *flow) {
	var changed bool
	if f.Bucket, changed = f.Retune(f.policy.Paces(), m.now); changed {
		f.Ready = max(f.Ready, f.full)
		f.retuned, f.segment = true, m.newSegment()
		m.reach("retuned")
		m.reachIf(isPool(f.name), "pool retuned")
	}
}

func (m *model) newSegment() int {
	m.segments++
	return m.segments
}

func (m *model) store(f *flow) {
	m.reachIf(f.tier != "", "in a tier")
	m.flows[f.name] = *f
}

// nextDue is the next instant at which a job of the flow may leave, never when none can.
func (f *flow) nextDue() shaper.Instant {
	switch {
	case f.policy.Paused, f.policy.Concurrency > 0 && f.Running >= f.policy.Concurrency:
		return never
	case f.Queued > 0:
		return f.Earliest()
	case f.later == never:
		return never
	}
	return max(f.Earliest(), f.later)
}

// file puts the flow under its next due instant, and plans a poll for it if wake says so.
func (m *model) file(f *flow, wake bool) {
	m.leavePool(f)
	due := f.nextDue()
	if f.pool != nil {
		m.fileInPool(f, due)
		return
	}
	if due == never {
		delete(m.due, f.name)
		return
	}
	m.due[f.name] = int64(due)
	if wake {
		m.wakeFor(due)
	}
}

func (m *model) storeAll(flows []*flow, wake bool) {
	for _, f := range flows {
		if isPool(f.name) {
			continue
		}
		m.file(f, wake)
		m.store(f)
	}
	m.savePools(wake)
}

// enqueue counts a job into the queue.
func (m *model) enqueue(f *flow, cost int64) {
	if f.Queued == 0 {
		f.Bucket = f.MarkReady(m.now)
	}
	f.queued(1, cost)
}

// become moves a job along an arrow of the state machine; there is no other way to change its
// state.
func become(j *scripts.Record, event shaper.Event) {
	to, ok := j.State.After(event)
	if !ok {
		panic(fmt.Sprintf("the model takes a job from %v by %q", j.State, event))
	}
	j.State = to
}

// finish ends a job of the flow; an empty result keeps the one it has.
func (m *model) finish(id string, f *flow, event shaper.Event, result []byte) {
	j := m.jobs[id]
	m.live(f, -jobBytes(j))
	become(j, event)
	if j.CallbackURL != "" {
		m.reach("to be called back")
		m.outbox[id] = int64(m.now)
		m.wakeFor(m.now.Add(horizon / 2))
	}
	delete(m.returned[f.name], id)
	j.At, j.Deadline = m.now, 0
	if len(result) > 0 {
		j.Result = result
	}
	if j.State == shaper.Dead {
		m.clock.dead++
	}
	if deadLetter(j) {
		m.dead(f, m.deadAlive(f)-f.deadBytes)
		m.trimDead(f.name)
		m.dead(f, jobBytes(j))
		set(m.deads, j.Flow, id, int64(m.now))
		if len(m.deads[j.Flow]) >= m.deadCapacity || f.deadBytes >= m.deadBytes {
			m.reachIf(len(m.deads[j.Flow]) >= m.deadCapacity, "full of dead letters")
			m.reachIf(len(m.deads[j.Flow]) < m.deadCapacity, "full of bytes of dead letters")
			f.full = m.deads[j.Flow].head().Add(retention.Dead)
			f.Bucket = f.MarkReady(f.full)
		}
	} else {
		j.Payload = nil
		c := m.classes[f.class]
		f.answers = f.answers.Add(m.now, retention.Finished, jobBytes(j)-keyBytes(j))
		c.Answers = c.Answers.Add(m.now, retention.Finished, jobBytes(j)-keyBytes(j))
		longer := keyBytes(j)
		if j.CallbackURL != "" && j.Epoch == 0 {
			m.reach("called back unsent")
			longer += callbackBytes + jobBytes(j) - keyBytes(j)
		}
		if longer > 0 {
			f.keys = f.keys.Add(m.now, retention.Idempotency, longer)
			c.Keys = c.Keys.Add(m.now, retention.Idempotency, longer)
		}
		if f.class != "" {
			m.classes[f.class] = c
		}
		list := append([]string{id}, m.done[j.Flow]...)
		m.done[j.Flow] = list[:min(len(list), 1000)]
	}
	key := tenantOf(j.Flow) + ":" + j.Idem
	if known := m.idem[key]; j.Idem != "" && strings.HasPrefix(known, id+" ") {
		m.idem[key] = fmt.Sprintf("%s %c %d %d %d %d", idAndPrint(known), j.State, j.Created, m.now,
			j.Attempts, j.MaxAttempts)
	}
}

// deadLetter reports whether a job is dead and can be replayed.
func deadLetter(j *scripts.Record) bool {
	return j.State == shaper.Dead && scripts.Outcome(j.Outcome) != scripts.OutcomeFailed
}

// idAndPrint is the part of an idempotency value that never changes.
func idAndPrint(known string) string { return strings.Join(strings.Fields(known)[:2], " ") }

// giveBack returns a leased job to the queue under its old sequence.
func (m *model) giveBack(id string, f *flow, event shaper.Event) {
	j := m.jobs[id]
	become(j, event)
	m.cameBack(id, f)
	m.enqueue(f, j.Cost)
	m.countIn(f, j)
	set(m.queue, f.name, id, j.Seq)
	if j.Deadline > 0 {
		m.expires[id] = int64(j.Deadline)
	}
}

// cameBack keeps since when a job could have left at the first time.
func (m *model) cameBack(id string, f *flow) {
	if _, before := m.returned[f.name][id]; !before {
		set(m.returned, f.name, id, int64(m.jobs[id].At))
	}
}

// oldest is since when the oldest job of the flow could have left, 0 for none.
func (m *model) oldest(name string) shaper.Instant {
	since := m.returned[name].head()
	if queue := m.queue[name].list(); len(queue) > 0 {
		since = min(since, m.jobs[queue[0].Name].At)
	}
	if due := m.laters[name].head(); due <= m.now {
		since = min(since, due)
	}
	if since == never {
		return 0
	}
	return since
}

// countIn adds a job to the depth again.
func (m *model) countIn(f *flow, j *scripts.Record) {
	m.waits(f, 1, size(j))
}

// live counts bytes of waiting and leased jobs, dead those of dead letters.
func (m *model) live(f *flow, bytes int64) {
	f.live += bytes
	m.clock.stored += bytes
	m.ofClass(f.class, bytes)
}

// ofClass counts bytes that are stored of a class.
func (m *model) ofClass(class string, bytes int64) {
	if class != "" && bytes != 0 {
		c := m.classes[class]
		c.Stored = max(0, c.Stored+bytes)
		m.classes[class] = c
	}
}

// classify moves what is stored of a flow to another class; empty for none.
func (m *model) classify(f *flow, class string) {
	if class == f.class {
		return
	}
	m.reachIf(f.class != "", "left its class")
	bytes := f.live + f.deadBytes
	m.ofClass(f.class, -bytes)
	m.ofClass(class, bytes)
	if f.class != "" {
		delete(m.members[f.class], tenantOf(f.name))
	}
	if f.class = class; class != "" {
		if m.members[class] == nil {
			m.members[class] = map[string]bool{}
		}
		m.members[class][tenantOf(f.name)] = true
	}
}

// lapse subtracts the dead letters past retention.
func (m *model) lapse(f *flow) {
	if alive := m.deadAlive(f); alive < f.deadBytes {
		m.dead(f, alive-f.deadBytes)
		m.trimDead(f.name)
		m.reach("lapsed")
	}
}

func (m *model) trimDead(flow string) {
	maps.DeleteFunc(m.deads[flow], func(_ string, at int64) bool {
		return at <= int64(m.now.Add(-retention.Dead))
	})
}

func (m *model) dead(f *flow, bytes int64) {
	f.deadBytes += bytes
	m.clock.stored += bytes
	m.ofClass(f.class, bytes)
}

// deadAlive is what is left of the dead letters: those past retention count for their part.
func (m *model) deadAlive(f *flow) int64 {
	all, left := len(m.deads[f.name]), 0
	for _, at := range m.deads[f.name] {
		if at > int64(m.now.Add(-retention.Dead)) {
			left++
		}
	}
	if all == 0 {
		return 0
	}
	m.reachIf(left < all, "dead letters past retention")
	return int64(math.Floor(float64(f.deadBytes) * (float64(left) / float64(all))))
}

// storedOf is all that is stored of a flow.
func (m *model) storedOf(f *flow) int64 {
	return f.live + m.deadAlive(f) + f.answers.Left(m.now, retention.Finished) + f.keys.Left(m.now,
		retention.Idempotency)
}

// What Redis keeps beside the texts of a record, of an idempotency key and of a callback.
const recordBytes, idempotencyBytes, callbackBytes = 256, 256, 1024

func keyBytes(j *scripts.Record) int64 {
	if j.Idem == "" {
		return 0
	}
	return idempotencyBytes + int64(len(j.Flow))
}

// jobBytes is what a job takes in the store.
func jobBytes(j *scripts.Record) int64 {
	const written = 56 // by the script: the head up to the cost, where Rest begins
	rest, err := j.Rest()
	if err != nil {
		panic(err)
	}
	return int64(recordBytes+written+len(rest)+len(j.Result)) + keyBytes(j)
}

func size(j *scripts.Record) int64 { return int64(len(j.Payload)) }

// deadLeft counts out a dead letter that has left, and lets a flow go on that had stopped for them.
func (m *model) deadLeft(f *flow, bytes int64) {
	if len(m.deads[f.name]) == 0 {
		bytes = f.deadBytes
	}
	m.dead(f, -min(bytes, f.deadBytes))
	if f.full != 0 && len(m.deads[f.name]) < m.deadCapacity && f.deadBytes < m.deadBytes {
		m.reach("went on after a dead letter left")
		f.full, f.Ready = 0, m.now
	}
}

// leave takes a waiting job out of its place.
func (m *model) leave(id string, f *flow) {
	j := m.jobs[id]
	if j.State == shaper.Queued {
		delete(m.queue[f.name], id)
		f.queued(-1, j.Cost)
	} else {
		delete(m.laters[f.name], id)
	}
	delete(m.expires, id)
	m.waits(f, -1, size(j))
}

// chargeFree counts a hold or an expired lease and reports whether no attempt is left.
func chargeFree(j *scripts.Record) bool {
	if j.FreeLeases < shaper.FreeLeases {
		j.FreeLeases++
		return false
	}
	j.Attempts++
	return j.Attempts >= j.MaxAttempts
}

// place is the position and the estimated start of a queued job.
func (m *model) place(id string, f *flow) (position int64, start shaper.Instant) {
	rank := m.queue[f.name].rank(id)
	if m.paused(f).Paused {
		return rank + 1, 0
	}
	return rank + 1, f.StartIn(m.shared(f, 0, 0), rank, m.costsAhead(f, rank), m.now)
}

// costsAhead is what the first jobs of the queue cost, by the mean of the others after the eighth.
func (m *model) costsAhead(f *flow, rank int64) (sum int64) {
	known := int64(0)
	if f.Cost != f.Queued {
		known = min(rank, 8)
		for _, e := range m.queue[f.name].list()[:known] {
			sum += m.jobs[e.Name].Cost
		}
	}
	return sum + (rank-known)*max(f.Cost-sum, 0)/max(f.Queued-known, 1)
}

// facts is what every answer says of a flow.
func (m *model) facts(f *flow, outcome shaper.Outcome) shaper.Admission {
	a := shaper.Admission{
		Outcome: outcome, Now: m.now, Depth: f.Depth, Capacity: f.policy.Capacity, Bytes: f.Bytes,
		CapacityBytes: f.policy.CapacityBytes, Remaining: max(0, f.policy.Capacity-f.Depth),
		Rate: f.policy.DrainRate(),
	}
	if next := f.StartIn(m.shared(f, 0, 0), 0, 0, m.now); f.Queued > 0 && !m.paused(f).Paused && next != 0 {
		a.NextSlot = next.Sub(m.now)
	}
	return a
}

func instants(z zset) (list []shaper.Instant) {
	for _, m := range z.list() {
		list = append(list, shaper.Instant(m.Score))
	}
	return list
}
