package process

import (
	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/config"
)

// signOn returns the settings of single sign-on, nil for none.
func signOn(o config.OIDC) *api.SignOn {
	if o.Issuer == "" {
		return nil
	}
	return &api.SignOn{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Scopes: config.List(o.Scopes),
		NameClaim: o.NameClaim, GroupsClaim: o.GroupsClaim,
		Viewers: config.List(o.Viewers), Operators: config.List(o.Operators), Admins: config.List(o.Admins),
	}
}
