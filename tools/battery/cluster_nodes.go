package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

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
		return linked(info), nil
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
	n := &node{port: port, bus: bus, args: append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "5000",
		"--save", "", "--appendonly", "yes", "--appendfsync", w.settings.fsync, "--maxmemory-policy", "noeviction",
		"--repl-diskless-sync-delay", "0",
	}, w.settings.node...), client: redis.NewClient(&redis.Options{
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

// linked reports whether INFO is that of a replica whose link to its master is up.
func linked(info string) bool {
	return strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up")
}
