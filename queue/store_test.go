package queue_test

import (
	"bytes"
	"testing"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestStoreCountsWhatIsStored: until it is read again, what came in counts as it is stored, which
// is less than it was sent as.
func TestStoreCountsWhatIsStored(t *testing.T) {
	q := embedded(t, func(o *queue.Options) {
		o.Shards, o.CompressOver, o.Store = 1, 100, queue.StoreBounds{Bytes: 10_000}
	})
	large := work()
	large.Payload = []byte(`"` + string(bytes.Repeat([]byte("a"), 20_000)) + `"`)
	for range 5 {
		if v, err := q.Submit(t.Context(), large); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit: %+v, %v", v, err)
		}
	}
}
