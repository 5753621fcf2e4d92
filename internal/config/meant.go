package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// meant returns a suggestion for a value that breaks the rule, as the end of the rule; empty if
// there is none. It tries common mistakes: a number without a unit, a URL without a scheme, a unit
// in full.
func (s Setting) meant(raw any) string {
	switch value := raw.(type) {
	case string:
		if s.Kind == Rate {
			return "" // the rule has it
		}
	case int, int64:
	case float64:
		if value == math.Trunc(value) && math.Abs(value) < 1<<53 {
			raw = int64(value) // not in the form 1e+06
		}
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
		if candidate == "" {
			continue
		}
		if _, rule := s.read(s.typed(candidate)); rule == "" {
			return "; is " + candidate + " meant?"
		}
	}
	return ""
}

// candidates returns what may have been meant by a refused text, the likeliest first.
func (s Setting) candidates(text string) []string {
	lower := strings.ToLower(text)
	switch s.Kind {
	case Rate:
		rate, _ := shaper.RateLike(text)
		return []string{rate.String()}
	case Duration:
		return []string{durationLike(lower), strings.ReplaceAll(lower, " ", "")}
	case Whole:
		if percent, is := strings.CutSuffix(lower, "%"); is && strings.HasPrefix(s.Help, "Percent") {
			lower = percent
		}
		return []string{wholeLike(lower)}
	case Size:
		if found := quantity.FindStringSubmatch(lower); found != nil {
			for _, unit := range []string{"KiB", "MiB"} {
				if short := strings.ToLower(unit[:1]); slices.Contains([]string{short, short + "b", short + "ib"}, found[2]) {
					return []string{found[1] + unit}
				}
			}
		}
		return []string{wholeLike(lower)}
	case Share:
		percent, _ := strings.CutSuffix(lower, "%")
		if n, err := strconv.ParseFloat(percent, 64); err == nil && percent != lower {
			return []string{strconv.FormatFloat(n/100, 'g', -1, 64)}
		}
		return nil
	case Switch:
		switch lower {
		case "yes", "on", "1", "y", "true", "enabled":
			return []string{"true"}
		case "no", "off", "0", "n", "false", "disabled":
			return []string{"false"}
		}
		return nil
	}
	if s.choices != nil {
		return []string{lower, choiceLike(lower, s.choices)}
	}
	if scheme, rest, is := strings.Cut(text, "://"); is { // of a listener, or with a misspelt scheme
		return []string{strings.TrimSuffix(rest, "/"), shaper.Nearest(scheme, []string{"http", "https"}) + "://" + rest}
	}
	if found := oneSlash.FindStringSubmatch(text); found != nil {
		return []string{strings.ToLower(found[1]) + "://" + found[2]}
	}
	candidates := []string{"http://" + text, "127.0.0.1:" + text, "127.0.0.1" + text, lower}
	if steps := strings.Split(strings.TrimPrefix(text, "$."), "."); len(steps) > 1 { // a JSON pointer with dots
		candidates = append(candidates, "/"+strings.Join(steps, "/"))
	}
	return candidates
}

var (
	quantity = regexp.MustCompile(`^(\d+(?:\.\d+)?) ?([a-z]*)$`)
	grouped  = regexp.MustCompile(`^\d{1,3}([,' ]\d{3})+$`)
	oneSlash = regexp.MustCompile(`^([hH][tT][tT][pP][sS]?)(?::?/+|:)([^/].*)$`)
)

// durationLike reads a duration with a unit in full or in days. A large number without a unit may
// be of milliseconds, so it returns none.
func durationLike(text string) string {
	found := quantity.FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	n, err := strconv.ParseFloat(found[1], 64)
	unit := shaper.UnitLike(found[2])
	switch {
	case err != nil || n >= 10_000:
	case found[2] == "" && n < 1000:
		return found[1] + "s"
	case unit == "d":
		return Short(time.Duration(n * float64(day)))
	case unit != "":
		return found[1] + unit
	}
	return ""
}

// wholeLike reads a whole number with separators of thousands, or with a unit.
func wholeLike(text string) string {
	digits := strings.ReplaceAll(strings.TrimPrefix(text, "+"), "_", "")
	if grouped.MatchString(digits) {
		digits = strings.NewReplacer(",", "", " ", "", "'", "").Replace(digits)
	}
	found := quantity.FindStringSubmatch(digits)
	if found == nil {
		return ""
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	factor := map[string]int64{
		"": 1, "k": 1000, "kb": 1000, "mb": 1000_000, "gb": 1000_000_000, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
	}[found[2]]
	if err != nil || factor == 0 || n > 1<<53/factor {
		return ""
	}
	return strconv.FormatInt(n*factor, 10)
}

// choiceLike returns the choice that the text abbreviates, extends or misspells.
func choiceLike(text string, choices []string) string {
	for _, c := range choices {
		if len(text) >= 3 && (strings.HasPrefix(c, text) || strings.HasPrefix(text, c)) {
			return c
		}
	}
	return shaper.Nearest(text, choices)
}
