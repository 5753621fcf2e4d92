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

// Nearest returns the known name that is at most two edits away from name, or empty. A short name
// must be nearer.
func Nearest(name string, known []string) string {
	best, least := "", min(3, (len(name)+1)/2)
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of a and b.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left, corner := i+1, i
		for j := range len(b) {
			cost := corner
			if a[i] != b[j] {
				cost = 1 + min(corner, row[j+1], left)
			}
			row[j], corner = left, row[j+1]
			left = cost
		}
		row[len(b)] = left
	}
	return row[len(b)]
}
