package worker

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
)

// latenessBroker is a broker that records the reported departures.
type latenessBroker struct {
	broker
	began    time.Time
	reported map[time.Duration]int64 // departures, by when
}

func (b *latenessBroker) ReportLateness(_ context.Context, _ string, l reports.Lateness) error {
	b.reported[time.Since(b.began)] = l.Sum()
	return queue.ErrUnavailable // which changes nothing
}

// A departure is reported for ten seconds, and without one nothing is reported.
func TestLatenessIsReportedForTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &latenessBroker{began: time.Now(), reported: map[time.Duration]int64{}}
		w := &Worker{broker: b, log: slog.New(slog.DiscardHandler)}
		l := &w.lateness
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); w.report(ctx) }()
		time.Sleep(time.Minute + 500*time.Millisecond)
		for range 3 {
			l.observe(time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		l.observe(-time.Millisecond)
		time.Sleep(time.Minute)
		cancel()
		<-ended
		if len(b.reported) != 15 {
			t.Errorf("reported %v", b.reported)
		}
		for s, want := range map[time.Duration]int64{60: 0, 61: 3, 65: 3, 66: 4, 70: 4, 71: 1, 75: 1, 76: 0} {
			if got := b.reported[s*time.Second]; got != want {
				t.Errorf("%d departures are reported at %d s, want %d: %v", got, s, want, b.reported)
			}
		}
	})
}

// A worker that reports its deliveries, an idle one does not: it costs Redis nothing.
func TestWorkerReportsItsLateness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{}, succeed)
		pass(time.Minute)
		if len(q.lateness) != 0 {
			t.Errorf("an idle worker has reported %d times", len(q.lateness))
		}
		for i := range 5 {
			q.put(0, string(rune('a'+i)), 10*time.Millisecond)
		}
		q.wakes <- queue.Wake{Shard: 0}
		pass(time.Minute)
		r.end(t)
		if len(q.lateness) != 10 {
			t.Fatalf("reported %d times, want 10", len(q.lateness))
		}
		queuetest.Compare(t, "the departures of the first report", q.lateness[0].Sum(), 5)
		if latest := q.lateness[0].Quantile(1); latest > time.Millisecond {
			t.Errorf("the latest departure was %v late, want at most 1ms", latest)
		}
	})
}

// TestLateForSeconds: a flow counts as late where at least a quarter of the shard's jobs miss their
// stamps for two seconds, not for a stamp that is missed now and then.
func TestLateForSeconds(t *testing.T) {
	for name, tt := range map[string]struct {
		every time.Duration // between two misses
		left  int64         // departures between them
		late  time.Duration // of the first miss that counts; 0: none does
	}{
		"all of them":            {100 * time.Millisecond, 0, 2 * time.Second},
		"one in three":           {100 * time.Millisecond, 2, 2 * time.Second},
		"one in ten":             {100 * time.Millisecond, 9, 0},
		"a slow flow":            {10 * time.Second, 0, 20 * time.Second},
		"now and then, and idle": {2 * time.Minute, 0, 0},
	} {
		var m misses
		begun, late := moment(time.Hour), time.Duration(0)
		for passed := time.Duration(0); passed < 10*time.Minute && late == 0; passed += tt.every {
			if m.miss(begun.add(passed)) {
				late = passed
			}
			m.left.Add(tt.left)
		}
		if late != tt.late {
			t.Errorf("%s: late after %v, want %v", name, late, tt.late)
		}
	}
}
