package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

const (
	leaseMost = 1000 // leases of one poll

	// sealedHold is how long a flow is held whose job cannot be decrypted.
	sealedHold = 10 * time.Second

	// One retune or forget may start each housekeepingEvery in all shards of the process, after an
	// idle time housekeepingBurst at once. Each takes Redis about 1 ms. After a reload all shards
	// need dozens of them, and polls would wait for all.
	housekeepingEvery = 5 * time.Millisecond
	housekeepingBurst = 4
)

// Consumer leases jobs of one shard for one worker. It numbers its polls, so that a poll whose
// answer was lost is answered again with the same jobs. Not safe for concurrent use.
type Consumer struct {
	b       *Broker
	shard   store.ShardKeys
	worker  string
	counter int64
	seen    int64
	needed  *scripts.Script // that the last answer requested beside its jobs
	chores  time.Time       // from which housekeeping may run in this shard; zero: not reserved

	regulars regulars
	crowded  time.Time // since when the polls leave due flows; zero: the last has left none
}

// Tick polls the shard: it queues jobs that are due, ends expired ones, takes back expired leases,
// and leases jobs. After an error (ErrUnavailable) call it again.
func (c *Consumer) Tick(ctx context.Context, o TickOptions) (Tick, error) {
	needed := c.now(c.needed)
	c.needed = nil
	grant, reading, err := c.poll(ctx, o, needed)
	if err == nil && grant.Restore {
		if err = c.b.restore(ctx, c.shard); err == nil {
			grant, reading, err = c.poll(ctx, o, nil)
		}
	}
	if next := c.now(grant.Needed); err == nil && len(grant.Leases) == 0 && (needed != nil || next != nil) {
		// The call ran the script that an earlier answer requested, or its answer only requests
		// one.
		before := grant.Damaged
		grant, reading, err = c.poll(ctx, o, next)
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
		Help: grant.Help, Outbox: grant.Outbox, PutOff: grant.PutOff, Damaged: grant.Damaged,
	}
	var held []Settlement // of jobs that this process cannot decrypt
	for _, l := range grant.Leases {
		lease, err := leaseOf(c.b.box, l)
		if errors.Is(err, ErrSealed) {
			held = append(held, Settlement{
				LeaseRef: LeaseRef{ID: l.ID, Epoch: l.Epoch}, Event: shaper.Hold, Delay: sealedHold,
				Cause: HoldCause{By: HeldByCodec},
			})
			c.b.keyMissing(lease, l.ID, err)
			continue
		}
		if err != nil {
			// The lease expires and the job is leased again: an unreadable job must not stop the
			// others.
			tick.Damaged = append(tick.Damaged, fmt.Sprintf("job %s: %v", l.ID, err))
			continue
		}
		tick.Leases = append(tick.Leases, lease)
	}
	c.regulars.note(reading.Received, tick.Leases)
	switch crowded := grant.More || len(grant.Leases) >= o.Max; {
	case o.Max == 0: // it says nothing of what is due
	case !crowded:
		c.crowded = time.Time{}
	case c.crowded.IsZero():
		c.crowded = reading.Received
	}
	if len(held) > 0 {
		if _, err := c.b.Settle(ctx, held); err != nil { // their leases end by themselves
			c.b.log.Warn("jobs that cannot be decrypted could not be given back", "jobs", len(held), "error", err)
		}
	}
	c.b.memories[c.shard.Index].note(tick)
	if c.b.repairer.Aside(ctx, c.shard, tick.Damaged) {
		tick.Damaged, tick.More = nil, true // the next poll sets aside what remains
	}
	c.b.setAside("tick", len(tick.Damaged))
	return tick, nil
}

// wait returns how long a script that an answer has requested must wait.
func (c *Consumer) wait(script *scripts.Script) time.Duration {
	if script != scripts.Commands.Retune && script != scripts.Commands.Forget {
		return 0
	}
	if c.chores.IsZero() {
		c.chores = time.Now().Add(c.b.housekeeping.Reserve().Delay())
	}
	return max(0, time.Until(c.chores))
}

// now returns the script if it may run now, else nil.
func (c *Consumer) now(script *scripts.Script) *scripts.Script {
	if c.wait(script) > 0 {
		return nil
	}
	return script
}

// poll makes one call of a poll, of the script that is needed, or of the one that leases for nil.
func (c *Consumer) poll(ctx context.Context, o TickOptions, script *scripts.Script) (scripts.Grant, Reading, error) {
	s := c.shard
	if script == scripts.Commands.Retune || script == scripts.Commands.Forget {
		c.chores = time.Time{}
	}
	call := scripts.TickCall{
		Script: script, Pools: c.b.policies.Current().HasPools(s),
		Clock: s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Grant: s.Grant(c.worker),
		Tenants: s.Tenants(), Outbox: s.Outbox(),
		Counter: c.counter, Seen: c.seen, Max: min(o.Max, leaseMost), Lease: o.Lease, Horizon: o.Horizon,
		Lead: o.Lead, Sweep: o.Sweep, Help: int(o.Help), Helper: o.Helper, HandsOver: o.Outbox,
		Retention: c.b.retention, Restored: c.b.memories[s.Index].restored(), Bounds: boundsOf(o.Bounds),
	}
	if !c.crowded.IsZero() && time.Since(c.crowded) < crowdFor {
		call.Regulars = c.regulars.names(c.b.policies.Current())
	}
	values, reading, err := c.b.timed(ctx, sentOnce{c.b.store.Patient}, call.Call())
	if err != nil {
		return scripts.Grant{}, reading, fmt.Errorf("shard %d: %w", s.Index, err)
	}
	grant, err := call.Decode(values)
	if err != nil {
		return grant, reading, store.Unavailable(err)
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
	call := scripts.ExtendCall{Clock: c.shard.Clock(), Leases: c.shard.Leases()} // for no lease
	values, reading, err := c.b.timed(ctx, c.b.store.Patient, call.Call())
	if err != nil {
		return Reading{}, err
	}
	reading.Now, err = scripts.Now(values)
	return reading, store.Unavailable(err)
}

// Resign wakes the shard's other workers, so that none relies on the next poll that this one had
// planned.
func (c *Consumer) Resign(ctx context.Context) error {
	_, err := store.Invoke(ctx, c.b.store.RunPatient, scripts.PublishCall{Clock: c.shard.Clock(), Channel: scripts.WakeChannel})
	return err
}

// leaseOf decodes a leased job. Its error may be ErrSealed.
func leaseOf(box *sealed.Box, l scripts.LeasedJob) (Lease, error) {
	r, err := scripts.DecodeRecord(l.Record)
	if err != nil {
		return Lease{}, err
	}
	if err := openRecord(box, l.ID, &r); err != nil {
		return Lease{Tenant: r.Tenant, Route: r.Route}, err
	}
	e, payload, err := openPayload(box, tenantOf(r.Flow), l.ID, r.Payload)
	if err != nil {
		return Lease{Tenant: r.Tenant, Route: r.Route}, err
	}
	// An empty or unreadable result is left out.
	before, _, err := decodeResult(box, tenantOf(r.Flow), l.ID, r.Result, len(r.Result))
	if errors.Is(err, ErrSealed) {
		return Lease{Tenant: r.Tenant, Route: r.Route}, err
	}
	return Lease{
		Log:      before.Log,
		LeaseRef: LeaseRef{ID: l.ID, Epoch: l.Epoch}, Tenant: r.Tenant, Route: r.Route, Type: r.Type, TraceParent: r.TraceParent, Payload: payload, Cost: r.Cost, ContentType: e.contentType, Path: e.path,
		Headers:   e.headers,
		PayloadAt: scripts.PayloadAt(l.Record), Attempt: l.Attempts + 1, MaxAttempts: r.MaxAttempts, FreeLeases: r.FreeLeases, Expired: r.Outcome == 'x',
		Created: r.Created, Eligible: l.Eligible, Stamp: l.Stamp, Deadline: l.Ends,
	}, nil
}
