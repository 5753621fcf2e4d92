package scripts

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// JobCode is the answer of cancel and replay for one job.
type JobCode int64

// The answers.
const (
	JobAbsent   JobCode = 0
	JobDone     JobCode = 1 // cancelled; or, of a replay, admitted or refused
	JobDeleted  JobCode = 2
	JobConflict JobCode = 3 // not possible in the job's state
)

// CancelCall ends waiting jobs of one tenant, and deletes dead ones.
type CancelCall struct {
	At                          At
	Clock, Due, Expires, Outbox string   // keys
	Jobs                        []string // keys of the records
	Tenant                      string   // as in keys
	Horizon                     time.Duration
	Dead                        bool // delete dead jobs
	Retention                   Retention
}

// Call is the call in the form that is sent.
func (c CancelCall) Call() Call {
	return Commands.Cancel.call(append([]string{c.Clock, c.Due, c.Expires, c.Outbox}, c.Jobs...),
		append([]any{string(c.At), c.Tenant, c.Horizon.Microseconds(), flag(c.Dead)}, c.Retention.args()...))
}

// Decode reads the answer: JobAbsent, JobDone, JobDeleted or JobConflict per job, in order.
func (c CancelCall) Decode(values []any) ([]JobCode, error) {
	return decodeCodes[JobCode](values, len(c.Jobs))
}

// EraseCall removes a flow that has no jobs.
type EraseCall struct {
	At               At
	Clock, Due, Flow string // keys
	Horizon          time.Duration
}

// Call is the call in the form that is sent.
func (c EraseCall) Call() Call {
	return Commands.Erase.call([]string{c.Clock, c.Due, c.Flow}, []any{string(c.At), c.Horizon.Microseconds()})
}

// Erasure is the answer of erase.
type Erasure struct {
	Busy    bool  // the flow has jobs, and stays
	Answers int64 // to forwarded requests, that it had
}

// Decode reads the answer.
func (c EraseCall) Decode(values []any) (Erasure, error) {
	r := reader{values: values}
	e := Erasure{Busy: r.int() == 0, Answers: r.int()}
	if r.more() {
		r.fail("too many values")
	}
	return e, r.err
}

// ReplayCall brings a dead job back.
type ReplayCall struct {
	At                               At
	Clock, Due, Expires, Job, Outbox string // keys
	Tenant                           string // as in keys
	Horizon                          time.Duration
	// Tag is not 0. It is the same when the call is sent again, and differs between calls.
	Tag                     uint32
	MaxAttempts             int
	DeadCapacity, DeadBytes int64
	Tier                    *string // that the client's credential claims, as in keys; nil: as last
	Type                    string  // of the job
}

// Call is the call in the form that is sent.
func (c ReplayCall) Call() Call {
	args := []any{
		string(c.At), c.Tenant, c.Horizon.Microseconds(), c.Tag, c.MaxAttempts, max(1, c.DeadCapacity),
		max(1, c.DeadBytes), HashType(c.Type),
	}
	if c.Tier != nil {
		args = append(args, *c.Tier)
	}
	return Commands.Replay.call([]string{c.Clock, c.Due, c.Expires, c.Job, c.Outbox}, args)
}

// Decode reads the answer. The admission is set for JobDone: its outcome may be a refusal.
func (c ReplayCall) Decode(values []any) (JobCode, shaper.Admission, error) {
	r := reader{values: values}
	a := shaper.Admission{Now: shaper.Instant(r.int())}
	code := JobCode(r.int())
	if code == JobDone {
		r.outcome(&a)
		a.Position, a.Start = r.int(), shaper.Instant(r.int())
		a.Depth, a.Capacity, a.RetryAfter = r.int(), r.int(), micros(r.int())
		a.Remaining = max(0, a.Capacity-a.Depth)
		a.Rate = shaper.Rate{Limit: r.int(), Period: micros(r.int())}
		a.Bytes, a.CapacityBytes = r.int(), r.int()
		bytes, fits := r.int(), r.int()
		if a.Outcome == shaper.Full || a.Outcome == shaper.FullOfBytes {
			a.Asked, a.AskedBytes = 1, bytes
			a.Never, a.Estimated = fits == neverFits, fits == fitsByEstimate && a.RetryAfter > 0
		}
	}
	return code, a, r.err
}

// StatusCall reads one job.
type StatusCall struct {
	At         At
	Clock, Job string // keys
	Tenant     string // as in keys
	MostResult int    // bytes of the result
}

// Status is the current state of a job.
type Status struct {
	Now      shaper.Instant
	Found    bool
	Position int64
	Start    shaper.Instant
	Record   []byte // without its payload; the result may be cut
}

// Call is the call in the form that is sent.
func (c StatusCall) Call() Call {
	return Commands.Status.call([]string{c.Clock, c.Job}, []any{string(c.At), c.Tenant, c.MostResult})
}

// Decode reads the answer.
func (c StatusCall) Decode(values []any) (Status, error) {
	r := reader{values: values}
	s := Status{
		Now: shaper.Instant(r.int()), Found: r.int() == 1, Position: r.int(), Start: shaper.Instant(r.int()),
		Record: []byte(r.text()),
	}
	return s, r.err
}
