package deploy_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImageHasItsSources: .dockerignore lets every directory into the image that the program is
// built from.
func TestImageHasItsSources(t *testing.T) {
	raw, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "./cmd/sluice")
	cmd.Dir = ".."
	packages, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	copied := strings.Fields(string(raw))
	for _, name := range strings.Fields(string(packages)) {
		below, own := strings.CutPrefix(name, "github.com/7509e464/sluice/")
		top, _, _ := strings.Cut(below, "/")
		if own && !slices.Contains(copied, "!"+top) {
			t.Errorf("%s is not in the image: .dockerignore has no line !%s", name, top)
			copied = append(copied, "!"+top)
		}
	}
}
