package handoff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/internal/ticket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var job = ticket.Ticket{Ref: queue.LeaseRef{ID: "job-1", Epoch: 7}, Within: time.Hour, MaxAttempts: 5}

// fakeReporter is a queue with one lease.
type fakeReporter struct {
	away     int  // number of calls that fail
	lost     bool // the lease is not current
	extended []time.Time
	settled  []queue.Settlement
}

func (f *fakeReporter) Extend(
	_ context.Context, leases []queue.LeaseRef, d time.Duration,
) ([]queue.LeaseRef, error) {
	if f.away > 0 {
		f.away--
		return nil, queue.ErrUnavailable
	}
	if leases[0] != job.Ref || d != job.Within {
		return nil, fmt.Errorf("extended %v by %v", leases, d)
	}
	f.extended = append(f.extended, time.Now())
	if f.lost {
		return leases, nil
	}
	return nil, nil
}

func (f *fakeReporter) Settle(_ context.Context, batch []queue.Settlement) ([]queue.SettleResult, error) {
	if f.away > 0 {
		f.away--
		return nil, queue.ErrUnavailable
	}
	result := queue.Settled
	if f.lost {
		result = queue.Stale
	}
	f.lost = true
	f.settled = append(f.settled, batch...)
	return []queue.SettleResult{result}, nil
}

// events are the settlements, in a form to compare.
func (f *fakeReporter) events() (events []shaper.Event) {
	for _, s := range f.settled {
		events = append(events, s.Event)
	}
	return events
}

func newDelivery(f *fakeReporter, last bool, log *bytes.Buffer) *delivery {
	return &delivery{
		reporter: f, ticket: job, last: last, patience: 30 * time.Second,
		log: slog.New(slog.NewTextHandler(log, nil)),
	}
}

func TestReports(t *testing.T) {
	failed := errors.New("no stock")
	tests := []struct {
		name    string
		last    bool
		result  error
		event   shaper.Event // empty: none
		message string
	}{
		{"nil", false, nil, shaper.Succeed, ""},
		{"nil, last", true, nil, shaper.Succeed, ""},
		{"error", false, failed, "", ""},
		{"error, last", true, failed, shaper.Die, "no stock"},
		{"skip", false, fmt.Errorf("bad sku: %w", asynq.SkipRetry), shaper.Die, "bad sku: skip retry for the task"},
		{"skip, last", true, asynq.SkipRetry, shaper.Die, "skip retry for the task"},
		{"revoke", false, asynq.RevokeTask, shaper.Succeed, "revoke task"},
		{"no handler", false, asynq.ErrHandlerNotFound, "", ""},
		{"long", true, errors.New(strings.Repeat("é", 500)), shaper.Die, strings.Repeat("é", 256)},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			f, log := &fakeReporter{}, &bytes.Buffer{}
			at := time.Now()
			got := newDelivery(f, tt.last, log).run(t.Context(), func() error {
				time.Sleep(10 * time.Minute)
				return tt.result
			})
			if !errors.Is(got, tt.result) || (got == nil) != (tt.result == nil) {
				t.Errorf("%s: asynq gets %v", tt.name, got)
			}
			if tt.event == "" {
				// Leased for the retry: from its start and from its end.
				if len(f.settled) != 0 || len(f.extended) != 2 || f.extended[1].Sub(at) != 10*time.Minute {
					t.Errorf("%s: settled %v, extended %v", tt.name, f.settled, f.extended)
				}
				return
			}
			if len(f.settled) != 1 {
				t.Fatalf("%s: settled %v", tt.name, f.settled)
			}
			s := f.settled[0]
			queuetest.Compare(t, tt.name+": settlement", queuetest.Only(s, "LeaseRef", "Event", "MaxAttempts"),
				queue.Settlement{LeaseRef: job.Ref, Event: tt.event, MaxAttempts: 5})
			queuetest.Compare(t, tt.name+": has an error", s.Error != nil, tt.message != "")
			if s.Error != nil && (s.Error.Message != tt.message || s.Error.At.Sub(at) != 10*time.Minute) {
				t.Errorf("%s: %+v", tt.name, s.Error)
			}
			if log.Len() > 0 {
				t.Errorf("%s: logged %s", tt.name, log)
			}
		})
	}
}

func TestStaleTaskIsSkipped(t *testing.T) {
	var log bytes.Buffer
	f := &fakeReporter{lost: true}
	err := newDelivery(f, true, &log).run(t.Context(), func() error { t.Error("it ran"); return nil })
	if err != nil || len(f.settled) != 0 || !strings.Contains(log.String(), "skipped") {
		t.Errorf("%v, settled %v, logged %s", err, f.settled, &log)
	}
}

func TestLeaseIsExtendedWhileTheHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, log := &fakeReporter{}, &bytes.Buffer{}
		at := time.Now()
		err := newDelivery(f, false, log).run(t.Context(), func() error {
			time.Sleep(90 * time.Minute)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		var after []time.Duration
		for _, e := range f.extended {
			after = append(after, e.Sub(at))
		}
		want := []time.Duration{0, 20 * time.Minute, 40 * time.Minute, time.Hour, 80 * time.Minute}
		if !slices.Equal(after, want) {
			t.Errorf("extended after %v, want %v", after, want)
		}
	})
}

func TestRedisAwayForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, log := &fakeReporter{away: 10}, &bytes.Buffer{}
		err := newDelivery(f, false, log).run(t.Context(), func() error { f.away = 10; return nil })
		if err != nil || !slices.Equal(f.events(), []shaper.Event{shaper.Succeed}) {
			t.Errorf("%v, settled %v, logged %s", err, f.settled, log)
		}
	})
}

func TestRedisStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, log := &fakeReporter{away: 1e6}, &bytes.Buffer{}
		at := time.Now()
		err := newDelivery(f, false, log).run(t.Context(), func() error { t.Error("it ran"); return nil })
		if !errors.Is(err, queue.ErrUnavailable) || time.Since(at) != 30*time.Second {
			t.Errorf("before the handler: %v after %v", err, time.Since(at))
		}
		for _, result := range []error{nil, errors.New("no stock")} {
			f.away = 0
			err = newDelivery(f, true, log).run(t.Context(), func() error { f.away = 1e6; return result })
			if result == nil && !errors.Is(err, queue.ErrUnavailable) || result != nil && err != result {
				t.Errorf("after %v: %v", result, err)
			}
		}
		if len(f.settled) != 0 || strings.Count(log.String(), "could not be reported") != 2 {
			t.Errorf("settled %v, logged %s", f.settled, log)
		}
	})
}

func TestPanicIsReportedAndGoesOn(t *testing.T) {
	for _, last := range []bool{false, true} {
		f, log := &fakeReporter{}, &bytes.Buffer{}
		func() {
			defer func() {
				if p := recover(); p != "secret" {
					t.Errorf("asynq sees the panic %v", p)
				}
			}()
			_ = newDelivery(f, last, log).run(t.Context(), func() error { panic("secret") })
		}()
		switch {
		case last &&
			(len(f.settled) != 1 || f.settled[0].Event != shaper.Die ||
				f.settled[0].Error.Message != "panic"):
			t.Errorf("settled %+v", f.settled)
		case !last && (len(f.settled) != 0 || len(f.extended) != 2):
			t.Errorf("settled %+v, extended %v", f.settled, f.extended)
		}
	}
}

// TestEndOfTheContext is asynq giving up on a handler: in time or not, in the last retry or not, or
// because its server stops.
func TestEndOfTheContext(t *testing.T) {
	cut := errors.New("cut off")
	tests := []struct {
		name     string
		last     bool
		canceled bool          // by the server's end, not by the timeout
		goesOn   time.Duration // how long the handler goes on after that
		result   error
		want     []shaper.Event
		reported time.Duration // of the first report, after the end of the context
	}{
		{"late, to be retried", false, false, 0, cut, nil, 0},
		{"late, last", true, false, 0, cut, []shaper.Event{shaper.Die, shaper.Die}, 0},
		{"never ends, last", true, false, time.Hour, cut, []shaper.Event{shaper.Die, shaper.Die}, 0},
		{"late but done", false, false, time.Second, nil, []shaper.Event{shaper.Succeed}, time.Second},
		{"server stops", false, true, time.Second, cut, nil, 0},
		{"server stops, last", true, true, time.Second, cut, nil, 0},
		{"server stops, but done", true, true, time.Second, nil, []shaper.Event{shaper.Succeed}, time.Second},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			f, log := &fakeReporter{}, &bytes.Buffer{}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if tt.canceled {
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(10*time.Second, cancel)
			}
			defer cancel()
			at := time.Now()
			err := newDelivery(f, tt.last, log).run(ctx, func() error {
				<-ctx.Done()
				synctest.Wait()
				time.Sleep(tt.goesOn)
				return tt.result
			})
			if err != tt.result || !slices.Equal(f.events(), tt.want) {
				t.Errorf("%s: %v, settled %v", tt.name, err, f.events())
			}
			if len(f.settled) > 0 && f.settled[0].Error != nil &&
				f.settled[0].Error.At.Sub(at) != 10*time.Second+tt.reported {
				t.Errorf("%s: reported after %v", tt.name, f.settled[0].Error.At.Sub(at))
			}
		})
	}
}

func TestOtherTasksPassThrough(t *testing.T) {
	want := errors.New("own business")
	h := Middleware(nil, Options{})(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return want }))
	if err := h.ProcessTask(t.Context(), asynq.NewTask("x", nil)); err != want {
		t.Error(err)
	}
}

func TestSetCost(t *testing.T) {
	f := &fakeReporter{}
	d := newDelivery(f, false, &bytes.Buffer{})
	ctx := context.WithValue(t.Context(), deliveryKey{}, d)
	err := d.run(ctx, func() error {
		for _, n := range []int64{7, 30, -1, shaper.MaxCost + 1} {
			if err := SetCost(ctx, n); (err == nil) != (n == 7 || n == 30) {
				t.Errorf("SetCost(%d): %v", n, err)
			}
		}
		return nil
	})
	if err != nil || len(f.settled) != 1 || f.settled[0].ActualCost == nil || *f.settled[0].ActualCost != 30 {
		t.Errorf("settled %+v, %v", f.settled, err)
	}
	if SetCost(t.Context(), 1) == nil {
		t.Error("a context of no task is accepted")
	}
}
