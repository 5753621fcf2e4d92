package lua

import (
	"strconv"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// TuneCall changes what one source says of a tenant.
type TuneCall struct {
	At                                                 At
	Clock, Due, Policy, History, Names, Tenants, Filed string // keys
	Horizon                                            time.Duration
	Baseline                                           string
	Name                                               string // of this call; the same when it is sent again
	Expected                                           *int64 // revision; nil for any
	Source                                             string // "api" or "file"
	Says                                               string // what the source says, empty for nothing
	Effective                                          string // EncodeStatements
	Reason, HistoryEntry                               string
	Entry                                              string // of the tenant, in the tenants and filed keys
	EndHolds                                           bool
}

// Call is the call in the form that is sent.
func (c TuneCall) Call() Call {
	expected := ""
	if c.Expected != nil {
		expected = strconv.FormatInt(*c.Expected, 10)
	}
	return Call{Commands.Tune, []string{c.Clock, c.Due, c.Policy, c.History, c.Names, c.Tenants, c.Filed}, []any{
		string(c.At), c.Horizon.Microseconds(), c.Baseline, c.Name, expected, c.Source, c.Says, c.Effective, c.Reason, c.HistoryEntry, c.Entry,
		flag(c.EndHolds),
	}}
}

// Decode reads the answer: whether the change was made, and the revision in force.
func (c TuneCall) Decode(values []any) (changed bool, revision int64, err error) {
	codes, err := decodeCodes[int64](values, 2)
	if err != nil {
		return false, 0, err
	}
	return codes[0] == 1, codes[1], nil
}

// DeclareCall puts a baseline into force in a shard.
type DeclareCall struct {
	At       At
	Clock    string // key
	Revision int64
	Baseline string // EncodeBaseline
}

// Call is the call in the form that is sent.
func (c DeclareCall) Call() Call {
	return Call{Commands.Declare, []string{c.Clock}, []any{string(c.At), c.Revision, c.Baseline}}
}

// Decode reads the answer: whether the baseline is in force, not one of a later revision.
func (c DeclareCall) Decode(values []any) (inForce bool, err error) {
	codes, err := decodeCodes[int64](values, 1)
	return err == nil && codes[0] == 1, err
}

// BeatCall says that a worker lives.
type BeatCall struct {
	At             At
	Clock, Workers string // keys
	Worker         string
	TTL            time.Duration
	Leave          bool
}

// Call is the call in the form that is sent.
func (c BeatCall) Call() Call {
	return Call{Commands.Beat, []string{c.Clock, c.Workers}, []any{string(c.At), c.Worker, c.TTL.Microseconds(), flag(c.Leave)}}
}

// Decode reads the answer: what the clock says, and the live workers.
func (c BeatCall) Decode(values []any) (now shaper.Instant, live []string, err error) {
	r := reader{values: values}
	now = shaper.Instant(r.int())
	for r.more() {
		live = append(live, r.text())
	}
	return now, live, r.err
}
