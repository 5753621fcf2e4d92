package simulate

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// afterZero shifts a trace that begins at 0, because instant 0 means never to package shaper. A
// shift changes no result.
const afterZero = shaper.Instant(1_000_000)

// live replays the trace through a shaper.Flow, event by event. foresee is the fast form of it.
// live allocates with every departure and ignores the horizon, which does not matter for the slow
// flows that need live. With a cap of concurrency, which a flow has only if its service takes time,
// a job also waits until an earlier one is settled.
func (r *Run) live(p shaper.Policy, service time.Duration) {
	f := shaper.Flow{Bucket: shaper.NewBucket(p.Paces())}
	p.Types = nil // a trace has none
	head := 0
	running, first := int64(0), 0 // jobs from the first on that left and count in the cap
	// leave ends the jobs that leave or expire up to an instant.
	leave := func(end int, now shaper.Instant) {
		for f.Queued > 0 {
			for ; head < end && r.Fates[head] != Waiting; head++ {
			}
			if head == end {
				return
			}
			a := r.Trace[head]
			at, fate := f.Earliest(), Departed
			full := p.Concurrency > 0 && running == p.Concurrency
			if full {
				for r.Fates[first] != Departed {
					first++
				}
				at = max(at, r.Gone[first].Add(service)+afterZero)
			}
			if deadline := a.At.Add(p.MaxWait) + afterZero; p.MaxWait > 0 && deadline < at {
				at, fate = deadline, Expired
			}
			if at > now {
				return
			}
			if fate == Departed {
				stamp := f.Stamp(a.At+afterZero, at)
				f.Bucket = f.Depart(stamp, a.Cost)
				at = max(at, stamp)
				if running++; full {
					first, running = first+1, running-1
				}
			}
			f.Depth, f.Queued, f.Cost = f.Depth-1, f.Queued-1, f.Cost-a.Cost
			r.Fates[head], r.Gone[head] = fate, at-afterZero
		}
	}
	bunch := 0
	for i, a := range r.Trace {
		if a.At != r.Trace[bunch].At {
			bunch = i
		}
		now := a.At + afterZero
		leave(bunch, now)
		var admission shaper.Admission
		f, admission = shaper.Admit(f, p, now, shaper.Request{Size: 1, Cost: a.Cost, MaxWait: p.MaxWait}, nil)
		switch admission.Outcome {
		case shaper.Admitted:
			r.Fates[i] = Waiting
		case shaper.DeadlineUnreachable:
			r.Fates[i] = Unreachable
		}
	}
	leave(len(r.Trace), latest+afterZero)
}
