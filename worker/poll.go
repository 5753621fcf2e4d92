package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/queue"
)

// poll polls the shard once, hands the leased jobs on and returns when to poll again.
func (s *shard) poll(ctx context.Context) plan {
	leave, err := s.d.window.enter(ctx, s.leased.steady(s.d.watch.now()))
	if err != nil {
		return plan{at: s.d.watch.now()} // the worker ends
	}
	defer leave()
	now := s.d.watch.now()
	owner, leasing, reserved := s.owned.Load(), s.leases(), 0
	if !leasing && !s.unanswered {
		return plan{at: now}
	}
	o := s.d.options
	if leasing {
		reserved = s.d.capacity.reserve(s.slots, s.wants(pollLeast), s.due)
		// An unanswered poll is repeated even without capacity: what it leased is this worker's
		// already.
		if reserved == 0 && !s.help.mayPollEmpty(now, owner, s.due) && !s.unanswered {
			return plan{at: s.help.emptyAt.add(helpEvery), slots: true}
		}
		if owner {
			o.Help = s.help.signal(now, reserved, s.due)
		}
	}
	o.Horizon, o.Lead = s.way(now).reach(o.Horizon, o.Lease/4)
	o.Max, o.Helper = reserved, !owner
	o.Bounds = s.d.capacity.bounds(s.n, reserved)
	t, slots, err := s.tick(ctx, o, leave)
	if err != nil {
		s.d.capacity.give(slots)
		return s.failed(ctx, err)
	}
	s.d.window.observe(t.Received.Sub(t.Sent))
	s.answered(ctx, t, slots)
	s.help.note(t, o.Help, now, owner)
	if !owner && !t.Help {
		s.helping.Store(false)
	}
	return s.next(t, now, reserved, o.Horizon)
}

// tick makes the call, and returns how many of the reserved slots it still holds at its end. After
// pollPatience it neither counts in the window nor holds slots: a node that does not answer would
// take all of both, because go-redis gives up after 20 s only.
func (s *shard) tick(
	ctx context.Context, o queue.TickOptions, leave func(),
) (t queue.Tick, slots int, err error) {
	slots = o.Max
	yielded := make(chan struct{})
	patience := time.AfterFunc(pollPatience, func() {
		defer close(yielded)
		leave()
		s.d.capacity.withdraw(s.slots) // what is granted meanwhile would not be used
		s.d.capacity.give(slots)
		slots = 0
	})
	t, err = s.consumer.Tick(ctx, o)
	if !patience.Stop() {
		<-yielded
	}
	leave()
	return t, slots, err
}

// failed takes a poll into account that was not answered.
func (s *shard) failed(ctx context.Context, err error) plan {
	s.brought = 0
	// A poll that fails at damaged data has leased nothing that an earlier, unanswered one has not.
	s.unanswered = s.unanswered || !errors.Is(err, queue.ErrScript)
	if ctx.Err() == nil {
		s.d.errors.report(s, err)
	}
	return plan{at: s.d.watch.now().add(s.pause.next()), must: true}
}

// answered hands on what a poll has brought, and gives back the slots that it does not need.
func (s *shard) answered(ctx context.Context, t queue.Tick, slots int) {
	for _, item := range t.Damaged {
		name, cause, _ := strings.Cut(item, ": ")
		s.d.errors.damage.Add(burstlog.Key{Kind: name}, 1, "error", cause)
	}
	s.d.errors.report(s, nil)
	s.unanswered, s.pause, s.brought = s.unanswered && t.Paused, pauses{}, len(t.Leases)
	s.keepTime(ctx, t)
	if t.Outbox {
		signal(s.d.outbox.ready[s.n])
	}
	if s.brought == 0 {
		s.d.capacity.give(slots)
		return
	}
	s.leased.note(s.d.watch.now())
	crash.At("after-lease")
	s.d.accept(slots, s.clock.schedule(s.n, t.Leases))
}

// next returns when to poll again after t, the answer to a poll at the moment asked for at most
// reserved jobs up to the horizon.
func (s *shard) next(t queue.Tick, asked moment, reserved int, horizon time.Duration) plan {
	now := s.d.watch.now()
	soon := t.Next != 0 && t.Next <= t.Now.Add(horizon)
	// A poll that filled all it reserved may have left jobs that are due as well.
	s.due = t.More || soon && len(t.Leases) >= reserved
	switch {
	case !s.due:
	case reserved > 0, asked.since(s.help.raisedAt) >= helpEvery: // the poll that follows raises the help flag
		return plan{at: now}
	default:
		return plan{at: s.help.emptyAt.add(helpEvery), slots: true}
	}
	// The script puts every event half a horizon later than it is of use.
	at := s.clock.known.moment(t.Next).add(-horizon / 2)
	switch {
	case t.Next == 0:
		at = never
	case soon:
		// Everything that could be leased was, so this is another event, such as an expiry.
		at = max(at, now.add(leastRest))
	default:
		// Half a horizon before the next stamp another job of the flow often leaves: the poll would
		// take the processor, and Redis, from it.
		at = s.d.pacer.quiet(at, s.d.options.Horizon/8)
	}
	if s.help.raised {
		at = min(at, max(s.help.dryAt.add(helpEvery), now.add(leastRest)))
	}
	if idle := now.add(safetyPoll - rand.N(safetySpread)); idle < at {
		return plan{at: idle, idle: true}
	}
	return plan{at: at}
}

// helpEvery is how often an owner without capacity raises the flag, and how long it must have had
// some capacity to clear it.
const helpEvery = time.Second

// help follows the help flag of a shard that this worker owns. While it is raised, other workers
// lease from the shard, too.
type help struct {
	raised   bool   // the flag is up, according to the last poll
	raisedAt moment // when it was last raised
	dryAt    moment // when capacity was last missing
	emptyAt  moment // when the shard was last polled without capacity
	short    bool   // the last poll put flows off whose routes have no capacity left here
}

func newHelp() help { return help{raisedAt: longAgo, dryAt: longAgo, emptyAt: longAgo} }

// mayPollEmpty reports whether to poll without capacity: to raise the flag when jobs are due,
// otherwise once in a while, because a poll also expires jobs and leases. A helper does not.
func (h *help) mayPollEmpty(now moment, owner, due bool) bool {
	h.dryAt = now
	raises := due && now.since(h.raisedAt) >= helpEvery
	if owner && !raises && now.since(h.emptyAt) < helpEvery {
		return false
	}
	h.emptyAt = now
	return owner
}

// signal returns what a poll of the owner reports of its capacity.
func (h *help) signal(now moment, reserved int, due bool) queue.HelpSignal {
	switch {
	case (h.short || reserved == 0 && due) && now.since(h.raisedAt) >= helpEvery:
		return queue.HelpRaise
	case reserved > 0 && h.raised && now.since(h.dryAt) >= helpEvery:
		return queue.HelpClear
	}
	return queue.HelpKeep
}

// note follows the flag after a poll at now, which sent a signal.
func (h *help) note(t queue.Tick, sent queue.HelpSignal, now moment, owner bool) {
	if h.short = t.PutOff > 0; h.short {
		h.dryAt = now
	}
	switch {
	case sent == queue.HelpRaise:
		h.raised, h.raisedAt = true, now
	case sent == queue.HelpClear:
		h.raised = false
	case owner && t.Help && !h.raised:
		// A former owner raised it: it is now this one's to clear.
		h.raised, h.dryAt = true, now
	}
}

// Redis runs one script at a time, so more polls under way lease fewer jobs each, and delay
// admissions and settlements. A Redis that is far away needs more of them, for each shard to be
// polled in time.
const (
	nearPolls = 16 // under way at once, if the way to Redis and back takes up to nearWay
	farPolls  = 64
	nearWay   = 10 * time.Millisecond
	wayAge    = time.Minute // how long the shortest way counts, at least
)

// restedPolls is how many of nearPolls shards that are not steady may have under way. All shards
// may have jobs that are due at one instant. Flows from which jobs leave all the time would lose
// their slots while Redis answers the others: a sixth of those of 2 s beside 5,000 tenants, now a
// twentieth. The horizon of a Redis that is far away is long enough.
const restedPolls = 4

// window bounds the polls that are under way at once.
type window struct {
	shares *semaphore.Weighted // farPolls of them
	rested *semaphore.Weighted // restedPolls
	polls  atomic.Int64        // under way

	mu          sync.Mutex
	since       time.Time
	way, before time.Duration // the shortest since then, and in the time before; 0: none
}

func newWindow() *window {
	return &window{
		shares: semaphore.NewWeighted(farPolls), rested: semaphore.NewWeighted(restedPolls), since: time.Now(),
	}
}

// enter waits until another poll of a shard may be under way. leave ends the poll, once. It fails
// if ctx ends first.
func (w *window) enter(ctx context.Context, steady bool) (leave func(), err error) {
	shares, released := int64(1), func() {}
	if !w.far() {
		shares = farPolls / nearPolls
		if !steady {
			if err := w.rested.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			released = func() { w.rested.Release(1) }
		}
	}
	if err := w.shares.Acquire(ctx, shares); err != nil {
		released()
		return nil, err
	}
	w.polls.Add(1)
	return sync.OnceFunc(func() {
		w.polls.Add(-1)
		w.shares.Release(shares)
		released()
	}), nil
}

// observe takes into account how long a poll was under way. Only the shortest count: others waited
// for Redis.
func (w *window) observe(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.since) > wayAge {
		w.since, w.way, w.before = time.Now(), 0, w.way
	}
	if w.way == 0 || took < w.way {
		w.way = took
	}
}

// far reports whether even the shortest way takes long.
func (w *window) far() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.way > nearWay && (w.before == 0 || w.before > nearWay)
}
