package figures

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
)

const (
	overviewEvery = 250 * time.Millisecond // also of a tenant in detail
	// healthEvery is for figures that change slowly: the workers, the store's memory, the waits of
	// a tenant.
	healthEvery = time.Second
	scanEvery   = time.Second            // at the least
	scanSeldom  = 5 * time.Second        // at the most, unless a scan takes longer
	scanAge     = 10 * time.Second       // an older one is of no use to a new watcher
	scanPart    = 20                     // a scan may take 1/scanPart of the time
	restFactor  = 4                      // the pause after a script is that many times as long
	leastRest   = 2 * time.Millisecond   // shorter ones are saved up
	callCost    = 200 * time.Microsecond // of a script at the most, beside queue.ScanCost
	waitsMost   = 200                    // recent jobs of a route whose waits are sampled
)

// Source is what is watched; *queue.Queue is one. Its errors wrap queue.ErrUnavailable.
type Source interface {
	// Totals sums over all tenants.
	Totals(ctx context.Context) (queue.Totals, error)
	// Workers reports the live workers and the lateness of departures.
	Workers(ctx context.Context) (reports.Workers, error)
	// StoreHealth reports engine and version also with an error.
	StoreHealth(ctx context.Context) (queue.StoreHealth, error)
	// Scan returns a page of about most tenants; next is the cursor of the following page, ""
	// starts and ends. A tenant may be returned twice.
	Scan(ctx context.Context, cursor string, most int) (part []queue.Brief, next string, err error)
	// Tenant reads one tenant; one that was never seen has the policy in force and no jobs.
	Tenant(ctx context.Context, tenant string) (queue.Tenant, error)
	// Pool reads one pool. One that is not declared is queue.ErrNoPool.
	Pool(ctx context.Context, name string) (queue.Pool, error)
	// AllPools reads all pools, sorted by name.
	AllPools(ctx context.Context) ([]queue.Pool, error)
	// Waits returns the waits of the tenant's recent jobs, sorted, at most most of each route.
	Waits(ctx context.Context, tenant string, most int) ([]time.Duration, error)
}

// Overview is the figures of all tenants together.
type Overview struct {
	At time.Time // by the clock of this process
	queue.Totals
	// Listed is the number of tenants. Totals counts one for each shard that it is known in.
	Listed  int64
	Workers reports.Workers
	Dead    *int64 // dead letters of all tenants; nil before the first scan has ended
	Store   queue.StoreHealth
	// Err is why the store did not answer, nil if it did. With an error the figures are the last
	// that this process has read.
	Err  error
	Read time.Time // when the figures were read; zero if they never were
}

// Scan is the figures of each tenant, in no order, and of each pool. Watches share it, so it must
// not be changed.
type Scan struct {
	At     time.Time // when the scan ended
	Briefs []queue.Brief
	Pools  []queue.Pool          // sorted by name
	Flows  map[string][]PoolFlow // by pool, in no order: those that wait or have left lately
	read   []time.Time           // when each brief was read
}

// Detail is the figures of one tenant.
type Detail struct {
	At     time.Time // when they were read
	Tenant queue.Tenant
	Waits  []time.Duration // of its recent jobs, sorted
}

// Errors of Watch.
var (
	ErrTooMany = errors.New("live: too many watches") // the hub has its maximum
	ErrClosed  = errors.New("live: closed")           // Close was called
)

// Hub reads a source while there are watches. Make it with NewHub, and call Close at the end.
type Hub struct {
	source Source
	most   int
	ctx    context.Context // ends with Close
	end    context.CancelFunc
	loops  sync.WaitGroup

	sampling sync.Mutex // held by who makes an overview
	healthAt time.Time  // when the workers and the store's health were last asked for; guarded by sampling
	known    *Overview  // the last one without an error; guarded by sampling
	doubled  int64      // what Totals.Tenants was above the tenants of the last scan; guarded by sampling

	mu       sync.Mutex
	watches  map[*Watch]bool
	reading  *loop // of overviews and details; nil while nobody watches
	counting *loop // of scans; nil while nobody wants them
	overview *Overview
	scan     *Scan
	details  map[string]*Detail     // of the tenants that are watched
	poolsNow map[string]*PoolDetail // of the pools that are watched
	nextScan time.Time              // none begins before
	past     []Moment               // the earliest first
	lost     bool                   // the store was away since the last of them

	tally   *tally
	tenants *samples
	pools   *samples
	shares  shares
	resting atomic.Bool   // Remember waits for something to happen
	stirred chan struct{} // it has happened
}

// NewHub returns a hub for at most the given number of watches.
func NewHub(source Source, most int) *Hub {
	ctx, end := context.WithCancel(context.Background())
	return &Hub{
		source: source, most: most, tally: newTally(source), ctx: ctx, end: end, watches: map[*Watch]bool{},
		details: map[string]*Detail{}, poolsNow: map[string]*PoolDetail{},
		tenants: newSamples(maxSamples), pools: newSamples(maxSamples),
		stirred: make(chan struct{}, 1),
	}
}

// Close ends all watches and returns when the last read has ended.
func (h *Hub) Close() {
	h.mu.Lock()
	h.end()
	h.mu.Unlock()
	h.loops.Wait()
}

// View selects the figures of a watch.
type View struct {
	Scan   bool   // figures of each tenant
	Tenant string // read in detail; empty for none
	Pool   string // read in detail, with its flows; empty for none
}

// scans reports whether the view needs scans: the flows of a pool come from them.
func (v View) scans() bool { return v.Scan || v.Pool != "" }

// Watch receives figures. Its methods are for one goroutine.
type Watch struct {
	hub   *Hub
	view  View
	phase time.Duration // from a reading to its notification
	news  chan struct{}
	sent  News // guarded by the hub's lock
}

// Watch begins a watch, which the caller must close. Errors: ErrTooMany, ErrClosed.
func (h *Hub) Watch(v View) (*Watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if len(h.watches) >= h.most {
		return nil, ErrTooMany
	}
	w := &Watch{hub: h, view: v, phase: h.freePhase(), news: make(chan struct{}, 1)}
	h.watches[w] = true
	if h.scan != nil && time.Since(h.scan.At) > scanAge {
		h.scan = nil
	}
	switch {
	case h.reading != nil:
		h.reading.wake() // the tenant may be new
	case h.overview != nil && time.Since(h.overview.At) > healthEvery:
		h.overview = nil
		fallthrough
	default:
		h.reading = h.start(h.read)
	}
	if v.scans() && h.counting == nil {
		h.counting = h.start(h.count)
	}
	w.news <- struct{}{} // of what is known already
	return w, nil
}

// freePhase is the middle of the longest time between two readings without a notification. It is
// called with the lock held.
func (h *Hub) freePhase() time.Duration {
	var taken []time.Duration
	for w := range h.watches {
		taken = append(taken, w.phase)
	}
	if len(taken) == 0 {
		return 0
	}
	slices.Sort(taken)
	var from, longest time.Duration
	for i, phase := range taken {
		next := taken[(i+1)%len(taken)]
		if i == len(taken)-1 {
			next += overviewEvery
		}
		if next-phase > longest {
			from, longest = phase, next-phase
		}
	}
	return (from + longest/2) % overviewEvery
}

// notify signals news in the phase of the watch, or at once while it waits for its first figures.
// It is called with the lock held.
func (w *Watch) notify() {
	waits := w.sent.Overview == nil || w.view.scans() && w.sent.Scan == nil ||
		w.view.Tenant != "" && w.sent.Tenant == nil || w.view.Pool != "" && w.sent.Pool == nil
	if waits || w.phase == 0 {
		signal(w.news)
		return
	}
	time.AfterFunc(w.phase, func() { signal(w.news) })
}

// Close ends the watch; it may be called again.
func (w *Watch) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.watches[w] {
		return
	}
	delete(h.watches, w)
	scan, tenant, pool := false, false, false
	for other := range h.watches {
		scan, tenant = scan || other.view.scans(), tenant || other.view.Tenant == w.view.Tenant
		pool = pool || other.view.Pool == w.view.Pool
	}
	if !tenant {
		delete(h.details, w.view.Tenant)
	}
	if !pool {
		delete(h.poolsNow, w.view.Pool)
	}
	if !scan && h.counting != nil {
		h.counting.cancel()
		h.counting = nil
	}
	if len(h.watches) == 0 {
		h.reading.cancel()
		h.reading = nil
	}
}

// News receives a signal when Take has something to return.
func (w *Watch) News() <-chan struct{} { return w.news }

// Ended is closed when Hub.Close is called.
func (w *Watch) Ended() <-chan struct{} { return w.hub.ctx.Done() }

// News holds the latest figures; those that Take has returned before are nil.
type News struct {
	Overview *Overview
	Scan     *Scan
	Tenant   *Detail
	Pool     *PoolDetail
}

// Take returns the latest figures of each kind that came since the last call.
func (w *Watch) Take() News {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	var n News
	if o := h.overview; o != w.sent.Overview {
		n.Overview, w.sent.Overview = o, o
	}
	if c := h.scan; w.view.scans() && c != w.sent.Scan {
		n.Scan, w.sent.Scan = c, c
	}
	if d := h.details[w.view.Tenant]; w.view.Tenant != "" && d != w.sent.Tenant {
		n.Tenant, w.sent.Tenant = d, d
	}
	if p := h.poolsNow[w.view.Pool]; w.view.Pool != "" && p != w.sent.Pool {
		n.Pool, w.sent.Pool = p, p
	}
	return n
}

// loop reads the source until it is cancelled.
type loop struct {
	cancel context.CancelFunc
	woken  chan struct{}
}

// start is called with the lock held.
func (h *Hub) start(run func(ctx context.Context, woken <-chan struct{})) *loop {
	ctx, cancel := context.WithCancel(h.ctx)
	l := &loop{cancel: cancel, woken: make(chan struct{}, 1)}
	h.loops.Go(func() { run(ctx, l.woken) })
	return l
}

func (l *loop) wake() { signal(l.woken) }

// signal leaves at most one signal behind.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// publish stores new figures and notifies the watches that they concern. It does nothing if there
// is no such watch, or if the loop that read the figures has ended.
func (h *Hub) publish(ctx context.Context, concerns func(View) bool, put func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	notified := false
	for w := range h.watches {
		if concerns(w.view) {
			w.notify()
			notified = true
		}
	}
	if notified {
		put()
	}
}
