package simulate

import "github.com/7509e464/sluice/shaper"

// Fate is the end of an arrival.
type Fate byte

// The fates of arrivals.
const (
	Refused     Fate = iota // the queue was full, or the limiter refused
	Unreachable             // refused by the shaper: it could not have left within the max wait
	Expired                 // admitted, but its max wait was over before it could leave
	Departed                // left
	Waiting                 // admitted, but still there at the end: the flow is paused
)

// Run is a trace with the fate of each arrival. All lists have the length of the trace.
type Run struct {
	Name     string      // "shaper", or the name of the limiter
	Rate     shaper.Rate // its period is that of the fullest window
	Capacity int64       // of the queue; 0 for a limiter, which has none

	Trace Trace
	Fates []Fate
	// Gone is when each arrival left: its stamp, or when it expired; its own instant at a limiter.
	// It is 0 if the arrival was refused or is still there.
	Gone  []shaper.Instant
	Freed []shaper.Instant // when it left the depth: up to the horizon before its departure
}

// NameShaper is the name of the shaper's runs.
const NameShaper = "shaper"

// newRun returns a run before the first arrival, with Freed equal to Gone.
func newRun(name string, t Trace, r shaper.Rate) *Run {
	gone := make([]shaper.Instant, len(t))
	return &Run{Name: name, Rate: r, Trace: t, Fates: make([]Fate, len(t)), Gone: gone, Freed: gone}
}

// Admitted reports whether the arrival was admitted.
func (f Fate) Admitted() bool { return f >= Expired }
