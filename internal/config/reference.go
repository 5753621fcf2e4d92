package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/shaper"
)

// Reference returns the tables of the reference page in Markdown: every scalar setting, then those
// of a key, a route, a guard and a tenant.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | default | rule | what it does | variable, flag |\n|---|---|---|---|---|\n")
	for _, s := range Settings() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` `--%s` |\n", s.Key, shownDefault(s), s.Rule, s.Help,
			s.Env(), s.Flag())
	}
	table := func(title string, settings []Setting, lists ...Setting) {
		fmt.Fprintf(&b, "\n%s\n\n| key | default | rule | what it does |\n|---|---|---|---|\n", title)
		for _, s := range slices.Concat(settings, lists) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Key, shownDefault(s), s.Rule, s.Help)
		}
	}
	table("Four lists can be set in the file only:", lists)
	table("### An issuer: each of `auth.jwt.issuers`, or of `auth.jwt` as a list", issuerSettings(),
		list("keys", "as `auth.jwt.keys`", "Keys that verify its tokens."))
	table("### A key: each of `auth.jwt.keys`", tokenKeySettings())
	table("### A route: `routes.NAME`", RouteSettings(),
		list("secrets", secretsRule,
			"Secrets that sign deliveries (Standard Webhooks). All of them sign, so that they can be rotated."),
		Setting{Key: "retry.on", Default: "[502, 503, 504]", Rule: "must be a list of statuses from 400 to 599",
			Help: "With forward: statuses after which a request is sent again."},
		list("job_headers", "names of headers, none that Sluice or the route sets",
			"With url or asynq: [headers that a job may set](http.md#headers-of-a-job), such as `[X-Request-Id]`."),
		Setting{Key: "headers", Rule: "must be a section of names and values; Sluice sets none of them, as `Host` or `Sluice-*`, itself",
			Help: "Headers of each request to the upstream. A value may have [references](#references). With forward they " +
				"replace the client's."},
		list("oauth2.scopes", "names without blanks", "Scopes of the token."))
	table("### A listener of forwarded requests: each of `forward`", append([]Setting{
		{Key: "listen", Rule: "must be HOST:PORT",
			Help: "Address whose requests all go to the route, with path and query as they are. Required."},
		{Key: "route", Rule: "must be the name of a route with forward", Help: "Their route. Required."},
	}, tlsSettings("")...))
	table("### A guard: `guards.NAME`, which [limits requests](limiters.md#guards-before-the-intake)",
		GuardSettings(),
		list("by", "tenant, guest, endpoint, address, network, route, type",
			"Parts of the key that requests are counted by, such as `[tenant, endpoint]`. Required."),
		list("endpoints", strings.Join(guard.Endpoints(), ", ")+"; of a guard that counts jobs, of "+
			strings.Join(guard.JobEndpoints(), ", "), "Operations that it limits. Not set: all."),
		list("routes", "names of routes", "Count only jobs for these routes, each job of a batch as one."),
		list("types", "types of jobs, such as `user.login`", "Count only jobs of these types, each job of a batch as one."))
	of := func(kind shaper.Kind) shaper.Setting {
		all := shaper.Settings()
		return all[slices.IndexFunc(all, func(s shaper.Setting) bool { return s.Kind == kind })]
	}
	rates, types := of(shaper.KindRates), of(shaper.KindTypes)
	table("### A pool: `pools.NAME`, a rate that [the flows of its routes share](pools.md)", PoolSettings(),
		Setting{Key: rates.Key(), Rule: rates.FileRule(), Help: rates.PoolHelp},
		list("routes", "names of routes, each in one pool at most", "Routes whose flows share the rate. Required."))
	tenant := TenantSettings()
	for i := range tenant {
		tenant[i].Default = ""
	}
	table("### A tenant: `tenants.NAME`, `tenants.defaults`, and a tier: `tiers.NAME`", tenant,
		Setting{Key: rates.Key(), Rule: rates.FileRule(), Help: rates.Help},
		Setting{Key: types.Key(), Rule: types.FileRule(), Help: types.Help},
		Setting{Key: "routes.ROUTE", Rule: "must be a section with the settings above",
			Help: "Settings of the flows of this route. They outrank the settings of the tenant."},
		Setting{Key: "tier", Rule: "must be the name of a tier",
			Help: "For a named tenant only: the settings of the tier override the defaults."})
	table("### Of a tier alone: `tiers.NAME`", TierSettings())
	return b.String()
}

const secretsRule = "`whsec_` and the base64 of 24 to 64 bytes"

func list(key, rule, help string) Setting {
	return Setting{Key: key, Rule: "must be a list of " + rule, Help: help}
}

// lists are the settings of the file alone that are in no section with a name.
var lists = []Setting{
	list("auth.jwt.keys", "sections as below", "Keys of the issuer of tokens ([authentication](authentication.md))."),
	list("auth.guest.trusted_proxies", "prefixes such as `10.1.2.3/32`", "Proxies whose `X-Forwarded-For` is accepted. "+
		"Not set: the address of the connection identifies a guest."),
	list("callbacks.allow", "URL prefixes such as `https://partner.example/hooks/`", "Callback URLs that may lead to "+
		"private addresses. All others must lead to a public address."),
	list("callbacks.secrets", secretsRule,
		"Secrets that sign callbacks (Standard Webhooks). All of them sign, so that they can be rotated."),
}

func shownDefault(s Setting) string {
	if s.Default == "" {
		return "not set"
	}
	return "`" + s.Default + "`"
}
