package worker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

// pacerRig is a pacer that notes what it does with its jobs.
type pacerRig struct {
	*pacer

	mu       sync.Mutex
	departed []string
	late     []time.Duration
	dropped  []string
}

func startPacer(w waiter, horizon, margin time.Duration) *pacerRig {
	r := &pacerRig{}
	r.pacer = newPacer(stopwatch{start: time.Now()}, w, horizon, margin, func(j *job) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.departed = append(r.departed, j.lease.ID)
		r.late = append(r.late, r.watch.now().since(j.at))
	}, func(j *job) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dropped = append(r.dropped, j.lease.ID)
	})
	go r.run()
	return r
}

// job is one that leaves in d, its lease ending after another while.
func (r *pacerRig) job(id string, d, lease time.Duration) *job {
	at := r.watch.now().add(d)
	j := &job{lease: queue.Lease{LeaseRef: queue.LeaseRef{ID: id}}, at: at}
	j.deadline.Store(int64(at.add(lease)))
	return j
}

func TestPacerReleasesAtTheInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPacer(newTimerWaiter(), 20*time.Millisecond, time.Second)
		want := make([]string, 200)
		batches := make([][]*job, 50)
		for i := range want {
			// Up to four of each instant: those leave side by side.
			want[i] = fmt.Sprintf("%03d", i)
			at := time.Duration(1+i/4) * time.Millisecond
			if i < len(want)/2 {
				at = time.Duration(1+i) * 100 * time.Microsecond
			}
			batches[i/4] = append(batches[i/4], r.job(want[i], at, time.Minute))
		}
		for _, i := range rand.Perm(len(batches)) {
			r.add(batches[i])
			synctest.Wait() // asleep until the earliest job so far: an earlier one must wake it
		}
		pass(time.Second)
		r.stop(0)
		<-r.ended
		if slices.Sort(r.departed); !slices.Equal(r.departed, want) {
			t.Errorf("departed %v", r.departed)
		}
		if late := slices.Max(r.late); late != 0 {
			t.Errorf("the latest departure was %v late", late)
		}
	})
}

// TestReleasesInOrder: by instant, and first come, first served within one.
func TestReleasesInOrder(t *testing.T) {
	p := newPacer(stopwatch{start: time.Now()}, newTimerWaiter(), 0, 0, nil, nil)
	came := map[*job]int{}
	for i, at := range rand.Perm(200) {
		j := &job{at: moment(at / 4)}
		came[j] = i
		p.add([]*job{j})
	}
	for i, next := range p.jobs[1:] {
		if last := p.jobs[i]; last.at > next.at || last.at == next.at && came[last] > came[next] {
			t.Fatalf("%v, added as number %d, is before %v, number %d", last.at, came[last], next.at, came[next])
		}
	}
	if len(p.jobs) != 200 {
		t.Errorf("%d jobs, want 200", len(p.jobs))
	}
}

// TestPacerGoesOnBesideADelivery: a delivery that takes long keeps no other from leaving at its
// stamp.
func TestPacerGoesOnBesideADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPacer(newTimerWaiter(), 20*time.Millisecond, time.Second)
		note := r.deliver
		r.deliver = func(j *job) {
			note(j)
			pass(time.Minute)
		}
		var jobs []*job
		for i := range 10 {
			jobs = append(jobs, r.job(fmt.Sprint(i), time.Duration(1+i)*time.Millisecond, time.Hour))
		}
		r.add(jobs)
		pass(time.Second)
		if r.mu.Lock(); len(r.departed) != len(jobs) || slices.Max(r.late) != 0 {
			t.Errorf("departed %v, late by %v", r.departed, r.late)
		}
		r.mu.Unlock()
		r.stop(0)
		<-r.ended
		pass(time.Hour) // the deliveries end
	})
}

// TestQuietIsMidwayBetweenDepartures: work that may be delayed or done early runs midway between
// two departures.
func TestQuietIsMidwayBetweenDepartures(t *testing.T) {
	const ms = moment(time.Millisecond)
	many := make([]moment, crowd+1)
	for i := range many {
		many[i] = moment(i) * ms
	}
	for _, c := range []struct {
		name string
		held []moment
		near moment
		want moment
	}{
		{"nothing is held", nil, 100 * ms, 100 * ms},
		{"at a departure of a slow flow", []moment{100 * ms}, 100 * ms, 102 * ms},
		{"just before a departure of a slow flow", []moment{100*ms + 1}, 100 * ms, 98 * ms},
		{"at one of a flow that departs every 3 ms", []moment{97 * ms, 103 * ms, 100 * ms, 94 * ms}, 100 * ms,
			101*ms + ms/2},
		{"just before one of them", []moment{97 * ms, 103 * ms, 100 * ms, 94 * ms}, 100*ms - 2, 98*ms + ms/2},
		{"midway", []moment{99 * ms, 101 * ms}, 100 * ms, 100 * ms},
		{"far from all", []moment{10 * ms, 200 * ms}, 100 * ms, 100 * ms},
		{"in a crowd", many, 30 * ms, 30 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPacer(stopwatch{}, nil, 0, 0, nil, nil)
			for _, at := range c.held {
				p.jobs = slices.Insert(p.jobs, p.until(at), &job{at: at})
			}
			if got := p.quiet(c.near, 2*time.Millisecond); got != c.want {
				t.Errorf("%v, want %v", time.Duration(got), time.Duration(c.want))
			}
		})
	}
}

func TestPacerDropsLateJobs(t *testing.T) {
	const horizon, margin = 20 * time.Millisecond, time.Second
	tests := []struct {
		name      string
		at, lease time.Duration
		departs   bool
	}{
		{"at its stamp", 5 * time.Millisecond, time.Minute, true},
		{"a horizon ago", -horizon, time.Minute, true},
		{"more than a horizon ago", -horizon - 1, time.Minute, false},
		{"just enough lease", 5 * time.Millisecond, margin, true},
		{"lease nearly over", 5 * time.Millisecond, margin - 1, false},
		{"lease over", 5 * time.Millisecond, -1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startPacer(newTimerWaiter(), horizon, margin)
				r.add([]*job{r.job("x", tt.at, tt.lease)})
				pass(time.Second)
				r.stop(0)
				<-r.ended
				if departed := len(r.departed) == 1; departed != tt.departs || len(r.departed)+len(r.dropped) != 1 {
					t.Errorf("departed %v, dropped %v", r.departed, r.dropped)
				}
			})
		})
	}
}

func TestMargin(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		time.Second: 200 * time.Millisecond, 3 * time.Second: 600 * time.Millisecond,
		10 * time.Second: 2 * time.Second, 30 * time.Second: 3 * time.Second, time.Minute: 6 * time.Second,
	} {
		if got := (Config{Lease: lease}).margin(); got != want {
			t.Errorf("a lease of %v must have %v left to depart, want %v", lease, got, want)
		}
	}
}

// TestPacerStop: what leaves before the end still does, though it comes after the stop, and only
// that.
func TestPacerStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPacer(newTimerWaiter(), 20*time.Millisecond, time.Second)
		r.add([]*job{
			r.job("left", time.Millisecond, time.Minute), r.job("later", time.Hour, time.Minute),
			r.job("soon", 1030*time.Millisecond, time.Minute),
		})
		pass(time.Second)
		if left := r.stop(50 * time.Millisecond); len(left) != 1 || left[0].lease.ID != "later" {
			t.Errorf("given back: %v", left)
		}
		refused := r.add([]*job{
			r.job("in time", 40*time.Millisecond, time.Minute),
			r.job("too late", 60*time.Millisecond, time.Minute),
		})
		if len(refused) != 1 || refused[0].lease.ID != "too late" {
			t.Errorf("refused: %v", refused)
		}
		begun := time.Now()
		<-r.ended
		if d := time.Since(begun); d != 50*time.Millisecond {
			t.Errorf("ended after %v", d)
		}
		synctest.Wait()
		if late := slices.Max(r.late); !slices.Equal(r.departed, []string{"left", "soon", "in time"}) || late != 0 {
			t.Errorf("departed %v, late by up to %v", r.departed, late)
		}
		if overdue := r.add([]*job{r.job("overdue", -time.Second, time.Minute)}); len(overdue) != 1 {
			t.Error("a pacer that has ended took a job")
		}
	})
}

// TestSystemWaiter runs the pacer as in production: nothing leaves before its instant, an earlier
// job cuts the sleep short, and an idle pacer ends at once. How late it is depends on the machine
// and is for the benchmarks.
func TestSystemWaiter(t *testing.T) {
	r := startPacer(newWaiter(), time.Hour, 0)
	far := r.job("far", time.Hour, time.Hour)
	r.add([]*job{far})
	var jobs []*job
	for i := range 300 {
		jobs = append(jobs, r.job(fmt.Sprintf("%03d", i), time.Duration(i+1)*100*time.Microsecond, time.Hour))
	}
	want := make([]string, len(jobs))
	for i, j := range jobs {
		want[i] = j.lease.ID
	}
	rand.Shuffle(len(jobs), func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
	all := make(chan struct{})
	note := r.deliver
	var n atomic.Int64
	r.deliver = func(j *job) {
		note(j)
		if n.Add(1) == int64(len(jobs)) {
			close(all)
		}
	}
	for batch := range slices.Chunk(jobs, 7) {
		r.add(batch)
	}
	<-all
	if left := r.stop(0); len(left) != 1 || left[0] != far {
		t.Errorf("left over: %v", left)
	}
	<-r.ended
	if early := slices.Min(r.late); early < 0 {
		t.Errorf("a job left %v too early", -early)
	}
	t.Logf("late by at most %v", slices.Max(r.late))
}

func BenchmarkPacer(b *testing.B) {
	var w sync.WaitGroup
	p := newPacer(stopwatch{start: time.Now()}, newWaiter(), time.Hour, 0, func(*job) { w.Done() }, nil)
	go p.run()
	defer p.stop(0)
	b.ReportAllocs()
	j := &job{}
	j.deadline.Store(int64(never))
	batch := slices.Repeat([]*job{j}, 100)
	for b.Loop() {
		w.Add(len(batch))
		p.add(batch)
		w.Wait()
	}
}
