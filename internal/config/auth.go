package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/shaper"
)

// Auth is the authentication of clients of the API.
type Auth struct {
	Mode  string // none: by the header Sluice-Tenant; or some of keys, jwt, cert and guest, separated by commas
	Keys  Keys
	Cert  Cert
	JWT   JWT
	Guest Guest
}

// Keys are the bounds of API keys.
type Keys struct {
	MaxAge time.Duration // of new ones; 0: none
}

// Cert defines the tenants of clients by their certificates.
type Cert struct {
	Tenant string // what names the tenant: auth.CertSANURI or auth.CertCN
}

// JWT defines the accepted tokens.
type JWT struct {
	Issuer      string
	Audience    string
	Leeway      time.Duration // maximum difference to the issuer's clock
	TenantClaim string        // its value names the tenant
	TierClaim   string        // its value is the tier; empty: none
	JWKS        string        // file or URL; empty: none
	Keys        []auth.TokenKey

	Prefix        string // of the names of tenants
	SharedTenants bool   // with another issuer
	RequireScope  bool
	Discovery     bool  // of the JWKS
	Issuers       []JWT // further ones; those have none
}

// GuestTier is the tier of guests unless the settings name another one.
const GuestTier = "guests"

// Guest defines the tenants of clients without credentials.
type Guest struct {
	TrustedProxies []netip.Prefix // their X-Forwarded-For is accepted
	Tier           string         // of every guest; empty where there are none
	MaxDelay       time.Duration  // of their jobs
}

// Modes returns the modes of authentication, nil for none.
func (a Auth) Modes() []auth.Mode {
	var modes []auth.Mode
	for mode := range strings.SplitSeq(a.Mode, ",") {
		if mode = strings.TrimSpace(mode); mode != "" && mode != string(auth.None) {
			modes = append(modes, auth.Mode(mode))
		}
	}
	return modes
}

// authSettings are the scalar settings of the section auth.
func authSettings() []Setting {
	text := func(key, value, rule, help string, check func(string) bool) Setting {
		return Setting{Key: key, Kind: Text, Default: value, Rule: rule, Help: help, check: check}
	}
	return slices.Concat([]Setting{
		{Key: "auth.mode", Kind: Text, Default: "none", words: modes, check: isModes,
			Rule: "must be none, or some of keys, jwt, cert and guest, each once, such as keys,guest",
			Help: "How the tenant of a request is found: none (the header Sluice-Tenant, unchecked), or the " +
				"accepted kinds of credentials; cert is the certificate of the client; guest accepts clients " +
				"without credentials. In the file it may be a list."},
		duration("auth.keys.max_age", "0s", 0, 10*365*24*time.Hour,
			"Maximum lifetime of new API keys, and that of keys created without an end. 0s: keys need not end."),
		choice("auth.cert.tenant", "san-uri", "What of the certificate of a client names the tenant: its one URI among the "+
			"alternative names (san-uri), or its common name (cn).", auth.CertSANURI, auth.CertCN),
	}, under("auth.jwt.", issuerSettings()), []Setting{
		text("auth.guest.tier", "", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -",
			"Tier of guests. Not set: the tier "+GuestTier+", which need not be in the file.", unsetOr(isRoute)),
		duration("auth.guest.max_delay", "10m", 0, shaper.MaxPeriod,
			"Maximum delay of a job of a guest; more is refused with 422. A tier may state a lower one."),
	})
}

// under returns the settings with their keys below a section.
func under(section string, settings []Setting) []Setting {
	for i := range settings {
		settings[i].Key = section + settings[i].Key
	}
	return settings
}

// issuerSettings are the settings of an issuer of tokens: of auth.jwt, and of each of
// auth.jwt.issuers.
func issuerSettings() []Setting {
	text := func(key, value, rule, help string, check func(string) bool) Setting {
		return Setting{Key: key, Kind: Text, Default: value, Rule: rule, Help: help, check: check}
	}
	const name = "must be 1 to 255 bytes without control characters"
	return []Setting{
		text("issuer", "", name, "Required issuer of tokens (iss).", unsetOr(isName)),
		text("audience", "", name, "Required audience of tokens (aud).", unsetOr(isName)),
		duration("leeway", "30s", 0, 5*time.Minute,
			"Maximum difference to the clock of the issuer."),
		text("tenant_claim", "sub", name,
			"Claim that names the tenant: the tenant is the prefix followed by its value.", isName),
		text("prefix", "member:", auth.PrefixRule(""), "What the names of tenants of this issuer begin with.",
			func(text string) bool { return auth.PrefixRule(text) == "" }),
		toggle("shared_tenants", "Allow that another issuer, which has this setting too, names the same tenants."),
		text("tier_claim", "", name,
			"Claim with the tier of the tenant. Not set: tokens set no tier.", unsetOr(isName)),
		toggle("require_scope", "Tokens may do only what the scopes in their claim scope or scp say, and nothing without one. "+
			"Otherwise a token that names no scope of Sluice has all but work."),
		text("jwks", "", "must be the path of a file, or an https:// URL (http:// only of a loopback address)",
			"JWK set with the public keys of the issuer; it is read again after changes.", unsetOr(isKeySet)),
		toggle("discovery", "Find the JWK set by the metadata of the issuer (OpenID Connect Discovery), which must be an https:// URL."),
	}
}

// tokenKeySettings returns the settings of each of auth.jwt.keys. A public key is secret too,
// because it may be a private key by mistake.
func tokenKeySettings() []Setting {
	return []Setting{
		{Key: "kid", Kind: Text, check: isName, Rule: "must be 1 to 255 bytes without control characters",
			Help: "Key id. The key verifies only tokens with this id or without an id. Not set: it " +
				"verifies any token."},
		choice("algorithm", "", "Algorithm of the key. Required.", auth.Algorithms()...),
		{Key: "secret", Kind: Text, Secret: true, Rule: "must be at least 32 bytes",
			Help: "Shared secret; for HS256 only."},
		{Key: "public_key", Kind: Text, Secret: true, Rule: "must be one public key or certificate in PEM",
			Help: "Public key. Either this or public_key_file."},
		{Key: "public_key_file", Kind: Text, check: notEmpty, Rule: "must be the path of a file",
			Help: "File with the public key."},
	}
}

// auth reads the lists of the section and checks rules between its settings. The scalars are
// already read.
func (r *reader) auth(c *Config, values map[string]any) {
	jwt, guest := sectionOf(values, "jwt"), sectionOf(values, "guest")
	c.Auth.JWT.Keys = r.tokenKeys("auth.jwt.keys", jwt)
	c.Auth.JWT.Issuers = r.issuers("auth.jwt.issuers", jwt["issuers"])
	c.Auth.Guest.TrustedProxies = r.prefixes("auth.guest.trusted_proxies", guest)
	if !slices.Contains(c.Auth.Modes(), auth.JWT) {
		return
	}
	if len(c.Auth.JWT.Issuers) == 0 || c.Auth.JWT.Issuer != "" || jwt["keys"] != nil || c.Auth.JWT.JWKS != "" {
		r.issuer("auth.jwt", c.Auth.JWT, jwt)
	}
	all := c.Auth.Issuers()
	for i := range all {
		for j := range i {
			if rule := auth.IssuersRule(all[i], all[j]); rule != "" {
				r.problem("auth.jwt", "the issuer "+show(all[i].Issuer), rule)
			}
		}
	}
}

// Issuers returns the issuers of tokens.
func (a Auth) Issuers() []auth.JWTConfig {
	var all []auth.JWTConfig
	for _, j := range append([]JWT{a.JWT}, a.JWT.Issuers...) {
		if j.Issuer != "" {
			all = append(all, auth.JWTConfig{
				Issuer: j.Issuer, Audience: j.Audience, Leeway: j.Leeway, TenantClaim: j.TenantClaim, TierClaim: j.TierClaim,
				Prefix: j.Prefix, Shared: j.SharedTenants, Scoped: j.RequireScope,
				Keys: j.Keys, JWKS: j.JWKS, Discovery: j.Discovery,
			})
		}
	}
	return all
}

// issuers reads the list of further issuers.
func (r *reader) issuers(path string, raw any) []JWT {
	list, ok := raw.([]any)
	if !ok && raw != nil {
		r.problem(path, kindOf(raw), "must be a list of sections")
	}
	var all []JWT
	for i, raw := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		section, ok := raw.(map[string]any)
		if !ok {
			r.problem(at, kindOf(raw), "must be a section with issuer, audience, and keys, jwks or discovery")
			continue
		}
		one := JWT{Leeway: 30 * time.Second, TenantClaim: "sub", Prefix: "member:"}
		r.scalars(at, section, issuerSettings(), &one, "keys")
		one.Keys = r.tokenKeys(at+".keys", section)
		r.issuer(at, one, section)
		all = append(all, one)
	}
	return all
}

// issuer checks rules between the settings of an issuer.
func (r *reader) issuer(at string, j JWT, section map[string]any) {
	for _, s := range []struct{ key, value string }{{"issuer", j.Issuer}, {"audience", j.Audience}} {
		if given, isText := section[s.key].(string); s.value == "" &&
			(section[s.key] == nil || isText && given == "") { // other values were refused already
			r.problem(r.at(at+"."+s.key), "nothing", "must be set if auth.mode has jwt")
		}
	}
	if keys, isList := section["keys"].([]any); j.JWKS == "" && !j.Discovery &&
		(section["keys"] == nil || isList && len(keys) == 0) {
		r.problem(at, "no keys", "must have keys or jwks if auth.mode has jwt, or discovery")
	}
	if rule := auth.KeySetRule(j.Issuer); j.Discovery && j.Issuer != "" && rule != "" {
		r.problem(r.at(at+".issuer"), show(j.Issuer), rule+" for discovery")
	}
	if j.Discovery && j.JWKS != "" {
		r.problem(r.at(at+".jwks"), "a set", "must not be set with discovery")
	}
	if path := j.JWKS; path != "" && !auth.IsURL(path) {
		if _, err := auth.ReadKeySet(path); err != nil {
			r.problem(r.at(at+".jwks"), show(path), err.Error())
		}
	}
}

// listModes joins a list of modes to the text form of a variable or a flag. An invalid list stays
// as it is and is refused later.
func listModes(values map[string]any) {
	section := sectionOf(values, "auth")
	list, ok := section["mode"].([]any)
	if !ok {
		return
	}
	section["mode"] = joined(list)
}

// tokenKeys reads the list of keys that verify tokens.
func (r *reader) tokenKeys(path string, values map[string]any) []auth.TokenKey {
	raw := values["keys"]
	list, ok := raw.([]any)
	if !ok && raw != nil {
		r.problem(path, kindOf(raw), "must be a list of sections")
	}
	var keys []auth.TokenKey
	for i, raw := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		section, ok := raw.(map[string]any)
		if !ok {
			r.problem(at, kindOf(raw),
				"must be a section with algorithm, and secret, public_key or public_key_file")
			continue
		}
		if key, ok := r.tokenKey(at, section); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

func (r *reader) tokenKey(at string, values map[string]any) (auth.TokenKey, bool) {
	var read struct{ Kid, Algorithm, Secret, PublicKey, PublicKeyFile string }
	before := len(r.problems)
	r.scalars(at, values, tokenKeySettings(), &read)
	if _, present := values["algorithm"]; !present {
		r.problem(at+".algorithm", "nothing", "must be set")
	}
	if len(r.problems) > before {
		return auth.TokenKey{}, false
	}
	given := func(key string) bool { return values[key] != nil }
	var key auth.TokenKey
	var err error
	field, shown := "secret", hidden
	switch {
	case read.Algorithm == auth.HS256 && (given("public_key") || given("public_key_file")):
		err = errors.New("must have a secret and no public key: the algorithm is HS256")
		field, shown = "", "a key"
	case read.Algorithm == auth.HS256:
		key, err = auth.NewSecretKey(read.Kid, read.Secret)
	case given("secret") || given("public_key") == given("public_key_file"):
		err = fmt.Errorf("must have either public_key or public_key_file and no secret: the algorithm is %s",
			read.Algorithm)
		field, shown = "", "a key"
	case given("public_key"):
		field = "public_key"
		key, err = auth.NewPublicKey(read.Kid, read.Algorithm, read.PublicKey)
	default:
		field, shown = "public_key_file", show(read.PublicKeyFile)
		var content []byte
		if content, err = readFile(read.PublicKeyFile); err == nil {
			key, err = auth.NewPublicKey(read.Kid, read.Algorithm, string(content))
		}
	}
	if err != nil {
		path := at
		if field != "" {
			path = join(at, field)
		}
		r.problem(path, shown, err.Error())
		return auth.TokenKey{}, false
	}
	return key, true
}

// prefixes reads a list of IP prefixes.
func (r *reader) prefixes(path string, values map[string]any) []netip.Prefix {
	raw := values["trusted_proxies"]
	list, ok := raw.([]any)
	if !ok && raw != nil {
		r.problem(path, kindOf(raw), "must be a list of prefixes, such as [ \"10.1.2.3/32\" ]")
	}
	var prefixes []netip.Prefix
	for i, raw := range list {
		text, _ := raw.(string)
		p, _ := netip.ParsePrefix(text) // ProxyRule refuses the zero prefix
		if rule := auth.ProxyRule(p); rule != "" {
			r.problem(fmt.Sprintf("%s[%d]", path, i), show(raw), rule)
			continue
		}
		prefixes = append(prefixes, p)
	}
	return prefixes
}

// modes are those of authentication; the first stands alone.
var modes = []string{string(auth.None), string(auth.Keys), string(auth.JWT), string(auth.Cert), string(auth.Guest)}

// isModes accepts none, or each of the other modes at most once.
func isModes(text string) bool {
	if text == string(auth.None) {
		return true
	}
	seen := map[string]bool{}
	for mode := range strings.SplitSeq(text, ",") {
		mode = strings.TrimSpace(mode)
		if seen[mode] || !slices.Contains(modes[1:], mode) {
			return false
		}
		seen[mode] = true
	}
	return true
}

// isName accepts names of tenants and in tokens: 1 to 255 bytes without control characters.
func isName(text string) bool {
	return text != "" && len(text) <= 255 && utf8.ValidString(text) &&
		!strings.ContainsFunc(text, unicode.IsControl)
}

// isKeySet accepts a path, or a URL of a web server.
func isKeySet(text string) bool {
	if !strings.Contains(text, "://") {
		return notEmpty(text)
	}
	u, err := url.Parse(text)
	return err == nil && auth.KeySetRule(text) == "" && u.Fragment == ""
}

// unsetOr accepts the empty text too, which means not set.
func unsetOr(check func(string) bool) func(string) bool {
	return func(text string) bool { return text == "" || check(text) }
}
