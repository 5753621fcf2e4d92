package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeQueue is a queue in memory whose jobs bring their stamps with them. Its clock is skewed
// against the process's, and a call takes a round trip of the bubble's time.
type fakeQueue struct {
	skew    time.Duration
	trip    time.Duration
	perMB   time.Duration // of answers, how much longer Settle takes
	cluster bool          // the shards are on several nodes
	early   float64       // part of it that is over when a call has its effect; 0: a third

	mu       sync.Mutex
	away     bool                          // every call fails
	refuse   func([]queue.Settlement) bool // Settle fails for another reason
	mute     map[string]int                // by job: the number of settlements without an answer
	deaf     map[string]bool               // leases of these jobs cannot be extended
	damaged  map[string]bool               // jobs that cannot be settled
	lose     map[queue.LeaseRef]bool       // leases that Extend reports as lost
	others   []string                      // live workers beside the one under test
	pooled   atomic.Bool                   // every route is in a pool
	shards   []*fakeShard
	wakes    chan queue.Wake
	ticks    []fakeTick
	settled  []fakeSettled
	batches  int // calls of Settle
	readings int // of a shard's clock alone
	extended map[queue.LeaseRef]int
	left     []time.Time
	lateness []reports.Lateness // as reported
	reported []map[string]reports.RouteLoad
}

type fakeShard struct {
	jobs      []queue.Lease // by stamp
	help      bool
	loseReply int      // number of polls that take effect but lose their answer
	hangs     bool     // no poll is answered
	damaged   bool     // polls fail at damaged data
	aside     []string // damaged items that every poll reports
}

type fakeTick struct {
	shard  int
	o      queue.TickOptions
	at     time.Time
	leases int
}

type fakeSettled struct {
	queue.Settlement
	at time.Time
}

func newFakeQueue(shards int) *fakeQueue {
	q := &fakeQueue{
		skew: time.Hour, trip: 300 * time.Microsecond, wakes: make(chan queue.Wake),
		lose: map[queue.LeaseRef]bool{}, extended: map[queue.LeaseRef]int{},
	}
	for range shards {
		q.shards = append(q.shards, &fakeShard{})
	}
	return q
}

func (q *fakeQueue) now() shaper.Instant { return shaper.InstantOf(time.Now().Add(q.skew)) }

// put adds a job that is to leave in d, without a wake-up.
func (q *fakeQueue) put(shard int, id string, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.shards[shard]
	s.jobs = append(s.jobs, queue.Lease{
		LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}, Tenant: "acme", Route: "default", Type: "test",
		Payload: []byte(`{}`),
		Attempt: 1, MaxAttempts: 10, Eligible: q.now(), Stamp: q.now().Add(d),
	})
	slices.SortStableFunc(s.jobs, func(a, b queue.Lease) int { return cmp.Compare(a.Stamp, b.Stamp) })
}

func (q *fakeQueue) PoolOf(string) string {
	if q.pooled.Load() {
		return "together"
	}
	return ""
}

// set changes the fake under its lock.
func (q *fakeQueue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

func (q *fakeQueue) call(ctx context.Context) error {
	sleep(ctx, q.there())
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", queue.ErrUnavailable, err)
	}
	if q.away {
		return queue.ErrUnavailable
	}
	return nil
}

// there is how long a call is on its way.
func (q *fakeQueue) there() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Duration(float64(q.trip) * cmp.Or(q.early, 1./3))
}

// back is how long an answer is on its way.
func (q *fakeQueue) back() time.Duration {
	there := q.there()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.trip - there
}

func (q *fakeQueue) Shards() int { return len(q.shards) }

func (q *fakeQueue) OneNode() bool { return !q.cluster }

func (q *fakeQueue) Heartbeat(ctx context.Context, worker string, _ time.Duration) (queue.Heartbeat, error) {
	r, err := q.read(ctx)
	if err != nil {
		return queue.Heartbeat{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return queue.Heartbeat{Reading: r, Live: slices.Sorted(slices.Values(append([]string{worker}, q.others...)))}, nil
}

func (q *fakeQueue) ReportLateness(ctx context.Context, _ string, l reports.Lateness) error {
	err := q.call(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lateness = append(q.lateness, l)
	return err
}

func (q *fakeQueue) ReportRoutes(ctx context.Context, _ string, routes map[string]reports.RouteLoad) error {
	err := q.call(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reported = append(q.reported, routes)
	return err
}

func (q *fakeQueue) Leave(ctx context.Context, _ string) error {
	err := q.call(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.left = append(q.left, time.Now())
	return err
}

func (q *fakeQueue) Wakes(ctx context.Context) <-chan queue.Wake {
	out := make(chan queue.Wake, 1)
	out <- queue.Wake{Shard: queue.AllShards}
	go func() {
		defer close(out)
		for {
			select {
			case w := <-q.wakes:
				out <- w
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (q *fakeQueue) Extend(
	ctx context.Context, refs []queue.LeaseRef, _ time.Duration,
) (lost []queue.LeaseRef, err error) {
	if err := q.call(ctx); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var unanswered queue.Unanswered
	for _, ref := range refs {
		if q.deaf[ref.ID] {
			unanswered.Leases, unanswered.Err = append(unanswered.Leases, ref), queue.ErrUnavailable
			continue
		}
		q.extended[ref]++
		if q.lose[ref] {
			lost = append(lost, ref)
		}
	}
	if unanswered.Err != nil {
		return lost, &unanswered
	}
	return lost, nil
}

func (q *fakeQueue) Settle(ctx context.Context, batch []queue.Settlement) ([]queue.SettleResult, error) {
	for _, s := range batch {
		sleep(ctx, time.Duration(float64(q.perMB)*float64(len(s.Answer))/1e6))
	}
	if err := q.call(ctx); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batches++
	if q.refuse != nil && q.refuse(batch) {
		return nil, fmt.Errorf("refused")
	}
	results, err := make([]queue.SettleResult, len(batch)), error(nil)
	for i, s := range batch {
		if q.mute[s.ID] > 0 {
			q.mute[s.ID]--
			err = queue.ErrUnavailable
			continue
		}
		if q.damaged[s.ID] {
			err = cmp.Or(err, queue.ErrScript)
			continue
		}
		results[i] = queue.Settled
		if q.lose[s.LeaseRef] {
			results[i] = queue.Stale
		}
		q.settled = append(q.settled, fakeSettled{s, time.Now()})
	}
	return results, err
}

// consumer is the fake's counterpart of queue.Queue.Consumer.
func (q *fakeQueue) consumer(_ string, shard int) consumer {
	return &fakeConsumer{q: q, shard: shard}
}

type fakeConsumer struct {
	q     *fakeQueue
	shard int
	grant []queue.Lease // of a poll whose answer was lost
	open  bool
}

func (c *fakeConsumer) Tick(ctx context.Context, o queue.TickOptions) (queue.Tick, error) {
	q, s := c.q, c.q.shards[c.shard]
	sent := time.Now()
	if err := q.call(ctx); err != nil {
		return queue.Tick{}, err
	}
	q.mu.Lock()
	if s.hangs {
		q.mu.Unlock()
		<-ctx.Done()
		return queue.Tick{}, queue.ErrUnavailable
	}
	if s.damaged {
		q.mu.Unlock()
		return queue.Tick{}, fmt.Errorf("shard %d: %w", c.shard, queue.ErrScript)
	}
	switch o.Help {
	case queue.HelpRaise:
		s.help = true
	case queue.HelpClear:
		s.help = false
	}
	now := q.now()
	leases := c.grant
	if !c.open {
		n := 0
		for n < len(s.jobs) && n < o.Max && s.jobs[n].Stamp <= now.Add(o.Horizon) {
			n++
		}
		leases = slices.Clone(s.jobs[:n])
		s.jobs = s.jobs[n:]
	}
	for i := range leases {
		// As the scripts do: a poll that comes too late stamps anew, a repeated one too.
		if from := now.Add(o.Lead); leases[i].Stamp < from.Add(-shaper.Slack) {
			leases[i].Stamp = from
		}
		leases[i].Deadline = now.Add(o.Lease)
	}
	t := queue.Tick{Reading: queue.Reading{Now: now, Sent: sent}, Help: s.help, Leases: leases, Damaged: s.aside}
	if len(s.jobs) > 0 {
		t.Next = s.jobs[0].Stamp
	}
	q.ticks = append(q.ticks, fakeTick{c.shard, o, time.Now(), len(leases)})
	c.open = s.loseReply > 0
	if c.open {
		s.loseReply--
		c.grant = leases
		q.mu.Unlock()
		return queue.Tick{}, queue.ErrUnavailable
	}
	c.grant = nil
	q.mu.Unlock()
	sleep(ctx, q.back())
	t.Received = time.Now()
	return t, nil
}

// deliverFunc is a deliverer made of a function.
type deliverFunc func(context.Context, *queue.Lease) queue.Settlement

func (f deliverFunc) Deliver(ctx context.Context, l *queue.Lease) queue.Settlement { return f(ctx, l) }

func succeed(context.Context, *queue.Lease) queue.Settlement {
	return queue.Settlement{Event: shaper.Succeed}
}

// rig is a worker that runs against a fake queue in a bubble of virtual time.
type rig struct {
	*Worker
	q        *fakeQueue
	registry *prometheus.Registry
	stopped  chan struct{} // closed when Run has returned
	stop     context.CancelFunc
}

func startRig(t *testing.T, q *fakeQueue, cfg Config, d deliverFunc) *rig {
	t.Helper()
	r := &rig{q: q, registry: prometheus.NewRegistry(), stopped: make(chan struct{})}
	cfg.Registerer = r.registry
	if cfg.Routes == nil {
		cfg.Routes = map[string]Route{"default": {URL: "http://upstream.test/"}}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w, err := newWorker(q, q.consumer, newTimerWaiter, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if b, ok := w.deliverers["default"].(*breaker); ok {
		b.next = d
	} else {
		w.deliverers["default"] = d
	}
	r.Worker = w
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() {
		defer close(r.stopped)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return r
}

// end stops the worker, waits for it and checks that no job and no poll holds a slot.
func (r *rig) end(t *testing.T) {
	t.Helper()
	r.stop()
	<-r.stopped
	synctest.Wait()
	if n := r.capacity.taken(); n != 0 {
		t.Errorf("%d slots are still taken", n)
	}
}

// pass lets virtual time pass and everything settle down.
func pass(d time.Duration) {
	sleep(context.Background(), d)
	synctest.Wait()
}

// events counts the settlements by event.
func (q *fakeQueue) events() map[shaper.Event]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := map[shaper.Event]int{}
	for _, s := range q.settled {
		n[s.Event]++
	}
	return n
}

// polls counts the polls at each shard since the last call.
func (q *fakeQueue) polls() map[int]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := map[int]int{}
	for _, t := range q.ticks {
		n[t.shard]++
	}
	q.ticks = nil
	return n
}

// settlements are those up to now.
func (q *fakeQueue) settlements() []fakeSettled {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.settled)
}

// helpSignals are the times and signals of the polls that said something about help.
func (q *fakeQueue) helpSignals(h queue.HelpSignal) (at []time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range q.ticks {
		if t.o.Help == h {
			at = append(at, t.at)
		}
	}
	return at
}

func (c *fakeConsumer) Clock(ctx context.Context) (queue.Reading, error) {
	c.q.mu.Lock()
	c.q.readings++
	c.q.mu.Unlock()
	return c.q.read(ctx)
}

// read makes a call that only reads the clock, midway.
func (q *fakeQueue) read(ctx context.Context) (r queue.Reading, err error) {
	r.Sent = time.Now()
	trip := q.there() + q.back()
	sleep(ctx, trip/2)
	r.Now = q.now()
	sleep(ctx, trip-trip/2)
	r.Received = time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away || ctx.Err() != nil {
		return queue.Reading{}, queue.ErrUnavailable
	}
	return r, nil
}

func (c *fakeConsumer) Resign(context.Context) error { return nil }
