package codec

import (
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dunglas/httpsfv"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
)

// Names of headers that are Sluice's or a draft's.
const (
	TenantHeader = "Sluice-Tenant"
	KeyHeader    = "Idempotency-Key"
)

const defaultTenant = "default"

// ReadTenant returns the tenant that the request names, or "default". The name is not decoded:
// percent signs have no meaning. The error is a *problem.Problem.
func ReadTenant(h http.Header) (string, error) {
	values := h[TenantHeader]
	switch len(values) {
	case 0:
		return defaultTenant, nil
	case 1:
		return values[0], CheckTenant(TenantHeader, values[0])
	default:
		return "", problem.Invalid(TenantHeader, "array", "must not be repeated")
	}
}

// CheckTenant returns the 422 for an invalid tenant name, nil for a valid one; field is where the
// name was found. A name that is not UTF-8 is invalid, because JSON would change it.
func CheckTenant(field, name string) error {
	rule := TextRule(name, 1, wire.MaxTenantBytes)
	if rule == "" && !utf8.ValidString(name) {
		rule = "must be UTF-8"
	}
	if rule != "" {
		return problem.Invalid(field, "string", rule)
	}
	return nil
}

// ReadKey returns the key of the request, empty if none. A value that starts with a double
// quote is a structured string (draft-ietf-httpapi-idempotency-key-header). Any other value is
// taken as raw bytes, because most clients do not quote it.
func ReadKey(h http.Header) (string, error) {
	values := h[KeyHeader]
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", problem.Invalid(KeyHeader, "array", "must not be repeated")
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		item, err := httpsfv.UnmarshalItem(values)
		quoted, isString := item.Value.(string)
		if err != nil || !isString {
			return "", problem.Invalid(KeyHeader, "string",
				"starts with a quote and so must be a structured string (RFC 9651)")
		}
		key = quoted
	}
	if rule := TextRule(key, 1, wire.MaxKeyBytes); rule != "" {
		return "", problem.Invalid(KeyHeader, "string", rule)
	}
	return key, nil
}

// TraceParent returns the trace that the request belongs to (W3C Trace Context). It is empty if the
// header is absent or invalid, as the recommendation requires. Of an unknown version it keeps the
// parts that every version has, as version 00.
func TraceParent(h http.Header) string {
	values := h["Traceparent"]
	if len(values) != 1 {
		return ""
	}
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	value := values[0]
	if len(value) < size || len(value) > size && (value[:2] == "00" || value[size] != '-') {
		return ""
	}
	parts := strings.Split(value[:size], "-")
	if len(parts) != 4 || parts[0] == "ff" {
		return ""
	}
	for i, digits := range []int{2, 32, 16, 2} {
		zero := strings.Trim(parts[i], "0") == ""
		if len(parts[i]) != digits || strings.Trim(parts[i], "0123456789abcdef") != "" || zero && digits > 2 {
			return ""
		}
	}
	if parts[0] == "00" {
		return value
	}
	sampled := "00"
	if strings.ContainsRune("13579bdf", rune(parts[3][1])) {
		sampled = "01"
	}
	return "00-" + parts[1] + "-" + parts[2] + "-" + sampled
}

// Preference is how long the client prefers to wait for the end of the job. The zero value is no
// preference.
type Preference struct {
	Wait  time.Duration // whole seconds, at most wire.MaxWaitSeconds
	Given bool          // the request has a valid preference
	Async bool          // it is respond-async: 202 at once
}

// Applied returns the value of Preference-Applied, such as wait=5 or respond-async.
func (p Preference) Applied() string {
	if p.Async {
		return "respond-async"
	}
	return "wait=" + strconv.Itoa(int(p.Wait/time.Second))
}

// Prefer reads wait=N out of the Prefer headers (RFC 7240) leniently: the first wait counts, more
// than 30 counts as 30, and an invalid value is no preference.
func Prefer(h http.Header) Preference {
	return prefer(h, wire.MaxWaitSeconds, false)
}

// PreferAnswer is Prefer for the answer to a forwarded request: up to wire.MaxForwardWaitSeconds,
// and respond-async is a wait of 0 that outranks any other.
func PreferAnswer(h http.Header) Preference {
	return prefer(h, wire.MaxForwardWaitSeconds, true)
}

func prefer(h http.Header, most int, async bool) (p Preference) {
	read := false
	for _, value := range h["Prefer"] {
		for _, one := range splitQuoted(value, ',') {
			name, rest, _ := strings.Cut(splitQuoted(one, ';')[0], "=")
			switch name = strings.TrimSpace(name); {
			case async && strings.EqualFold(name, "respond-async"):
				return Preference{Given: true, Async: true}
			case !read && strings.EqualFold(name, "wait"):
				read = true
				if seconds, ok := wholeSeconds(strings.Trim(strings.TrimSpace(rest), `"`), most); ok {
					p = Preference{Wait: time.Duration(seconds) * time.Second, Given: true}
				}
			}
		}
	}
	return p
}

// OnlyEvents reports whether the client accepts nothing but events, as an EventSource in a browser,
// which cannot set headers of its own.
func OnlyEvents(h http.Header) bool {
	return len(h["Accept"]) == 1 && strings.TrimSpace(h["Accept"][0]) == "text/event-stream"
}

// OtherPreferences returns the values of Prefer without those that PreferAnswer reads. What remains
// is as it was.
func OtherPreferences(values []string) []string {
	var out []string
	for _, value := range values {
		var others []string
		for _, one := range splitQuoted(value, ',') {
			name, _, _ := strings.Cut(splitQuoted(one, ';')[0], "=")
			if name = strings.TrimSpace(name); !strings.EqualFold(name, "wait") && !strings.EqualFold(name, "respond-async") {
				others = append(others, one)
			}
		}
		if left := strings.TrimSpace(strings.Join(others, ",")); left != "" {
			out = append(out, left)
		}
	}
	return out
}

// wholeSeconds reads only digits, of any number, and bounds the result.
func wholeSeconds(s string, most int) (int, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > most { // more digits than fit
		n = most
	}
	return n, true
}

// splitQuoted splits at each sep outside of quoted strings. It returns at least one part.
func splitQuoted(s string, sep byte) []string {
	if strings.IndexByte(s, sep) < 0 {
		return []string{s}
	}
	var parts []string
	quoted, from := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}

// Revisions is the condition If-Match of a change. The zero value is no condition.
type Revisions struct {
	Listed    bool    // one of revisions must be the current one
	Revisions []int64 // the entity tags that are revisions
}

// IfMatch reads If-Match (RFC 9110): "*", or a list of entity tags, weak or strong, which quote a
// revision. A tag that quotes something else is no error, but never matches.
func IfMatch(h http.Header) (Revisions, error) {
	values := h["If-Match"]
	if len(values) == 0 {
		return Revisions{}, nil
	}
	list := strings.Join(values, ",")
	if strings.TrimSpace(list) == "*" {
		return Revisions{}, nil
	}
	m := Revisions{Listed: true}
	tags := 0
	for _, tag := range splitQuoted(list, ',') {
		if tag = strings.TrimSpace(tag); tag == "" {
			continue
		}
		tags++
		tag = strings.TrimPrefix(tag, "W/")
		if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' || strings.Contains(tag[1:len(tag)-1], `"`) {
			return Revisions{}, problem.InvalidValue("If-Match", "string", tag,
				`must be * or a list of quoted revisions, such as "7"`)
		}
		if n, err := strconv.ParseInt(tag[1:len(tag)-1], 10, 64); err == nil && ETag(n) == tag {
			m.Revisions = append(m.Revisions, n)
		}
	}
	if tags == 0 {
		return Revisions{}, problem.Invalid("If-Match", "nothing",
			`must be * or a list of quoted revisions, such as "7"`)
	}
	return m, nil
}

// ETag names a revision. It identifies the tenant's settings; the figures change without it.
func ETag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }
