package codec

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFirstsAgreeWithSort: Firsts returns the beginning of the sorted list.
func TestFirstsAgreeWithSort(t *testing.T) {
	for range 200 {
		list := make([]int, rand.IntN(60))
		for i := range list {
			list[i] = rand.IntN(20)
		}
		n := rand.IntN(30)
		want := slices.Sorted(slices.Values(list))
		if got := Firsts(list, n, cmp.Compare[int]); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("the first %d of %v are %v", n, list, got)
		}
	}
}
