package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
)

// readings are what the streams of figures show, beside tenants and pools.
type readings interface {
	Totals(ctx context.Context) (queue.Totals, error)
	Workers(ctx context.Context) (reports.Workers, error)
	StoreHealth(ctx context.Context) (queue.StoreHealth, error)
	Scan(ctx context.Context, cursor string, limit int) (part []queue.Brief, next string, err error)
	Waits(ctx context.Context, tenant string, limit int) ([]time.Duration, error)
}

// getStats is GET /v1/stats.
func (s *Server) getStats(c *call) (*answer, error) {
	return ok(s.overview(s.live.Overview(c.r.Context()))), nil
}

// table selects and orders the shown tenants.
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
	"dead":        func(a, b *queue.Brief) int { return cmp.Compare(b.Dead, a.Dead) },
	"name":        func(*queue.Brief, *queue.Brief) int { return 0 },
}

func byDepth(a, b *queue.Brief) int { return cmp.Compare(b.Depth, a.Depth) }

// tableOf reads the query of a stream of figures.
func tableOf(query url.Values) (table, error) {
	t := table{search: strings.ToLower(query.Get("q")), limit: contract.DefaultPage}
	var known bool
	if t.order, known = orders[query.Get("sort")]; !known || query.Has("sort") && query.Get("sort") == "" {
		return t, problem.InvalidValue("query.sort", "string", query.Get("sort"), "must be depth, oldest_wait, refused, dead or name")
	}
	if len(query.Get("q")) > contract.MaxSearch {
		return t, problem.Invalid("query.q", "string",
			"must have at most "+strconv.Itoa(contract.MaxSearch)+" bytes")
	}
	var err error
	if query.Get("limit") == "0" {
		t.limit = 0
	} else if t.limit, err = codec.PageLimit(query, contract.DefaultPage, contract.MaxLines); err != nil {
		return t, problem.InvalidValue("query.limit", "string", query.Get("limit"),
			"must be a whole number from 0 to "+strconv.Itoa(contract.MaxLines))
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
	view := figures.View{Scan: t.limit > 0, Tenant: query.Get("tenant"), Pool: query.Get("pool")}
	if rule := codec.TextRule(view.Pool, 1, wire.MaxTenantBytes); query.Has("pool") && rule != "" {
		return nil, problem.Invalid("query.pool", "string", rule)
	}
	if query.Has("tenant") {
		if err := codec.CheckTenant("query.tenant", view.Tenant); err != nil {
			return nil, err
		}
	}
	a := &answer{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {contract.StreamFormat}, "X-Accel-Buffering": {"no"}},
	}
	if c.r.Method == http.MethodHead {
		return a, nil
	}
	watch, err := s.live.Watch(view)
	switch {
	case errors.Is(err, figures.ErrTooMany):
		return nil, problem.TooManyStreams.With("the process has reached its limit of streams of figures").
			RetryIn(5 * time.Second)
	case err != nil:
		return nil, problem.ShuttingDown.With("open the stream again; another instance will serve it").
			RetryIn(time.Second)
	}
	a.stream = func(w http.ResponseWriter) {
		defer watch.Close()
		s.metrics.streams.Inc()
		defer s.metrics.streams.Dec()
		f := figureStream{
			server: s, out: newEventWriter(w), watch: watch, table: t, pool: view.Pool, request: c.r,
			allowed: func() bool { return s.stillOperator(c.r) },
		}
		f.send(c.client)
	}
	return a, nil
}

// figureStream is one stream of figures.
type figureStream struct {
	server *Server
	out    *eventWriter
	watch  *figures.Watch
	table  table
	pool   string // empty for none

	request *http.Request

	allowed func() bool // whether the client is still authorized; its session may have ended

	past, tenantPast, poolPast bool // whether that history was sent
}

// send sends new figures until the client disconnects, the stream reaches its age limit, or the hub
// ends. While a write waits for the client, newer figures replace older ones.
func (f *figureStream) send(ctx context.Context) {
	life := time.NewTimer(streamLife)
	defer life.Stop()
	beat := time.NewTicker(streamBeat)
	defer beat.Stop()
	check := time.NewTicker(streamCheck)
	defer check.Stop()
	defer f.out.extend()      // for the end of the answer
	if f.out.flush() != nil { // the headers go out, even without figures yet
		return
	}
	for {
		select {
		case <-f.watch.News():
			if ctx.Err() != nil || f.add(f.watch.Take()) != nil || f.out.flush() != nil {
				return
			}
		case <-check.C:
			if !f.allowed() {
				return
			}
		case <-beat.C:
			if f.out.beat() != nil {
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
func (f *figureStream) add(n figures.News) error {
	var errs []error
	if n.Overview != nil {
		if !f.past {
			f.past = true
			errs = append(errs, f.out.add(contract.HistoryEvent, figures.EncodeHistory(n.Overview, f.server.live,
				f.server.arrivals)))
		}
		errs = append(errs, f.out.add(contract.OverviewEvent, shown(f.request, f.server.overview(*n.Overview))))
	}
	if n.Scan != nil && f.pool != "" {
		errs = append(errs, f.out.add(contract.PoolSharesEvent, figures.EncodePoolShares(n.Scan, f.pool)))
	}
	if n.Scan != nil && f.table.limit > 0 {
		errs = append(errs, f.out.add(contract.PoolsEvent, figures.EncodePools(n.Scan)),
			f.out.add(contract.TenantsEvent, f.table.lines(n.Scan)))
	}
	if n.Pool != nil {
		if !f.poolPast {
			f.poolPast = true
			errs = append(errs, f.out.add(contract.PoolHistoryEvent, figures.EncodePoolHistory(n.Pool, f.server.live)))
		}
		errs = append(errs, f.out.add(contract.PoolEvent, figures.EncodePool(n.Pool)))
	}
	if n.Tenant != nil {
		if !f.tenantPast {
			f.tenantPast = true
			errs = append(errs, f.out.add(contract.TenantHistoryEvent,
				figures.EncodeTenantHistory(n.Tenant, f.server.live, f.server.arrivals)))
		}
		errs = append(errs, f.out.add(contract.TenantEvent, figures.EncodeTenant(n.Tenant)))
	}
	return errors.Join(errs...)
}

// lines are the first tenants of a scan that match.
func (t table) lines(c *figures.Scan) wire.TenantLines {
	var matching []*queue.Brief
	for i := range c.Briefs {
		if b := &c.Briefs[i]; t.search == "" || strings.Contains(strings.ToLower(b.Name), t.search) {
			matching = append(matching, b)
		}
	}
	out := wire.TenantLines{At: c.At.UTC(), Matching: len(matching), Items: []wire.TenantLine{}}
	for _, b := range codec.Firsts(matching, t.limit, func(a, b *queue.Brief) int {
		return cmp.Or(t.order(a, b), cmp.Compare(a.Name, b.Name))
	}) {
		out.Items = append(out.Items, codec.Line(b))
	}
	return out
}

// watched is the source of the figures: the store and the configured routes.
type watched struct {
	ports
	routes map[string]RouteInfo
}

// Workers reports every configured route, also idle ones.
func (w watched) Workers(ctx context.Context) (reports.Workers, error) {
	workers, err := w.ports.Workers(ctx)
	routes := make(map[string]reports.RouteLoad, len(w.routes))
	for name := range w.routes {
		routes[name] = reports.RouteLoad{}
	}
	maps.Copy(routes, workers.Routes)
	workers.Routes = routes
	return workers, err
}

// listRoutes is GET /v1/routes.
func (s *Server) listRoutes(c *call) (*answer, error) {
	routes := codec.Routes(s.live.Overview(c.r.Context()).Workers.Routes)
	slices.SortFunc(routes, codec.UnhealthyFirst)
	s.describeCalls(routes)
	return ok(wire.RouteList{Items: routes}), nil
}

// overview converts an overview to its JSON form.
func (s *Server) overview(o figures.Overview) wire.Overview {
	out := figures.EncodeOverview(o)
	s.describeCalls(out.Routes)
	return out
}

// describeCalls adds how the upstreams of routes are called.
func (s *Server) describeCalls(lines []wire.RouteLine) {
	if s.cfg.Calls == nil {
		return
	}
	calls := s.cfg.Calls()
	for i := range lines {
		line, c := &lines[i], calls[lines[i].Route]
		line.Method, line.URL, line.Headers, line.Auth = c.Method, c.URL, c.Headers, c.Auth
		line.Proxy, line.JobHeaders = c.Proxy, s.cfg.Routes[line.Route].JobHeaders
		if !c.CertificateEnd.IsZero() {
			line.CertificateEnd = new(c.CertificateEnd.UTC())
		}
	}
}

// Remember samples figures while no client follows them, until End, so that a dashboard starts with
// the last minutes. Call it at most once.
func (s *Server) Remember() { s.live.Remember() }
