package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/queue"
)

const (
	// claimMost bounds the completions of one claim, and so what is in memory of each shard.
	// claimLease is how long they are this worker's.
	claimMost  = 32
	claimLease = 30 * time.Second
	// handingOver is how many completions are handed over at once.
	handingOver = 8
	// outboxCall bounds each call. Redis may need longer for an answer; then a later call gets it.
	outboxCall = 3 * time.Second
	// handingMost is how long the completions of a claim keep those of other shards waiting.
	handingMost = 200 * time.Millisecond
)

// Callbacks sends the callbacks of ended jobs; *callback.Service is one.
type Callbacks interface {
	// HandOver stores a completion for good. It may get the same completion again and must send it
	// once.
	HandOver(ctx context.Context, c queue.Completion) error
	// Run sends callbacks until ctx ends, and then returns nil soon.
	Run(ctx context.Context) error
}

// claimer is what the outbox needs of the queue; see queue.Queue for the contracts.
type claimer interface {
	Completions(ctx context.Context, shard int, name string, most int,
		lease time.Duration) (list []queue.Completion, more bool, err error)
	HandedOver(ctx context.Context, shard int, list []queue.Completion) error
}

// outbox hands over the completions of all shards. Each has a goroutine, so one that does not
// answer delays no others. Completions that are not done are claimed again when their lease has
// ended, by this worker or another.
type outbox struct {
	worker  string
	queue   claimer
	to      Callbacks
	errors  *errorLog
	ready   []chan struct{} // by shard: a token when it has completions
	handing chan struct{}   // filled while the completions of one claim are handed over, for handingMost
}

func newOutbox(worker string, shards int, q claimer, to Callbacks, errors *errorLog) *outbox {
	o := &outbox{worker: worker, queue: q, to: to, errors: errors, handing: make(chan struct{}, 1)}
	for range shards {
		o.ready = append(o.ready, make(chan struct{}, 1))
	}
	return o
}

// run hands over until ctx ends.
func (o *outbox) run(ctx context.Context) {
	var shards sync.WaitGroup
	for shard, ready := range o.ready {
		shards.Go(func() {
			for claims := 0; ctx.Err() == nil; {
				select {
				case <-ready:
				case <-ctx.Done():
				}
				for more := true; more; claims++ {
					more = o.handOver(ctx, shard, fmt.Sprintf("%s-%d-%d", o.worker, shard, claims))
				}
			}
		})
	}
	shards.Wait()
}

// handOver claims completions of the shard under a name, hands them over, and reports whether the
// shard has others. It repeats each call until Redis has answered.
func (o *outbox) handOver(ctx context.Context, shard int, name string) (more bool) {
	var list []queue.Completion
	if !o.insist(ctx, shard, func(ctx context.Context) (err error) {
		list, more, err = o.queue.Completions(ctx, shard, name, claimMost, claimLease)
		return err
	}) {
		return false
	}
	select {
	case o.handing <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	// Some go to a node that hangs. Then the next shard takes its turn beside them.
	leave := sync.OnceFunc(func() { <-o.handing })
	patience := time.AfterFunc(handingMost, leave)
	done, refused := o.handAll(ctx, list)
	patience.Stop()
	leave()
	if ctx.Err() == nil {
		o.errors.report(o, refused)
	}
	acknowledged := len(done) == 0 || o.insist(ctx, shard, func(ctx context.Context) error {
		return o.queue.HandedOver(ctx, shard, done)
	})
	return acknowledged && more
}

// insist repeats a call for a shard until it succeeds. It reports false if ctx ends first.
func (o *outbox) insist(ctx context.Context, shard int, call func(context.Context) error) bool {
	var pause pauses
	for {
		err := bounded(ctx, outboxCall, call)
		if ctx.Err() != nil {
			return false
		}
		o.errors.report(o.ready[shard], err)
		if err == nil {
			return true
		}
		sleep(ctx, pause.next())
	}
}

// handAll hands completions over and returns those that were taken, with an error if any was not.
func (o *outbox) handAll(
	ctx context.Context, list []queue.Completion,
) (done []queue.Completion, refused error) {
	var (
		g  errgroup.Group
		mu sync.Mutex // of done
	)
	g.SetLimit(handingOver)
	for _, c := range list {
		g.Go(func() error {
			crash.At("before-hand-over")
			err := bounded(ctx, outboxCall, func(ctx context.Context) error { return o.to.HandOver(ctx, c) })
			crash.At("after-hand-over")
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				done = append(done, c)
			}
			return err
		})
	}
	refused = g.Wait()
	return done, refused
}

// bounded makes a call that ends by itself within d.
func bounded(ctx context.Context, d time.Duration, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return call(limited)
}
