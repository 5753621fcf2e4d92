package figures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a store that counts what it is asked.
type source struct {
	tenants, part int           // how many there are, and how many a scan returns at most
	takes         time.Duration // for a part of a scan

	mu      sync.Mutex
	asked   map[string]int
	scan    []time.Time // when scans began
	failure error
	totals  *queue.Totals // nil: they change with each reading
	briefs  []queue.Brief // nil: as many as there are tenants, without figures
	pools   []queue.Pool
}

func newSource() *source { return &source{tenants: 3, part: 1000, asked: map[string]int{}} }

// ask notes a call and returns its scripted error.
func (s *source) ask(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[call]++
	return s.failure
}

// count is how often the call came.
func (s *source) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[call]
}

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

func (s *source) Totals(context.Context) (queue.Totals, error) {
	totals := queue.Totals{Depth: int64(s.count("totals"))}
	s.mu.Lock()
	if s.totals != nil {
		totals = *s.totals
	}
	s.mu.Unlock()
	return totals, s.ask("totals")
}

func (s *source) Workers(context.Context) (reports.Workers, error) {
	return reports.Workers{Live: 2}, s.ask("workers")
}

func (s *source) StoreHealth(context.Context) (queue.StoreHealth, error) {
	return queue.StoreHealth{Engine: queue.EngineRedis}, s.ask("health")
}

func (s *source) Scan(_ context.Context, cursor string, _ int) ([]queue.Brief, string, error) {
	if cursor == "" {
		s.mu.Lock()
		s.scan = append(s.scan, time.Now())
		s.mu.Unlock()
	}
	time.Sleep(s.takes)
	s.mu.Lock()
	briefs := slices.Clone(s.briefs)
	s.mu.Unlock()
	if briefs != nil {
		return briefs, "", s.ask("scan")
	}
	from, _ := strconv.Atoi(cursor)
	to := min(from+s.part, s.tenants)
	var part []queue.Brief
	for i := max(0, from-1); i < to; i++ { // the last of the part before comes again
		part = append(part, queue.Brief{Name: fmt.Sprint("t", i), Rate: perSecond})
	}
	next := ""
	if to < s.tenants {
		next = strconv.Itoa(to)
	}
	return part, next, s.ask("scan")
}

func (s *source) Tenant(_ context.Context, tenant string) (queue.Tenant, error) {
	return queue.Tenant{Name: tenant}, s.ask("tenant " + tenant)
}

func (s *source) Pool(_ context.Context, name string) (queue.Pool, error) {
	s.mu.Lock()
	p := queue.Pool{Name: name, Policy: shaper.Policy{Rate: perSecond}}
	for _, declared := range s.pools {
		if declared.Name == name {
			p = declared
		}
	}
	s.mu.Unlock()
	return p, s.ask("pool " + name)
}

func (s *source) AllPools(context.Context) ([]queue.Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pools), s.failure
}

func (s *source) Waits(_ context.Context, tenant string, _ int) ([]time.Duration, error) {
	return []time.Duration{time.Second}, s.ask("waits " + tenant)
}

// watchOf begins a watch that must be had.
func watchOf(t *testing.T, h *Hub, v View) *Watch {
	t.Helper()
	w, err := h.Watch(v)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// parts names the kinds of figures in the news.
func parts(n News) (names []string) {
	for _, p := range []struct {
		name  string
		there bool
	}{{"overview", n.Overview != nil}, {"scan", n.Scan != nil}, {"tenant", n.Tenant != nil}, {"pool", n.Pool != nil}} {
		if p.there {
			names = append(names, p.name)
		}
	}
	return names
}

// pass lets time pass, and what happens in it be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// story runs a test of a hub in virtual time.
func story(t *testing.T, s *source, most int, tell func(t *testing.T, h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(s, most)
		defer h.Close()
		tell(t, h)
	})
}

func TestNothingIsReadWhileNobodyWatches(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		pass(time.Minute)
		if len(s.asked) != 0 {
			t.Errorf("read %v", s.asked)
		}
		for round := range 3 {
			w := watchOf(t, h, View{Scan: true, Tenant: "acme"})
			pass(2 * time.Second)
			w.Close()
			pass(time.Second) // what was under way
			before := maps.Clone(s.asked)
			pass(time.Hour)
			if !maps.Equal(before, s.asked) {
				t.Errorf("round %d: read %v, later %v", round, before, s.asked)
			}
		}
		if len(h.details) != 0 || len(h.watches) != 0 {
			t.Errorf("%d tenants and %d watches are remembered", len(h.details), len(h.watches))
		}
	})
}

// The number of watchers does not change how often the store is read.
func TestOneReadingServesAll(t *testing.T) {
	for _, n := range []int{1, 50} {
		s := newSource()
		story(t, s, 100, func(t *testing.T, h *Hub) {
			var all []*Watch
			for range n {
				all = append(all, watchOf(t, h, View{Scan: true, Tenant: "acme"}))
				synctest.Wait()
			}
			pass(10*time.Second - time.Millisecond)
			for call, want := range map[string]int{
				"totals": 40, "workers": 10, "health": 10, "scan": 10, "waits acme": 10,
			} {
				if got := s.count(call); got != want {
					t.Errorf("%d watch: %d times %s, want %d", n, got, call, want)
				}
			}
			// Each newcomer has the tenant read once more.
			if got := s.count("tenant acme"); got < 40 || got > 40+n {
				t.Errorf("%d watch: %d times the tenant", n, got)
			}
			for _, w := range all {
				news := w.Take()
				queuetest.Compare(t, "the news", parts(news), []string{"overview", "scan", "tenant"})
				if news.Scan != nil {
					queuetest.Compare(t, "the tenants of the scan", len(news.Scan.Briefs), 3)
				}
				w.Close()
			}
		})
	}
}

// Watchers are notified of a reading one after the other, independent of earlier ones; only their
// first figures come at once.
func TestWatchersAreNotifiedInTurn(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		gone := watchOf(t, h, View{})
		var all []*Watch
		for range 4 {
			began := time.Now()
			w := watchOf(t, h, View{Scan: true, Tenant: "acme"})
			for w.sent.Overview == nil || w.sent.Scan == nil || w.sent.Tenant == nil {
				<-w.News()
				w.Take()
			}
			if waited := time.Since(began); waited != 0 {
				t.Errorf("the first figures come after %v", waited)
			}
			all = append(all, w)
		}
		gone.Close()
		all = append(all, watchOf(t, h, View{}))
		pass(time.Millisecond)
		at := make([]time.Duration, len(all))
		var reads sync.WaitGroup
		for i, w := range all {
			reads.Go(func() {
				w.Take()
				var news News
				for news.Overview == nil {
					<-w.News()
					news = w.Take()
				}
				at[i] = time.Since(news.Overview.At)
			})
		}
		reads.Wait()
		slices.Sort(at)
		for i := range at {
			next := overviewEvery + at[0]
			if i+1 < len(at) {
				next = at[i+1]
			}
			if apart := next - at[i]; apart < overviewEvery/8 || apart > overviewEvery/4 {
				t.Errorf("notified at %v", at)
			}
		}
		for _, w := range all {
			w.Close()
		}
	})
}

// A watcher gets the kinds of figures that its view names. A kind that no view names is not read.
func TestOnlyWhatIsWantedIsRead(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		plain := watchOf(t, h, View{})
		pass(5 * time.Second)
		if s.count("scan") != 1 || s.count("totals") == 0 { // an overview has the dead letters
			t.Errorf("read %v", s.asked)
		}
		counting := watchOf(t, h, View{Scan: true})
		detailed := watchOf(t, h, View{Tenant: "acme"})
		pass(5 * time.Second)
		queuetest.Compare(t, "the news of a plain watch", parts(plain.Take()), []string{"overview"})
		queuetest.Compare(t, "the news of a watch of all tenants", parts(counting.Take()),
			[]string{"overview", "scan"})
		news := detailed.Take()
		queuetest.Compare(t, "the news of a watch of one tenant", parts(news), []string{"overview", "tenant"})
		if news.Tenant != nil {
			queuetest.Compare(t, "the tenant", news.Tenant.Tenant.Name, "acme")
		}
		counting.Close()
		detailed.Close()
		pass(time.Second)
		before := maps.Clone(s.asked)
		pass(5 * time.Second)
		for _, call := range []string{"scan", "tenant acme", "waits acme"} {
			if s.count(call) != before[call] {
				t.Errorf("%s is still read", call)
			}
		}
		plain.Close()
	})
}

// A watcher that does not take for a while gets the latest figures once, and none of those between.
func TestASlowWatcherSkips(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		w := watchOf(t, h, View{Scan: true})
		pass(7100 * time.Millisecond)
		<-w.News()
		news := w.Take()
		want := int64(s.count("totals") - 1)
		if news.Overview.Depth != want || time.Since(news.Scan.At) > time.Second {
			t.Errorf("the overview is reading %d, want %d; the scan is %v old", news.Overview.Depth, want,
				time.Since(news.Scan.At))
		}
		select {
		case <-w.News():
			t.Error("there is more")
		default:
		}
		if again := w.Take(); again != (News{}) {
			t.Errorf("got again: %+v", again)
		}
		pass(overviewEvery)
		<-w.News()
		w.Close()
	})
}

// The more expensive scans are, the rarer they are, and the store rests between their parts.
func TestScansBackOff(t *testing.T) {
	for _, tt := range []struct {
		tenants     int
		part        time.Duration
		every, span time.Duration
	}{
		{100, 0, time.Second, 0},
		// 10 parts, the rests are saved up to fewer.
		{100, 100 * time.Microsecond, time.Second, 3 * time.Millisecond},
		{1250, 400 * time.Microsecond, time.Second, 250 * time.Millisecond}, // 125 parts and rests of 1.6 ms
		{2500, 400 * time.Microsecond, 2 * time.Second, 500 * time.Millisecond},
		{10_000, 400 * time.Microsecond, 5 * time.Second, 2 * time.Second},
		{50_000, 400 * time.Microsecond, 10 * time.Second, 10 * time.Second},
		// Most of it spent waiting for others.
		{2500, 10 * time.Millisecond, 4 * time.Second, 3300 * time.Millisecond},
	} {
		s := newSource()
		s.tenants, s.part, s.takes = tt.tenants, 10, tt.part
		story(t, s, 10, func(t *testing.T, h *Hub) {
			w := watchOf(t, h, View{Scan: true})
			var took []time.Duration
			for len(took) < 4 {
				<-w.News()
				if news := w.Take(); news.Scan != nil {
					s.mu.Lock()
					took = append(took, news.Scan.At.Sub(s.scan[len(s.scan)-1]))
					s.mu.Unlock()
					if len(news.Scan.Briefs) != tt.tenants {
						t.Errorf("%d of %d tenants", len(news.Scan.Briefs), tt.tenants)
					}
				}
			}
			w.Close()
			w.Close()
			synctest.Wait()
			for i := 1; i < 4; i++ {
				if every := s.scan[i].Sub(s.scan[i-1]); every < tt.every || every > tt.every+tt.every/4+time.Millisecond {
					t.Errorf("%d tenants, %v a part: a scan every %v, want %v", tt.tenants, tt.part, every, tt.every)
				}
			}
			if took[0] < tt.span*9/10 || took[0] > tt.span+100*time.Millisecond {
				t.Errorf("%d tenants, %v a part: a scan takes %v, want %v", tt.tenants, tt.part, took[0], tt.span)
			}
		})
	}
}

// While the store is away, watchers get the error with the last known overview. Scans and tenants
// follow when it is back.
func TestWatchersWhileTheStoreIsAway(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		w := watchOf(t, h, View{Scan: true, Tenant: "acme"})
		pass(2 * time.Second)
		before := w.Take()
		s.fail(queue.ErrUnavailable)
		pass(2 * time.Second)
		away := w.Take()
		queuetest.Compare(t, "the news while it is away", parts(away), []string{"overview"})
		o := away.Overview
		if o == nil || !errors.Is(o.Err, queue.ErrUnavailable) {
			t.Fatalf("the overview while it is away is %+v, want the error %v", o, queue.ErrUnavailable)
		}
		queuetest.Compare(t, "the last known workers", o.Workers.Live, before.Overview.Workers.Live)
		queuetest.Compare(t, "the engine", o.Store.Engine, queue.EngineRedis)
		if o.Depth == 0 {
			t.Error("the depth while it is away is 0, want the last known one")
		}
		s.fail(nil)
		pass(2 * time.Second)
		back := w.Take()
		queuetest.Compare(t, "the news once it is back", parts(back), []string{"overview", "scan", "tenant"})
		if back.Overview != nil && back.Overview.Err != nil {
			t.Errorf("the overview once it is back has the error %v", back.Overview.Err)
		}
		w.Close()
	})
}

// A watch that begins while the store is away gets the figures that were read last, and when.
func TestWatchersWhoComeWhileTheStoreIsAway(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		read := h.Overview(t.Context())
		s.fail(queue.ErrUnavailable)
		pass(time.Minute)
		w := watchOf(t, h, View{})
		pass(time.Second)
		o := w.Take().Overview
		if o == nil || o.Err == nil {
			t.Fatalf("the overview is %+v, want one with an error", o)
		}
		queuetest.Compare(t, "totals", o.Totals, read.Totals)
		queuetest.Compare(t, "workers", o.Workers.Live, 2)
		if !o.Read.Equal(read.At) {
			t.Errorf("the figures are of %v, want %v", o.Read, read.At)
		}
		w.Close()
	})
}

// The first overview has an error if a part of it cannot be read, and the parts that can be.
func TestFaultOfOnePartIsReported(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		s.fail(errors.New("a fault"))
		if o := h.Overview(t.Context()); o.Err == nil || o.Store.Engine != queue.EngineRedis {
			t.Errorf("the first overview is %+v", o)
		}
	})
}

// An overview on request is as fresh as a watcher's, and many requests share one reading.
func TestOverviews(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		for range 100 {
			if o := h.Overview(t.Context()); o.Err != nil || o.Workers.Live != 2 {
				t.Fatalf("the overview is %+v, want two live workers and no error", o)
			}
			pass(10 * time.Millisecond)
		}
		if got := s.count("totals"); got != 4 {
			t.Errorf("read %d times in a second", got)
		}
		pass(time.Hour)
		if o := h.Overview(t.Context()); time.Since(o.At) > 0 || o.Depth != 4 {
			t.Errorf("an hour later: %+v", o)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		pass(time.Second)
		s.fail(context.Canceled)
		h.Overview(gone)
		s.fail(nil)
		if o := h.Overview(t.Context()); o.Err != nil {
			t.Errorf("after one who did not wait: %v", o.Err)
		}
	})
}

// A watcher that returns soon, as after a reload of the page, gets the last figures at once. A
// later one does not.
func TestReturningWatcher(t *testing.T) {
	s := newSource()
	s.takes = 100 * time.Millisecond
	story(t, s, 10, func(t *testing.T, h *Hub) {
		w := watchOf(t, h, View{Scan: true})
		pass(1500 * time.Millisecond)
		w.Close()
		w = watchOf(t, h, View{Scan: true})
		<-w.News()
		if news := w.Take(); news.Scan == nil || news.Overview == nil {
			t.Errorf("at once: %+v", news)
		}
		w.Close()
		pass(time.Minute)
		w = watchOf(t, h, View{Scan: true})
		<-w.News()
		if news := w.Take(); news.Scan != nil ||
			news.Overview != nil && time.Since(news.Overview.At) > time.Second {
			t.Errorf("after a minute: %+v", news)
		}
		pass(200 * time.Millisecond)
		if news := w.Take(); news.Scan == nil {
			t.Error("no scan after 200 ms")
		}
		w.Close()
	})
}

// A hub has at most the given number of watchers, and Close ends them all.
func TestWatchersAreBoundedAndEnded(t *testing.T) {
	s := newSource()
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(s, 2)
		a, b := watchOf(t, h, View{Scan: true}), watchOf(t, h, View{})
		if _, err := h.Watch(View{}); !errors.Is(err, ErrTooMany) {
			t.Errorf("a third watch: %v", err)
		}
		a.Close()
		a = watchOf(t, h, View{})
		pass(time.Second)
		h.Close()
		h.Close()
		<-a.Ended()
		if _, err := h.Watch(View{}); !errors.Is(err, ErrClosed) {
			t.Errorf("a watch after the end: %v", err)
		}
		a.Close()
		b.Close()
	})
}

// Watchers that come and go concurrently leave nothing behind.
func TestComingAndGoing(t *testing.T) {
	s := newSource()
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(s, 1000)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				for round := range 20 {
					w, err := h.Watch(View{Scan: (i+round)%2 == 0, Tenant: fmt.Sprint(round % 3)})
					if err != nil {
						t.Error(err)
						return
					}
					<-w.News()
					w.Take()
					time.Sleep(time.Duration(i*round) * time.Millisecond)
					w.Close()
				}
			})
		}
		all.Wait()
		pass(time.Second)
		queuetest.Compare(t, "overviews are read", h.reading != nil, false)
		queuetest.Compare(t, "tenants are scanned", h.counting != nil, false)
		queuetest.Compare(t, "the tenants that are read", slices.Collect(maps.Keys(h.details)), nil)
		h.Close()
	})
}

// A scrape has the findings of the scans that a watch wants, and makes none of its own then.
func TestScrapesShareTheScansOfWatches(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{Tenants: 1}, queue.Brief{Name: "acme", Rate: perSecond, Figures: queue.Figures{Dead: 3, Depth: 2}})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		w := watchOf(t, h, View{Scan: true})
		pass(5 * time.Second)
		begun := s.count("scan")
		found := h.tally.scrape(t.Context(), nil)
		queuetest.Compare(t, "dead letters", found.dead, 3)
		queuetest.Compare(t, "depth", found.of("acme").Depth, 2)
		queuetest.Compare(t, "scans of the scrape", s.count("scan")-begun, 0)
		w.Close()
		pass(scanAge)
		h.tally.scrape(t.Context(), nil)
		queuetest.Compare(t, "scans of a scrape when nobody watches", s.count("scan")-begun, 1)
	})
}
