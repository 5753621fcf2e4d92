package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

const (
	leaseMost   = 1000      // leases of one poll
	settleMost  = 500       // items of one settling or extending call
	settleBytes = 4 << 20   // of their results, so that large answers do not hold Redis for long
	maxAttempts = 1<<16 - 1 // that a record can count

	// One retune or forget may start each housekeepingEvery in all shards of the process, after an
	// idle time housekeepingBurst at once. Each takes Redis about 1 ms. After a reload all shards
	// need dozens of them, and polls would wait for all.
	housekeepingEvery = 5 * time.Millisecond
	housekeepingBurst = 4
)

// Broker is the workers' side of the queue: it leases jobs, ends leases, and passes wake-ups and
// completions on. Get it from Queue.Broker.
type Broker struct {
	store     *store.Store
	mender    *repair.Mender
	retention scripts.Retention
	headroom  *headroom
	horizon   time.Duration
	silence   time.Duration                  // see listener
	setAside  func(script string, items int) // counts damaged items
	log       *slog.Logger

	housekeeping *rate.Limiter // see housekeepingEvery

	// See restore.go.
	memories  []memory      // by shard
	pause     time.Duration // of a shard after a failover
	running   context.Context
	stop      context.CancelFunc // ends running
	restoring sync.WaitGroup
}

// Shards returns the number of shards.
func (b *Broker) Shards() int { return b.store.Len() }

// OneNode reports whether all shards are on one node of Redis and so have its clock. A shard that
// saw the clock set back is ahead of the others.
func (b *Broker) OneNode() bool { return !b.store.Cluster() }

// Consumer leases jobs of one shard for one worker. It numbers its polls, so that a poll whose
// answer was lost is answered again with the same jobs. Not safe for concurrent use.
type Consumer struct {
	b       *Broker
	shard   store.ShardKeys
	worker  string
	counter int64
	seen    int64
	needed  *scripts.Script // that the last answer requested beside its jobs
	turn    time.Time       // from which housekeeping may run in this shard; zero: no turn is reserved
	leases  *scripts.Script // that leases jobs: Tick, or TickPools once the shard has had a pool
}

// Consumer returns a consumer of the shard for the worker with this id, which must be unique to the
// process. There may be only one consumer for a worker and a shard.
func (b *Broker) Consumer(worker string, shard int) *Consumer {
	return &Consumer{b: b, shard: b.store.Shard(shard), worker: worker, counter: 1, leases: scripts.Commands.Tick}
}

// Tick polls the shard: it queues jobs that are due, ends expired ones, takes back expired leases,
// and leases jobs. After an error (ErrUnavailable) call it again.
func (c *Consumer) Tick(ctx context.Context, o TickOptions) (Tick, error) {
	needed := c.now(c.needed)
	c.needed = nil
	grant, reading, err := c.poll(ctx, o, cmp.Or(needed, c.leases))
	if err == nil && grant.Restore {
		if err = c.b.restore(ctx, c.shard); err == nil {
			grant, reading, err = c.poll(ctx, o, c.leases)
		}
	}
	if next := c.now(grant.Needed); err == nil && len(grant.Leases) == 0 && (needed != nil || next != nil) {
		// The call ran the script that an earlier answer requested, or its answer only requests
		// one.
		before := grant.Damaged
		grant, reading, err = c.poll(ctx, o, cmp.Or(next, c.leases))
		grant.Damaged = append(before, grant.Damaged...)
	}
	if err != nil {
		return Tick{}, err
	}
	// Leased jobs do not wait for another script: the next poll begins with it.
	c.needed = grant.Needed
	if wait := c.wait(c.needed); wait > 0 {
		at := grant.Now.Add(wait + o.Horizon/2) // the worker polls half a horizon before the next instant
		if grant.Next == 0 || at < grant.Next {
			grant.Next = at
		}
	} else if c.needed != nil {
		grant.More = true
	}
	tick := Tick{
		Reading: reading, Next: grant.Next, More: grant.More || grant.Restore, Paused: grant.Paused,
		Help: grant.Help, Outbox: grant.Outbox, PutOff: grant.Kept, Damaged: grant.Damaged,
	}
	for _, l := range grant.Leases {
		lease, err := leaseOf(l)
		if err != nil {
			// The lease expires and the job is leased again: an unreadable job must not stop the
			// others.
			tick.Damaged = append(tick.Damaged, fmt.Sprintf("job %s: %v", l.ID, err))
			continue
		}
		tick.Leases = append(tick.Leases, lease)
	}
	c.b.memories[c.shard.Index].note(tick)
	if c.b.mender.Aside(ctx, c.shard, tick.Damaged) {
		tick.Damaged, tick.More = nil, true // the next poll sets aside what remains
	}
	c.b.setAside("tick", len(tick.Damaged))
	return tick, nil
}

// wait returns how long a script that an answer has requested must wait for its turn.
func (c *Consumer) wait(script *scripts.Script) time.Duration {
	if script != scripts.Commands.Retune && script != scripts.Commands.Forget {
		return 0
	}
	if c.turn.IsZero() {
		c.turn = time.Now().Add(c.b.housekeeping.Reserve().Delay())
	}
	return max(0, time.Until(c.turn))
}

// now returns the script if it may run now, else nil.
func (c *Consumer) now(script *scripts.Script) *scripts.Script {
	if c.wait(script) > 0 {
		return nil
	}
	return script
}

// poll makes one call of a poll, of the script that leases or of one that is needed.
func (c *Consumer) poll(ctx context.Context, o TickOptions, script *scripts.Script) (scripts.Grant, Reading, error) {
	s := c.shard
	if script == scripts.Commands.Retune || script == scripts.Commands.Forget {
		c.turn = time.Time{}
	}
	call := scripts.TickCall{
		Script: script,
		Clock:  s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Grant: s.Grant(c.worker),
		Tenants: s.Tenants(), Outbox: s.Outbox(),
		Counter: c.counter, Seen: c.seen, Max: min(o.Max, leaseMost), Lease: o.Lease, Horizon: o.Horizon,
		Lead: o.Lead, Sweep: o.Sweep, Help: int(o.Help), Helper: o.Helper, HandsOver: o.Outbox,
		Retention: c.b.retention, Restored: c.b.memories[s.Index].restored(), Bounds: boundsOf(o.Bounds),
	}
	values, reading, err := c.b.timed(ctx, sentOnce{c.b.store.Patient}, call.Call())
	if err != nil {
		return scripts.Grant{}, reading, fmt.Errorf("shard %d: %w", s.Index, err)
	}
	grant, err := call.Decode(values)
	if err != nil {
		return grant, reading, store.Unavailable(err)
	}
	if grant.Needed == scripts.Commands.TickPools {
		c.leases = grant.Needed
	}
	c.counter++
	if grant.Counter != 0 {
		c.seen = grant.Counter
	}
	reading.Now = grant.Now
	return grant, reading, nil
}

func boundsOf(bounds []Bound) []scripts.Bound {
	if len(bounds) == 0 {
		return nil
	}
	out := make([]scripts.Bound, len(bounds))
	for i, b := range bounds {
		out[i] = scripts.Bound{Name: store.EncodeName(b.Route), Slots: b.Slots}
		if b.Tenant != "" {
			out[i].Name = store.FlowName(b.Tenant, b.Route)
		}
	}
	return out
}

// Clock reads the shard's clock, about midway between Sent and Received. Its answer is faster than
// that of a poll, so the reading is more exact.
func (c *Consumer) Clock(ctx context.Context) (Reading, error) {
	call := scripts.HeartbeatCall{Clock: c.shard.Clock(), Leases: c.shard.Leases()} // for no lease
	values, reading, err := c.b.timed(ctx, c.b.store.Patient, call.Call())
	if err != nil {
		return Reading{}, err
	}
	reading.Now, err = scripts.Now(values)
	return reading, store.Unavailable(err)
}

// timed makes a call and notes when. The caller sets the instant of the clock.
func (b *Broker) timed(ctx context.Context, c scripts.Client, call scripts.Call) (values []any, r Reading, err error) {
	r.Sent = time.Now()
	reply := b.store.Exec(ctx, c, []scripts.Call{call})[0]
	r.Received = time.Now()
	return reply.Values, r, store.Unavailable(reply.Err)
}

// Resign wakes the shard's other workers, so that none relies on the next poll that this one had
// planned.
func (c *Consumer) Resign(ctx context.Context) error {
	_, err := store.Invoke(ctx, c.b.store.RunPatient, scripts.PublishCall{Clock: c.shard.Clock(), Channel: scripts.WakeChannel})
	return err
}

func leaseOf(l scripts.LeasedJob) (Lease, error) {
	r, err := scripts.DecodeRecord(l.Record)
	if err != nil {
		return Lease{}, err
	}
	contentType, path, payload := opened(r.Payload)
	payload, err = decompress(payload)
	if err != nil {
		return Lease{}, err
	}
	before, _ := decodeResult(r.Result) // an empty or unreadable result is left out
	return Lease{
		Log:      before.Log,
		LeaseRef: LeaseRef{ID: l.ID, Epoch: l.Epoch}, Tenant: r.Tenant, Route: r.Route, Type: r.Type, TraceParent: r.TraceParent, Payload: payload, Cost: r.Cost, ContentType: contentType, Path: path,
		Attempt: l.Attempts + 1, MaxAttempts: r.MaxAttempts, FreeLeases: r.FreeLeases, Expired: r.Outcome == 'x',
		Created: r.Created, Eligible: l.Eligible, Stamp: l.Stamp, Deadline: l.Ends,
	}, nil
}

var outcomeOf = map[shaper.Event]scripts.Outcome{
	shaper.Succeed: scripts.OutcomeSucceeded, shaper.Retry: scripts.OutcomeRetry, shaper.Die: scripts.OutcomeDead,
	shaper.Hold:    scripts.OutcomeHeld,
	shaper.Release: scripts.OutcomeReleased,
}

var settleResults = map[scripts.SettleCode]SettleResult{
	scripts.CodeSettled: Settled, scripts.CodeRepeated: Repeated, scripts.CodeStale: Stale, scripts.CodeDied: Died,
	scripts.CodeCut: Cut,
}

// Settle ends leases, of any shards. results[i] belongs to batch[i]. With an error, results[i] is
// empty where the outcome is unknown. After ErrUnavailable send these settlements again. ErrScript
// concerns these settlements alone, because each was also sent by itself. A shard that does not
// answer does not stop the others, but the call waits for it until ctx ends.
func (b *Broker) Settle(ctx context.Context, batch []Settlement) (results []SettleResult, err error) {
	results = make([]SettleResult, len(batch))
	for i := range results {
		results[i] = Stale // remains for an id that no shard has
	}
	items, answered := make([]scripts.SettleItem, len(batch)), int64(0)
	for i, t := range batch {
		if t.Answer != nil && b.headroom.noAnswers(ctx) {
			t.Answer = []byte{}
		}
		answered += int64(len(t.Answer))
		if items[i], err = settleItem(t); err != nil {
			return nil, err
		}
	}
	kind := func(i int) (string, time.Duration, int) {
		bytes := len(items[i].Result)
		if bytes > 0 && batch[i].Event != shaper.Succeed {
			bytes += batch[i].PayloadBytes
		}
		return batch[i].ID, batch[i].Retention, bytes
	}
	failed := b.perShard(ctx, len(batch), kind, func(g group) (scripts.Call, func([]any) error) {
		s := g.shard
		call := scripts.SettleCall{
			Clock: s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Outbox: s.Outbox(),
			Horizon: b.horizon, Retention: b.retention,
		}
		if g.retention > 0 {
			call.Retention.Finished, call.Kept = g.retention, new(b.headroom.answers(ctx))
		}
		for _, i := range g.items {
			items[i].Key = s.Job(batch[i].ID)
			call.Items = append(call.Items, items[i])
		}
		return call.Call(), func(values []any) error {
			codes, err := call.Decode(values)
			for k, code := range codes {
				results[g.items[k]] = settleResults[code]
			}
			return err
		}
	})
	b.headroom.admitted(answered)
	for _, f := range failed {
		for _, i := range f.items {
			results[i] = ""
		}
	}
	return results, errorOf(failed)
}

// group holds the indices of at most settleMost items of one shard, and why their call failed.
type group struct {
	shard     store.ShardKeys
	retention time.Duration // of forwarded requests; 0 for other jobs
	items     []int
	bytes     int // of their results
	err       error
}

// errorOf returns the error of a call with these failed groups. It prefers ErrUnavailable, which
// permits the caller to send the items of the failed groups again.
func errorOf(failed []group) (err error) {
	for _, f := range failed {
		if err == nil || errors.Is(f.err, ErrUnavailable) {
			err = f.err
		}
	}
	return err
}

// perShard sends n items in calls of one shard each, and returns the groups whose call failed. It
// skips ids that no shard has. call returns a group's call and the function that decodes its
// answer. The items of a group that fails at damaged data are sent once more, each by itself, so
// that one damaged item does not fail the others.
func (b *Broker) perShard(
	ctx context.Context, n int, kind func(int) (id string, retention time.Duration, bytes int),
	call func(group) (scripts.Call, func([]any) error),
) (failed []group) {
	var groups []group
	type open struct {
		shard     int
		retention time.Duration
	}
	opened := map[open]int{} // → a group that is not full
	for i := range n {
		id, retention, bytes := kind(i)
		shard, ok := b.store.ShardOfID(id)
		if !ok {
			continue
		}
		o := open{shard.Index, retention}
		at, found := opened[o]
		if !found || len(groups[at].items) == settleMost || groups[at].bytes > settleBytes {
			at = len(groups)
			opened[o] = at
			groups = append(groups, group{shard: shard, retention: retention})
		}
		groups[at].items = append(groups[at].items, i)
		groups[at].bytes += bytes
	}
	for len(groups) > 0 {
		calls, decode := make([]scripts.Call, len(groups)), make([]func([]any) error, len(groups))
		for n, g := range groups {
			calls[n], decode[n] = call(g)
		}
		var apart []group
		for n, r := range b.store.Exec(ctx, keepsAnswers{b.store.Patient}, calls) {
			g, err := groups[n], r.Err
			if err == nil {
				err = decode[n](r.Values)
			}
			switch g.err = store.Unavailable(err); {
			case err == nil:
			case errors.Is(g.err, ErrScript) && len(g.items) > 1:
				for _, i := range g.items {
					apart = append(apart, group{shard: g.shard, retention: g.retention, items: []int{i}})
				}
			default:
				failed = append(failed, g)
			}
		}
		groups = apart
	}
	return failed
}

// settleItem encodes a settlement, without its key.
func settleItem(t Settlement) (scripts.SettleItem, error) {
	if t.MaxAttempts < 0 || t.MaxAttempts > maxAttempts {
		return scripts.SettleItem{}, fmt.Errorf("queue: max_attempts %d, want 0 to %d", t.MaxAttempts, maxAttempts)
	}
	if c := t.ActualCost; c != nil && (*c < 0 || *c > shaper.MaxCost) {
		return scripts.SettleItem{}, fmt.Errorf("queue: actual cost %d, want 0 to %d", *c, shaper.MaxCost)
	}
	delay := min(max(t.Delay, 0), shaper.MaxPeriod)
	item := scripts.SettleItem{Epoch: t.Epoch, Outcome: outcomeOf[t.Event], Delay: delay, MaxAttempts: t.MaxAttempts}
	if t.Event == shaper.Hold {
		item.Cause = t.Cause.encode()
	}
	if item.Outcome == 0 {
		return item, fmt.Errorf("queue: a lease does not end by %q", t.Event)
	}
	if t.Event == shaper.Die && t.Final {
		item.Outcome = scripts.OutcomeFailed
	}
	if t.Event == shaper.Retry && t.Overload {
		item.Outcome = scripts.OutcomeOverload
	}
	if t.Event == shaper.Release && t.Missed {
		item.Outcome = scripts.OutcomeMissed
	}
	if t.Event == shaper.Release { // no attempt: the record keeps its result
		return item, nil
	}
	item.ActualCost = t.ActualCost
	if t.Error != nil || t.Response != nil || len(t.Log) > 0 || t.ActualCost != nil || t.Answer != nil {
		r := result{t.Error, t.Response, t.log(), t.ActualCost, t.Answer}
		if n := len(t.Log); r.Error == nil && n > 0 {
			r.Error = &JobError{Message: t.Log[n-1].Message, Status: t.Log[n-1].Status, At: t.Log[n-1].At}
		}
		var err error
		if item.Result, err = r.encode(); err != nil {
			return item, err
		}
	}
	return item, nil
}

// Bounds of the log of a job's attempts.
const (
	logKept    = 20
	logMessage = 200
)

// log is the log of attempts with this one. A job that succeeds at the first attempt has none,
// because its response is enough.
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

// Unanswered is the error of Extend when shards did not answer. The result of Extend holds for the
// leases that are not listed here.
type Unanswered struct {
	Leases []LeaseRef
	Err    error // wraps ErrUnavailable or ErrScript
}

func (e *Unanswered) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Unanswered) Unwrap() error { return e.Err }

// Extend makes leases last for another lease duration from now. lost lists the leases that are no
// longer current. The error is of type *Unanswered. If a shard does not answer, the call waits for
// it until ctx ends.
func (b *Broker) Extend(
	ctx context.Context, leases []LeaseRef, lease time.Duration,
) (lost []LeaseRef, err error) {
	for _, l := range leases {
		if _, ok := b.store.ShardOfID(l.ID); !ok {
			lost = append(lost, l)
		}
	}
	id := func(i int) (string, time.Duration, int) { return leases[i].ID, 0, 0 }
	failed := b.perShard(ctx, len(leases), id, func(g group) (scripts.Call, func([]any) error) {
		call := scripts.HeartbeatCall{Clock: g.shard.Clock(), Leases: g.shard.Leases(), Lease: lease}
		for _, i := range g.items {
			call.Jobs = append(call.Jobs, g.shard.Job(leases[i].ID))
			call.Epochs = append(call.Epochs, leases[i].Epoch)
		}
		return call.Call(), func(values []any) error {
			codes, err := call.Decode(values)
			for k, code := range codes {
				if err == nil && code == 0 {
					lost = append(lost, leases[g.items[k]])
				}
			}
			return err
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

// keepsAnswers is a client whose pipelines keep the answers that arrived before their context
// ended. If it ends while go-redis waits before it retries at one node of a cluster, go-redis
// replaces the answers of all other nodes by that error.
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

// Beat records a heartbeat of the worker and returns the workers with one within ttl, itself
// included.
func (b *Broker) Beat(ctx context.Context, worker string, ttl time.Duration) (Beat, error) {
	return b.beat(ctx, scripts.BeatCall{
		Clock: store.WorkersClock, Workers: store.WorkersKey, Worker: worker, TTL: ttl,
	})
}

// Leave removes the worker and wakes the others.
func (b *Broker) Leave(ctx context.Context, worker string) error {
	const ttl = time.Hour // long enough to remove nobody else
	_, err := b.beat(ctx, scripts.BeatCall{
		Clock: store.WorkersClock, Workers: store.WorkersKey, Worker: worker, TTL: ttl, Leave: true,
	})
	return err
}

func (b *Broker) beat(ctx context.Context, call scripts.BeatCall) (beat Beat, err error) {
	var values []any
	if values, beat.Reading, err = b.timed(ctx, b.store.Patient, call.Call()); err != nil {
		return Beat{}, err
	}
	beat.Now, beat.Live, err = call.Decode(values)
	slices.Sort(beat.Live)
	return beat, store.Unavailable(err)
}
