package httpmsg

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// Use is what happens to a header of a forwarded request or of its answer.
type Use string

// The uses of a header.
const (
	Passed  Use = "passed"
	Removed Use = "removed"
	Set     Use = "set by Sluice" // what the sender had there is removed
	Partly  Use = "passed in part"
)

// HeaderRule is what happens to headers on the way to the upstream and to the client.
type HeaderRule struct {
	Names      []string // canonical; with * at the end, all names that begin so
	ToUpstream Use
	ToClient   Use
	Note       string // for the reader of the docs
}

// Headers has a rule for each header that is not just passed both ways. A name counts however it is
// written: some servers (CGI, WSGI) take every character but letters and digits for the same.
var Headers = []HeaderRule{
	{[]string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Http2-Settings",
	}, Removed, Removed, "They concern one connection. So do all headers that `Connection` names."},
	{[]string{"Host"}, Set, Passed, "It is the upstream's."},
	{[]string{"Content-Length"}, Set, Set, "It is that of the body as it is sent. To a HEAD, the upstream's."},
	{[]string{"Expect"}, Removed, Passed, "Sluice answers it."},
	{[]string{"Prefer"}, Partly, Passed, "Sluice takes `wait` and `respond-async`. Other preferences are passed."},
	{[]string{"Sluice-*"}, Set, Set, "To the upstream: `Sluice-Job`, `Sluice-Attempt` and `Sluice-Tenant`. To the " +
		"client: `Sluice-Job`, `Sluice-Waited-Ms` and `Sluice-Truncated`. The upstream's `Sluice-Cost` counts where the " +
		"route has `cost_from: header`."},
	{[]string{"Idempotent-Replayed"}, Passed, Set, "It marks an answer that an earlier request with the same key got."},
	{[]string{"Idempotency-Key"}, Passed, Passed, "Sluice obeys it, too."},
	{[]string{"Authorization", "X-Api-Key"}, Partly, Passed, "Removed where it is Sluice's credential, or an operator's."},
	{[]string{"Cookie"}, Partly, Passed, "Without the cookies of the dashboard."},
	{[]string{"Set-Cookie"}, Passed, Partly, "Without cookies named like those of the dashboard. A browser gets none on the " +
		"address of the API."},
	{[]string{"Webhook-*"}, Removed, Passed, "They would be taken for a signature of Sluice's."},
	{[]string{"Proxy"}, Removed, Passed, "CGI programs take it for the setting of a proxy."},
	{[]string{
		"X-Forwarded-*", "X-Forwarded", "Forwarded", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Client-Ip",
		"True-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip", "X-Envoy-External-Address", "X-Originating-Ip",
		"X-Remote-Ip", "X-Remote-Addr", "X-Original-Url", "X-Original-Uri", "X-Original-Host", "X-Original-Forwarded-For",
		"X-Rewrite-Url",
	}, Partly, Passed, "By the route's setting [`forwarded`](#where-a-request-came-from)."},
	{[]string{"Max-Forwards"}, Partly, Passed, "One less, for OPTIONS."},
	{[]string{"Accept-Encoding"}, Partly, Passed, "`identity` where `cost_from` reads the body of the answer, and with `Sluice-Progress: sse`."},
	{[]string{"Traceparent"}, Partly, Passed, "That of the delivery, where there is a trace."},
	{[]string{
		"Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Service-Worker-Allowed", "Nel", "Report-To",
		"Reporting-Endpoints", "Accept-Ch", "Critical-Ch", "Set-Login", "Sec-Session-Registration",
		"Secure-Session-Registration", "Use-As-Dictionary", "Public-Key-Pins", "Origin-Agent-Cluster",
		"Permissions-Policy", "Refresh",
	}, Passed, Partly, "A browser gets none on the address of the API: they change its state for the whole address."},
	{[]string{"Content-Security-Policy", "X-Content-Type-Options", "Cross-Origin-Resource-Policy"}, Passed, Partly,
		"On the address of the API, Sluice's alone: `sandbox`, `nosniff` and `same-origin`, for an answer that a browser " +
			"may run."},
}

// Comparable returns a name in the one form in which names are compared.
func Comparable(name string) string {
	return strings.Map(func(c rune) rune {
		if c < utf8.RuneSelf {
			return rune(plainByte(byte(c)))
		}
		return '-'
	}, name)
}

// ruleOf are the rules by comparable name; prefixes are those of names that end in *.
var ruleOf, prefixes = func() (map[string]*HeaderRule, map[string]*HeaderRule) {
	exact, begins := map[string]*HeaderRule{}, map[string]*HeaderRule{}
	for i := range Headers {
		for _, name := range Headers[i].Names {
			if prefix, is := strings.CutSuffix(Comparable(name), "-"); is && strings.HasSuffix(name, "*") {
				begins[prefix] = &Headers[i]
			} else {
				exact[Comparable(name)] = &Headers[i]
			}
		}
	}
	return exact, begins
}()

// RuleOf returns the rule of a header, nil for one that is passed both ways.
func RuleOf(name string) *HeaderRule {
	name = Comparable(name)
	if rule := ruleOf[name]; rule != nil {
		return rule
	}
	for prefix, rule := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return rule
		}
	}
	return nil
}

// Is reports whether a header has one of these names, however it is written.
func Is(header string, names ...string) bool {
	header = Comparable(header)
	return slices.ContainsFunc(names, func(name string) bool { return Comparable(name) == header })
}

// ToUpstream returns the headers of a request that may go to an upstream, as far as the table
// decides alone. What it passes in part is still whole.
func ToUpstream(h http.Header) http.Header {
	return endToEnd(h, func(r *HeaderRule) Use { return r.ToUpstream })
}

// ToClient returns the headers of an answer that may go to a client, in the same way.
func ToClient(h http.Header) http.Header {
	return endToEnd(h, func(r *HeaderRule) Use { return r.ToClient })
}

// notInTrailers are headers that change how an answer is read, kept or obeyed, beside those in the
// table: a recipient that merges trailers into the headers must not take them from there (RFC 9110,
// section 6.5.1).
var notInTrailers = []string{
	"Content-Encoding", "Content-Type", "Content-Range", "Content-Disposition", "Cache-Control", "Pragma", "Expires", "Age",
	"Date", "Vary", "Location", "Retry-After", "Www-Authenticate",
}

// Trailers returns the trailers of an answer with these headers that may go to a client.
func Trailers(trailers, headers http.Header) http.Header {
	all := maps.Clone(trailers)
	if all == nil {
		return nil
	}
	all["Connection"] = slices.Concat(headers["Connection"], trailers["Connection"])
	out := ToClient(all)
	for name := range out {
		if RuleOf(name) != nil || Is(name, notInTrailers...) || strings.HasPrefix(Comparable(name), "access-control-") {
			delete(out, name)
		}
	}
	return out
}

// IsEvents reports whether an answer with these headers has server-sent events.
func IsEvents(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(textproto.TrimString(kind), "text/event-stream")
}

func endToEnd(h http.Header, use func(*HeaderRule) Use) http.Header {
	named := map[string]bool{}
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			named[Comparable(textproto.TrimString(name))] = true
		}
	}
	out := make(http.Header, len(h))
	for name, values := range h {
		rule := RuleOf(name)
		gone := len(named) > 0 && named[Comparable(name)] || rule != nil && (use(rule) == Removed || use(rule) == Set)
		if !gone {
			out[name] = values
		}
	}
	return out
}

// ownCookies are what the names of the dashboard's cookies begin with.
var ownCookies = []string{"sluice_session", "__Host-sluice", "__Secure-sluice"}

// IsOwnCookie reports whether a cookie of this name is the dashboard's.
func IsOwnCookie(name string) bool {
	return slices.ContainsFunc(ownCookies, func(own string) bool { return strings.HasPrefix(name, own) })
}

// WithoutOwnCookies returns the values of Cookie without the dashboard's cookies. What remains is
// as it was.
func WithoutOwnCookies(values []string) []string {
	var out []string
	for _, value := range values {
		var kept strings.Builder // a client may send thousands of parts
		for part := range strings.SplitSeq(value, ";") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), "=")
			if IsOwnCookie(name) {
				continue
			}
			if kept.Len() > 0 {
				kept.WriteByte(';')
			} else {
				part = strings.TrimLeft(part, " ")
			}
			kept.WriteString(part)
		}
		if strings.TrimSpace(kept.String()) != "" {
			out = append(out, kept.String())
		}
	}
	return out
}

// WithoutOwnSetCookies returns the values of Set-Cookie without those that set a cookie which is
// named like the dashboard's.
func WithoutOwnSetCookies(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(value string) bool {
		name, _, _ := strings.Cut(strings.TrimSpace(value), "=")
		return IsOwnCookie(strings.TrimSpace(name))
	})
}

var originRule, stateRule, policyRule = RuleOf("Forwarded"), RuleOf("Clear-Site-Data"), RuleOf("Content-Security-Policy")

// IsOrigin reports whether a header says where a request came from.
func IsOrigin(name string) bool { return RuleOf(name) == originRule }

// IsPagePolicy reports whether a header of an answer says what a browser may do with it.
func IsPagePolicy(name string) bool { return RuleOf(name) == policyRule }

// IsAddressState reports whether a header of an answer changes what a browser keeps of the whole
// address that the answer came from.
func IsAddressState(name string) bool { return RuleOf(name) == stateRule || Is(name, "Set-Cookie") }

// CheckSettable returns why a header cannot be set on requests to an upstream, by the settings of a
// route or by a job. It is empty for one that can be.
func CheckSettable(name string) string {
	if !httpguts.ValidHeaderFieldName(name) {
		return "must be the name of a header: letters, digits and !#$%&'*+-.^_`|~"
	}
	if rule := RuleOf(name); rule != nil && (rule.ToUpstream == Removed || rule.ToUpstream == Set) {
		return "must be another header: Sluice sets or removes this one"
	}
	return ""
}

// CheckValue returns why a text cannot be the value of a header, empty if it can.
func CheckValue(value string) string {
	switch {
	case !httpguts.ValidHeaderFieldValue(value):
		return "must have no line breaks and other control characters"
	case textproto.TrimString(value) != value:
		return "must not begin or end with a blank"
	}
	return ""
}

// Replace sets headers in place of those that have the same names, however they are written.
func Replace(h, set http.Header) {
	for name, values := range set {
		for other := range h {
			if sameName(name, other) {
				delete(h, other)
			}
		}
		h[name] = values
	}
}

// sameName is Comparable(a) == Comparable(b) without making either.
func sameName(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if plainByte(a[i]) != plainByte(b[i]) {
			return false
		}
	}
	return true
}

// plainByte is a byte of a name as Comparable has it. Names are ASCII.
func plainByte(c byte) byte {
	switch {
	case c >= 'A' && c <= 'Z':
		return c + 'a' - 'A'
	case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		return c
	}
	return '-'
}
