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
	// flushers is how many batches may be under way at once where Redis is slow: while one waits
	// for its answer the next one gathers.
	flushers = 4
	// settleMost bounds a batch, as the scripts' steps are bounded.
	settleMost = 500
	// settleWithin is how long a flusher waits for Redis. Then the flusher that retries takes over
	// its batch and waits without limit: to settle twice is harmless.
	settleWithin = 500 * time.Millisecond
	// refusals is how often a batch may fail for another reason than Redis being away before each
	// of its settlements is sent by itself.
	refusals = 5
)

// ending is a job that has ended here, with its settlement.
type ending struct {
	job        *job
	settlement queue.Settlement
}

// settler ends leases in batches. A flusher takes everything that is there as soon as it is free:
// alone, a settlement goes at once; under load, the batches grow by themselves. What Redis did not
// answer is retried until it does, which the epochs make harmless. A flusher of its own does that,
// so that a shard that does not answer does not delay the endings of the others. The worker's
// capacity, which only settled frees, bounds what is kept meanwhile.
type settler struct {
	broker   broker
	troubles *troubles
	settled  func(batch []ending, results []queue.SettleResult) // results nil: given up
	kick     chan struct{}                                      // as many tokens as flushers
	again    chan struct{}                                      // one token, for the flusher that retries

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

// waiting returns how many endings are to be retried.
func (s *settler) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unanswered)
}

// run is all flushers; it ends with ctx.
func (s *settler) run(ctx context.Context) {
	var g sync.WaitGroup
	turns := turn.New()
	for range flushers {
		g.Go(func() { (&flusher{settler: s, from: &s.pending, turns: turns}).run(ctx, s.kick) })
	}
	g.Go(func() {
		(&flusher{settler: s, from: &s.unanswered, turns: turn.New(), retries: true}).run(ctx, s.again)
	})
	g.Wait()
}

// flusher sends one batch at a time.
type flusher struct {
	*settler
	from    *[]ending // of the settler
	turns   *turn.Turns
	retries bool // the flusher that retries, which alone knows when Redis is back
}

// run sends what there is whenever there is a token, until ctx ends. One token may stand for many
// endings, and many tokens for one.
func (f *flusher) run(ctx context.Context, kick <-chan struct{}) {
	var pause pauses
	for {
		end, ok := f.turns.Take(ctx.Done())
		if !ok {
			return
		}
		batch := f.take()
		answered := len(batch) == 0 || f.send(ctx, batch)
		end()
		if !answered {
			sleep(ctx, pause.next())
			continue
		}
		pause = pauses{}
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-kick:
			}
		}
	}
}

// take takes the oldest endings.
func (f *flusher) take() []ending {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(*f.from), settleMost)
	batch, rest := (*f.from)[:n:n], (*f.from)[n:]
	if len(rest) == 0 {
		rest = nil // it would keep the batch
	}
	*f.from = rest
	return batch
}

// send settles the batch, whose order it may change, and reports whether any of it was answered.
// What Redis did not answer is left to the flusher that retries. What it refuses is sent again at
// once, then each by itself, and is given up at last: the lease of such a job expires and the job
// is tried again, where keeping it would block capacity for ever.
func (f *flusher) send(ctx context.Context, batch []ending) (answered bool) {
	var pause pauses
	for refused := 1; ctx.Err() == nil; refused++ {
		n, err := f.settle(ctx, batch)
		batch, answered = batch[n:], answered || n > 0
		if f.retries && (err == nil || ctx.Err() == nil) {
			f.troubles.report(f, err)
		}
		switch {
		case err == nil, ctx.Err() != nil:
			return answered
		case errors.Is(err, queue.ErrUnavailable):
			f.mu.Lock()
			f.unanswered = append(f.unanswered, batch...)
			f.mu.Unlock()
			signal(f.again)
			return answered
		case refused < refusals:
			sleep(ctx, pause.next())
			continue
		case len(batch) > 1 && !errors.Is(err, queue.ErrScript): // then the queue has sent each by itself
			for i := range batch {
				f.send(ctx, batch[i:i+1])
			}
			return true
		}
		for _, e := range batch {
			f.troubles.givenUp.Add(burstlog.Key{}, 1, "job", e.settlement.ID, "epoch", e.settlement.Epoch, "error", err)
		}
		f.settled(batch, nil)
		return true
	}
	return answered
}

// settle makes one call. It moves the endings that were answered to the front, ends them, and
// returns how many they are. There may be some beside an error.
func (f *flusher) settle(ctx context.Context, batch []ending) (n int, err error) {
	wire := make([]queue.Settlement, len(batch))
	for i, e := range batch {
		wire[i] = e.settlement
	}
	if !f.retries {
		limited, cancel := context.WithTimeout(ctx, settleWithin)
		defer cancel()
		ctx = limited
	}
	results, err := f.broker.Settle(ctx, wire)
	if err == nil {
		crash.At("after-settle")
	}
	for i, r := range results {
		if r != "" {
			batch[i], batch[n] = batch[n], batch[i]
			results[i], results[n] = results[n], r
			n++
		}
	}
	if n > 0 {
		f.settled(batch[:n], results[:n])
	}
	return n, err
}
