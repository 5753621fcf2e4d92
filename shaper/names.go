package shaper

import (
	"fmt"
	"strings"
)

// listedNames is how many known names a rule lists.
const listedNames = 30

// OneOf is the rule for a name that is not one of the known names of something, such as "the
// routes: ". It lists them, and suggests one that is at most two edits away.
func OneOf(what, name string, known []string) string {
	if len(known) == 0 {
		return "must be one of " + what + "there are none"
	}
	rule := "must be one of " + what + strings.Join(known[:min(len(known), listedNames)], ", ")
	if more := len(known) - listedNames; more > 0 {
		rule += fmt.Sprintf(" and %d more", more)
	}
	if near := Nearest(name, known); near != "" {
		rule += "; is " + near + " meant?"
	}
	return rule
}

// alike makes names equal that look alike.
var alike = strings.NewReplacer("l", "1", "i", "1", "o", "0", "-", "_")

// Nearest returns the known name that is at most two edits away from name, or empty. A short name
// must be nearer. Two letters that have changed places are one edit, and none where both names look
// alike. Of several that are equally near it returns none.
func Nearest(name string, known []string) (best string) {
	name = strings.ToLower(name)
	least, looks := min(2, (len(name)-1)/2)+1, alike.Replace(name)
	for _, k := range known {
		if apart := len(k) - len(name); max(apart, -apart) > least {
			continue // so is their distance; names may be many
		}
		lower := strings.ToLower(k)
		d := distance(name, lower)
		if alike.Replace(lower) == looks {
			d = 0
		}
		switch {
		case d >= len(k):
		case d < least:
			best, least = k, d
		case d == least && k != best:
			best = ""
		}
	}
	return best
}

// NearestKey is Nearest for names of settings and of fields. Without a near one it returns the only
// known name that has a word more or less at its end, such as delay_ms for delay.
func NearestKey(name string, known []string) (best string) {
	if best = Nearest(name, known); best != "" {
		return best
	}
	name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
	for _, k := range known {
		if strings.HasPrefix(k, name+"_") || strings.HasPrefix(name, k+"_") {
			if best != "" {
				return ""
			}
			best = k
		}
	}
	return best
}

// distance returns how many insertions, deletions, replacements and exchanges of neighbours make b
// of a.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := last[j]
			if a[i] != b[j] {
				cost = 1 + min(last[j], last[j+1], row[j])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, before[j-1]+1)
			}
			row[j+1] = cost
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
