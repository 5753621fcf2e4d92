package codec

import (
	"net/http"
	"strconv"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/shaper"
)

// RawNames are the parameters of a submission whose body is the payload. Each has the name of a
// member of wire.Submission.
var RawNames = []string{"type", "route", "delay_ms", "max_wait_ms", "cost", "callback_url", "path"}

// setPrefix begins the names of headers of a request with a raw body that are headers of the job:
// Sluice-Set-X-Request-Id is its X-Request-Id.
const setPrefix = "Sluice-Set-"

// jobHeader returns the name of the job's header that a header of a request is.
func jobHeader(header string) (name string, is bool) {
	if len(header) < len(setPrefix) || header[0] != 'S' || !httpmsg.Is(header[:len(setPrefix)], setPrefix) {
		return "", false
	}
	return header[len(setPrefix):], true
}

// maxContentType is the longest Content-Type of a raw body, in bytes.
const maxContentType = 255

// IsRaw reports whether the body of a submission is the payload: the query has its type.
func IsRaw(r *http.Request) bool { return r.URL.RawQuery != "" && r.URL.Query().Has("type") }

// ReadRaw reads the submission of a raw body, without the payload, and the type of its content. The
// query must have passed CheckQuery. The error is a *problem.Problem.
func ReadRaw(r *http.Request) (s wire.Submission, contentType string, err error) {
	query := r.URL.Query()
	var wrong problem.Fields
	text := func(name string, most int) string {
		value := query.Get(name)
		if rule := TextRule(value, 1, most); query.Has(name) && rule != "" {
			wrong.Add("query."+name, "string", "", rule)
		}
		return value
	}
	whole := func(name string, least, most int64) int64 {
		n, ok := numbers.ParseWhole(query.Get(name))
		if query.Has(name) && (!ok || n < least || n > most) {
			wrong.Add("query."+name, "string", query.Get(name), "must be a whole number from "+strconv.FormatInt(least, 10)+" to "+
				strconv.FormatInt(most, 10))
		}
		return n
	}
	s = wire.Submission{
		Type: text("type", wire.MaxTypeBytes), Route: text("route", wire.MaxTypeBytes),
		DelayMS: whole("delay_ms", 0, wire.MaxMillis), MaxWaitMS: whole("max_wait_ms", 0, wire.MaxMillis),
		Cost: whole("cost", 1, shaper.MaxCost), CallbackURL: text("callback_url", wire.MaxCallback),
		Path: text("path", wire.MaxPathBytes),
	}
	if s.Path != "" && len(wrong) == 0 {
		if rule := httpmsg.CheckPath(s.Path); rule != "" {
			wrong.Add("query.path", "string", "", rule)
		}
	}
	for header, values := range r.Header {
		name, is := jobHeader(header)
		switch _, twice := s.Headers[name]; {
		case !is:
		case len(values) > 1 || twice:
			wrong.Add(setPrefix+Join("", name), "string", "", "must not be repeated")
		default:
			if s.Headers == nil {
				s.Headers = map[string]string{}
			}
			s.Headers[name] = values[0]
		}
	}
	checkHeaders(&wrong, s.Headers, setPrefix+"*", func(name string) string { return setPrefix + Join("", name) })
	values := r.Header["Content-Type"]
	switch {
	case len(values) == 0: // RFC 9110, section 8.3
		contentType = "application/octet-stream"
	case len(values) > 1 || len(values[0]) > maxContentType || values[0] == "":
		wrong.Add("Content-Type", "string", "", "must be one value of 1 to "+strconv.Itoa(maxContentType)+" bytes")
	default:
		contentType = values[0]
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" {
		wrong.Add("Content-Encoding", "string", coding, "must be absent: only the bytes and their Content-Type are delivered")
	}
	return s, contentType, wrong.Err()
}

// NotRaw returns the 422 for what a submission has beside a raw body, beside submissions in JSON.
func NotRaw(r *http.Request) error {
	var wrong problem.Fields
	if r.URL.RawQuery != "" {
		query := r.URL.Query()
		for _, name := range RawNames {
			if query.Has(name) {
				wrong.Add("query."+name, "string", "", "must be in the body, or the query must have type, too: "+
					"then the body is the payload")
			}
		}
	}
	for header := range r.Header {
		if name, is := jobHeader(header); is {
			wrong.Add(setPrefix+Join("", name), "string", "", "must be in the member headers of the job")
		}
	}
	return wrong.Err()
}
