package lua

import (
	"strconv"
	"strings"
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

// StatCall reads a tenant.
type StatCall struct {
	At                   At
	Clock, Policy, Names string // keys
	Baseline             string
	Dead                 time.Duration // retention of dead letters
}

// Stat is a tenant's policy as each source states it, and its flows.
type Stat struct {
	Now       shaper.Instant
	Revision  int64
	API, File string
	Reason    string
	Flows     []FlowStat
}

// FlowStat is the figures of one flow.
type FlowStat struct {
	Flow                                          string // as in keys
	Depth, Queued, Running                        int64
	Earliest, HeldUntil                           shaper.Instant
	Admitted, Rejected, Departed, Succeeded, Dead int64
	Oldest                                        shaper.Instant // since when its oldest job could have left; 0 for none
	Pace                                          float64        // part of its rate that is in force, up to 1
	FullUntil                                     shaper.Instant // stopped until then by its dead letters; 0 when it is not
	Bytes                                         int64          // of the payloads of the jobs that hold a place
	Tier                                          string         // that the tenant's credential claimed last
	Hindered                                      Hindrance
	Letters                                       int64       // dead letters that can be replayed
	Cause                                         string      // of its hold, as it was settled; empty where none is known
	Live, DeadBytes                               int64       // stored of waiting and leased jobs, of dead letters; not by a census
	Answers, Keys                                 shaper.Aged // stored of jobs that ended otherwise, of idempotency keys that outlive theirs; not by a census
}

// Hindrance is what a worker last reported to keep a flow from leaving, beside its policy.
type Hindrance struct {
	Cause string // as limited_by shows it
	Until shaper.Instant
}

// parseHindrance reads a hindrance as lib/flow.lua writes it. A text in another form hinders nothing.
func parseHindrance(text string) Hindrance {
	until, cause, _ := strings.Cut(text, ":")
	at, err := strconv.ParseInt(until, 10, 64)
	if err != nil || cause == "" {
		return Hindrance{}
	}
	return Hindrance{Cause: cause, Until: shaper.Instant(at)}
}

// Call is the call in the form that is sent.
func (c StatCall) Call() Call {
	return Call{Commands.Stat, []string{c.Clock, c.Policy, c.Names}, []any{string(c.At), c.Baseline, seconds(c.Dead)}}
}

// Decode reads the answer.
func (c StatCall) Decode(values []any) (Stat, error) {
	r := reader{values: values}
	s := Stat{Now: shaper.Instant(r.int()), Revision: r.int(), API: r.text(), File: r.text(), Reason: r.text()}
	for r.more() {
		s.Flows = append(s.Flows, FlowStat{
			Flow: r.text(), Depth: r.int(), Queued: r.int(), Running: r.int(), Earliest: shaper.Instant(r.int()), HeldUntil: shaper.Instant(r.int()),
			Admitted: r.int(), Rejected: r.int(), Departed: r.int(), Succeeded: r.int(), Dead: r.int(), Oldest: shaper.Instant(r.int()),
			Pace: float64(r.int()) / 1e6, FullUntil: shaper.Instant(r.int()), Tier: r.text(), Bytes: r.int(), Hindered: parseHindrance(r.text()),
			Letters: r.int(), Cause: known(r.text()),
			Live: r.int(), DeadBytes: r.int(), Answers: r.aged(), Keys: r.aged(),
		})
	}
	return s, r.err
}

// known is the cause of a hold as the scripts keep it, empty for none.
func known(cause string) string {
	if cause == "0" {
		return ""
	}
	return cause
}

func (r *reader) aged() shaper.Aged {
	return shaper.Aged{Sum: r.int(), Before: r.int(), Since: shaper.Instant(r.int())}
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
