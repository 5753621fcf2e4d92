// Package numbers reads numbers as people write them.
package numbers

import (
	"regexp"
	"strconv"
	"strings"
)

// ParseWhole reads a whole number as it is usually written: every source of settings reads it
// alike. It refuses 010, 0x10, 1_000 and +5, which readers of numbers understand differently.
func ParseWhole(text string) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

var (
	quantity = regexp.MustCompile(`^(\d+(?:\.\d+)?) ?([a-z]*)$`)
	grouped  = regexp.MustCompile(`^\d{1,3}([,' ]\d{3})+$`)
)

// Quantity splits a lower-case number, which may have a fraction, from the unit behind it.
func Quantity(text string) (number, unit string, ok bool) {
	found := quantity.FindStringSubmatch(text)
	if found == nil {
		return "", "", false
	}
	return found[1], found[2], true
}

// WholeLike returns the whole number that a person means by text that is none: with separators of
// thousands, with leading zeros, or with a unit. It is empty if there is none.
func WholeLike(text string) string {
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(text), "+"), "_", "")
	if grouped.MatchString(digits) {
		digits = strings.NewReplacer(",", "", " ", "", "'", "").Replace(digits)
	}
	number, unit, ok := Quantity(digits)
	if !ok {
		return ""
	}
	n, err := strconv.ParseInt(number, 10, 64)
	factor := map[string]int64{
		"": 1, "k": 1000, "kb": 1000, "mb": 1000_000, "gb": 1000_000_000, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
	}[unit]
	if err != nil || factor == 0 || n > 1<<53/factor {
		return ""
	}
	return strconv.FormatInt(n*factor, 10)
}
