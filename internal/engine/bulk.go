package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/7509e464/sluice/internal/store"
)

const (
	// An exchange waits for others that has bulkFrom bytes of texts from bulkText on. That is
	// more than store.Large, because a text is stored with its headers, its log, and its seal: a
	// batch of small jobs waits for none.
	bulkFrom = 64 << 10
	bulkText = 2 * store.Large
	// Bytes of such exchanges that are under way at once: of a Redis that is near, and of one to
	// which even the shortest exchange takes more than bulkWay.
	bulkNear, bulkFar = 512 << 10, 8 << 20
	bulkWay           = 10 * time.Millisecond
	mostRest          = 100 * time.Millisecond
)

// bulk bounds how many bytes the large exchanges of a client carry to a node at once. Redis serves
// its connections one after the other, so each poll waits for one exchange of every other
// connection: a hundred large answers that were stored at once took a quarter of the departures of
// the other flows for two seconds, and made submissions wait for 50 ms (battery S4-fat-forwarded).
// After each, a Redis that is near rests from them for as long as it took, at most mostRest: who
// moves 128 MB leaves the processors of a small machine to the others' jobs for half of the time.
// Small exchanges do not wait.
type bulk struct {
	free     *semaphore.Weighted // bulkFar bytes
	shortest atomic.Int64        // ns that an exchange took; 0: there was none yet
}

func newBulk() *bulk { return &bulk{free: semaphore.NewWeighted(bulkFar)} }

// begin waits until these commands may be sent. The caller calls end with the error of the
// exchange.
func (b *bulk) begin(ctx context.Context, cmds ...redis.Cmder) (end func(error), err error) {
	bytes := 0
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			n := 0
			switch a := arg.(type) {
			case string:
				n = len(a)
			case []byte:
				n = len(a)
			}
			if n >= bulkText {
				bytes += n
			}
		}
	}
	if bytes < bulkFrom {
		start := time.Now()
		return func(err error) { b.took(time.Since(start), err) }, nil
	}
	n, near := int64(min(bytes, bulkFar)), time.Duration(b.shortest.Load()) <= bulkWay
	if near {
		n = int64(min(bytes, bulkNear)) * (bulkFar / bulkNear)
	}
	if err := b.free.Acquire(ctx, n); err != nil {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return nil, err
	}
	start := time.Now()
	return func(error) {
		if !near {
			b.free.Release(n)
			return
		}
		time.AfterFunc(min(time.Since(start), mostRest), func() { b.free.Release(n) })
	}, nil
}

// took notes how long an exchange took that was answered.
func (b *bulk) took(d time.Duration, err error) {
	if shortest := b.shortest.Load(); err == nil && (shortest == 0 || int64(d) < shortest) {
		b.shortest.Store(int64(d))
	}
}

// DialHook implements redis.Hook.
func (*bulk) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (b *bulk) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) (err error) {
		end, err := b.begin(ctx, cmd)
		if err != nil {
			return err
		}
		defer func() { end(err) }()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (b *bulk) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		end, err := b.begin(ctx, cmds...)
		if err != nil {
			return err
		}
		defer func() { end(err) }()
		return next(ctx, cmds)
	}
}
