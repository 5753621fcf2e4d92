package jobs

import (
	"maps"
	"slices"
	"strings"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// headerFlags are the headers of a job, each as NAME: VALUE.
type headerFlags []string

// parse returns the headers by name, nil for none. The server checks names and values.
func (f headerFlags) parse() (map[string]string, error) {
	if len(f) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(f))
	for _, text := range f {
		name, value, ok := strings.Cut(text, ":")
		name = strings.TrimSpace(name)
		if _, twice := headers[name]; !ok || name == "" || twice {
			return nil, cli.Usagef("--header: must be NAME: VALUE, such as 'X-Request-Id: 17', and each name only once")
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}

// headerLines returns the headers of a job as lines, sorted by name.
func headerLines(headers map[string]string) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lines = append(lines, cli.OneLine(name+": "+headers[name]))
	}
	return lines
}
