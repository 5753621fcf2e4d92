package crash

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEveryPointIsPlaced holds the list against the code: a point stands in exactly one place.
func TestEveryPointIsPlaced(t *testing.T) {
	listed := map[string]int{}
	for _, p := range Points {
		listed[p.Label]++
		if p.Role != "api" && p.Role != "worker" || p.What == "" {
			t.Errorf("%+v", p)
		}
	}
	placed := map[string]int{}
	call := regexp.MustCompile(`(?m)^\s*crash\.At\("([^"]*)"\)$`)
	root := os.DirFS("../..")
	for _, dir := range []string{"api", "queue", "worker"} {
		err := fs.WalkDir(root, dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := fs.ReadFile(root, path)
			for _, m := range call.FindAllSubmatch(text, -1) {
				placed[string(m[1])]++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(listed, placed); diff != "" {
		t.Errorf("listed %v (-listed +placed):\n%s", slices.Sorted(maps.Keys(listed)), diff)
	}
}
