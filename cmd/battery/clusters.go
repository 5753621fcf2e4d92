package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/7509e464/sluice/lua"
)

// clusters are the checks on a Redis Cluster.
func clusters() []check {
	return []check{
		{
			id: "K1",
			what: "cluster slots migrating to and fro under load, those of busy shards and that of the " +
				"workers",
			target: "no half-done change, lost 0, unexpected 0" + poolTarget,
			quick:  scale{jobs: 2000, tenants: 12, rounds: 8, window: 10 * time.Second},
			full:   scale{jobs: 10_000, tenants: 24, rounds: 30, window: 45 * time.Second, limit: 5 * time.Minute},
			run:    slotsMigrating,
		},
		{
			id: "K3", what: "a master of a cluster is killed, and one hangs, while jobs come and go",
			target: "tenants of the master depart again ≤ 1 s after the takeover",
			quick:  scale{tenants: 24, rounds: 1, window: 3 * time.Second},
			full:   scale{tenants: 24, rounds: 5, window: 5 * time.Second, limit: 4 * time.Minute},
			run:    mastersStruck,
		},
	}
}

// clusterSlots is how many slots a cluster has.
const clusterSlots = 16384

// node is a redis-server of a cluster.
type node struct {
	*process
	args   []string // it is started by
	port   int      // of clients
	bus    int      // of the other nodes
	id     string
	client *redis.Client
}

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

// slotsMigrating moves slots between the two nodes of a cluster, the way redis-cli does it, while
// jobs come and go. Intake may answer 503 meanwhile; its clients try again with the same key.
func slotsMigrating(ctx context.Context, w *world, f *findings) error {
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	tenants := names("tenant", w.scale.tenants)
	s := settings{
		defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant)+2)}, tenants: map[string]tenant{}, pool: "70/s",
	}
	for _, t := range tenants {
		s.tenants[t] = tenant{} // named in the file, so that all keys of a policy are there
	}
	nodes, err := w.openCluster(ctx, s, 2, 0, "api", "worker", "worker")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(nodes[0].client.Close(), nodes[1].client.Close()) }()
	slots, err := w.busySlots(ctx, tenants)
	if err != nil {
		return err
	}
	w.sink.set(slowly(5*time.Millisecond, 100*time.Millisecond))
	from, err := w.stockPool(ctx)
	if err != nil {
		return err
	}
	wait := w.background(ctx, load{
		name: "k1", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true, clients: 128,
	})
	if err := w.waitForLater(ctx, tenants); err != nil {
		return err
	}
	tuning, stop := context.WithCancel(ctx)
	defer stop()
	tuned := make(chan int, 1)
	go func() { tuned <- w.tuneAll(tuning, tenants) }()
	var migrations []migration
	for i := range w.scale.rounds {
		if err := pause(ctx, w.between(0, w.scale.window/time.Duration(w.scale.rounds)/2)); err != nil {
			return err
		}
		// A slot goes to and fro before another one is chosen; now and then it takes longer than a
		// lease.
		stay := w.between(50*time.Millisecond, 600*time.Millisecond)
		if i%8 == 3 {
			stay = w.settings.lease + w.settings.lease/2
		}
		w.say("migration %d of %d", i+1, w.scale.rounds)
		m, err := w.migrate(ctx, nodes, slots[i/2%len(slots)], stay)
		if err != nil {
			return err
		}
		migrations = append(migrations, m)
	}
	stop()
	changes := <-tuned
	if err := wait(); err != nil {
		return err
	}
	var half []string
	for _, m := range migrations {
		for _, key := range m.twice {
			half = append(half, key+" was made anew on the other node while it was on its way there")
		}
	}
	draining, cancel := context.WithTimeout(ctx, w.scale.window+20*time.Second)
	err = w.drain(draining)
	cancel()
	if err != nil && ctx.Err() == nil { // books that do not add up never become 0
		left, err := w.halfDone(ctx, nodes)
		f.none("half-done changes", append(append(half, "the queue does not become empty"), left...))
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	left, err := w.halfDone(ctx, nodes)
	if err != nil {
		return err
	}
	f.none("half-done changes", append(half, left...))
	var moved float64
	for _, m := range migrations {
		moved += float64(m.keys)
	}
	slotOf := map[string]int{}
	for _, t := range append(tenants, poolTenants...) {
		placed := t
		if slices.Contains(poolTenants, t) {
			placed = "+" + poolName
		}
		if slotOf[t], err = w.slotOf(ctx, placed); err != nil {
			return err
		}
	}
	open := func(tenant string, first, last instant, after time.Duration) bool {
		return slices.ContainsFunc(migrations, func(m migration) bool {
			return m.meets(slotOf[tenant], first, last, after)
		})
	}
	refusals := 0.0
	var others, elsewhere, again []string
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		switch {
		case r.Status == http.StatusServiceUnavailable && open(r.Tenant, r.Sent, r.Answered, 0):
			refusals++
		case r.Status == http.StatusServiceUnavailable:
			elsewhere = append(elsewhere, fmt.Sprintf("key %s of slot %d from %v to %v", r.Key,
				slotOf[r.Tenant], time.Duration(r.Sent), time.Duration(r.Answered)))
		case r.Status != http.StatusAccepted:
			others = append(others, fmt.Sprintf("key %s: %d", r.Key, r.Status))
		}
	}
	// A lease that could not be settled while its slot was open is taken back when it has run out,
	// or one lease of grace later.
	for _, d := range e.Duplicates {
		if !open(d.again.Tenant, d.before.At, d.again.At, 2*w.settings.lease) {
			text := fmt.Sprintf("job %s of slot %d at %v and %v", d.again.Job, slotOf[d.again.Tenant],
				time.Duration(d.before.At), time.Duration(d.again.At))
			for _, m := range migrations {
				if d.before.At <= m.end && d.again.At >= m.begun {
					text += fmt.Sprintf("; slot %d was open from %v to %v", m.slot, time.Duration(m.begun),
						time.Duration(m.end))
				}
			}
			again = append(again, text)
		}
	}
	f.info("migrations", float64(len(migrations)), "")
	f.info("keys moved", moved, "")
	f.info("policy changes", float64(changes), "")
	f.atLeast("503s of open slots", refusals, 1, "") // else nothing was put to the test
	f.none("503s of other slots", elsewhere)
	f.none("answers other than 202 and 503", others)
	f.info("duplicates", float64(len(e.Duplicates)), "")
	f.none("duplicates of other slots", again)
	e.pool(w, f, from)
	return nil
}

// openCluster starts a cluster and the processes. The masters come first and share the slots
// evenly. Each of the spares is a replica of the master with the same number.
func (w *world) openCluster(
	ctx context.Context, s settings, masters, spares int, roles ...string,
) (nodes []*node, err error) {
	w.settings = s.withDefaults()
	var addresses []string
	for i := range masters + spares {
		n, err := w.startNode(ctx, fmt.Sprintf("node-%d", i+1))
		if err != nil {
			return nodes, err
		}
		nodes, addresses = append(nodes, n), append(addresses, address(n.port))
		if i < masters {
			first, last := firstSlot(i, masters), firstSlot(i+1, masters)-1
			err = n.client.ClusterAddSlotsRange(ctx, first, last).Err()
		}
		if err := errors.Join(
			err,
			// Only while it knows no other: before any of them meet.
			n.client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(),
		); err != nil {
			return nodes, fmt.Errorf("make the cluster: %w", err)
		}
	}
	for _, n := range nodes {
		for _, other := range nodes {
			if other == n {
				continue
			}
			if err := n.client.Do(ctx, "cluster", "meet", "127.0.0.1", other.port, other.bus).Err(); err != nil {
				return nodes, fmt.Errorf("make the cluster: %w", err)
			}
		}
		if n.id, err = n.client.ClusterMyID(ctx).Result(); err != nil {
			return nodes, err
		}
	}
	known := fmt.Sprintf("cluster_known_nodes:%d", len(nodes))
	if err := until(ctx, "the cluster is one", 20*time.Millisecond, func() (bool, error) {
		for _, n := range nodes {
			info, err := n.client.ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, known) {
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		return nodes, err
	}
	for i, n := range nodes[masters:] {
		if err := n.client.ClusterReplicate(ctx, nodes[i].id).Err(); err != nil {
			return nodes, fmt.Errorf("make the cluster: %w", err)
		}
		if err := n.follows(ctx); err != nil {
			return nodes, err
		}
	}
	w.url = "redis+cluster://" + addresses[0] + "?addr=" + strings.Join(addresses[1:], "&addr=")
	w.store = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addresses, ReadTimeout: 5 * time.Second, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	for _, r := range roles {
		if _, err := w.start(ctx, r); err != nil {
			return nodes, err
		}
	}
	return nodes, nil
}

// firstSlot is the first slot of the i-th of several masters that share the slots evenly.
func firstSlot(i, masters int) int { return i * clusterSlots / masters }

// follows waits until the node is a replica with all of its master's data.
func (n *node) follows(ctx context.Context) error {
	return until(ctx, n.name+" is a replica", 20*time.Millisecond, func() (bool, error) {
		info, err := n.client.Info(ctx, "replication").Result()
		if err != nil && !n.alive() {
			return false, err
		}
		return strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up"), nil
	})
}

func address(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// startNode starts a node that knows of no other, in a directory of its own.
func (w *world) startNode(ctx context.Context, name string) (*node, error) {
	dir := filepath.Join(w.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	port, bus, err := twoPorts()
	if err != nil {
		return nil, err
	}
	n := &node{port: port, bus: bus, args: []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "5000",
		"--save", "", "--appendonly", "yes", "--appendfsync", w.settings.fsync, "--maxmemory-policy", "noeviction",
		"--repl-diskless-sync-delay", "0",
	}, client: redis.NewClient(&redis.Options{
		Addr: address(port), ReadTimeout: 5 * time.Second, MaxRetries: -1, ContextTimeoutEnabled: true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}
	return n, w.runNode(ctx, n, name)
}

// runNode starts the node's process, again on the data it had after a kill, and returns when it
// answers.
func (w *world) runNode(ctx context.Context, n *node, name string) (err error) {
	if n.process, err = w.nursery.start(w.dir, name, nil, "redis-server", n.args...); err != nil {
		return err
	}
	return until(ctx, name+" answers", 20*time.Millisecond, func() (bool, error) {
		if !n.alive() {
			return false, fmt.Errorf("%s ended at start: %s", name, n.tail())
		}
		return n.client.Ping(ctx).Err() == nil, nil
	})
}

// twoPorts finds two free ports.
func twoPorts() (a, b int, err error) {
	var ports [2]int
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, 0, err
		}
		defer func() { _ = l.Close() }() // after both are chosen
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports[0], ports[1], nil
}

func (w *world) slotOf(ctx context.Context, tenant string) (int, error) {
	slot, err := w.store.ClusterKeySlot(ctx, keyspace.ShardOf(tenant).Clock()).Result()
	return int(slot), err
}

// busySlots is the slots to be moved, in an order of the seed: those of the pool and of some
// tenants, and that of the live workers.
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

// tuneAll changes the tenants' policies in turn, in a setting that nothing depends on, and returns
// how often it could.
func (w *world) tuneAll(ctx context.Context, tenants []string) (changes int) {
	for i := 0; pause(ctx, 5*time.Millisecond) == nil; i++ {
		body := fmt.Sprintf(`{"concurrency":%d}`, 300+i%2+i%3)
		_, err := w.operate(ctx, w.living("api")[0], http.MethodPatch, tenants[i%len(tenants)], body)
		if err == nil {
			changes++
		}
	}
	return changes
}

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
			case "clock":
				text, err := n.client.HGet(ctx, key, lua.ClockNumbers).Result()
				if err != nil {
					return nil, err
				}
				clock, err := lua.ParseClock(text)
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
