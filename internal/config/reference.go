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
	table := func(title string, settings []Setting) {
		fmt.Fprintf(&b, "\n%s\n\n| key | default | rule | what it does |\n|---|---|---|---|\n", title)
		for _, s := range settings {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Key, shownDefault(s), s.Rule, s.Help)
		}
	}
	b.WriteString("\nFour lists can be set in the file only:\n\n| key | default | rule | what it does |\n" +
		"|---|---|---|---|\n" +
		"| `auth.jwt.keys` | not set | must be a list of sections as below | Keys of the issuer of tokens " +
		"([authentication](authentication.md)). |\n" +
		"| `auth.guest.trusted_proxies` | not set | must be a list of prefixes such as `10.1.2.3/32` | " +
		"Proxies whose `X-Forwarded-For` is accepted. Not set: the address of the connection " +
		"identifies a guest. |\n" +
		"| `callbacks.allow` | not set | must be a list of URL prefixes such as " +
		"`https://partner.example/hooks/` | Callback URLs that may lead to private addresses. All " +
		"others must lead to a public address. |\n" +
		"| `callbacks.secrets` | not set | must be a list of `whsec_` and the base64 of 24 to 64 bytes | " +
		"Secrets that sign callbacks (Standard Webhooks). All of them sign, so that they can be " +
		"rotated. |\n")
	table("### A key: each of `auth.jwt.keys`", tokenKeySettings())
	table("### A route: `routes.NAME`", RouteSettings())
	b.WriteString("| `secrets` | not set | must be a list of `whsec_` and the base64 of 24 to 64 bytes | " +
		"Secrets that sign deliveries (Standard Webhooks). All of them sign, so that they can be " +
		"rotated. |\n")
	b.WriteString("| `retry.on` | `[502, 503, 504]` | must be a list of statuses from 400 to 599 | With forward: " +
		"statuses after which a request is sent again. |\n")
	b.WriteString("### A listener of forwarded requests: each of `forward`\n\n" +
		"| Setting | Default | Value | What it does |\n|---|---|---|---|\n" +
		"| `listen` | not set | must be HOST:PORT | Address whose requests all go to the route, with path and query " +
		"as they are. Required. |\n" +
		"| `route` | not set | must be the name of a route with forward | Their route. Required. |\n\n")
	table("### A guard: `guards.NAME`, which [limits requests](limiters.md#guards-before-the-intake)",
		GuardSettings())
	fmt.Fprintf(&b, "| `by` | not set | must be a list of tenant, guest, endpoint, address, network, route, type | "+
		"Parts of the key that requests are counted by, such as `[tenant, endpoint]`. Required. |\n"+
		"| `endpoints` | not set | must be a list of %s; of a guard that counts jobs, of %s | Operations "+
		"that it limits. Not set: all. |\n"+
		"| `routes` | not set | must be a list of names of routes | Count only jobs for these routes, each "+
		"job of a batch as one. |\n"+
		"| `types` | not set | must be a list of types of jobs, such as `user.login` | Count only jobs of "+
		"these types, each job of a batch as one. |\n",
		strings.Join(guard.Endpoints(), ", "), strings.Join(guard.JobEndpoints(), ", "))
	table("### A pool: `pools.NAME`, a rate that [the flows of its routes share](pools.md)", PoolSettings())
	rates := shaper.SettingsOfPools()[slices.IndexFunc(shaper.SettingsOfPools(), func(s shaper.Setting) bool { return s.Kind == shaper.KindRates })]
	fmt.Fprintf(&b, "| `%s` | not set | %s | %s |\n", rates.Key(), rates.FileRule(), rates.PoolHelp)
	b.WriteString("| `routes` | not set | must be a list of names of routes, each in one pool at most | Routes whose flows share the rate. Required. |\n")
	tenant := TenantSettings()
	for i := range tenant {
		tenant[i].Default = ""
	}
	table("### A tenant: `tenants.NAME`, `tenants.defaults`, and a tier: `tiers.NAME`", tenant)
	fmt.Fprintf(&b, "| `%s` | not set | %s | %s |\n", rates.Key(), rates.FileRule(), rates.Help)
	b.WriteString("| `routes.ROUTE` | not set | must be a section with the settings above | Settings of the flows of this route. They outrank the settings of the tenant. |\n" +
		"| `tier` | not set | must be the name of a tier | For a named tenant only: the settings of the tier override the defaults. |\n")
	table("### Of a tier alone: `tiers.NAME`", TierSettings())
	return b.String()
}

func shownDefault(s Setting) string {
	if s.Default == "" {
		return "not set"
	}
	return "`" + s.Default + "`"
}
