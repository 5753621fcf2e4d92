package callback

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/shaper"
)

// TestArchiveIsShared: a tenant, or all guests, fill no more than their part of the archive, and
// others find room.
func TestArchiveIsShared(t *testing.T) {
	a, now := newArchive(), time.Now()
	count := func(name func(i int) string) (taken int) {
		for i := range 12 * archivePart {
			if a.takes(name(i), now) {
				taken++
			}
		}
		return taken
	}
	for what, name := range map[string]func(i int) string{
		"a tenant": func(int) string { return "acme" },
		"guests":   func(i int) string { return fmt.Sprint("guest:192.0.2.", i%250) },
	} {
		if n := count(name); n != archivePart {
			t.Errorf("%s: %d are archived", what, n)
		}
	}
	if !a.takes("other", now) {
		t.Error("a tenant finds no room")
	}
	if now = now.Add(25 * time.Hour); count(func(int) string { return "acme" }) != archivePart {
		t.Error("a day later there is no room")
	}
}

// TestCallbackBeyondItsPart: once the archive is half full, a callback beyond the part of its
// tenant is deleted when it is given up, and what others have there stays.
func TestCallbackBeyondItsPart(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(410)
		s := b.service(Config{})
		defer b.run(s)()
		for n := range int64(2) {
			b.handOver(s, completion(shaper.Dead, n))
		}
		b.pass(10 * time.Second)
		for s.archive.takes("acme", time.Now()) { // its part is used up
		}
		key := "asynq:{" + Queue + "}:archived"
		for i := range archiveHalf {
			b.redis.ZAdd(b.Context(), key, redis.Z{Score: float64(time.Now().Unix()), Member: fmt.Sprint("of others ", i)})
		}
		b.handOver(s, completion(shaper.Dead, 2))
		b.pass(10 * time.Second)
		if n := b.redis.ZCard(b.Context(), key).Val(); n != archiveHalf+2 || len(b.got()) != 3 {
			t.Errorf("%d are archived after %d requests", n, len(b.got()))
		}
		if n := testutil.ToFloat64(s.metrics.attempts.WithLabelValues(deleted)); n != 1 {
			t.Errorf("%v were deleted", n)
		}
	})
}
