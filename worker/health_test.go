package worker

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

// deafToResigning is a consumer whose resignations take a while, and fail while fails is set.
type deafToResigning struct {
	consumer
	fails *atomic.Bool
}

func (c deafToResigning) Resign(ctx context.Context) error {
	sleep(ctx, 10*time.Millisecond)
	if c.fails.Load() {
		return queue.ErrUnavailable
	}
	return nil
}

// startResigning is startRig with such consumers.
func startResigning(t *testing.T, q *fakeQueue, log *bytes.Buffer, fails *atomic.Bool) (stop func()) {
	t.Helper()
	cfg := Config{
		Routes: map[string]Route{"default": {URL: "http://upstream.test/"}},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	w, err := newWorker(q, func(id string, n int) consumer {
		return deafToResigning{q.consumer(id, n), fails}
	}, newTimerWaiter, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestAResignationThatFailsIsNoOutage: nobody would ever tell that Redis is back, nor that it is
// away the next time.
func TestAResignationThatFailsIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(8)
		var log bytes.Buffer
		var fails atomic.Bool
		fails.Store(true)
		stop := startResigning(t, q, &log, &fails)
		pass(2 * time.Second)
		q.set(func() { q.others = []string{"a", "b", "c", "d"} }) // so that shards are lost
		pass(5 * time.Second)
		fails.Store(false)
		for _, away := range []bool{true, false} {
			q.set(func() { q.away = away })
			pass(time.Minute)
		}
		stop()
		for _, line := range []string{"redis is away", "redis is back"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%q was logged %d times for one outage:\n%s", line, n, &log)
			}
		}
	})
}

// TestAShardIsGainedBackWhileItIsResigned: the loop that ends and the one that begins share
// nothing; the race detector sees to it.
func TestAShardIsGainedBackWhileItIsResigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(8)
		var log bytes.Buffer
		var fails atomic.Bool
		fails.Store(true)
		stop := startResigning(t, q, &log, &fails)
		pass(2 * time.Second)
		// The beats come sooner than the resignations are over.
		for _, others := range [][]string{{"a", "b", "c", "d"}, nil} {
			q.set(func() { q.others = others })
			q.wakes <- queue.Wake{Shard: queue.AllShards}
			pass(5 * time.Millisecond)
		}
		pass(time.Minute)
		stop()
	})
}
