package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// sentinels are the checks on a Redis with replicas and Sentinel.
func sentinels() []check {
	return []check{{
		id: "K2",
		what: "a primary with two replicas and three sentinels is killed, hangs, is cut off or fails over by " +
			"command, with redis.durability and without",
		target: "with it lost 0 of what had 202, stamps τ* ≤ 1 µs, intake back ≤ 1 s after the new primary has " +
			"its replicas; without it some are lost",
		quick: scale{jobs: 300, tenants: 20, rounds: 1, limit: 2 * time.Minute},
		full:  scale{jobs: 2000, tenants: 40, rounds: 5, limit: 20 * time.Minute},
		run:   failovers,
	}}
}

const (
	sentinelMaster = "battery"
	replicaCount   = 2
)

// blow is what befalls a primary.
type blow string

const (
	killed  blow = "killed"
	hung    blow = "hung"
	cutOff  blow = "cut off"
	planned blow = "planned"
)

// group is a primary with its replicas and sentinels.
type group struct {
	w       *world
	nodes   []*node // the first is the primary, as follow found it
	watcher *redis.SentinelClient
	others  int // failovers that nothing of the check has caused: a machine that stands still for long
}

// failovers strikes the primary in each way with durability, which must lose nothing, and without,
// which must lose something: else the check sees nothing.
func failovers(ctx context.Context, w *world, f *findings) error {
	with, without := []blow{killed, cutOff}, []blow{cutOff}
	if w.scale.rounds > 1 {
		with, without = []blow{killed, hung, planned, cutOff}, []blow{cutOff, planned}
	}
	if err := w.failovers(ctx, f, with, replicaCount); err != nil {
		return err
	}
	w.nursery.clear()
	arm, err := newWorld(*w)
	if err != nil {
		return err
	}
	defer func() { _ = arm.close(false) }()
	arm.scale.rounds = min(arm.scale.rounds, 2) // one loss is enough
	return arm.failovers(ctx, f, without, 0)
}

// failovers takes jobs in while the primary is struck, and counts what is lost of those that had
// 202.
func (w *world) failovers(ctx context.Context, f *findings, blows []blow, durable int) error {
	s := settings{defaults: tenant{rate: strconv.Itoa(4*w.scale.jobs/w.scale.tenants) + "/s"}}
	if durable > 0 {
		s.redis = fmt.Sprintf(", durability: { replicas: %d }", durable)
	}
	g, err := w.openGroup(ctx, s, durable, "api", "api", "worker", "worker")
	if err != nil {
		return err
	}
	defer g.close()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	const long = 10 * time.Minute // longer than all blows
	started := w.ledger.now()
	wait := w.background(loading, load{
		name: "k2", jobs: w.scale.jobs * int(long.Seconds()), over: long, tenants: spread("tenant", w.scale.tenants),
		insist: true, clients: 64,
	})
	backs := map[blow][]time.Duration{}
	failovers := 0
	for range w.scale.rounds {
		for _, how := range blows {
			if err := pause(ctx, w.between(time.Second, 3*time.Second/2)); err != nil {
				return err
			}
			w.say("the primary is %s", how)
			if err := g.follow(ctx); err != nil {
				return err
			}
			before := g.others
			up, err := g.strike(ctx, how, durable)
			if err != nil {
				return fmt.Errorf("the primary is %s: %w", how, err)
			}
			if err := pause(ctx, 1500*time.Millisecond); err != nil {
				return err
			}
			if err := g.follow(ctx); err != nil {
				return err
			}
			failovers++
			if g.others == before { // another failover would take the intake away again
				backs[how] = append(backs[how], w.intakeBack(up, nil))
			}
		}
	}
	stop()
	_ = wait() // its context was cancelled
	took := w.ledger.now().since(started)
	requests, _ := w.ledger.entries()
	statuses := map[int]float64{}
	for _, r := range requests {
		statuses[r.Status]++
	}
	if durable == 0 {
		return w.control(ctx, f)
	}
	f.info("failovers", float64(failovers), "")
	f.info("others, by the machine", float64(g.others), "")
	f.info("admitted in a second", statuses[http.StatusAccepted]/took.Seconds(), "")
	f.info("503s", statuses[http.StatusServiceUnavailable], "")
	for _, how := range blows {
		if len(backs[how]) > 0 {
			f.atMost("intake back, "+string(how), slices.Max(backs[how]).Seconds(), 1, "s")
			f.timed()
		}
	}
	return w.nothingLost(ctx, f, "k2", requests)
}

// nothingLost checks that a load has lost nothing that had a 202, and that each of its keys gets
// one: those without are sent again.
func (w *world) nothingLost(ctx context.Context, f *findings, name string, requests []request) error {
	if err := w.resolve(ctx, name, requests); err != nil {
		return err
	}
	e, err := w.settleAcknowledged(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.stamps(w, f)
	f.atMost("keys whose outcome stays unknown", float64(e.Keys-e.Acknowledged), 0, "")
	return nil
}

// settleAcknowledged is settle for what had a 202. A job whose outcome was unknown may be delivered
// and then lost in the failover: its key makes another one. Such deliveries are counted apart.
func (w *world) settleAcknowledged(ctx context.Context, f *findings) (e ended, err error) {
	if err := w.drain(ctx); err != nil {
		return e, err
	}
	if e.stored, err = w.stored(ctx); err != nil {
		return e, err
	}
	requests, all := w.ledger.entries()
	owners := map[string]string{} // of the jobs that had a 202
	for _, r := range requests {
		if r.Outcome == acknowledged {
			owners[r.Job] = r.Tenant
		}
	}
	for _, d := range all {
		if e.stored[d.Job] || owners[d.Job] != "" {
			e.deliveries = append(e.deliveries, d)
		}
	}
	e.balance = reckon(requests, e.deliveries)
	for id := range owners {
		if !e.stored[id] {
			e.Lost = append(e.Lost, "job "+id+" is missing in Redis")
			delete(owners, id)
		}
	}
	for id := range e.stored {
		if owners[id] == "" {
			e.Unexpected = append(e.Unexpected, "job "+id+" is in Redis, though no key had it in the end")
		}
	}
	if e.jobs, err = w.read(ctx, owners); err != nil {
		return e, err
	}
	f.info("jobs", float64(len(e.stored)), "")
	f.none("lost", e.Lost)
	f.none("unexpected", e.Unexpected)
	f.info("deliveries of jobs that had no 202 and were lost", float64(len(all)-len(e.deliveries)), "")
	return e, nil
}

// resolve sends the keys of a load again that have no 202.
func (w *world) resolve(ctx context.Context, name string, requests []request) error {
	open := map[string]request{}
	for _, r := range requests {
		open[r.Key] = r
	}
	for _, r := range requests {
		if r.Outcome == acknowledged {
			delete(open, r.Key)
		}
	}
	for key, r := range open {
		i, err := strconv.Atoi(strings.TrimPrefix(key, name+"-"))
		if err != nil {
			return err
		}
		w.send(ctx, load{name: name, tenants: one(r.Tenant), insist: true}, i)
	}
	return ctx.Err()
}

// control counts what is lost without durability.
func (w *world) control(ctx context.Context, f *findings) error {
	stored, err := w.stored(ctx)
	if err != nil {
		return err
	}
	lost := 0.0
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		if r.Outcome == acknowledged && !stored[r.Job] {
			lost++
		}
	}
	f.atLeast("lost without durability", lost, 1, "")
	return nil
}

// intakeBack is how long after an instant the first job was taken in, of these tenants or of any.
func (w *world) intakeBack(up instant, tenants []string) time.Duration {
	requests, _ := w.ledger.entries()
	first := w.ledger.now()
	for _, r := range requests {
		if r.Outcome == acknowledged && r.Answered > up && (tenants == nil || slices.Contains(tenants, r.Tenant)) {
			first = min(first, r.Answered)
		}
	}
	return first.since(up)
}

// openGroup starts the servers, their sentinels and the processes. A primary with fewer replicas
// than needed refuses writes.
func (w *world) openGroup(ctx context.Context, s settings, needed int, roles ...string) (*group, error) {
	w.settings = s.withDefaults()
	g := &group{w: w}
	for i := range 1 + replicaCount {
		args := []string{"--min-replicas-to-write", strconv.Itoa(needed), "--min-replicas-max-lag", "2"}
		if i > 0 {
			args = append(args, "--replicaof", "127.0.0.1 "+strconv.Itoa(g.nodes[0].port))
		}
		n, err := w.startServer(ctx, fmt.Sprintf("redis-%d", i+1), args)
		if err != nil {
			return g, err
		}
		g.nodes = append(g.nodes, n)
	}
	if err := g.whole(ctx); err != nil {
		return g, err
	}
	var addresses []string
	for i := range 3 {
		at, err := w.startSentinel(fmt.Sprintf("sentinel-%d", i+1), g.nodes[0].port)
		if err != nil {
			return g, err
		}
		addresses = append(addresses, at)
	}
	g.watcher = redis.NewSentinelClient(&redis.Options{Addr: addresses[0], DisableIdentity: true})
	if err := until(ctx, "the sentinels know each other and the replicas", 50*time.Millisecond, func() (bool, error) {
		m, err := g.watcher.Master(ctx, sentinelMaster).Result()
		return err == nil && m["num-other-sentinels"] == "2" && m["num-slaves"] == strconv.Itoa(replicaCount), nil
	}); err != nil {
		return g, err
	}
	w.url = "redis+sentinel://" + addresses[0] + "?master_name=" + sentinelMaster + "&addr=" + strings.Join(addresses[1:], "&addr=")
	w.store = redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: sentinelMaster, SentinelAddrs: addresses, ReadTimeout: 5 * time.Second, ContextTimeoutEnabled: true,
		DisableIdentity: true,
	})
	for _, r := range roles {
		if r == "api" {
			w.api = "" // each has an address of its own; the load goes to the last
		}
		if _, err := w.start(ctx, r); err != nil {
			return g, err
		}
	}
	return g, nil
}

func (g *group) close() {
	for _, n := range g.nodes {
		_ = n.client.Close()
	}
	if g.watcher != nil {
		_ = g.watcher.Close()
	}
}

// startServer starts a redis-server in a directory of its own.
func (w *world) startServer(ctx context.Context, name string, args []string) (*node, error) {
	dir := filepath.Join(w.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	port, _, err := twoPorts()
	if err != nil {
		return nil, err
	}
	n := &node{port: port, args: append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", w.settings.fsync, "--maxmemory-policy", "noeviction", "--repl-diskless-sync-delay", "0",
		"--repl-ping-replica-period", "1",
	}, args...), client: redis.NewClient(&redis.Options{
		Network: "tcp", Addr: address(port), ReadTimeout: 5 * time.Second, MaxRetries: -1, ContextTimeoutEnabled: true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}
	return n, w.runNode(ctx, n, name)
}

// startSentinel starts a sentinel and returns its address.
func (w *world) startSentinel(name string, master int) (at string, err error) {
	port, _, err := twoPorts()
	if err != nil {
		return "", err
	}
	path := filepath.Join(w.dir, name+".conf")
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %q\nsentinel monitor %s 127.0.0.1 %d 2\n"+
		"sentinel down-after-milliseconds %[3]s 700\nsentinel failover-timeout %[3]s 4000\nsentinel parallel-syncs %[3]s 2\n",
		port, w.dir, sentinelMaster, master)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	_, err = w.nursery.start(w.dir, name, nil, "redis-server", path, "--sentinel")
	return address(port), err
}

// strike strikes the primary and returns when another one, with as many replicas as writes need,
// accepts writes: at that instant. Then the struck server is a replica, too.
func (g *group) strike(ctx context.Context, how blow, needed int) (up instant, err error) {
	if err := g.knowReplicas(ctx); err != nil {
		return 0, err
	}
	old := g.nodes[0]
	switch how {
	case killed:
		old.kill()
	case hung:
		old.stop()
	case cutOff:
		err = old.cut(ctx)
	case planned:
		err = g.watcher.Failover(ctx, sentinelMaster).Err()
	}
	if err != nil {
		return 0, err
	}
	if err := until(ctx, "a replica is the primary", 10*time.Millisecond, func() (bool, error) {
		return g.follow(ctx) == nil && g.nodes[0] != old, nil
	}); err != nil {
		return 0, err
	}
	g.others-- // this one was meant
	if err := g.back(ctx, how, old); err != nil {
		return 0, err
	}
	if err := until(ctx, "the new primary accepts writes", 5*time.Millisecond, func() (bool, error) {
		if err := g.follow(ctx); err != nil {
			return false, nil
		}
		info, err := g.nodes[0].client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "role:master") &&
			(needed == 0 || strings.Contains(info, fmt.Sprintf("min_slaves_good_slaves:%d", needed))), nil
	}); err != nil {
		return 0, err
	}
	up = g.w.ledger.now()
	return up, g.whole(ctx)
}

// follow asks the sentinels who the primary is, and puts it first.
func (g *group) follow(ctx context.Context) error {
	addr, err := g.watcher.GetMasterAddrByName(ctx, sentinelMaster).Result()
	if err != nil || len(addr) != 2 {
		return fmt.Errorf("ask the sentinels for the primary: %w", err)
	}
	i := slices.IndexFunc(g.nodes, func(n *node) bool { return strconv.Itoa(n.port) == addr[1] })
	if i > 0 {
		g.others++
		g.nodes[0], g.nodes[i] = g.nodes[i], g.nodes[0]
	}
	return nil
}

// back makes the struck server a replica of the new primary.
func (g *group) back(ctx context.Context, how blow, old *node) error {
	port := strconv.Itoa(g.nodes[0].port)
	switch how {
	case killed:
		old.args = append(old.args, "--replicaof", "127.0.0.1 "+port)
		return g.w.runNode(ctx, old, old.name)
	case hung:
		// By now the sentinels have given it up, and the processes have left it.
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		old.cont()
	case cutOff:
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if err := old.client.ConfigSet(ctx, "requirepass", "").Err(); err != nil {
			return err
		}
	case planned:
		return nil // the sentinels do it
	}
	return old.client.Do(ctx, "replicaof", "127.0.0.1", port).Err()
}

// cut separates a server from its replicas and from the sentinels, but not from its clients: it
// demands a password of new connections, and closes those of the others.
func (n *node) cut(ctx context.Context) error {
	if err := n.client.Ping(ctx).Err(); err != nil { // its own connection stays
		return err
	}
	if err := n.client.ConfigSet(ctx, "requirepass", "cut off").Err(); err != nil {
		return err
	}
	list, err := n.client.ClientList(ctx).Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		if strings.Contains(line, " flags=S") || strings.Contains(line, " name=sentinel-") {
			err = errors.Join(err, n.client.ClientKillByFilter(ctx, "id", id).Err())
		}
	}
	return err
}

// whole waits until each replica has all of the primary's data and is known there.
func (g *group) whole(ctx context.Context) error {
	return until(ctx, "the primary knows its replicas", 20*time.Millisecond, func() (bool, error) {
		if g.watcher != nil && g.follow(ctx) != nil {
			return false, nil
		}
		for _, n := range g.nodes[1:] {
			info, err := n.client.Info(ctx, "replication").Result()
			if err != nil || !linked(info) {
				return false, nil
			}
		}
		info, err := g.nodes[0].client.Info(ctx, "replication").Result()
		return err == nil && strings.Count(info, "state=online") == replicaCount, nil
	})
}

// knowReplicas waits until the sentinel knows that the replicas are there, so that a failover finds
// one.
func (g *group) knowReplicas(ctx context.Context) error {
	return until(ctx, "the sentinel knows the replicas", 50*time.Millisecond, func() (bool, error) {
		if g.follow(ctx) != nil {
			return false, nil
		}
		replicas, err := g.watcher.Replicas(ctx, sentinelMaster).Result()
		if err != nil {
			return false, nil
		}
		good := 0
		for _, r := range replicas {
			if r["flags"] == "slave" && r["master-link-status"] == "ok" && r["master-port"] == strconv.Itoa(g.nodes[0].port) {
				good++
			}
		}
		return good == replicaCount, nil
	})
}
