package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// TestFewAtOnce: of what keeps Redis busy, few exchanges are under way at once where Redis is near,
// unless they wait for replicas, or Redis does not answer.
func TestFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast, durable := &redis.Client{}, &redis.Client{}
		for _, c := range []struct {
			kind    kind
			durable redis.UniversalClient
			near    bool
			since   time.Duration // since Redis did not answer
			bounded bool
		}{
			{large, fast, true, time.Hour, true},
			{many, fast, true, time.Hour, true},
			{single, fast, true, time.Hour, false},
			{few, fast, true, time.Hour, true},
			{middling, fast, true, time.Hour, false},
			{large, fast, false, time.Hour, false},
			{large, durable, true, time.Hour, false},
			{large, fast, true, silentMemory, false},
			{large, fast, true, silentMemory + 1, true},
		} {
			q := &Queue{store: &store.Store{Fast: fast, Durable: c.durable, Near: func() bool { return c.near }}}
			f := newFlusher(q, c.kind)
			f.failed.Store(time.Now().Add(-c.since).UnixNano())
			if got := f.bounded(); got != c.bounded {
				t.Errorf("%+v: %v", c, got)
			}
			close(f.closed)
			f.done.Wait()
		}
	})
}

// TestKinds: a batch goes with others that keep Redis busy for as long.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		jobs, bytes int
		want        kind
	}{
		{1, 0, single},
		{1, store.Large - 1, single},
		{1, store.Large, middling},
		{1, largeFrom, large},
		{2, 0, few},
		{fewMost, 0, few},
		{fewMost + 1, 0, many},
		{2, store.Large, middling},
		{1000, largeFrom, large},
		{1000, store.Large - 1, many},
	} {
		batch := make([]Submission, c.jobs)
		batch[c.jobs-1].Payload = make([]byte, c.bytes)
		if c.want == large { // in two parts
			batch = append(batch, batch[c.jobs-1])
			batch[c.jobs-1].Payload, batch[c.jobs].Payload = make([]byte, c.bytes/2), make([]byte, c.bytes/2)
		}
		if got := kindOf(batch); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
