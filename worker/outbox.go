package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/crash"
)

const (
	// claimMost bounds the completions of one claim, claimLease how long they are this worker's.
	claimMost  = 100
	claimLease = 30 * time.Second
	// handingOver is how many completions are handed over at once.
	handingOver = 8
	// outboxCall bounds each call: as long as the queue waits for one answer before it asks again, which is left to a later turn here.
	outboxCall = 3 * time.Second
	// outboxRest is how many times as long as it has kept the others waiting a shard that did not answer is left alone. Less than claimLease
	// with the above.
	outboxRest = 5
)

// Callbacks sees to it that those who asked for it are told of the ends of jobs; *callback.Service is one.
type Callbacks interface {
	// HandOver takes a completion over for good. The same one may come again; it must be told once.
	HandOver(ctx context.Context, c queue.Completion) error
	// Run tells them until ctx ends, and then returns nil soon.
	Run(ctx context.Context) error
}

// claimer is what the outbox needs of the queue; see queue.Queue for the contracts.
type claimer interface {
	Completions(ctx context.Context, shard int, name string, most int, lease time.Duration) (list []queue.Completion, more bool, err error)
	HandedOver(ctx context.Context, shard int, list []queue.Completion) error
}

var _ claimer = (*queue.Queue)(nil)

// outbox hands the completions of shards over, one shard after the other. A shard that does not answer waits for another turn, so that it
// holds up no others. What is not got done is given out again when its lease has ended, to this worker or another.
type outbox struct {
	worker string
	queue  claimer
	to     Callbacks
	probe  *probe

	mu      sync.Mutex
	waiting []int // shards with completions, each once
	kick    chan struct{}

	// Of run alone.
	claims int
	open   map[int]*claim // of the shards that did not answer
}

// claim is a shard's turn. It is made again, under its name, until Redis has answered to the end.
type claim struct {
	name    string
	claimed bool               // the first call was answered
	more    bool               // as it was told then
	done    []queue.Completion // handed over, of which Redis is to take note
	refused error              // why others were not
	pause   pauses
	again   *time.Timer // puts the shard back; nil at first
}

func newOutbox(worker string, q claimer, to Callbacks, p *probe) *outbox {
	return &outbox{worker: worker, queue: q, to: to, probe: p, kick: make(chan struct{}, 1), open: map[int]*claim{}}
}

// add asks for the completions of a shard to be handed over.
func (o *outbox) add(shard int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.waiting {
		if n == shard {
			return
		}
	}
	o.waiting = append(o.waiting, shard)
	signal(o.kick)
}

// run hands over until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.kick:
		}
		for {
			o.mu.Lock()
			if len(o.waiting) == 0 {
				o.mu.Unlock()
				break
			}
			shard := o.waiting[0]
			o.waiting = o.waiting[1:]
			o.mu.Unlock()
			if o.handOver(ctx, shard) { // the other shards first
				o.add(shard)
			}
		}
	}
}

// handOver claims completions of the shard, hands them over, and reports whether others wait. After an error the shard is put back at the end
// of the line in a while, or as soon as a look at it tells of completions.
func (o *outbox) handOver(ctx context.Context, shard int) (more bool) {
	c := o.open[shard]
	if c == nil {
		o.claims++
		c = &claim{name: fmt.Sprintf("%s-%d", o.worker, o.claims)}
	}
	start := time.Now()
	err := o.goOn(ctx, shard, c)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		o.probe.report(err)
		o.open[shard] = c
		rest := max(c.pause.next(), outboxRest*time.Since(start))
		if c.again == nil {
			c.again = time.AfterFunc(rest, func() { o.add(shard) })
		} else {
			c.again.Reset(rest)
		}
		return false
	}
	if c.again != nil {
		c.again.Stop()
	}
	delete(o.open, shard)
	if len(o.open) == 0 { // with any, Redis is not back yet
		o.probe.report(c.refused)
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

// handAll hands completions over and returns those of which it got rid.
func (o *outbox) handAll(ctx context.Context, list []queue.Completion) (done []queue.Completion, refused error) {
	errs := make([]error, len(list))
	var working sync.WaitGroup
	places := make(chan struct{}, handingOver)
	for i := range list {
		places <- struct{}{}
		working.Go(func() {
			crash.At("before-hand-over")
			errs[i] = bounded(ctx, outboxCall, func(ctx context.Context) error { return o.to.HandOver(ctx, list[i]) })
			crash.At("after-hand-over")
			<-places
		})
	}
	working.Wait()
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
