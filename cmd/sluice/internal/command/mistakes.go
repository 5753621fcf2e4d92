package command

import (
	"fmt"
	"regexp"
)

// mistakes map messages of kong about flags and arguments to messages with the flag, the value and
// the rule.
var mistakes = []struct {
	found *regexp.Regexp
	text  string // for fmt.Sprintf, with the groups
}{
	{regexp.MustCompile(`^(--[\w-]+): expected a valid \d+ bit u?int but got (".*")$`),
		"%s: %s: must be a whole number, such as 100"},
	{regexp.MustCompile(`^(--[\w-]+): expected duration but got "(\d+)": `),
		"%s: %q: must have a unit, such as %[2]ss"},
	{regexp.MustCompile(`^(--[\w-]+): expected duration but got (".*"): `),
		"%s: %s: must be a duration, such as 250ms, 10s or 1h30m"},
	{regexp.MustCompile(`^(--[\w-]+): parsing time (".*?") as `),
		"%s: %s: must be a time, such as 2026-01-02T15:04:05Z"},
	{regexp.MustCompile(`^(--[\w-]+): (?:expected .* value but got "EOL"|missing value)`),
		"%s: the value is missing"},
	{regexp.MustCompile(`^(--[\w-]+|<[\w-]+>) must be one of (".*") but got (".*")$`),
		"%[1]s: %[3]s: must be one of %[2]s"},
	{regexp.MustCompile(`^expected "<([\w-]+)>`), "the argument <%s> is missing"},
}

// mistakeOf returns the message of an error of the parser.
func mistakeOf(err error) string {
	for _, m := range mistakes {
		if groups := m.found.FindStringSubmatch(err.Error()); groups != nil {
			values := make([]any, len(groups)-1)
			for i, g := range groups[1:] {
				values[i] = g
			}
			return fmt.Sprintf(m.text, values...)
		}
	}
	return err.Error()
}
