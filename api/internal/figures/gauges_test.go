package figures

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/scrape"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// fixed is a store of no tenants, which counts the questions for its totals.
type fixed struct {
	pools map[string]queue.Pool
	err   error // of every call
	asked int
}

func (f *fixed) Totals(ctx context.Context) (queue.Totals, error) {
	f.asked++
	if _, bounded := ctx.Deadline(); !bounded {
		panic("a scrape without a deadline")
	}
	return queue.Totals{}, f.err
}

func (f *fixed) Tenant(_ context.Context, name string) (t queue.Tenant, err error) {
	t.Name, t.Policy = name, shaper.DefaultPolicy()
	return t, f.err
}

func (f *fixed) Scan(context.Context, string, int) ([]queue.Brief, string, error) {
	return nil, "", f.err
}

func (f *fixed) Pools() []string { return slices.Sorted(maps.Keys(f.pools)) }

func (f *fixed) Pool(_ context.Context, name string) (queue.Pool, error) { return f.pools[name], f.err }

func TestFiguresAreCachedAndAbsentWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fixed{}
		registry := prometheus.NewRegistry()
		if err := registry.Register(newGauges(store, newTally(store), newShown([]string{"a"}, 0))); err != nil {
			t.Fatal(err)
		}
		gather := func() int {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			return len(families)
		}
		for range 10 {
			gather()
		}
		if n := store.asked; n != 1 {
			t.Errorf("asked %d times within a second", n)
		}
		<-time.After(scrape.Age)
		store.err = queue.ErrUnavailable
		if n := gather(); n != 0 || store.asked != 2 {
			t.Errorf("%d figures without a store, asked %d times", n, store.asked)
		}
		store.err = nil
		<-time.After(scrape.Age)
		if n := gather(); n != 19 {
			t.Errorf("%d figures", n)
		}
	})
}

// many is a store of many tenants, in pages of ten; each page takes a while.
type many struct {
	fixed
	briefs []queue.Brief
	step   time.Duration
	steps  int
	fail   bool
}

func (m *many) Totals(context.Context) (t queue.Totals, err error) {
	for _, b := range m.briefs {
		t.Depth += b.Depth
		t.Running += b.Running
	}
	return t, nil
}

func (m *many) Scan(_ context.Context, cursor string, _ int) (some []queue.Brief, next string, err error) {
	m.steps++
	if m.fail {
		return nil, "", queue.ErrUnavailable
	}
	<-time.After(m.step)
	from := 0
	if cursor != "" {
		if _, err := fmt.Sscan(cursor, &from); err != nil {
			return nil, "", queue.ErrCursor
		}
	}
	to := min(from+10, len(m.briefs))
	if to < len(m.briefs) {
		next = fmt.Sprint(to)
	}
	return m.briefs[from:to], next, nil
}

func (m *many) Tenant(_ context.Context, name string) (t queue.Tenant, err error) {
	t.Name, t.Policy.Rate.Limit, t.Policy.Rate.Period = name, 10, time.Second
	for _, b := range m.briefs {
		if b.Name == name {
			t.Depth, t.Running, t.OldestWait, t.EffectiveRate = b.Depth, b.Running, b.OldestWait, 5
		}
	}
	return t, nil
}

// series are the values of a family by the label tenant, or by nothing.
func series(t *testing.T, g prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			key := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "tenant" {
					key = l.GetValue()
				}
			}
			out[key] = m.GetGauge().GetValue()
		}
	}
	return out
}

func (m *many) registry(t *testing.T, s *shown) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(newGauges(m, newTally(m), s)); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNamedTenantsAndOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &many{briefs: []queue.Brief{
			{Name: "a", Figures: queue.Figures{Depth: 5, Running: 1, Dead: 2, OldestWait: 3 * time.Second}},
			{Name: "b", Figures: queue.Figures{Depth: 7, Dead: 4, OldestWait: 9 * time.Second}},
			{Name: "other", Figures: queue.Figures{Depth: 1, Dead: 8, OldestWait: time.Second}},
			{Name: "\xff", Figures: queue.Figures{Depth: 2, Running: 2, Dead: 1}},
		}}
		odd := store.EncodeName("\xff")
		r := m.registry(t, newShown([]string{"a", "a", "other", "\xff", "absent"}, 0))
		for name, want := range map[string]map[string]float64{
			"sluice_tenant_depth":               {"a": 5, odd: 2, "absent": 0, "other": 8},
			"sluice_tenant_running":             {"a": 1, odd: 2, "absent": 0, "other": 0},
			"sluice_tenant_dead_letters":        {"a": 2, odd: 1, "absent": 0, "other": 12},
			"sluice_tenant_oldest_wait_seconds": {"a": 3, odd: 0, "absent": 0, "other": 9},
			"sluice_tenant_rate_ratio":          {"a": 0.5, odd: 0.5, "absent": 0},
			"sluice_oldest_wait_seconds":        {"": 9},
			"sluice_dead_letters":               {"": 15},
		} {
			if diff := cmp.Diff(want, series(t, r, name)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		if twice := newShown([]string{"\xff", odd}, 0).tenants(); len(twice) != 1 {
			t.Errorf("one label for %q", twice)
		}
		r = m.registry(t, newShown(nil, 0))
		got := series(t, r, "sluice_tenant_depth")
		if len(got) > 0 || series(t, r, "sluice_dead_letters")[""] != 15 {
			t.Errorf("without tenants: %v", got)
		}
	})
}

// The deepest are shown, but clients that make up names make no more series than there are places,
// in ten minutes.
func TestTopTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &many{}
		fill := func(prefix string, depth int64) {
			m.briefs = nil
			for i := range 50 {
				m.briefs = append(m.briefs, queue.Brief{
					Name: fmt.Sprintf("%s%02d", prefix, i), Figures: queue.Figures{Depth: depth + int64(i)},
				})
			}
		}
		fill("a", 1)
		r := m.registry(t, newShown([]string{"named"}, 3))
		names := func() string {
			<-time.After(30 * time.Second)
			got := series(t, r, "sluice_tenant_depth")
			var sum float64
			for _, depth := range got {
				sum += depth
			}
			totals, _ := m.Totals(t.Context())
			if sum != float64(totals.Depth) {
				t.Errorf("the series add up to %v of %d jobs", sum, totals.Depth)
			}
			var names []string
			for name := range got {
				names = append(names, name)
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		if got := names(); got != "a47 a48 a49 other" {
			t.Errorf("shown are %s", got)
		}
		seen := map[string]bool{}
		for round := range 19 {
			fill(fmt.Sprintf("x%d-", round), 100)
			for name := range strings.FieldsSeq(names()) {
				seen[name] = true
			}
		}
		if len(seen) != 4 {
			t.Errorf("in less than ten minutes there were series of %v", seen)
		}
		fill("b", 100)
		if got := names(); got != "b47 b48 b49 other" {
			t.Errorf("after ten minutes shown are %s", got)
		}
		m.briefs[0].Depth = 1000
		<-time.After(holdSlot)
		if got := names(); got != "b00 b48 b49 other" {
			t.Errorf("after one has grown shown are %s", got)
		}
	})
}

// A scan that takes long is spread over scrapes, and after its end there is a rest.
func TestScanIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &many{step: 40 * time.Millisecond}
		for i := range 95 { // ten steps: 400 ms
			m.briefs = append(m.briefs, queue.Brief{Name: fmt.Sprint(i), Figures: queue.Figures{Depth: 1, Dead: 1}})
		}
		r := m.registry(t, newShown(nil, 0))
		for i, want := range []struct {
			steps int
			known bool
		}{{5, false}, {10, true}, {10, true}, {10, true}} {
			begin := time.Now()
			dead, known := series(t, r, "sluice_dead_letters")[""]
			if m.steps != want.steps || known != want.known || known && dead != 95 {
				t.Errorf("scrape %d: %d steps, %v dead (known: %v)", i, m.steps, dead, known)
			}
			if took := time.Since(begin); took > scrapeBudget+m.step {
				t.Errorf("scrape %d took %v", i, took)
			}
			<-time.After(2 * time.Second)
		}
		<-time.After(8 * time.Second)
		if series(t, r, ""); m.steps != 15 {
			t.Errorf("%d steps after the rest", m.steps)
		}
		m.fail = true
		<-time.After(2 * time.Second)
		if dead := series(t, r, "sluice_dead_letters")[""]; dead != 95 {
			t.Errorf("%v dead while the next scan cannot go on", dead)
		}
		m.fail = false
		<-time.After(2 * time.Second)
		if series(t, r, ""); m.steps != 21 {
			t.Errorf("%d steps at the end of the second", m.steps)
		}
	})
}
