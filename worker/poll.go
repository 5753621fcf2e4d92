package worker

import (
	"errors"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/burstlog"
	"github.com/7509e464/sluice/queue/crash"
)

// poll polls the shard once, hands the leased jobs on and says when to poll again.
func (s *shard) poll() plan {
	under, err := s.d.window.enter(s.d.work)
	if err != nil {
		return plan{at: s.d.watch.now()} // the worker ends
	}
	now := s.d.watch.now()
	owner, helper := s.role.now()
	leasing := (owner || helper) && s.d.stop.Err() == nil
	if !leasing && !s.unanswered {
		under.end()
		return plan{at: now}
	}
	reserved := 0
	if leasing {
		reserved = s.d.capacity.reserve(s.seat, s.wants(pollLeast), s.due)
	}
	// An unanswered poll is repeated even without capacity: what it leased is this worker's already.
	if leasing && reserved == 0 && !s.help.mayPollEmpty(now, owner, s.due) && !s.unanswered {
		under.end()
		return plan{at: s.help.emptyAt.add(helpEvery), room: true}
	}
	under.reserve(reserved, func(places int) {
		s.d.capacity.forget(s.seat) // a poll without capacity may have been worth it: what is granted meanwhile would lie idle
		s.d.capacity.give(places)
	})
	o := s.d.options
	o.Horizon, o.Lead = s.clock.way(now).reach(o.Horizon, o.Lease/4)
	o.Max, o.Helper = reserved, !owner
	if reserved > 0 {
		o.Bounds = s.d.capacity.bounds(s.n, reserved)
	}
	if owner && leasing {
		o.Help = s.help.signal(now, reserved, s.due)
	}
	t, err := s.consumer.Tick(s.d.work, o)
	places := under.end()
	if err != nil {
		s.d.capacity.give(places)
		return s.failed(err)
	}
	s.d.window.observe(t.Received.Sub(t.Sent))
	s.answered(t, places)
	s.help.note(t, o.Help, now, owner)
	if helper && !owner && !t.Help {
		s.role.endHelp()
	}
	return s.next(t, now, reserved, o.Horizon)
}

// failed takes a poll into account that was not answered.
func (s *shard) failed(err error) plan {
	s.brought = 0
	// A poll that fails at damaged data has leased nothing that an earlier, unanswered one has not.
	s.unanswered = s.unanswered || !errors.Is(err, queue.ErrScript)
	if s.d.work.Err() == nil {
		s.probe.report(err)
	}
	return plan{at: s.d.watch.now().add(s.pause.next()), must: true}
}

// answered hands on what a poll has brought, and gives back what it needs no more of its places. An answer to a repeated
// poll may bring more than that: it is the one that an earlier, larger reservation asked for. So does one that comes after the
// places were given back.
func (s *shard) answered(t queue.Tick, places int) {
	for _, item := range t.Damaged {
		name, cause, _ := strings.Cut(item, ": ")
		s.d.troubles.damage.Add(burstlog.Key{Kind: name}, 1, "error", cause)
	}
	s.probe.report(nil)
	s.unanswered = false
	s.pause.reset()
	s.brought = len(t.Leases)
	s.clock.observe(t)
	if t.Outbox {
		s.d.outbox.add(s.n)
	}
	if s.brought == 0 {
		s.d.capacity.give(places)
		return
	}
	crash.At("after-lease")
	jobs := s.clock.place(t.Leases)
	for _, j := range jobs {
		j.shard = s.n
	}
	s.d.capacity.fill(places, jobs)
	s.d.accept(jobs)
}

// next is when to poll again after t, which was asked with reserved places up to the horizon.
func (s *shard) next(t queue.Tick, asked moment, reserved int, horizon time.Duration) plan {
	soon := t.Next != 0 && t.Next <= t.Now.Add(horizon)
	now := s.d.watch.now()
	if reserved == 0 {
		s.due = t.More || soon
		if s.due {
			// Ask for help at once, if that was not what this poll did.
			if asked.since(s.help.raisedAt) >= helpEvery {
				return plan{at: now, room: true}
			}
			return plan{at: s.help.emptyAt.add(helpEvery), room: true}
		}
	}
	// A poll that filled all it reserved may have left jobs that are due as well.
	s.due = t.More || soon && len(t.Leases) >= reserved
	if s.due {
		return plan{at: now}
	}
	// The script puts every event half a horizon later than it is of use, so that this is when to poll for each of them.
	at := s.clock.known().moment(t.Next).add(-horizon / 2)
	switch {
	case t.Next == 0:
		at = never
	case soon:
		// Everything that could be leased was, so this is another event, such as an expiry.
		at = max(at, now.add(leastRest))
	default:
		// The next stamp is a multiple of the flow's interval after those of the jobs that this poll brought, and so is often the moment
		// half a horizon before it: the poll would take the processor, and Redis, from a job that is to leave just then.
		at = s.d.pacer.quiet(at, s.d.options.Horizon/8)
	}
	if s.help.raised {
		at = min(at, max(s.help.dryAt.add(helpEvery), now.add(leastRest)))
	}
	if idle := safety(now); idle < at {
		return plan{at: idle, idle: true}
	}
	return plan{at: at}
}
