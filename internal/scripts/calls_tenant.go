package scripts

import (
	"strconv"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// TuneCall changes the settings of a tenant in one source, and the lines that its flows obey.
type TuneCall struct {
	At                                                        At
	Clock, Due, Policy, History, Names, Tenants, Tuned, Lines string // keys
	Horizon                                                   time.Duration
	Policies                                                  int64  // revision of the shard's policies that Settings were resolved with
	Name                                                      string // of this call; the same when it is sent again
	Expected                                                  *int64 // revision of the tenant; nil for any
	Source                                                    string // "api" or "file"; empty where only the lines change; TunePart
	Says                                                      string // settings of the source, empty for none
	Reason, HistoryEntry                                      string // of the API
	Entry                                                     string // of the tenant, in the tenants and tuned keys
	EndHolds                                                  bool
	EndCharge                                                 bool  // with EndHolds, of a pool
	Settings                                                  Lines // of the tenant's flows; none without settings of its own
}

// TunePart is the source of a call to a shard that holds flows of the tenant, but not its settings.
// Expected is their revision then.
const TunePart = "part"

// Tuned is the result of a TuneCall.
type Tuned int64

// The answers.
const (
	TunedOtherTenant   Tuned = 0 // the tenant is at another revision
	TunedChanged       Tuned = 1
	TunedOtherPolicies Tuned = 2 // the shard's policies are at another revision
)

// Call is the call in the form that is sent.
func (c TuneCall) Call() Call {
	expected := ""
	if c.Expected != nil {
		expected = strconv.FormatInt(*c.Expected, 10)
	}
	unhold := flag(c.EndHolds)
	if c.EndCharge {
		unhold = "2"
	}
	return Commands.Tune.call([]string{
		c.Clock, c.Due, c.Policy, c.History, c.Names, c.Tenants, c.Tuned, c.Lines,
	}, append([]any{
		string(c.At), c.Horizon.Microseconds(), c.Policies, c.Name, expected, c.Source, c.Says, c.Reason,
		c.HistoryEntry, c.Entry, unhold,
	}, c.Settings.args()...))
}

// Decode reads the answer, and the revision of the tenant that is in force.
func (c TuneCall) Decode(values []any) (tuned Tuned, revision int64, err error) {
	codes, err := decodeCodes[int64](values, 2)
	if err != nil {
		return TunedOtherTenant, 0, err
	}
	return Tuned(codes[0]), codes[1], nil
}

// DeclareCall puts the policies of a configuration file into force in a shard.
type DeclareCall struct {
	At           At
	Clock, Lines string // keys
	Revision     int64
	Settings     Lines // of tenants without settings of their own
}

// Call is the call in the form that is sent.
func (c DeclareCall) Call() Call {
	return Commands.Declare.call([]string{c.Clock, c.Lines},
		append([]any{string(c.At), c.Revision}, c.Settings.args()...))
}

// Decode reads the answer: whether these policies are in force, not those of a later revision.
func (c DeclareCall) Decode(values []any) (inForce bool, err error) {
	codes, err := decodeCodes[int64](values, 1)
	return err == nil && codes[0] == 1, err
}

// Channels of a shard, which scripts publish on.
const (
	WakeChannel  = "wake"   // the shard has work: "", or "help" where its owner has no capacity
	EndedChannel = "ended:" // and the id of a job: it has ended
	PartMessage  = "p"      // there: only a part of its answer has come
	ProbeChannel = "probe"  // has subscribers find out that they hear nothing
)

// PublishCall sends a message on a channel of a shard, the way scripts do.
type PublishCall struct {
	Clock            string // key
	Channel, Message string
}

// Call is the call in the form that is sent.
func (c PublishCall) Call() Call {
	return Commands.Publish.call([]string{c.Clock}, []any{c.Channel, c.Message})
}

// Decode reads the answer: whether the channels of the shard are sharded.
func (c PublishCall) Decode(values []any) (sharded bool, err error) {
	r := reader{values: values}
	return r.int() == 1, r.err
}

// HeartbeatCall registers a live worker, or removes one that leaves.
type HeartbeatCall struct {
	At             At
	Clock, Workers string // keys
	Worker         string
	TTL            time.Duration
	Leave          bool
}

// Call is the call in the form that is sent.
func (c HeartbeatCall) Call() Call {
	return Commands.Heartbeat.call([]string{c.Clock, c.Workers},
		[]any{string(c.At), c.Worker, c.TTL.Microseconds(), flag(c.Leave)})
}

// Decode reads the answer: the instant, and the live workers.
func (c HeartbeatCall) Decode(values []any) (now shaper.Instant, live []string, err error) {
	r := reader{values: values}
	now = shaper.Instant(r.int())
	for r.more() {
		live = append(live, r.text())
	}
	return now, live, r.err
}

// UsedCall stores when API keys of one shard were last used.
type UsedCall struct {
	Clock string // key
	Keys  []string
	At    []time.Time // by key
}

// Call is the call in the form that is sent.
func (c UsedCall) Call() Call {
	args := make([]any, len(c.At))
	for i, at := range c.At {
		args[i] = at.UnixMilli()
	}
	return Commands.Used.call(append([]string{c.Clock}, c.Keys...), args)
}

// Decode reads the answer: how many keys are there and had no later use.
func (c UsedCall) Decode(values []any) (stored int64, err error) {
	r := reader{values: values}
	for r.more() {
		stored += r.int()
	}
	return stored, r.err
}
