package config

import (
	"fmt"
	"strings"

	"github.com/7509e464/sluice/api/guard"
)

// Reference is the tables of the reference page, in Markdown: every scalar setting, then those of a
// route and a tenant.
func Reference() string {
	var b strings.Builder
	b.WriteString("| key | default | rule | what it does | variable, flag |\n|---|---|---|---|---|\n")
	for _, s := range Settings() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` `--%s` |\n", s.Key, shownDefault(s), s.Rule, s.Help, s.Env(), s.Flag())
	}
	table := func(title string, settings []Setting) {
		fmt.Fprintf(&b, "\n%s\n\n| key | default | rule | what it does |\n|---|---|---|---|\n", title)
		for _, s := range settings {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Key, shownDefault(s), s.Rule, s.Help)
		}
	}
	b.WriteString("\nFour lists are set in the file alone:\n\n| key | default | rule | what it does |\n|---|---|---|---|\n" +
		"| `auth.jwt.keys` | not set | must be a list of sections as below | Keys of the issuer of tokens ([authentication](authentication.md)). |\n" +
		"| `auth.guest.trusted_proxies` | not set | must be a list of prefixes such as `10.1.2.3/32` | Proxies whose `X-Forwarded-For` is believed. Without any, a guest is the address of the connection. |\n" +
		"| `callbacks.allow` | not set | must be a list of URL prefixes such as `https://partner.example/hooks/` | Callback URLs that may be called wherever they lead. All others must lead to a public address. |\n" +
		"| `callbacks.secrets` | not set | must be a list of `whsec_` and the base64 of 24 to 64 bytes | Sign callbacks (Standard Webhooks); with several, each signs, so that they can be rotated. |\n")
	table("### A key: each of `auth.jwt.keys`", tokenKeySettings())
	table("### A route: `routes.NAME`", RouteSettings())
	b.WriteString("| `secrets` | not set | must be a list of `whsec_` and the base64 of 24 to 64 bytes | Sign deliveries (Standard Webhooks); with several, each signs, so that they can be rotated. |\n")
	table("### A guard: `guards.NAME`, which [limits requests](limiters.md#guards-before-the-intake)", GuardSettings())
	fmt.Fprintf(&b, "| `by` | not set | must be a list of tenant, guest, endpoint, address, route, type | What requests are counted by, together: `[tenant, endpoint]`. Required. |\n"+
		"| `endpoints` | not set | must be a list of %s; of a guard that counts jobs, of %s | Operations that it stands before; all if not set. |\n"+
		"| `routes` | not set | must be a list of names of routes | Counts jobs for these routes, one by one in batches too, and nothing else. |\n"+
		"| `types` | not set | must be a list of types of jobs, such as `user.login` | Counts jobs of these types, one by one in batches too, and nothing else. |\n",
		strings.Join(guard.Endpoints(), ", "), strings.Join(guard.JobEndpoints(), ", "))
	tenant := TenantSettings()
	for i := range tenant {
		tenant[i].Default = ""
	}
	table("### A tenant: `tenants.NAME`, `tenants.defaults`, and a tier: `tiers.NAME`", tenant)
	b.WriteString("| `rates` | not set | must be a list of at most 7 sections with a `rate` and perhaps a `burst` (1) | Further rates, the strictest wins: `[ { rate: 1000/24h, burst: 100 } ]`. |\n" +
		"| `routes.ROUTE` | not set | must be a section with the settings above | What holds for the flows of this route; it outranks what holds in general. |\n" +
		"| `tier` | not set | must be the name of a tier | Of a named tenant alone: lays the settings of the tier over the defaults. |\n")
	return b.String()
}

func shownDefault(s Setting) string {
	if s.Default == "" {
		return "not set"
	}
	return "`" + s.Default + "`"
}
