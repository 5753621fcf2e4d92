package shaper

import "fmt"

// State is a state of a job; the zero value is none.
type State byte

// The states of a job. The byte is the one kept in the stored record, and must never change its
// meaning.
const (
	Scheduled State = 's' // admitted, not eligible before its time
	Queued    State = 'q' // waiting for its stamp
	Leased    State = 'l' // with a worker
	Retrying  State = 'r' // failed, not eligible before its backoff is over
	Succeeded State = 'S' // delivered
	Dead      State = 'd' // out of attempts, or refused for good; can be replayed
	Cancelled State = 'c' // by its client, before it left
	Expired   State = 'x' // its max wait was over before it could leave
)

var stateNames = map[State]string{
	Scheduled: "scheduled", Queued: "queued", Leased: "leased", Retrying: "retrying",
	Succeeded: "succeeded", Dead: "dead", Cancelled: "cancelled", Expired: "expired",
}

// String returns the name used in the API.
func (s State) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("State(%d)", byte(s))
}

// MarshalText writes the name used in the API.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name used in the API.
func (s *State) UnmarshalText(text []byte) error {
	for state, name := range stateNames {
		if name == string(text) {
			*s = state
			return nil
		}
	}
	return fmt.Errorf("no job state %q", text)
}

// Waiting reports whether a job in this state counts in the depth.
func (s State) Waiting() bool { return s == Scheduled || s == Queued || s == Retrying }

// Done reports whether the state is terminal. A dead job is done, though a replay may bring it
// back.
func (s State) Done() bool { return s == Succeeded || s == Dead || s == Cancelled || s == Expired }

// Event is what can happen to a job.
type Event string

// The events of a job's life.
const (
	Due          Event = "due"           // its eligible time has come
	Stamped      Event = "stamped"       // it was given a stamp and leased
	Succeed      Event = "succeed"       // settled: delivered
	Retry        Event = "retry"         // settled: failed, attempts left
	Die          Event = "die"           // settled: out of attempts or refused for good
	Hold         Event = "hold"          // settled: the upstream asked for a pause
	Release      Event = "release"       // settled: never departed
	LeaseExpired Event = "lease expired" // no heartbeat came in time, or its worker stopped
	Cancel       Event = "cancel"        // requested by its client
	Overdue      Event = "overdue"       // its max wait is over
	Replay       Event = "replay"        // brought back from the dead letters
)

var arrows = map[State]map[Event]State{
	Scheduled: {Due: Queued, Cancel: Cancelled, Overdue: Expired},
	Queued:    {Stamped: Leased, Cancel: Cancelled, Overdue: Expired},
	Retrying:  {Due: Queued, Cancel: Cancelled, Overdue: Expired},
	Leased: {
		Succeed: Succeeded, Retry: Retrying, Die: Dead, Hold: Queued, Release: Queued, LeaseExpired: Queued,
	},
	Dead: {Replay: Queued},
}

// After returns the state that event leads to, and whether the event can happen in state s.
func (s State) After(event Event) (State, bool) {
	to, ok := arrows[s][event]
	return to, ok
}

// FreeLeases is how many holds and expired leases of one job cost no attempt; every further one
// does.
const FreeLeases = 20
