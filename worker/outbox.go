package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/crash"
)

const (
	// claimMost bounds the completions of one claim, claimLease how long they are this worker's.
	claimMost  = 100
	claimLease = 30 * time.Second
	// handingOver is how many completions are handed over at once.
	handingOver = 8
	// outboxCall bounds each call. Redis may need longer for an answer; then a later turn gets it.
	outboxCall = 3 * time.Second
	// outboxRest is for how long a shard that did not answer rests, as a multiple of the time for
	// which it has delayed the others. The rest is less than claimLease.
	outboxRest = 5
)

// Callbacks sends the callbacks of ended jobs; *callback.Service is one.
type Callbacks interface {
	// HandOver takes a completion over for good. It may get the same one again and must send it
	// once.
	HandOver(ctx context.Context, c queue.Completion) error
	// Run sends them until ctx ends, and then returns nil soon.
	Run(ctx context.Context) error
}

// claimer is what the outbox needs of the queue; see queue.Queue for the contracts.
type claimer interface {
	Completions(ctx context.Context, shard int, name string, most int, lease time.Duration) (list []queue.Completion, more bool, err error)
	HandedOver(ctx context.Context, shard int, list []queue.Completion) error
}

// outbox hands over the completions of one shard after the other. A shard that does not answer
// waits for another turn, so that it delays no others. Completions that are not done are claimed
// again when their lease has ended, by this worker or another.
type outbox struct {
	worker   string
	queue    claimer
	to       Callbacks
	troubles *troubles

	mu      sync.Mutex
	waiting []int // shards with completions, each once
	kick    chan struct{}

	// Of run alone.
	claims int
	open   map[int]*claim // of the shards that did not answer
}

// claim is a shard's turn. It is made again, under its name, until Redis has answered every call.
type claim struct {
	name    string
	claimed bool               // the first call was answered
	more    bool               // by that answer
	done    []queue.Completion // handed over, to be acknowledged
	refused error              // why others were not
	pause   pauses
	again   *time.Timer // puts the shard back; nil at first
}

func newOutbox(worker string, q claimer, to Callbacks, t *troubles) *outbox {
	return &outbox{worker: worker, queue: q, to: to, troubles: t, kick: make(chan struct{}, 1), open: map[int]*claim{}}
}

// add queues the shard.
func (o *outbox) add(shard int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.waiting, shard) {
		o.waiting = append(o.waiting, shard)
		signal(o.kick)
	}
}

// run hands over until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for ctx.Err() == nil {
		o.mu.Lock()
		if len(o.waiting) == 0 {
			o.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-o.kick:
			}
			continue
		}
		shard := o.waiting[0]
		o.waiting = o.waiting[1:]
		o.mu.Unlock()
		if o.handOver(ctx, shard) { // the other shards first
			o.add(shard)
		}
	}
}

// handOver claims completions of the shard, hands them over, and reports whether others wait. After
// an error the shard goes to the end of the line in a while, or as soon as a poll of it reports
// completions.
func (o *outbox) handOver(ctx context.Context, shard int) (more bool) {
	c := o.open[shard]
	if c == nil {
		o.claims++
		c = &claim{name: fmt.Sprintf("%s-%d", o.worker, o.claims)}
	} else {
		c.again.Stop()
	}
	start := time.Now()
	err := o.goOn(ctx, shard, c)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		o.troubles.report(o, err)
		o.open[shard] = c
		c.again = time.AfterFunc(max(c.pause.next(), outboxRest*time.Since(start)), func() { o.add(shard) })
		return false
	}
	delete(o.open, shard)
	if len(o.open) == 0 { // with any, Redis is not back yet
		o.troubles.report(o, c.refused)
	}
	return c.more
}

// goOn does what is left of a claim; its error is that of Redis.
func (o *outbox) goOn(ctx context.Context, shard int, c *claim) error {
	if !c.claimed {
		var list []queue.Completion
		err := bounded(ctx, outboxCall, func(ctx context.Context) (err error) {
			list, c.more, err = o.queue.Completions(ctx, shard, c.name, claimMost, claimLease)
			return err
		})
		if err != nil {
			return err
		}
		c.claimed = true
		c.done, c.refused = o.handAll(ctx, list)
	}
	if len(c.done) == 0 {
		return nil
	}
	return bounded(ctx, outboxCall, func(ctx context.Context) error { return o.queue.HandedOver(ctx, shard, c.done) })
}

// handAll hands completions over and returns those that were taken.
func (o *outbox) handAll(ctx context.Context, list []queue.Completion) (done []queue.Completion, refused error) {
	errs := make([]error, len(list))
	var g errgroup.Group
	g.SetLimit(handingOver)
	for i, c := range list {
		g.Go(func() error {
			crash.At("before-hand-over")
			errs[i] = bounded(ctx, outboxCall, func(ctx context.Context) error { return o.to.HandOver(ctx, c) })
			crash.At("after-hand-over")
			return nil
		})
	}
	_ = g.Wait()
	for i, c := range list {
		if errs[i] == nil {
			done = append(done, c)
		}
	}
	return done, errors.Join(errs...)
}

// bounded makes a call that ends by itself within d.
func bounded(ctx context.Context, d time.Duration, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return call(limited)
}
