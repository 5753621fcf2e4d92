package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// peerFigures measure other systems with the same arrivals.
func peerFigures() []figure {
	return []figure{{
		id: "P6-peers",
		what: "the same arrivals through Sluice (the figure: its greatest τ*), nginx, BullMQ and asynq; " +
			"see the table",
		unit: "ms", info: true,
		measure: measurePeers,
	}}
}

// arrival is a number of jobs at one instant after the beginning.
type arrival struct {
	At   time.Duration `json:"at_ns"`
	Jobs int           `json:"jobs"`
}

// crowds are the arrivals: three crowds. The first alone exceeds the departures up to the last.
func crowds() []arrival { return []arrival{{0, 500}, {time.Second, 300}, {2 * time.Second, 200}} }

// race holds the conditions for every contender: its deliveries are POSTs to the URL.
type race struct {
	dir      string
	url      string
	rate     shaper.Rate
	arrivals []arrival
}

// jobs is how many arrive.
func (r race) jobs() (n int) {
	for _, a := range r.arrivals {
		n += a.Jobs
	}
	return n
}

// contender is a system ready to start.
type contender struct {
	about string                          // the version
	begin func(ctx context.Context) error // submits the jobs, and may return before the last of them
	end   func()                          // ends what was started; only once
}

// peer is a system that paces.
type peer struct {
	name    string
	about   string // the settings
	prepare func(ctx context.Context, r race) (contender, error)
}

// absent is the reason why a peer is not measured on this machine.
type absent struct{ why string }

func (a absent) Error() string { return a.why }

// peers are the systems, Sluice first.
func peers() []peer {
	return []peer{
		{"Sluice", "rate 200/s, two workers", prepareSluice},
		{"nginx", "limit_req rate=200r/s burst=1000; jobs are open requests, in memory", prepareNginx},
		{"BullMQ", "limiter max 200, duration 1000 ms", prepareBullMQ(200, 1000)},
		{"BullMQ 1/5 ms", "limiter max 1, duration 5 ms", prepareBullMQ(1, 5)},
		{"asynq", "RateLimitError recipe of its wiki, limiter 200/s, burst 1", prepareAsynq},
	}
}

// raceLimit is when a contender that has not delivered everything is stopped: three times what the
// rate needs.
const raceLimit = 15 * time.Second

// peerRun is one run of a system, or why it was absent.
type peerRun struct {
	Run    int    `json:"run,omitempty"`
	Name   string `json:"name"`
	About  string `json:"about"`
	Absent string `json:"absent,omitempty"`
	spacing
	departures []time.Duration // since the beginning
}

func measurePeers(ctx context.Context, b *bench) ([]float64, error) {
	runs, err := b.raceAll(ctx, "P6-peers", peers())
	if err != nil {
		return nil, err
	}
	b.detail("P6-peers", peerTable("P6-peers", runs), runs)
	b.departures(crowds(), runs)
	return picked(runs, tauMax), nil
}

// raceAll lets the systems take turns.
func (b *bench) raceAll(ctx context.Context, id string, peers []peer) ([]peerRun, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(b.runs)*2*time.Minute)
	defer cancel()
	sink, err := newNotes()
	if err != nil {
		return nil, err
	}
	defer sink.close()
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var runs []peerRun
	missing := map[string]bool{}
	for i := range b.runs {
		for _, p := range peers {
			if missing[p.name] {
				continue
			}
			b.progress("%s: run %d of %d: %s", id, i+1, b.runs, p.name)
			r, err := p.run(ctx, sink, dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			r.Run = i + 1
			missing[p.name] = r.Absent != ""
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// picked is one thing about each run of Sluice.
func picked(runs []peerRun, pick func(spacing) float64) (samples []float64) {
	for _, r := range runs {
		if r.Name == "Sluice" {
			samples = append(samples, pick(r.spacing))
		}
	}
	return samples
}

// run lets the system deliver the arrivals. An absent system is no error.
func (p peer) run(ctx context.Context, sink *notes, dir string) (peerRun, error) {
	out := peerRun{Name: p.name, About: p.about}
	path := "/" + strings.NewReplacer(" ", "-", "/", "-").Replace(p.name)
	own, err := os.MkdirTemp(dir, "run-")
	if err != nil {
		return out, err
	}
	r := race{dir: own, url: sink.url + path, rate: parse("200/s"), arrivals: crowds()}
	c, err := p.prepare(ctx, r)
	if missing, ok := errors.AsType[absent](err); ok {
		out.Absent = missing.why
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer c.end()
	out.About = strings.TrimSpace(c.about + ": " + p.about)
	if c.about == "" {
		out.About = p.about
	}
	sink.take(path)
	limited, cancel := context.WithTimeout(ctx, raceLimit)
	defer cancel()
	began := time.Since(sink.zero)
	if err := c.begin(limited); err != nil {
		return out, err
	}
	if err := sink.await(limited, path, r.jobs()); err != nil && ctx.Err() != nil {
		return out, err
	}
	for _, at := range sink.take(path) {
		out.departures = append(out.departures, at-began)
	}
	out.spacing = space(r.rate, out.departures)
	return out, nil
}

// arrive calls send at each arrival, in order.
func (r race) arrive(ctx context.Context, send func(jobs int) error) error {
	began := time.Now()
	for _, a := range r.arrivals {
		if err := pass(ctx, time.Until(began.Add(a.At))); err != nil {
			return err
		}
		if err := send(a.Jobs); err != nil {
			return err
		}
	}
	return nil
}

// prepareSluice starts two workers and an intake.
func prepareSluice(ctx context.Context, r race) (contender, error) {
	binary, err := build(ctx, filepath.Dir(r.dir))
	if err != nil {
		return contender{}, err
	}
	p, err := startLayout(ctx, layout{split: 2, upstream: r.url, binary: binary})
	if err != nil {
		return contender{}, err
	}
	_, err = p.change(ctx, http.MethodPut, "peers", rate(r.rate.Limit, r.rate.Period.Milliseconds()))
	if err == nil {
		err = pass(ctx, 2*time.Second) // the workers agree on the owners of shards
	}
	if err != nil {
		p.close()
		return contender{}, err
	}
	return contender{end: p.close, begin: func(ctx context.Context) error {
		return r.arrive(ctx, func(jobs int) error { return p.submit(ctx, "peers", "p6", jobs) })
	}}, nil
}

// peerTable has a line for each system: the medians of its runs, and the ends of τ*.
func peerTable(id string, runs []peerRun) []string {
	lines := []string{fmt.Sprintf("%-14s %5s %9s %9s %9s %12s %23s %8s %10s  %s",
		id, "left", "gap p1 ms", "p50 ms", "p99 ms", "τ* p99.9 ms", "τ* max ms (min–max)", "rate",
		"in 100 ms", "what")}
	byName := map[string][]peerRun{}
	var names []string
	for _, r := range runs {
		if byName[r.Name] == nil {
			names = append(names, r.Name)
		}
		byName[r.Name] = append(byName[r.Name], r)
	}
	for _, name := range names {
		same := byName[name]
		if same[0].Absent != "" {
			lines = append(lines, fmt.Sprintf("%-14s %5s  %s", name, "-", "absent: "+same[0].Absent))
			continue
		}
		of := func(pick func(spacing) float64) float64 {
			var values []float64
			for _, r := range same {
				values = append(values, pick(r.spacing))
			}
			return median(values)
		}
		byTau := func(a, b peerRun) int { return cmp.Compare(a.TauMax, b.TauMax) }
		ends := fmt.Sprintf("%.2f (%.2f–%.2f)", of(tauMax), slices.MinFunc(same, byTau).TauMax,
			slices.MaxFunc(same, byTau).TauMax)
		lines = append(lines, fmt.Sprintf("%-14s %5.0f %9.3f %9.3f %9.3f %12.2f %23s %8.4f %10.0f  %s", name,
			of(func(s spacing) float64 { return float64(s.Count) }),
			of(func(s spacing) float64 { return s.GapP1 }), of(func(s spacing) float64 { return s.GapP50 }),
			of(func(s spacing) float64 { return s.GapP99 }), of(func(s spacing) float64 { return s.Tau999 }),
			ends, of(rateReached),
			of(func(s spacing) float64 { return float64(s.Fullest) }), same[0].About))
	}
	return lines
}
