package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/internal/live"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/reports"
)

const (
	liveStreams = 100 // streams of figures of one process at once: each chooses and orders its tenants itself
	maxLines    = 500 // tenants in one event
	// overviewRoutes are the routes in an overview, which is sent four times a second.
	overviewRoutes = 50
	maxSearch      = 255 // bytes of what a tenant's name is to contain
)

// Events of a stream of figures.
const (
	overviewEvent = "overview"
	tenantsEvent  = "tenants"
	tenantEvent   = "tenant"
)

// figureOperations show the figures in motion.
func (s *Server) figureOperations() []operation {
	const tag = "Figures"
	low, most := 0.0, float64(maxLines)
	return []operation{{
		id: "get-stats", method: http.MethodGet, path: "/v1/stats", tag: tag, summary: "Read the figures of all tenants together",
		description: "Also while the store is away: it is not ok, then. They are at most a quarter of a second old.",
		answers:     map[int]answerDoc{http.StatusOK: {"The figures.", wire.Overview{}, nil}}, refusals: operatorKinds, handle: s.getStats,
	}, {
		id: "list-routes", method: http.MethodGet, path: "/v1/routes", tag: tag, summary: "List the routes with their circuit breakers",
		description: "Over all workers that were heard of in the last 3 seconds: the state of the circuit breaker, deliveries under way, and how many failed in the last minute. The routes of this " +
			"process's configuration are always there. While the store is away they are as they were before.",
		answers: map[int]answerDoc{http.StatusOK: {"The routes.", wire.RouteList{}, nil}}, refusals: operatorKinds, handle: s.listRoutes,
	}, {
		id: "stream-figures", method: http.MethodGet, path: "/v1/stream", tag: tag, summary: "Follow the figures",
		description: "Server-sent events. `history` comes once, before the first `overview`, and has the minutes " +
			"before. `overview` comes four times a second. `tenants` comes once a second, less often where there " +
			"are too many tenants to read at that rate. With the parameter tenant, `tenant_history` comes once, " +
			"then `tenant` four times a second. A slow client misses events and never gets old ones later. The " +
			"stream ends after 10 minutes, and when the server has stopped working; open it again. While no " +
			"client is connected, the server still samples for the history: all tenants together up to once a " +
			"second, and each tenant every five seconds while it has traffic. A process serves " +
			strconv.Itoa(liveStreams) + " such streams at once.",
		params: []*huma.Param{
			{Name: "tenant", In: "query", Description: "The tenant of the `tenant` events.", Schema: textSchema(1, 255)},
			{Name: "q", In: "query", Description: "Only tenants whose name contains this, in upper or lower case.", Schema: textSchema(0, maxSearch)},
			{Name: "sort", In: "query", Description: "Which tenants come first: those with the most jobs waiting, the longest wait, the most refusals, or by name; depth if absent.",
				Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"depth", "oldest_wait", "refused", "name"}}},
			{Name: "limit", In: "query", Description: "Tenants in an event; 50 if absent. With 0 there are no such events.",
				Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: &low, Maximum: &most}},
		},
		answers:  map[int]answerDoc{http.StatusOK: {"The events.", figureEvents{}, []string{"X-Accel-Buffering"}}},
		refusals: append([]kind{tooManyStreams, shuttingDown}, operatorKinds...), handle: s.streamFigures,
	}}
}

// figureEvents documents the events of a stream of figures.
type figureEvents struct{}

func (figureEvents) schema(schemas huma.Registry) *huma.Schema {
	event := func(name string, data any) *huma.Schema {
		return &huma.Schema{
			Type: huma.TypeObject, Required: []string{"event", "data"}, AdditionalProperties: false,
			Properties: map[string]*huma.Schema{"event": {Type: huma.TypeString, Enum: []any{name}}, "data": schemaOf(schemas, data)},
		}
	}
	return &huma.Schema{
		Title: "Server-sent events", Type: huma.TypeArray, Description: "Each element is one event.",
		Items: &huma.Schema{OneOf: []*huma.Schema{
			event(historyEvent, wire.FigureHistory{}), event(overviewEvent, wire.Overview{}), event(tenantsEvent, wire.TenantLines{}),
			event(tenantHistoryEvent, wire.TenantHistory{}), event(tenantEvent, wire.TenantNow{}),
		}},
	}
}

// getStats is GET /v1/stats.
func (s *Server) getStats(c *call) (*answer, error) {
	return ok(overviewOut(s.live.Overview(c.r.Context()))), nil
}

// table is which tenants are shown, and in what order.
type table struct {
	search string // in lower case
	order  func(a, b *queue.Brief) int
	limit  int
}

// orders compare tenants; the first of them comes first.
var orders = map[string]func(a, b *queue.Brief) int{
	"":            byDepth,
	"depth":       byDepth,
	"oldest_wait": func(a, b *queue.Brief) int { return cmp.Compare(b.OldestWait, a.OldestWait) },
	"refused":     func(a, b *queue.Brief) int { return cmp.Compare(b.Rejected, a.Rejected) },
	"name":        func(*queue.Brief, *queue.Brief) int { return 0 },
}

func byDepth(a, b *queue.Brief) int { return cmp.Compare(b.Depth, a.Depth) }

// tableOf reads what is asked for.
func tableOf(query url.Values) (table, error) {
	t := table{search: strings.ToLower(query.Get("q")), limit: defaultPage}
	var known bool
	if t.order, known = orders[query.Get("sort")]; !known || query.Has("sort") && query.Get("sort") == "" {
		return t, invalid("query.sort", "string", "must be depth, oldest_wait, refused or name")
	}
	if len(query.Get("q")) > maxSearch {
		return t, invalid("query.q", "string", "must have at most "+strconv.Itoa(maxSearch)+" bytes")
	}
	var err error
	if query.Get("limit") == "0" {
		t.limit = 0
	} else if t.limit, err = pageLimit(query, defaultPage, maxLines); err != nil {
		return t, invalid("query.limit", "string", "must be a whole number from 0 to "+strconv.Itoa(maxLines))
	}
	return t, nil
}

// streamFigures is GET /v1/stream.
func (s *Server) streamFigures(c *call) (*answer, error) {
	query := c.r.URL.Query()
	t, err := tableOf(query)
	if err != nil {
		return nil, err
	}
	view := live.View{Scan: t.limit > 0, Tenant: query.Get("tenant")}
	if query.Has("tenant") {
		if err := tenantRule("query.tenant", view.Tenant); err != nil {
			return nil, err
		}
	}
	a := &answer{status: http.StatusOK, header: http.Header{"Content-Type": {streamFormat}, "X-Accel-Buffering": {"no"}}}
	if c.r.Method == http.MethodHead {
		return a, nil
	}
	watch, err := s.live.Watch(view)
	switch {
	case errors.Is(err, live.ErrTooMany):
		return nil, tooManyStreams.with("the process has as many streams of figures as it serves at once").retry(retryAfterSeconds(5 * time.Second))
	case err != nil:
		return nil, shuttingDown.with("open the stream again; another instance will serve it").retry(retryAfterSeconds(time.Second))
	}
	a.stream = func(w http.ResponseWriter) {
		defer watch.Close()
		s.metrics.streams.Inc()
		defer s.metrics.streams.Dec()
		allowed := s.operator()
		f := figureStream{
			server: s, out: newEventWriter(w), watch: watch, table: t, allowed: func() bool { return allowed(c.r) == nil },
		}
		f.send(c.r.Context())
	}
	return a, nil
}

// figureStream is one stream of figures.
type figureStream struct {
	server *Server
	out    *eventWriter
	watch  *live.Watch
	table  table

	allowed func() bool // whether the client is still authorized; its session may have ended

	past, tenantPast bool // whether that history was sent
}

// send sends what is new until the client is gone, the stream has lived its time, or the hub ends.
// While a write waits for the client, what comes replaces what came before.
func (f *figureStream) send(ctx context.Context) {
	life := time.NewTimer(streamLife)
	defer life.Stop()
	beat := time.NewTicker(streamBeat)
	defer beat.Stop()
	defer f.out.extend()      // for the end of the answer
	if f.out.flush() != nil { // the client learns that it is served, also where there is nothing to tell yet
		return
	}
	for {
		select {
		case <-f.watch.News():
			if ctx.Err() != nil || f.add(f.watch.Take()) != nil || f.out.flush() != nil {
				return
			}
		case <-beat.C:
			if !f.allowed() || f.out.beat() != nil {
				return
			}
		case <-f.watch.Ended():
			return
		case <-life.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// add writes the events for n. It sends the history right before the first figures that continue
// it. The history ends where those begin, so nothing is missing in between or sent twice.
func (f *figureStream) add(n live.News) error {
	var errs []error
	if n.Overview != nil {
		if !f.past {
			f.past = true
			errs = append(errs, f.out.add(historyEvent, f.server.historyOut(n.Overview)))
		}
		errs = append(errs, f.out.add(overviewEvent, overviewOut(*n.Overview)))
	}
	if n.Scan != nil {
		errs = append(errs, f.out.add(tenantsEvent, f.table.lines(n.Scan)))
	}
	if n.Tenant != nil {
		if !f.tenantPast {
			f.tenantPast = true
			errs = append(errs, f.out.add(tenantHistoryEvent, f.server.tenantHistoryOut(n.Tenant)))
		}
		errs = append(errs, f.out.add(tenantEvent, tenantNow(n.Tenant)))
	}
	return errors.Join(errs...)
}

// lines are the first tenants of a scan that match.
func (t table) lines(c *live.Scan) wire.TenantLines {
	var matching []*queue.Brief
	for i := range c.Briefs {
		if b := &c.Briefs[i]; t.search == "" || strings.Contains(strings.ToLower(b.Name), t.search) {
			matching = append(matching, b)
		}
	}
	out := wire.TenantLines{At: c.At.UTC(), Matching: len(matching), Items: []wire.TenantLine{}}
	for _, b := range firsts(matching, t.limit, func(a, b *queue.Brief) int { return cmp.Or(t.order(a, b), cmp.Compare(a.Name, b.Name)) }) {
		out.Items = append(out.Items, lineOut(b))
	}
	return out
}

// firsts are the first n in order. It keeps no more than twice as many in order at a time, for
// there may be thousands.
func firsts[T any](list []T, n int, order func(a, b T) int) []T {
	if n <= 0 {
		return nil
	}
	kept := make([]T, 0, min(len(list), 2*n))
	for _, x := range list {
		if kept = append(kept, x); len(kept) == 2*n {
			slices.SortFunc(kept, order)
			kept = kept[:n]
		}
	}
	slices.SortFunc(kept, order)
	return kept[:min(len(kept), n)]
}

func lineOut(b *queue.Brief) wire.TenantLine {
	return wire.TenantLine{
		Tenant: b.Name, Rate: wire.RateOf(b.Rate), Rates: wire.PacesOf(b.Rates), EffectiveRate: b.EffectiveRate, Capacity: b.Capacity, Depth: b.Depth, Running: b.Running, Paused: b.Paused,
		LimitedBy: b.LimitedBy, OldestWaitMS: b.OldestWait.Milliseconds(), Admitted: b.Admitted, Rejected: b.Rejected, Departed: b.Departed,
		Succeeded: b.Succeeded, DeadLetters: b.Dead, Dead: b.DeadTotal,
		HeldUntil: heldUntil(b.Figures), HeldBy: b.HeldBy.By, HeldStatus: b.HeldBy.Status,
	}
}

func overviewOut(o live.Overview) wire.Overview {
	out := wire.Overview{
		At: o.At.UTC(), Tenants: o.Tenants, Depth: o.Depth, Bytes: o.Bytes, Running: o.Running, Admitted: o.Admitted, Rejected: o.Rejected, Departed: o.Departed,
		Workers: o.Workers.Live, Dead: o.Dead, Routes: firsts(routesOut(o.Workers.Routes), overviewRoutes, byTrouble),
		Store: wire.StoreState{
			OK: o.Err == nil, Engine: string(o.Store.Engine), PingMS: fineMS(o.Store.Ping), UsedMemory: o.Store.UsedMemory, MaxMemory: o.Store.MaxMemory,
			Version: o.Store.Version, Differing: o.Store.Differing,
		},
	}
	if o.Workers.Lateness.Sum() > 0 {
		out.Lateness = new(fineMS(o.Workers.Lateness.Quantile(0.99)))
	}
	if o.Err != nil {
		out.Store.Error = storeError(o.Err)
	}
	return out
}

// watched is the source of the figures: the store, the configured routes, and the findings of the
// scans.
type watched struct {
	Backend
	routes  map[string]RouteInfo
	figures *figures
}

// Workers tells of every configured route, also of those that have nothing to tell.
func (w watched) Workers(ctx context.Context) (reports.Workers, error) {
	workers, err := w.Backend.Workers(ctx)
	routes := make(map[string]reports.RouteLoad, len(w.routes))
	for name := range w.routes {
		routes[name] = reports.RouteLoad{}
	}
	maps.Copy(routes, workers.Routes)
	workers.Routes = routes
	return workers, err
}

// DeadLetters implements live.Source.
func (w watched) DeadLetters(ctx context.Context) (int64, bool) { return w.figures.deadLetters(ctx) }

// breakerNames are the states of circuit breakers in the API.
var breakerNames = map[reports.BreakerState]string{reports.BreakerClosed: "closed", reports.BreakerHalfOpen: "half-open", reports.BreakerOpen: "open"}

func routesOut(routes map[string]reports.RouteLoad) []wire.RouteLine {
	out := make([]wire.RouteLine, 0, len(routes))
	for name, l := range routes {
		out = append(out, wire.RouteLine{Route: name, Breaker: breakerNames[l.Breaker], InFlight: l.InFlight, Ended: l.Ended, Failed: l.Failed})
	}
	return out
}

// byTrouble orders routes, those first that need a look.
func byTrouble(a, b wire.RouteLine) int {
	states := []string{"open", "half-open", "closed"}
	return cmp.Or(
		cmp.Compare(slices.Index(states, a.Breaker), slices.Index(states, b.Breaker)), cmp.Compare(b.Failed, a.Failed),
		cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(a.Route, b.Route),
	)
}

// listRoutes is GET /v1/routes.
func (s *Server) listRoutes(c *call) (*answer, error) {
	routes := routesOut(s.live.Overview(c.r.Context()).Workers.Routes)
	slices.SortFunc(routes, byTrouble)
	return ok(wire.RouteList{Items: routes}), nil
}

// fineMS is a time in milliseconds with three digits after the point: these are often below one.
func fineMS(d time.Duration) float64 { return math.Round(float64(d.Microseconds())) / 1000 }

// storeError says why the store is not ok, without what only a log may tell.
func storeError(err error) string {
	text := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, "timeout"):
		return "no answer in time"
	case strings.Contains(text, "OOM "):
		return "out of memory"
	case strings.Contains(text, "LOADING "):
		return "loading its data"
	case strings.Contains(text, "BUSY "):
		return "busy with a script"
	case strings.Contains(text, "NOAUTH") || strings.Contains(text, "WRONGPASS") || strings.Contains(text, "NOPERM"):
		return "refuses the credentials"
	case strings.Contains(text, "CLUSTERDOWN") || strings.Contains(text, "MASTERDOWN"):
		return "part of the cluster is down"
	}
	return "cannot be reached"
}

func tenantNow(d *live.Detail) wire.TenantNow {
	quantile := func(q float64) int64 {
		if len(d.Waits) == 0 {
			return 0
		}
		at := max(0, int(math.Ceil(q*float64(len(d.Waits))))-1)
		return d.Waits[at].Milliseconds()
	}
	return wire.TenantNow{At: d.At.UTC(), Tenant: tenantOut(d.Tenant), WaitP50MS: quantile(0.5), WaitP95MS: quantile(0.95), WaitP99MS: quantile(0.99)}
}
