package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// TestOneByOne: what keeps Redis busy goes one exchange after the other where Redis is near, unless
// it waits for replicas, or Redis does not answer.
func TestOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast, durable := &redis.Client{}, &redis.Client{}
		for _, c := range []struct {
			kind     kind
			durable  redis.UniversalClient
			near     bool
			since    time.Duration // since Redis did not answer
			oneByOne bool
		}{
			{large, fast, true, time.Hour, true},
			{many, fast, true, time.Hour, true},
			{single, fast, true, time.Hour, false},
			{few, fast, true, time.Hour, false},
			{middling, fast, true, time.Hour, false},
			{large, fast, false, time.Hour, false},
			{large, durable, true, time.Hour, false},
			{large, fast, true, silentMemory, false},
			{large, fast, true, silentMemory + 1, true},
		} {
			q := &Queue{store: &store.Store{Fast: fast, Durable: c.durable, Near: func() bool { return c.near }}}
			f := newFlusher(q, c.kind)
			f.failed.Store(time.Now().Add(-c.since).UnixNano())
			if got := f.oneByOne(); got != c.oneByOne {
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
	} {
		batch := make([]Submission, c.jobs)
		batch[c.jobs-1].Payload = make([]byte, c.bytes)
		if got := kindOf(batch); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
