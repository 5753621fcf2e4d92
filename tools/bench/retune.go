package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// retune is one change of a tenant's settings while its backlog leaves.
type retune struct {
	name     string
	from, to string // bodies of a PUT and of the PATCH that is measured
	before   paces  // in force before and after; the one before is empty while paused
	after    paces
	lead     time.Duration // of departures before the change
}

// retunes are the changes that P10 measures.
func retunes() []retune {
	return []retune{
		{"2/s → 200/s", rate(2, 1000), rate(200, 1000), plain("2/s"), plain("200/s"), 1300 * time.Millisecond},
		{"200/s → 20/s", rate(200, 1000), rate(20, 1000), plain("200/s"), plain("20/s"), time.Second},
		{"50/s → 400/s", rate(50, 1000), rate(400, 1000), plain("50/s"), plain("400/s"), time.Second},
		{"10/s → 5/24h", rate(10, 1000), rate(5, 86_400_000), plain("10/s"), plain("5/24h"), time.Second},
		{"5/24h → 10/s", rate(5, 86_400_000), rate(10, 1000), plain("5/24h"), plain("10/s"), time.Second},
		{"paused → 50/s", `{"rate":{"limit":50,"period_ms":1000},"paused":true}`, `{"paused":false}`, nil,
			plain("50/s"), time.Second},
		{"100/s burst 1 → 5", rate(100, 1000), `{"burst":5}`, plain("100/s"), paces{{
			Rate: parse("100/s"), Burst: 5,
		}}, time.Second},
		{"1/s → 1000/s", rate(1, 1000), rate(1000, 1000), plain("1/s"), plain("1000/s"), 1300 * time.Millisecond},
		{"7/3s → 30/s", rate(7, 3000), rate(30, 1000), plain("7/3s"), plain("30/s"), 1500 * time.Millisecond},
		{"10/s → 10/s with 1000/24h burst 1000", rate(10, 1000),
			`{"rates":[{"limit":1000,"period_ms":86400000,"burst":1000}]}`, plain("10/s"),
			paces{{Rate: parse("10/s"), Burst: 1}, {Rate: parse("1000/24h"), Burst: 1000}}, time.Second},
		{"400/s → 20/s", rate(400, 1000), rate(20, 1000), plain("400/s"), plain("20/s"), time.Second},
	}
}

func rate(limit, periodMS int64) string {
	return fmt.Sprintf(`{"rate":{"limit":%d,"period_ms":%d}}`, limit, periodMS)
}

func plain(text string) paces { return paces{{Rate: parse(text), Burst: 1}} }

func parse(text string) shaper.Rate {
	r, err := shaper.ParseRate(text)
	if err != nil {
		panic("a rate of the bench: " + err.Error())
	}
	return r
}

// retuned is the result of one change. Durations are in milliseconds.
type retuned struct {
	Name     string  `json:"name"`
	Answer   float64 `json:"answer_ms"`         // that the PATCH took
	Obeyed   float64 `json:"obeyed_ms"`         // from the PATCH's answer, or when the new rate first lets a job leave, until the departures obey
	Stamps   float64 `json:"stamps_tau_us"`     // τ* of the stamps against what holds
	Arrivals float64 `json:"arrivals_tau_ms"`   // τ* of the arrivals after the change, with the noise of the way
	Early    int     `json:"early"`             // departures after the answer that the new spacing does not allow
	Count    int     `json:"departures"`        // after the change
	Problem  string  `json:"problem,omitempty"` // why it does not pass
	obeyed   bool    // false: not within the window
}

// Bounds of P10.
const (
	obeyWithin  = 100 * time.Millisecond
	leasedAhead = 20 * time.Millisecond // what has been leased when a change comes leaves as it was stamped
	roundingOf  = time.Microsecond      // of a stamp
)

// judge decides whether a change was obeyed in time and without a burst.
func (r *retuned) judge() {
	var wrong []string
	if !r.obeyed || r.Obeyed > float64(obeyWithin.Milliseconds()) {
		wrong = append(wrong, "not obeyed in time")
	}
	if r.Stamps > float64(roundingOf.Microseconds()) {
		wrong = append(wrong, "a burst")
	}
	r.Problem = strings.Join(wrong, ", ")
}

// measureRetunes makes every change on a running program, one after the other.
func measureRetunes(ctx context.Context, b *bench) ([]float64, error) {
	p, err := startProgram(ctx)
	if err != nil {
		return nil, err
	}
	defer p.close()
	var samples []float64
	var rows []retuned
	for run := range b.runs {
		for i, r := range retunes() {
			b.progress("P10: run %d of %d: %s", run+1, b.runs, r.name)
			got, err := p.retune(ctx, fmt.Sprintf("p10-%d-%d", run, i), r)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			rows = append(rows, got)
			sample := got.Obeyed
			if got.Problem != "" && sample <= float64(obeyWithin.Milliseconds()) {
				sample = bursts // a burst is no success, however soon it comes
			}
			samples = append(samples, sample)
		}
	}
	b.detail("P10", retunedTable(rows), rows)
	return samples, nil
}

// bursts stands for a change that was obeyed with a burst, or not within the window, in
// milliseconds.
const bursts = 1e6

func retunedTable(rows []retuned) []string {
	lines := []string{fmt.Sprintf("%-38s %9s %9s %11s %13s %6s %6s  %s", "change", "PATCH ms", "obeyed ms",
		"stamps τ* µs", "arrivals τ* ms", "early", "n", "verdict")}
	for _, r := range rows {
		verdict := "ok"
		if r.Problem != "" {
			verdict = "MISSED: " + r.Problem
		}
		lines = append(lines, fmt.Sprintf("%-38s %9.1f %9.1f %11.1f %13.2f %6d %6d  %s", r.Name, r.Answer,
			r.Obeyed, r.Stamps, r.Arrivals, r.Early, r.Count, verdict))
	}
	return lines
}

// retune gives the tenant a backlog under the first settings, changes them while it leaves, and
// measures the departures.
func (p *program) retune(ctx context.Context, tenant string, r retune) (retuned, error) {
	out := retuned{Name: r.name}
	if _, err := p.change(ctx, http.MethodPut, tenant, r.from); err != nil {
		return out, err
	}
	window := r.after.window()
	n := r.before.within(r.lead) + r.after.within(window) + 50
	if err := p.submit(ctx, tenant, "p10", n); err != nil {
		return out, err
	}
	if err := pass(ctx, r.lead); err != nil {
		return out, err
	}
	sent := time.Now()
	answered, err := p.change(ctx, http.MethodPatch, tenant, r.to)
	if err != nil {
		return out, err
	}
	if err := pass(ctx, window); err != nil {
		return out, err
	}
	if _, err := p.change(ctx, http.MethodPatch, tenant, `{"paused":true}`); err != nil {
		return out, err
	}
	if err := pass(ctx, 5*leasedAhead); err != nil {
		return out, err
	}
	departures, err := p.departures(ctx, tenant, answered)
	if err != nil {
		return out, err
	}
	if _, err := p.operator.Purge(ctx, tenant, wire.Filter{All: true}); err != nil {
		return out, err
	}
	out.Answer = float64(answered.Sub(sent).Microseconds()) / 1000
	out.measure(r, departures, -answered.Sub(sent))
	out.judge()
	return out, nil
}

// change changes the tenant and returns when the answer was there.
func (p *program) change(ctx context.Context, method, tenant, body string) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.admin+"/v1/tenants/"+url.PathEscape(tenant),
		strings.NewReader(body))
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: p.transport}).Do(req)
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, body, resp.Status, text)
	}
	return now, err
}

// departures are those of the jobs that have left, at most the last 1,000, since the instant.
func (p *program) departures(ctx context.Context, tenant string, zero time.Time) ([]departure, error) {
	var all []departure
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := p.jobs.Jobs(ctx, client.List{
			Tenant: tenant, State: "succeeded", Limit: wire.MaxPage, Cursor: cursor,
		})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		for _, j := range page.Items {
			// The stamp is by the clock of Redis, which is this machine's.
			all = append(all, departure{stamp: j.Started.Sub(zero.Round(0)), arrived: p.arrivals[j.ID].Sub(zero)})
		}
		p.mu.Unlock()
		cursor = page.NextCursor
	}
	slices.SortFunc(all, func(a, b departure) int { return cmp.Compare(a.stamp, b.stamp) })
	return all, nil
}

func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
