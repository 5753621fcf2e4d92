package worker

import (
	"fmt"
	"testing"
)

func TestOwnershipIsEvenAndMovesLittle(t *testing.T) {
	const shards = 4096
	var live []string
	for i := range 8 {
		live = append(live, fmt.Sprintf("WORKER%02dQX7", i))
	}
	before := make([]string, shards)
	count := map[string]int{}
	for n := range before {
		before[n] = owner(live, n)
		count[before[n]]++
	}
	for _, w := range live {
		if share := shards / len(live); count[w] < share*3/4 || count[w] > share*5/4 {
			t.Errorf("%s owns %d shards, want about %d", w, count[w], share)
		}
	}
	gone := live[3]
	rest := append(append([]string(nil), live[:3]...), live[4:]...)
	for n, was := range before {
		now := owner(rest, n)
		if was != gone && now != was {
			t.Fatalf("shard %d moved from %s to %s, though %s left", n, was, now, gone)
		}
		if now == gone {
			t.Fatalf("shard %d belongs to a worker that has left", n)
		}
	}
	if got := owner(nil, 7); got != "" {
		t.Errorf("without workers the owner is %q", got)
	}
}

// TestWeightNeverChanges holds the hash: workers of different versions must agree on the owners.
func TestWeightNeverChanges(t *testing.T) {
	for _, tt := range []struct {
		worker string
		shard  int
		want   uint64
	}{
		{"", 0, 0xaca6d6b54be3ed05}, {"a", 0, 0x3025e00c34f88fc7}, {"a", 1, 0xf51ad0923bcb8eb5},
		{"worker", 63, 0xf0c9582b902c7dff},
	} {
		if got := weight(tt.worker, tt.shard); got != tt.want {
			t.Errorf("weight(%q, %d) = %#x, want %#x", tt.worker, tt.shard, got, tt.want)
		}
	}
}
