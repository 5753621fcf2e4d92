package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/baton"
	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

const (
	// flushers is how many batches may be under way at once where Redis is slow: while one waits
	// for its answer the next one gathers.
	flushers = 4
	// settleMost bounds a batch, as the scripts' steps are bounded, and settleBytes its answers: it
	// is one exchange with Redis.
	settleMost, settleBytes = 500, 1 << 20
	// settleWithin is how long a flusher waits for Redis. Then the flusher that retries takes over
	// its batch and waits without limit: to settle twice is harmless.
	settleWithin = 500 * time.Millisecond
)

// ending is a job that has ended here, with its settlement.
type ending struct {
	job        *job
	settlement queue.Settlement
}

// backlog is endings that wait for a flusher.
type backlog struct {
	kick chan struct{} // a token for one ending or more

	mu      sync.Mutex
	endings []ending
}

// add never blocks.
func (b *backlog) add(e ...ending) {
	b.mu.Lock()
	b.endings = append(b.endings, e...)
	b.mu.Unlock()
	signal(b.kick)
}

// take takes the oldest endings, at most settleMost, and one or up to settleBytes of answers.
func (b *backlog) take() []ending {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(b.endings), settleMost) {
		if bytes += len(b.endings[n].settlement.Answer); n > 0 && bytes > settleBytes {
			break
		}
		n++
	}
	batch := slices.Clone(b.endings[:n])
	b.endings = slices.Delete(b.endings, 0, n) // a slice of the rest would keep the answers of the batch
	return batch
}

func (b *backlog) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.endings)
}

// settler ends leases in batches. A flusher takes everything that is there as soon as it is free:
// alone, a settlement goes at once; under load, the batches grow by themselves. What Redis did not
// answer is retried until it does, which the epochs make harmless. A flusher of its own does that,
// so that a shard that does not answer does not delay the endings of the others. Large answers have
// flushers of their own too: they wait for each other, and what went with them would wait as long.
// The worker's capacity, which only settled frees, bounds what is kept meanwhile.
type settler struct {
	broker  broker
	errors  *errorLog
	settled func(batch []ending, results []queue.SettleResult) // results nil: given up

	small, large endings
}

// endings are those of one kind that wait.
type endings struct {
	ended, unanswered backlog
}

func newEndings() endings {
	return endings{backlog{kick: make(chan struct{}, flushers)}, backlog{kick: make(chan struct{}, 1)}}
}

func newSettler(b broker, errors *errorLog, settled func([]ending, []queue.SettleResult)) *settler {
	return &settler{broker: b, errors: errors, settled: settled, small: newEndings(), large: newEndings()}
}

// add never blocks.
func (s *settler) add(e ending) {
	crash.At("before-settle")
	if len(e.settlement.Answer) >= store.Large {
		s.large.ended.add(e)
	} else {
		s.small.ended.add(e)
	}
}

// unanswered is how many endings Redis has not answered in time.
func (s *settler) unanswered() int { return s.small.unanswered.len() + s.large.unanswered.len() }

// run runs all flushers until ctx ends.
func (s *settler) run(ctx context.Context) {
	var g sync.WaitGroup
	for _, of := range []*endings{&s.small, &s.large} {
		shared := baton.New()
		for range flushers {
			g.Go(func() { s.flush(ctx, of, false, shared) })
		}
		g.Go(func() { s.flush(ctx, of, true, baton.New()) })
	}
	g.Wait()
}

// flush sends a batch each time it gets the baton, until ctx ends. One that retries sends what
// Redis did not answer.
func (s *settler) flush(ctx context.Context, of *endings, retries bool, shared *baton.Baton) {
	from := &of.ended
	if retries {
		from = &of.unanswered
	}
	var pause pauses
	for {
		end, ok := shared.Take(ctx.Done(), baton.Patience)
		if !ok {
			return
		}
		batch := from.take()
		answered := len(batch) == 0 || s.send(ctx, of, retries, batch)
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
			case <-from.kick:
			}
		}
	}
}

// send settles the batch, whose order it may change, and reports whether any of it was answered.
// What Redis did not answer is left to the flusher that retries. What the queue refuses is sent
// again each by itself, and then given up: the lease of such a job expires and the job is tried
// again, where keeping it would block capacity for ever.
func (s *settler) send(ctx context.Context, of *endings, retries bool, batch []ending) (answered bool) {
	n, err := s.settle(ctx, batch, retries)
	if ctx.Err() != nil {
		return false
	}
	if retries { // it alone learns when Redis is back
		s.errors.report(of, err)
	}
	rest := batch[n:]
	switch {
	case err == nil:
	case errors.Is(err, queue.ErrUnavailable):
		of.unanswered.add(rest...)
		return n > 0
	case len(rest) > 1 && !errors.Is(err, queue.ErrScript): // then the queue has sent each by itself
		for i := range rest {
			s.send(ctx, of, retries, rest[i:i+1])
		}
	default:
		for _, e := range rest {
			s.errors.givenUp.Add(burstlog.Key{}, 1, "job", e.settlement.ID, "epoch", e.settlement.Epoch,
				"error", err)
		}
		s.settled(rest, nil)
	}
	return true
}

// settle makes one call, which only the flusher that retries lets wait. It moves the endings that
// were answered to the front, ends them, and returns their number, which may be positive beside an
// error.
func (s *settler) settle(ctx context.Context, batch []ending, wait bool) (n int, err error) {
	wire := make([]queue.Settlement, len(batch))
	for i, e := range batch {
		wire[i] = e.settlement
	}
	if !wait {
		limited, cancel := context.WithTimeout(ctx, settleWithin)
		defer cancel()
		ctx = limited
	}
	results, err := s.broker.Settle(ctx, wire)
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
		s.settled(batch[:n], results[:n])
	}
	return n, err
}
