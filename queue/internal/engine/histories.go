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

// Histories counts the histories of writes that a client has met on masters. Redis names each by
// its replication id. A replica that becomes a master begins another one, and so does a server that
// is started again: the last writes may be missing there.
type Histories struct {
	count atomic.Int64
	last  atomic.Int64 // Unix time in µs at which the last one was met

	mu    sync.Mutex
	known map[string]bool

	met      chan struct{} // receives when one was met
	checking sync.Mutex
}

func newHistories() *Histories { return &Histories{met: make(chan struct{}, 1)} }

// Count returns the number of histories. It has risen before the first answer from a connection to
// another history.
func (h *Histories) Count() int64 { return h.count.Load() }

// Since returns how long ago the last one was met.
func (h *Histories) Since() time.Duration { return time.Since(time.UnixMicro(h.last.Load())) }

type expectedKey struct{}

// Expect returns a context whose calls make no connection to a master that is not among the first
// count histories.
func Expect(ctx context.Context, count int64) context.Context {
	return context.WithValue(ctx, expectedKey{}, count)
}

var errUnexpected = errors.New("another master has taken over")

// connected is called for each new connection, before its first command.
func (h *Histories) connected(ctx context.Context, c *redis.Conn) error {
	err := h.meet(c.Info(ctx, "replication"))
	if want, expects := ctx.Value(expectedKey{}).(int64); err == nil && expects && want != h.Count() {
		return errUnexpected
	}
	return err
}

// meet notes the history that an answer to INFO names. It fails where there is no answer.
func (h *Histories) meet(info *redis.StringCmd) error {
	var denied redis.Error
	if err := info.Err(); err != nil && !errors.As(err, &denied) {
		return err
	}
	fields := infoFields(info.Val())
	id := fields["master_replid"]
	if fields["role"] != "master" || id == "" {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.known[id] {
		if h.known == nil {
			h.known = map[string]bool{}
		}
		h.known[id] = true
		h.last.Store(time.Now().UnixMicro())
		h.count.Add(1)
		select {
		case h.met <- struct{}{}:
		default: // it holds one already
		}
	}
	return nil
}

// Check asks the masters of a cluster, unless a check is under way. A node may have become a master
// since the client connected to it. Only an error of all of them is lost: the next check is soon.
func (h *Histories) Check(ctx context.Context, c redis.UniversalClient) {
	cluster, many := c.(*redis.ClusterClient)
	if !many || !h.checking.TryLock() {
		return
	}
	defer h.checking.Unlock()
	_ = store.EachMaster(ctx, cluster, func(ctx context.Context, node lua.Client) error {
		if one, ok := node.(*redis.Client); ok {
			return h.meet(one.Info(ctx, "replication"))
		}
		return nil
	})
}
