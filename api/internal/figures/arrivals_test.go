package figures

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// noon is the instant at which every story begins.
var noon = shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))

const everything = 1 << 30

func came(at shaper.Instant) Arrival {
	return Arrival{At: at, Cost: 1, Route: "default", Admitted: true}
}

func TestFewArrivalsAreExact(t *testing.T) {
	l := NewArrivals()
	var want simulate.Trace
	for i, after := range []time.Duration{
		0, 3 * time.Millisecond, 3*time.Millisecond + 417*time.Microsecond, time.Second, 59 * time.Minute,
	} {
		a := came(noon.Add(after))
		a.Cost, a.Admitted = int64(i+1), i%2 == 0
		l.Note("acme", a)
		want = append(want, simulate.Arrival{At: a.At, Cost: a.Cost})
	}
	// Two within a millisecond share a run, and so their cost, the greater half first.
	want[1].Cost, want[2].Cost = 3, 2
	l.Note("acme", Arrival{At: noon, Cost: 7, Route: "login"})
	l.Note("other", came(noon))
	got, from := l.Traces("acme", noon.Add(time.Hour), everything)
	diff := cmp.Diff(map[string]simulate.Trace{"default": want, "login": {{At: noon, Cost: 7}}}, got)
	if diff != "" || from != 0 {
		t.Errorf("from %d (-want +got):\n%s", from, diff)
	}
	if got, _ := l.Traces("acme", noon.Add(time.Hour+2*time.Second), everything); len(got["default"]) != 1 ||
		len(got["login"]) != 0 {
		t.Errorf("later: %v", got)
	}
	if got, _ := l.Traces("nobody", noon, everything); len(got) != 0 {
		t.Errorf("of nobody: %v", got)
	}
}

func TestTooManyArrivalsKeepTheLast(t *testing.T) {
	l := NewArrivals()
	for i := range 100 {
		l.Note("acme", came(noon.Add(time.Duration(i)*time.Second)))
		l.Note("acme", Arrival{
			At: noon.Add(time.Duration(i)*time.Second + time.Millisecond), Cost: 1, Route: "login",
		})
	}
	got, from := l.Traces("acme", noon.Add(100*time.Second), 50)
	if from != noon.Add(75*time.Second) || len(got["default"]) != 25 || len(got["login"]) != 25 {
		t.Errorf("from %v: %d and %d", from.Sub(noon), len(got["default"]), len(got["login"]))
	}
}

// TestAClockSetBack: earlier arrivals are dropped, because their instants have no meaning. A
// little is the order of answers.
func TestAClockSetBack(t *testing.T) {
	l := NewArrivals()
	l.Note("acme", came(noon))
	l.Note("acme", came(noon.Add(-5*time.Millisecond)))
	if got, _ := l.Traces("acme", noon, everything); len(got["default"]) != 2 {
		t.Errorf("%v", got)
	}
	l.Note("acme", came(noon.Add(-time.Hour)))
	got, _ := l.Traces("acme", noon.Add(-time.Hour), everything)
	if diff := cmp.Diff(simulate.Trace{{At: noon.Add(-time.Hour), Cost: 1}}, got["default"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHistoriesLoseNoArrival: no arrival of the last hour is lost or moved by the width of a run or
// more, and a trace can be replayed.
func TestHistoriesLoseNoArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewArrivals()
		l.spare.Store(rapid.SampledFrom([]int64{0, 8, 100, spareRuns}).Draw(t, "spare"))
		spare := l.spare.Load()
		var at []shaper.Instant
		var cost int64
		now := noon
		gaps := rapid.SampledFrom([]int64{0, 10, 900, 1000, 20_000, 1_000_000, 700_000_000})
		for range rapid.IntRange(1, 30).Draw(t, "stretches") {
			gap, most := gaps.Draw(t, "gap"), gaps.Draw(t, "spread")
			for range rapid.IntRange(1, 60).Draw(t, "arrivals") {
				now += shaper.Instant(gap + rapid.Int64Range(0, most).Draw(t, "more")/60)
				a := came(now)
				a.Cost = rapid.SampledFrom([]int64{1, 1, 1, 2, shaper.MaxCost}).Draw(t, "cost")
				l.Note("acme", a)
				at, cost = append(at, now), cost+a.Cost
			}
		}
		h := l.stripe("acme").tenants["acme"].flows[0]
		if len(h.runs) > cap(h.runs) || l.spare.Load()+int64(cap(h.runs)-firstRuns) != spare {
			t.Fatalf("%d runs of %d, %d of %d spare", len(h.runs), cap(h.runs), l.spare.Load(), spare)
		}
		traces, _ := l.Traces("acme", now, everything)
		got := traces["default"]
		width := shaper.Instant(1000)
		for _, r := range h.runs {
			width = max(width, shaper.Instant(r.span))
		}
		recent := at[slices.IndexFunc(at, func(i shaper.Instant) bool { return i >= now.Add(-ArrivalsAge) }):]
		if surplus := len(got) - len(recent); surplus < 0 || surplus > 0 && got[0].At < recent[0]-width {
			t.Fatalf("%d arrivals, want %d", len(got), len(recent))
		}
		for i, a := range got[len(got)-len(recent):] {
			if d := a.At - recent[i]; d > width || d < -width {
				t.Fatalf("arrival %d is %d µs off, runs are at most %d", i, d, width)
			}
		}
		var sum int64
		for i, a := range got {
			sum += a.Cost
			if a.Cost < 1 || a.Cost > shaper.MaxCost || i > 0 && a.At < got[i-1].At {
				t.Fatalf("arrival %d: %+v", i, a)
			}
		}
		if len(got) == len(at) && sum != cost {
			t.Fatalf("cost %d, want %d", sum, cost)
		}
	})
}

func TestABusyHistoryStaysBounded(t *testing.T) {
	l := NewArrivals()
	const n, step = 400_000, 30 * time.Millisecond // more than three hours
	for i := range n {
		l.Note("acme", came(noon.Add(time.Duration(i)*step)))
	}
	h := l.stripe("acme").tenants["acme"].flows[0]
	got, _ := l.Traces("acme", h.last(), everything)
	want := int(ArrivalsAge / step)
	if d := len(got["default"]) - want; cap(h.runs) > flowRuns || d < 0 || d > 20 {
		t.Errorf("%d arrivals, want %d; %d runs, width %d", len(got["default"]), want, cap(h.runs), h.width)
	}
	if h.width > 200_000 {
		t.Errorf("runs of %d µs", h.width)
	}
}

// TestAFloodOfNames: memory is bounded, and who is seen all the time is remembered.
func TestAFloodOfNames(t *testing.T) {
	l := NewArrivals()
	const names = 3 * stripes * flowsMost
	for i := range names {
		at := noon.Add(time.Duration(i) * 10 * time.Millisecond)
		l.Note(fmt.Sprint("guest:", i), came(at))
		if i%100 == 0 {
			l.Note("acme", came(at))
		}
	}
	flows, known, runs := 0, 0, 0
	for i := range l.stripes {
		s := &l.stripes[i]
		flows += s.flows
		for _, t := range s.tenants {
			known += len(t.flows)
			for _, h := range t.flows {
				runs += cap(h.runs) - firstRuns
			}
		}
	}
	if flows != known || flows != int(l.flows.Load()) || flows > stripes*flowsMost ||
		int64(runs) != spareRuns-l.spare.Load() {
		t.Errorf("%d histories, counted %d and %d; %d runs, %d spare", known, flows, l.flows.Load(), runs,
			l.spare.Load())
	}
	got, _ := l.Traces("acme", noon.Add(names*10*time.Millisecond), everything)
	if len(got["default"]) != names/100+1 {
		t.Errorf("%d of acme, want %d", len(got["default"]), names/100+1)
	}
}

// TestMemoryIsShared: when the memory is used up, an early tenant gives what is beyond its share to
// a later one.
func TestMemoryIsShared(t *testing.T) {
	l := NewArrivals()
	l.spare.Store(flowRuns - firstRuns)
	// With this number of tenants a share is an eighth of the maximum. None of them is in the
	// stripe of the two tenants under test: of a crowd only some are examined.
	for i := 0; l.flows.Load() < 2*stripes; i++ {
		if name := fmt.Sprint("other", i); l.stripe(name) != l.stripe("early") {
			l.Note(name, came(noon))
		}
	}
	for k := range flowRuns {
		l.Note("early", came(noon.Add(time.Duration(k)*10*time.Millisecond)))
	}
	late := "late"
	for l.stripe(late) != l.stripe("early") {
		late += "r"
	}
	for k := range 1000 {
		l.Note(late, came(noon.Add(time.Duration(k)*100*time.Millisecond)))
	}
	of := func(name string) *history { return l.stripe(name).tenants[name].flows[0] }
	share := int(spareRuns / l.flows.Load())
	if n := cap(of("early").runs); n >= 2*share {
		t.Errorf("who came first still has room for %d, its share is %d", n, share)
	}
	if n := cap(of(late).runs); n < 1000 {
		t.Errorf("who came later has room for %d of 1000", n)
	}
	for name, n := range map[string]int{"early": flowRuns, late: 1000} {
		if got, _ := l.Traces(name, noon.Add(time.Hour), everything); len(got["default"]) != n {
			t.Errorf("%d of %s, want %d", len(got["default"]), name, n)
		}
	}
}

func TestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewArrivals()
		begun := time.Now()
		time.Sleep(10 * time.Minute)
		if got := l.Since(time.Now()); !got.Equal(begun) {
			t.Errorf("since %v, begun at %v", got, begun)
		}
		time.Sleep(time.Hour)
		if got := l.Since(time.Now()); !got.Equal(begun.Add(10 * time.Minute)) {
			t.Errorf("since %v, begun at %v", got, begun)
		}
	})
}

func TestFollowers(t *testing.T) {
	l := NewArrivals()
	all, err := l.Follow("acme", "")
	if err != nil {
		t.Fatal(err)
	}
	login, err := l.Follow("acme", "login")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-all.News():
		t.Error("news of nothing")
	default:
	}
	notes := []Arrival{
		came(noon), {At: noon.Add(time.Microsecond), Cost: 3, Route: "login"}, came(noon.Add(time.Second)),
	}
	for _, a := range notes {
		l.Note("acme", a)
		l.Note("other", a)
	}
	<-all.News()
	got, lost := all.Take()
	if diff := cmp.Diff(notes, got); diff != "" || lost != 0 {
		t.Errorf("%d lost (-want +got):\n%s", lost, diff)
	}
	if got, _ := login.Take(); len(got) != 1 || got[0] != notes[1] {
		t.Errorf("of login: %v", got)
	}
	for range bufferMost + 5 {
		l.Note("acme", notes[0])
	}
	if got, lost := all.Take(); len(got) != bufferMost || lost != 5 {
		t.Errorf("%d, %d lost", len(got), lost)
	}
	l.Note("acme", notes[2])
	<-all.News()
	if got, lost := all.Take(); len(got) != 1 || lost != 0 {
		t.Errorf("%d, %d lost", len(got), lost)
	}
	all.Stop()
	login.Stop()
	l.Note("acme", notes[0])
	if got, _ := all.Take(); len(got) != 0 {
		t.Errorf("after the end: %v", got)
	}
}

func TestFollowersAreBounded(t *testing.T) {
	l := NewArrivals()
	var all []*Follower
	for range followsMost {
		f, err := l.Follow("nobody", "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	if _, err := l.Follow("acme", ""); !errors.Is(err, ErrTooManyFollowers) {
		t.Errorf("%v", err)
	}
	for _, f := range all {
		f.Stop()
	}
	if _, known := l.stripe("nobody").tenants["nobody"]; known {
		t.Error("what was only followed is remembered")
	}
	if f, err := l.Follow("acme", ""); err != nil {
		t.Error(err)
	} else {
		f.Stop()
	}
}

// TestManyAtOnce: nothing is lost between 64 callers and a reader.
func TestManyAtOnce(t *testing.T) {
	l := NewArrivals()
	f, err := l.Follow("acme", "")
	if err != nil {
		t.Fatal(err)
	}
	const callers, each = 64, 2000
	var wait sync.WaitGroup
	for i := range callers {
		wait.Go(func() {
			for k := range each {
				at := noon.Add(time.Duration(k) * time.Millisecond)
				l.Note("acme", came(at))
				l.Note(fmt.Sprint("t", i), came(at))
				if k%100 == 0 {
					l.Traces("acme", at, everything)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	total := int64(0)
	for over := false; !over; {
		select {
		case <-f.News():
		case <-done:
			over = true
		}
		got, lost := f.Take()
		total += int64(len(got)) + lost
	}
	if total != callers*each {
		t.Errorf("the follower got %d, want %d", total, callers*each)
	}
	if got, _ := l.Traces("acme", noon.Add(time.Hour), everything); len(got["default"]) != callers*each {
		t.Errorf("%d are remembered, want %d", len(got["default"]), callers*each)
	}
}
