package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/7509e464/sluice/internal/numbers"
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
		err := queue.ParseURL(text)
		if err != nil && !strings.Contains(err.Error(), "redis+sentinel://") { // else the rule has it
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
		return []string{numbers.WholeLike(lower)}
	case Size:
		number, given, _ := numbers.Quantity(lower)
		for _, unit := range []string{"KiB", "MiB"} {
			if short := strings.ToLower(unit[:1]); slices.Contains([]string{short, short + "b", short + "ib"}, given) {
				return []string{number + unit}
			}
		}
		return []string{numbers.WholeLike(lower)}
	case Fraction:
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
	if s.words != nil {
		words := strings.FieldsFunc(lower, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
		for i, word := range words {
			if !slices.Contains(s.words, word) {
				words[i] = choiceLike(word, s.words)
			}
		}
		return []string{strings.Join(words, ",")}
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

var oneSlash = regexp.MustCompile(`^([hH][tT][tT][pP][sS]?)(?::?/+|:)([^/].*)$`)

// durationLike reads a duration with a unit in full or in days. A large number without a unit may
// be of milliseconds, so it returns none.
func durationLike(text string) string {
	number, word, _ := numbers.Quantity(text)
	n, err := strconv.ParseFloat(number, 64)
	unit := shaper.UnitLike(word)
	switch {
	case err != nil || n >= 10_000:
	case word == "" && n < 1000:
		return number + "s"
	case unit == "d":
		return Short(time.Duration(n * float64(day)))
	case unit != "":
		return number + unit
	}
	return ""
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
