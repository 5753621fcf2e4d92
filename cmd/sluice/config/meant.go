package config

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
)

// meant returns a suggestion for a value that breaks the rule, as the end of the rule; empty if
// there is none. It tries common mistakes: a number without a unit, a URL without a scheme, a unit
// in full.
func (s Setting) meant(raw any) string {
	switch raw.(type) {
	case string, int, int64, float64:
	default:
		return ""
	}
	text := strings.TrimSpace(fmt.Sprint(raw))
	if s.Key == "redis.url" && !strings.Contains(text, "://") {
		return "; the scheme redis:// is missing" // the text may be a password, so it is not shown
	}
	if s.Key == "redis.url" {
		if err := queue.ParseURL(text); err != nil {
			return "; " + err.Error() // without secrets
		}
	}
	if s.Secret || strings.Contains(text, "@") || text == "" || len(text) > 80 {
		return ""
	}
	for _, candidate := range s.candidates(text) {
		if _, rule := s.read(s.typed(candidate)); rule == "" {
			return "; is " + candidate + " meant?"
		}
	}
	return ""
}

func (s Setting) candidates(text string) []string {
	lower := strings.ToLower(text)
	switch s.Kind {
	case Rate:
		short := lower
		for _, unit := range []struct{ long, short string }{
			{"milliseconds", "ms"}, {"second", "s"}, {"sec", "s"}, {"minute", "m"}, {"min", "m"}, {"hour",
				"h"}, {"hr", "h"}, {"day", "d"},
		} {
			short = strings.Replace(short, unit.long, unit.short, 1)
		}
		short = strings.ReplaceAll(strings.Replace(short, "per", "/", 1), " ", "")
		return []string{text + "/s", short, strings.TrimSuffix(short, "s")}
	case Duration:
		candidates := []string{text + "s", strings.ReplaceAll(lower, " ", "")}
		var days int64
		if n, err := fmt.Sscanf(lower, "%dd", &days); n == 1 && err == nil && days > 0 && days < 10_000 {
			candidates = append(candidates, Short(time.Duration(days)*day))
		}
		for _, unit := range []string{"seconds", "sec", "minutes", "min", "hours"} {
			if number, ok := strings.CutSuffix(lower, unit); ok {
				candidates = append(candidates, strings.TrimSpace(number)+unit[:1])
			}
		}
		return candidates
	case Whole:
		digits := strings.NewReplacer(",", "", "_", "", " ", "", "'", "").Replace(text)
		return []string{digits, cmp.Or(strings.TrimLeft(digits, "+0"), "0")}
	case Switch:
		switch lower {
		case "yes", "on", "1", "y", "true":
			return []string{"true"}
		case "no", "off", "0", "n", "false":
			return []string{"false"}
		}
		return nil
	}
	return []string{"http://" + text, "127.0.0.1:" + text, "127.0.0.1" + text, lower}
}
