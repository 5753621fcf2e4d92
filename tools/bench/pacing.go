package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// circumstance is a condition under which the pace is measured.
type circumstance struct {
	id      string
	workers int      // at the beginning
	env     []string // of the workers
	jobs    int
	floor   int                                         // jobs of the floor
	during  func(ctx context.Context, p *program) error // beside Sluice, and beside the floor
}

var (
	twoWorkers = circumstance{id: "P6", workers: 2, jobs: 2000, floor: 2000}
	// The garbage collector runs about every time that 400 kB were allocated.
	collecting = circumstance{id: "P6-gc", workers: 2, jobs: 2000, floor: 1000, env: []string{"GOGC=10"}}
	coming     = circumstance{id: "P6-fleet", workers: 1, jobs: 2800, floor: 2800, during: comeAndGo}
)

// pacingFigures measure how evenly jobs leave.
func pacingFigures() []figure {
	return []figure{
		{id: "P6-gaps", what: "pacing at 200/s through HTTP by two workers: how far the gaps' p1 and p99 " +
			"are from T", unit: "ms", target: 0.5, atMost: true,
			measure: paced(twoWorkers, func(s spacing) float64 { return s.Deviates })},
		{id: "P6-tau-p999", what: "the same: τ*, p99.9", unit: "ms", target: 2, atMost: true,
			measure: paced(twoWorkers, func(s spacing) float64 { return s.Tau999 })},
		{id: "P6-tau-max", what: "the same: τ*, the greatest", unit: "ms", target: 6, atMost: true,
			measure: paced(twoWorkers, tauMax)},
		{id: "P6-rate", what: "the same: rate reached ÷ set", unit: "ratio", target: 0.999, upTo: 1.001,
			measure: paced(twoWorkers, rateReached)},
		{id: "P6-fleet-tau", what: "the same while workers join and leave, 1 → 4 → 1: τ*, the greatest",
			unit: "ms", target: 6, atMost: true, measure: paced(coming, tauMax)},
		{id: "P6-fleet-rate", what: "the same: rate reached ÷ set", unit: "ratio", target: 0.999, upTo: 1.001,
			measure: paced(coming, rateReached)},
		{id: "P6-gc-tau", what: "the same with the workers' garbage collector at work all the time " +
			"(GOGC=10): τ*, the greatest", unit: "ms", target: 6, atMost: true,
			measure: paced(collecting, tauMax)},
		{id: "P6-gc-rate", what: "the same: rate reached ÷ set", unit: "ratio", target: 0.999, upTo: 1.001,
			measure: paced(collecting, rateReached)},
	}
}

func tauMax(s spacing) float64      { return s.TauMax }
func rateReached(s spacing) float64 { return s.Rate }

// comeAndGo lets workers join and leave: 1 → 4 → 1, a step every two seconds.
func comeAndGo(ctx context.Context, p *program) error {
	const step = 2 * time.Second
	for _, join := range []bool{true, true, true, false, false, false} {
		if err := pass(ctx, step); err != nil {
			return err
		}
		if !join {
			p.leave()
		} else if err := p.join(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pacedRun is one run: of Sluice, or of the floor beside it.
type pacedRun struct {
	Run  int    `json:"run"`
	What string `json:"what"` // "sluice" or "floor"
	spacing
	Stalls      int     `json:"machine_stalls"` // sleeps of a millisecond that took over 2 ms too long
	Longest     float64 `json:"longest_stall_ms"`
	Collections int     `json:"collections,omitempty"` // of the workers' garbage, as far as they still run
}

// paced measures one thing about the pace. The figures of one circumstance share their runs.
func paced(c circumstance, pick func(spacing) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		runs, err := once(b, c.id, func() ([]pacedRun, error) { return c.measure(ctx, b) })
		var samples []float64
		for _, r := range runs {
			if r.What == "sluice" {
				samples = append(samples, pick(r.spacing))
			}
		}
		return samples, err
	}
}

// measure lets Sluice and the floor take turns.
func (c circumstance) measure(ctx context.Context, b *bench) ([]pacedRun, error) {
	r := parse("200/s")
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(b.runs)*time.Minute)
	defer cancel()
	sink, err := newNotes()
	if err != nil {
		return nil, err
	}
	defer sink.close()
	p, err := startLayout(ctx, layout{split: c.workers, env: c.env, upstream: sink.url + "/sluice"})
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.warmUp(ctx, sink); err != nil {
		return nil, err
	}
	var runs []pacedRun
	for i := range b.runs {
		b.progress("%s: run %d of %d: %d jobs at %s", c.id, i+1, b.runs, c.jobs, r)
		mine, err := c.sluice(ctx, p, sink, r, i)
		if err != nil {
			return nil, err
		}
		b.progress("%s: run %d of %d: floor", c.id, i+1, b.runs)
		watch, err := watchStalls()
		if err != nil {
			return nil, err
		}
		beside := make(chan error, 1)
		go func() {
			if c.during == nil {
				beside <- nil
				return
			}
			beside <- c.during(ctx, p)
		}()
		_, err = floor{URL: sink.url + "/floor", Jobs: c.floor,
			Interval: r.Period / time.Duration(r.Limit)}.pace(ctx)
		err = errors.Join(err, <-beside)
		seen, failed := watch()
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
		runs = append(runs, mine, pacedRun{
			Run: i + 1, What: "floor", spacing: space(r, sink.take("/floor")), Stalls: seen.N,
			Longest: precise(seen.Longest),
		})
	}
	b.detail(c.figure(), c.table(runs), runs)
	return runs, nil
}

// figure is the one that shows the table of the runs.
func (c circumstance) figure() string {
	if c.id == twoWorkers.id {
		return "P6-gaps"
	}
	return c.id + "-tau"
}

// warmUp sends some jobs through, and gives the workers the time to agree on the owners of shards.
func (p *program) warmUp(ctx context.Context, sink *notes) error {
	const jobs = 200
	if _, err := p.change(ctx, http.MethodPut, "warm-up", rate(200, 1000)); err != nil {
		return err
	}
	if err := p.submit(ctx, "warm-up", "p6", jobs); err != nil {
		return err
	}
	if err := sink.await(ctx, "/sluice", jobs); err != nil {
		return err
	}
	sink.take("/sluice")
	return pass(ctx, 2*time.Second)
}

// sluice drains a tenant's jobs, all submitted at once.
func (c circumstance) sluice(
	ctx context.Context, p *program, sink *notes, r shaper.Rate, run int,
) (pacedRun, error) {
	out := pacedRun{Run: run + 1, What: "sluice"}
	tenant := fmt.Sprintf("%s-%d", c.id, run)
	if _, err := p.change(ctx, http.MethodPut, tenant, rate(r.Limit, r.Period.Milliseconds())); err != nil {
		return out, err
	}
	before := p.collections(ctx)
	watch, err := watchStalls()
	if err != nil {
		return out, err
	}
	err = p.submit(ctx, tenant, "p6", c.jobs)
	if err == nil && c.during != nil {
		err = c.during(ctx, p)
	}
	if err == nil {
		err = sink.await(ctx, "/sluice", c.jobs)
	}
	seen, failed := watch()
	err = errors.Join(err, failed)
	out.spacing, out.Stalls, out.Longest = space(r, sink.take("/sluice")), seen.N, precise(seen.Longest)
	if err != nil {
		return out, err
	}
	if out.Count != c.jobs {
		return out, fmt.Errorf("%d deliveries of %d jobs", out.Count, c.jobs)
	}
	if c.during == nil {
		out.Collections = p.collections(ctx) - before
	}
	// The last settlements are sent, and the next run does not begin beside them.
	return out, pass(ctx, time.Second)
}

func (c circumstance) table(runs []pacedRun) []string {
	lines := []string{fmt.Sprintf("%-9s %-7s %6s %9s %9s %9s %13s %11s %10s %13s %11s %5s",
		c.id, "run", "n", "gap p1 ms", "p50 ms", "p99 ms", "τ* p99.9 ms", "τ* max ms", "rate",
		"stalls > 2 ms", "longest ms", "GCs")}
	for _, r := range runs {
		lines = append(lines, fmt.Sprintf("%-9s %-7d %6d %9.3f %9.3f %9.3f %13.3f %11.3f %10.5f %13d %11.2f %5d",
			r.What, r.Run, r.Count, r.GapP1, r.GapP50, r.GapP99, r.Tau999, r.TauMax, r.Rate, r.Stalls,
			r.Longest, r.Collections))
	}
	return append(lines, floorLine(runs))
}

// floorLine reports whether the machine itself allowed the targets at the time.
func floorLine(runs []pacedRun) string {
	var all, gaps, tau int
	for _, r := range runs {
		if r.What != "floor" {
			continue
		}
		all++
		if r.Deviates <= 0.5 {
			gaps++
		}
		if r.Tau999 <= 2 && r.TauMax <= 6 {
			tau++
		}
	}
	return fmt.Sprintf("the floor itself reached the target of the gaps in %d of %d runs, those of τ* in "+
		"%d; a miss of the floor is caused by the machine", gaps, all, tau)
}

var collectionsLine = regexp.MustCompile(`(?m)^go_gc_duration_seconds_count (\d+)`)

// collections counts the garbage collections of all workers; 0 if they do not report them.
func (p *program) collections(ctx context.Context) (total int) {
	for _, w := range p.workers {
		found := collectionsLine.FindStringSubmatch(p.get(ctx, w.admin+"/metrics"))
		if found != nil {
			n, _ := strconv.Atoi(found[1]) // digits
			total += n
		}
	}
	return total
}

// get is the body of an answer; empty where there is none.
func (p *program) get(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	resp, err := (&http.Client{Transport: p.transport}).Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}
