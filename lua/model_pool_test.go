package lua_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// The bounds of a poll of a pool.
const oldestMost, newestMost, triesMore, comingMost = 80, 20, 50, 16

// pooled is a pool of the model.
type pooled struct {
	flow                 // its bucket, and sums over its flows
	virtual, behind      int64
	pauses               shaper.Pauses
	refusals             shaper.Refusals
	asked, refused       string // as stored; empty before the first
	weights, reserves    int64
	maxCost, earlier     int64
	changed, ahead       shaper.Instant
	spared               int64
	wait, ready, reserve zset
	moved                map[string]bool // candidates of the poll under way
	crowded              bool            // flows wait that the poll under way has not read
	classes              map[string]*poolClass
	awaited              map[string]shaper.Awaited // by class, whose virtual start is in place of departures
}

// poolClass is a class of flows in a pool: those of the tenants that claim a tier.
type poolClass struct {
	shaper.Tag
	last            shaper.Instant // for which it was a candidate, or before which it is none
	weight, counted int64
	owed            int64
	line            zset // its flows
}

// class is a class of the pool, which has this weight from now on.
func (p *pooled) class(name string, weight int64) *poolClass {
	c := p.classes[name]
	if c == nil {
		c = &poolClass{Tag: shaper.Tag{Start: p.virtual}, line: zset{}}
		p.classes[name] = c
	}
	c.weight, c.Rem = weight, min(c.Rem, weight-1)
	return c
}

// candidate is the class as the pool picks it.
func (c *poolClass) candidate() shaper.Candidate {
	return shaper.Candidate{Weight: c.weight, Tag: c.Tag}
}

// party is whom the pool counts refusals of the flow for: its tenant, or its class.
func (f *flow) party() string {
	if class := f.inClass(); class != "" {
		return "/" + class
	}
	return tenantOf(f.name)
}

// inClass is the class of a flow in its pool, empty for none.
func (f *flow) inClass() string {
	if f.home == "" || f.policy.ClassWeight == 0 {
		return ""
	}
	return f.tier
}

// turnWeight is the weight of the flow's own turn: 0 where its class has the turn.
func (f *flow) turnWeight() int64 {
	if f.inClass() != "" {
		return 0
	}
	return f.policy.Weight
}

// turn is the turn of a flow in its pool.
type turn struct {
	shaper.Tag
	pool    string // as +NAME; empty for none
	filed   bool
	weight  int64
	reserve shaper.Rate
}

func (t turn) String() string {
	filed := "-"
	if t.filed {
		filed = "+"
	}
	took := 0
	if t.Reserved {
		took = 1
	}
	text := fmt.Sprintf("%s%s %d %d %d", filed, t.pool, t.Start, t.Rem, t.weight)
	if t.reserve.Limit == 0 {
		return text
	}
	return text + fmt.Sprintf(" %d:%d:%d:%d:%d:%d", t.reserve.Limit, t.reserve.Period.Microseconds(), t.Tag.Reserve.TAT, t.Tag.Reserve.Rem, t.Tag.Reserve.Credit, took)
}

func isPool(name string) bool { return strings.HasPrefix(name, "+") }

// poolOf is the pool that a flow is in, as +NAME; empty for none.
func (o obeyed) poolOf(flow string) string {
	if isPool(flow) {
		return ""
	}
	if name := o.baseline.PoolOf(routeOf(flow)); name != "" {
		return "+" + name
	}
	return ""
}

// line is the line of a flow's policy.
func (o obeyed) line(flow string, p shaper.Policy) string { return lineIn(o.poolOf(flow), p) }

// lineIn is the line of the policy of a flow in a pool; empty for none.
func lineIn(pool string, p shaper.Policy) string {
	if pool != "" {
		return scripts.EncodePooled(p, pool)
	}
	return scripts.EncodePolicy(p)
}

// sums are the counts of a flow that its pool adds up.
type sums struct{ depth, bytes, running, queued, cost, owed int64 }

func (f *flow) sums() sums { return sums{f.Depth, f.Bytes, f.Running, f.Queued, f.Cost, f.owed} }

// add adds the counts of a flow to those of a pool, or subtracts them.
func (p *pooled) add(s sums, sign int64) {
	p.Depth += sign * s.depth
	p.Bytes += sign * s.bytes
	p.Running += sign * s.running
	p.Queued += sign * s.queued
	p.Cost += sign * s.cost
	p.owed += sign * s.owed
}

// leaving is a flow whose route has left a pool for another one or for none; either may be none.
type leaving struct {
	from, to *pooled
	turn     turn
	line     string // its class there
	sums     sums
	filed    bool
}

// left moves the counts of a flow. They come back if the command does not file it.
func (m *model) left(f *flow, from *pooled, before turn) {
	l := &leaving{from: from, to: f.pool, turn: before, line: f.line, sums: f.sums()}
	f.line = ""
	l.move(1)
	f.left, m.moving = l, append(m.moving, l)
}

func (l *leaving) move(sign int64) {
	if l.from != nil {
		l.from.add(l.sums, -sign)
	}
	if l.to != nil {
		l.to.add(l.sums, sign)
	}
}

// leavePool takes a flow out of the indexes of the pool that it has left.
func (m *model) leavePool(f *flow) {
	l := f.left
	if f.left = nil; l == nil {
		return
	}
	l.filed = true
	m.reachIf(l.sums.depth > 0, "took its jobs to another pool")
	if l.from == nil {
		return
	}
	m.reach("left its pool")
	if l.turn.filed {
		l.from.weights -= l.turn.weight
		l.from.reserves -= shaper.ReserveMicro(l.turn.reserve)
	}
	delete(l.from.wait, f.name)
	delete(l.from.ready, f.name)
	delete(l.from.reserve, f.name)
	delete(l.from.moved, f.name)
	if l.line != "" {
		m.reach("left its class in a pool")
		delete(l.from.classes[l.line].line, f.name)
	}
}

// linesOf are the lines of a tenant with settings of its own, or of a pool.
func (o obeyed) linesOf(tenant string) scripts.Lines {
	if isPool(tenant) {
		return scripts.Lines{"/": scripts.EncodePolicy(o.of("", tenant+"/"))}
	}
	return o.lines()
}

// pool is a pool as the command under way sees it.
func (m *model) pool(name string) *pooled {
	if p := m.open[name]; p != nil {
		return p
	}
	p := &pooled{wait: zset{}, ready: zset{}, reserve: zset{}, classes: map[string]*poolClass{}, awaited: map[string]shaper.Awaited{}}
	if stored := m.pools[name]; stored != nil {
		*p = *stored
		p.moved, p.crowded = map[string]bool{}, false
	}
	p.flow = *m.loadClaimed(name+"/", "")
	for _, c := range p.classes {
		if c.last > m.now+2_000_000 {
			c.last = p.Last
		}
	}
	p.rebound(m.now)
	if m.limit(&p.flow, p.maxCost, p.ahead) {
		m.reach("brought back")
	}
	if m.open == nil {
		m.open = map[string]*pooled{}
	}
	m.open[name] = p
	return p
}

// pacing is the pool in the arithmetic of shaper.
func (p *pooled) pacing() shaper.Pool {
	return shaper.Pool{Bucket: p.Bucket, Virtual: p.virtual, Behind: p.behind, MaxCost: p.maxCost,
		Earlier: p.earlier, Changed: p.changed, Ahead: p.ahead, Owed: p.owed, Spared: p.spared}
}

// limit brings a pool back that is further ahead than a job of the cost may take it, and beyond
// ahead, and reports whether it was.
func (m *model) limit(f *flow, cost int64, ahead shaper.Instant) bool {
	before := f.Cells
	f.Bucket = f.Limit(cost, ahead, m.now)
	cut := !slices.Equal(before, f.Cells)
	m.corrected[f.name] = m.corrected[f.name] || cut
	return cut
}

// rebound gives the pool the bound of costs of its policy.
func (p *pooled) rebound(now shaper.Instant) {
	bounded := p.pacing().Bounded(p.policy.PoolCost(), p.Running, now)
	p.maxCost, p.earlier, p.changed, p.ahead = bounded.MaxCost, bounded.Earlier, bounded.Changed, bounded.Ahead
}

// chargeOf is what counts in the pool of a cost of a job that has departed.
func (m *model) chargeOf(p *pooled, j *scripts.Record, cost int64) int64 {
	charge := p.pacing().ChargeOf(cost, j.Stamp)
	m.reachIf(charge < cost, "cut in its pool")
	m.reachIf(charge < p.pacing().Charge(cost), "cut by an earlier bound")
	return charge
}

// join gives a loaded flow its pool.
func (m *model) join(f *flow) {
	f.pool, f.left = nil, nil
	name, before := f.home, f.turn
	if name != "" {
		f.pool = m.pool(name)
	}
	if before.pool != name {
		var from *pooled
		if before.pool != "" {
			from = m.pool(before.pool)
		}
		f.turn = turn{}
		m.left(f, from, before)
	}
	if name == "" {
		return
	}
	if f.turn.pool != name {
		f.turn = turn{pool: name, weight: 1, Tag: shaper.Tag{Start: f.pool.virtual}}
	}
	f.dueBefore, f.candidate = 0, false
	if f.turn.filed && f.Queued > 0 && !f.retuned && f.turn.weight == f.turnWeight() && f.turn.reserve == f.policy.Reserve &&
		f.line == f.inClass() && (f.line == "" || f.pool.classes[f.line].weight == f.policy.ClassWeight) {
		f.dueBefore = f.Earliest()
	}
}

// count changes the sums of the flow's pool.
func (f *flow) count(change func(p *pooled)) {
	if f.pool != nil {
		change(f.pool)
	}
}

// run counts n more leased jobs of a flow, depart n more departures.
func (m *model) run(f *flow, n int64) {
	f.Running += n
	m.clock.running += n
	f.count(func(p *pooled) { p.Running += n })
}

// charge counts what departures of a flow cost its pool beyond one each.
func (f *flow) charge(extra int64) {
	f.extra += extra
	f.count(func(p *pooled) { p.extra += extra })
}

func (m *model) depart(f *flow, n int64) {
	f.departed += n
	m.clock.departed += n
	f.count(func(p *pooled) { p.departed += n })
}

// queued counts n more queued jobs of a flow, each of the cost.
func (f *flow) queued(n, cost int64) {
	f.Queued += n
	f.Cost += n * cost
	f.count(func(p *pooled) { p.Queued, p.Cost = p.Queued+n, p.Cost+n*cost })
}

// waits counts n more waiting jobs, each of that many bytes.
func (m *model) waits(f *flow, n, bytes int64) {
	f.Depth, f.Bytes = f.Depth+n, f.Bytes+n*bytes
	m.clock.depth, m.clock.bytes = m.clock.depth+n, m.clock.bytes+n*bytes
	f.count(func(p *pooled) { p.Depth, p.Bytes = p.Depth+n, p.Bytes+n*bytes })
}

// shared is the pool of a flow as its admission sees it; nil for none.
func (m *model) shared(f *flow, size, bytes int64) *shaper.Shared {
	if f.pool == nil {
		return nil
	}
	s := &shaper.Shared{
		Flow: f.pool.Flow, Policy: f.pool.policy, Size: size, Bytes: bytes, Weight: f.policy.Weight, Reserve: f.policy.Reserve,
		Weights: f.pool.weights, ReservesMicro: f.pool.reserves, Owing: f.owed, Owed: f.pool.owed,
	}
	if most := s.Policy.Concurrency; most > 0 && s.Running >= most {
		s.Slots = most
	}
	s.Took = f.Took
	if name := f.inClass(); name != "" {
		s.Weight, s.Reserve = f.policy.ClassWeight, shaper.Rate{}
		c := f.pool.classes[name]
		if c != nil {
			s.Members = int64(len(c.line))
			s.Owing += c.owed
		}
		if f.line != name {
			s.Members++
		}
		if c == nil || c.counted == 0 {
			s.Weights += s.Weight
		}
	} else if !f.turn.filed {
		s.Weights += s.Weight
		s.ReservesMicro += shaper.ReserveMicro(s.Reserve)
	}
	return s
}

// fileInPool files a flow in its pool under its next possible stamp, never for none; one that owes,
// at once.
func (m *model) fileInPool(f *flow, due shaper.Instant) {
	p, t, class := f.pool, &f.turn, f.inClass()
	if f.owed > 0 {
		m.reach("owes to its pool")
		m.reachIf(due == never, "owes without a job")
		due = min(due, max(m.now, f.Ready))
	}
	if due != never && f.dueBefore != 0 && (due == f.dueBefore || f.candidate && due <= m.now) {
		m.reach("kept in its pool")
		m.reachIf(due != f.dueBefore, "corrected in its pool")
		return
	}
	if p.moved[f.name] && t.filed && due <= p.Last && t.weight == f.turnWeight() && t.reserve == f.policy.Reserve {
		m.reach("kept as a candidate")
		return
	}
	delete(p.moved, f.name)
	if t.filed {
		p.weights -= t.weight
		p.reserves -= shaper.ReserveMicro(t.reserve)
		delete(p.ready, f.name)
		delete(p.reserve, f.name)
		if class != "" {
			m.reachIf(f.line == "", "joined a class")
			delete(p.wait, f.name)
		}
	}
	t.filed = due != never
	t.weight, t.reserve, t.Tag = f.turnWeight(), f.policy.Reserve, shaper.Pool{Behind: p.behind}.Obey(t.Tag, max(1, f.turnWeight()), f.policy.Reserve, m.now)
	if f.line != "" && (!t.filed || f.line != class) {
		m.reachIf(t.filed, "left its class in a pool")
		delete(p.classes[f.line].line, f.name)
		f.line = ""
	}
	if t.filed && class != "" {
		m.reach("in a class")
		p.class(class, f.policy.ClassWeight).line[f.name] = int64(due)
		f.line = class
		return
	}
	if !t.filed {
		delete(p.wait, f.name)
		return
	}
	p.weights += t.weight
	p.reserves += shaper.ReserveMicro(t.reserve)
	p.wait[f.name] = int64(due)
}

// current brings the flow's turn up to date with the indexes, and returns it as the pool picks it,
// or its class with its name; false if it has no turn.
func (m *model) current(f *flow) (c shaper.Candidate, class string, ok bool) {
	p, t := f.pool, &f.turn
	if t.weight == 0 {
		if class = f.inClass(); class == "" {
			return c, "", false
		}
		return p.class(class, f.policy.ClassWeight).candidate(), class, true
	}
	start, candidate := p.ready[f.name]
	if f.candidate = t.filed && candidate; f.candidate && t.Start != start {
		t.Start, t.Rem = start, 0
	}
	if tat, ok := p.reserve[f.name]; ok && t.filed && int64(t.Tag.Reserve.TAT) != tat {
		t.Tag.Reserve.TAT, t.Tag.Reserve.Rem = shaper.Instant(tat), 0
	}
	return shaper.Candidate{Weight: t.weight, Tag: t.Tag}, "", true
}

// exceed takes a cost above what a departure was charged for, and returns the part that counts at
// once.
func (m *model) exceed(f *flow, charged, actual int64) int64 {
	p, owed := f.pool, &f.owed
	if _, class, ok := m.current(f); ok && class != "" {
		owed = &p.classes[class].owed
		m.reach("a class owes to its pool")
	}
	pacing, counts := p.pacing().Exceed(*owed, charged, actual, m.now)
	p.Bucket, p.ahead, p.owed = pacing.Bucket, pacing.Ahead, pacing.Owed
	*owed += actual - counts
	m.reachIf(counts > charged, "paid at once")
	return counts
}

// correctTurn replaces the cost that the flow's turn was charged for by the actual one.
func (m *model) correctTurn(f *flow, charged, actual int64, idle bool) {
	p, t := f.pool, &f.turn
	candidate, class, ok := m.current(f)
	if !ok {
		return
	}
	if class != "" {
		m.reach("corrected for its class")
		c := p.classes[class]
		c.Tag = p.pacing().CorrectTag(candidate, charged, actual, c.counted == 0, m.now)
		return
	}
	t.Tag = p.pacing().CorrectTag(candidate, charged, actual, idle, m.now)
	m.reachIf(t.Reserved, "the reserve pays")
	m.reachIf(t.Tag.Reserve.Credit > 0, "credit of a reserve")
	m.reachIf(f.candidate && t.Start < p.virtual, "refunded below the virtual time")
	m.reachIf(idle && actual < charged, "refunded after it was idle")
	if f.candidate {
		p.moved[f.name] = true // to its new place
		p.ready[f.name] = t.Start
		if t.reserve != (shaper.Rate{}) {
			p.reserve[f.name] = int64(t.Tag.Reserve.TAT)
		}
	}
}

// savePools keeps the pools that the command has read, and files them.
func (m *model) savePools(wake bool) {
	for _, l := range m.moving {
		if !l.filed {
			m.reach("stays in its pool for now")
			l.move(-1)
		}
	}
	m.moving = nil
	for _, name := range slices.Sorted(maps.Keys(m.open)) {
		p := m.open[name]
		if p.fresh {
			m.name(p.name)
			p.fresh = false
		}
		p.saveClasses(m)
		p.rebound(m.now)
		p.noteAnswers()
		m.pools[name] = p
		m.flows[p.name] = p.flow
		due := never
		switch {
		case p.policy.Paused, p.policy.Concurrency > 0 && p.Running >= p.policy.Concurrency:
		case p.crowded:
			due = m.now
		case len(p.ready) > 0, p.classOwes():
			due = p.Earliest()
		default:
			if due = p.wait.head(); len(p.classes) > 0 {
				due = min(due, p.lineHead())
			}
			if due != never {
				due = max(p.Earliest(), due)
			}
		}
		if due == never {
			delete(m.due, p.name)
			continue
		}
		m.due[p.name] = int64(due)
		if wake {
			m.wakeFor(due)
		}
	}
}

// saveClasses counts the classes that have flows, and forgets those that have none and are not
// ahead.
func (p *pooled) saveClasses(m *model) {
	for name, c := range p.classes {
		counted := int64(0)
		if len(c.line) > 0 {
			counted = c.weight
		}
		p.weights += counted - c.counted
		if c.counted = counted; counted == 0 && c.owed == 0 && c.Start <= p.virtual {
			m.reach("class forgotten")
			delete(p.classes, name)
		}
		m.reachIf(counted == 0 && c.Start > p.virtual, "class ahead")
	}
}

// classOwes reports whether a class of the pool owes to it.
func (p *pooled) classOwes() bool {
	for _, c := range p.classes {
		if c.owed > 0 {
			return true
		}
	}
	return false
}

// lineHead is the first instant at which a flow of a class may leave.
func (p *pooled) lineHead() shaper.Instant {
	head := never
	for _, c := range p.classes {
		if len(c.line) > 0 {
			head = min(head, max(c.line.head(), c.last))
		}
	}
	return head
}

// classesText is how the pool stores its classes.
func (p *pooled) classesText() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(p.classes)) {
		c := p.classes[name]
		list = append(list, fmt.Sprintf("%s %d %d %d %d %d %d", name, c.Start, c.Rem, c.last, c.weight, c.counted, c.owed))
	}
	return strings.Join(list, " ")
}

// pooling is a poll of a pool under way.
type pooling struct {
	*polling
	p                    *pooled
	wait, ready, reserve zset
	lines                map[string]zset // by class
	turns                map[string]turn
	moved                map[string]bool
	kept                 map[string]bool // put off
	lined                map[string]bool // in the line of its route since this poll
	more                 bool            // flows wait that the poll has not read
	barred               bool            // a flow must wait for a later poll
}

func first(z zset) (name string, ok bool) {
	list := z.list()
	if len(list) == 0 {
		return "", false
	}
	return list[0].Name, true
}

// enter makes the flows candidates for a slot that wait for an instant up to limit.
func (g *pooling) enter(limit, slot shaper.Instant) {
	join := func(name string, t turn) {
		g.keep(name, t)
		g.ready[name] = t.Start
		if t.reserve != (shaper.Rate{}) {
			g.reserve[name] = int64(t.Tag.Reserve.TAT)
		}
		delete(g.wait, name)
		g.moved[name] = true
	}
	var entering []string
	for _, name := range g.wait.upTo(limit, len(g.wait)) {
		last := g.model.flows[name].Last
		if f := g.polling.flows[name]; f != nil {
			last = f.Last
		}
		t := g.turn(name)
		stays := last == g.p.Last && last > 0
		if entered := g.p.pacing().Enter(t.Tag, slot); stays && t.Start <= entered.Start {
			join(name, t)
		} else {
			entering = append(entering, name)
		}
	}
	if name, ok := first(g.reserve); ok {
		t := g.turn(name)
		if score := shaper.Instant(g.reserve[name]); t.Tag.Reserve.TAT != score {
			t.Tag.Reserve.TAT, t.Tag.Reserve.Rem = score, 0
		}
		g.keep(name, t)
		before := g.p.behind
		g.p.behind = g.p.pacing().Advance(t.Tag, slot).Behind
		g.reachIf(g.p.behind != before, "reserves degrade")
	}
	for _, name := range entering {
		t := g.turn(name)
		t.Tag = g.p.pacing().Enter(t.Tag, slot)
		join(name, t)
	}
}

// keep changes the turn of a flow, which is stored if the poll stores the flow.
func (g *pooling) keep(name string, t turn) {
	g.turns[name] = t
	if f := g.polling.flows[name]; f != nil && f.planned {
		f.turn = t
	}
}

// turn is the turn of a flow as the poll sees it.
func (g *pooling) turn(name string) turn {
	if t, ok := g.turns[name]; ok {
		return t
	}
	return g.model.flows[name].turn
}

// slots is the most jobs, of cost 1, that the paces may let leave from one instant to another.
func slots(b shaper.Bucket, from, to shaper.Instant) int {
	most := float64(flowJobsMost)
	for _, c := range b.Cells {
		span := float64(to + 1 - max(c.TAT, from.Add(-shaper.Slack)))
		n := math.Floor(span*float64(c.Rate.Limit)/float64(c.Rate.Period.Microseconds())) + float64(c.Burst)
		most = min(most, max(0, n))
	}
	return int(most)
}

// leasePool lets jobs of a pool's flows leave; stopped reports that more may be ready.
func (l *polling) leasePool(p *pooled, budget int) (left int, stopped bool) {
	most := min(budget, flowJobsMost)
	if p.policy.Concurrency > 0 {
		most = min(most, int(p.policy.Concurrency-p.Running))
	}
	if p.policy.Paused || most <= 0 {
		return 0, false
	}
	limit := l.now.Add(horizon)
	tries := min(most, slots(p.Bucket, l.earliest(), limit)) + triesMore
	looks, linedUp := 0, map[string]bool{}
	// lined puts a flow of a full route into its line, unless the poll has looked at few of them.
	lined := func(name string, wait zset) bool {
		if !l.full(name) || l.flows[name] != nil {
			return false
		}
		if looks++; looks <= looksMost {
			return false
		}
		l.reach("in a line of a pool")
		linedUp[name] = true
		wait[name] = int64(l.join(routeOf(name), limit))
		l.grant.PutOff++
		return true
	}
	g := &pooling{polling: l, p: p, wait: zset{}, ready: zset{}, reserve: zset{}, turns: map[string]turn{}, moved: map[string]bool{}, kept: map[string]bool{}, lines: map[string]zset{}, lined: linedUp}
	waiting := p.wait.upTo(limit, len(p.wait))
	// It is not known of exactly as many that there are no others.
	if n := len(waiting); n >= oldestMost+newestMost {
		g.more = true
		l.reach("more flows than a poll moves")
		waiting = slices.Concat(waiting[:oldestMost], waiting[n-newestMost:])
	}
	for _, name := range waiting {
		if at := p.wait[name]; !lined(name, p.wait) {
			g.wait[name] = at
		}
	}
	for _, name := range p.reserve.upTo(never, tries+1) {
		g.reserve[name] = p.reserve[name]
	}
	for _, name := range p.ready.upTo(never, tries+1) {
		if g.ready[name] = p.ready[name]; lined(name, p.wait) {
			for _, index := range []zset{p.ready, p.reserve, g.ready, g.reserve} {
				delete(index, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.classes)) {
		c := p.classes[name]
		g.lines[name] = zset{}
		for _, flow := range c.line.upTo(limit, tries+1) {
			if at := c.line[flow]; !lined(flow, c.line) {
				g.lines[name][flow] = at
			}
		}
	}
	for left < most && tries > 0 {
		eligible := shaper.Instant(0)
		if len(g.ready) == 0 {
			eligible = g.wait.head()
			for name := range g.lines {
				eligible = min(eligible, g.lineHead(name))
				if p.classes[name].owed > 0 {
					eligible = 0
				}
			}
			if eligible == never {
				break
			}
		}
		slot := p.Stamp(eligible, l.earliest())
		if slot > limit {
			break
		}
		g.enter(slot, slot)
		due := g.enterClasses(slot)
		tries--
		if g.next(slot, due) {
			left++
		}
		for _, name := range due {
			p.classes[name].last = max(p.classes[name].last, p.Last)
		}
	}
	if g.more {
		slot := min(p.Stamp(0, l.earliest()), limit)
		g.enter(slot, slot)
		p.crowded = true
	}
	for name := range g.moved {
		t := g.turns[name]
		delete(p.wait, name)
		p.ready[name] = t.Start
		if t.reserve != (shaper.Rate{}) {
			p.reserve[name] = int64(t.Tag.Reserve.TAT)
		}
	}
	p.moved = g.moved
	return left, left == most || tries <= 0 || g.barred || g.more
}

// lineHead is when a class may leave, never if no flow of it waits.
func (g *pooling) lineHead(class string) shaper.Instant {
	if len(g.lines[class]) == 0 {
		return never
	}
	return max(g.lines[class].head(), g.p.classes[class].last)
}

// enterClasses returns the classes that are candidates for a slot, sorted.
func (g *pooling) enterClasses(slot shaper.Instant) (due []string) {
	for _, name := range slices.Sorted(maps.Keys(g.lines)) {
		c := g.p.classes[name]
		if g.lineHead(name) > slot && c.owed == 0 {
			continue
		}
		if entered := g.p.pacing().Enter(c.Tag, slot); c.last != g.p.Last || c.Start > entered.Start {
			c.Tag = entered
		}
		due = append(due, name)
	}
	return due
}

// next lets the flow whose turn it is use the slot, and reports whether a job left. The classes are
// those that are candidates.
func (g *pooling) next(slot shaper.Instant, classes []string) bool {
	name, reserved := first(g.reserve)
	score, class := g.reserve[name], ""
	if reserved = reserved && score <= int64(slot)-g.p.behind; !reserved {
		var ready bool
		name, ready = first(g.ready)
		score = g.ready[name]
		for _, k := range classes {
			if start := g.p.classes[k].Start; !ready || start < score {
				ready, class, score = true, k, start
				name, _ = first(g.lines[k])
			}
		}
	}
	if class != "" && g.p.classes[class].owed > 0 {
		c, until := g.p.classes[class], shaper.Instant(0)
		if len(classes) == 1 && len(g.ready) == 0 && !g.more {
			until = g.p.pacing().Next(c.candidate(), slot, slot+20_000, g.coming(slot, classes))
			g.reachIf(until > 0, "repays until another comes")
		}
		g.repay(&c.owed, c.candidate(), &c.Tag, false, slot, until)
		return false
	}
	if class != "" {
		delete(g.lines[class], name)
	} else {
		delete(g.ready, name)
		delete(g.reserve, name)
		delete(g.moved, name)
	}
	known := g.polling.flows[name] != nil && g.polling.flows[name].planned
	f := g.touch(name)
	if !known && f.pool == g.p {
		f.planned, f.dueBefore = true, 0
		if t, ok := g.turns[name]; ok {
			f.turn = t
		}
	}
	others := len(g.ready) + len(classes)
	if class != "" {
		others--
	}
	served := g.serve(f, slot, score, reserved, !reserved && others == 0 && !g.more, class, classes)
	g.turns[name] = f.turn
	due := f.nextDue()
	if f.owed > 0 {
		due = max(slot, f.Ready)
	}
	if f.pool == g.p && due != never && f.barred {
		g.barred = true
	} else if f.pool == g.p && due != never && !g.kept[name] {
		if class != "" {
			g.lines[class][name] = int64(due)
		} else {
			g.wait[name] = int64(due)
		}
	}
	return served
}

// serve lets the next job of a flow leave that was picked at the score. alone says that it is the
// only candidate. class is its class, empty for none, of those that are candidates.
func (g *pooling) serve(
	f *flow, slot shaper.Instant, score int64, reserved, alone bool, class string, classes []string,
) bool {
	if f.pool == g.p && f.owed > 0 {
		next := shaper.Instant(0)
		if alone {
			next = g.p.pacing().Next(shaper.Candidate{Tag: shaper.Tag{Start: score}}, slot, slot+20_000, g.coming(slot, classes))
			g.reachIf(next > 0, "repays until another comes")
		}
		candidate, tag := g.candidate(f, score, reserved, class)
		g.repay(&f.owed, candidate, tag, reserved, slot, next)
		return false
	}
	if f.pool != g.p || f.nextDue() > slot || g.bounded(f) {
		return false
	}
	id, found := g.take(f, slot, func(cost int64) bool { return alone && g.spares(f, class, score, cost, slot, classes) })
	if id == "" {
		return false
	}
	g.reachIf(reserved, "reserved")
	g.reachIf(!reserved && len(g.ready) > 0, "shared by weight")
	j := g.jobs[id]
	candidate, tag := g.candidate(f, score, reserved, class)
	g.stamp(f, id, slot)
	g.reachCells("pool ", g.p.Bucket, j)
	charge := g.p.pacing().Charge(j.Cost)
	g.reachIf(charge < j.Cost, "charged less in its pool")
	g.reachIf(class != "" && len(g.ready) > 0, "a class beside others")
	pacing, next := g.p.pacing().Serve(candidate, reserved, slot, j.Cost)
	g.served = append(g.served, serving{f.name, g.p.segment, g.p.policy.Rate, slot, charge, reserved})
	g.p.Bucket, g.p.virtual, g.p.behind, g.p.spared, *tag = pacing.Bucket, pacing.Virtual, pacing.Behind, pacing.Spared, next
	g.stampedInPool[leaseRef{id, j.Epoch}] = departure{g.p.name, stamping{g.p.segment, g.stamps, g.p.policy.Paces()}, slot, charge}
	g.give(id, max(g.now, slot).Add(lease), found)
	g.run(f, 1)
	g.depart(f, 1)
	f.charge(charge - 1)
	if _, ok := g.polling.bounds[routeOf(f.name)]; ok {
		f.share--
		g.polling.bounds[routeOf(f.name)]--
	}
	return true
}

// spares makes a flow, or its class, wait whose job, of this cost, would keep others from their
// turns. It was picked at the score.
func (g *pooling) spares(f *flow, class string, score, cost int64, slot shaper.Instant, classes []string) bool {
	if cost <= 1 { // as most: nothing is sorted for it
		return false
	}
	coming := g.coming(slot, classes)
	pacing, waited, until := g.p.pacing().Spare(shaper.Candidate{Tag: shaper.Tag{Start: score}}, cost, slot, coming)
	g.p.spared = pacing.Spared
	if until > 0 {
		if class == "" {
			f.Bucket = f.MarkReady(until)
		} else {
			g.reach("a class leaves its slot to one before it")
			g.p.classes[class].last = until
		}
		if name, ok := strings.CutPrefix(coming[waited].Name, classComes); ok {
			g.reach("idles for a class")
			g.p.awaited[name] = shaper.Awaited{Due: coming[waited].Due, Departed: g.p.classes[name].Start}
			return true
		}
		late := g.known(coming[waited].Name)
		late.awaited = shaper.Awaited{Due: coming[waited].Due, Departed: late.departed}
		if f := g.polling.flows[late.name]; f != nil {
			f.awaited = late.awaited
		} else {
			g.model.flows[late.name] = late
		}
	}
	return until > 0
}

// known is a flow as it is now, loaded or not.
func (g *pooling) known(name string) flow {
	if f := g.polling.flows[name]; f != nil {
		return *f
	}
	return g.model.flows[name]
}

// classComes is before the name of a class that comes: at the same instant, flows are before it.
const classComes = "\xff"

// coming lists the flows that come after the slot, as the script looks at them, and the classes but
// those that are candidates.
func (g *pooling) coming(slot shaper.Instant, candidates []string) (coming []shaper.Coming) {
	soon := func(z zset, after shaper.Instant) (names []string) {
		for _, e := range z.list() {
			if at := shaper.Instant(e.Score); at > after && len(names) < comingMost {
				names = append(names, e.Name)
			}
		}
		return names
	}
	later := zset{}
	for name, at := range g.p.wait {
		if _, in := g.wait[name]; !in && !g.lined[name] {
			later[name] = at
		}
	}
	comes := map[*zset][]string{&g.wait: soon(g.wait, slot), &later: soon(later, g.now.Add(horizon))}
	for z, names := range comes {
		for _, name := range names {
			if t, due, f := g.turn(name), shaper.Instant((*z)[name]), g.known(name); !g.full(name) {
				coming = append(coming, shaper.Coming{Candidate: shaper.Candidate{Name: name, Weight: t.weight, Tag: t.Tag}, Due: due,
					Missed: f.awaited.Missed(due, slot, f.departed)})
			}
		}
	}
	for class, c := range g.p.classes {
		name, ok := first(g.lines[class])
		due := g.lineHead(class)
		if !ok {
			later := zset{}
			for flow, at := range c.line {
				if at > int64(g.now.Add(horizon)) && !g.lined[flow] {
					later[flow] = at
				}
			}
			if name, ok = first(later); ok {
				due = max(later.head(), c.last)
			}
		}
		if ok && !slices.Contains(candidates, class) && !g.full(name) {
			candidate := c.candidate()
			candidate.Name = classComes + class
			coming = append(coming, shaper.Coming{Candidate: candidate, Due: due, Missed: g.p.awaited[class].Missed(due, slot, c.Start)})
		}
	}
	return coming
}

// candidate is the flow as its pool picked it at the score, or its class, and its tag.
func (g *pooling) candidate(f *flow, score int64, reserved bool, class string) (shaper.Candidate, *shaper.Tag) {
	if class != "" {
		return g.p.classes[class].candidate(), &g.p.classes[class].Tag
	}
	t := &f.turn
	switch {
	case reserved && int64(t.Tag.Reserve.TAT) != score:
		t.Tag.Reserve.TAT, t.Tag.Reserve.Rem = shaper.Instant(score), 0
	case !reserved && t.Start != score:
		t.Start, t.Rem = score, 0
	}
	return shaper.Candidate{Name: f.name, Weight: t.weight, Tag: t.Tag}, &t.Tag
}

// repay lets a flow or a class that owes use the slot for a part of that, until another comes.
func (g *pooling) repay(owed *int64, c shaper.Candidate, tag *shaper.Tag, reserved bool, slot, until shaper.Instant) {
	cost, unused := g.p.pacing().Repays(*owed, slot, until)
	g.reachIf(unused > 0, "repaid with unused time")
	pacing, next := g.p.pacing().Repay(c, reserved, slot, cost, unused)
	g.p.Bucket, g.p.virtual, g.p.behind, g.p.owed, g.p.spared, *tag = pacing.Bucket, pacing.Virtual, pacing.Behind, pacing.Owed, pacing.Spared, next
	*owed -= cost
	g.reachIf(*owed == 0, "repaid")
	g.reachIf(reserved, "repaid by its reserve")
}

// take takes the next job of a flow for a slot; empty if none is eligible by then.
func (g *pooling) take(
	f *flow, slot shaper.Instant, spares func(cost int64) bool,
) (id string, found scripts.Record) {
	for {
		for f.later <= slot && g.promotableOf(f) > 0 {
			for _, id := range g.laters[f.name].upTo(slot, g.promotableOf(f)) {
				if f.found == nil {
					f.found = map[string]scripts.Record{}
				}
				f.found[id] = *g.jobs[id]
				g.promote(f, id)
			}
			f.later = g.laters[f.name].head()
		}
		id, ok := first(g.queue[f.name])
		if !ok {
			f.barred = f.later <= slot
			return "", found
		}
		j := g.jobs[id]
		if j.At > slot {
			f.Bucket = f.MarkReady(j.At)
			return "", found
		}
		found = *j
		if before, promoted := f.found[id]; promoted {
			found = before
		}
		overdue := j.Deadline > 0 && j.Deadline < slot
		if !overdue && spares(j.Cost) {
			g.reach("leaves its slot to one before it")
			return "", found
		}
		if overdue && g.droppableOf(f) <= 0 {
			f.barred = true
			return "", found
		}
		g.leave(id, f)
		if overdue {
			g.finish(id, f, shaper.Overdue, nil)
			g.dropped(f)
			continue
		}
		become(j, shaper.Stamped)
		j.Epoch++
		return id, found
	}
}

// bounded puts a flow off that may take no slot of the worker, or has its part of the pool's
// concurrency.
func (g *pooling) bounded(f *flow) bool {
	if most := g.p.policy.Concurrency; most > 0 && f.Running >= 3*(most-g.p.Running) {
		g.reach("has its part of the concurrency")
		g.kept[f.name] = true
		g.polling.keep(f, "pool")
		return true
	}
	free, is := g.polling.bounds[routeOf(f.name)]
	if !is {
		return false
	}
	if !f.shareKnown {
		f.share, f.shareKnown = min(free, int(math.Ceil(float64(3*free-g.polling.bounds[f.name])/4))), true
	}
	if f.share > 0 && free > 0 {
		return false
	}
	g.kept[f.name] = true
	g.putOff(f)
	return true
}
