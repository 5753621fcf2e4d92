package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/callback"
)

// config reads the merged sources section by section and checks the rules between settings.
func (r *reader) config(values map[string]any) Config {
	c := Config{
		Routes: map[string]Route{},
		Guards: map[string]Guard{},
		Tenants: Tenants{Defaults: shaper.DefaultPolicy(), Tiers: map[string]shaper.Overrides{},
			Named: map[string]shaper.Overrides{}, Pools: map[string]shaper.PoolSettings{}},
	}
	listModes(values)
	joinLists(values)
	r.scalars("", values, Settings(), &c, "auth.jwt.keys", "auth.jwt.issuers", "auth.guest.trusted_proxies", "callbacks.allow",
		"callbacks.secrets", "routes", "forward", "pools", "tiers", "tenants", "guards")
	r.between(c)
	r.listenerTLS("api", c.API.Listen, &c.API.TLS)
	r.listenerTLS("admin", c.Admin.Listen, &c.Admin.TLS)
	r.listenerTLS("metrics", c.Metrics.Listen, &c.Metrics.TLS)
	r.needClientCA(&c, "api", &c.API.TLS)
	c.Admin.TokenFile = r.beside(c.Admin.TokenFile)
	r.codec(&c)
	r.auth(&c, sectionOf(values, "auth"))
	r.callbacks(&c, sectionOf(values, "callbacks"))
	r.routes(&c, sectionOf(values, "routes"))
	r.forwardListeners(&c, values["forward"])
	r.pools(&c, sectionOf(values, "pools"))
	r.tiers(&c, sectionOf(values, "tiers"))
	r.tenants(&c, sectionOf(values, "tenants"))
	r.pooled(c)
	r.guards(&c, sectionOf(values, "guards"))
	return c
}

// codec checks where the keys come from. Paths are relative to the configuration file.
func (r *reader) codec(c *Config) {
	if c.Codec.KeyFile == "" && c.Codec.Command == "" {
		if c.Codec.ReadOnly {
			r.problem(r.at("codec.read_only"), "true", "needs codec.key_file or codec.command")
		}
		return
	}
	c.Codec.KeyFile, c.Codec.Command = r.beside(c.Codec.KeyFile), r.beside(c.Codec.Command)
	key, path, check := "codec.key_file", c.Codec.KeyFile, sealed.CheckFile
	if c.Codec.Command != "" {
		key, path, check = "codec.command", c.Codec.Command, sealed.CheckCommand
	}
	if c.Codec.KeyFile != "" && c.Codec.Command != "" {
		r.problem(r.at(key), show(path), "must not be set beside codec.key_file")
		return
	}
	warning, err := check(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.Codec.KeyFile != "":
		r.problem(r.at(key), show(path), err.Error()+"; sluice codec new-key --file makes one")
	case err != nil:
		r.problem(r.at(key), show(path), err.Error())
	}
	if warning != "" {
		r.open = append(r.open, warning)
	}
}

// between checks the rules between scalar settings. A setting that could not be read is zero and
// already reported.
func (r *reader) between(c Config) {
	quarter := c.Worker.Lease / 4
	for _, s := range []struct {
		key   string
		value time.Duration
	}{{"worker.sweep", c.Worker.Sweep}, {"worker.horizon", c.Worker.Horizon}} {
		if quarter > 0 && s.value > quarter {
			r.problem(r.at(s.key), Short(s.value),
				"must be at most a quarter of worker.lease, here "+Short(quarter))
		}
	}
	if c.API.Listen != "" && !IsLoopback(c.API.Listen) && !c.API.AllowPublic &&
		c.Auth.Mode == string(auth.None) {
		r.problem(r.at("api.listen"), show(c.API.Listen),
			"must be a loopback address without authentication: set auth.mode, or set api.allow_public to true")
	}
	r.signOn(c.Admin)
	if d := c.Redis.Durability; d.Fsync && d.Replicas == 0 {
		r.problem(r.at("redis.durability.fsync"), "true", "must be false unless redis.durability.replicas is at least 1")
	} else if d.Replicas > 0 && c.Redis.URL == "" {
		r.problem(r.at("redis.durability.replicas"), strconv.FormatInt(d.Replicas, 10),
			"must be 0 unless redis.url names a Redis with replicas")
	}
	for _, other := range []string{c.API.Listen, c.Admin.Listen} {
		if c.Metrics.Listen == other && other != "" && !strings.HasSuffix(other, ":0") {
			r.problem(r.at("metrics.listen"), show(other), "must differ from api.listen and admin.listen")
		}
	}
	if c.API.Listen == c.Admin.Listen && c.API.Listen != "" && !strings.HasSuffix(c.API.Listen, ":0") {
		r.problem(r.at("admin.listen"), show(c.Admin.Listen), "must differ from api.listen")
	}
}

// usualFile is the name under which sluice init writes the configuration.
const usualFile = "sluice.yaml"

func (r *reader) routes(c *Config, values map[string]any) {
	if len(values) == 0 && !r.unread {
		rule := "must name at least one route, such as default: { url: \"http://127.0.0.1:9000/\" }, or " +
			"--route default=http://127.0.0.1:9000/"
		if _, err := os.Stat(usualFile); err == nil && r.path == "" {
			rule += "; " + usualFile + " is in this directory, but nothing names it: --config " + usualFile
		}
		r.problem("routes", "nothing", rule)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path := "routes." + quoteName(name)
		if !isRoute(name) {
			r.problem(path, "the name", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
		}
		section, ok := values[name].(map[string]any)
		if !ok {
			r.problem(path, kindOf(values[name]), "must be a section with a url")
			continue
		}
		route := r.route(path, section)
		route.Egress, _ = networksOf(c.Egress.Allow)
		r.egress(path, route)
		if within := route.Asynq.ReportWithin; route.Asynq.Reports && within < c.Worker.Lease {
			r.problem(path+".asynq.report_within", Short(within),
				"must be at least worker.lease, here "+Short(c.Worker.Lease))
		}
		c.Routes[name] = route
	}
}

// egress refuses literal addresses of upstreams that would not be dialled.
func (r *reader) egress(path string, route Route) {
	for key, text := range map[string]string{
		"url": route.URL, "forward": route.Forward, "oauth2.token_url": route.OAuth2.TokenURL, "proxy": route.Proxy,
	} {
		u, err := url.Parse(text)
		if err != nil || text == "" {
			continue
		}
		addr, err := netip.ParseAddr(u.Hostname())
		if rule := outbound.EgressRule(addr, route.Egress); err == nil && rule != "" {
			r.problem(r.at(path+"."+key), show(u.Hostname()), rule)
		}
	}
}

func (r *reader) route(path string, values map[string]any) Route {
	var route Route
	settings := RouteSettings()
	for _, s := range settings {
		if value, rule := s.read(s.typed(s.Default)); rule == "" {
			assign(fieldOf(&route, s.Key), value)
		}
	}
	r.scalars(path, values, settings, &route, "secrets", "retry.on", "job_headers", "headers", "oauth2.scopes")
	r.forwardRoute(path, values, &route)
	r.calls(path, values, &route)
	_, forwards := values["forward"]
	_, hasURL := values["url"]
	_, handsOff := values["asynq"]
	_, signs := values["secrets"]
	_, breaks := values["breaker"]
	switch {
	case handsOff && hasURL:
		r.problem(path+".url", "set", "must not be set together with asynq: a route has one destination")
	case handsOff && signs:
		r.problem(path+".secrets", hidden,
			"must not be set together with asynq: secrets sign deliveries to a url")
	case handsOff && breaks:
		r.problem(path+".breaker", kindOf(values["breaker"]),
			"must not be set together with asynq: a breaker guards deliveries to a url")
	case handsOff && route.Asynq.Queue == "" && sectionOf(values, "asynq")["queue"] == nil:
		r.problem(path+".asynq.queue", "nothing", "must be set")
	case !handsOff && !hasURL && !forwards:
		r.problem(path+".url", "nothing", "must be set, unless forward or asynq is set")
	}
	for _, key := range []string{"cost_from", "cost_missing", "min_cost"} {
		if raw, set := values[key]; set && handsOff {
			r.problem(path+"."+key, show(raw), "must not be set together with asynq: it concerns answers of a url or forward")
		}
	}
	if route.Paths && !hasURL {
		r.problem(path+".paths", "true", "needs url, below which the paths are")
	}
	route.JobHeaders = r.jobHeaders(path, values, route)
	if handsOff {
		route.Breaker, route.Calls = Breaker{}, Calls{}
	} else {
		route.Asynq = Asynq{}
	}
	if route.Retry.MinBackoff > route.Retry.MaxBackoff {
		r.problem(path+".retry.min_backoff", Short(route.Retry.MinBackoff),
			"must be at most retry.max_backoff, here "+Short(route.Retry.MaxBackoff))
	}
	route.Secrets = r.secrets(path, values)
	return route
}

// jobHeaders reads the names of the headers that jobs of the route in the section at path may set.
func (r *reader) jobHeaders(path string, values map[string]any, route Route) (names []string) {
	raw, present := values["job_headers"]
	path += ".job_headers"
	list, ok := raw.([]any)
	switch {
	case !present:
		return nil
	case !ok:
		r.problem(path, kindOf(raw), "must be a list of names of headers, such as [X-Request-Id]")
		return nil
	case route.Forwards():
		r.problem(path, show(raw), "must not be set together with forward: a forwarded request has its own headers")
		return nil
	}
	for _, one := range list {
		name, _ := one.(string) // what is no text is no token
		names = append(names, name)
	}
	httpmsg.CheckJobHeaderNames(names, route.setHeaders(), func(i int, rule string) {
		r.problem(fmt.Sprintf("%s[%d]", path, i), show(list[i]), rule)
	})
	return names
}

func (r *reader) callbacks(c *Config, values map[string]any) {
	c.Callbacks.Secrets = r.secrets("callbacks", values)
	c.Callbacks.Allow = r.texts("callbacks.allow", values, func(text string) string {
		var problems shaper.Problems
		if _, err := callback.NewReceivers([]string{text}); errors.As(err, &problems) {
			return problems[0].Rule
		}
		return ""
	})
}

// secrets reads the list of signing secrets in the section at path.
func (r *reader) secrets(path string, values map[string]any) []string {
	return r.texts(path+".secrets", values, func(text string) string {
		if isSecret(text) {
			return ""
		}
		return "must be whsec_ and the base64 of 24 to 64 bytes"
	})
}

// texts reads the list at path, whose last step is its key in the section values, nil if it is
// absent. rule is what a text breaks; no text is shown, for it may be a secret or hold one.
func (r *reader) texts(path string, values map[string]any, rule func(text string) string) []string {
	raw, present := values[path[strings.LastIndexByte(path, '.')+1:]]
	if !present {
		return nil
	}
	list, ok := raw.([]any)
	if !ok {
		r.problem(path, kindOf(raw), "must be a list")
		return nil
	}
	texts := make([]string, 0, len(list))
	for i, raw := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		text, _ := raw.(string)
		text, whole := r.expand(at, text)
		if !whole {
			continue
		}
		if broken := rule(text); broken != "" {
			r.problem(at, hidden, broken)
			continue
		}
		texts = append(texts, text)
	}
	return texts
}

// pools reads the pools; the routes must have been read.
func (r *reader) pools(c *Config, values map[string]any) {
	before := len(r.problems)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path := "pools." + quoteName(name)
		if !isRoute(name) {
			r.problem(path, "the name", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
			continue
		}
		section, ok := values[name].(map[string]any)
		if !ok {
			r.problem(path, kindOf(values[name]), "must be a section")
			continue
		}
		read := struct {
			shaper.Overrides
			Hold    string
			MaxHold time.Duration
		}{MaxHold: shaper.DefaultMaxHold}
		r.scalars(path, section, PoolSettings(), &read, "rates", "routes")
		if section["rate"] == nil {
			r.problem(path+".rate", "nothing", "must be set, such as 10/s")
		}
		pool := shaper.PoolSettings{Overrides: read.Overrides, HoldPool: read.Hold == "pool"}
		if read.MaxHold != shaper.DefaultMaxHold {
			pool.MaxHold = read.MaxHold
		}
		if raw, present := section["rates"]; present {
			if paces, ok := r.rates(path+".rates", raw); ok {
				pool.Overrides.Rates = &paces
			}
		}
		pool.Routes = r.poolRoutes(path+".routes", section["routes"], c.Routes)
		c.Tenants.Pools[name] = pool
	}
	r.poolsOfOneRoute(c, values)
	if len(r.problems) > before {
		return // what follows from them would be reported again
	}
	r.problems = append(r.problems, problemsOf(shaper.Baseline{Pools: c.Tenants.Pools}.ValidatePools())...)
}

// poolsOfOneRoute makes a pool of each route with a rate. values are the pools of the file.
func (r *reader) poolsOfOneRoute(c *Config, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(c.Routes)) {
		rate := c.Routes[name].Rate
		if rate == (shaper.Rate{}) {
			continue
		}
		path, other := "routes."+quoteName(name)+".rate", c.Tenants.Baseline().PoolOf(name)
		_, taken := values[name]
		switch {
		case taken:
			r.problem(path, rate.String(), "must not be set beside the pool "+name+": set pools."+name+".rate alone")
		case other != "":
			r.problem(path, rate.String(), "must not be set: the route is in the pool "+other+
				", whose rate is that of all its routes")
		default:
			c.Tenants.Pools[name] = shaper.PoolSettings{Routes: []string{name}, Overrides: shaper.Overrides{Rate: &rate}}
		}
	}
}

// pooled checks that each pool can give the reserves of the named tenants all at once, and takes
// the requests of its routes.
func (r *reader) pooled(c Config) {
	if len(r.problems) > 0 {
		return // what follows from them would be reported again
	}
	for _, p := range c.Pools() {
		if p.Reserved > p.Strictest.PerSecond()*(1+1e-9) { // sums of doubles are not exact
			path := "pools." + quoteName(p.Name) + ".rate"
			if c.Routes[p.Name].Rate != (shaper.Rate{}) {
				path = "routes." + quoteName(p.Name) + ".rate"
			}
			r.problem(path, p.Strictest.String(), fmt.Sprintf(
				"must be at least the reserves of the named tenants in the pool, together %.6g/s", p.Reserved))
		}
		for _, route := range p.Routes {
			if cost := c.Routes[route].Cost; cost > p.MaxCost {
				r.problem("routes."+quoteName(route)+".cost", fmt.Sprint(cost), fmt.Sprintf(
					"must be at most the max_cost of its pool, which is %d: every request would be refused", p.MaxCost))
			}
		}
	}
}

// poolRoutes reads the routes of a pool.
func (r *reader) poolRoutes(path string, raw any, routes map[string]Route) (names []string) {
	list, isList := raw.([]any)
	if !isList && raw != nil {
		r.problem(path, kindOf(raw), "must be a list of names of routes, such as [orders, refunds]")
		return nil
	}
	for i, item := range list {
		name, _ := item.(string)
		if _, known := routes[name]; !known {
			r.problem(fmt.Sprintf("%s[%d]", path, i), show(item),
				shaper.OneOf("the routes: ", name, slices.Sorted(maps.Keys(routes))))
			continue
		}
		names = append(names, name)
	}
	return names
}

// tiers reads the tiers; the defaults must have been read.
func (r *reader) tiers(c *Config, values map[string]any) {
	guests := slices.Contains(c.Auth.Modes(), auth.Guest)
	if guests && c.Auth.Guest.Tier == "" {
		c.Auth.Guest.Tier = GuestTier
		if _, declared := values[GuestTier]; !declared {
			values = maps.Clone(values)
			if values == nil {
				values = map[string]any{}
			}
			values[GuestTier] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path := "tiers." + quoteName(name)
		if !isRoute(name) {
			r.problem(path, "the name", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
			continue
		}
		section, ok := values[name].(map[string]any)
		if !ok && values[name] != nil {
			r.problem(path, kindOf(values[name]), "must be a section")
			continue
		}
		bounds := TierBounds{StoreShare: 100, TenantShare: 100, MaxDelay: shaper.MaxPeriod}
		own, rest := map[string]any{}, map[string]any{}
		for key, value := range section {
			if slices.ContainsFunc(TierSettings(), func(s Setting) bool { return s.Key == key }) {
				own[key] = value
			} else {
				rest[key] = value
			}
		}
		if r.scalars(path, own, TierSettings(), &bounds); len(own) > 0 {
			if c.Tenants.Bounds == nil {
				c.Tenants.Bounds = map[string]TierBounds{}
			}
			c.Tenants.Bounds[name] = bounds
		}
		c.Tenants.Tiers[name] = r.overrides(path, rest, c.Routes, "")
		if _, set := own["pool_weight"]; !set && guests && name == c.Auth.Guest.Tier {
			bounds.PoolWeight = 1
		}
		r.weight(c, path, name, bounds.PoolWeight)
	}
	guest := c.Auth.Guest.Tier
	if _, known := c.Tenants.Tiers[guest]; guests && !known {
		r.problem(r.at("auth.guest.tier"), show(guest),
			shaper.OneOf("the tiers: ", guest, slices.Sorted(maps.Keys(c.Tenants.Tiers))))
	}
}

// weight makes the tenants of a tier a class in pools, unless the weight is 0. It reports reserves
// of the tier: each of its tenants would have them, however many there are.
func (r *reader) weight(c *Config, path, tier string, weight int64) {
	if weight == 0 {
		return
	}
	if c.Tenants.Weights == nil {
		c.Tenants.Weights = map[string]int64{}
	}
	c.Tenants.Weights[tier] = weight
	const rule = "must be absent: all tenants of the tier together have its pool_weight in a pool, and each would have the reserve"
	if o := c.Tenants.Tiers[tier]; o.Reserve != nil {
		r.problem(path+".reserve", o.Reserve.String(), rule)
	}
	for _, route := range slices.Sorted(maps.Keys(c.Tenants.Tiers[tier].Routes)) {
		if o := c.Tenants.Tiers[tier].Routes[route]; o.Reserve != nil {
			r.problem(path+".routes."+quoteName(route)+".reserve", o.Reserve.String(), rule)
		}
	}
}

// tenants reads the defaults and the named tenants, then checks every resulting policy. A problem
// of the defaults is not repeated for each tier, and a problem of a tier not for each tenant.
func (r *reader) tenants(c *Config, values map[string]any) {
	// The scalars of the defaults are already read. The lists and unknown keys remain.
	defaults := sectionOf(values, "defaults")
	r.unknown("tenants.defaults", defaults, append(keysOf(TenantSettings()), "rates", "types", "routes"))
	if raw, present := defaults["rates"]; present {
		paces, _ := r.rates("tenants.defaults.rates", raw)
		for _, p := range paces {
			c.Tenants.Defaults.Rates = append(c.Tenants.Defaults.Rates, p.Pace())
		}
	}
	if raw, present := defaults["types"]; present {
		c.Tenants.Defaults.Types = r.admitted("tenants.defaults.types", raw)
	}
	c.Tenants.Routes = r.routeOverrides("tenants.defaults.routes", defaults["routes"], c.Routes)
	baseline := c.Tenants.Baseline()
	known := problemsOf(baseline.Validate(shaper.Statements{}))
	r.resulting("tenants.defaults", baseline, shaper.Statements{}, nil)
	wrong := map[string]shaper.Problems{"": known}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants.Tiers)) {
		wrong[name] = r.resulting("tiers."+quoteName(name), baseline, shaper.Statements{Claimed: name}, known)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name == "defaults" {
			continue
		}
		path := "tenants." + quoteName(name)
		if !isName(name) {
			r.problem(path, "the name", "must be 1 to 255 bytes without control characters")
		}
		section, ok := values[name].(map[string]any)
		if !ok && values[name] != nil {
			r.problem(path, kindOf(values[name]), "must be a section")
			continue
		}
		o := r.overrides(path, section, c.Routes, "tier")
		statements := shaper.Statements{File: o}
		tier, _ := statements.Tier()
		r.resulting(path, baseline, statements, slices.Concat(known, wrong[tier]))
		c.Tenants.Named[name] = o
	}
}

// resulting reports the problems of the policies of a tenant with these statements, without the
// known ones. It names the setting as it is written: that of a tier or of the defaults may
// contradict another one of the tenant.
func (r *reader) resulting(path string, b shaper.Baseline, statements shaper.Statements,
	known shaper.Problems) shaper.Problems {
	problems := problemsOf(b.Validate(statements))
	for _, p := range problems {
		if slices.Contains(known, p) {
			continue
		}
		policy, route, field := path, "", p.Field
		for _, name := range b.Mentioned(statements) { // of two that fit, the longer one comes later
			if rest, is := strings.CutPrefix(p.Field, "routes."+name+"."); is {
				policy, route, field = path+".routes."+quoteName(name), name, rest
			}
		}
		at := writtenAt(path, b, statements, route, field)
		if at != policy {
			p.Rule += ", in the policy of " + policy
		}
		p.Field = r.at(at + "." + field)
		r.problems = append(r.problems, p)
	}
	return problems
}

// writtenAt returns the path of the section that sets the field of the policy of a route, or of all
// for "". path is that of the tenant, the tier or the defaults, and is returned if nothing else has
// the field.
func writtenAt(path string, b shaper.Baseline, s shaper.Statements, route, field string) string {
	tier, _ := s.Tier()
	sections := []struct {
		path string
		says shaper.Overrides
	}{{path, s.File}, {"tiers." + quoteName(tier), b.Tiers[tier]}, {"tenants.defaults", b.Defaults.Overrides(shaper.Settings())}}
	name, _, _ := strings.Cut(field, "[")
	sets := func(o shaper.Overrides) bool {
		return slices.ContainsFunc(shaper.Settings(), func(s shaper.Setting) bool { return s.Key() == name && s.IsSet(o) })
	}
	for i, section := range sections {
		section.says = section.says.Routes[route]
		if i == len(sections)-1 {
			section.says = b.Routes[route]
		}
		if route != "" && sets(section.says) {
			return section.path + ".routes." + quoteName(route)
		}
	}
	for _, section := range sections {
		if sets(section.says) {
			return section.path
		}
	}
	return path
}

// overrides reads the section at path of a tenant, a tier or, without routes, a route. tier is the
// key of the tier, empty if the section cannot have one.
func (r *reader) overrides(path string, values map[string]any, routes map[string]Route,
	tier string) shaper.Overrides {
	var o struct {
		shaper.Overrides
		MaxWait time.Duration
	}
	more := []string{"rates", "types"}
	if routes != nil {
		more = append(more, "routes")
	}
	if tier != "" {
		more = append(more, tier)
	}
	r.scalars(path, values, TenantSettings(), &o, more...)
	if _, present := values["max_wait"]; present {
		if o.MaxWait%time.Millisecond != 0 {
			r.problem(path+".max_wait", o.MaxWait.String(), "must be in whole milliseconds")
		}
		o.MaxWaitMS = new(o.MaxWait.Milliseconds())
	}
	if raw, present := values["rates"]; present {
		if paces, ok := r.rates(path+".rates", raw); ok {
			o.Rates = &paces
		}
	}
	if raw, present := values["types"]; present {
		o.Types = new(r.admitted(path+".types", raw))
	}
	if raw, present := values["tier"]; present && tier != "" {
		name, isText := raw.(string)
		if !isText {
			r.problem(path+".tier", kindOf(raw), "must be the name of a tier")
		} else {
			o.Tier = &name
		}
	}
	if routes != nil {
		o.Routes = r.routeOverrides(path+".routes", values["routes"], routes)
	}
	return o.Overrides
}

// admitted reads the types of jobs that are admitted; an empty list is all.
func (r *reader) admitted(path string, raw any) []string {
	switch list, is := raw.([]any); {
	case !is:
		r.problem(path, kindOf(raw), "must be a list of types of jobs; [] is all")
	case len(list) > 0:
		return r.types(path, raw)
	}
	return []string{}
}

// routeOverrides reads the sections of single routes. Each must be one of routes.
func (r *reader) routeOverrides(path string, raw any, routes map[string]Route) map[string]shaper.Overrides {
	section, ok := raw.(map[string]any)
	if !ok && raw != nil {
		r.problem(path, kindOf(raw), "must be a section")
	}
	var overrides map[string]shaper.Overrides
	for _, name := range slices.Sorted(maps.Keys(section)) {
		at := path + "." + quoteName(name)
		_, known := routes[name]
		switch {
		case r.anyRoute && !isRoute(name):
			r.problem(at, "the name", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
			continue
		case !r.anyRoute && !known:
			r.problem(at, "the name",
				shaper.OneOf("the routes: ", name, slices.Sorted(maps.Keys(routes))))
			continue
		}
		values, isSection := section[name].(map[string]any)
		if !isSection && section[name] != nil {
			r.problem(at, kindOf(section[name]), "must be a section")
			continue
		}
		if o := r.overrides(at, values, nil, ""); !o.Empty() {
			if overrides == nil {
				overrides = map[string]shaper.Overrides{}
			}
			overrides[name] = o
		}
	}
	return overrides
}

// rates reads the list of further rates, each with its own burst.
func (r *reader) rates(path string, raw any) (paces []shaper.PaceJSON, ok bool) {
	list, isList := raw.([]any)
	if !isList {
		r.problem(path, kindOf(raw), "must be a list, such as [ { rate: 1000/24h, burst: 100 } ]")
		return nil, false
	}
	before := len(r.problems)
	paces = make([]shaper.PaceJSON, 0, len(list))
	settings := append(TenantSettings()[:2], choice("by", shaper.ByCost, "What the rate counts.", shaper.ByCost, shaper.ByJobs))
	for i, raw := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		section, isSection := raw.(map[string]any)
		if !isSection {
			r.problem(at, kindOf(raw), "must be a section with a rate and optionally a burst and by")
			continue
		}
		var pace struct {
			shaper.Pace
			By string
		}
		pace.Burst = 1
		r.scalars(at, section, settings, &pace)
		pace.ByJobs = pace.By == shaper.ByJobs
		switch _, present := section["rate"]; {
		case !present:
			r.problem(at+".rate", "nothing", "must be set")
		case pace.Burst < 1:
			// In the form of the API, 0 means not set.
			r.problem(at+".burst", fmt.Sprint(pace.Burst), "must be a whole number of at least 1")
		case pace.Rate.Limit > 0: // otherwise it is already reported
			paces = append(paces, pace.JSON())
		}
	}
	return paces, len(r.problems) == before
}

// problemsOf returns the problems of an error of shaper.
func problemsOf(err error) shaper.Problems {
	problems, ok := err.(shaper.Problems)
	if !ok && err != nil {
		return shaper.Problems{{Field: "policy", Value: "as a whole", Rule: err.Error()}}
	}
	return problems
}
