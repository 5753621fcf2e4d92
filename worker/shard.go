package worker

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/burstlog"
	"github.com/7509e464/sluice/queue/crash"
)

const (
	// lookMost and lookLeast bound the places that one look reserves: the others are left to other shards during its round trip. Within
	// them a shard asks for twice what it got last.
	lookMost, lookLeast = 250, 16
	// awaitLeast is the least that a shard reserves when others wait for places, too.
	awaitLeast = 4
	// safetyLook is the longest time between two polls of a shard, in case a wake-up was lost. The polls of
	// idle shards are spread over the last safetySpread of it. A worker takes over its shards at once: without
	// the spread, their polls would keep coming together, and a busy shard's poll would wait for all of
	// them to return from a Redis that is far away.
	safetyLook   = 15 * time.Second
	safetySpread = 3 * time.Second
	// leastRest keeps a shard whose next event is overdue, but is not a lease, from being looked at without a pause.
	leastRest = 2 * time.Millisecond
	// helpEvery is how often an owner without capacity asks for help, and how long it must have had some to stop asking.
	helpEvery = time.Second
	// A shard from which jobs leave has its clock read for itself where the looks alone do not tell it to exactness, at most readMost times in
	// readEvery: some of the answers come fast, and the best one counts.
	exactness = 100 * time.Microsecond
	readEvery = 5 * time.Second
	readMost  = 8
	// lookPatience is how long a look that is not answered keeps room in the window and places from other shards. A node that hangs would take
	// all of both, for go-redis gives up after 20 s only.
	lookPatience = 250 * time.Millisecond
)

// shard is one shard as this worker sees it: its loop, if it owns the shard or helps its owner, and what the loop knows.
// There is at most one loop at a time, so the consumer is never used twice at once.
type shard struct {
	n        int
	d        *dispatcher
	consumer consumer
	loop     int       // 0, or 1 of a second loop, which looks at the same shard while looks are full
	second   *shard    // that one; nil of itself
	lots     *lots     // of both
	placer   *placer   // of both
	distance *distance // of both
	probe    *probe
	woken    chan struct{} // look now
	seat     *seat         // to wait for capacity

	mu      sync.Mutex
	owned   bool
	helping bool
	running bool

	// Of the loop alone.
	readAt     moment // when the clock was first read for itself in the last readEvery
	readings   int    // since then
	pause      pauses
	unanswered bool          // the last look failed: it may have leased jobs, and must be repeated until it is answered
	brought    bool          // the last look brought jobs
	brings     int           // how many jobs the last answered look brought
	full       bool          // it brought as many as it might
	reserved   int           // places that the look under way holds, or its timer has given back
	hangs      *time.Timer   // runs during a look, and then yields
	yielded    chan struct{} // holds a token once it has
	due        bool          // the last look left jobs that could be leased now
	short      bool          // the last look put flows off, whose routes have no place left here
	raised     bool          // the help flag is up, as far as the owner knows
	raisedAt   moment        // when it was last raised
	dryAt      moment        // when capacity was last missing
	emptyAt    moment        // when the shard was last looked at without capacity
}

// newShard is a shard with a second loop, which has no other.
func newShard(d *dispatcher, n int, consumers func(worker string, shard int) consumer, h *health) *shard {
	s := newLoop(d, n, 0, consumers(d.worker, n), h.probe())
	s.lots, s.placer, s.distance = newLots(), &placer{}, &distance{}
	s.second = newLoop(d, n, 1, consumers(d.worker+"2", n), h.probe())
	s.second.lots, s.second.placer, s.second.distance = s.lots, s.placer, s.distance
	return s
}

func newLoop(d *dispatcher, n, loop int, c consumer, h *probe) *shard {
	s := &shard{
		n: n, d: d, consumer: c, loop: loop, probe: h,
		woken: make(chan struct{}, 1), seat: newSeat(), yielded: make(chan struct{}, 1),
		readAt: longAgo, raisedAt: longAgo, dryAt: longAgo, emptyAt: longAgo,
	}
	s.hangs = time.AfterFunc(time.Hour, s.yield)
	s.hangs.Stop() // until there is a look
	return s
}

// isSecond reports whether it is the second loop of a shard, a helper that nobody asked.
func (s *shard) isSecond() bool { return s.loop == 1 }

// own starts or ends the ownership of the shard. A gained shard is looked at at once.
func (s *shard) own(mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned == mine {
		return
	}
	s.owned = mine
	signal(s.woken)
	if mine {
		s.helping = false
		s.start()
	}
}

// help starts leasing beside the owner; the loop ends it when the owner does not ask any more.
func (s *shard) help() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned || s.helping {
		return // an owner hears its own call
	}
	s.helping = true
	signal(s.woken)
	s.start()
}

// start is called with the lock held.
func (s *shard) start() {
	if s.running || s.d.stop.Err() != nil {
		return
	}
	s.running = true
	s.d.loops.Add(1)
	go s.run()
}

// poke has the shard looked at now, if there is a loop.
func (s *shard) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		signal(s.woken)
	}
}

// role is what this worker is to the shard.
func (s *shard) role() (owner, helper bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owned, s.helping
}

// run looks, rests until the next look is due, and so on.
func (s *shard) run() {
	defer s.d.loops.Done()
	timer := time.NewTimer(safetyLook)
	defer timer.Stop()
	for s.goOn() {
		p := s.look()
		if s.brought {
			s.readClock(p.at)
		}
		s.rest(p, timer)
	}
	if s.d.stop.Err() == nil && !s.isSecond() {
		// The last look may have planned another, on which the scripts rely before they wake anybody. At the end of the worker its
		// leaving says the same for all shards. Whether it was heard tells nothing of the next look, for which alone the probe is: another
		// loop may have begun by now, and without one nobody would ever report that Redis is back.
		_ = s.consumer.Resign(s.d.work)
	}
}

// goOn reports whether the loop has anything left to do, and otherwise marks it as ended.
func (s *shard) goOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.unanswered && s.d.work.Err() == nil:
		return true
	case (s.owned || s.helping) && s.d.stop.Err() == nil:
		return true
	}
	// Under the lock: whoever gains the shard from here on starts a new loop.
	s.running, s.helping = false, false
	s.due, s.short, s.raised = false, false, false
	s.noteFull(false)
	s.d.capacity.forget(s.seat)
	return false
}

// plan is when to look next.
type plan struct {
	at   moment
	room bool // or as soon as there is capacity
	must bool // not earlier, whatever happens: Redis is away
}

// look makes one look at the shard, hands the leases on and says when to look again.
func (s *shard) look() plan {
	entry, ok := s.d.window.enter(s.d.work.Done())
	if !ok {
		return plan{at: s.d.watch.now()}
	}
	took, leased, yielded := time.Duration(0), 0, false
	s.brought = false
	defer func() { s.d.window.leave(entry, took, leased, yielded) }()
	now := s.d.watch.now()
	owner, helper := s.role()
	leasing := (owner || helper) && s.d.stop.Err() == nil
	if !leasing && !s.unanswered {
		return plan{at: now}
	}
	reserved := 0
	if leasing {
		reserved = s.d.capacity.reserve(s.seat, min(entry.most, s.wants(lookLeast)), s.due || s.isSecond())
	}
	if leasing && reserved == 0 {
		s.dryAt = now
		s.overlap(false)
		if !s.unanswered && s.isSecond() {
			return plan{at: now} // it has ended, and must not wait for places that others could use
		}
		if !s.unanswered && !s.mayLookEmpty(now, owner) {
			return plan{at: s.emptyAt.add(helpEvery), room: true}
		}
		s.emptyAt = now
	}
	// An unanswered look is repeated even without a place: what it leased is this worker's already.
	o := s.d.options
	o.Horizon, o.Lead = s.way(now).reach(o.Horizon, o.Lease/4)
	o.Max = reserved
	if reserved > 0 {
		o.Bounds = s.d.capacity.bounds(s.n, reserved)
	}
	o.Helper = !owner
	o.Help = s.signal(now, owner, leasing, reserved)
	s.reserved = reserved
	s.lots.ask(s.loop)
	s.hangs.Reset(lookPatience)
	t, err := s.consumer.Tick(s.d.work, o)
	if yielded = !s.hangs.Stop(); yielded {
		<-s.yielded
	}
	s.lots.answer(s.loop, t.Lot)
	took = s.d.watch.now().since(now)
	if err != nil {
		s.d.capacity.give(s.reserved)
		// A look that fails at damaged data has leased nothing that an earlier, unanswered one has not.
		s.unanswered = s.unanswered || !errors.Is(err, queue.ErrScript)
		s.overlap(false) // the jobs of this look are to leave before those of later ones
		if s.d.work.Err() == nil {
			s.probe.report(err)
		}
		return plan{at: s.d.watch.now().add(s.pause.next()), must: true}
	}
	for _, item := range t.Damaged {
		name, cause, _ := strings.Cut(item, ": ")
		s.d.damage.Add(burstlog.Key{Kind: name}, 1, "error", cause)
	}
	leased = len(t.Leases)
	s.brought = leased > 0
	s.probe.report(nil)
	s.unanswered = false
	s.pause.reset()
	s.placer.learn(s.d.watch.now(), func(clock *relation) {
		clock.observe(t.Now, s.d.watch.at(t.Sent), s.d.watch.at(t.Received), ofLook)
		clock.adopt(s.d.clockOfBeats(), s.d.watch.now())
	})
	if s.brought {
		// Only polls that lease tell how far Redis is: others write nothing, and so wait for no disk.
		answered := s.d.watch.at(t.Received)
		s.distance.observe(roundTrip{answered, t.Received.Sub(t.Sent), answered.since(s.placer.known().moment(t.Now))})
		first := slices.MinFunc(t.Leases, func(a, b queue.Lease) int { return cmp.Compare(a.Stamp, b.Stamp) }).Stamp
		s.readClock(s.placer.known().moment(first))
	}
	s.lots.enter(s.loop)
	s.take(t, s.reserved)
	s.lots.leave(s.loop)
	if t.Outbox {
		s.d.outbox.add(s.n)
	}
	if s.short = t.PutOff > 0; s.short {
		s.dryAt = now
	}
	s.noteHelp(t, o.Help, now, owner, helper)
	p := s.plan(t, now, reserved, o.Horizon)
	s.overlap(reserved >= lookLeast && s.due)
	return p
}

// way returns how far Redis is: what polls of this shard took, and at least what heartbeats took.
func (s *shard) way(now moment) roundTrip {
	polls, beats := s.distance.estimate(now), s.d.beats.estimate(now)
	return roundTrip{now, max(polls.whole, beats.whole), max(polls.back, beats.back)}
}

// readClock reads the shard's clock for itself if what is known of it is poor, and there is ample time before the moment. It is for shards from
// which jobs leave: best before those of a look are placed on this process's clock, else before the next look.
func (s *shard) readClock(before moment) {
	now, clock := s.d.watch.now(), s.placer.known()
	if clock.wrong(now) <= exactness || s.d.stop.Err() != nil {
		return
	}
	room := min(before.since(now)-s.d.options.Horizon/8, lookPatience)
	// Twice the error is more than the round trip that it comes from. A reading that is cut off costs its connection,
	// so it also has to fit into what polls take now.
	if room < max(2*clock.err, s.way(now).whole*5/4) {
		return
	}
	if now.since(s.readAt) >= readEvery {
		s.readAt, s.readings = now, 0
	}
	if s.readings == readMost {
		return
	}
	s.readings++
	ctx, cancel := context.WithTimeout(s.d.work, room)
	defer cancel()
	r, err := s.consumer.Clock(ctx)
	if err != nil {
		return // the next look will tell of it
	}
	s.placer.learn(s.d.watch.now(), func(clock *relation) {
		clock.observe(r.Now, s.d.watch.at(r.Sent), s.d.watch.at(r.Received), ofReading)
	})
}

// yield gives back what a look that lasts too long holds. What it brings nevertheless is charged.
func (s *shard) yield() {
	s.lots.answer(s.loop, 0)
	s.d.window.yield()
	s.d.capacity.forget(s.seat) // a look without a place may have been worth it: those granted during it would lie idle
	s.d.capacity.give(s.reserved)
	s.reserved = 0
	s.yielded <- struct{}{}
}

// mayLookEmpty reports whether to look without capacity: to ask for help when jobs are due, and otherwise once in a while, for
// a look also expires and sweeps. A helper without capacity has nothing to look for.
func (s *shard) mayLookEmpty(now moment, owner bool) bool {
	if !owner {
		s.emptyAt = now
		return false
	}
	return now.since(s.emptyAt) >= helpEvery || s.due && now.since(s.raisedAt) >= helpEvery
}

// signal is what the look says about this worker's capacity.
func (s *shard) signal(now moment, owner, leasing bool, reserved int) queue.HelpSignal {
	switch {
	case !owner || !leasing:
		return queue.HelpKeep
	case (s.short || reserved == 0 && s.due) && now.since(s.raisedAt) >= helpEvery:
		return queue.HelpRaise
	case reserved > 0 && s.raised && now.since(s.dryAt) >= helpEvery:
		return queue.HelpClear
	}
	return queue.HelpKeep
}

// wants returns how many places to reserve: twice what the last look brought, but at least least.
func (s *shard) wants(least int) int { return min(lookMost, max(least, 2*s.brings)) }

// take hands the leases on and squares them with the places that were reserved. An answer to a repeated look may bring more:
// it is the one that an earlier, larger reservation asked for. So does one that comes after the places were given back.
func (s *shard) take(t queue.Tick, reserved int) {
	s.brings = len(t.Leases)
	if len(t.Leases) == 0 {
		s.d.capacity.give(reserved)
		return
	}
	crash.At("after-lease")
	jobs := s.placer.place(t.Leases)
	for _, j := range jobs {
		j.shard = s.n
	}
	s.d.capacity.fill(reserved, jobs)
	s.d.accept(jobs)
}

// noteHelp keeps up with the help flag.
func (s *shard) noteHelp(t queue.Tick, sent queue.HelpSignal, now moment, owner, helper bool) {
	switch {
	case sent == queue.HelpRaise:
		s.raised, s.raisedAt = true, now
	case sent == queue.HelpClear:
		s.raised = false
	case owner && t.Help && !s.raised:
		// Raised by a former owner: it is now this one's to clear.
		s.raised, s.dryAt = true, now
	case helper && !owner && !t.Help && !s.isSecond():
		s.endHelp()
	}
}

// overlap has a second loop look at the shard while its looks are full and those of no other shard are: one look then waits in Redis while what
// another has brought is handed on, and Redis is never idle.
func (s *shard) overlap(full bool) {
	if !s.isSecond() {
		s.noteFull(full)
	}
	switch alone := full && s.d.full.Load() == 1; {
	case alone && !s.isSecond():
		s.second.help()
	case !alone && s.isSecond():
		s.endHelp()
	}
}

// noteFull counts the shards whose last look was full, by their first loops.
func (s *shard) noteFull(full bool) {
	switch {
	case full && !s.full:
		s.d.full.Add(1)
	case s.full && !full:
		s.d.full.Add(-1)
	}
	s.full = full
}

func (s *shard) endHelp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.helping = false
}

// plan is when to look again after t, which was asked with room for reserved jobs up to the horizon.
func (s *shard) plan(t queue.Tick, asked moment, reserved int, horizon time.Duration) plan {
	soon := t.Next != 0 && t.Next <= t.Now.Add(horizon)
	now, clock := s.d.watch.now(), s.placer.known()
	if reserved == 0 {
		s.due = t.More || soon
		if s.due {
			// Ask for help at once, if that was not what this look did.
			if asked.since(s.raisedAt) >= helpEvery {
				return plan{at: now, room: true}
			}
			return plan{at: s.emptyAt.add(helpEvery), room: true}
		}
	}
	// A look that filled all it reserved may have left jobs that are due as well.
	s.due = t.More || soon && len(t.Leases) >= reserved
	if s.due {
		return plan{at: now}
	}
	at := now.add(safetyLook - rand.N(safetySpread))
	// The script puts every event half a horizon later than it is of use, so that this is when to look for each of them.
	look := clock.moment(t.Next).add(-horizon / 2)
	switch {
	case t.Next == 0:
	case soon:
		// Everything that could be leased was, so this is another event, such as an expiry.
		at = min(at, max(look, now.add(leastRest)))
	default:
		// The next stamp is a multiple of the flow's interval after those of the jobs that this look brought, and so is often the moment
		// half a horizon before it: the look would take the processor, and Redis, from a job that is to leave just then.
		at = min(at, s.d.quiet(look, s.d.options.Horizon/8))
	}
	if s.raised {
		at = min(at, max(s.dryAt.add(helpEvery), now.add(leastRest)))
	}
	return plan{at: at}
}

// rest waits until the plan's moment, or for a wake-up, for room or the end.
func (s *shard) rest(p plan, timer *time.Timer) {
	d := p.at.since(s.d.watch.now())
	if d <= 0 && !p.must {
		return
	}
	var room chan struct{}
	if p.room {
		room = s.seat.room
		s.d.capacity.await(s.seat, s.wants(awaitLeast))
	} else {
		s.d.capacity.forget(s.seat) // places granted now would lie idle
	}
	timer.Reset(d)
	if p.must {
		// The end of the worker does not cut this short either: the look is still to be answered.
		select {
		case <-timer.C:
		case <-s.d.work.Done():
		}
		return
	}
	select {
	case <-timer.C:
	case <-s.woken:
	case <-room:
	case <-s.d.stop.Done():
	}
}
