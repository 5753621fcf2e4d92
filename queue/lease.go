package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

const (
	leaseMost   = 1000      // leases of one poll
	settleMost  = 500       // items of one settling or extending call
	maxAttempts = 1<<16 - 1 // that a record can count
)

// Consumer leases jobs of one shard for one worker. It numbers its polls, so that a poll whose
// answer was lost is answered again with the same jobs. Not safe for concurrent use.
type Consumer struct {
	q       *Queue
	shard   ShardKeys
	worker  string
	counter int64
	seen    int64
	needed  *lua.Script // what an answer that brought jobs said is to be done besides
}

// Consumer returns a consumer of the shard for the worker with this id, which must be unique to the
// process. There may be only one consumer for a worker and a shard.
func (q *Queue) Consumer(worker string, shard int) *Consumer {
	return &Consumer{q: q, shard: q.keys.Shard(shard), worker: worker, counter: 1}
}

// Tick polls the shard: promotes what is due, expires, sweeps, leases. After an error
// (ErrUnavailable) call it again.
func (c *Consumer) Tick(ctx context.Context, o TickOptions) (Tick, error) {
	needed := c.needed
	c.needed = nil
	grant, reading, err := c.poll(ctx, o, needed)
	if err == nil && len(grant.Leases) == 0 && (needed != nil || grant.Needed != nil) {
		// The call did what an earlier answer had left, or its answer only says what is to be done
		// first.
		grant, reading, err = c.poll(ctx, o, grant.Needed)
	}
	if err != nil {
		return Tick{}, err
	}
	// Jobs that were leased do not wait until something else is done: the next poll begins with it.
	c.needed = grant.Needed
	tick := Tick{
		Reading: reading, Next: grant.Next, More: grant.More, Help: grant.Help, Outbox: grant.Outbox, PutOff: grant.Kept, Damaged: grant.Damaged,
	}
	for _, l := range grant.Leases {
		lease, err := leaseOf(l)
		if err != nil {
			// The lease runs out and the job is taken up again; one job that cannot be read must
			// not stop the others.
			tick.Damaged = append(tick.Damaged, fmt.Sprintf("job %s: %v", l.ID, err))
			continue
		}
		tick.Leases = append(tick.Leases, lease)
	}
	if c.q.mender.mendAside(ctx, c.shard, tick.Damaged) {
		tick.Damaged, tick.More = nil, true // what is left of it, the next poll sets aside
	}
	c.q.setAside("tick", len(tick.Damaged))
	return tick, nil
}

// poll makes one call of a poll: of tick, or of the script that is needed.
func (c *Consumer) poll(ctx context.Context, o TickOptions, needed *lua.Script) (lua.Grant, Reading, error) {
	s := c.shard
	call := lua.TickCall{
		Script: needed,
		Clock:  s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Grant: s.Grant(c.worker), Tenants: s.Tenants(), Outbox: s.Outbox(),
		Counter: c.counter, Seen: c.seen, Max: min(o.Max, leaseMost), Lease: o.Lease, Horizon: o.Horizon, Lead: o.Lead, Sweep: o.Sweep, Help: int(o.Help), Helper: o.Helper, HandsOver: o.Outbox,
		Retention: c.q.retention, Bounds: boundsOf(o.Bounds),
	}
	values, reading, err := c.q.timed(ctx, call.Call())
	if err != nil {
		return lua.Grant{}, reading, fmt.Errorf("shard %d: %w", s.Index, err)
	}
	grant, err := call.Decode(values)
	if err != nil {
		return grant, reading, unavailable(err)
	}
	c.counter++
	if grant.Counter != 0 {
		c.seen = grant.Counter
	}
	reading.Now = grant.Now
	return grant, reading, nil
}

func boundsOf(bounds []Bound) []lua.Bound {
	if len(bounds) == 0 {
		return nil
	}
	out := make([]lua.Bound, len(bounds))
	for i, b := range bounds {
		out[i] = lua.Bound{Name: EncodeName(b.Route), Places: b.Places}
		if b.Tenant != "" {
			out[i].Name = flowName(b.Tenant, b.Route)
		}
	}
	return out
}

// Clock reads the shard's clock. Its answer comes sooner than that of a poll which leases jobs, and
// so says more exactly when it was read: about midway.
func (c *Consumer) Clock(ctx context.Context) (Reading, error) {
	call := lua.HeartbeatCall{Clock: c.shard.Clock(), Leases: c.shard.Leases()} // for no lease
	values, reading, err := c.q.timed(ctx, call.Call())
	if err != nil {
		return Reading{}, err
	}
	reading.Now, err = lua.Now(values)
	return reading, unavailable(err)
}

// timed makes a call and notes when; the clock's instant is left to the caller.
func (q *Queue) timed(ctx context.Context, call lua.Call) (values []any, r Reading, err error) {
	r.Sent = time.Now()
	reply := q.exec(ctx, q.engine.patient, []lua.Call{call})[0]
	r.Received = time.Now()
	return reply.Values, r, unavailable(reply.Err)
}

// Resign tells the shard's other workers that this one will not look at it any more, so that none
// relies on the poll it had planned.
func (c *Consumer) Resign(ctx context.Context) error {
	return unavailable(c.q.engine.patient.Publish(ctx, wakeChannel, c.shard.Clock()).Err())
}

func leaseOf(l lua.LeasedJob) (Lease, error) {
	r, err := lua.DecodeRecord(l.Record)
	if err != nil {
		return Lease{}, err
	}
	payload, err := decompress(r.Payload)
	if err != nil {
		return Lease{}, err
	}
	var before result
	if len(r.Result) > 0 {
		_ = json.Unmarshal(r.Result, &before) // one that cannot be read is left out: the job is what counts
	}
	return Lease{
		Log:      before.Log,
		LeaseRef: LeaseRef{ID: l.ID, Epoch: l.Epoch}, Tenant: r.Tenant, Route: r.Route, Type: r.Type, TraceParent: r.TraceParent, Payload: payload,
		Attempt: l.Attempts + 1, MaxAttempts: r.MaxAttempts, Created: r.Created, Eligible: l.Eligible, Stamp: l.Stamp, Deadline: l.Ends,
	}, nil
}

var outcomeOf = map[shaper.Event]lua.Outcome{
	shaper.Succeed: lua.OutcomeSucceeded, shaper.Retry: lua.OutcomeRetry, shaper.Die: lua.OutcomeDead, shaper.Hold: lua.OutcomeHeld,
	shaper.Release: lua.OutcomeReleased,
}

var settleResults = map[lua.SettleCode]SettleResult{lua.CodeSettled: Settled, lua.CodeRepeated: Repeated, lua.CodeStale: Stale, lua.CodeDied: Died}

// Settle ends leases, of any shards. results[i] belongs to batch[i]. With an error it is empty
// where nothing is known. After ErrUnavailable send these again; ErrScript is of these settlements
// alone, for each was sent by itself at last. A shard that does not answer does not keep the others
// from it, but the call waits for it until ctx ends.
func (q *Queue) Settle(ctx context.Context, batch []Settlement) (results []SettleResult, err error) {
	results = make([]SettleResult, len(batch))
	for i := range results {
		results[i] = Stale // of ids that cannot be ours
	}
	items := make([]lua.SettleItem, len(batch))
	groups := q.byShard(len(batch), func(i int) string { return batch[i].ID })
	for _, g := range groups {
		for _, i := range g.items {
			if items[i], err = settleItem(q.keys.Shard(g.shard), batch[i]); err != nil {
				return nil, err
			}
		}
	}
	failed := q.runGroups(ctx, groups, func(g group) (lua.Call, func([]any) error) {
		s := q.keys.Shard(g.shard)
		call := lua.SettleCall{
			Clock: s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Outbox: s.Outbox(), Horizon: q.horizon,
			Retention: q.retention, Items: make([]lua.SettleItem, len(g.items)),
		}
		for k, i := range g.items {
			call.Items[k] = items[i]
		}
		return call.Call(), func(values []any) error {
			codes, err := call.Decode(values)
			if err != nil {
				return err
			}
			for k, i := range g.items {
				results[i] = settleResults[codes[k]]
			}
			return nil
		}
	})
	for _, f := range failed {
		for _, i := range f.items {
			results[i] = ""
		}
	}
	return results, errorOf(failed)
}

// failure is a group with unknown results.
type failure struct {
	group
	err error
}

// errorOf returns the error of a call with these failed groups. It prefers ErrUnavailable, which
// permits the caller to send the items of the failed groups again.
func errorOf(failed []failure) (err error) {
	for _, f := range failed {
		if err == nil || errors.Is(f.err, ErrUnavailable) {
			err = f.err
		}
	}
	return err
}

// runGroups makes one call per group and returns those that failed; call makes it, with what reads
// its answer. The items of a group that fails at damaged data are sent once more, each by itself,
// so that one damaged item does not concern the others.
func (q *Queue) runGroups(ctx context.Context, groups []group, call func(group) (lua.Call, func([]any) error)) (failed []failure) {
	for len(groups) > 0 {
		calls, decode := make([]lua.Call, len(groups)), make([]func([]any) error, len(groups))
		for n, g := range groups {
			calls[n], decode[n] = call(g)
		}
		var apart []group
		for n, r := range q.exec(ctx, keepsAnswers{q.engine.patient}, calls) {
			g, err := groups[n], r.Err
			if err == nil {
				err = decode[n](r.Values)
			}
			switch err = unavailable(err); {
			case err == nil:
			case errors.Is(err, ErrScript) && len(g.items) > 1:
				for _, i := range g.items {
					apart = append(apart, group{g.shard, []int{i}})
				}
			default:
				failed = append(failed, failure{g, err})
			}
		}
		groups = apart
	}
	return failed
}

func settleItem(s ShardKeys, t Settlement) (lua.SettleItem, error) {
	if t.MaxAttempts < 0 || t.MaxAttempts > maxAttempts {
		return lua.SettleItem{}, fmt.Errorf("queue: %d attempts at the most, want 0 to %d", t.MaxAttempts, maxAttempts)
	}
	delay := min(max(t.Delay, 0), shaper.MaxPeriod)
	item := lua.SettleItem{Key: s.Job(t.ID), Epoch: t.Epoch, Outcome: outcomeOf[t.Event], Delay: delay, MaxAttempts: t.MaxAttempts}
	if t.Event == shaper.Hold {
		item.Cause = t.Cause.encode()
	}
	if item.Outcome == 0 {
		return item, fmt.Errorf("queue: a lease does not end by %q", t.Event)
	}
	if t.Event == shaper.Retry && t.Overload {
		item.Outcome = lua.OutcomeOverload
	}
	if t.Event == shaper.Release && t.Missed {
		item.Outcome = lua.OutcomeMissed
	}
	// A release is no attempt: it leaves what is known as it is.
	if t.Event != shaper.Release && (t.Error != nil || t.Response != nil || len(t.Log) > 0) {
		r := result{t.Error, t.Response, t.log()}
		if n := len(t.Log); r.Error == nil && n > 0 {
			r.Error = &JobError{Message: t.Log[n-1].Message, Status: t.Log[n-1].Status, At: t.Log[n-1].At}
		}
		raw, err := json.Marshal(r)
		if err != nil {
			return item, fmt.Errorf("queue: encode a result: %w", err)
		}
		item.Result = raw
	}
	return item, nil
}

// Bounds of the log of a job's attempts.
const (
	logKept    = 20
	logMessage = 200
)

// log is the log of attempts with this one. A job that succeeds at once has none: its response says
// it all.
func (t Settlement) log() []Attempt {
	if len(t.Log) == 0 && t.Error == nil {
		return nil
	}
	a := Attempt{Number: t.Attempt, Event: t.Event, At: time.Now().UTC()}
	if t.Event == shaper.Retry && t.MaxAttempts > 0 && t.Attempt >= t.MaxAttempts {
		a.Event = shaper.Die
	}
	if t.Error != nil {
		a.Status, a.Message = t.Error.Status, t.Error.Message
		a.Message = strings.ToValidUTF8(a.Message[:min(len(a.Message), logMessage)], "")
		if !t.Error.At.IsZero() {
			a.At = t.Error.At
		}
	} else if t.Response != nil {
		a.Status = t.Response.Status
	}
	log := append(slices.Clone(t.Log), a)
	return log[max(0, len(log)-logKept):]
}

// Unanswered is the error of Extend when shards did not answer. What Extend says of the leases that
// are not listed here holds.
type Unanswered struct {
	Leases []LeaseRef
	Err    error // wraps ErrUnavailable or ErrScript
}

func (e *Unanswered) Error() string { return e.Err.Error() }

// Unwrap is why the first of them did not.
func (e *Unanswered) Unwrap() error { return e.Err }

// Extend makes leases last for another lease duration from now; lost lists those that are not
// current any more. The error is of type *Unanswered. Where a shard does not answer, the call waits
// for it until ctx ends.
func (q *Queue) Extend(ctx context.Context, leases []LeaseRef, lease time.Duration) (lost []LeaseRef, err error) {
	for _, l := range leases {
		if _, ok := shardOfID(l.ID, q.keys.Len()); !ok {
			lost = append(lost, l)
		}
	}
	groups := q.byShard(len(leases), func(i int) string { return leases[i].ID })
	failed := q.runGroups(ctx, groups, func(g group) (lua.Call, func([]any) error) {
		s := q.keys.Shard(g.shard)
		call := lua.HeartbeatCall{Clock: s.Clock(), Leases: s.Leases(), Lease: lease}
		for _, i := range g.items {
			call.Jobs = append(call.Jobs, s.Job(leases[i].ID))
			call.Epochs = append(call.Epochs, leases[i].Epoch)
		}
		return call.Call(), func(values []any) error {
			codes, err := call.Decode(values)
			if err != nil {
				return err
			}
			for k, i := range g.items {
				if codes[k] == 0 {
					lost = append(lost, leases[i])
				}
			}
			return nil
		}
	})
	if len(failed) == 0 {
		return lost, nil
	}
	unanswered := &Unanswered{Err: errorOf(failed)}
	for _, f := range failed {
		for _, i := range f.items {
			unanswered.Leases = append(unanswered.Leases, leases[i])
		}
	}
	return lost, unanswered
}

// keepsAnswers is a client whose pipelines bring what was answered even if their context ends
// first. When it does while go-redis waits to ask one node of a cluster again, that error takes the
// place of all the other nodes' answers.
type keepsAnswers struct{ redis.UniversalClient }

func (c keepsAnswers) Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	cmds, err := c.UniversalClient.Pipelined(ctx, fn)
	if ctx.Err() == nil {
		return cmds, err
	}
	for _, cmd := range cmds {
		if c, ok := cmd.(*redis.Cmd); ok && c.Val() != nil && errors.Is(c.Err(), ctx.Err()) {
			c.SetErr(nil)
		}
	}
	return cmds, err
}

// group is the indices of items of one shard, at most settleMost of them.
type group struct {
	shard int
	items []int
}

func (q *Queue) byShard(n int, id func(int) string) []group {
	var groups []group
	open := map[int]int{} // shard → its group that still has room
	for i := range n {
		shard, ok := shardOfID(id(i), q.keys.Len())
		if !ok {
			continue
		}
		at, found := open[shard]
		if !found || len(groups[at].items) == settleMost {
			at = len(groups)
			open[shard] = at
			groups = append(groups, group{shard: shard})
		}
		groups[at].items = append(groups[at].items, i)
	}
	return groups
}

// Beat records that the worker lives and returns the workers heard of within ttl, itself included.
func (q *Queue) Beat(ctx context.Context, worker string, ttl time.Duration) (Beat, error) {
	return q.beat(ctx, lua.BeatCall{Clock: workersClock, Workers: workersKey, Worker: worker, TTL: ttl})
}

// Leave records that the worker is gone, and tells the others.
func (q *Queue) Leave(ctx context.Context, worker string) error {
	const ttl = time.Hour // long enough to remove nobody else
	_, err := q.beat(ctx, lua.BeatCall{Clock: workersClock, Workers: workersKey, Worker: worker, TTL: ttl, Leave: true})
	return err
}

func (q *Queue) beat(ctx context.Context, call lua.BeatCall) (b Beat, err error) {
	values, reading, err := q.timed(ctx, call.Call())
	if err != nil {
		return Beat{}, err
	}
	b.Reading = reading
	b.Now, b.Live, err = call.Decode(values)
	slices.Sort(b.Live)
	return b, unavailable(err)
}
