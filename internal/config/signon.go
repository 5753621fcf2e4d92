package config

import (
	"strings"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/signon"
)

// OIDC holds the settings of single sign-on; without an Issuer there is none. Its lists are texts
// with commas.
type OIDC struct {
	Issuer, ClientID, ClientSecret string
	Scopes                         string
	NameClaim, GroupsClaim         string
	Viewers, Operators, Admins     string // groups with that role
}

// List returns the elements of a text with commas, without the blanks around them.
func List(text string) (all []string) {
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

func isIssuer(text string) bool {
	return auth.KeySetRule(text) == "" && !strings.ContainsAny(text, "?#")
}

func isScopes(text string) bool {
	for _, scope := range List(text) {
		if signon.ScopeRule(scope) != "" {
			return false
		}
	}
	return true
}

func groupsWith(key, role string) Setting {
	return Setting{Key: "admin.oidc." + key, Kind: Text, check: unsetOr(isName),
		Help: "Groups at the provider whose members have the role " + role + ", separated by commas; * is everybody who can " +
			"sign in there. An operator has the highest role of all groups. In the file it may be a list.",
		Rule: "must be names of groups separated by commas, at most 255 characters together"}
}

// signOn checks the rules between the settings of single sign-on.
func (r *reader) signOn(a Admin) {
	o := a.OIDC
	if o.Issuer == "" {
		if o.ClientID != "" {
			r.problem(r.at("admin.oidc.issuer"), "nothing", "must be set beside admin.oidc.client_id")
		}
		return
	}
	for _, need := range []struct{ key, value string }{
		{"admin.oidc.client_id", o.ClientID}, {"admin.public_url", a.PublicURL}, {"admin.token", a.Token},
		{"admin.oidc.admins", o.Viewers + o.Operators + o.Admins},
	} {
		if need.value == "" {
			r.problem(r.at(need.key), "nothing", "must be set beside admin.oidc.issuer")
		}
	}
}
