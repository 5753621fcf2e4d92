package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/burstlog"
	"github.com/7509e464/sluice/queue/crash"
	"github.com/7509e464/sluice/queue/turn"
)

const (
	// flushers is how many batches may be under way at once where Redis is slow: while one waits for its answer the next one gathers.
	flushers = 4
	// settleMost bounds a batch, as the scripts' steps are bounded.
	settleMost = 500
	// settleWithin is how long a flusher waits for Redis. Then its batch is the one's that sends again, whose patience has no end: the answer to a
	// settlement that has arrived after all is that it is repeated.
	settleWithin = 500 * time.Millisecond
	// refusals is how often a batch may fail for another reason than Redis being away before it is taken apart.
	refusals = 5
)

// ending is a job that has ended here, with what is to be said of it.
type ending struct {
	job        *job
	settlement queue.Settlement
}

// settler ends leases in batches. A flusher takes everything that is there as soon as it is free: alone, a settlement goes
// at once; under load, the batches grow by themselves. What Redis did not answer is sent again until it does, which the epochs make
// harmless, by a flusher of its own: a shard that does not answer must not keep the endings of the others. What is kept meanwhile is
// bounded by the worker's capacity, which is given back only by settled.
type settler struct {
	broker  broker
	health  *health
	refused *burstlog.Log                                      // what is given up
	settled func(batch []ending, results []queue.SettleResult) // results nil: given up, the leases will expire
	kick    chan struct{}                                      // as many tokens as flushers

	again chan struct{} // one token, for the flusher of what was not answered

	mu         sync.Mutex
	pending    []ending
	unanswered []ending
}

// add never blocks.
func (s *settler) add(e ending) {
	crash.At("before-settle")
	s.mu.Lock()
	s.pending = append(s.pending, e)
	s.mu.Unlock()
	signal(s.kick)
}

// run is all flushers; it ends with ctx.
func (s *settler) run(ctx context.Context) {
	var g sync.WaitGroup
	turns := turn.New()
	for range flushers {
		g.Go(func() { (&flusher{settler: s, from: &s.pending, turns: turns, within: settleWithin}).run(ctx, s.kick) })
	}
	g.Go(func() {
		(&flusher{settler: s, from: &s.unanswered, turns: turn.New(), probe: s.health.probe()}).run(ctx, s.again)
	})
	g.Wait()
}

// flusher sends one batch at a time; its slices are used again.
type flusher struct {
	*settler
	from   *[]ending // of the settler
	turns  *turn.Turns
	within time.Duration // bounds a call; 0 for the one that sends again
	probe  *probe        // of the one that sends again, which alone knows when Redis is back
	batch  []ending
	wire   []queue.Settlement
}

// run sends what there is whenever there is a token, until ctx ends. One token may stand for many endings, and many tokens for one.
func (f *flusher) run(ctx context.Context, kick <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-kick:
		}
		var pause pauses
		for {
			end, ok := f.turns.Take(ctx.Done())
			if !ok {
				return
			}
			some := f.take()
			answered := some && f.send(ctx, f.batch)
			end()
			if !some {
				break
			}
			if answered {
				pause.reset()
			} else {
				sleep(ctx, pause.next())
			}
		}
	}
}

// take fills the batch with the oldest endings and reports whether there were any.
func (f *flusher) take() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := *f.from
	n := min(len(from), settleMost)
	clear(f.batch) // let go of the responses
	f.batch = append(f.batch[:0], from[:n]...)
	rest := copy(from, from[n:])
	clear(from[rest:])
	*f.from = from[:rest]
	return n > 0
}

// send settles the batch and reports whether any of it was answered. What Redis did not answer is sent again later; what it refuses, at
// once, and in parts at last.
func (f *flusher) send(ctx context.Context, batch []ending) (answered bool) {
	clear(f.wire)
	f.wire = f.wire[:0]
	for _, e := range batch {
		f.wire = append(f.wire, e.settlement)
	}
	var pause pauses
	for refused := 0; ctx.Err() == nil; {
		results, err := f.settle(ctx)
		if err == nil {
			crash.At("after-settle")
			f.report(nil)
			f.settled(batch, results)
			return true
		}
		rest := f.answered(batch, results)
		answered, batch = answered || len(rest) < len(batch), rest
		if ctx.Err() != nil {
			return answered
		}
		f.report(err)
		if errors.Is(err, queue.ErrUnavailable) {
			f.sendAgain(batch)
			return answered
		}
		refused++
		switch {
		case refused < refusals:
		case errors.Is(err, queue.ErrScript): // the queue has sent each by itself
			f.giveUp(batch, err)
			return true
		default:
			f.takeApart(ctx, batch, err)
			return true
		}
		sleep(ctx, pause.next())
	}
	return answered
}

// settle makes one call.
func (f *flusher) settle(ctx context.Context) ([]queue.SettleResult, error) {
	if f.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.within)
		defer cancel()
	}
	return f.broker.Settle(ctx, f.wire)
}

func (f *flusher) report(err error) {
	if f.probe != nil {
		f.probe.report(err)
	}
}

// sendAgain leaves what was not answered to the flusher that sends it again.
func (s *settler) sendAgain(batch []ending) {
	s.mu.Lock()
	s.unanswered = append(s.unanswered, batch...)
	s.mu.Unlock()
	signal(s.again)
}

// answered ends those of the batch that have an answer beside the error, and leaves the others to be sent again.
func (f *flusher) answered(batch []ending, results []queue.SettleResult) []ending {
	var answered []ending
	var answers []queue.SettleResult
	rest := batch[:0]
	for i, e := range batch {
		if i < len(results) && results[i] != "" {
			answered, answers = append(answered, e), append(answers, results[i])
		} else {
			rest = append(rest, e)
		}
	}
	if len(answered) == 0 {
		return batch
	}
	f.settled(answered, answers)
	f.wire = f.wire[:0]
	for _, e := range rest {
		f.wire = append(f.wire, e.settlement)
	}
	return rest
}

// takeApart halves a batch that is refused though Redis is there, until the one settlement that is the cause is found. That
// one is given up: its lease expires and the job is tried again, where keeping it would block a place for ever.
func (f *flusher) takeApart(ctx context.Context, batch []ending, cause error) {
	if len(batch) == 1 {
		f.giveUp(batch, cause)
		return
	}
	half := len(batch) / 2
	f.send(ctx, batch[:half])
	f.send(ctx, batch[half:])
}

// giveUp lets go of endings that cannot be settled: each job keeps its lease until that expires.
func (f *flusher) giveUp(batch []ending, cause error) {
	for _, e := range batch {
		f.refused.Add(burstlog.Key{}, 1, "job", e.settlement.ID, "epoch", e.settlement.Epoch, "error", cause)
	}
	f.settled(batch, nil)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
