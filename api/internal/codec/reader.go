// Package codec reads requests and writes answers: the headers, the query and the JSON bodies of
// requests become values of the queue, and these become JSON forms of package wire. Package api and
// its internal packages import it.
//
// It reads bodies strictly: its errors name every unknown, repeated or invalid field.
package codec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/7509e464/sluice/api/internal/problem"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// reader reads JSON bodies strictly and collects everything that is wrong with them: unknown and
// repeated members, names in another case, values of another kind, numbers with a fraction. Its
// errors name field, kind and rule, and the value where wire.FieldError repeats it.
type reader struct{ problem.Fields }

// oneValue checks that the body is exactly one JSON value in UTF-8, and returns that value without
// the space around it. All other functions need a value that it has checked.
func oneValue(body []byte) (json.RawMessage, error) {
	value := bytes.Trim(body, " \t\r\n")
	if jsontext.Value(value).IsValid(jsontext.AllowDuplicateNames(true)) { // most bodies
		return value, nil
	}
	if len(value) == 0 {
		return nil, problem.MalformedJSON.With("the body is empty")
	}
	if !utf8.Valid(body) {
		return nil, problem.MalformedJSON.With("the body is not UTF-8")
	}
	if json.Valid(body) { // with half surrogate pairs, which payloads may contain
		return value, nil
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(body, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, problem.MalformedJSON.With(fmt.Sprintf("the body must be one JSON value; "+
			"it stops being one at byte %d: %v", syntax.Offset, syntax))
	}
	return nil, problem.MalformedJSON.With("the body must be one JSON value")
}

// wrong notes that the value of the field breaks the rule. It does not repeat a text.
func (rd *reader) wrong(field string, value json.RawMessage, rule string) {
	kind, shown := kindOf(value), ""
	if kind == "number" || kind == "boolean" {
		shown = string(value)
	}
	rd.Add(field, kind, shown, rule)
}

// wrongValue is wrong, and repeats a text, too: what is read there is no secret.
func (rd *reader) wrongValue(field string, value json.RawMessage, rule string) {
	if kindOf(value) != "string" {
		rd.wrong(field, value, rule)
		return
	}
	text, _ := jsontext.AppendUnquote(nil, value)
	rd.Add(field, "string", string(text), rule)
}

// object calls member for every member of the object, until the errors are full; member reports
// whether it knows the name.
// like has the known names, for suggestions: a []string, or a nil pointer to a struct.
func (rd *reader) object(
	path string, value json.RawMessage, like any, member func(name, path string, value json.RawMessage) (known bool),
) {
	if kindOf(value) != "object" {
		rd.wrong(cmp.Or(path, "body"), value, "must be an object")
		return
	}
	var seen [16]string
	names := seen[:0]
	for name, v := range members(value) {
		if rd.Full() {
			return
		}
		at := Join(path, name)
		switch {
		case slices.Contains(names, name):
			rd.Add(at, kindOf(v), "", "must not be repeated")
		case !member(name, at, v):
			rd.Add(at, kindOf(v), "", "is not a known field"+Meant(name, "the fields are ", fieldsOf(like)))
		case len(names) < cap(names): // holds every known name; unknown ones are errors anyway
			names = append(names, name)
		}
	}
}

// Meant returns the end of the rule for an unknown name: the known name that it resembles, or all
// of them.
func Meant(name, all string, known []string) string {
	switch near := shaper.NearestKey(name, known); {
	case near != "":
		return "; is " + near + " meant?"
	case len(known) == 0:
		return ""
	}
	return "; " + all + strings.Join(known, ", ")
}

// fieldNames has what fieldsOf has found, by type: each unknown name of a body asks for it.
var fieldNames sync.Map

// fieldsOf returns like, or the names in JSON of the fields of the struct that it points to.
func fieldsOf(like any) (names []string) {
	if names, are := like.([]string); are {
		return names
	}
	if found, ok := fieldNames.Load(reflect.TypeOf(like)); ok {
		return found.([]string)
	}
	defer func() { fieldNames.Store(reflect.TypeOf(like), names) }()
	for _, f := range reflect.VisibleFields(reflect.TypeOf(like).Elem()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// array calls element for every element of the array, until the errors are full. It returns the
// number of elements that it has read, -1 if the value is no array.
func (rd *reader) array(
	path string, value json.RawMessage, element func(i int, path string, value json.RawMessage),
) int {
	if kindOf(value) != "array" {
		rd.wrong(path, value, "must be an array")
		return -1
	}
	n := 0
	for v := range elements(value) {
		if rd.Full() {
			break
		}
		element(n, elementPath(path, n), v)
		n++
	}
	return n
}

// text reads a string of least to most bytes without control characters. It refuses halves of
// surrogate pairs: all of them would be read as U+FFFD, so that different idempotency keys became
// one.
func (rd *reader) text(path string, value json.RawMessage, least, most int) string {
	if kindOf(value) != "string" {
		rd.wrong(path, value, "must be a string")
		return ""
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		rd.wrong(path, value, "must not contain half of a surrogate pair")
		return ""
	}
	if rule := TextRule(string(text), least, most); rule != "" {
		rd.wrong(path, value, rule)
		return ""
	}
	return string(text)
}

// whole reads a whole number, written without fraction or exponent, from low to high.
func (rd *reader) whole(path string, value json.RawMessage, low, high int64) int64 {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if kindOf(value) != "number" || err != nil || n < low || n > high {
		rule := fmt.Sprintf("must be a whole number from %d to %d", low, high)
		if quoted := bytes.Trim(value, `"`); kindOf(value) == "string" && json.Valid(quoted) {
			rd.Add(path, "string", string(quoted), rule+", written without quotes")
			return low
		}
		if kindOf(value) == "number" && errors.Is(err, strconv.ErrSyntax) {
			rule += ", written without fraction and exponent"
		}
		rd.wrong(path, value, rule)
		return low
	}
	return n
}

// truth reads a boolean.
func (rd *reader) truth(path string, value json.RawMessage) bool {
	if kindOf(value) != "boolean" {
		rd.wrongValue(path, value, "must be true or false")
	}
	return len(value) > 0 && value[0] == 't'
}

// TextRule returns the rule that the text breaks, empty if none. The text must have least to most
// bytes and no control characters.
func TextRule(s string, least, most int) string {
	if len(s) < least || len(s) > most {
		return fmt.Sprintf("must be %d to %d bytes", least, most)
	}
	if HasControl(s) {
		return "must not contain control or format characters"
	}
	return ""
}

// HasControl reports whether the text has a wire.IsControl.
func HasControl(s string) bool { return strings.ContainsFunc(s, wire.IsControl) }

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

// Join returns the path of a member of an object. It cuts names that are longer than every known
// one.
func Join(path, name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "…"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// elementPath is the path of an element of an array.
func elementPath(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// members iterates over the names and values of an object, in order. The values are parts of the
// object, not copies.
func members(object json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for d := inside(object); d.PeekKind() != '}'; {
			name, _ := d.ReadToken() // valid, see oneValue; so is everything that follows
			if text := name.String(); !yield(text, next(d, object)) {
				return
			}
		}
	}
}

// elements iterates over the values of an array, in order. They are parts of the array, not copies.
func elements(array json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		for d := inside(array); d.PeekKind() != ']'; {
			if !yield(next(d, array)) {
				return
			}
		}
	}
}

// lenient accepts repeated names and half surrogate pairs. The reader reports them itself, with
// their paths, and payloads may contain both.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// inside returns a decoder behind the first bracket of the value.
func inside(value json.RawMessage) *jsontext.Decoder {
	d := jsontext.NewDecoder(bytes.NewBuffer(value), lenient...)
	_, _ = d.ReadToken()
	return d
}

// next returns the next value of the decoder as a part of the input: what ReadValue returns is
// valid only until the next call.
func next(d *jsontext.Decoder, input json.RawMessage) json.RawMessage {
	v, _ := d.ReadValue()
	end := d.InputOffset()
	return input[end-int64(len(v)) : end]
}
