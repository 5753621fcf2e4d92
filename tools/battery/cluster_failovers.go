package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// durableClusters is the check that a Redis Cluster loses nothing with redis.durability.
func durableClusters() []check {
	return []check{{
		id: "K4",
		what: "three masters of a cluster with a replica each, and redis.durability: masters are killed, hang, " +
			"hand over by command; nodes come, get slots under load, and are forgotten",
		target: "lost 0 of what had 202, stamps τ* ≤ 1 µs, intake back ≤ 1 s after the new master has its " +
			"replica",
		quick: scale{jobs: 300, tenants: 24, rounds: 1, limit: 3 * time.Minute},
		full:  scale{jobs: 1000, tenants: 48, rounds: 3, limit: 15 * time.Minute},
		run:   clusterFailovers,
	}}
}

// Further blows: the replica takes over by a command that asks nobody, or slots move to new nodes.
const (
	takenOver blow = "killed and taken over"
	grown     blow = "given new nodes"
)

// shards is a cluster whose masters have a replica each.
type shards struct {
	w     *world
	pairs [][2]*node // a master and its replica, in any order
}

// clusterFailovers takes jobs in while a cluster changes, and counts what is lost of those that had
// 202.
func clusterFailovers(ctx context.Context, w *world, f *findings) error {
	const masters = 3
	s := settings{
		defaults: tenant{rate: strconv.Itoa(4*w.scale.jobs/w.scale.tenants) + "/s"},
		redis:    ", durability: { replicas: 1 }",
		node: []string{
			"--min-replicas-to-write", "1", "--min-replicas-max-lag", "2", "--repl-ping-replica-period", "1",
			"--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0",
			"--cluster-allow-replica-migration", "no", // a node without slots stays a master
		},
	}
	nodes, err := w.openCluster(ctx, s, masters, masters, "api", "worker", "worker")
	if err != nil {
		return err
	}
	c := &shards{w: w}
	for i := range masters {
		c.pairs = append(c.pairs, [2]*node{nodes[i], nodes[masters+i]})
	}
	defer func() {
		for _, p := range c.pairs {
			_ = errors.Join(p[0].client.Close(), p[1].client.Close())
		}
	}()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	const long = 10 * time.Minute // longer than all blows
	wait := w.background(loading, load{
		name: "k4", jobs: w.scale.jobs * int(long.Seconds()), over: long, insist: true, clients: 64,
		tenants: spread("tenant", w.scale.tenants),
	})
	backs := map[blow]time.Duration{}
	blows := []blow{planned, killed, hung, takenOver, grown}
	moved := 20 // slots: a node writes its map to the disk for each step of each
	if w.scale.rounds > 1 {
		moved = 1000
	}
	for round := range w.scale.rounds {
		for _, how := range blows {
			if how == grown && round > 0 {
				continue
			}
			if err := pause(ctx, w.between(time.Second, 3*time.Second/2)); err != nil {
				return err
			}
			i := w.rng.IntN(masters)
			w.say("master %d is %s", i+1, how)
			tenants, err := c.tenants(ctx, i)
			if err != nil {
				return err
			}
			up, err := c.strike(ctx, how, i, moved)
			if err != nil {
				return fmt.Errorf("master %d is %s: %w", i+1, how, err)
			}
			if err := pause(ctx, 1500*time.Millisecond); err != nil {
				return err
			}
			backs[how] = max(backs[how], w.intakeBack(up, tenants))
		}
	}
	stop()
	_ = wait() // its context was cancelled
	requests, _ := w.ledger.entries()
	statuses := map[int]float64{}
	for _, r := range requests {
		statuses[r.Status]++
	}
	f.info("slots moved there and back", float64(moved), "")
	f.info("admitted", statuses[http.StatusAccepted], "")
	f.info("503s", statuses[http.StatusServiceUnavailable], "")
	for _, how := range blows {
		f.atMost("intake back, "+string(how), backs[how].Seconds(), 1, "s")
		f.timed()
	}
	if err := w.nothingLost(ctx, f, "k4", requests); err != nil {
		return err
	}
	var unready []string
	for _, p := range w.sluices {
		code, _, err := w.call(ctx, http.MethodGet, p.admin, "/readyz", nil, nil)
		if err != nil || code != http.StatusOK {
			unready = append(unready, fmt.Sprintf("%s: %d %v", p.name, code, err))
		}
	}
	f.none("processes that are not ready at the end", unready)
	return nil
}

// tenants is the tenants of the load whose shards the i-th pair has.
func (c *shards) tenants(ctx context.Context, i int) (of []string, err error) {
	for _, t := range names("tenant", c.w.scale.tenants) {
		slot, err := c.w.slotOf(ctx, t)
		if err != nil {
			return nil, err
		}
		if slot >= firstSlot(i, len(c.pairs)) && slot < firstSlot(i+1, len(c.pairs)) {
			of = append(of, t)
		}
	}
	return of, nil
}

// sort puts the master of a pair first.
func (c *shards) sort(ctx context.Context, i int) error {
	p := &c.pairs[i]
	return until(ctx, p[0].name+" or "+p[1].name+" is the master of the other", 20*time.Millisecond,
		func() (bool, error) {
			for range p {
				info, err := p[1].client.Info(ctx, "replication").Result()
				if err == nil && linked(info) {
					return true, nil
				}
				p[0], p[1] = p[1], p[0]
			}
			return false, nil
		})
}

// strike changes the i-th pair and returns when its master accepts writes: at that instant. Then
// both nodes are there.
func (c *shards) strike(ctx context.Context, how blow, i, moved int) (up instant, err error) {
	if err := c.sort(ctx, i); err != nil {
		return 0, err
	}
	if how == grown {
		return c.grow(ctx, i, moved)
	}
	old, replica := c.pairs[i][0], c.pairs[i][1]
	switch how {
	case killed, takenOver:
		old.kill()
	case hung:
		old.stop()
	case planned:
		err = replica.client.Do(ctx, "cluster", "failover").Err()
	}
	if err == nil && how == takenOver {
		err = replica.client.Do(ctx, "cluster", "failover", "takeover").Err()
	}
	if err != nil {
		return 0, err
	}
	if err := until(ctx, "the replica is the master", 5*time.Millisecond, func() (bool, error) {
		info, err := replica.client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "role:master"), nil
	}); err != nil {
		return 0, err
	}
	switch how {
	case killed, takenOver:
		err = c.w.runNode(ctx, old, old.name)
	case hung:
		old.cont()
	}
	if err != nil {
		return 0, err
	}
	if err := replica.accepts(ctx); err != nil {
		return 0, err
	}
	up = c.w.ledger.now()
	return up, old.follows(ctx)
}

// accepts waits until a master has a replica, without which it refuses writes, and its cluster is
// whole.
func (n *node) accepts(ctx context.Context) error {
	return until(ctx, n.name+" accepts writes", 5*time.Millisecond, func() (bool, error) {
		info, err := n.client.Info(ctx, "replication").Result()
		if err != nil || !strings.Contains(info, "min_slaves_good_slaves:1") {
			return false, nil
		}
		state, err := n.client.ClusterInfo(ctx).Result()
		return err == nil && strings.Contains(state, "cluster_state:ok"), nil
	})
}

// grow adds a master with a replica, moves slots of the i-th pair there and back, and has the
// cluster forget the new nodes. It returns the instant at which the slots are back.
func (c *shards) grow(ctx context.Context, i, slots int) (up instant, err error) {
	from := c.pairs[i][0]
	var fresh [2]*node
	for k := range fresh {
		if fresh[k], err = c.w.startNode(ctx, fmt.Sprintf("new-%d-%d", c.w.ledger.now(), k+1)); err != nil {
			return 0, err
		}
		defer func() { fresh[k].kill(); _ = fresh[k].client.Close() }()
		meet := fresh[k].client.Do(ctx, "cluster", "meet", "127.0.0.1", from.port, from.bus).Err()
		if fresh[k].id, err = fresh[k].client.ClusterMyID(ctx).Result(); err != nil || meet != nil {
			return 0, errors.Join(err, meet)
		}
	}
	all := fresh[:]
	for _, p := range c.pairs {
		all = append(all, p[0], p[1])
	}
	known := fmt.Sprintf("cluster_known_nodes:%d", len(all))
	if err := until(ctx, "all know the new nodes", 20*time.Millisecond, func() (bool, error) {
		for _, n := range all {
			info, err := n.client.ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, known) {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		return 0, err
	}
	if err := fresh[1].client.ClusterReplicate(ctx, fresh[0].id).Err(); err != nil {
		return 0, err
	}
	if err := errors.Join(fresh[1].follows(ctx), fresh[0].accepts(ctx)); err != nil {
		return 0, err
	}
	// From the slot of a tenant on, so that jobs are among what moves.
	tenants, err := c.tenants(ctx, i)
	if err != nil || len(tenants) == 0 {
		return 0, errors.Join(err, fmt.Errorf("master %d has no tenants", i+1))
	}
	first, err := c.w.slotOf(ctx, tenants[0])
	if err != nil {
		return 0, err
	}
	first = min(first, firstSlot(i+1, len(c.pairs))-slots)
	for range 2 { // there and back
		c.w.say("%d slots move", slots)
		for slot := first; slot < first+slots; slot++ {
			if _, err := c.w.migrate(ctx, []*node{from, fresh[0]}, slot, 0); err != nil {
				return 0, err
			}
		}
	}
	up = c.w.ledger.now()
	for _, n := range fresh { // the replica, too, before it could take its place
		for _, other := range all[len(fresh):] {
			if err := other.client.ClusterForget(ctx, n.id).Err(); err != nil {
				return 0, fmt.Errorf("%s forgets %s: %w", other.name, n.name, err)
			}
		}
	}
	slices.Reverse(fresh[:])
	for _, n := range fresh { // it goes on, as a cluster of its own
		if err := n.client.ClusterResetHard(ctx).Err(); err != nil {
			return 0, fmt.Errorf("reset %s: %w", n.name, err)
		}
	}
	return up, pause(ctx, time.Second)
}
