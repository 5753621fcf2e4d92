package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// A failover may lose the last polls of a shard, though their jobs have left: their stamps would be
// given again. So each process remembers for at least memoryAge what it had from a shard. A poll
// that meets another master, or the same one after a restart, gets no jobs before its process has
// given that back. The first process that does so pauses the shard for othersRestore and wakes the
// others: they do the same meanwhile, also those that no longer poll the shard.
const (
	memoryAge     = time.Minute
	othersRestore = 500 * time.Millisecond
	restoreAgain  = 100 * time.Millisecond // after the first failure
	restoreMost   = time.Second            // after further ones
	// clockTrusted is by how much the clock of a shard may be behind the one that was remembered,
	// because the way to Redis took longer.
	clockTrusted = 50 * time.Millisecond
)

// memory is what a process has had from one shard.
type memory struct {
	mu            sync.Mutex
	master        string         // replication id of the one that was given this back last
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
	if m.flows == nil || time.Since(m.begun) > memoryAge {
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

// restored is the replication id of the master that was given this back last.
func (m *memory) restored() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.master
}

// given notes that a master was given this back.
func (m *memory) given(replicationID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.master = replicationID
}

// seen is the instant that the clock should show; 0: nothing is remembered.
func (m *memory) seen() shaper.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	age := time.Since(m.at)
	if m.now == 0 || age > memoryAge {
		return 0
	}
	return m.now.Add(max(0, age-clockTrusted))
}

// departed returns the last departures that are remembered.
func (m *memory) departed() (all []scripts.Departed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.begun) > 2*memoryAge {
		return nil
	}
	last := maps.Clone(m.flows)
	for key, d := range m.before {
		if _, later := last[key]; !later {
			last[key] = d
		}
	}
	for key, d := range last {
		all = append(all, scripts.Departed{
			Flow: store.FlowName(key.tenant, key.route), Stamp: d.stamp, Cost: d.cost, Entry: store.TenantEntry(key.tenant),
		})
	}
	return all
}

// restore gives a shard back what this process remembers of it, once for each master. Errors:
// ErrUnavailable.
func (b *Broker) restore(ctx context.Context, s store.ShardKeys) error {
	m := &b.memories[s.Index]
	seen := m.seen()
	first, err := b.restoreFlows(ctx, s, seen, nil)
	if err != nil || first.ReplicationID == m.restored() {
		return err
	}
	if first.Other {
		b.rewriteFiles(first.ReplicationID)
	}
	lost := 0
	if seen > 0 {
		for some := range slices.Chunk(m.departed(), scripts.RestoreMost) {
			got, err := b.restoreFlows(ctx, s, seen, some)
			if err != nil {
				return err
			}
			lost += got.Lost
		}
	}
	m.given(first.ReplicationID)
	if lost > 0 {
		b.log.Warn("a failover has lost departures of this process; their flows go on from the last one",
			"shard", s.Index, "flows", lost)
	}
	return nil
}

// restoreSoon restores a shard in the background, unless this process remembers nothing of it.
func (b *Broker) restoreSoon(shard int) {
	if b.memories[shard].seen() == 0 {
		return
	}
	b.restoring.Go(func() {
		ctx, cancel := context.WithTimeout(b.running, memoryAge)
		defer cancel()
		for pause := restoreAgain; b.restore(ctx, b.store.Shard(shard)) != nil; pause = min(2*pause, restoreMost) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	})
}

// restoreFlows makes one call, and after one that failed at damaged data one for each flow.
func (b *Broker) restoreFlows(
	ctx context.Context, s store.ShardKeys, seen shaper.Instant, departed []scripts.Departed,
) (out scripts.Restored, err error) {
	call := scripts.RestoreCall{
		Clock: s.Clock(), Due: s.Due(), Tenants: s.Tenants(), Seen: seen, Horizon: b.horizon, Pause: b.pause,
		Flows: departed,
	}
	reply := b.store.Exec(ctx, b.store.Patient, []scripts.Call{call.Call()})[0]
	if err = reply.Err; err == nil {
		out, err = call.Decode(reply.Values)
	}
	if err = store.Unavailable(err); !errors.Is(err, ErrScript) || len(departed) == 0 {
		return out, err
	}
	if len(departed) == 1 {
		b.log.Error("the last departure of a flow cannot be given back after a failover", "shard", s.Index, "error", err)
		return out, nil
	}
	for one := range slices.Chunk(departed, 1) {
		got, err := b.restoreFlows(ctx, s, seen, one)
		if err != nil {
			return out, err
		}
		out.Lost += got.Lost
	}
	return out, nil
}

// close ends what restoreSoon has begun.
func (b *Broker) close() {
	b.stop()
	b.restoring.Wait()
}
