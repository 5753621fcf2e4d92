package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/shaper"
)

// ForwardListener is an address whose requests are all forwarded to one route.
type ForwardListener struct {
	Listen string
	Route  string
	TLS    ListenerTLS
}

// Forwards reports whether the route forwards requests instead of delivering jobs.
func (r Route) Forwards() bool { return r.Forward != "" }

// CostsEstimated reports whether the route says that answers have the actual costs of its jobs.
func (r Route) CostsEstimated() bool { return r.CostFrom != "" && r.CostFrom != costNone }

// forwarding returns the sorted names of the routes with forward.
func forwarding(routes map[string]Route) (names []string) {
	for name, route := range routes {
		if route.Forwards() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// forwardKeys are the settings of a route that only forwarded requests have.
var forwardKeys = []string{"cost", "wait", "on_wait_end", "forwarded", "max_response", "max_response_action", "retention", "stream", "max_duration", "retry.on", "retry.unsafe"}

// defaultRetryOn are the statuses of answers after which a forwarded request is sent again.
var defaultRetryOn = []int64{502, 503, 504}

const onWaitEndRule = "must be 202, 503 or 504"

// forwardRoute checks what concerns forwarded requests in the section at path of a route.
func (r *reader) forwardRoute(path string, values map[string]any, route *Route) {
	retry := sectionOf(values, "retry")
	if !route.Forwards() {
		for _, key := range forwardKeys {
			section, last := values, key
			if rest, nested := strings.CutPrefix(key, "retry."); nested {
				section, last = retry, rest
			}
			if raw, present := section[last]; present && values["forward"] == nil {
				r.problem(path+"."+key, show(raw), "needs forward, whose requests it concerns")
			}
		}
		route.Cost, route.Wait, route.OnWaitEnd, route.Forwarded = 0, 0, 0, ""
		route.MaxResponse, route.MaxResponseAction, route.Retention = 0, "", 0
		route.Stream, route.MaxDuration = "", 0
		return
	}
	for _, key := range []string{"url", "asynq", "secrets"} {
		if values[key] != nil {
			r.problem(path+"."+key, kindOf(values[key]), "must not be set together with forward: a route has one destination, "+
				"and forwarded requests are not signed")
		}
	}
	if raw := values["on_wait_end"]; raw != nil && !slices.Contains([]int64{202, 503, 504}, route.OnWaitEnd) {
		r.problem(path+".on_wait_end", show(raw), onWaitEndRule)
	}
	route.Retry.On = defaultRetryOn
	raw, present := retry["on"]
	if !present {
		return
	}
	list, ok := raw.([]any)
	if !ok {
		r.problem(path+".retry.on", kindOf(raw), "must be a list of statuses, such as [502, 503, 504]")
		return
	}
	route.Retry.On = []int64{}
	for i, one := range list {
		if status, ok := wholeOf(one); ok && status >= 400 && status <= 599 {
			route.Retry.On = append(route.Retry.On, status)
		} else {
			r.problem(fmt.Sprintf("%s.retry.on[%d]", path, i), show(one), "must be a status from 400 to 599")
		}
	}
}

// forwardListeners reads the list of listeners of forwarded requests; the routes must have been
// read.
func (r *reader) forwardListeners(c *Config, raw any) {
	if raw == nil {
		return
	}
	list, ok := raw.([]any)
	if !ok {
		r.problem("forward", kindOf(raw), "must be a list, such as [ { listen: \"127.0.0.1:8090\", route: partner } ]")
		return
	}
	for i, one := range list {
		path := fmt.Sprintf("forward[%d]", i)
		section, ok := one.(map[string]any)
		if !ok {
			r.problem(path, kindOf(one), "must be a section with listen and route")
			continue
		}
		l := ForwardListener{TLS: ListenerTLS{MinVersion: "1.2"}}
		if !markOff(section) {
			r.problem(path+".tls", kindOf(section["tls"]), tlsRule)
			delete(section, "tls")
		}
		r.scalars(path, section, tlsSettings(""), &l, "listen", "route")
		l.Listen, _ = section["listen"].(string)
		l.Route, _ = section["route"].(string)
		if !isAddress(l.Listen) {
			r.problem(path+".listen", show(section["listen"]),
				"must be HOST:PORT, such as 127.0.0.1:8090, HOST an IP address or localhost")
		}
		if route, known := c.Routes[l.Route]; !known || !route.Forwards() {
			r.problem(path+".route", show(section["route"]),
				shaper.OneOf("the routes with forward: ", l.Route, forwarding(c.Routes)))
		}
		taken := slices.ContainsFunc(c.Forward, func(o ForwardListener) bool { return o.Listen == l.Listen })
		if taken = taken || slices.Contains([]string{c.API.Listen, c.Admin.Listen, c.Metrics.Listen}, l.Listen); taken &&
			l.Listen != "" && !strings.HasSuffix(l.Listen, ":0") {
			r.problem(path+".listen", show(l.Listen), "must differ from the other listeners")
		}
		if isAddress(l.Listen) && !IsLoopback(l.Listen) && !c.API.AllowPublic && c.Auth.Mode == string(auth.None) {
			r.problem(path+".listen", show(l.Listen), "must be a loopback address without authentication: set "+
				"auth.mode, or set api.allow_public to true")
		}
		r.listenerTLS(path, l.Listen, &l.TLS)
		r.needClientCA(c, path, &l.TLS)
		c.Forward = append(c.Forward, l)
	}
}

// sizeOf returns a YAML value as bytes: a whole number, or one with KiB or MiB behind it.
func sizeOf(raw any) (int64, bool) {
	if n, ok := wholeOf(raw); ok {
		return n, true
	}
	text, _ := raw.(string)
	unit := int64(1)
	for suffix, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20} {
		if rest, found := strings.CutSuffix(text, suffix); found {
			text, unit = strings.TrimSpace(rest), bytes
		}
	}
	n, ok := numbers.ParseWhole(text)
	return n * unit, ok && n >= 0 && n < 1<<40
}

func isForwardBase(text string) bool {
	u, err := url.Parse(text)
	return isUpstream(text) && err == nil && u.RawQuery == "" && !u.ForceQuery
}
