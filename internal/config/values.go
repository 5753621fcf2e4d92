package config

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// hidden replaces the value of a secret.
const hidden = "(hidden)"

// read converts a value of the file, the environment or a flag to the setting's type: string,
// int64, bool, time.Duration, shaper.Rate or *float64. It returns the rule that the value breaks,
// empty for a valid one.
func (s Setting) read(raw any) (value any, rule string) {
	switch s.Kind {
	case Whole:
		n, ok := wholeOf(raw)
		if !ok || !s.bounded(n) {
			return nil, s.Rule
		}
		return n, ""
	case Size:
		n, ok := sizeOf(raw)
		if !ok || !s.bounded(n) {
			return nil, s.Rule
		}
		return n, ""
	case Switch:
		if b, ok := raw.(bool); ok {
			return b, ""
		}
		return nil, s.Rule
	case Duration:
		d, ok := durationOf(raw)
		if !ok || !s.bounded(int64(d)) {
			return nil, s.Rule
		}
		return d, ""
	case Rate:
		text, ok := raw.(string)
		if !ok {
			return nil, s.Rule
		}
		if text == "" && s.Default == "" {
			return shaper.Rate{}, "" // not set
		}
		rate, err := shaper.ParseRate(text)
		if err != nil {
			return nil, err.Error()
		}
		return rate, ""
	case Fraction:
		if raw == "" && s.Default == "" {
			return (*float64)(nil), "" // not set
		}
		fraction, ok := fractionOf(raw)
		if !ok {
			return nil, s.Rule
		}
		return &fraction, ""
	default:
		text, ok := raw.(string)
		if n, is := wholeOf(raw); is && s.numbers {
			text, ok = strconv.FormatInt(n, 10), true
		}
		if f, is := raw.(float64); is && len(s.choices) > 0 { // such as a version
			text, ok = strconv.FormatFloat(f, 'g', -1, 64), true
		}
		if ok && (s.check == nil || s.check(text)) {
			return text, ""
		}
		return nil, s.Rule
	}
}

// typed converts text of the environment or the command line to the type that YAML would give it.
// Invalid text stays text; read refuses it.
func (s Setting) typed(text string) any {
	switch s.Kind {
	case Whole:
		if n, plain := numbers.ParseWhole(text); plain {
			return n
		}
	case Switch:
		switch text {
		case "true":
			return true
		case "false":
			return false
		}
	case Fraction:
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return f
		}
	}
	return text
}

// show returns the value for a problem, without secrets.
func (s Setting) show(raw any) string {
	if s.Secret {
		if text, ok := raw.(string); ok && !strings.ContainsAny(text, ":@/?=") && s.Key == "redis.url" {
			return show(raw) // it cannot contain a password
		}
		return hidden
	}
	// A refused URL may contain a password.
	if text, ok := raw.(string); ok && strings.Contains(text, "@") {
		return hidden
	}
	return show(raw)
}

// show returns readable text of a value in bounded length. Sections and lists are named by their
// kind alone, because they may contain secrets.
func show(raw any) string {
	switch v := raw.(type) {
	case nil:
		return "nothing"
	case string:
		if utf8.RuneCountInString(v) > 80 {
			v = string([]rune(v)[:80]) + "…"
		}
		return strconv.Quote(v)
	case map[string]any:
		return "a section"
	case []any:
		return "a list"
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".eIN") {
			text += ".0" // to differ from a whole number
		}
		return text
	default:
		return fmt.Sprint(v)
	}
}

// wholeOf returns a YAML value as a whole number. It refuses floats, even 2.0, so that no fraction
// is dropped silently.
func wholeOf(raw any) (int64, bool) {
	switch v := raw.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	default:
		return 0, false
	}
}

// fractionOf returns a YAML value as a number from 0 to 1.
func fractionOf(raw any) (float64, bool) {
	f, ok := raw.(float64)
	if n, whole := wholeOf(raw); whole {
		f, ok = float64(n), true
	}
	return f, ok && f >= 0 && f <= 1
}

// durationOf reads a Go duration, or a bare zero.
func durationOf(raw any) (time.Duration, bool) {
	if n, ok := wholeOf(raw); ok {
		return 0, n == 0
	}
	text, ok := raw.(string)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

func notEmpty(text string) bool { return strings.TrimSpace(text) != "" }

// isRedisURL accepts URLs of the engine: one server, a cluster, Sentinel. Empty is not set.
func isRedisURL(text string) bool { return text == "" || queue.ParseURL(text) == nil }

// isToken accepts text that fits into an Authorization header and is long enough against guessing.
// Empty is not set.
func isToken(text string) bool {
	if text == "" {
		return true
	}
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(text) >= 16 && len(text) <= 255
}

func isUpstream(text string) bool { return httpmsg.CheckURL(text) == "" }

func isTokenURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.Fragment == ""
}

// isPublicURL accepts the origin of a web page.
func isPublicURL(text string) bool {
	u, err := url.Parse(text)
	return isTokenURL(text) && err == nil && u.User == nil && u.RawQuery == "" && !u.ForceQuery && strings.Trim(u.Path, "/") == ""
}

func isProxy(text string) bool {
	_, err := outbound.ParseProxy(text)
	return err == nil
}

// isServerName accepts names of hosts as certificates have them.
func isServerName(text string) bool {
	return len(text) <= 253 && strings.Trim(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.:") == ""
}

// isCollector accepts URLs of a collector of OTLP over HTTP. Empty is not set.
func isCollector(text string) bool {
	u, err := url.Parse(text)
	return text == "" || isUpstream(text) && err == nil && u.User == nil && u.RawQuery == "" && !u.ForceQuery
}

// isCostSource accepts where an answer may have the actual cost: in the header Sluice-Cost, or at a
// JSON pointer.
func isCostSource(text string) bool {
	return text == costNone || text == costHeader || text != "" && jsontext.Pointer(text).IsValid()
}

// isMissingCost accepts what an answer costs that does not report its cost.
func isMissingCost(text string) bool {
	n, ok := numbers.ParseWhole(text)
	return text == "estimate" || ok && n >= 0 && n <= shaper.MaxCost
}

// isQueue accepts the name of an asynq queue.
func isQueue(text string) bool { return strings.TrimSpace(text) != "" && len(text) <= 255 }

// isTenantChoice accepts the values of metrics.tenants.
func isTenantChoice(text string) bool {
	if number, is := strings.CutPrefix(text, TenantsTop); is {
		n, err := strconv.Atoi(number)
		return err == nil && n >= 1 && n <= 100 && number == strconv.Itoa(n)
	}
	return text == TenantsNamed || text == TenantsNone
}

// isAddress accepts IP:PORT, localhost:PORT and :PORT, which is every interface.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	if host == "" || host == "localhost" {
		return true
	}
	_, err = netip.ParseAddr(host)
	return err == nil
}

// isHosts accepts host names, optionally with ports, separated by commas. Empty is not set.
func isHosts(text string) bool {
	return strings.Trim(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789-_.:[], ") == ""
}

// IsLoopback reports whether only this machine can reach the address of a listener.
func IsLoopback(text string) bool {
	host, _, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// isSecret accepts a signing secret of Standard Webhooks: whsec_ and the base64 of 24 to 64 bytes.
func isSecret(text string) bool {
	encoded, found := strings.CutPrefix(text, "whsec_")
	raw, err := base64.StdEncoding.DecodeString(encoded)
	return found && err == nil && len(raw) >= 24 && len(raw) <= 64
}

// isRoute accepts names that are safe in a URL, a metric and a Redis key.
func isRoute(name string) bool {
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= 64
}
