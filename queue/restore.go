package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// A failover may lose the last polls of a shard, though their jobs have left: their stamps would be
// given again. So each process remembers for at least memoryKept what it had from a shard. The
// first poll that meets the new master, or the same one after a restart, gets no jobs. It makes the
// process give back what it remembers, pauses the shard for othersRestore, and wakes the other
// processes, which do the same meanwhile.
const (
	memoryKept    = time.Minute
	othersRestore = 500 * time.Millisecond
	restoreAgain  = 100 * time.Millisecond // after a failure
	// clockTrusted is by how much the clock of a shard may be behind the one that was remembered,
	// because the way to Redis took longer.
	clockTrusted = 50 * time.Millisecond
)

// memory is what a process has had from one shard.
type memory struct {
	mu            sync.Mutex
	now           shaper.Instant // the latest of the shard's clock; 0: none
	at            time.Time      // when that was
	begun         time.Time      // of flows
	flows, before map[memoryKey]departure
}

type memoryKey struct{ tenant, route string }

// departure is the last stamp that a flow had, and the cost of its job.
type departure struct {
	stamp shaper.Instant
	cost  int64
}

// note remembers the answer to a poll.
func (m *memory) note(t Tick) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.Now > m.now {
		m.now, m.at = t.Now, t.Received
	}
	if len(t.Leases) == 0 {
		return
	}
	if m.flows == nil || time.Since(m.begun) > memoryKept {
		m.before, m.flows, m.begun = m.flows, map[memoryKey]departure{}, time.Now()
	}
	for _, l := range t.Leases {
		key := memoryKey{l.Tenant, l.Route}
		switch last := m.flows[key]; {
		case l.Stamp > last.stamp:
			m.flows[key] = departure{l.Stamp, l.Cost}
		case l.Stamp == last.stamp: // of a burst
			m.flows[key] = departure{l.Stamp, max(last.cost, l.Cost)}
		}
	}
}

// recall returns what is remembered: the instant that the clock should show, 0 for nothing, and the
// last departures.
func (m *memory) recall() (seen shaper.Instant, departed []lua.Departed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == 0 {
		return 0, nil
	}
	all := maps.Clone(m.before)
	if all == nil {
		all = map[memoryKey]departure{}
	}
	maps.Copy(all, m.flows)
	for key, d := range all {
		departed = append(departed, lua.Departed{
			Flow: store.FlowName(key.tenant, key.route), Stamp: d.stamp, Cost: d.cost, Entry: store.TenantEntry(key.tenant),
		})
	}
	return m.now.Add(max(0, time.Since(m.at)-clockTrusted)), departed
}

// restore gives a shard back what this process remembers of it. Where nothing was lost, it changes
// nothing. Errors: ErrUnavailable.
func (b *Broker) restore(ctx context.Context, s ShardKeys) error {
	seen, departed := b.memories[s.Index].recall()
	lost := 0
	for first := true; first || len(departed) > 0; first = false {
		n := min(len(departed), lua.RestoreMost)
		found, err := b.restoreFlows(ctx, s, seen, departed[:n])
		if err != nil {
			return err
		}
		lost, departed = lost+found, departed[n:]
	}
	if lost > 0 {
		b.log.Warn("a failover has lost departures of this process; their flows go on from the last one",
			"shard", s.Index, "flows", lost)
	}
	return nil
}

// restoreSoon restores a shard in the background, unless this process remembers nothing of it.
func (b *Broker) restoreSoon(shard int) {
	if seen, _ := b.memories[shard].recall(); seen == 0 {
		return
	}
	b.restoring.Go(func() {
		ctx, cancel := context.WithTimeout(b.running, memoryKept)
		defer cancel()
		for b.restore(ctx, b.store.Shard(shard)) != nil {
			select {
			case <-time.After(restoreAgain):
			case <-ctx.Done():
				return
			}
		}
	})
}

// restoreFlows makes one call, and after one that failed at damaged data one for each flow.
func (b *Broker) restoreFlows(
	ctx context.Context, s ShardKeys, seen shaper.Instant, departed []lua.Departed,
) (lost int, err error) {
	call := lua.RestoreCall{
		Clock: s.Clock(), Due: s.Due(), Tenants: s.Tenants(), Seen: seen, Horizon: b.horizon, Pause: b.pause,
		Flows: departed,
	}
	reply := b.store.Exec(ctx, b.store.Patient, []lua.Call{call.Call()})[0]
	if err = reply.Err; err == nil {
		lost, err = call.Decode(reply.Values)
	}
	if err = store.Unavailable(err); !errors.Is(err, ErrScript) {
		return lost, err
	}
	if len(departed) < 2 {
		b.log.Error("the last departure of a flow cannot be given back after a failover", "shard", s.Index, "error", err)
		return 0, nil
	}
	for one := range slices.Chunk(departed, 1) {
		found, err := b.restoreFlows(ctx, s, seen, one)
		if err != nil {
			return lost, err
		}
		lost += found
	}
	return lost, nil
}

// close ends what restoreSoon has begun.
func (b *Broker) close() {
	b.stop()
	b.restoring.Wait()
}
