package config

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/auth"
)

// ListenerTLS is how a listener speaks TLS: the contents of files in PEM. Without a certificate it
// speaks plain HTTP.
type ListenerTLS struct {
	Off        bool // plain HTTP is intended, also beyond loopback
	Cert, Key  string
	ClientCA   string // authorities of the certificates of clients; empty: clients need none
	ClientAuth string // require or optional; empty without ClientCA
	MinVersion string // 1.2 or 1.3
}

// On reports whether the listener speaks TLS.
func (t ListenerTLS) On() bool { return t.Cert != "" }

// likeBut reports whether t differs from other at most in the contents of files.
func (t ListenerTLS) likeBut(other ListenerTLS) bool {
	for _, content := range []struct{ of, as *string }{{&t.Cert, &other.Cert}, {&t.Key, &other.Key}, {&t.ClientCA, &other.ClientCA}} {
		if *content.of != "" && *content.as != "" {
			*content.of = *content.as
		}
	}
	return t == other
}

// Listeners returns the settings of TLS of all listeners by the section of the listener, such as
// api and forward[0].
func (c *Config) Listeners() map[string]*ListenerTLS {
	all := map[string]*ListenerTLS{"api": &c.API.TLS, "admin": &c.Admin.TLS, "metrics": &c.Metrics.TLS}
	for i := range c.Forward {
		all[fmt.Sprintf("forward[%d]", i)] = &c.Forward[i].TLS
	}
	return all
}

// Renew takes over the files of listeners from another reading of the settings, and returns the
// sections of those that changed. Listeners whose files had a mistake there keep theirs, as do
// those with other settings, which need a restart. c must not share Forward with another Config.
func (c *Config) Renew(from Config) (changed []string) {
	after := from.Listeners()
	for section, before := range c.Listeners() {
		if now := after[section]; now != nil && now.On() && *now != *before && now.likeBut(*before) {
			*before, changed = *now, append(changed, section)
		}
	}
	slices.Sort(changed)
	return changed
}

// tlsSettings are the settings below tls of a listener; section ends with a point, or is empty.
func tlsSettings(section string) []Setting {
	off := toggle(section+"tls.off", "Plain HTTP is intended, in the file: `tls: off`. A listener beyond loopback without TLS "+
		"requires it: a proxy ends TLS, or the network is trusted.")
	version := choice(section+"tls.min_version", "1.2", "Lowest version of TLS.", "1.2", "1.3")
	client := choice(section+"tls.client_auth", "", "With client_ca: a connection needs a certificate of a client (require, the "+
		"default), or may have one (optional).", "require", "optional")
	client.check = unsetOr(client.check)
	settings := []Setting{
		{Key: section + "tls.cert", Kind: Text, check: unsetOr(notEmpty), Rule: "must be the path of a file with a certificate in PEM",
			Help: "File with the certificate of the listener, and with those between it and its authority. It is read again " +
				"when it changes."},
		{Key: section + "tls.key", Kind: Text, check: unsetOr(notEmpty), Rule: "must be the path of a file with a private key in PEM",
			Help: "File with the key of the certificate."},
		{Key: section + "tls.client_ca", Kind: Text, protects: true, check: unsetOr(notEmpty),
			Rule: "must be the path of a file with certificates in PEM",
			Help: "File with the authorities that sign certificates of clients. Not set: clients need no certificate."},
		client, version, off,
	}
	if section != "" && section != "api." {
		for i, s := range settings {
			settings[i].Help = "As api." + strings.TrimPrefix(s.Key, section) + "."
		}
	}
	return settings
}

// markOff replaces tls: off in the section of a listener by the form of tlsSettings. It returns
// false if tls is something else than a section.
func markOff(section map[string]any) bool {
	switch given := section["tls"].(type) {
	case nil:
		delete(section, "tls") // an empty section
	case map[string]any:
	case string:
		if given != "off" {
			return false
		}
		section["tls"] = map[string]any{"off": true}
	default:
		return false
	}
	return true
}

const tlsRule = "must be off, or a section such as { cert: FILE, key: FILE }"

// listenerTLS replaces the paths of t, of the listener in the section at path, by the contents of
// the files, and checks them. After a mistake t has no contents.
func (r *reader) listenerTLS(path, listen string, t *ListenerTLS) {
	given := t.Cert != "" || t.Key != "" || t.ClientCA != "" || t.ClientAuth != "" || t.MinVersion == "1.3"
	before := len(r.problems)
	switch {
	case given && t.Off:
		r.problem(r.at(path+".tls.off"), "true", "must not be set beside the other settings of tls")
	case given:
		r.certificates(path+".tls", t)
	case listen != "" && isAddress(listen) && !IsLoopback(listen) && !t.Off:
		r.problem(r.at(path+".listen"), show(listen), "must be a loopback address without TLS: write "+
			"tls: { cert: FILE, key: FILE } in "+path+", or tls: off where a proxy ends TLS or the network is trusted"+variant(path))
	}
	if len(r.problems) > before || !given {
		*t = ListenerTLS{Off: t.Off}
	}
}

// variant names the variable and the flag of tls: off, which a listener of forwarded requests does
// not have.
func variant(path string) string {
	if strings.HasPrefix(path, "forward") {
		return ""
	}
	off := Setting{Key: path + ".tls.off"}
	return fmt.Sprintf(" (or %s=true, or --%s)", off.Env(), off.Flag())
}

func (r *reader) certificates(path string, t *ListenerTLS) {
	whole := r.contents(path, referredFile{"cert", &t.Cert, false}, referredFile{"key", &t.Key, true},
		referredFile{"client_ca", &t.ClientCA, false})
	switch {
	case !whole:
	case t.Cert == "" || t.Key == "":
		r.problem(path, "a section", "must have both cert and key")
	default:
		r.pair(path, t.Cert, t.Key)
	}
	switch {
	case t.ClientCA == "" && t.ClientAuth != "" && whole:
		r.problem(r.at(path+".client_auth"), t.ClientAuth, "needs client_ca, by which certificates of clients are verified")
	case t.ClientCA != "" && whole && !x509.NewCertPool().AppendCertsFromPEM([]byte(t.ClientCA)):
		r.problem(path+".client_ca", "the file", "must have a certificate in PEM")
	case t.ClientCA != "" && t.ClientAuth == "":
		t.ClientAuth = "require"
	}
}

// needClientCA reports a listener for clients that cannot verify the certificates that auth.mode
// accepts.
func (r *reader) needClientCA(c *Config, path string, t *ListenerTLS) {
	if slices.Contains(c.Auth.Modes(), auth.Cert) && t.ClientCA == "" {
		r.problem(r.at(path+".tls.client_ca"), "nothing", "must be set if auth.mode has cert")
		*t = ListenerTLS{}
	}
}

// joinLists joins lists of the file to the text form of a variable or a flag.
func joinLists(values map[string]any) {
	for _, at := range [][2]string{
		{"admin", "allow"}, {"egress", "allow"}, {"callbacks", "deny"},
		{"admin.oidc", "scopes"}, {"admin.oidc", "viewers"}, {"admin.oidc", "operators"}, {"admin.oidc", "admins"},
	} {
		section := sectionOf(values, at[0])
		if list, is := section[at[1]].([]any); is {
			section[at[1]] = joined(list)
		}
	}
}

// joined returns a list of texts without commas as one text, and any other list as it is.
func joined(list []any) any {
	texts := make([]string, len(list))
	for i, raw := range list {
		text, ok := raw.(string)
		if !ok || strings.Contains(text, ",") {
			return list
		}
		texts[i] = text
	}
	return strings.Join(texts, ",")
}

// networksOf returns the networks that a text lists. An address is the network of itself.
func networksOf(text string) (networks []netip.Prefix, ok bool) {
	if text == "" {
		return nil, true
	}
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		p, err := netip.ParsePrefix(one)
		if addr, failed := netip.ParseAddr(one); err != nil && failed == nil && addr.Zone() == "" {
			p, err = addr.Prefix(addr.BitLen())
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, false
		}
		networks = append(networks, p.Masked())
	}
	return networks, true
}

func isNetworks(text string) bool {
	_, ok := networksOf(text)
	return ok
}
