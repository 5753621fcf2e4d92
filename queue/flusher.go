package queue

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/internal/baton"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Bounds of the flusher.
const (
	flushing   = 4       // that send at once where Redis is slow
	waiters    = 16      // the same if they wait, for replicas (redis.durability) or for each other
	flushMost  = 128     // jobs of one exchange
	flushFew   = 16      // the same of small batches where Redis is near; each batch is a call of its own
	fewMost    = 31      // jobs of a small batch
	flushBytes = 1 << 20 // of their payloads, beside those of the last batch: more delays the polls of the shard
	flushLeast = 16      // jobs that are worth an exchange beside another; by itself it costs Redis as much as ten

	// Where Redis is near: bytes of an exchange of large texts, and how long an exchange keeps the
	// next one waiting where few are under way at once.
	nearBytes    = 256 << 10
	nearPatience = 100 * time.Millisecond

	silentMemory = 5 * time.Second // how long a failed exchange counts
)

// pending is a call of Submit or SubmitBatch on its way.
type pending struct {
	ctx       context.Context
	batch     []Submission
	older     map[string]bool // idempotency keys that the store has from before it was encrypted
	atomic    bool
	decisions []Decision // of the batch, once it is answered without an error
	answer    chan error
}

// bytes sums up the payloads of the batch.
func (p *pending) bytes() (sum int) {
	for i := range p.batch {
		sum += len(p.batch[i].Payload)
	}
	return sum
}

// flusher gathers admissions. Each of its goroutines takes what waits when it gets the baton. So
// requests are gathered during the exchange before them, and none waits for others.
type flusher struct {
	q      *Queue
	ctx    context.Context // of all exchanges
	most   int             // jobs of one exchange where Redis is near
	near   int             // bytes of their payloads, as flushBytes, where Redis is near
	atOnce int             // exchanges where Redis is near: 1, 2, or 0 for as many as there are goroutines
	failed atomic.Int64    // when Redis last answered none, in nanoseconds since 1970
	baton  *baton.Baton
	lines  *lines
	closed chan struct{}
	done   sync.WaitGroup
}

func newFlusher(q *Queue, kind kind) *flusher {
	n := flushing
	if q.store.Durable != q.store.Fast || kind == few {
		n = waiters
	}
	f := &flusher{
		q: q, ctx: context.Background(), most: flushMost, near: flushBytes,
		baton: baton.New(), lines: newLines(), closed: make(chan struct{}),
	}
	switch kind {
	case few:
		f.most, f.ctx, f.atOnce = flushFew, store.Weigh(f.ctx, store.Medium), 2
	case many:
		f.ctx, f.atOnce = store.Weigh(f.ctx, store.Heavy), 1
	case middling:
		f.near = largeFrom // such an exchange waits for no large one
	case large:
		f.near, f.atOnce = nearBytes, 1
	}
	if q.store.Durable != q.store.Fast {
		f.atOnce = 0
	}
	for range n {
		f.done.Go(f.run)
	}
	return f
}

// await returns when the call is answered, or when its context ends.
func (f *flusher) await(p *pending) error {
	waiting, bounded := f.lines.put(p), f.bounded()
	if bounded && f.atOnce == 2 || !bounded && waiting >= flushLeast {
		f.baton.Pass()
	}
	select {
	case err := <-p.answer:
		return err
	case <-p.ctx.Done():
		f.lines.drop(p)
		return p.ctx.Err()
	case <-f.closed:
		return errClosed
	}
}

// bounded reports whether no more exchanges than atOnce are under way. They wait for each other in
// the client anyhow: what they had gathered would be before what others submit meanwhile. While
// Redis is silent more are, so that what waits gets its error sooner.
func (f *flusher) bounded() bool {
	return f.atOnce > 0 && f.q.store.Near() && time.Since(time.Unix(0, f.failed.Load())) > silentMemory
}

func (f *flusher) run() {
	var gathered []*pending
	for {
		select {
		case <-f.lines.some:
		case <-f.closed:
			return
		}
		patience, most, mostBytes := baton.Patience, flushMost, flushBytes
		if f.bounded() {
			patience = nearPatience
		}
		if f.q.store.Near() {
			most, mostBytes = f.most, f.near
		}
		end, ok := f.baton.Take(f.closed, patience)
		if !ok {
			return
		}
		runtime.Gosched() // lets goroutines submit that are about to; costs nothing where there are none
		for jobs, bytes := 0, 0; jobs < most && bytes < mostBytes; {
			p := f.lines.take()
			if p == nil {
				break
			}
			gathered = append(gathered, p)
			jobs += len(p.batch)
			bytes += p.bytes()
		}
		f.flush(gathered)
		end()
		clear(gathered)
		gathered = gathered[:0]
	}
}

// flush sends what was gathered in one exchange: one call per shard, and one per batch.
func (f *flusher) flush(gathered []*pending) {
	var calls []*admission
	byShard := map[int]*admission{}
	for _, p := range gathered {
		if p.ctx.Err() != nil {
			continue // its caller has left
		}
		first, single := p.batch[0], len(p.batch) == 1
		shard := f.q.policies.Current().Placement(first.Tenant, first.Route)
		a := byShard[shard.Index]
		if a == nil || !single {
			a = f.q.newAdmission(shard, p.atomic && !single)
			calls = append(calls, a)
			if single {
				byShard[shard.Index] = a
			}
		}
		a.add(p)
	}
	f.exchange(calls)
}

// exchange sends the calls and answers them. The submissions of a call that fails at damaged data
// are sent once more, each by itself: one whose flow or key is damaged does not fail the others.
func (f *flusher) exchange(calls []*admission) {
	for len(calls) > 0 {
		// No call is sent for submissions that could not be encoded.
		calls = slices.DeleteFunc(calls, func(a *admission) bool { return len(a.pending) == 0 })
		sent := make([]scripts.Call, len(calls))
		for i, a := range calls {
			sent[i] = a.call.Call()
		}
		// The requests' own contexts end single waits. The client's timeouts bound the exchange
		// that they share.
		replies := f.q.store.Exec(f.ctx, f.q.store.Durable, sent)
		var apart []*admission
		for i, a := range calls {
			if store.FaultOf(replies[i].Err) == store.FaultTransport {
				f.failed.Store(time.Now().UnixNano())
			}
			if len(a.pending) == 1 || store.FaultOf(replies[i].Err) != store.FaultScript {
				a.answer(replies[i])
				continue
			}
			for _, p := range a.pending {
				one := f.q.newAdmission(a.shard, false)
				one.add(p)
				apart = append(apart, one)
			}
		}
		calls = apart
	}
}

// lines are the submissions that wait for a flusher. Tenants take turns, so that one which submits
// faster than Redis admits makes the others wait for no more than the exchanges under way.
type lines struct {
	some chan struct{} // has an element while any may wait

	mu   sync.Mutex
	n    int                   // that wait
	of   map[string][]*pending // by tenant, the first to come first
	ring []string              // the tenants of these lines; the first is next
}

func newLines() *lines { return &lines{some: make(chan struct{}, 1), of: map[string][]*pending{}} }

// put adds a submission, and returns how many wait.
func (l *lines) put(p *pending) int {
	tenant := p.batch[0].Tenant
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of[tenant]) == 0 {
		l.ring = append(l.ring, tenant)
	}
	l.of[tenant] = append(l.of[tenant], p)
	l.n++
	l.wake()
	return l.n
}

// take returns the next submission, nil where none waits.
func (l *lines) take() *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		return nil
	}
	tenant := l.ring[0]
	l.ring = l.ring[1:]
	line := l.of[tenant]
	p := line[0]
	line[0] = nil // the rest of the line may wait for long
	if len(line) > 1 {
		l.of[tenant], l.ring = line[1:], append(l.ring, tenant)
	} else {
		delete(l.of, tenant)
	}
	if l.n--; l.n > 0 {
		l.wake()
	}
	return p
}

// drop removes a submission whose caller has left, unless a flusher has it.
func (l *lines) drop(p *pending) {
	tenant := p.batch[0].Tenant
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.of[tenant]
	i := slices.Index(line, p)
	if i < 0 {
		return
	}
	l.n--
	if l.of[tenant] = slices.Delete(line, i, i+1); len(line) == 1 {
		delete(l.of, tenant)
		l.ring = slices.DeleteFunc(l.ring, func(name string) bool { return name == tenant })
	}
}

// wake lets a flusher look. The lock is held.
func (l *lines) wake() {
	select {
	case l.some <- struct{}{}:
	default: // one will
	}
}

// len is how many wait.
func (l *lines) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}
