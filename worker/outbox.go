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

// outbox hands the completions of shards over. What it does not get done is given out again when its lease has ended, to this worker
// or another.
type outbox struct {
	worker string
	queue  claimer
	to     Callbacks
	probe  *probe

	mu      sync.Mutex
	waiting []int // shards with completions, each once
	kick    chan struct{}
	claims  int
}

func newOutbox(worker string, q claimer, to Callbacks, p *probe) *outbox {
	return &outbox{worker: worker, queue: q, to: to, probe: p, kick: make(chan struct{}, 1)}
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
			for o.handOver(ctx, shard) {
			}
		}
	}
}

// handOver claims completions of the shard, hands them over, and reports whether others wait.
func (o *outbox) handOver(ctx context.Context, shard int) (more bool) {
	o.claims++
	name := fmt.Sprintf("%s-%d", o.worker, o.claims)
	var list []queue.Completion
	if !o.insist(ctx, func() (err error) {
		list, more, err = o.queue.Completions(ctx, shard, name, claimMost, claimLease)
		return err
	}) {
		return false
	}
	errs := make([]error, len(list))
	var working sync.WaitGroup
	places := make(chan struct{}, handingOver)
	for i := range list {
		places <- struct{}{}
		working.Go(func() {
			crash.At("before-hand-over")
			errs[i] = o.to.HandOver(ctx, list[i])
			crash.At("after-hand-over")
			<-places
		})
	}
	working.Wait()
	var done []queue.Completion
	for i, c := range list {
		if errs[i] == nil {
			done = append(done, c)
		}
	}
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		o.probe.report(err)
	}
	if len(done) > 0 && !o.insist(ctx, func() error { return o.queue.HandedOver(ctx, shard, done) }) {
		return false
	}
	return more
}

// insist repeats a call until Redis has answered it, false when ctx ends before.
func (o *outbox) insist(ctx context.Context, call func() error) bool {
	for pause := (pauses{}); ; {
		err := call()
		if ctx.Err() != nil {
			return false
		}
		o.probe.report(err)
		if err == nil {
			return true
		}
		sleep(ctx, pause.next())
	}
}
