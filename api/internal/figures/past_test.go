package figures

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/queuetest"
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

// While nobody watches and nothing happens, an overview is read every ten seconds, and single
// tenants are not read again.
func TestRememberingIsCheap(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{Admitted: 7, Tenants: 1}, queue.Brief{Name: "acme", Rate: perSecond, Figures: queue.Figures{Dead: 3}})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(2 * time.Minute)
		begun := s.count("totals")
		pass(10 * time.Minute)
		queuetest.Compare(t, "overviews read in ten minutes", s.count("totals")-begun, 60)
		queuetest.Compare(t, "scans", s.count("scan"), 1)
		queuetest.Compare(t, "reads of the store's health", s.count("health"), s.count("totals"))
		past := moments(h)
		if len(past) != 30 {
			t.Fatalf("%d moments, want 30: %+v", len(past), past)
		}
		queuetest.Compare(t, "the time between two moments", past[1].At.Sub(past[0].At), idleEvery)
		queuetest.Compare(t, "admitted at the last moment", past[29].Admitted, 7)
		if o := h.Overview(t.Context()); o.Dead == nil || *o.Dead != 3 {
			t.Error("an overview lacks the dead letters of the last scan")
		}
		queuetest.Compare(t, "scans after the overview", s.count("scan"), 1)
		if past := pastOf(h, "acme"); len(past) != 30 {
			t.Errorf("%d samples of an idle tenant", len(past))
		}
	})
}

// With a job every five seconds, the store is read about once for each, and rarely scanned.
func TestRememberingFewJobsIsCheap(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(time.Minute)
		read, scans := s.count("totals"), s.count("scan")
		const jobs = 60
		for i := range int64(jobs) {
			s.set(queue.Totals{Admitted: i + 1, Departed: i, Running: 1})
			h.Stir()
			pass(100 * time.Millisecond)
			s.set(queue.Totals{Admitted: i + 1, Departed: i + 1})
			pass(4900 * time.Millisecond)
		}
		if n := s.count("totals") - read; n < jobs || n > jobs*5/4 {
			t.Errorf("%d overviews read for %d jobs", n, jobs)
		}
		if n := s.count("scan") - scans; n < 8 || n > 16 {
			t.Errorf("%d scans in five minutes", n)
		}
	})
}

// Scans for the history take at most a hundredth of the store's time, with any number of tenants.
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

// From the first job on, samples are as frequent as while somebody watches.
func TestHistoryIsFinerFromTheFirstJob(t *testing.T) {
	s := newSource()
	s.set(queue.Totals{})
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(95 * time.Second)
		began := time.Now()
		for i := range int64(20) {
			s.set(queue.Totals{Depth: 20 - i, Admitted: 20, Departed: i}, queue.Brief{
				Name: "acme", Capacity: 50, Rate: perSecond,
				Figures: queue.Figures{Depth: 20 - i, Admitted: 20, Departed: i},
			})
			h.Stir()
			pass(time.Second)
		}
		past := moments(h)
		since := slices.IndexFunc(past, func(m Moment) bool { return !m.At.Before(began) })
		if n := len(past) - since; since < 0 || n < 20 {
			t.Fatalf("%d moments since the first job, want at least 20", n)
		}
		queuetest.Compare(t, "the first moment with a job", queuetest.Only(past[since], "At", "Depth"),
			Moment{At: began, Depth: 20})
		samples := pastOf(h, "acme")
		first := slices.IndexFunc(samples, func(l Sample) bool { return l.Admitted > 0 })
		if first < 1 || len(samples)-first != 4 {
			t.Fatalf("sample %d of %d is the first with a job, want 4 from it on, and one before it",
				first, len(samples))
		}
		queuetest.Compare(t, "the time of the first sample with a job", samples[first].At, began)
		if n := samples[len(samples)-1].Departed; n < 14 {
			t.Errorf("%d jobs departed by the last sample, want at least 14", n)
		}
		if samples := pastOf(h, "other"); len(samples) == 0 || samples[0].Depth != 0 {
			t.Errorf("samples of an unknown tenant: %+v", samples)
		}
	})
}

// While somebody watches, the history keeps a moment a second of what is read anyway. An outage
// leaves a gap, and old samples are dropped.
func TestHistoryIsFinerWhileSomebodyWatches(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		w := watchOf(t, h, View{Scan: true})
		pass(10*time.Second + time.Millisecond)
		if past := moments(h); len(past) != 11 || s.count("totals") > 43 {
			t.Errorf("%d moments of %d readings", len(past), s.count("totals"))
		}
		if samples := pastOf(h, "t0"); len(samples) != 3 || s.count("scan") > 11 {
			t.Errorf("%d samples of %d scans", len(samples), s.count("scan"))
		}
		queuetest.Compare(t, "the dead letters, known from the scan", h.Overview(t.Context()).Dead,
			new(int64))
		if n := s.count("dead letters"); n > 1 {
			t.Errorf("the dead letters are counted %d times besides the scan, want at most once", n)
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
		samples := pastOf(h, "t0")
		if len(samples) < 4 {
			t.Fatalf("%d samples of a tenant, want at least 4", len(samples))
		}
		queuetest.Compare(t, "the gap of the sample before the outage", samples[2].Gap, false)
		queuetest.Compare(t, "the gap of the sample after the outage", samples[3].Gap, true)
		s.fail(errors.New("away"))
		pass(pastAge)
		if past, samples := moments(h), pastOf(h, "t0"); len(past) != 0 || len(samples) != 0 {
			t.Errorf("%d moments and %d samples are too old", len(past), len(samples))
		}
	})
}

// The samples hold the figures of the scans, in bounded memory.
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
			all = slices.DeleteFunc(all, func(c scan) bool { return now.Sub(c.at) > pastAge })
			if l.count > most {
				t.Fatalf("%d samples", l.count)
			}
			count := 0
			for _, known := range l.tenants {
				count += len(known)
			}
			if count != l.count {
				t.Fatalf("%d samples are counted, want %d", l.count, count)
			}
			if len(l.instants) > len(all) {
				t.Fatalf("%d instants, want at most %d, that of each scan", len(l.instants), len(all))
			}
			if l.count < most/2 && len(l.instants) != len(all) {
				t.Fatalf("%d instants with only %d samples, want %d, that of each scan",
					len(l.instants), l.count, len(all))
			}
			kept := all[len(all)-len(l.instants):]
			for _, name := range names {
				present := Sample{At: now.Add(1), Gap: lost, Depth: 1, Capacity: 7}
				got := l.of(name, present)
				want := make([]Sample, len(kept)+1)
				want[len(kept)] = present
				here := true // until the store forgot the tenant, looking back
				for i, c := range slices.Backward(kept) {
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
