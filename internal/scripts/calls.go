package scripts

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// At is the instant of a call: empty for the server's clock, or a decimal number of µs, for tests.
type At string

// AtInstant injects an instant instead of the server's clock.
func AtInstant(i shaper.Instant) At { return At(strconv.FormatInt(int64(i), 10)) }

// Retention is how long ended jobs and their keys are kept.
type Retention struct {
	Finished    time.Duration // jobs that succeeded, were cancelled or expired
	Dead        time.Duration
	Idempotency time.Duration // keys, after their job has ended

	DeadCapacity, DeadBytes int64 // dead letters of a flow and their bytes, at least 1
}

func (r Retention) args() []any {
	return []any{
		seconds(r.Finished), seconds(r.Dead), seconds(r.Idempotency), max(1, r.DeadCapacity),
		max(1, r.DeadBytes),
	}
}

func seconds(d time.Duration) int64 { return max(1, int64(d/time.Second)) }

// AdmitCall admits jobs of one shard, or refuses them.
type AdmitCall struct {
	At                           At
	Clock, Due, Expires, Tenants string // keys
	Horizon                      time.Duration
	Atomic                       bool
	NoBytes, NoTenants           bool  // the store accepts no more of them
	Share                        int64 // bytes that may be stored of a flow; 0: no bound
	Retention                    Retention
	Pools                        bool // the shard may have pools
	// Types is whether the call tells the types of its jobs, which costs each about 30 bytes. It is
	// set once a policy has needed them; nil: each call finds out.
	Types *atomic.Bool
	Flows []AdmitFlow
	Jobs  []AdmitJob
}

// AdmitFlow is a flow that jobs of the call belong to.
type AdmitFlow struct {
	Flow, Queue, Later, Lines, Names string // keys
	Tier                             string // that the tenant's credential claims, as in keys; empty for none
	Entry                            string // of the tenant, in the tenants key
	Class                            Class  // that the tenant is in unless it has settings of its own
	Estimated                        bool   // shaper.Request.Estimated
}

// Class is a number of tenants that share a part of the store. The zero value is none. Without a
// name it is what tenants without settings of their own may store.
type Class struct {
	Name      string // without blanks
	NoBytes   bool   // it has no bytes left
	NoTenants bool   // it accepts no tenants that are not in the index
	Share     int64  // bytes that may be stored of the flow; 0: as of any flow
}

// AdmitJob is one job to admit.
type AdmitJob struct {
	Flow        int    // index in Flows
	Key         string // of the record
	IdemKey     string // key of the idempotency entry; empty for none
	IdemHash    string // as the record keeps it; empty for none
	Fingerprint string
	Delay       time.Duration
	MaxWaitMS   int64 // 0: the policy's
	Type        string
	Rest        []byte // Record.Rest
}

// StoredBytes is about the size of the job in Redis.
func (j AdmitJob) StoredBytes() int64 { return recordBytes + int64(fieldCost.at) + int64(len(j.Rest)) }

// Decision is the decision on one job.
type Decision struct {
	shaper.Admission
	State   shaper.State   // of an admitted job
	Created shaper.Instant // when it was admitted, maybe by an earlier sending of the call
	Known   KnownJob       // of a replayed or reused key

	Members   int64 // tenants of the flow's class in the shard, -1 if unknown
	NewTenant bool  // the call has put the tenant into the index; of the first job of its flow
	Refused   int   // index of the job for which an atomic batch was refused
}

// KnownJob is a job as its idempotency key describes it. State and the fields behind it are set
// once the job has ended.
type KnownJob struct {
	ID          string
	State       shaper.State
	Created     shaper.Instant
	Finished    shaper.Instant
	Attempts    int
	MaxAttempts int
}

var outcomes = []shaper.Outcome{1: shaper.Admitted, 2: shaper.Replayed, 3: shaper.Full, 4: shaper.DeadlineUnreachable, 5: shaper.KeyReused, 6: shaper.Draining,
	7: shaper.FullOfBytes, 8: shaper.StoreFull, 9: shaper.OverShare, poolFull: shaper.Full, poolFullOfBytes: shaper.FullOfBytes,
	partFull: shaper.Full, partFullOfBytes: shaper.FullOfBytes, tooCostly: shaper.TooCostly, tooCostlyInPool: shaper.TooCostly,
	classFull: shaper.StoreFull, denied: shaper.Denied, typeDenied: shaper.TypeDenied}

// The outcomes of a job whose pool is full, or the part of it that the flow may hold, of one that
// costs too much for its flow or its pool, of one whose class has used its part of the store, of
// one whose tenant may not use the route, and of one whose type the tenant may not use.
const poolFull, poolFullOfBytes, partFull, partFullOfBytes, tooCostly, tooCostlyInPool, classFull, denied, typeDenied = 10, 11, 12, 13, 14, 15, 16, 17, 18

// outcome reads the outcome of an admission.
func (r *reader) outcome(a *shaper.Admission) {
	code := r.int()
	if code < 1 || code >= int64(len(outcomes)) {
		r.fail("no such outcome")
		return
	}
	a.Outcome, a.OfPool = outcomes[code], code >= poolFull && code != tooCostly && code < classFull
	a.OfPart = code == partFull || code == partFullOfBytes || code == classFull
}

// Call is the call in the form that is sent.
func (c AdmitCall) Call() Call {
	typed := c.Types != nil && c.Types.Load()
	call := c.call(typed)
	if !typed {
		call.Typed = func() Call {
			if c.Types != nil {
				c.Types.Store(true)
			}
			return c.call(true)
		}
	}
	return call
}

// call makes the call, with the types of its jobs if typed.
func (c AdmitCall) call(typed bool) Call {
	keys := make([]string, 0, 4+5*len(c.Flows)+2*len(c.Jobs))
	args := make([]any, 0, 6+4*len(c.Flows)+2*len(c.Jobs))
	keys = append(keys, c.Clock, c.Due, c.Expires, c.Tenants)
	args = append(args, string(c.At), c.Horizon.Microseconds(), flag(c.Atomic), len(c.Flows), c.closed(),
		c.share())
	for _, f := range c.Flows {
		keys = append(keys, f.Flow, f.Queue, f.Later, f.Lines, f.Names)
		args = append(args, f.Tier, f.Entry, f.Class.arg(), flag(f.Estimated))
	}
	for _, j := range c.Jobs {
		keys = append(keys, j.Key)
		if j.IdemKey != "" {
			keys = append(keys, j.IdemKey)
		}
		asks := j.asks()
		if typed {
			asks = fmt.Sprintf("%s%s %v", beforeType, HashType(j.Type), asks)
		}
		args = append(args, asks, j.Rest)
	}
	return Commands.Admit.For(c.Pools).call(keys, args)
}

// beforeType stands before the hash of a type in the request of a job.
const beforeType = "="

// asks is the request of the job, beside its record.
func (j AdmitJob) asks() any {
	flow := j.Flow + 1
	switch {
	case j.IdemKey != "":
		return fmt.Sprintf("%d %d %d %s %s", flow, j.Delay.Microseconds(), j.MaxWaitMS, j.IdemHash, j.Fingerprint)
	case j.Delay != 0 || j.MaxWaitMS != 0:
		return fmt.Sprintf("%d %d %d", flow, j.Delay.Microseconds(), j.MaxWaitMS)
	}
	return flow
}

// closed lists what the store accepts no more of, by letters.
func (c AdmitCall) closed() string { return closed(c.NoBytes, c.NoTenants) }

func closed(noBytes, noTenants bool) (letters string) {
	if noBytes {
		letters += "b"
	}
	if noTenants {
		letters += "t"
	}
	return letters
}

func (c Class) arg() string {
	if c == (Class{}) {
		return ""
	}
	return fmt.Sprintf("%s:%d:%s", closed(c.NoBytes, c.NoTenants), max(0, c.Share), cmp.Or(c.Name, "-"))
}

// share is the bound of a flow's bytes, and the retentions that the script needs to count them.
func (c AdmitCall) share() string {
	share := max(0, c.Share)
	if share == 0 && slices.ContainsFunc(c.Flows, func(f AdmitFlow) bool { return f.Class.Share > 0 }) {
		share = 1<<53 - 1
	}
	r := c.Retention
	return fmt.Sprintf("%d %d %d %d", share, seconds(r.Finished), seconds(r.Dead), seconds(r.Idempotency))
}

// Decode reads the answer: one decision per job, in order.
func (c AdmitCall) Decode(values []any) ([]Decision, error) {
	r := reader{values: values}
	now := shaper.Instant(r.int())
	flows, numbers, details := r.list(), reader{values: r.list()}, r.list()
	if len(flows) != len(c.Flows) {
		r.fail("not one array per flow")
	}
	of := make([]Decision, len(flows)) // by flow, what all its jobs have in common
	stored, shares, fresh := make([]int64, len(flows)), make([]int64, len(flows)), make([]bool, len(flows))
	for i, item := range flows {
		fields, _ := item.([]any)
		f := reader{values: fields}
		of[i].Now, of[i].Rate = now, shaper.Rate{Limit: f.int(), Period: micros(f.int())}
		of[i].Capacity, of[i].CapacityBytes, of[i].NextSlot = f.int(), f.int(), micros(f.int())
		if f.more() {
			stored[i], shares[i] = f.int(), f.int()
		}
		if f.more() {
			fresh[i] = f.int() == 1
		}
		if of[i].Members = -1; f.more() {
			of[i].Members = f.int()
		}
		r.join(f)
	}
	jobs := c.Jobs
	whole, refused := r.more(), 0 // the batch was refused as a whole, by this flow and job
	if whole {
		jobs = []AdmitJob{{Flow: int(r.int()) - 1}}
		if refused = int(r.int()) - 1; refused < 0 || refused >= len(c.Jobs) {
			r.fail("no such job")
		}
	}
	out := make([]Decision, len(jobs), max(len(jobs), len(c.Jobs)))
	for i, j := range jobs {
		if j.Flow < 0 || j.Flow >= len(of) {
			r.fail("no such flow")
			return nil, r.err
		}
		out[i] = of[j.Flow]
		out[i].NewTenant, fresh[j.Flow] = fresh[j.Flow], false
		out[i].read(&numbers)
	}
	if numbers.more() {
		numbers.fail("not one decision per job")
	}
	r.join(numbers)
	for _, item := range details {
		fields, _ := item.([]any)
		d := reader{values: fields}
		if n := d.int(); n >= 1 && n <= int64(len(out)) {
			v := &out[n-1]
			if v.detail(&d); v.Outcome == shaper.OverShare {
				v.Stored, v.Share = stored[jobs[n-1].Flow], shares[jobs[n-1].Flow]
			}
		} else {
			d.fail("no such job")
		}
		r.join(d)
	}
	if whole {
		out[0].Refused = refused
	}
	for whole && len(out) < len(c.Jobs) {
		out = append(out, out[0])
	}
	return out, r.err
}

// read reads the numbers that every job has.
func (v *Decision) read(r *reader) {
	v.Depth, v.Bytes, v.Position, v.Start = r.int(), r.int(), r.int(), shaper.Instant(r.int())
	v.Remaining = max(0, v.Capacity-v.Depth)
	v.Outcome, v.State, v.Created = shaper.Admitted, shaper.Queued, v.Now
}

// detail reads the details of a job.
func (v *Decision) detail(r *reader) {
	if r.outcome(&v.Admission); v.Outcome != shaper.Admitted {
		v.State, v.Created = 0, 0
	}
	if state := r.text(); state != "" {
		v.State = shaper.State(state[0])
	}
	v.RetryAfter = micros(r.int())
	if created := shaper.Instant(r.int()); created != 0 {
		v.Created = created
	}
	switch known := r.text(); {
	case v.Outcome == shaper.TooCostly:
		if _, err := fmt.Sscan(known, &v.Cost, &v.MaxCost); err != nil {
			r.fail("not a cost and its bound")
		}
	case v.Outcome == shaper.Full || v.Outcome == shaper.FullOfBytes:
		fits := 0
		to := []any{&v.Asked, &v.AskedBytes, &fits}
		if v.OfPool {
			to = append(to, &v.Depth, &v.Capacity, &v.Bytes, &v.CapacityBytes)
		}
		if _, err := fmt.Sscan(known, to...); err != nil {
			r.fail("not the figures of a refusal")
		}
		v.Never, v.Estimated = fits == neverFits, fits == fitsByEstimate && v.RetryAfter > 0
		v.Remaining = max(0, v.Capacity-v.Depth)
	case known != "":
		v.Known = ParseKnown(known)
	}
}

// Whether and when a job that was refused as full fits; 1 is at the exact time that is told.
const neverFits, fitsByEstimate = 0, 2

// Grant is the answer to a poll: the jobs that it leased, if any.
type Grant struct {
	Now     shaper.Instant
	Next    shaper.Instant // the earliest instant at which something is due; 0 for none
	More    bool
	Help    bool
	Counter int64    // of the grant that Leases are; 0 when there is none
	Outbox  bool     // completions are due
	Needed  *Script  // that the caller runs next; nil for none
	Restore bool     // the caller makes a RestoreCall, and polls again
	Paused  bool     // since a failover; until Next
	Damaged []string // damaged items that were set aside, each with its error
	PutOff  int64    // number of flows that the bounds have put off
	Leases  []LeasedJob
}

// LeasedJob is a job as the tick found it, and the lease it gave.
type LeasedJob struct {
	ID       string
	Epoch    int64
	Stamp    shaper.Instant
	Ends     shaper.Instant
	Attempts int
	Eligible shaper.Instant
	Record   []byte
}

// TickCall polls a shard: it leases the jobs that may leave, or runs the script that a grant names
// as needed.
type TickCall struct {
	Script                                              *Script // that is needed; nil for Tick
	Pools                                               bool    // the shard may have pools
	At                                                  At
	Clock, Due, Expires, Leases, Grant, Tenants, Outbox string // keys
	Counter, Seen                                       int64  // of this call; of the last grant seen
	Max                                                 int
	Lease, Horizon, Lead, Sweep                         time.Duration
	Help                                                int  // 0 keep, 1 raise, 2 clear
	Helper                                              bool // not the shard's owner
	HandsOver                                           bool // the worker hands completions over
	Retention                                           Retention
	Restored                                            string // replication id of the last RestoreCall
	Bounds                                              []Bound
	Regulars                                            []string // flows and pools, as in keys, to look at first
}

// Bound bounds what a poll may lease.
type Bound struct {
	Name  string // of a route or of a flow, as in keys
	Slots int    // of a route: its free slots; of a flow: the slots that it holds
}

// Call is the call in the form that is sent.
func (c TickCall) Call() Call {
	args := append([]any{
		string(c.At), c.Counter, c.Seen, c.Max, c.Lease.Microseconds(), c.Horizon.Microseconds(),
		c.Sweep.Microseconds(), c.Help,
	}, append(c.Retention.args(), flag(c.Helper), flag(c.HandsOver), c.Lead.Microseconds(), c.Restored)...)
	for _, b := range c.Bounds {
		args = append(args, b.Name, b.Slots)
	}
	for _, name := range c.Regulars {
		args = append(args, name, "")
	}
	script := c.Script
	if script == nil {
		script = Commands.Tick.For(c.Pools)
	}
	return script.call([]string{c.Clock, c.Due, c.Expires, c.Leases, c.Grant, c.Tenants, c.Outbox}, args)
}

// Decode reads the answer.
func (c TickCall) Decode(values []any) (Grant, error) {
	r := reader{values: values}
	g := Grant{
		Now: shaper.Instant(r.int()), Next: shaper.Instant(r.int()), More: r.int() == 1, Help: r.int() == 1,
		Counter: r.int(), Outbox: r.int() == 1,
	}
	if name := r.text(); name == Commands.Restore.Name {
		g.Restore, g.Paused = g.Next == 0, g.Next != 0
	} else if name != "" {
		if g.Needed = neededBy(name); g.Needed == nil {
			r.fail("no such script is needed")
		}
	}
	if damaged := r.text(); damaged != "" {
		g.Damaged = strings.Split(damaged, "\n")
	}
	g.PutOff = r.int()
	if n := (len(values) - r.at) / 3; n > 0 {
		g.Leases = make([]LeasedJob, 0, n)
	}
	for r.more() {
		l := LeasedJob{ID: r.text(), Stamp: shaper.Instant(r.int()), Record: []byte(r.text())}
		l.Ends = max(g.Now, l.Stamp).Add(c.Lease)
		if len(l.Record) >= HeadLength { // else DecodeRecord refuses it
			var state shaper.State
			if state, l.Epoch, l.Attempts, l.Eligible = leaseOf(l.Record); state != shaper.Leased {
				l.Epoch++ // the record is as it was before
			}
		}
		g.Leases = append(g.Leases, l)
	}
	return g, r.err
}

// neededBy is the script with the name that a poll may need, nil for none.
func neededBy(name string) *Script {
	for _, s := range []*Script{Commands.Redeliver, Commands.Reclaim, Commands.Expire, Commands.Retune, Commands.Forget} {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Polls reports whether the script is one of a worker's poll.
func (s *Script) Polls() bool { return s.File() == Commands.Tick.Name || neededBy(s.Name) == s }

// SettleCall ends leases of one shard.
type SettleCall struct {
	At                                  At
	Clock, Due, Expires, Leases, Outbox string // keys
	Horizon                             time.Duration
	Retention                           Retention
	Pools                               bool        // the shard may have pools
	Kept                                *KeptBounds // in a call for forwarded requests; nil in any other
	Items                               []SettleItem
}

// KeptBounds bound the answers to forwarded requests.
type KeptBounds struct {
	Most    int64            // bytes of a flow
	Classes map[string]int64 // bytes that the tenants of a class may store yet
}

// SettleItem ends one lease.
type SettleItem struct {
	Key         string // of the record
	Epoch       int64
	Outcome     Outcome
	Delay       time.Duration // Retry: until eligible; Held: how long the flow is held
	MaxAttempts int           // 0 keeps those of the job
	Result      []byte        // empty keeps the one there is
	// Aside, the key of a result from AsideFrom bytes on, is where it is put for the script, which
	// makes it the record. It needs PayloadAt, the offset of the payload in the record. Only a job
	// that succeeds has one.
	Aside      string
	PayloadAt  int
	Cause      string // Held: why, without blanks; empty if unknown
	ActualCost *int64 // replaces the cost that the departure was charged for; nil keeps it
}

// Outcome is how a lease ended, as the record keeps it.
type Outcome byte

// The outcomes of a lease.
const (
	OutcomeSucceeded Outcome = 'S'
	OutcomeRetry     Outcome = 'r'
	OutcomeOverload  Outcome = 'o' // a retry because the upstream is overloaded: it slows the flow
	OutcomeDead      Outcome = 'd'
	OutcomeFailed    Outcome = 'f' // dead, and kept like a finished job: it cannot be replayed
	OutcomeHeld      Outcome = 'h'
	OutcomeReleased  Outcome = 'R'
	OutcomeMissed    Outcome = 'm' // released because it came too late to leave at its stamp
	OutcomeLapsed    Outcome = 'x' // not heard of in time, or cut off because the worker stopped
)

// SettleCode is the script's answer for one lease.
type SettleCode int64

// The answers.
const (
	CodeSettled  SettleCode = 1
	CodeRepeated SettleCode = 2
	CodeStale    SettleCode = 3
	CodeDied     SettleCode = 4 // settled or repeated: the hold cost the last attempt
	CodeCut      SettleCode = 5 // settled: the pool is charged for less than the actual cost
)

// A result from AsideFrom bytes on may be put aside, for asideKept: it is needed by the script that
// comes right behind it.
const (
	AsideFrom = 16 << 10
	asideKept = time.Minute
)

// Call is the call in the form that is sent.
func (c SettleCall) Call() Call {
	keys := append(make([]string, 0, 5+len(c.Items)), c.Clock, c.Due, c.Expires, c.Leases, c.Outbox)
	args := append(make([]any, 0, 8+5*len(c.Items)), string(c.At), c.Horizon.Microseconds())
	kept := ""
	if c.Kept != nil {
		kept = strconv.FormatInt(max(0, c.Kept.Most), 10)
		for class, room := range c.Kept.Classes {
			kept += " " + class + " " + strconv.FormatInt(room, 10)
		}
	}
	args = append(append(args, c.Retention.args()...), kept)
	var before []Command
	for _, s := range c.Items {
		keys = append(keys, s.Key)
		if s.Outcome == OutcomeSucceeded && s.Delay == 0 && s.MaxAttempts == 0 && len(s.Result) == 0 && s.ActualCost == nil {
			args = append(args, "S"+strconv.FormatInt(s.Epoch, 10))
			continue
		}
		outcome := string(rune(s.Outcome)) + s.Cause
		if s.ActualCost != nil {
			outcome += " " + strconv.FormatInt(*s.ActualCost, 10)
		}
		if s.Aside == "" {
			args = append(args, s.Epoch, outcome, s.Delay.Microseconds(), s.MaxAttempts, s.Result)
			continue
		}
		args = append(args, "A"+strconv.FormatInt(s.Epoch, 10), outcome, s.Delay.Microseconds(), s.MaxAttempts, len(s.Result))
		record := append(make([]byte, s.PayloadAt, s.PayloadAt+len(s.Result)), s.Result...)
		before = append(before, Command{Args: []any{"set", s.Aside, record, "px", asideKept.Milliseconds()}})
	}
	call := Commands.Settle.For(c.Pools).call(keys, args)
	if call.Before = before; len(before) > 0 {
		call.Inline = func() Call {
			inline := c
			inline.Items = slices.Clone(c.Items)
			for i := range inline.Items {
				inline.Items[i].Aside = ""
			}
			return inline.Call()
		}
	}
	return call
}

// Decode reads the answer: one code per item, in order.
func (c SettleCall) Decode(values []any) ([]SettleCode, error) {
	r := reader{values: values}
	r.int() // the instant
	text := r.text()
	if r.more() || len(text) != len(c.Items) {
		r.fail("not a code per item")
		return nil, r.err
	}
	codes := make([]SettleCode, len(text))
	for i := range codes {
		if codes[i] = SettleCode(text[i]) - '0'; codes[i] < CodeSettled || codes[i] > CodeCut {
			r.fail("an unknown code")
		}
	}
	return codes, r.err
}

// ExtendCall extends leases of one shard.
type ExtendCall struct {
	At            At
	Clock, Leases string // keys
	Lease         time.Duration
	Jobs          []string // keys of the records
	Epochs        []int64
}

// Call is the call in the form that is sent.
func (c ExtendCall) Call() Call {
	keys := append([]string{c.Clock, c.Leases}, c.Jobs...)
	args := append(make([]any, 0, 2+len(c.Epochs)), string(c.At), c.Lease.Microseconds())
	for _, e := range c.Epochs {
		args = append(args, e)
	}
	return Commands.Extend.call(keys, args)
}

// Decode reads the answer: 1 per lease that is extended, 0 per lease that is no longer current.
func (c ExtendCall) Decode(values []any) ([]int64, error) {
	return decodeCodes[int64](values, len(c.Jobs))
}

// Now reads the instant that every answer begins with.
func Now(values []any) (shaper.Instant, error) {
	r := reader{values: values}
	return shaper.Instant(r.int()), r.err
}

func decodeCodes[T ~int64](values []any, n int) ([]T, error) {
	r := reader{values: values}
	r.int()
	out := make([]T, 0, n)
	for r.more() {
		out = append(out, T(r.int()))
	}
	if len(out) != n {
		r.fail("not one code per item")
	}
	return out, r.err
}

// ParseKnown reads the value of an idempotency key; the zero value when it is empty.
func ParseKnown(text string) (k KnownJob) {
	fields := strings.Fields(text)
	if len(fields) > 0 {
		k.ID = fields[0]
	}
	if len(fields) >= 7 {
		k.State = shaper.State(fields[2][0])
		// A malformed number leaves out the facts from there on.
		_, _ = fmt.Sscan(strings.Join(fields[3:7], " "), &k.Created, &k.Finished, &k.Attempts, &k.MaxAttempts)
	}
	return k
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
