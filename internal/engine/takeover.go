package engine

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds with a cluster.
const (
	clusterMap     = 400 * time.Millisecond // age of the map of its nodes
	clusterAnswer  = time.Second            // timeout of a call
	clusterSilence = 200 * time.Millisecond // of a node, until the map is read at once, and then each time
	clusterRest    = time.Second            // for a node that was given up: calls to it fail at once
)

// takeovers end calls to a node of a cluster once another node has taken over from it. go-redis
// waits until the timeout, and its first retry goes to the same node. Without takeovers, tenants of
// a hung master wait for up to 2.3 s after the takeover, with them for 0.6 s (battery K3). A
// shorter timeout would fail with a cluster that is far away or busy: here a call waits while the
// map names its node a master. Another call, such as for the map, ends after the silence: go-redis
// asks another node.
type takeovers struct {
	cluster atomic.Pointer[redis.ClusterClient]
	rests   sync.Map // address → when the node may be called again

	mu    sync.Mutex
	asked time.Time      // when the map was last read
	calls map[*call]bool // one for each connection, and for each that is being made
}

// newClusterClient returns a client whose calls to a node end with a takeover from it.
func newClusterClient(opt redis.ClusterOptions, p patience) *redis.ClusterClient {
	t := &takeovers{calls: map[*call]bool{}}
	// A dead master redirects no call, and a hung one does not answer: the cluster map stays fresh,
	// and calls are bounded. Only the client of the cluster retries, for it looks the node up
	// again.
	opt.DialTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer, p.answer
	opt.ReadTimeout, opt.MaxRetries = min(p.answer, clusterAnswer)+p.wait, -1
	opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.pool, true, true, protocol
	opt.ClusterStateReloadInterval, opt.MaintNotificationsConfig = clusterMap, noNotifications
	opt.Dialer = t.dial(plain(p, opt.TLSConfig)).orUnconnected()
	c := redis.NewClusterClient(&opt)
	c.OnNewNode(func(node *redis.Client) {
		node.AddHook(wholeMaps{})
		node.AddHook(newBulk(p))
	})
	t.cluster.Store(c)
	return c
}

// clusterSlots is how many slots the map of a cluster has.
const clusterSlots = 16384

// wholeMaps refuses a map of the cluster that lacks slots: go-redis then asks another node, or
// keeps the map that it has. A node that was taken out of the cluster and goes on has such a map,
// and go-redis could ask none but that node afterwards.
type wholeMaps struct{}

// DialHook implements redis.Hook.
func (wholeMaps) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (wholeMaps) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if slots, ok := cmd.(*redis.ClusterSlotsCmd); ok && err == nil {
			count := 0
			for _, s := range slots.Val() {
				if len(s.Nodes) > 0 {
					count += s.End - s.Start + 1
				}
			}
			if count < clusterSlots {
				err = fmt.Errorf("CLUSTERDOWN the map of the cluster has %d of %d slots", count, clusterSlots)
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (wholeMaps) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// call is what one connection waits for, if anything.
type call struct {
	of      *takeovers
	addr    string
	giveUp  func()
	timer   *time.Timer
	waits   atomic.Bool
	overdue atomic.Bool
}

func (t *takeovers) open(addr string, giveUp func()) *call {
	c := &call{of: t, addr: addr, giveUp: giveUp}
	c.timer = time.AfterFunc(time.Hour, c.doubt)
	c.timer.Stop() // until there is a call
	t.mu.Lock()
	t.calls[c] = true
	t.mu.Unlock()
	return c
}

func (c *call) close() {
	c.end()
	c.of.mu.Lock()
	delete(c.of.calls, c)
	c.of.mu.Unlock()
}

func (c *call) begin() {
	c.overdue.Store(false)
	c.waits.Store(true)
	c.timer.Reset(clusterSilence)
}

func (c *call) end() {
	if c.waits.Swap(false) {
		c.timer.Stop()
		c.overdue.Store(false)
	}
}

// doubt runs after each silence of a node.
func (c *call) doubt() {
	if !c.waits.Load() {
		return
	}
	c.overdue.Store(true)
	c.timer.Reset(clusterSilence) // before the map is read: the node that is asked may hang too
	c.of.ask()
}

// ask reads the map, and ends the overdue calls to nodes that are not masters there.
func (t *takeovers) ask() {
	cluster := t.cluster.Load()
	t.mu.Lock()
	due := cluster != nil && time.Since(t.asked) >= clusterSilence
	if due {
		t.asked = time.Now()
	}
	t.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterAnswer)
	defer cancel()
	masters := map[string]bool{}
	var one sync.Mutex // the masters come at once
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, m *redis.Client) error {
		one.Lock()
		defer one.Unlock()
		masters[m.Options().Addr] = true
		return nil
	})
	if len(masters) == 0 {
		return // no map could be had
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.calls {
		if c.overdue.Load() && !masters[c.addr] {
			t.rests.Store(c.addr, time.Now().Add(clusterRest))
			c.giveUp()
		}
	}
}

// rest reports whether the node at the address was given up a moment ago.
func (t *takeovers) rest(addr string) bool {
	until, ok := t.rests.Load(addr)
	return ok && time.Now().Before(until.(time.Time))
}

// dial connects to nodes. After a failure it reads the map.
func (t *takeovers) dial(d dial) dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if t.rest(addr) {
			return nil, os.ErrDeadlineExceeded
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c := t.open(addr, cancel)
		c.begin()
		conn, err := d(ctx, network, addr)
		c.close()
		if err != nil {
			go t.ask()
			return nil, err
		}
		n := &nodeConn{Conn: conn}
		n.call = t.open(addr, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		if s, ok := conn.(syscall.Conn); ok {
			return nodeSocket{n, s}, nil
		}
		return n, nil
	}
}

// nodeConn is a connection to a node. A call lasts from what is written to the first that is read.
type nodeConn struct {
	net.Conn
	call *call
}

func (n *nodeConn) Write(b []byte) (int, error) {
	if n.call.of.rest(n.call.addr) {
		return 0, os.ErrDeadlineExceeded
	}
	n.call.begin()
	return n.Conn.Write(b)
}

func (n *nodeConn) Read(b []byte) (int, error) {
	read, err := n.Conn.Read(b)
	if read > 0 {
		n.call.end()
	}
	return read, err
}

func (n *nodeConn) Close() error {
	n.call.close()
	return n.Conn.Close()
}

// nodeSocket lets go-redis check a connection without reading from it.
type nodeSocket struct {
	*nodeConn
	syscall.Conn
}
