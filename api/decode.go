package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/wire"
)

// maxFieldErrors bounds how many broken rules one answer lists.
const maxFieldErrors = 20

// reader reads JSON bodies strictly and collects everything that is wrong with them: unknown and
// repeated members, names in another case, values of another kind, numbers with a fraction. What it
// reports names field, kind and rule, never a value.
type reader struct {
	errs []wire.FieldError
}

// oneValue checks that the body is exactly one JSON value in UTF-8, and is that value without the
// space around it. Everything after may rely on that.
func oneValue(body []byte) (json.RawMessage, error) {
	value := bytes.Trim(body, " \t\r\n")
	if len(value) == 0 {
		return nil, malformedJSON.with("the body is empty")
	}
	if !utf8.Valid(body) {
		return nil, malformedJSON.with("the body is not UTF-8")
	}
	if json.Valid(body) {
		return value, nil
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(body, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, malformedJSON.with(fmt.Sprintf("the body must be one JSON value; it stops being one at byte %d", syntax.Offset))
	}
	return nil, malformedJSON.with("the body must be one JSON value")
}

// wrong notes that the value of the field breaks the rule.
func (rd *reader) wrong(field string, value json.RawMessage, rule string) {
	rd.note(field, kindOf(value), rule)
}

// note is wrong for a value of which the kind is known.
func (rd *reader) note(field, kind, rule string) {
	if len(rd.errs) < maxFieldErrors {
		rd.errs = append(rd.errs, wire.FieldError{Field: field, Kind: kind, Rule: rule})
	}
}

// err is everything noted, as one problem; nil if there is nothing.
func (rd *reader) err() error {
	if len(rd.errs) == 0 {
		return nil
	}
	return invalidFields(rd.errs)
}

// object gives every member of the object to member, which reports whether it knows the name.
func (rd *reader) object(path string, value json.RawMessage, member func(name, path string, value json.RawMessage) (known bool)) {
	if kindOf(value) != "object" {
		rd.wrong(cmp.Or(path, "body"), value, "must be an object")
		return
	}
	var seen [12]string
	names := seen[:0]
	for name, v := range membersOf(value) {
		at := join(path, name)
		switch {
		case slices.Contains(names, name):
			rd.wrong(at, v, "must not be repeated")
		case !member(name, at, v):
			rd.wrong(at, v, "is not a known field")
		case len(names) < cap(names): // every known name fits, the number of unknown ones does not matter
			names = append(names, name)
		}
	}
}

// array gives every element of the array to element; it reports how many there are, -1 if the value
// is no array.
func (rd *reader) array(path string, value json.RawMessage, element func(i int, path string, value json.RawMessage)) int {
	if kindOf(value) != "array" {
		rd.wrong(path, value, "must be an array")
		return -1
	}
	n := 0
	for v := range elementsOf(value) {
		element(n, path+"["+strconv.Itoa(n)+"]", v)
		n++
	}
	return n
}

// text reads a string of least to most bytes without control characters. Halves of surrogate pairs
// would all be read as U+FFFD, and texts that differ in them, such as idempotency keys, as one.
func (rd *reader) text(path string, value json.RawMessage, least, most int) (s string) {
	if kindOf(value) != "string" || json.Unmarshal(value, &s) != nil {
		rd.wrong(path, value, "must be a string")
		return ""
	}
	if hasHalf(value) {
		rd.wrong(path, value, "must not contain half of a surrogate pair")
		return ""
	}
	if rule := textRule(s, least, most); rule != "" {
		rd.wrong(path, value, rule)
		return ""
	}
	return s
}

// whole reads a whole number, written without fraction or exponent, from low to high.
func (rd *reader) whole(path string, value json.RawMessage, low, high int64) int64 {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if kindOf(value) != "number" || err != nil || n < low || n > high {
		rd.wrong(path, value, fmt.Sprintf("must be a whole number from %d to %d", low, high))
		return low
	}
	return n
}

// truth reads a boolean.
func (rd *reader) truth(path string, value json.RawMessage) bool {
	if kindOf(value) != "boolean" {
		rd.wrong(path, value, "must be true or false")
	}
	return len(value) > 0 && value[0] == 't'
}

// textRule is the rule that the text breaks, empty if none.
func textRule(s string, least, most int) string {
	if len(s) < least || len(s) > most {
		return fmt.Sprintf("must be %d to %d bytes", least, most)
	}
	if hasControl(s) {
		return "must not contain control characters"
	}
	return ""
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// kindOf is the JSON kind of a value, by its first byte.
func kindOf(value json.RawMessage) string {
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}

func isNull(value json.RawMessage) bool { return kindOf(value) == "null" }

// join is the path of a member. A name that a client made up is cut where it is longer than any of
// ours.
func join(path, name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "…"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
