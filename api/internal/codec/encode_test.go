package codec

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/api/client/wire"
)

// What is written by hand is what reflection writes.
func TestWaitingJobsAreEncodedAsAllAre(t *testing.T) {
	instants := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "none") {
			return time.Time{}
		}
		return time.UnixMicro(rapid.Int64Range(0, 1<<53).Draw(t, "µs")).UTC()
	})
	names := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]{0,70}`))
	rapid.Check(t, func(t *rapid.T) {
		j := &wire.Job{
			ID: "0192f0a1", Tenant: names.Draw(t, "tenant"), Route: names.Draw(t, "route"),
			Type:     names.Draw(t, "type"),
			State:    rapid.SampledFrom([]string{"", "queued", "dead"}).Draw(t, "state"),
			Done:     rapid.Bool().Draw(t, "done"),
			Position: rapid.Int64().Draw(t, "position"), EstimatedStart: instants.Draw(t, "start"),
			Attempts:    rapid.Int().Draw(t, "attempts"),
			MaxAttempts: rapid.Int().Draw(t, "most"), Created: instants.Draw(t, "created"),
			Scheduled: instants.Draw(t, "scheduled"),
			Started:   instants.Draw(t, "started"), Finished: instants.Draw(t, "finished"),
		}
		if rapid.IntRange(0, 9).Draw(t, "failed") == 0 {
			j.LastError = &wire.JobError{Message: "x"}
		}
		var got, want bytes.Buffer
		if !EncodeWaiting(&got, j) {
			if got.Len() > 0 {
				t.Fatalf("it wrote %q and left the rest", &got)
			}
			return
		}
		if err := Encode(&want, j); err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Fatalf("by hand:       %sby reflection: %s", &got, &want)
		}
	})
	plain := &wire.Job{
		ID: "0192f0a1", Tenant: "acme", Route: "default", Type: "order", State: "queued", Position: 1,
		MaxAttempts: 3, Created: time.UnixMicro(1).UTC(),
	}
	if !EncodeWaiting(&bytes.Buffer{}, plain) {
		t.Error("a plain job is not written by hand")
	}
}

func BenchmarkEncodeJob(b *testing.B) {
	now := time.Now().UTC()
	j := &wire.Job{
		ID: "06b1c2d3e4f5g6h7i8j9k0l1m2a1", Tenant: "acme", Route: "default", Type: "order.create",
		State: "queued", Position: 17, EstimatedStart: now, MaxAttempts: 5, Created: now,
	}
	var buf bytes.Buffer
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf.Reset()
			EncodeWaiting(&buf, j)
		}
	})
	b.Run("by reflection", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf.Reset()
			_ = Encode(&buf, j)
		}
	})
}
