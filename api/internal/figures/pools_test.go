package figures

import (
	"math"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func tenASecond() shaper.Rate { return shaper.Rate{Limit: 10, Period: time.Second} }

// pooled sets a pool of 10/s with these flows.
func (s *source) pooled(departed int64, flows ...queue.PoolFlow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals = &queue.Totals{Departed: departed, Running: 1}
	s.pools = []queue.Pool{{Name: "erp", Policy: shaper.Policy{Rate: tenASecond()}, Departed: departed}}
	s.briefs = nil
	for _, f := range flows {
		f.Pool, f.Route = "erp", "orders"
		s.briefs = append(s.briefs, queue.Brief{Name: f.Tenant, Rate: perSecond, Pooled: []queue.PoolFlow{f}})
	}
}

// flowsOf are the flows of the last scan by tenant.
func flowsOf(n News) map[string]PoolFlow {
	flows := map[string]PoolFlow{}
	for _, f := range n.Scan.Flows["erp"] {
		flows[f.Tenant] = f
	}
	return flows
}

// A watch of a pool gets the pool, and which part of its rate each flow got and was entitled to.
// A flow that neither waits nor has left is not among them.
func TestSharesOfAPool(t *testing.T) {
	s := newSource()
	second := func(n int64, waits bool) {
		s.pooled(10*n,
			queue.PoolFlow{Tenant: "a", Departed: 6 * n / 3, Costs: 6 * n, Weight: 3, Waits: true, Depth: 9},
			queue.PoolFlow{Tenant: "b", Departed: 4 * n, Costs: 4 * n, Weight: 1, Waits: waits},
			queue.PoolFlow{Tenant: "idle", Departed: 5, Weight: 9})
	}
	second(0, true)
	story(t, s, 10, func(t *testing.T, h *Hub) {
		w := watchOf(t, h, View{Pool: "erp"})
		defer w.Close()
		pass(time.Millisecond)
		n := w.Take()
		if n.Pool == nil || n.Pool.Pool.Name != "erp" || n.Scan == nil {
			t.Fatalf("the first figures: %+v", n)
		}
		if f := flowsOf(n); len(f) != 1 || f["a"].Known || f["a"].Part != 0.75 {
			t.Errorf("at first %+v", f)
		}
		for i := range int64(20) { // b waits half of the time
			second(i+1, i%2 == 0)
			pass(time.Second)
		}
		flows := flowsOf(w.Take())
		for name, want := range map[string][2]float64{"a": {0.6, 0.875}, "b": {0.4, 0.125}} {
			f := flows[name]
			if !f.Known || math.Abs(f.Got-want[0]) > 0.01 || math.Abs(f.Part-want[1]) > 0.02 {
				t.Errorf("%s got %.3f of %.3f, want %v", name, f.Got, f.Part, want)
			}
		}
		if _, listed := flows["idle"]; listed || len(flows) != 2 {
			t.Errorf("%d flows: %+v", len(flows), flows)
		}
		past := h.PastOfPool(n.Pool)
		queuetest.Compare(t, "the rate at the first sample", past[0].Strictest, 10)
		later := h.PastOfPool(&PoolDetail{At: time.Now().Add(1), Pool: s.pools[0]})
		if len(later) < 4 || later[len(later)-2].Departed <= later[0].Departed {
			t.Errorf("the departures of the pool over time: %+v", later)
		}
	})
}

// A reserve is part of what a flow is entitled to.
func TestSharesWithReserves(t *testing.T) {
	s := newSource()
	s.pooled(0, queue.PoolFlow{Tenant: "a", Weight: 1, Reserve: shaper.Rate{Limit: 5, Period: time.Second}, Waits: true, Depth: 1},
		queue.PoolFlow{Tenant: "b", Weight: 4, Waits: true, Depth: 1})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		w := watchOf(t, h, View{Pool: "erp"})
		defer w.Close()
		pass(time.Millisecond)
		flows := flowsOf(w.Take())
		if a, b := flows["a"].Part, flows["b"].Part; math.Abs(a-0.6) > 1e-9 || math.Abs(b-0.4) > 1e-9 {
			t.Errorf("parts %v and %v", a, b)
		}
	})
}

// The figures of a pool are read only while there is a watch of it.
func TestPoolIsReadWhileItIsWatched(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		other := watchOf(t, h, View{})
		defer other.Close()
		w := watchOf(t, h, View{Pool: "erp"})
		pass(2 * time.Second)
		if s.count("pool erp") < 7 || s.count("scan") == 0 {
			t.Errorf("%d readings, %d scans", s.count("pool erp"), s.count("scan"))
		}
		w.Close()
		pass(time.Second)
		read, scanned := s.count("pool erp"), s.count("scan")
		pass(5 * time.Second)
		queuetest.Compare(t, "readings of the pool without a watch", s.count("pool erp")-read, 0)
		queuetest.Compare(t, "scans without a watch", s.count("scan")-scanned, 0)
		queuetest.Compare(t, "pools in memory", len(h.poolsNow), 0)
	})
}

// A tenant with flows in a pool is known in two shards, but it is one tenant.
func TestTenantsAreCountedOnce(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{Tenants: 4}, queue.Brief{Name: "a", Rate: perSecond}, queue.Brief{Name: "b", Rate: perSecond})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		queuetest.Compare(t, "tenants before a scan", h.Overview(t.Context()).Listed, 4)
		w := watchOf(t, h, View{Scan: true})
		defer w.Close()
		pass(1500 * time.Millisecond)
		queuetest.Compare(t, "tenants after a scan", w.Take().Overview.Listed, 2)
	})
}
