package codec

import (
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/queue"
)

// ReadList reads the query of a list of jobs, without the tenant. It checks neither that the route
// exists nor the cursor. The error is a *problem.Problem.
func ReadList(query url.Values) (queue.List, error) {
	l := queue.List{
		State: queue.ListState(query.Get("state")), Route: query.Get("route"), Type: query.Get("type"),
		IdempotencyKey: query.Get("idempotency_key"), Error: query.Get("error"),
		Cursor: query.Get("cursor"),
	}
	var wrongs problem.Fields
	wrong := func(name, rule string) { // of a value that may be repeated
		wrongs.Add("query."+name, "string", query.Get(name), rule)
	}
	states := strings.Join(StateNames(queue.ListStates()), ", ")
	switch {
	case !query.Has("state"):
		wrongs.Add("query.state", "nothing", "", "is required: all, or one of "+strings.TrimPrefix(states, "all, "))
	case !slices.Contains(queue.ListStates(), l.State):
		wrong("state", "must be one of "+states)
	}
	for _, text := range []struct {
		name string
		most int
	}{{"route", wire.MaxTypeBytes}, {"type", wire.MaxTypeBytes}, {"idempotency_key", wire.MaxKeyBytes},
		{"error", wire.MaxErrorBytes}} {
		if rule := TextRule(query.Get(text.name), 1, text.most); query.Has(text.name) && rule != "" {
			wrongs.Add("query."+text.name, "string", "", rule)
		}
	}
	for _, at := range []struct {
		name string
		to   *time.Time
	}{{"created_after", &l.CreatedAfter}, {"created_before", &l.CreatedBefore}} {
		if !query.Has(at.name) {
			continue
		}
		t, err := time.Parse(time.RFC3339, query.Get(at.name))
		if *at.to = t; err != nil || !IsInstant(t) {
			wrong(at.name, InstantRule)
		}
	}
	if !l.CreatedBefore.IsZero() && !l.CreatedAfter.Before(l.CreatedBefore) {
		wrong("created_before", "must be later than created_after")
	}
	if query.Has("cursor") && l.Cursor == "" {
		wrong("cursor", CursorRule)
	}
	var err error
	if l.Limit, err = PageLimit(query, DefaultJobs, wire.MaxPage); err != nil {
		wrongs = append(wrongs, problem.Of(err).Errors...)
	}
	return l, wrongs.Err()
}

// PageLimit returns the number of items that the client wants on a page: the parameter limit, 1 to
// most, or otherwise if it is absent. The error is a *problem.Problem.
func PageLimit(query url.Values, otherwise, most int) (int, error) {
	if !query.Has("limit") {
		return otherwise, nil
	}
	text := query.Get("limit")
	n, whole := numbers.ParseWhole(text)
	if !whole || n < 1 || n > int64(most) {
		return 0, problem.InvalidValue("query.limit", "string", text, "must be a whole number from 1 to "+strconv.Itoa(most))
	}
	return int(n), nil
}

// DefaultJobs is the default number of jobs on a page.
const DefaultJobs = 100

// CursorRule is the rule of a field error for a cursor that no page had.
const CursorRule = "must be a next_cursor of an earlier page"

// BadCursor returns the 422 for an invalid cursor.
func BadCursor() error { return problem.Invalid("query.cursor", "string", CursorRule) }

// SealCursor makes a cursor of the queue opaque and safe in a query. The empty cursor stays empty.
func SealCursor(cursor string) string { return base64.RawURLEncoding.EncodeToString([]byte(cursor)) }

// OpenCursor is the inverse of SealCursor. It returns an error for a text that SealCursor does not
// make.
func OpenCursor(sealed string) (string, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err == nil && SealCursor(string(raw)) != sealed { // the decoder skips line ends
		err = base64.CorruptInputError(0)
	}
	return string(raw), err
}

// ReadInstant returns a parameter that is a time, or the zero time if it is absent. The error is a
// *problem.Problem.
func ReadInstant(query url.Values, name string) (time.Time, error) {
	if !query.Has(name) {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, query.Get(name))
	if err != nil || !IsInstant(t) {
		return t, problem.InvalidValue("query."+name, "string", query.Get(name), InstantRule)
	}
	return t, nil
}

// ReadBool returns a parameter that must be true or false, or otherwise if it is absent. The error
// is a *problem.Problem.
func ReadBool(query url.Values, name string, otherwise bool) (bool, error) {
	switch query.Get(name) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if query.Has(name) {
		return false, problem.InvalidValue("query."+name, "string", query.Get(name), "must be true or false")
	}
	return otherwise, nil
}

// CheckQuery returns the 422 for a query that cannot be parsed, repeats a parameter or has one for
// which known is false.
func CheckQuery(r *http.Request, known map[string]bool) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.Invalid("query", "string", "must be pairs of name=value, percent-encoded and joined by &")
	}
	var wrong problem.Fields
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if wrong.Full() {
			break
		}
		switch {
		case !known[name]:
			names := slices.DeleteFunc(slices.Sorted(maps.Keys(known)), func(name string) bool { return !known[name] })
			wrong.Add(Join("query", name), "string", "", "is not a known parameter"+
				Meant(name, "the parameters are ", names))
		case len(query[name]) > 1:
			wrong.Add(Join("query", name), "array", "", "must not be repeated")
		}
	}
	return wrong.Err()
}
