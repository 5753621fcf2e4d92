package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

// fakeOutbox is the completions of shards, each claimed until its lease ends.
type fakeOutbox struct {
	mu     sync.Mutex
	shards map[int][]string
	leased map[string]time.Time
	claims map[string][]string // by name
	away   int                 // number of calls that fail
	lost   int                 // number of answers that are lost
	takes  time.Duration       // each claim
}

func (f *fakeOutbox) call() error {
	if f.away > 0 {
		f.away--
		return queue.ErrUnavailable
	}
	return nil
}

func (f *fakeOutbox) Completions(
	_ context.Context, shard int, name string, most int, lease time.Duration,
) (list []queue.Completion, more bool, err error) {
	time.Sleep(f.takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call(); err != nil {
		return nil, false, err
	}
	ids, again := f.claims[name]
	if !again {
		for _, id := range f.shards[shard] {
			if len(ids) < most && !time.Now().Before(f.leased[id]) {
				f.leased[id] = time.Now().Add(lease)
				ids = append(ids, id)
			}
		}
		f.claims[name] = ids
	}
	if f.lost > 0 {
		f.lost--
		return nil, false, queue.ErrUnavailable
	}
	for _, id := range ids {
		list = append(list, queue.Completion{Job: queue.Job{ID: id}})
	}
	more = slices.ContainsFunc(f.shards[shard], func(id string) bool { return !time.Now().Before(f.leased[id]) })
	return list, more, nil
}

func (f *fakeOutbox) HandedOver(_ context.Context, shard int, list []queue.Completion) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call(); err != nil {
		return err
	}
	f.shards[shard] = slices.DeleteFunc(f.shards[shard], func(id string) bool {
		return slices.ContainsFunc(list, func(c queue.Completion) bool { return c.Job.ID == id })
	})
	return nil
}

func (f *fakeOutbox) left() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ids := range f.shards {
		n += len(ids)
	}
	return n
}

// fakeCallbacks takes completions, or refuses them.
type fakeCallbacks struct {
	mu     sync.Mutex
	taken  []string
	refuse func(id string) bool
}

func (f *fakeCallbacks) HandOver(_ context.Context, c queue.Completion) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil && f.refuse(c.Job.ID) {
		return errors.New("no room")
	}
	f.taken = append(f.taken, c.Job.ID)
	return nil
}

func (f *fakeCallbacks) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// handing runs an outbox over n completions of shard 3.
func handing(t *testing.T, n int, story func(o *outbox, q *fakeOutbox, to *fakeCallbacks)) {
	synctest.Test(t, func(t *testing.T) {
		q := &fakeOutbox{shards: map[int][]string{}, leased: map[string]time.Time{}, claims: map[string][]string{}}
		for i := range n {
			q.shards[3] = append(q.shards[3], fmt.Sprintf("j%03d", i))
		}
		to := &fakeCallbacks{}
		o := newOutbox("w", 8, q, to, newErrorLog(slog.New(slog.DiscardHandler), nil))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { o.run(ctx) })
		story(o, q, to)
		stop()
		running.Wait()
	})
}

// TestOutboxHandsAllOver: one signal is enough for any number of completions, and each is handed
// over once.
func TestOutboxHandsAllOver(t *testing.T) {
	handing(t, 2*claimMost+17, func(o *outbox, q *fakeOutbox, to *fakeCallbacks) {
		signal(o.ready[3])
		signal(o.ready[3])
		signal(o.ready[4])
		synctest.Wait()
		slices.Sort(to.taken)
		queuetest.Compare(t, "the completions handed over", len(to.taken), 2*claimMost+17)
		different := slices.Compact(slices.Clone(to.taken))
		queuetest.Compare(t, "different ones of them", len(different), 2*claimMost+17)
		queuetest.Compare(t, "those left", q.left(), 0)
	})
}

// TestOutboxRetriesUntilRedisIsBack: an outage of Redis loses nothing, and a claim whose answer was
// lost is repeated under its name.
func TestOutboxRetriesUntilRedisIsBack(t *testing.T) {
	handing(t, 5, func(o *outbox, q *fakeOutbox, to *fakeCallbacks) {
		q.away, q.lost = 3, 2
		signal(o.ready[3])
		time.Sleep(10 * time.Second)
		synctest.Wait()
		queuetest.Compare(t, "the completions handed over", len(to.taken), 5)
		queuetest.Compare(t, "those left", q.left(), 0)
		queuetest.Compare(t, "the claims", len(q.claims), 1)
	})
}

// hungOutbox does not answer for a shard until its client gives up.
type hungOutbox struct {
	*fakeOutbox
	hung atomic.Int64 // the shard
}

func (f *hungOutbox) hang(ctx context.Context, shard int) error {
	if int64(shard) != f.hung.Load() {
		return nil
	}
	sleep(ctx, hungCall)
	return queue.ErrUnavailable
}

func (f *hungOutbox) Completions(
	ctx context.Context, shard int, name string, most int, lease time.Duration,
) ([]queue.Completion, bool, error) {
	if err := f.hang(ctx, shard); err != nil {
		return nil, false, err
	}
	return f.fakeOutbox.Completions(ctx, shard, name, most, lease)
}

func (f *hungOutbox) HandedOver(ctx context.Context, shard int, list []queue.Completion) error {
	if err := f.hang(ctx, shard); err != nil {
		return err
	}
	return f.fakeOutbox.HandedOver(ctx, shard, list)
}

// TestOutboxOfAShardThatHangsHoldsUpNoOthers: theirs do not wait, and its own are handed over once
// it is back, whether it hung before the claim or after.
func TestOutboxOfAShardThatHangsHoldsUpNoOthers(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		t.Run(fmt.Sprint("claimed ", claimed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &hungOutbox{fakeOutbox: &fakeOutbox{
					shards: map[int][]string{0: {"hung"}}, leased: map[string]time.Time{},
					claims: map[string][]string{},
				}}
				to := &fakeCallbacks{}
				q.hung.Store(-1)
				if claimed {
					to.refuse = func(string) bool {
						q.hung.CompareAndSwap(-1, 0)
						return false
					}
				} else {
					q.hung.Store(0)
				}
				var log bytes.Buffer
				o := newOutbox("w", 8, q, to, newErrorLog(slog.New(slog.NewTextHandler(&log, nil)), nil))
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { o.run(ctx) })
				signal(o.ready[0])
				pass(time.Millisecond)
				late := 0
				for i := range 600 {
					id := fmt.Sprint("other ", i)
					q.fakeOutbox.mu.Lock()
					q.shards[1] = append(q.shards[1], id)
					q.fakeOutbox.mu.Unlock()
					signal(o.ready[1])
					pass(100 * time.Millisecond)
					to.mu.Lock()
					if !slices.Contains(to.taken, id) {
						late++
					}
					to.mu.Unlock()
				}
				if late > 0 {
					t.Errorf("%d of 600 completions of another shard were handed over late", late)
				}
				q.hung.Store(-2)
				pass(claimLease)
				if n := q.left(); n != 0 || len(to.taken) != 601 {
					t.Errorf("once it is back: %d handed over, %d left", len(to.taken), n)
				}
				for _, line := range []string{"redis is away", "redis is back"} {
					if n := strings.Count(log.String(), line); n != 1 {
						t.Errorf("%q was logged %d times for one outage:\n%s", line, n, &log)
					}
				}
				stop()
				running.Wait()
			})
		})
	}
}

// TestOutboxRefused: what cannot be handed over stays, and comes again when its lease has ended.
func TestOutboxRefused(t *testing.T) {
	handing(t, 3, func(o *outbox, q *fakeOutbox, to *fakeCallbacks) {
		full := true
		to.refuse = func(id string) bool { return full && id == "j001" }
		signal(o.ready[3])
		synctest.Wait()
		if len(to.taken) != 2 || q.left() != 1 {
			t.Errorf("%d handed over, %d left", len(to.taken), q.left())
		}
		time.Sleep(claimLease)
		to.mu.Lock()
		full = false
		to.mu.Unlock()
		signal(o.ready[3])
		synctest.Wait()
		if len(to.taken) != 3 || q.left() != 0 {
			t.Errorf("%d handed over, %d left", len(to.taken), q.left())
		}
	})
}

// A shard with thousands of completions takes turns with the others.
func TestShardsTakeTurns(t *testing.T) {
	handing(t, 5*claimMost, func(o *outbox, q *fakeOutbox, to *fakeCallbacks) {
		q.mu.Lock()
		q.shards[7], q.takes = []string{"quiet"}, time.Millisecond
		q.mu.Unlock()
		signal(o.ready[3])
		signal(o.ready[7])
		time.Sleep(time.Second)
		synctest.Wait()
		if at := slices.Index(to.taken, "quiet"); at < 0 || at > claimMost {
			t.Errorf("handed over as number %d, want at most %d", at, claimMost)
		}
		if q.left() != 0 {
			t.Errorf("%d are left", q.left())
		}
	})
}

// hungCallbacks takes no completion whose id begins with hung, and does not say so.
type hungCallbacks struct{ *fakeCallbacks }

func (f hungCallbacks) HandOver(ctx context.Context, c queue.Completion) error {
	if strings.HasPrefix(c.Job.ID, "hung") {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.fakeCallbacks.HandOver(ctx, c)
}

// TestOutboxOfCallbacksThatHangHoldsUpNoOthers: where callbacks of a shard go to a node that hangs,
// those of another shard wait less than a second.
func TestOutboxOfCallbacksThatHangHoldsUpNoOthers(t *testing.T) {
	handing(t, 0, func(o *outbox, q *fakeOutbox, to *fakeCallbacks) {
		o.to = hungCallbacks{to}
		for i := range claimMost {
			q.shards[0] = append(q.shards[0], fmt.Sprint("hung", i))
		}
		q.shards[1] = []string{"other"}
		signal(o.ready[0])
		pass(time.Millisecond)
		signal(o.ready[1])
		pass(time.Second)
		queuetest.Compare(t, "the completions handed over", len(to.taken), 1)
		queuetest.Compare(t, "those left", q.left(), claimMost)
	})
}
