package codec

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
)

// maxShown is how many bytes of a forwarded body, or of the body of its answer, are shown.
const maxShown = queue.MaxShown

// hidden replaces a credential.
const hidden = "hidden"

// Forwarded converts a forwarded request to its JSON form, without its credentials.
func Forwarded(m httpmsg.Request) *wire.Request {
	out := &wire.Request{
		Method: m.Method, Target: targetOf(m.Target), Headers: headersOf(m.Header), BodyBytes: len(m.Body),
	}
	var body []byte
	body, out.BodyTruncated = startOf(m.Body)
	out.Body, out.BodyEncoding = textOf(body)
	return out
}

// forwardedType splits the type of the job of a forwarded request.
func forwardedType(text string) (method, path string, ok bool) {
	method, path, ok = strings.Cut(text, " ")
	return method, path, ok && (strings.HasPrefix(path, "/") || path == "*")
}

// IsForwardedType reports whether a type is that of the job of a forwarded request.
func IsForwardedType(text string) bool {
	_, _, ok := forwardedType(text)
	return ok
}

// typeSegments is how many segments of a path operators see in lists of jobs.
const typeSegments = 5

// ShortType is the type of a job as lists show it to operators: of a forwarded request the method
// and the first segments of its path. A segment that may be a secret or an id is shown as *.
func ShortType(text string) string {
	method, path, ok := forwardedType(text)
	if !ok {
		return text
	}
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if looksRandom(segment) {
			segments[i] = "*"
		}
	}
	if len(segments) > typeSegments+1 {
		segments = append(segments[:typeSegments+1], "…")
	}
	return method + " " + strings.Join(segments, "/")
}

// looksRandom reports whether a segment of a path is at least 16 characters long and has digits or
// letters in a mixture that no word has.
func looksRandom(segment string) bool {
	if len(segment) < 16 {
		return false
	}
	upper, lower, digits, changes := 0, 0, 0, 0
	for i := range len(segment) {
		switch c := segment[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c >= 'A' && c <= 'Z':
			if upper++; i > 0 && segment[i-1] >= 'a' && segment[i-1] <= 'z' {
				changes++ // as in camelCase
			}
		case c >= 'a' && c <= 'z':
			lower++
		}
	}
	return digits >= 3 || changes > 3 || upper > 3 && lower > 3 && upper > changes+1
}

// answerOf converts the answer to a forwarded request to its JSON form, without its credentials.
func answerOf(m httpmsg.Answer) *wire.Response {
	out := &wire.Response{Status: m.Status, Headers: headersOf(m.Header)}
	body, cut := startOf(m.Body)
	out.Body, out.BodyEncoding = textOf(body)
	out.BodyTruncated = cut || m.Truncated
	return out
}

// startOf returns the first part of a body. It ends with a whole character, where the body is text.
func startOf(body []byte) (start []byte, cut bool) {
	if len(body) <= maxShown {
		return body, false
	}
	start = body[:maxShown]
	for n := 1; n < utf8.UTFMax; n++ {
		if end := len(start) - n; utf8.RuneStart(start[end]) {
			if !utf8.FullRune(start[end:]) {
				start = start[:end]
			}
			break
		}
	}
	return start, true
}

func headersOf(h http.Header) map[string]string {
	out := make(map[string]string, len(h))
	for name, values := range h {
		out[name] = shownValue(name, strings.Join(values, ", "))
	}
	return out
}

// JobHeaders returns the headers of a job as they are shown, without its credentials; nil for none.
func JobHeaders(headers map[string]string) map[string]string {
	if len(headers) == 0 {
		return nil
	}
	out := make(map[string]string, len(headers))
	for name, value := range headers {
		out[name] = shownValue(name, value)
	}
	return out
}

// shownValue hides the value of a header that is named like a credential.
func shownValue(name, value string) string {
	switch {
	case httpmsg.IsCredential(name):
		return hidden
	case httpmsg.Is(name, "Location", "Content-Location", "Referer"):
		return targetOf(value)
	}
	return value
}

// targetOf hides, in a request target or a URL, the values of query parameters that are named like
// credentials. The rest stays as it was encoded.
func targetOf(target string) string {
	path, query, asked := strings.Cut(target, "?")
	if !asked {
		return target
	}
	parts := strings.Split(query, "&")
	for i, part := range parts {
		name, _, valued := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil {
			plain = name
		}
		if valued && (httpmsg.IsSecretParameter(plain)) {
			parts[i] = name + "=" + hidden
		}
	}
	return path + "?" + strings.Join(parts, "&")
}
