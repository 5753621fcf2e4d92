package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/queue"
)

// A shard whose polls fail at damaged data is logged in a few lines, and the other shards go on. It
// recovers after a repair, and the worker stops without waiting for it.
func TestADamagedShardIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(2)
		var log bytes.Buffer
		q.shards[0].damaged = true
		r := startRig(t, q, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, succeed)
		pass(time.Second)
		for i := range 10 {
			q.put(0, fmt.Sprint("bad", i), time.Second)
			q.put(1, fmt.Sprint("good", i), time.Second)
			q.wakes <- queue.Wake{Shard: 1}
		}
		pass(90 * time.Second)
		if s := q.settlements(); len(s) != 10 || !strings.HasPrefix(s[0].ID, "good") {
			t.Errorf("%d settled beside a damaged shard, want 10", len(s))
		}
		q.set(func() { q.shards[0].damaged = false })
		pass(time.Second)
		if s := q.settlements(); len(s) != 20 {
			t.Errorf("%d settled after the repair, want 20", len(s))
		}
		q.set(func() { q.shards[0].damaged = true })
		pass(time.Minute)
		start := time.Now()
		r.end(t)
		if took := time.Since(start); took > time.Second {
			t.Errorf("the worker took %v to end", took)
		}
		if n := strings.Count(log.String(), "stored data is damaged"); n < 2 || n > 5 {
			t.Errorf("the damage was logged %d times in three minutes:\n%s", n, &log)
		}
		if strings.Contains(log.String(), "redis is away") {
			t.Errorf("the damage was taken for an outage:\n%s", &log)
		}
	})
}

// TestADamagedItemIsLogged: with its name and error, once in a burst.
func TestADamagedItemIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		var log bytes.Buffer
		q.shards[0].aside = []string{"flow acme/default: WRONGTYPE of a key"}
		r := startRig(t, q, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, succeed)
		pass(50 * time.Second)
		defer r.end(t)
		n := strings.Count(log.String(), `kind="flow acme/default"`)
		if n != 1 || !strings.Contains(log.String(), `error="WRONGTYPE of a key"`) {
			t.Errorf("the damage was logged %d times, want once with its error:\n%s", n, &log)
		}
	})
}

// TestADamagedSettlementIsGivenUp: it is counted and logged once, its slot is free again, and the
// others are settled.
func TestADamagedSettlementIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		var log bytes.Buffer
		q.damaged = map[string]bool{"37": true, "38": true}
		for i := range 100 {
			q.put(0, fmt.Sprint(i), time.Second)
		}
		r := startRig(t, q, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, succeed)
		pass(time.Minute)
		if s := q.settlements(); len(s) != 98 {
			t.Errorf("%d settled, want 98", len(s))
		}
		if n := testutil.ToFloat64(r.metrics.deliveries[outcomeGivenUp]); n != 2 {
			t.Errorf("%v given up, want 2", n)
		}
		r.end(t)
		if n := strings.Count(log.String(), "settlements were given up"); n != 1 {
			t.Errorf("it was logged %d times, want once:\n%s", n, &log)
		}
		if strings.Contains(log.String(), "redis is away") {
			t.Errorf("the damage was taken for an outage:\n%s", &log)
		}
	})
}
