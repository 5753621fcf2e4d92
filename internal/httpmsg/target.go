package httpmsg

import (
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"golang.org/x/net/http/httpguts"
)

// CheckMethod returns the rule that the method of a forwarded request breaks; empty for a good one.
// An answer to TRACE repeats the request with the credentials that were added to it.
func CheckMethod(method string) string {
	switch {
	case method == "" || !httpguts.ValidHeaderFieldName(method): // a token, too
		return "must be a token (RFC 9110, section 5.6.2)"
	case strings.EqualFold(method, http.MethodConnect) || strings.EqualFold(method, http.MethodTrace):
		return "must not be CONNECT or TRACE"
	}
	return ""
}

// Kinds of characters of a request target (RFC 3986).
const (
	unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
	pathChars  = unreserved + "!$&'()*+,;=:@/"
	queryChars = pathChars + "?"
)

// Target returns the request target with which a request leaves, and the rule that it breaks; empty
// for a good one. It is the path below the base URL with this path, and the query. Both stay as
// they are encoded. Characters that must be encoded (RFC 3986), but that clients send, are encoded.
func Target(base, target string) (sent, rule string) {
	path, query, asked := strings.Cut(target, "?")
	if path != "" && path[0] != '/' {
		return "", "must begin with a slash"
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return "", "must not have spaces, control characters and #, unless they are percent-encoded"
		}
	}
	if _, err := url.PathUnescape(path); err != nil {
		return "", "must be percent-encoded"
	}
	if strings.HasPrefix(strings.TrimRight(base, "/")+path, "//") {
		return "", "must not begin with two slashes"
	}
	if leaves(path) {
		return "", dotsRule
	}
	if sent = escape(path, pathChars); asked {
		sent += "?" + escape(query, queryChars)
	}
	return sent, ""
}

// escape encodes what is neither one of these characters nor encoded.
func escape(text, plain string) string {
	var out strings.Builder
	for i := range len(text) {
		c := text[i]
		if strings.IndexByte(plain, c) >= 0 || c == '%' && isEncoded(text[i:]) {
			out.WriteByte(c)
		} else {
			out.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return out.String()
}

const hexDigits = "0123456789ABCDEF"

// isEncoded reports whether a text that begins with % begins with an encoded byte.
func isEncoded(text string) bool {
	if len(text) < 3 {
		return false
	}
	_, err := hex.DecodeString(text[1:3])
	return err == nil
}

const dotsRule = "must not have the segments . or .., encoded or not"

// decodings bounds how often a path is decoded.
const decodings = 8

// leaves reports whether a path has a segment . or .. for any server's idea of one: after any
// number of decodings, with a backslash for a slash, with parameters, a query, blanks or NUL behind
// it, in overlong UTF-8 or in characters that look like them.
func leaves(path string) bool {
	for range decodings {
		if hasDots(path) {
			return true
		}
		next, err := url.PathUnescape(path)
		if err != nil || next == path {
			return false
		}
		path = next
	}
	return true // nobody encodes a path so often
}

// overlong turns encodings of dots and slashes that UTF-8 forbids into them.
var overlong = strings.NewReplacer("\xc0\xae", ".", "\xc0\xaf", "/", "\xe0\x80\xae", ".", "\xe0\x80\xaf", "/",
	"\xc1\x9c", `\`, "\xe0\x81\x9c", `\`, "\xf0\x80\x80\xae", ".", "\xf0\x80\x80\xaf", "/", "\xf0\x80\x81\x9c", `\`,
	"\uff0e", ".", "\u2024", ".", "\uff0f", "/", "\u2215", "/", "\uff3c", `\`)

func hasDots(path string) bool {
	path = overlong.Replace(path)
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		end := strings.IndexAny(segment, ";?#\x00")
		if end < 0 {
			end = len(segment)
		}
		blank := func(r rune) bool { return r <= ' ' || r == 0x7f || unicode.IsSpace(r) || unicode.Is(unicode.Cf, r) }
		if name := strings.TrimFunc(segment[:end], blank); name == ".." || name == "." {
			return true
		}
	}
	return false
}

// CheckPath returns the rule that a path below a base URL breaks; empty for a good one. It is
// stricter than Target: nothing is left to encode, there is no query and no empty first segment.
func CheckPath(path string) string {
	if escape(path, pathChars) != path || strings.Contains(path, "?") {
		return "must be percent-encoded, and without a query"
	}
	if path == "" {
		return "must begin with a slash"
	}
	if _, rule := Target("", path); rule != "" {
		return rule
	}
	for plain := path; ; {
		next, err := url.PathUnescape(plain)
		switch {
		case err != nil || next == plain:
			return ""
		case strings.HasPrefix(next, "//"):
			return "must not begin with two slashes, encoded or not"
		}
		plain = next
	}
}

// CheckURL returns the rule that the URL of a route breaks; empty for a good one.
func CheckURL(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Contains(raw, "#"):
		return "must be an absolute http:// or https:// URL without a fragment"
	case u.Path == "":
		return ""
	}
	rest := u.EscapedPath()
	if u.RawQuery != "" {
		rest += "?" + u.RawQuery
	}
	if sent, rule := Target("", rest); rule != "" {
		return "must have a path that " + strings.Replace(rule, "must ", "does ", 1)
	} else if sent != rest || !strings.HasSuffix(strings.TrimSuffix(raw, "?"), rest) {
		return "must be percent-encoded"
	}
	return ""
}
