package live

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var perSecond = shaper.Rate{Limit: 1, Period: time.Second}

// set changes the figures of the source.
func (s *source) set(totals queue.Totals, briefs ...queue.Brief) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals, s.briefs = &totals, briefs
}

// moments is what the hub remembers of all tenants together, without now.
func moments(h *Hub) []Moment {
	return h.Past(&Overview{At: time.Now(), Err: errors.New("of the test")})
}

// pastOf is what the hub remembers of a tenant, without now.
func pastOf(h *Hub, name string) []Sample {
	samples := h.PastOf(&Detail{At: time.Now().Add(1), Tenant: queue.Tenant{Name: name}})
	return samples[:len(samples)-1]
}

// What is read while nobody watches and nothing happens is little, and nothing of single tenants.
func TestRememberingIsCheap(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{Admitted: 7, Tenants: 1}, queue.Brief{Name: "acme", Rate: perSecond})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(2 * time.Minute)
		begun := s.count("totals")
		pass(10 * time.Minute)
		if n := s.count("totals") - begun; n != 60 || s.count("scan") != 1 || s.count("health") != s.count("totals") || s.count("dead letters") != 0 {
			t.Errorf("read %v, %d of it in ten minutes", s.asked, n)
		}
		if past := moments(h); len(past) != 30 || past[1].At.Sub(past[0].At) != idleEvery || past[29].Admitted != 7 {
			t.Errorf("%d moments: %+v", len(past), past)
		}
		if o := h.Overview(t.Context()); o.Dead == nil || *o.Dead != 3 {
			t.Error("nobody has counted the dead letters, though somebody wants to know")
		}
		if past := pastOf(h, "acme"); len(past) != 30 {
			t.Errorf("%d samples of an idle tenant", len(past))
		}
	})
}

// A scan takes at most a hundredth of the store's time, however many tenants there are.
func TestRememberingManyIsRare(t *testing.T) {
	s := newSource() // something happens all the time
	s.tenants, s.takes = 30_000, 9*time.Millisecond
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(10 * time.Minute)
		if n := len(s.scan); n < 8 || n > 28 { // 30 parts of at least 9 ms
			t.Errorf("%d scans", n)
		}
	})
}

// TestHistoryIsFinerFromTheFirstJob: from the first job on, samples are as frequent as while
// somebody watches.
func TestHistoryIsFinerFromTheFirstJob(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(95 * time.Second)
		began := time.Now()
		for i := range int64(20) {
			s.set(queue.Totals{Depth: 20 - i, Admitted: 20, Departed: i}, queue.Brief{
				Name: "acme", Capacity: 50, Rate: perSecond, Figures: queue.Figures{Depth: 20 - i, Admitted: 20, Departed: i},
			})
			h.Stir()
			pass(time.Second)
		}
		past := moments(h)
		since := slices.IndexFunc(past, func(m Moment) bool { return !m.At.Before(began) })
		if n := len(past) - since; n < 20 || past[since].At != began || past[since].Depth != 20 {
			t.Errorf("%d moments since the first job, of them first %+v", n, past[since])
		}
		samples := pastOf(h, "acme")
		first := slices.IndexFunc(samples, func(l Sample) bool { return l.Admitted > 0 })
		if len(samples)-first != 4 || first == 0 || samples[first].At != began || samples[len(samples)-1].Departed < 14 {
			t.Errorf("samples %+v", samples)
		}
		if samples := pastOf(h, "other"); len(samples) == 0 || samples[0].Depth != 0 {
			t.Errorf("samples of an unknown tenant: %+v", samples)
		}
	})
}

func TestHistoryIsFinerWhileSomebodyWatches(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		w := begin(t, h, View{Scan: true})
		pass(10*time.Second + time.Millisecond)
		if past := moments(h); len(past) != 11 || s.count("totals") > 43 {
			t.Errorf("%d moments of %d readings", len(past), s.count("totals"))
		}
		if samples := pastOf(h, "t0"); len(samples) != 3 || s.count("scan") > 11 {
			t.Errorf("%d samples of %d scans", len(samples), s.count("scan"))
		}
		if o := h.Overview(t.Context()); o.Dead == nil || *o.Dead != 0 || s.count("dead letters") > 1 {
			t.Errorf("the dead letters of a scan are counted %d times again", s.count("dead letters"))
		}
		w.Close()
		s.fail(errors.New("away"))
		pass(time.Minute)
		if past := moments(h); len(past) != 11 {
			t.Errorf("%d moments, of when the store was away", len(past))
		}
		s.fail(nil)
		pass(20 * time.Second)
		if past := moments(h); !past[11].Gap || past[12].Gap {
			t.Errorf("what was not seen appears as if it was: %+v", past[10:])
		}
		if samples := pastOf(h, "t0"); len(samples) < 4 || !samples[3].Gap || samples[2].Gap {
			t.Errorf("what was not seen of a tenant appears as if it was: %+v", samples)
		}
		s.fail(errors.New("away"))
		pass(pastKept)
		if past, samples := moments(h), pastOf(h, "t0"); len(past) != 0 || len(samples) != 0 {
			t.Errorf("%d moments and %d samples are too old", len(past), len(samples))
		}
	})
}

// TestSamplesAgreeWithScans: the samples hold the figures of the scans, in bounded memory.
func TestSamplesAgreeWithScans(t *testing.T) {
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		const most = 40
		l := newSamples(most)
		type scan struct {
			instant
			briefs []queue.Brief
		}
		var all []scan
		now, lost, known := time.Unix(1_000_000, 0), false, map[string]queue.Brief{}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(5, 40).Draw(t, "seconds"))*time.Second + time.Millisecond)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				l.note(nil, errors.New("away"))
				lost = len(all) > 0
				continue
			case 1, 2: // nothing has happened
				l.still(now)
				if len(all) == 0 {
					continue
				}
			default:
				for _, name := range names {
					switch rapid.IntRange(0, 4).Draw(t, name) {
					case 0:
						delete(known, name)
					case 1, 2:
						b := known[name]
						b.Name, b.Capacity, b.Rate = name, 100, perSecond
						b.Admitted++
						b.Depth = rapid.Int64Range(0, 9).Draw(t, "depth")
						known[name] = b
					}
				}
				var briefs []queue.Brief
				for _, name := range names {
					if b, is := known[name]; is {
						briefs = append(briefs, b)
					}
				}
				l.note(&Scan{At: now, Briefs: briefs, read: slices.Repeat([]time.Time{now}, len(briefs))}, nil)
			}
			c := scan{instant: instant{now, lost}}
			for _, name := range names {
				if b, is := known[name]; is {
					c.briefs = append(c.briefs, b)
				}
			}
			all, lost = append(all, c), false
			all = slices.DeleteFunc(all, func(c scan) bool { return now.Sub(c.at) > pastKept })
			if l.count > most {
				t.Fatalf("%d samples", l.count)
			}
			count := 0
			for _, known := range l.tenants {
				count += len(known)
			}
			if count != l.count || len(l.instants) > len(all) || l.count < most/2 && len(l.instants) != len(all) {
				t.Fatalf("%d samples of %d counted, %d instants of %d", count, l.count, len(l.instants), len(all))
			}
			told := all[len(all)-len(l.instants):]
			for _, name := range names {
				present := Sample{At: now.Add(1), Gap: lost, Depth: 1, Capacity: 7}
				got := l.of(name, present)
				want := make([]Sample, len(told)+1)
				want[len(told)] = present
				here := true // until the store forgot the tenant, looking back
				for i, c := range slices.Backward(told) {
					k := slices.IndexFunc(c.briefs, func(b queue.Brief) bool { return b.Name == name })
					if here = here && k >= 0; here {
						want[i] = sampleAt(c.at, &c.briefs[k])
					} else { // it had no jobs, and what it may have is as later
						want[i] = want[i+1]
						want[i].At, want[i].Depth, want[i].Admitted = c.at, 0, 0
					}
					want[i].Gap = c.gap
				}
				if !slices.Equal(got, want) {
					t.Fatalf("samples of %q:\n%+v, want\n%+v", name, got, want)
				}
			}
		}
	})
}
