package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/engine"
	"github.com/7509e464/sluice/queue/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// A failover may lose the last polls of a shard, though their jobs have left: their stamps would be
// given again. So each process remembers for at least memoryKept what it had from a shard. When it
// meets another master, or the same one with another history of writes, it gives that back before
// its next poll. The others do the same within othersRestore.
const (
	memoryKept    = time.Minute
	othersRestore = 500 * time.Millisecond
	// clockTrusted is by how much the clock of a shard may be behind the one that was remembered,
	// because the way to Redis took longer.
	clockTrusted = 50 * time.Millisecond
)

// memory is what a process has had from one shard.
type memory struct {
	restoring sync.Mutex     // held during a call of restore
	restored  engine.History // that it was given to last

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

// restore gives a shard back what this process remembers of it, once for each history of its node,
// and returns that history. Errors: ErrUnavailable.
func (b *Broker) restore(ctx context.Context, s ShardKeys) (engine.History, error) {
	m := &b.memories[s.Index]
	m.restoring.Lock()
	defer m.restoring.Unlock()
	history, err := b.histories.At(ctx, b.store.Patient, s.Clock())
	if err != nil || m.restored == history {
		return history, store.Unavailable(err)
	}
	seen, departed := m.recall()
	lost := 0
	for first := true; seen > 0 && (first || len(departed) > 0); first = false {
		n := min(len(departed), lua.RestoreMost)
		found, err := b.restoreFlows(engine.Expect(ctx, history), s, seen, departed[:n])
		if err != nil {
			return history, err
		}
		lost, departed = lost+found, departed[n:]
	}
	m.restored = history
	if lost > 0 {
		b.log.Warn("a failover has lost departures of this process; their flows go on from the last one",
			"shard", s.Index, "flows", lost)
	}
	return history, nil
}

// restoreFlows makes one call, and after one that failed at damaged data one for each flow.
func (b *Broker) restoreFlows(
	ctx context.Context, s ShardKeys, seen shaper.Instant, departed []lua.Departed,
) (lost int, err error) {
	call := lua.RestoreCall{
		Clock: s.Clock(), Due: s.Due(), Tenants: s.Tenants(), Seen: seen, Horizon: b.horizon, Flows: departed,
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

// ready prepares for a poll of a shard, and returns the history of its node: after a failover it
// restores the shard, and then waits for the other processes to do so.
func (b *Broker) ready(ctx context.Context, s ShardKeys) (engine.History, error) {
	b.restoreAll()
	history, err := b.restore(ctx, s)
	if err != nil {
		return history, err
	}
	if met := history.Met(); met.After(b.opened) {
		if wait := othersRestore - time.Since(met); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return history, ctx.Err()
			}
		}
	}
	return history, nil
}

// restoreAll begins to restore every shard, also those that this process no longer polls, once for
// each history that it meets.
func (b *Broker) restoreAll() {
	count := b.histories.Count()
	if b.restored.Swap(count) == count {
		return
	}
	b.restoring.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), memoryKept)
		defer cancel()
		for _, s := range b.store.Shards() {
			for b.histories.Count() == count && ctx.Err() == nil {
				if _, err := b.restore(ctx, s); err == nil {
					break
				}
				select {
				case <-time.After(othersRestore):
				case <-b.closed:
					return
				}
			}
		}
	})
}

// expecting makes a call like timed, but to no node with another history.
func (b *Broker) expecting(ctx context.Context, h engine.History, call lua.Call) (values []any, r Reading, err error) {
	return b.timedBy(engine.Expect(ctx, h), sentOnce{b.store.Patient}, call)
}

// sentOnce is a client whose scripts go-redis sends once.
type sentOnce struct{ redis.UniversalClient }

func (c sentOnce) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return c.once(ctx, "evalsha", sha, keys, args)
}

func (c sentOnce) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.once(ctx, "eval", script, keys, args)
}

func (c sentOnce) once(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := append(make([]any, 0, 3+len(keys)+len(args)), name, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	_ = c.Process(ctx, once{cmd}) // its error is the command's
	return cmd
}

// once is a command that go-redis sends once.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// close ends what restoreAll has begun.
func (b *Broker) close() {
	close(b.closed)
	b.restoring.Wait()
}
