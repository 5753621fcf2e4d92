package redistest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// slots is how many slots a cluster has.
const slots = 16384

// Cluster is a Redis Cluster of two nodes, each with half of the slots, that belongs to one test.
type Cluster struct {
	t     testing.TB
	nodes [2]*node
	added []*Server // replicas
}

// others returns the servers of the cluster without one.
func (c *Cluster) others(without *Server) (all []*Server) {
	for _, s := range append(slices.Clone(c.added), c.nodes[0].Server, c.nodes[1].Server) {
		if s != without {
			all = append(all, s)
		}
	}
	return all
}

// node is a server of a cluster. Its clients reach it by its port; the test speaks to it by its
// socket.
type node struct {
	*Server
	client *redis.Client
	port   int
	id     string
}

// StartCluster starts a cluster. It is killed when the test ends.
func StartCluster(t testing.TB) *Cluster { return StartTLSCluster(t, TLS{}) }

// StartTLSCluster is StartCluster for nodes that speak TLS with clients and with each other.
func StartTLSCluster(t testing.TB, with TLS) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for i := range c.nodes {
		n := &node{port: freePorts(t, busAbove)}
		args := append(with.listen(n.port), "--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
		if with.CA != "" {
			args = append(args, "--tls-cluster", "yes")
		}
		n.Server = Start(t, args...)
		n.client = redis.NewClient(&redis.Options{
			Network: "unix", Addr: n.socket, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		t.Cleanup(func() { _ = n.client.Close() })
		c.nodes[i] = n
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for i, n := range c.nodes {
		c.do(n.client.ClusterAddSlotsRange(ctx, i*slots/2, (i+1)*slots/2-1).Err())
		// Only while it knows no other: before any of them meet.
		c.do(n.client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
	}
	for i, n := range c.nodes {
		other := c.nodes[1-i]
		c.do(n.client.Do(ctx, "cluster", "meet", "127.0.0.1", other.port).Err())
		var err error
		n.id, err = n.client.ClusterMyID(ctx).Result()
		c.do(err)
	}
	c.await(ctx, c.whole, "the nodes did not become a cluster")
	return c
}

// await polls until a condition holds.
func (c *Cluster) await(ctx context.Context, condition func(context.Context) bool, failure string) {
	c.t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !condition(ctx) {
		select {
		case <-poll.C:
		case <-ctx.Done():
			c.t.Fatal(failure)
		}
	}
}

// do ends the test for an error.
func (c *Cluster) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("redis cluster: %v", err)
	}
}

// whole reports whether both nodes know each other and serve all slots.
func (c *Cluster) whole(ctx context.Context) bool {
	for _, n := range c.nodes {
		info, err := n.client.ClusterInfo(ctx).Result()
		c.do(err)
		if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:2") {
			return false
		}
	}
	return true
}

// replicated reports whether both nodes know a replica of a node. Redis 6.2 tells them late.
func (c *Cluster) replicated(ctx context.Context, id string) bool {
	for _, n := range c.nodes {
		if known, err := n.client.Do(ctx, "cluster", "replicas", id).Slice(); err != nil || len(known) == 0 {
			return false
		}
	}
	return true
}

// agreed reports whether both nodes agree: which slots each has, and since
// which epoch.
func (c *Cluster) agreed(ctx context.Context) bool {
	var reported [2]map[string]string
	for i, n := range c.nodes {
		reported[i] = map[string]string{}
		text, err := n.client.ClusterNodes(ctx).Result()
		c.do(err)
		for line := range strings.Lines(text) {
			// id, address, flags, master, ping, pong, epoch, link, slots…
			if f := strings.Fields(line); len(f) > 7 {
				reported[i][f[0]] = f[6] + " " + strings.Join(f[8:], " ")
			}
		}
	}
	return maps.Equal(reported[0], reported[1])
}

// Ports below those that the kernel gives to connections, and how far above its port a node of a
// cluster listens for other nodes.
const portsFrom, portsTo, busAbove = 16_384, 32_768, 10_000

// freePort finds a port that nobody listens on.
func freePort(t testing.TB) int { return freePorts(t, 0) }

// freePorts finds a port that nobody listens on, and neither on the one that is so far above it.
func freePorts(t testing.TB, above int) int {
	t.Helper()
	for range 100 {
		port := portsFrom + rand.IntN(portsTo-portsFrom-above)
		if isFree(port) && isFree(port+above) {
			return port
		}
	}
	t.Fatal("there is no free port")
	return 0
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err == nil {
		_ = l.Close() // it was only a question
	}
	return err == nil
}

// AddReplicas gives each node a replica, which is in sync when AddReplicas returns.
func (c *Cluster) AddReplicas(ctx context.Context) (replicas [2]*Server) {
	c.t.Helper()
	for i, n := range c.nodes {
		s := startTCP(c.t, freePorts(c.t, busAbove), "--cluster-enabled", "yes")
		replicas[i], c.added = s, append(c.added, s)
		ask := func(command string) bool { return s.ask(command, time.Second) == "+OK" }
		if !ask(fmt.Sprint("CLUSTER MEET 127.0.0.1 ", n.port)) {
			c.t.Fatal("redis cluster: a replica did not meet its master")
		}
		c.await(ctx, func(context.Context) bool { return ask("CLUSTER REPLICATE " + n.id) }, "a replica does not know its master")
		c.await(ctx, func(ctx context.Context) bool {
			info, err := n.client.Info(ctx, "replication").Result()
			return err == nil && strings.Contains(info, "state=online")
		}, "a replica is not in sync")
		c.await(ctx, func(ctx context.Context) bool { return c.replicated(ctx, n.id) }, "a node does not know a replica")
	}
	return replicas
}

// Forget takes a replica out of the cluster and resets it. It goes on, and knows no other node.
func (c *Cluster) Forget(ctx context.Context, replica *Server) {
	c.t.Helper()
	r := redis.NewClient(&redis.Options{
		Network: "unix", Addr: replica.socket, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = r.Close() }() // it has served its purpose
	id, err := r.ClusterMyID(ctx).Result()
	c.do(err)
	for _, s := range c.others(replica) {
		if answer := s.ask("CLUSTER FORGET "+id, time.Second); answer != "+OK" {
			c.t.Fatalf("redis cluster: CLUSTER FORGET: %q", answer)
		}
	}
	c.do(r.ClusterResetHard(ctx).Err())
}

// ConfigSet changes a setting of both nodes.
func (c *Cluster) ConfigSet(ctx context.Context, name, value string) {
	c.t.Helper()
	for _, n := range c.nodes {
		c.do(n.client.ConfigSet(ctx, name, value).Err())
	}
}

// Address returns the address of a node, 0 or 1.
func (c *Cluster) Address(node int) string { return fmt.Sprint("127.0.0.1:", c.nodes[node].port) }

// URL returns the URL of the cluster.
func (c *Cluster) URL() string {
	return fmt.Sprintf("redis+cluster://127.0.0.1:%d?addr=127.0.0.1:%d", c.nodes[0].port, c.nodes[1].port)
}

// Hang stops a node, 0 or 1, until thaw is called. The other one still serves its own slots, as if
// only the network to the node had failed.
func (c *Cluster) Hang(ctx context.Context, node int) (thaw func()) {
	c.t.Helper()
	for _, n := range c.nodes {
		c.do(n.client.ConfigSet(ctx, "cluster-require-full-coverage", "no").Err())
		c.do(n.client.ConfigSet(ctx, "cluster-node-timeout", "600000").Err())
	}
	c.nodes[node].Freeze()
	return c.nodes[node].Thaw
}

// TakeOver gives all slots to the node, in its own map only. It has none of the keys of the other
// node.
func (c *Cluster) TakeOver(ctx context.Context, node int) {
	c.t.Helper()
	first, last := (1-node)*slots/2, (2-node)*slots/2-1
	n := c.nodes[node].client
	c.do(n.ClusterDelSlotsRange(ctx, first, last).Err())
	c.do(n.ClusterAddSlotsRange(ctx, first, last).Err())
}

// Slots returns the slots of both nodes that have keys, with the number of keys.
func (c *Cluster) Slots(ctx context.Context) [2]map[int]int {
	c.t.Helper()
	var found [2]map[int]int
	for i, n := range c.nodes {
		found[i] = map[int]int{}
		keys, err := n.client.Keys(ctx, "*").Result()
		c.do(err)
		for _, key := range keys {
			slot, err := n.client.ClusterKeySlot(ctx, key).Result()
			c.do(err)
			found[i][int(slot)]++
		}
	}
	return found
}

// Move moves a slot to the node that does not have it, as redis-cli does: the slot is opened, its
// keys are moved one by one, and it is closed. step is called while it is open, before each key and
// when all have moved.
func (c *Cluster) Move(ctx context.Context, slot int, step func()) {
	c.t.Helper()
	from, to := c.nodes[0], c.nodes[1]
	//lint:ignore SA1019 Redis 6.2 has no CLUSTER SHARDS
	ranges, err := from.client.ClusterSlots(ctx).Result()
	c.do(err)
	for _, r := range ranges {
		if slot >= r.Start && slot <= r.End && r.Nodes[0].ID == to.id {
			from, to = to, from
			break
		}
	}
	set := func(n *node, args ...any) {
		c.t.Helper()
		c.do(n.client.Do(ctx, append([]any{"cluster", "setslot", slot}, args...)...).Err())
	}
	set(to, "importing", from.id)
	set(from, "migrating", to.id)
	for {
		step()
		keys, err := from.client.ClusterGetKeysInSlot(ctx, slot, 1).Result()
		c.do(err)
		if len(keys) == 0 {
			break
		}
		err = from.client.Do(ctx, "migrate", "127.0.0.1", to.port, keys[0], 0, 5000).Err()
		// It has expired meanwhile.
		if errors.Is(err, redis.Nil) || err != nil && strings.HasPrefix(err.Error(), "NOKEY") {
			err = nil
		}
		c.do(err)
	}
	set(to, "node", to.id)
	set(from, "node", to.id)
	// A node takes the slot in an epoch that it thinks new. While it has not learnt of the
	// latest one, by gossip, the next move may be in an epoch that is not, and each node then says
	// for good that the other has the slot.
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c.await(ctx, c.agreed, "the nodes do not agree on who has the slots")
}

// Empty deletes all keys.
func (c *Cluster) Empty() {
	c.t.Helper()
	for _, n := range c.nodes {
		if answer := n.ask(deleteKeys, 20*time.Second); answer != "+OK" {
			c.t.Errorf("the cluster is not emptied: %q", answer)
		}
	}
}
