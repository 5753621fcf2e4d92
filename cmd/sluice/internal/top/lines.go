package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// sample is one sample as JSON: the figures of the server, and the rates of the last second.
type sample struct {
	Overview overviewFigures `json:"overview"`
	Matching int             `json:"matching"` // number of matching tenants; the first ones are listed
	Tenants  []tenantFigures `json:"tenants"`
	Pools    []poolFigures   `json:"pools,omitempty"`
	// Flows are those of the requested pool.
	Flows  *wire.PoolShares `json:"pool_flows,omitempty"`
	Tenant *shownTenant     `json:"tenant,omitempty"` // the requested one
}

type overviewFigures struct {
	wire.Overview
	rateFigures
}

type tenantFigures struct {
	wire.TenantLine
	rateFigures
}

type shownTenant struct {
	wire.TenantNow
	rateFigures
}

// rateFigures are absent before there are two samples.
type rateFigures struct {
	Arrivals   *float64 `json:"arrivals_per_s,omitempty"`
	Departures *float64 `json:"departures_per_s,omitempty"`
	Refusals   *float64 `json:"refusals_per_s,omitempty"`
}

func ratesOf(k *track) rateFigures {
	p, known := k.now()
	if !known {
		return rateFigures{}
	}
	return rateFigures{Arrivals: &p.arrived, Departures: &p.departed, Refusals: &p.refused}
}

// samples gathers the messages of a feed into samples.
type samples struct {
	model *topModel // holds the figures, as for the screen
	first bool      // the first table was received
	away  time.Time // of the last sample without a store
}

// take adds a message. A sample is complete with each table but the first. While the store does not
// answer no table comes, and a sample is the overview alone, at most once a second.
func (l *samples) take(news any) (out sample, complete bool) {
	m := l.model
	_, _ = m.Update(news)
	if o, is := news.(overviewNews); is && !o.Store.OK && o.At.Sub(l.away) >= time.Second {
		l.away = o.At
		return sample{Overview: overviewFigures{Overview: *m.overview}, Tenants: []tenantFigures{}}, true
	}
	if _, is := news.(tenantsNews); !is || m.overview == nil {
		return sample{}, false
	}
	if _, known := m.all.now(); !l.first || !known { // rates need two samples
		l.first = true
		return sample{}, false
	}
	out = sample{Overview: overviewFigures{*m.overview, ratesOf(&m.all)}, Matching: m.table.Matching,
		Tenants: []tenantFigures{}}
	for _, row := range m.table.Items {
		out.Tenants = append(out.Tenants, tenantFigures{row, ratesOf(m.tracks[row.Tenant])})
	}
	out.Pools, out.Flows = m.poolsOf(), m.pools.shares
	if m.tenant != nil {
		out.Tenant = &shownTenant{*m.tenant, ratesOf(&m.figures)}
	}
	return out, true
}

// print writes samples until there are enough or the command is interrupted.
func (c *Cmd) print(a *cli.App, f *liveFeed, view client.View) error {
	ctx, cancel := context.WithCancel(a.Ctx)
	defer cancel()
	l := &samples{model: newTopModel(ctx, "", view, topPorts{})}
	var failed error
	left := c.Count
	f.send = func(news any) {
		if link, is := news.(linkNews); is && link.err != nil {
			fmt.Fprintf(a.Err, "no connection; retrying: %s\n", linkText(link.err))
		}
		got, complete := l.take(news)
		if !complete || ctx.Err() != nil {
			return
		}
		failed = c.printSample(a.Out, got)
		if left--; left == 0 || failed != nil {
			cancel()
		}
	}
	err := f.run(ctx, view)
	switch {
	case err != nil:
		return err
	case failed != nil:
		return fmt.Errorf("print: %w", failed)
	case left > 0:
		return errors.New("interrupted")
	}
	return nil
}

func (c *Cmd) printSample(w io.Writer, l sample) error {
	var buf bytes.Buffer // one write a sample, so that a reader never sees half of one
	if c.JSON {
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		if err := e.Encode(l); err != nil {
			return err
		}
	} else {
		printSampleLines(&buf, l)
	}
	_, err := w.Write(buf.Bytes())
	return err
}

// isFull reports whether Redis is at its maxmemory, and so refuses all changes that need memory.
func isFull(s wire.StoreState) bool { return s.MaxMemory > 0 && s.UsedMemory >= s.MaxMemory }

// printSampleLines writes a line of all tenants, then one of each unhealthy route, pool and
// tenant. Each line begins with the instant.
func printSampleLines(w io.Writer, l sample) {
	o := l.Overview
	at := o.At.UTC().Format("15:04:05")
	store := "ok"
	switch {
	case !o.Store.OK:
		store = "UNREACHABLE"
		if o.FiguresAt != nil {
			store += ", figures of " + o.FiguresAt.UTC().Format("15:04:05")
		}
	case isFull(o.Store):
		store = "FULL"
	}
	late := ""
	if o.Lateness != nil {
		late = fmt.Sprintf(" lateness_p99 %sms", cli.Short(*o.Lateness))
	}
	fmt.Fprintf(w, "%s all: tenants %d depth %d running %d%s workers %d%s store %s\n", at, o.Tenants, o.Depth,
		o.Running, o.rateFigures.text(), o.Workers, late, store)
	if l.Tenant == nil {
		printRouteLines(w, at, o.Routes)
		printPoolLines(w, at, l)
	}
	if l.Flows != nil {
		return
	}
	if t := l.Tenant; t != nil {
		policy := t.InForce()
		fmt.Fprintf(w, "%s %s: rate %s by %s%s depth %d/%d running %d%s%s%s oldest %s waits p50 %s p95 %s "+
			"p99 %s\n", at, cli.Plain(t.Tenant.Tenant), policy.Rate, t.LimitedBy,
			heldPart(t.HeldUntil, t.HeldBy,
				t.HeldStatus), t.Depth, policy.Capacity, t.Running, t.rateFigures.text(), deadPart(t.DeadLetters),
			owesPart(t.Owed), oldestText(t.OldestWaitMS), cli.MillisText(t.WaitP50MS),
			cli.MillisText(t.WaitP95MS), cli.MillisText(t.WaitP99MS))
		return
	}
	for _, t := range l.Tenants {
		fmt.Fprintf(w, "%s %s: rate %s by %s%s depth %d/%d running %d%s%s%s oldest %s\n", at,
			cli.Plain(t.Tenant), t.Rate, t.LimitedBy,
			heldPart(t.HeldUntil, t.HeldBy,
				t.HeldStatus), t.Depth, t.Capacity, t.Running, t.rateFigures.text(), deadPart(t.DeadLetters),
			owesPart(t.Owed), oldestText(t.OldestWaitMS))
	}
}

// printRouteLines writes a line of each route that fails, whose circuit breaker is not closed, or
// that has answers which are passed on while they come.
func printRouteLines(w io.Writer, at string, routes []wire.RouteLine) {
	for _, r := range routes {
		failing := failingText(r)
		if r.Breaker == "closed" && failing == "" && r.Streams == 0 {
			continue
		}
		streams := ""
		if r.Streams > 0 {
			streams = " streams " + cli.StreamsText(r)
		}
		if failing != "" {
			failing = " " + failing
		}
		fmt.Fprintf(w, "%s route %s: breaker %s in flight %d%s%s\n", at, cli.Plain(r.Route), r.Breaker, r.InFlight, streams, failing)
	}
}

// deadPart returns the number of dead letters, empty for none.
func deadPart(n int64) string {
	if n == 0 {
		return ""
	}
	return " dead " + strconv.FormatInt(n, 10)
}

// owesPart returns what is owed to pools, empty for nothing.
func owesPart(n int64) string {
	if n == 0 {
		return ""
	}
	return " owes " + strconv.FormatInt(n, 10)
}

// heldPart returns until when a tenant is held and by what, empty if it is not.
func heldPart(until time.Time, by string, status int) string {
	if until.IsZero() {
		return ""
	}
	part := " until " + until.UTC().Format("15:04:05")
	if by != "" {
		part += " " + by
	}
	if status != 0 {
		part += " " + strconv.Itoa(status)
	}
	return part
}

func (r rateFigures) text() string {
	if r.Arrivals == nil {
		return ""
	}
	return fmt.Sprintf(" in %s/s out %s/s refused %s/s", cli.Short(*r.Arrivals),
		cli.Short(*r.Departures), cli.Short(*r.Refusals))
}
