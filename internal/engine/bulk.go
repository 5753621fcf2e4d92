package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/7509e464/sluice/internal/store"
)

const (
	// An exchange waits for others that has bulkFrom bytes of texts from bulkText on. That is
	// more than store.Large, because a text is stored with its headers, its log, and its seal: a
	// batch of small jobs waits for none. What has a weight counts as bulkNear bytes.
	bulkFrom = 64 << 10
	bulkText = 2 * store.Large
	// Bytes of such exchanges that are under way at once: of a Redis that is near, and of one to
	// which even the shortest exchange takes more than bulkWay.
	bulkNear, bulkFar = 512 << 10, 8 << 20
	bulkWay           = 10 * time.Millisecond
	// A Redis that is near rests from them for restFactor times as long as the last one took, and
	// at most for mostRest.
	restFactor, mostRest = 5, 150 * time.Millisecond
	// An exchange waits for others until Redis has answered none for bulkPatience. What has failed
	// says nothing of Redis after bulkMemory.
	bulkPatience, bulkMemory = 2 * time.Second, 5 * time.Second
	// bulkMedium is how many exchanges of medium weight are under way at once: were it one, small
	// batches would take twice as long. bulkWaiting is how many of the largest where they wait for
	// replicas: Redis is free meanwhile.
	bulkMedium, bulkWaiting = 2, 4
	// The shortest exchange is that of the last one or two of these, because a failover may lead
	// to a Redis that is farther away.
	bulkWindow = 10 * time.Second
)

// errSilent is the error of an exchange that waited for others, and was not sent.
var errSilent = fmt.Errorf("redis has answered nothing for %v", bulkPatience)

// bulk bounds how many bytes the large exchanges of a client carry to a node at once. Redis serves
// its connections one after the other, so each poll waits for one exchange of every other
// connection: a hundred large answers that were stored at once took a quarter of the departures of
// the other flows for two seconds, and made submissions wait for 50 ms (battery S4-fat-forwarded).
// After each, if a small one began since that before, a Redis that is near rests from them: who
// moves 128 MB leaves the processors of a small machine to the others' jobs for most of the time,
// so most of these wait for none. With 3 in place of 5, submissions took 5 to 8 ms, and not 4 to 6.
//
// Exchanges of scripts that take long wait for each other in the same way, those of medium weight
// by themselves and without a rest. All others do not wait.
type bulk struct {
	replicas     bool                // exchanges wait for them, so Redis has rest
	free, medium *semaphore.Weighted // bulkFar bytes each
	small, seen  atomic.Uint64       // exchanges that waited for none; at the end of the last that did

	way *distance

	mu     sync.Mutex
	silent time.Time // when the first exchange after the last answer began; zero: there was none
	failed time.Time // when one ended without an answer
}

// newBulk returns the bounds of a client of one node.
func newBulk(p patience) *bulk {
	return &bulk{
		replicas: p.wait > 0, free: semaphore.NewWeighted(bulkFar), medium: semaphore.NewWeighted(bulkFar),
		way: cmp.Or(p.way, &distance{}),
	}
}

// distance is how far away Redis is.
type distance struct {
	mu       sync.Mutex
	window   time.Time        // when the current one began
	shortest [2]time.Duration // exchange of the current window and of that before; 0: none
}

// near reports whether Redis is.
func (d *distance) near() bool { return d.least() <= bulkWay }

// least is what the shortest exchange took; 0 if there was none.
func (d *distance) least() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, before := d.shortest[0], d.shortest[1]
	if now == 0 || before == 0 {
		return max(now, before)
	}
	return min(now, before)
}

// took notes how long an exchange took.
func (d *distance) took(exchange time.Duration) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.window) >= bulkWindow {
		d.window, d.shortest[0], d.shortest[1] = now, 0, d.shortest[0]
	}
	if d.shortest[0] == 0 || exchange < d.shortest[0] {
		d.shortest[0] = exchange
	}
}

// underWay is the key of a mark of contexts: what is sent with them is part of an exchange that has
// waited.
type underWay struct{}

// begin waits until these commands may be sent, with the context that it returns. The caller calls
// end with the error of the exchange. A part of another exchange does not wait: it would do so for
// itself. Such are the greeting of a new connection, and what waits for replicas.
func (b *bulk) begin(
	ctx context.Context, cmds ...redis.Cmder,
) (_ context.Context, end func(error), err error) {
	if ctx.Value(underWay{}) != nil {
		return ctx, func(error) {}, nil
	}
	sent := context.WithValue(ctx, underWay{}, true)
	bytes, free := b.of(ctx, cmds)
	if bytes < bulkFrom {
		b.small.Add(1)
		start := b.began()
		return sent, func(err error) { b.ended(time.Since(start), err) }, nil
	}
	n, near := int64(min(bytes, bulkFar)), b.way.near()
	if near {
		n = int64(min(bytes, bulkNear)) * (bulkFar / bulkNear)
		switch {
		case b.replicas:
			n /= bulkWaiting
		case free == b.medium:
			n /= bulkMedium
		}
	}
	if err := b.wait(ctx, free, n); err != nil {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return nil, nil, err
	}
	start := b.began()
	return sent, func(err error) {
		b.ended(0, err)
		if small := b.small.Load(); b.seen.Swap(small) == small || !near || b.replicas || free == b.medium {
			free.Release(n)
			return
		}
		time.AfterFunc(min(restFactor*time.Since(start), mostRest), func() { free.Release(n) })
	}, nil
}

// of is how many bytes of the commands count, and among which.
func (b *bulk) of(ctx context.Context, cmds []redis.Cmder) (bytes int, free *semaphore.Weighted) {
	weight, free := store.WeightOf(ctx), b.free
	if weight == store.Medium {
		free = b.medium
	}
	if weight != store.Light {
		bytes = bulkNear
	}
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
	return bytes, free
}

// wait takes n bytes once they are free.
func (b *bulk) wait(ctx context.Context, free *semaphore.Weighted, n int64) error {
	if free.TryAcquire(n) {
		return nil
	}
	patient, give := context.WithCancelCause(ctx)
	defer give(nil)
	go func() {
		look := time.NewTicker(bulkPatience / 8)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				if b.isSilent() {
					give(errSilent)
				}
			case <-patient.Done():
				return
			}
		}
	}()
	if err := free.Acquire(patient, n); err != nil {
		return context.Cause(patient)
	}
	return nil
}

// isSilent reports whether Redis has answered nothing for bulkPatience.
func (b *bulk) isSilent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.silent.IsZero() && time.Since(b.silent) >= bulkPatience
}

// began notes the begin of an exchange.
func (b *bulk) began() (now time.Time) {
	now = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silent.IsZero() || !b.failed.IsZero() && now.Sub(b.failed) >= bulkMemory {
		b.silent, b.failed = now, time.Time{}
	}
	return now
}

// ended notes the end of an exchange that took d; 0 for a large one, which says nothing of the way.
func (b *bulk) ended(d time.Duration, err error) {
	_, answered := errors.AsType[redis.Error](err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && !answered {
		b.failed = time.Now()
		return
	}
	b.silent, b.failed = time.Time{}, time.Time{}
	if d > 0 {
		b.way.took(d)
	}
}

// DialHook implements redis.Hook.
func (*bulk) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (b *bulk) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) (err error) {
		ctx, end, err := b.begin(ctx, cmd)
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
		ctx, end, err := b.begin(ctx, cmds...)
		if err != nil {
			return err
		}
		defer func() { end(err) }()
		return next(ctx, cmds)
	}
}
