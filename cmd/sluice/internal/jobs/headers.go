package jobs

import (
	"maps"
	"slices"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// headerLines returns the headers of a job as lines, sorted by name.
func headerLines(headers map[string]string) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lines = append(lines, cli.OneLine(name+": "+headers[name]))
	}
	return lines
}
