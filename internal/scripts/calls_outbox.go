package scripts

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// ClaimCall leases completions of one shard.
type ClaimCall struct {
	At                   At
	Clock, Outbox, Claim string // keys
	Name                 string // of this call, without spaces; the same when it is sent again
	Max                  int
	Lease                time.Duration
}

// Claim is the completions that the caller has leased.
type Claim struct {
	More bool // more are due
	Jobs []ClaimedJob
}

// ClaimedJob is a job that has ended, and its record without the payload.
type ClaimedJob struct {
	ID     string
	Record []byte
}

// Call is the call in the form that is sent.
func (c ClaimCall) Call() Call {
	return Commands.Claim.call([]string{c.Clock, c.Outbox, c.Claim},
		[]any{string(c.At), c.Name, c.Max, c.Lease.Microseconds()})
}

// Decode reads the answer.
func (c ClaimCall) Decode(values []any) (Claim, error) {
	r := reader{values: values}
	r.int()
	claim := Claim{More: r.int() == 1}
	for r.more() {
		claim.Jobs = append(claim.Jobs, ClaimedJob{ID: r.text(), Record: []byte(r.text())})
	}
	return claim, r.err
}

// HandedCall acknowledges completions and removes them from the outbox.
type HandedCall struct {
	At            At
	Clock, Outbox string // keys
	Retention     Retention
	Jobs          []HandedJob
}

// HandedJob is one end of a job.
type HandedJob struct {
	Key   string // of the record
	Epoch int64
	State shaper.State
}

// Call is the call in the form that is sent.
func (c HandedCall) Call() Call {
	keys := append(make([]string, 0, 2+len(c.Jobs)), c.Clock, c.Outbox)
	args := append(make([]any, 0, 3+2*len(c.Jobs)), string(c.At), seconds(c.Retention.Finished),
		seconds(c.Retention.Dead))
	for _, j := range c.Jobs {
		keys = append(keys, j.Key)
		args = append(args, j.Epoch, string(rune(j.State)))
	}
	return Commands.Handed.call(keys, args)
}

// Decode reads the answer: 1 per completion that was removed, 0 per one that was not there.
func (c HandedCall) Decode(values []any) ([]int64, error) {
	return decodeCodes[int64](values, len(c.Jobs))
}
