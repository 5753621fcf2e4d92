package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/signon"
)

// SignOn holds the settings of single sign-on at an OpenID Connect provider.
type SignOn struct {
	Issuer       string // as the provider's metadata name it; https, or of this machine
	ClientID     string
	ClientSecret string   // empty: a client without a secret
	Scopes       []string // beside openid
	NameClaim    string   // its value is the name of the operator, after "oidc:"
	GroupsClaim  string   // its values are the operator's groups
	// Viewers, Operators and Admins are the groups that have a role. An operator has the highest of
	// all its groups. The group "*" is everybody who can sign in.
	Viewers, Operators, Admins []string
}

func (o *SignOn) validate(c Config) (errs []error) {
	if o == nil {
		return nil
	}
	wrong := func(field, rule string) { errs = append(errs, fmt.Errorf("api: sign-on: %s %s", field, rule)) }
	if rule := auth.KeySetRule(o.Issuer); rule != "" {
		wrong("issuer", rule)
	}
	for field, value := range map[string]string{
		"client id": o.ClientID, "name claim": o.NameClaim, "groups claim": o.GroupsClaim, "admin token": c.AdminToken,
	} {
		if value == "" {
			wrong(field, "must be set")
		}
	}
	if u, err := url.Parse(c.AdminURL); err != nil || u.Host == "" {
		wrong("admin URL", "must be set: the provider sends browsers back to it")
	}
	for _, scope := range o.Scopes {
		if rule := signon.ScopeRule(scope); rule != "" {
			wrong("scope", rule)
		}
	}
	if len(o.Viewers)+len(o.Operators)+len(o.Admins) == 0 {
		wrong("groups", "must have a role: nobody could sign in")
	}
	return errs
}

// singleSignOn is the dashboard's way to the provider.
type singleSignOn struct {
	*signon.Provider
	*Server
}

func newSingleSignOn(s *Server, o SignOn) *singleSignOn {
	return &singleSignOn{signon.New(signon.Config{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Scopes: o.Scopes,
		Redirect:  strings.TrimRight(s.cfg.AdminURL, "/") + dashboard.CallbackPath,
		NameClaim: o.NameClaim, GroupsClaim: o.GroupsClaim, Timeout: dashboard.SignOnWait,
		Groups: map[operators.Role][]string{
			operators.Viewer: o.Viewers, operators.Operator: o.Operators, operators.Admin: o.Admins,
		},
	}), s}
}

// Begin implements dashboard.SignOn.
func (o *singleSignOn) Begin(r *http.Request) (to, ticket string, err error) {
	to, ticket, err = o.Provider.Begin(r.Context())
	if err != nil {
		return "", "", o.failed(err)
	}
	return to, ticket, nil
}

// End implements dashboard.SignOn.
func (o *singleSignOn) End(r *http.Request, ticket string) (operators.Actor, error) {
	address := auth.PeerNetwork(r.RemoteAddr)
	if err := o.cfg.Guesses.Allow(r.Context(), "", func() string { return address }); err != nil {
		return operators.Actor{}, problem.Of(err)
	}
	who, err := o.Provider.End(r.Context(), ticket, r.URL.Query())
	if errors.Is(err, signon.ErrRefused) { // each costs the provider a call
		if many := o.cfg.Guesses.Wrong(address); many != nil {
			return operators.Actor{}, problem.Of(many)
		}
	}
	if err != nil {
		return operators.Actor{}, o.failed(err)
	}
	who.Address = text(o.clientIP(r))
	noteSignIn(r, who)
	return who, nil
}

// failed returns the answer to a sign-in that failed. What the provider said goes to the log alone.
func (o *singleSignOn) failed(err error) *problem.Problem {
	known := []error{signon.ErrElsewhere, signon.ErrRefused, signon.ErrNoName, signon.ErrUnverified, signon.ErrNoRole}
	i := slices.IndexFunc(known, func(one error) bool { return errors.Is(err, one) })
	if i < 0 || err != known[i] { //nolint:errorlint // a wrapped one has more to log
		o.errors.signOn.Add(burstlog.Key{Kind: strings.ToValidUTF8(fmt.Sprintf("%.300s", err), "")}, 1)
	}
	switch {
	case i < 0:
		return problem.IssuerUnavailable.With("the provider cannot be reached, or its answer cannot be used")
	case errors.Is(err, signon.ErrNoName) || errors.Is(err, signon.ErrUnverified) || errors.Is(err, signon.ErrNoRole):
		return problem.Forbidden.With(known[i].Error())
	default:
		return problem.Unauthorized.With(known[i].Error())
	}
}
