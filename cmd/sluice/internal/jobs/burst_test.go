package jobs

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
)

// upTo accepts the first n submissions and refuses the others.
func upTo(n int64) func(context.Context, int) (wire.Job, error) {
	var taken atomic.Int64
	return func(_ context.Context, i int) (wire.Job, error) {
		if taken.Add(1) > n {
			return wire.Job{}, &refusedError{kind: queueFull, err: errors.New("full")}
		}
		return wire.Job{ID: strconv.Itoa(i)}, nil
	}
}

// endedAs ends each job in the state, the n-th n·100 ms after the others.
func endedAs(state string) func(context.Context, string) (wire.Job, error) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return func(_ context.Context, id string) (wire.Job, error) {
		n, err := strconv.Atoi(id)
		return wire.Job{ID: id, Done: true, State: state, Created: began,
			Started: began.Add(time.Duration(n+1) * 100 * time.Millisecond)}, err
	}
}

// The summary of a burst has the ends of its jobs, their rate and their waits.
func TestBurst(t *testing.T) {
	b := &burst{
		n: 10, concurrency: 3, follow: true, patience: time.Minute, submit: upTo(10),
		await: endedAs("succeeded"),
	}
	s := b.run(t.Context(), io.Discard)
	queuetest.Compare(t, "it went well", s.ok(), true)
	queuetest.Compare(t, "accepted jobs", s.Accepted, 10)
	queuetest.Compare(t, "ends", s.Ended, map[string]int{"succeeded": 10})
	queuetest.Compare(t, "all jobs were followed", s.Followed, true)
	queuetest.Compare(t, "departures a second", s.DepartureS, 10)
	queuetest.Compare(t, "median and 99th percentile of the waits", []int64{s.WaitP50MS, s.WaitP99MS},
		[]int64{500, 1000})
	var text strings.Builder
	if err := s.print(&text); err != nil || !strings.Contains(text.String(), "10.00/s") {
		t.Errorf("printed %q, %v", text.String(), err)
	}
}

func TestBurstFullQueueIsNoFailure(t *testing.T) {
	b := &burst{
		n: 10, concurrency: 3, follow: true, patience: time.Minute, submit: upTo(4),
		await: endedAs("succeeded"),
	}
	s := b.run(t.Context(), io.Discard)
	queuetest.Compare(t, "it went well", s.ok(), true)
	queuetest.Compare(t, "accepted jobs", s.Accepted, 4)
	queuetest.Compare(t, "refusals", s.Refused, map[string]int{queueFull: 6})
}

// Each of these makes a burst fail. Only a refused or failed submission has an error to explain.
func TestBurstFailures(t *testing.T) {
	fail := func(err error) func(context.Context, int) (wire.Job, error) {
		return func(context.Context, int) (wire.Job, error) { return wire.Job{}, err }
	}
	never := func(ctx context.Context, _ string) (wire.Job, error) { <-ctx.Done(); return wire.Job{}, ctx.Err() }
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		name string
		ctx  context.Context
		b    burst
	}{
		{"no result", t.Context(), burst{submit: fail(errors.New("connection refused"))}},
		{"another refusal", t.Context(), burst{submit: fail(&refusedError{
			kind: "draining", err: errors.New("x"),
		})}},
		{"dead jobs", t.Context(), burst{submit: upTo(2), follow: true, await: endedAs("dead")}},
		{"no job ends", t.Context(), burst{
			submit: upTo(2), follow: true, patience: time.Millisecond, await: never,
		}},
		{"interrupted", ended, burst{submit: upTo(2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.b.n, c.b.concurrency = 2, 2
			if c.b.patience == 0 {
				c.b.patience = time.Minute
			}
			s := c.b.run(c.ctx, io.Discard)
			if s.ok() {
				t.Errorf("ok in spite of all: %+v", s)
			}
			// Else the user gets no hint, such as that the URL is that of the admin listener.
			if refused := len(s.Failed) > 0 || len(s.Refused) > 0; refused != (s.failure != nil) {
				t.Errorf("the failure to explain is %v: %+v", s.failure, s)
			}
		})
	}
}
