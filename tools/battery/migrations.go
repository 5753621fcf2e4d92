package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
)

// migration is one slot on its way from one node to the other.
type migration struct {
	slot       int
	begun, end instant
	keys       int
	twice      []string // keys that the other node had already
}

// meets reports whether the slot was open, or had been less than after ago, at some instant from
// first to last.
func (m migration) meets(slot int, first, last instant, after time.Duration) bool {
	return m.slot == slot && first <= m.end.add(after) && last >= m.begun
}

func (w *world) slotOf(ctx context.Context, tenant string) (int, error) {
	slot, err := w.store.ClusterKeySlot(ctx, keyspace.ShardOf(tenant).Clock()).Result()
	return int(slot), err
}

// busySlots is the slots to be moved, in an order of the seed: those of the pool and of some
// tenants, and that of the live workers. The second one is a tenant's: it is open for longer than a
// lease, so that some submissions are refused.
func (w *world) busySlots(ctx context.Context, tenants []string) ([]int, error) {
	workers, err := w.store.ClusterKeySlot(ctx, "{workers}").Result()
	if err != nil {
		return nil, err
	}
	pool, err := w.slotOf(ctx, "+"+poolName)
	if err != nil {
		return nil, err
	}
	slots := []int{int(workers), pool}
	for _, i := range w.rng.Perm(len(tenants)) {
		slot, err := w.slotOf(ctx, tenants[i])
		if err != nil {
			return nil, err
		}
		if !slices.Contains(slots, slot) && len(slots) < 6 {
			slots = append(slots, slot)
		}
	}
	w.rng.Shuffle(len(slots), func(i, k int) { slots[i], slots[k] = slots[k], slots[i] })
	a := slices.IndexFunc(slots, func(slot int) bool { return slot != int(workers) && slot != pool })
	slots[1], slots[a] = slots[a], slots[1]
	return slots, nil
}

// migrate moves a slot from the node that has it to the other, and takes about that long.
func (w *world) migrate(ctx context.Context, nodes []*node, slot int, stay time.Duration) (migration, error) {
	from, to := nodes[0], nodes[1]
	//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS
	ranges, err := from.client.ClusterSlots(ctx).Result()
	if err != nil {
		return migration{}, err
	}
	for _, r := range ranges {
		if slot >= r.Start && slot <= r.End && r.Nodes[0].ID == to.id {
			from, to = to, from
			break
		}
	}
	m := migration{slot: slot, begun: w.ledger.now()}
	setSlot := func(n *node, args ...any) error {
		return n.client.Do(ctx, append([]any{"cluster", "setslot", slot}, args...)...).Err()
	}
	if err := errors.Join(setSlot(to, "importing", from.id), setSlot(from, "migrating", to.id)); err != nil {
		return m, fmt.Errorf("open slot %d: %w", slot, err)
	}
	const steps = 8
	last := [][]string{nil, {"flow"}, {"queue", "flow"}, {"job"}, {"wait", "ready", "flow"}}[w.rng.IntN(5)]
	for {
		if err := pause(ctx, stay/steps); err != nil {
			return m, err
		}
		n, err := from.client.ClusterCountKeysInSlot(ctx, slot).Result()
		if err != nil {
			return m, err
		}
		if n == 0 {
			break
		}
		keys, err := from.client.ClusterGetKeysInSlot(ctx, slot, int(n)).Result()
		if err != nil {
			return m, err
		}
		// Few keys a step, so that the slot is split in many ways. Some kinds of keys that scripts
		// do not declare move last.
		w.rng.Shuffle(len(keys), func(i, k int) { keys[i], keys[k] = keys[k], keys[i] })
		slices.SortStableFunc(keys, func(a, b string) int {
			return cmp.Compare(slices.Index(last, kindOf(a)), slices.Index(last, kindOf(b)))
		})
		keys = keys[:min(len(keys), len(keys)/4+3)]
		for _, key := range keys {
			twice, err := move(ctx, from, to, key)
			if err != nil {
				return m, fmt.Errorf("migrate %s: %w", key, err)
			}
			if twice {
				m.twice = append(m.twice, key)
			}
		}
		m.keys += len(keys)
	}
	if err := setSlot(to, "node", to.id); err != nil {
		return m, fmt.Errorf("close slot %d: %w", slot, err)
	}
	if err := pause(ctx, stay/steps); err != nil { // both have it
		return m, err
	}
	if err := setSlot(from, "node", to.id); err != nil {
		return m, fmt.Errorf("close slot %d: %w", slot, err)
	}
	m.end = w.ledger.now()
	return m, nil
}

// kindOf is the kind of a key of a shard, such as flow.
func kindOf(key string) string {
	_, rest, _ := strings.Cut(key, "}:")
	kind, _, _ := strings.Cut(rest, ":")
	return kind
}

// move moves one key. If the other node has one of that name, it is written over, as redis-cli does
// with its option replace.
func move(ctx context.Context, from, to *node, key string) (twice bool, err error) {
	err = from.client.Do(ctx, "migrate", "127.0.0.1", to.port, key, 0, 5000).Err()
	if err == nil || !strings.Contains(err.Error(), "BUSYKEY") {
		return false, err
	}
	return true, from.client.Do(ctx, "migrate", "127.0.0.1", to.port, key, 0, 5000, "replace").Err()
}

// waitForLater makes the keys that a shard has only now and then: an expiry and a completion that
// are due in an hour. With them, all keys that scripts declare exist, and Redis executes
// them in the midst of a migration.
func (w *world) waitForLater(ctx context.Context, tenants []string) error {
	later := redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: standIn}
	for _, t := range tenants {
		shard := keyspace.ShardOf(t)
		err := errors.Join(w.store.ZAdd(ctx, shard.Expires(), later).Err(),
			w.store.ZAdd(ctx, shard.Outbox(), later).Err())
		if err != nil {
			return err
		}
	}
	return nil
}

// standIn stands for the id of a job.
const standIn = "battery"

// auditKeys begins the keys of the audit, which is no shard.
const auditKeys = "sluice:{audit}:"

// halfDone searches the keys of a drained cluster for the remains of an incomplete change.
func (w *world) halfDone(ctx context.Context, nodes []*node) (found []string, err error) {
	stored, err := w.stored(ctx)
	if err != nil {
		return nil, err
	}
	half := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	admitted, succeeded, counted := 0, 0, 0
	for _, n := range nodes {
		it := n.client.Scan(ctx, 0, "sluice:*", 5000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			if seen[key] {
				half("%s is on both nodes", key)
			}
			seen[key] = true
			if strings.HasPrefix(key, auditKeys) {
				continue
			}
			switch kind := kindOf(key); kind {
			case "expires", "outbox":
				ids, err := n.client.ZRange(ctx, key, 0, -1).Result()
				if err != nil {
					return nil, err
				}
				if len(ids) != 1 || ids[0] != standIn {
					half("%s holds %v", key, ids)
				}
			case "due", "leases", "queue", "later", "claim", "unlock", "dead", "wait", "ready", "reserve":
				half("%s is left over", key)
			case "stream", "beyond", "reading", "aside": // they linger behind the end of an answer
				ttl, err := n.client.PTTL(ctx, key).Result()
				if err != nil {
					return nil, err
				}
				if ttl == -1 {
					half("%s stays for ever", key)
				}
			case "clock":
				text, err := n.client.HGet(ctx, key, scripts.ClockNumbers).Result()
				if err != nil {
					return nil, err
				}
				clock, err := scripts.ParseClock(text)
				if err != nil {
					return nil, err
				}
				if clock.Depth != 0 || clock.Running != 0 {
					half("%s: depth is %d, running %d", key, clock.Depth, clock.Running)
				}
				counted += int(clock.Admitted)
			case "flow":
				figures, err := n.client.HGetAll(ctx, key).Result()
				if err != nil {
					return nil, err
				}
				for _, name := range []string{"depth", "running", "queued", "cost"} {
					if v := figures[name]; v != "" && v != "0" {
						half("%s: %s is %s", key, name, v)
					}
				}
				for name, sum := range map[string]*int{"admitted": &admitted, "succeeded": &succeeded} {
					v, _ := strconv.Atoi(figures[name])
					*sum += v
				}
			case "idem":
				known, err := n.client.Get(ctx, key).Result()
				if err != nil {
					return nil, err
				}
				// id, fingerprint, then state and more once the job has ended
				words := strings.Fields(known)
				if !stored[words[0]] || len(words) < 3 || words[2] != "S" {
					half("%s knows %q", key, known)
				}
			}
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
	}
	if admitted != len(stored) || succeeded != len(stored) || counted != len(stored) {
		half("the flows count %d jobs admitted and %d succeeded, the shards %d admitted, of %d", admitted,
			succeeded, counted, len(stored))
	}
	return found, nil
}
