package config

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
)

// calls reads how the upstream of the route in the section at path is called, beside the scalars,
// which are read already.
func (r *reader) calls(path string, values map[string]any, route *Route) {
	if values["asynq"] != nil {
		for _, key := range []string{"method", "headers", "oauth2", "tls", "proxy", "http2"} {
			if raw, set := values[key]; set {
				r.problem(path+"."+key, kindOf(raw), "must not be set together with asynq: it concerns requests to a url or forward")
			}
		}
		return
	}
	r.shown(path, values, route)
	if raw, set := values["method"]; set && route.Forwards() {
		r.problem(path+".method", show(raw), "must not be set together with forward: requests keep their methods")
	}
	if route.Forwards() {
		route.Method = ""
	}
	route.Headers = r.headers(path+".headers", values["headers"])
	r.oauth2(path, values, route)
	r.tls(path+".tls", &route.TLS)
	r.oneCredential(path, route)
}

var reference = regexp.MustCompile(`\$\{[^}]*\}`)

// shown sets the URL of the route's upstream as people see it. References in it are secrets. They
// are refused in the host, which errors name.
func (r *reader) shown(path string, values map[string]any, route *Route) {
	key := "url"
	if route.Forwards() {
		key = "forward"
	}
	raw, _ := values[key].(string)
	var host string
	route.Shown, host = publicURL(raw)
	if strings.Contains(host, hidden) {
		r.problem(r.at(path+"."+key), route.Shown, "must have no reference in its host")
	}
}

// publicURL returns a URL as it was written, without user, query and fragment, and with hidden in
// place of references, and its host.
func publicURL(raw string) (shown, host string) {
	raw = reference.ReplaceAllString(strings.ReplaceAll(raw, "$${", "${"), hidden)
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return "", ""
	}
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		rest = rest[:end]
	}
	host, path, _ := strings.Cut(rest, "/")
	host = host[strings.LastIndexByte(host, '@')+1:]
	if path != "" || strings.HasSuffix(rest, "/") {
		path = "/" + path
	}
	return scheme + "://" + host + path, host
}

func (r *reader) oauth2(path string, values map[string]any, route *Route) {
	section, ok := values["oauth2"].(map[string]any)
	if !ok {
		return // absent, or already reported
	}
	path += ".oauth2"
	for _, key := range []string{"token_url", "client_id", "client_secret"} {
		if section[key] == nil {
			r.problem(path+"."+key, "nothing", "must be set")
		}
	}
	route.OAuth2.Scopes = r.scopes(path+".scopes", section["scopes"])
}

// oneCredential reports that several settings of a route set the header Authorization.
func (r *reader) oneCredential(path string, route *Route) {
	var by []string
	for name := range route.Headers {
		if httpmsg.Is(name, "Authorization") {
			by = append(by, "headers")
		}
	}
	if route.OAuth2.TokenURL != "" {
		by = append(by, "oauth2")
	}
	if route.hasUser() && !route.Forwards() { // a forwarded request has that user where it has none of its own
		by = append(by, "the user in url")
	}
	if len(by) > 1 {
		r.problem(path, strings.Join(by, " and "), "must have one that sets the header Authorization")
	}
}

// hasUser reports whether the URL of the upstream has a user.
func (r Route) hasUser() bool {
	u, err := url.Parse(cmp.Or(r.URL, r.Forward))
	return err == nil && u.User != nil
}

// scopes reads a list of scopes (RFC 6749, section 3.3).
func (r *reader) scopes(path string, raw any) (scopes []string) {
	list, ok := raw.([]any)
	if !ok && raw != nil {
		r.problem(path, kindOf(raw), "must be a list, such as [orders, read]")
	}
	for i, one := range list {
		text, _ := one.(string)
		text, whole := r.expand(fmt.Sprintf("%s[%d]", path, i), text)
		if !whole {
			continue
		}
		if text == "" || slices.ContainsFunc([]byte(text), func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' }) {
			r.problem(fmt.Sprintf("%s[%d]", path, i), show(one), "must be visible ASCII without blanks, quotes and backslashes")
			continue
		}
		scopes = append(scopes, text)
	}
	return scopes
}

// endsSoon is how long before its end a certificate is noted.
const endsSoon = 14 * 24 * time.Hour

// referredFile is a setting whose value is the path of a file, and becomes its content.
type referredFile struct {
	key    string
	value  *string // empty: not set
	secret bool
}

// contents replaces the paths of files in the section at path by their contents. It reports files
// that cannot be read, and returns false.
func (r *reader) contents(path string, files ...referredFile) (whole bool) {
	whole = true
	for _, f := range files {
		if *f.value == "" {
			continue
		}
		content, err := r.referred(*f.value, f.secret)
		if err != nil {
			shown := show(*f.value)
			if strings.Contains(*f.value, "\n") {
				shown = hidden // a key instead of its path
			}
			r.problem(r.at(path+"."+f.key), shown, err.Error())
			whole = false
		}
		*f.value = content
	}
	return whole
}

// pair checks a certificate and its key, and notes a certificate that ends soon.
func (r *reader) pair(path, cert, key string) {
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		r.problem(path+".cert", "the files", "must be a certificate and its key in PEM: "+err.Error())
	} else if end, left := pair.Leaf.NotAfter, time.Until(pair.Leaf.NotAfter); left < endsSoon {
		verb := "ends"
		if left < 0 {
			verb = "has ended"
		}
		r.open = append(r.open, fmt.Sprintf("the certificate of %s.cert %s on %s", path, verb, end.UTC().Format(time.DateOnly)))
	}
}

// tls replaces the paths of t by the contents of the files, and checks them.
func (r *reader) tls(path string, t *TLS) {
	if !r.contents(path, referredFile{"ca", &t.CA, false}, referredFile{"cert", &t.Cert, false}, referredFile{"key", &t.Key, true}) {
		return
	}
	if t.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(t.CA)) {
		r.problem(path+".ca", "the file", "must have a certificate in PEM")
	}
	switch {
	case (t.Cert == "") != (t.Key == ""):
		r.problem(path, "a section", "must have both cert and key, or neither")
	case t.Cert != "":
		r.pair(path, t.Cert, t.Key)
	}
}

// Config returns the settings of TLS for clients, nil if none is set.
func (t TLS) Config() *tls.Config {
	if t == (TLS{}) {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		var err error
		if c.RootCAs, err = x509.SystemCertPool(); err != nil { // there is none on this system
			c.RootCAs = x509.NewCertPool()
		}
		c.RootCAs.AppendCertsFromPEM([]byte(t.CA))
	}
	if pair, err := tls.X509KeyPair([]byte(t.Cert), []byte(t.Key)); err == nil {
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// CertificateEnd returns when the client certificate ends, zero without one.
func (t TLS) CertificateEnd() time.Time {
	pair, err := tls.X509KeyPair([]byte(t.Cert), []byte(t.Key))
	if err != nil {
		return time.Time{}
	}
	return pair.Leaf.NotAfter
}

// Auth names how requests to the upstream are authenticated, for operators: some of oauth2,
// certificate, header, basic and signature.
func (r Route) Auth() (kinds []string) {
	if r.OAuth2.TokenURL != "" {
		kinds = append(kinds, "oauth2")
	}
	if r.TLS.Cert != "" {
		kinds = append(kinds, "certificate")
	}
	for name := range r.Headers {
		if httpmsg.IsCredential(name) && !slices.Contains(kinds, "header") {
			kinds = append(kinds, "header")
		}
	}
	if r.hasUser() {
		kinds = append(kinds, "basic")
	}
	if len(r.Secrets) > 0 {
		kinds = append(kinds, "signature")
	}
	return kinds
}

// setHeaders returns the names of the headers that the route itself sets on deliveries.
func (r Route) setHeaders() []string {
	names := slices.Collect(maps.Keys(r.Headers))
	if r.hasUser() || r.OAuth2.TokenURL != "" {
		names = append(names, "Authorization")
	}
	return names
}
