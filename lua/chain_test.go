package lua_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/7509e464/sluice/internal/scripts"
)

// TestChainIsAppendedOnce: a call that is sent again appends nothing, also after others; a call
// that names another end of the chain changes nothing; removal and sums are exact.
func TestChainIsAppendedOnce(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			run := func(c scripts.ChainCall) scripts.Chain {
				t.Helper()
				c.Clock, c.Entries = "sluice:{audit}:clock", "sluice:{audit}:entries"
				call := c.Call()
				call.Script = traced[call.Script]
				values, err := scripts.Run(context.Background(), e, nil, call)
				if err != nil {
					t.Fatal(err)
				}
				got, err := c.Decode(values)
				if err != nil {
					t.Fatal(err)
				}
				got.Now = 0
				return got
			}
			name := func(n int) string { return fmt.Sprintf("%016d", n) }
			first := scripts.ChainCall{Name: name(1), Last: "h2", LastAt: "t2", Append: []string{"c1234", "r123", "f12"}}
			want := scripts.Chain{Applied: true, Hash: "h2", At: "t2", First: 1, Count: 3, Changes: 5, Reads: 4, Refusals: 3}
			for range 2 {
				if got := run(first); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
			want.Applied = false
			if got := run(scripts.ChainCall{Name: name(2), Previous: "h1", Last: "h3", LastAt: "t3", Append: []string{"c"}}); got != want {
				t.Errorf("behind another end: %+v", got)
			}
			if got := run(scripts.ChainCall{Name: name(2)}); got != want {
				t.Errorf("without entries: %+v", got)
			}
			want = scripts.Chain{Applied: true, Hash: "h3", At: "t3", First: 3, Count: 2, Changes: 2, Refusals: 3}
			if got := run(scripts.ChainCall{Name: name(3), Previous: "h2", Last: "h3", LastAt: "t3", Remove: 2, Append: []string{"cc"}}); got != want {
				t.Errorf("removal: %+v", got)
			}
			if got := run(first); got != want {
				t.Errorf("sent again after another: %+v", got)
			}
			for before, part := range map[int64][]string{0: {"f12", "cc"}, 4: {"f12"}, 3: nil, 9: {"f12", "cc"}} {
				c := scripts.TrailCall{Clock: "sluice:{audit}:clock", Entries: "sluice:{audit}:entries", Before: before, Most: 2}
				values, err := scripts.Run(context.Background(), e, nil, c.Call())
				if err != nil {
					t.Fatal(err)
				}
				got, err := c.Decode(values)
				if err != nil || !slices.Equal(got.Entries, part) || got.First != 3 || got.From != 3 || got.Stop != 5 {
					t.Errorf("before %d: %+v, %v", before, got, err)
				}
			}
		})
	}
}
