package httpmsg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of the headers that one job sets on its deliveries.
const (
	MaxJobHeaders     = 16
	MaxJobHeaderBytes = 4 << 10 // of all names and values
)

// JobHeadersRule is the rule that the headers of one job break together.
var JobHeadersRule = fmt.Sprintf("must be at most %d headers, with %d bytes of names and values", MaxJobHeaders, MaxJobHeaderBytes)

// ownHeaders are those that Sluice sets on a delivery, or that change the answers that it reads,
// beside those of CheckSettable. A route may set them, a job must not.
var ownHeaders = []string{"Content-Type", "User-Agent", "Traceparent", "Accept-Encoding"}

// CheckJobHeader returns the rule that the name of a job's header breaks; empty for a good one.
func CheckJobHeader(name string) string {
	if Is(name, ownHeaders...) {
		return "must be another header: Sluice sets this one"
	}
	return CheckSettable(name)
}

// CheckJobHeaders calls wrong with each name that breaks a rule, or whose value does, in their
// order. It returns the rule that all headers together break; empty for good ones.
func CheckJobHeaders(headers map[string]string, wrong func(name, rule string)) (rule string) {
	if len(headers) == 0 {
		return ""
	}
	size, known := 0, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		size += len(name) + len(headers[name])
		broken := CheckJobHeader(name)
		if broken == "" {
			broken = checkJobValue(headers[name])
		}
		if other, twice := known[Comparable(name)]; twice && broken == "" {
			broken = "must not be repeated: it is the same header as " + other
		}
		known[Comparable(name)] = name
		if broken != "" {
			wrong(name, broken)
		}
	}
	if len(headers) > MaxJobHeaders || size > MaxJobHeaderBytes {
		return JobHeadersRule
	}
	return ""
}

// checkJobValue returns the rule that a value breaks. It is stricter than CheckValue: a job shows
// its headers as JSON.
func checkJobValue(value string) string {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return "must be UTF-8 without line breaks and other control characters"
	}
	return CheckValue(value)
}

// CheckJobHeaderNames calls wrong with the index of each name that the jobs of a route must not
// set. set are the names of the headers that the route sets itself.
func CheckJobHeaderNames(names, set []string, wrong func(i int, rule string)) {
	for i, name := range names {
		rule := CheckJobHeader(name)
		switch {
		case rule != "":
		case Is(name, set...):
			rule = "must be no header that the route sets itself"
		case Is(name, names[:i]...):
			rule = "must not be repeated"
		}
		if rule != "" {
			wrong(i, rule)
		}
	}
}
