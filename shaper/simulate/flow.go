package simulate

import "github.com/7509e464/sluice/shaper"

// afterZero keeps the instants of a trace that begins at 0 from being "never" to package shaper. Its arithmetic knows no other origin.
const afterZero = shaper.Instant(1_000_000)

// live replays the trace through a shaper.Flow itself, event by event: the rule that foresee abbreviates. It allocates with every departure. It knows no horizon,
// which would not matter to flows as slow as those that need it.
func (r *Run) live(p shaper.Policy) {
	f := shaper.Flow{Bucket: shaper.NewBucket(p.Paces())}
	head := 0
	// leave lets go whoever leaves or expires up to an instant.
	leave := func(end int, now shaper.Instant) {
		for f.Queued > 0 {
			for ; head < end && r.Fates[head] != Waiting; head++ {
			}
			a := r.Trace[head]
			at, fate := f.Earliest(), Departed
			if deadline := a.At.Add(p.MaxWait) + afterZero; p.MaxWait > 0 && deadline < at {
				at, fate = deadline, Expired
			}
			if at > now {
				return
			}
			if fate == Departed {
				at = f.Stamp(0, at)
				f.Bucket = f.Depart(at, a.Cost)
			}
			f.Depth, f.Queued, f.Cost = f.Depth-1, f.Queued-1, f.Cost-a.Cost
			r.Fates[head], r.Gone[head] = fate, at-afterZero
		}
	}
	for i, a := range r.Trace {
		now := a.At + afterZero
		leave(i, now)
		var said shaper.Admission
		f, said = shaper.Admit(f, p, now, shaper.Request{Size: 1, Cost: a.Cost, MaxWait: p.MaxWait}, nil)
		switch said.Outcome {
		case shaper.Admitted:
			r.Fates[i] = Waiting
		case shaper.DeadlineUnreachable:
			r.Fates[i] = Unreachable
		}
	}
	leave(len(r.Trace), latest+afterZero)
}
