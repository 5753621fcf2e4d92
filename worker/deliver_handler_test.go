package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var handlerLease = queue.Lease{
	LeaseRef: queue.LeaseRef{ID: "job-1", Epoch: 7}, Tenant: "acme", Route: "default", Type: "order.create",
	Payload: []byte(`{"sku":"secret"}`),
	Attempt: 2, MaxAttempts: 9, Stamp: shaper.InstantOf(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)),
}

// serve runs one job by a handler.
func serve(ctx context.Context, cfg Config, h asynq.HandlerFunc) queue.Settlement {
	cfg.Handler = h
	cfg = cfg.withDefaults()
	route := Route{Handler: true, Retry: Retry{MaxAttempts: 3}}.withDefaults()
	panics := burstlog.New(cfg.Logger, slog.LevelError, "deliveries panicked", nil)
	defer panics.Flush()
	return newHandlerDeliverer(route, cfg, cfg.Logger, panics).Deliver(ctx, &handlerLease)
}

// brokenError is an error whose text cannot be had.
type brokenError struct{ text *string }

func (e brokenError) Error() string { return *e.text }

func TestHandlerResults(t *testing.T) {
	mux := asynq.NewServeMux()
	mux.HandleFunc("image.", func(context.Context, *asynq.Task) error { return nil })
	tests := []struct {
		name    string
		handler asynq.HandlerFunc
		event   shaper.Event
		message string
	}{
		{"nil", func(context.Context, *asynq.Task) error { return nil }, shaper.Succeed, ""},
		{"error", func(context.Context, *asynq.Task) error {
			return errors.New("no stock")
		}, shaper.Retry, "no stock"},
		{"skip", func(context.Context, *asynq.Task) error {
			return asynq.SkipRetry
		}, shaper.Die, "skip retry for the task"},
		{"wrapped skip", func(context.Context, *asynq.Task) error {
			return fmt.Errorf("bad sku: %w", asynq.SkipRetry)
		}, shaper.Die, "bad sku: skip retry for the task"},
		{"revoke", func(context.Context, *asynq.Task) error {
			return fmt.Errorf("sold out: %w", asynq.RevokeTask)
		}, shaper.Succeed, "sold out: revoke task"},
		{"no handler", mux.ProcessTask, shaper.Die, `handler not found for task "order.create"`},
		{"panic", func(_ context.Context, task *asynq.Task) error {
			panic(string(task.Payload()))
		}, shaper.Retry, "panic"},
		{"runtime error", func(_ context.Context, task *asynq.Task) error {
			_ = task.Payload()[99]
			return nil
		}, shaper.Retry, "panic: runtime error: index out of range [99] with length 16"},
		{"result", func(_ context.Context, task *asynq.Task) error {
			_, err := task.ResultWriter().Write(nil)
			return err
		}, shaper.Retry,
			"panic: the handler uses the task's ResultWriter, which only asynq's own server has"},
		{"result's id", func(_ context.Context, task *asynq.Task) error {
			return errors.New(task.ResultWriter().TaskID())
		}, shaper.Retry,
			"panic: the handler uses the task's ResultWriter, which only asynq's own server has"},
		{"broken error", func(context.Context, *asynq.Task) error {
			return brokenError{}
		}, shaper.Retry, "panic: runtime error: invalid memory address or nil pointer dereference"},
		{"goexit", func(context.Context, *asynq.Task) error {
			runtime.Goexit()
			return nil
		}, shaper.Retry, "the handler ended its goroutine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			s := serve(t.Context(), Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, tt.handler)
			queuetest.Compare(t, "the settlement", queuetest.Only(s, "LeaseRef", "Event", "MaxAttempts", "Response"),
				queue.Settlement{LeaseRef: handlerLease.LeaseRef, Event: tt.event, MaxAttempts: 3})
			queuetest.Compare(t, "the error", messageOf(s), tt.message)
			if s.Event == shaper.Retry && (s.Delay < 1600*time.Millisecond || s.Delay > 2400*time.Millisecond) {
				t.Errorf("tried again after %v, want the second backoff", s.Delay)
			}
			if strings.HasPrefix(tt.message, "panic") {
				if !strings.Contains(log.String(), "job=job-1") ||
					!strings.Contains(log.String(), "deliver_handler_test.go") {
					t.Errorf("the log has neither the id nor where it was: %s", &log)
				}
				// Quoting doubles the length at the most.
				if strings.Contains(log.String(), "secret") || log.Len() > 2*maxStack+500 {
					t.Errorf("the log quotes the payload or is long: %s", &log)
				}
			} else if log.Len() > 0 {
				t.Errorf("logged: %s", &log)
			}
		})
	}
}

func TestHandlerGetsItsDelivery(t *testing.T) {
	var got DeliveryInfo
	var known, deadline bool
	payload := []byte("pay|behind")
	l := handlerLease
	l.Payload, l.Headers = payload[:3], map[string]string{"X-Request-Id": "17"}
	d := newHandlerDeliverer(Route{Handler: true, Retry: Retry{MaxAttempts: 3}}.withDefaults(),
		Config{Handler: asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			got, known = Delivery(ctx)
			_, deadline = ctx.Deadline()
			if task.Type() != "order.create" || string(task.Payload()) != "pay" {
				t.Errorf("task %q with %q", task.Type(), task.Payload())
			}
			queuetest.Compare(t, "the headers of the task", task.Headers(), map[string]string{"X-Request-Id": "17"})
			_ = append(task.Payload(), "XXX"...)
			return nil
		}), Concurrency: 1}, slog.Default(), nil)
	d.Deliver(t.Context(), &l)
	want := DeliveryInfo{
		ID: "job-1", Attempt: 2, MaxAttempts: 3, Tenant: "acme", Route: "default", Type: "order.create",
		Stamp: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Headers: map[string]string{"X-Request-Id": "17"},
	}
	queuetest.Compare(t, "the context has a delivery", known, true)
	queuetest.Compare(t, "the context has a deadline", deadline, true)
	queuetest.Compare(t, "the delivery", got, want)
	if string(payload) != "pay|behind" {
		t.Errorf("the handler wrote behind its payload: %q", payload)
	}
	if _, known := Delivery(t.Context()); known {
		t.Error("a context of nobody has a delivery")
	}
}

func TestRetryDelay(t *testing.T) {
	fail := func(context.Context, *asynq.Task) error { return errors.New("no stock") }
	for _, tt := range []struct{ says, want time.Duration }{
		{time.Minute, time.Minute}, {0, 0}, {-time.Hour, 0}, {1 << 62, maxDelay},
	} {
		s := serve(t.Context(), Config{RetryDelay: func(n int, err error, task *asynq.Task) time.Duration {
			if n != 1 || err.Error() != "no stock" || task.Type() != "order.create" {
				t.Errorf("asked for %d, %v, %q", n, err, task.Type())
			}
			return tt.says
		}}, fail)
		if s.Event != shaper.Retry || s.Delay != tt.want {
			t.Errorf("%v: %+v", tt.says, s)
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	s := serve(t.Context(), Config{Logger: quiet, RetryDelay: func(int, error, *asynq.Task) time.Duration {
		panic("secret")
	}}, fail)
	queuetest.Compare(t, "the event", s.Event, shaper.Retry)
	queuetest.Compare(t, "the error of a RetryDelay that panics", messageOf(s), "panic")
	if s.Delay < time.Second {
		t.Errorf("the delay after a RetryDelay that panics is %v, want the route's backoff", s.Delay)
	}
	s = serve(t.Context(), Config{Logger: quiet, RetryDelay: func(int, error, *asynq.Task) time.Duration {
		return time.Hour
	}}, func(context.Context, *asynq.Task) error { panic("secret") })
	queuetest.Compare(t, "the event", s.Event, shaper.Retry)
	queuetest.Compare(t, "the error of a handler that panics", messageOf(s), "panic")
	queuetest.Compare(t, "the delay after it", s.Delay, time.Hour)
}

func TestHandlerIsCutOff(t *testing.T) {
	until := func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return fmt.Errorf("query: %w", ctx.Err())
	}
	synctest.Test(t, func(t *testing.T) {
		at := time.Now()
		s := serve(t.Context(), Config{}, until)
		queuetest.Compare(t, "the event", s.Event, shaper.Retry)
		queuetest.Compare(t, "the error", messageOf(s), "the handler did not end within 10s")
		queuetest.Compare(t, "the time it took", time.Since(at), 10*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s = serve(ctx, Config{}, until)
		if s.Event != shaper.Retry || s.Error.Message != "the worker stopped before the handler had ended" {
			t.Errorf("%+v, %v", s, s.Error)
		}
		// What was done was done, though late.
		s = serve(t.Context(), Config{}, func(ctx context.Context, _ *asynq.Task) error {
			<-ctx.Done()
			return nil
		})
		if s.Event != shaper.Succeed {
			t.Errorf("a handler that ended when its context did: %+v", s)
		}
	})
}

func TestHandlerThatGoesOnIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := Config{
			Concurrency: 2, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			RetryDelay: func(int, error, *asynq.Task) time.Duration { return time.Hour },
			Handler: asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				d, _ := Delivery(ctx)
				sleep(context.Background(), time.Duration(d.Attempt)*30*time.Second)
				return nil
			}),
		}
		route := Route{Handler: true, Timeout: time.Second}.withDefaults()
		d := newHandlerDeliverer(route, cfg, cfg.Logger, nil)
		at := time.Now()
		var behind sync.WaitGroup
		for range 2 {
			behind.Go(func() {
				s := d.Deliver(t.Context(), &handlerLease) // the second attempt: a minute
				queuetest.Compare(t, "the event", s.Event, shaper.Retry)
				queuetest.Compare(t, "the error", messageOf(s), "the handler did not end within 1s")
				if s.Delay > 10*time.Second {
					t.Errorf("the delay is %v, want at most 10s", s.Delay)
				}
			})
		}
		behind.Wait()
		if took := time.Since(at); took != time.Second+linger {
			t.Errorf("left behind after %v", took)
		}
		// No more than two may be left behind: the third is waited for, and has succeeded.
		at = time.Now()
		first := handlerLease
		first.Attempt = 1 // half a minute
		if s := d.Deliver(t.Context(), &first); s.Event != shaper.Succeed || time.Since(at) != 30*time.Second {
			t.Errorf("after %v: %+v", time.Since(at), s)
		}
		sleep(t.Context(), time.Minute)
		synctest.Wait()
		if len(d.left) != 0 {
			t.Errorf("%d are still counted as left behind", len(d.left))
		}
		if n := strings.Count(log.String(), "is left behind"); n != 2 || strings.Contains(log.String(), "secret") {
			t.Errorf("logged %d times: %s", n, &log)
		}
	})
}
