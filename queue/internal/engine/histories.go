package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
)

// Histories knows which history of writes each node has that a client is connected to. Redis names
// a history by its replication id. A replica that becomes a master begins another one, and so does
// a server that is started again: the last writes may be missing there.
type Histories struct {
	count atomic.Int64

	mu    sync.Mutex
	nodes map[string]*node     // by address
	known map[string]time.Time // when a history was met

	met      chan struct{} // receives when one was met
	checking sync.Mutex
}

func newHistories() *Histories {
	return &Histories{nodes: map[string]*node{}, known: map[string]time.Time{}, met: make(chan struct{}, 1)}
}

// History is one history of writes, at one node.
type History struct {
	node *node
	id   string
}

// Met returns when the history was met, zero where Redis does not name it.
func (h History) Met() time.Time {
	h.node.of.mu.Lock()
	defer h.node.of.mu.Unlock()
	return h.node.of.known[h.id]
}

// Count returns the number of histories that were met.
func (h *Histories) Count() int64 { return h.count.Load() }

// At returns the history of the node that has the key. It asks the node where it knows none.
func (h *Histories) At(ctx context.Context, c redis.UniversalClient, key string) (History, error) {
	addr := ""
	if cluster, many := c.(*redis.ClusterClient); many {
		master, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return History{}, err
		}
		c, addr = master, master.Options().Addr
	}
	n := h.node(addr)
	if now := n.history(); now.id != "" {
		return now, nil
	}
	return n.meet(c.Info(ctx, "replication"))
}

// Check asks the masters of a cluster, unless a check is under way. A node may have become a master
// since the client connected to it. Only an error of all of them is lost: the next check is soon.
func (h *Histories) Check(ctx context.Context, c redis.UniversalClient) {
	cluster, many := c.(*redis.ClusterClient)
	if !many || !h.checking.TryLock() {
		return
	}
	defer h.checking.Unlock()
	_ = store.EachMaster(ctx, cluster, func(ctx context.Context, c lua.Client) error {
		if master, ok := c.(*redis.Client); ok {
			_, err := h.node(master.Options().Addr).meet(master.Info(ctx, "replication"))
			return err
		}
		return nil
	})
}

// client returns a client of the one Redis there is, or of the node of a cluster at the address. A
// nil receiver is one that nobody asks.
func (h *Histories) client(addr string, opt *redis.Options) *redis.Client {
	if h == nil {
		return redis.NewClient(opt)
	}
	n := h.node(addr)
	opt.OnConnect = n.connected
	c := redis.NewClient(opt)
	c.AddHook(n)
	return c
}

// node is one address of a cluster, or the one Redis there is, whose address is "".
type node struct {
	of *Histories
	id string // of the history that it had last; "" while that is not known
}

func (h *Histories) node(addr string) *node {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[addr]
	if n == nil {
		n = &node{of: h}
		h.nodes[addr] = n
	}
	return n
}

func (n *node) history() History {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	return History{n, n.id}
}

// set notes the history of the node.
func (n *node) set(id string, named bool) {
	h := n.of
	h.mu.Lock()
	defer h.mu.Unlock()
	n.id = id
	if _, known := h.known[id]; known || !named {
		return
	}
	h.known[id] = time.Now()
	h.count.Add(1)
	select {
	case h.met <- struct{}{}:
	default: // it holds one already
	}
}

// meet notes the history that an answer to INFO names. It fails where there is no answer.
func (n *node) meet(info *redis.StringCmd) (History, error) {
	var denied redis.Error
	if err := info.Err(); err != nil && !errors.As(err, &denied) {
		return History{}, err
	}
	fields := infoFields(info.Val())
	switch id := fields["master_replid"]; {
	case id == "":
		n.set("not named", false)
	case fields["role"] == "master":
		n.set(id, true)
	default: // it may become a master, with another history
		n.set("replica of "+id, false)
	}
	return n.history(), nil
}

type expectedKey struct{}

// Expect returns a context whose commands reach no node with another history. One that is sent on
// to the node that takes over the slot of its keys, while they move, may reach that node.
func Expect(ctx context.Context, h History) context.Context {
	return context.WithValue(ctx, expectedKey{}, h)
}

var errUnexpected = errors.New("another master has taken over")

// connected is called for each new connection, before its first command.
func (n *node) connected(ctx context.Context, c *redis.Conn) error {
	now, err := n.meet(c.Info(ctx, "replication"))
	if want, expects := ctx.Value(expectedKey{}).(History); err == nil && expects && want.node == n && want != now {
		return errUnexpected
	}
	return err
}

// DialHook implements redis.Hook.
func (*node) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		want, expects := ctx.Value(expectedKey{}).(History)
		if expects && want != n.history() {
			return errUnexpected
		}
		err := next(ctx, cmd)
		switch {
		case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "READONLY"):
			n.set("", false) // a replica may have become a master when it is called again
		case err == nil && expects && want != n.history():
			return errUnexpected // it was a connection to a master from before a failover
		}
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (*node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
