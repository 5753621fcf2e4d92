package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// MaxArrivals is the greatest number of arrivals in a trace.
const MaxArrivals = 20_000_000

// Arrival is a request of a trace.
type Arrival struct {
	At   shaper.Instant // 0 or later
	Cost int64          // 1 to shaper.MaxCost
}

// Trace is arrivals in the order of their instants.
type Trace []Arrival

// ErrTrace is wrapped by every error about a trace that cannot be read or replayed.
var ErrTrace = errors.New("not a trace")

// validate reports whether the trace can be replayed. The error wraps ErrTrace and names the
// arrival by its number, from 1.
func (t Trace) validate() error {
	if len(t) == 0 {
		return fmt.Errorf("%w: it has no arrivals", ErrTrace)
	}
	if len(t) > MaxArrivals {
		return fmt.Errorf("%w: %d arrivals, of at most %d", ErrTrace, len(t), MaxArrivals)
	}
	last := shaper.Instant(0)
	for i, a := range t {
		if a.At < last || a.Cost < 1 || a.Cost > shaper.MaxCost {
			return t.fault(i, last)
		}
		last = a.At
	}
	return nil
}

func (t Trace) fault(i int, last shaper.Instant) error {
	if t[i].At < last {
		return fmt.Errorf("%w: arrival %d is before the previous one, or before 1970", ErrTrace, i+1)
	}
	return fmt.Errorf("%w: arrival %d has cost %d, which must be from 1 to %d", ErrTrace, i+1, t[i].Cost,
		shaper.MaxCost)
}

// Span returns the time from the first arrival to the last.
func (t Trace) Span() time.Duration {
	if len(t) == 0 {
		return 0
	}
	return t[len(t)-1].At.Sub(t[0].At)
}

// cost is the sum of the costs and the greatest of them.
func (t Trace) cost() (sum, most int64) {
	for _, a := range t {
		sum, most = sum+a.Cost, max(most, a.Cost)
	}
	return sum, most
}

// sorted sorts the arrivals by instant; the sort is stable.
func (t Trace) sorted() Trace {
	inOrder := func(a, b Arrival) int { return cmp.Compare(a.At, b.At) }
	if !slices.IsSortedFunc(t, inOrder) {
		slices.SortStableFunc(t, inOrder)
	}
	return t
}
