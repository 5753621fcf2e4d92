package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/crash"
)

const (
	// flushers is how many batches may be under way at once: while one waits for its answer the next one gathers.
	flushers = 4
	// settleMost bounds a batch, as the scripts' steps are bounded.
	settleMost = 500
	// refusals is how often a batch may fail for another reason than Redis being away before it is taken apart.
	refusals = 5
)

// ending is a job that has ended here, with what is to be said of it.
type ending struct {
	job        *job
	settlement queue.Settlement
}

// settler ends leases in batches. A flusher takes everything that is there as soon as it is free: alone, a settlement goes
// at once; under load, the batches grow by themselves. A batch is sent again until it is answered, which the epochs make
// harmless. What is kept meanwhile is bounded by the worker's capacity, which is given back only by settled.
type settler struct {
	broker  broker
	health  *health
	log     *slog.Logger
	settled func(batch []ending, results []queue.SettleResult) // results nil: given up, the leases will expire
	kick    chan struct{}                                      // as many tokens as flushers

	mu      sync.Mutex
	pending []ending
}

// add never blocks.
func (s *settler) add(e ending) {
	crash.At("before-settle")
	s.mu.Lock()
	s.pending = append(s.pending, e)
	s.mu.Unlock()
	signal(s.kick)
}

// run is one flusher; it ends with ctx.
func (s *settler) run(ctx context.Context) {
	// One token may stand for many endings, and many tokens for one: each flusher goes on until nothing is left.
	f := flusher{settler: s, probe: s.health.probe()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		}
		for f.take() {
			f.send(ctx, f.batch)
		}
	}
}

// flusher sends one batch at a time; its slices are used again.
type flusher struct {
	*settler
	probe *probe
	batch []ending
	wire  []queue.Settlement
}

// take fills the batch with the oldest pending endings and reports whether there were any.
func (f *flusher) take() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.pending), settleMost)
	clear(f.batch) // let go of the responses
	f.batch = append(f.batch[:0], f.pending[:n]...)
	rest := copy(f.pending, f.pending[n:])
	clear(f.pending[rest:])
	f.pending = f.pending[:rest]
	return n > 0
}

// send settles the batch, repeating it until it is answered or ctx ends.
func (f *flusher) send(ctx context.Context, batch []ending) {
	clear(f.wire)
	f.wire = f.wire[:0]
	for _, e := range batch {
		f.wire = append(f.wire, e.settlement)
	}
	var pause pauses
	for refused := 0; ctx.Err() == nil; {
		results, err := f.broker.Settle(ctx, f.wire)
		if err == nil {
			crash.At("after-settle")
			f.probe.report(nil)
			f.settled(batch, results)
			return
		}
		batch = f.unanswered(batch, results)
		if ctx.Err() != nil {
			return
		}
		f.probe.report(err)
		if !errors.Is(err, queue.ErrUnavailable) {
			refused++
		}
		if refused == refusals {
			f.takeApart(ctx, batch, err)
			return
		}
		sleep(ctx, pause.next())
	}
}

// unanswered ends those of the batch that have an answer beside the error, and leaves the others to be sent again.
func (f *flusher) unanswered(batch []ending, results []queue.SettleResult) []ending {
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
		ref := batch[0].settlement.LeaseRef
		f.log.Error("a settlement is refused; its lease will expire", "job", ref.ID, "epoch", ref.Epoch, "error", cause)
		f.settled(batch, nil)
		return
	}
	half := len(batch) / 2
	f.send(ctx, batch[:half])
	f.send(ctx, batch[half:])
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
