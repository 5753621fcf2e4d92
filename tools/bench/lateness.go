package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// lateTarget is how late one in a hundred starts of a single flow may be, in milliseconds.
const lateTarget = 0.5

// latenessFigures measure how late Go handlers start, against the ideal grid of their flow.
func latenessFigures() []figure {
	const many = "20,000 flows at 1/s in one process: "
	return []figure{
		{id: "P7-one", what: "one flow at 5,000/s: lateness of handlers against the ideal grid, p99",
			unit: "ms", target: lateTarget, atMost: true,
			measure: late(oneFlow, func(l lateRun) float64 { return l.P99 })},
		{id: "P7-many", what: many + "lateness, p99", unit: "ms", target: 20, atMost: true,
			measure: late(manyFlows, func(l lateRun) float64 { return l.P99 })},
		{id: "P7-many-rate", what: many + "the slowest flow's rate ÷ the one set", unit: "ratio", target: 0.995,
			measure: late(manyFlows, func(l lateRun) float64 { return l.Slowest })},
	}
}

// crowd is flows that drain at one rate.
type crowd struct {
	id    string
	flows int
	rate  string
	jobs  int // of each flow
	// Many flows send one more job ahead. Its cost delays the others until after the lead. So all
	// flows have begun before the pace is measured: for the window, or, without a lead, until all
	// jobs have left.
	lead, window time.Duration
	most         time.Duration // that one run may take
}

var (
	oneFlow   = crowd{id: "P7-one", flows: 1, rate: "5000/s", jobs: 25_000, most: time.Minute}
	manyFlows = crowd{
		id: "P7-many", flows: 20_000, rate: "1/s", jobs: 16, lead: 10 * time.Second, window: 8 * time.Second,
		most: 2 * time.Minute,
	}
)

// lateRun is the result of one run. Durations are milliseconds.
type lateRun struct {
	Run     int     `json:"run"`
	What    string  `json:"what"` // "sluice" or "floor"
	Count   int     `json:"departures"`
	P50     float64 `json:"late_p50_ms"`
	P99     float64 `json:"late_p99_ms"`
	P999    float64 `json:"late_p999_ms"`
	Max     float64 `json:"late_max_ms"`
	Slowest float64 `json:"slowest_flow_ratio,omitempty"` // not of the floor
	Stalls  int     `json:"machine_stalls"`
	Longest float64 `json:"longest_stall_ms"`

	Histogram histogram `json:"histogram"` // departures by how late they were, ten bins to each power of ten from 10 µs
}

// start is one handler that has started: in which flow, when, and when it should have by its stamp.
type start struct {
	flow      int
	at, stamp time.Duration
}

// late measures one thing about lateness. The figures of one crowd share their runs.
func late(c crowd, pick func(lateRun) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		runs, err := once(b, c.id, func() ([]lateRun, error) { return c.measure(ctx, b) })
		var samples []float64
		for _, r := range ours(runs) {
			samples = append(samples, pick(r))
		}
		return samples, err
	}
}

// measure lets Sluice and, where there is one, the floor take turns.
func (c crowd) measure(ctx context.Context, b *bench) ([]lateRun, error) {
	type turn struct {
		what string
		run  func(context.Context) (lateRun, error)
	}
	turns := []turn{{"sluice", c.apart}}
	if r := parse(c.rate); c.flows == 1 {
		turns = append(turns, turn{"floor", floor{Jobs: c.jobs, Interval: r.Period / time.Duration(r.Limit)}.pace})
	}
	var runs []lateRun
	for i := range b.runs {
		for _, t := range turns {
			b.progress("%s: run %d of %d: %s", c.id, i+1, b.runs, t.what)
			watch, err := watchStalls()
			if err != nil {
				return nil, err
			}
			r, err := t.run(ctx)
			machine, failed := watch()
			if err := errors.Join(err, failed); err != nil {
				return nil, err
			}
			r.Run, r.What, r.Stalls, r.Longest = i+1, t.what, machine.N, precise(machine.Longest)
			runs = append(runs, r)
		}
	}
	b.detail(c.id, c.table(runs), runs)
	b.lateness(c, ours(runs))
	return runs, nil
}

// crowdChild is the argument that makes a process of the bench one that drains a crowd.
const crowdChild = "child-crowd"

// apart drains the crowd once in a process of its own, so that its settings do not change later
// measurements.
func (c crowd) apart(ctx context.Context) (r lateRun, err error) {
	program, err := os.Executable()
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.most)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, crowdChild, c.id)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr // it shows its progress there
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 40 * time.Second           // to clear away
	if _, err := cmd.StdinPipe(); err != nil { // closed at the latest when the bench ends
		return r, err
	}
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%s in a process of its own: %w", c.id, errors.Join(err, ctx.Err()))
	}
	err = json.Unmarshal(out.Bytes(), &r)
	return r, err
}

// runCrowd is the process. It ends with its input.
func runCrowd(id string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for _, c := range []crowd{oneFlow, manyFlows} {
		if c.id != id {
			continue
		}
		starts, err := c.run(ctx, progress())
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(starts.judge(parse(c.rate), c.flows))
	}
	return fmt.Errorf("no crowd %q", id)
}

// ours are the runs of Sluice.
func ours(runs []lateRun) []lateRun {
	return slices.DeleteFunc(slices.Clone(runs), func(r lateRun) bool { return r.What != "sluice" })
}

// run drains the crowd once and returns the starts to be measured.
func (c crowd) run(ctx context.Context, progress func(format string, args ...any)) (seen, error) {
	s, err := open(ctx)
	if err != nil {
		return seen{}, err
	}
	defer s.close()
	policy := shaper.DefaultPolicy()
	policy.Rate, policy.Capacity, policy.Concurrency = parse(c.rate), 1_000_000, 0
	policy.Paused = true
	if err := s.SetPolicies(ctx, shaper.Baseline{Defaults: policy}, nil); err != nil {
		return seen{}, err
	}
	total := c.flows * c.jobs
	if c.lead > 0 {
		total += c.flows
	}
	book := make([]start, total)
	var started, noted atomic.Int64
	zero := time.Now()
	handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		at := time.Since(zero)
		d, _ := worker.Delivery(ctx)
		flow, err := strconv.Atoi(strings.TrimPrefix(d.Tenant, c.id))
		if n := int(started.Add(1)) - 1; n < len(book) && err == nil {
			// The stamp is by the clock of Redis, which is this machine's.
			book[n] = start{flow: flow, at: at, stamp: d.Stamp.Sub(zero.Round(0))}
			noted.Add(1)
		}
		return err
	})
	// As serve does.
	worker.ReserveProcessor()
	worker.ShortenSlices()
	w, err := worker.New(s.Queue, worker.Config{
		Routes: map[string]worker.Route{route: {Handler: true}}, Handler: handler, Concurrency: 8192,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return seen{}, err
	}
	progress("%s: %d jobs are admitted", c.id, len(book))
	if err := s.fillMany(ctx, c.flows, c.jobs, c.tenant, c.ahead(), func(string) {}); err != nil {
		return seen{}, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	defer func() { stop(); <-ended }()
	// Earlier writes and deletions have ended, and the worker has its shards.
	if err := pass(ctx, 2*time.Second); err != nil {
		return seen{}, err
	}
	policy.Paused = false
	if err := s.SetPolicies(ctx, shaper.Baseline{Defaults: policy}, nil); err != nil {
		return seen{}, err
	}
	wait := func(jobs int, most time.Duration) error {
		for waited := time.Duration(0); noted.Load() < int64(jobs) && waited < most; waited += time.Second {
			progress("%s: %d of %d jobs have left", c.id, noted.Load(), total)
			if err := pass(ctx, time.Second); err != nil {
				return fmt.Errorf("%d of %d jobs have left: %w", noted.Load(), total, err)
			}
		}
		return nil
	}
	if c.lead == 0 {
		err := wait(total, c.most)
		return seen{starts: book}, err
	}
	// If not all begin in that time, the figure shows it.
	if err := wait(c.flows, 2*c.lead); err != nil {
		return seen{}, err
	}
	if err := pass(ctx, c.lead); err != nil {
		return seen{}, err
	}
	from := time.Since(zero)
	progress("%s: looking for %v", c.id, c.window)
	if err := pass(ctx, c.window); err != nil {
		return seen{}, err
	}
	until := time.Since(zero)
	stop()
	err = <-ended
	ended <- nil // for the one who waits above
	if err != nil {
		return seen{}, err
	}
	starts := book[:min(len(book), int(noted.Load()))]
	return seen{slices.DeleteFunc(starts, func(s start) bool {
		return s.at < from || s.at > until
	}), from, until}, nil
}

func (c crowd) tenant(flow int) string { return c.id + strconv.Itoa(flow) }

// ahead is the cost of the job that each flow sends ahead; 0 for none.
func (c crowd) ahead() int64 {
	r := parse(c.rate)
	return int64(c.lead) * r.Limit / int64(r.Period)
}

// seen is the starts of one run between two instants, in any order; both are 0 where all jobs have
// started.
type seen struct {
	starts      []start
	from, until time.Duration
}

// judge compares the starts of each flow with the grid that begins with the stamp of its first one:
// the n-th should start n·T later, whatever its own stamp. One that is due but has not started
// counts with its lateness at the end. The rate of a flow without two starts is 0.
func (s seen) judge(r shaper.Rate, flows int) lateRun {
	byFlow := make([][]start, flows)
	for _, start := range s.starts {
		byFlow[start.flow] = append(byFlow[start.flow], start)
	}
	interval := float64(r.Period) / float64(r.Limit)
	lateness := make([]time.Duration, 0, len(s.starts))
	slowest := math.Inf(1)
	for _, flow := range byFlow {
		slices.SortFunc(flow, func(a, b start) int { return cmp.Compare(a.at, b.at) })
		first := s.from
		if len(flow) > 0 {
			first = slices.MinFunc(flow, func(a, b start) int { return cmp.Compare(a.stamp, b.stamp) }).stamp
		}
		due := func(n int) time.Duration { return first + time.Duration(float64(n)*interval) }
		for n, start := range flow {
			lateness = append(lateness, start.at-due(n))
		}
		for n := len(flow); due(n) < s.until; n++ {
			lateness = append(lateness, s.until-due(n))
		}
		rate := 0.0
		if len(flow) > 1 {
			rate = float64(len(flow)-1) * interval / float64(max(1, flow[len(flow)-1].at-flow[0].at))
		}
		slowest = min(slowest, rate)
	}
	run := lateOf(lateness)
	run.Count, run.Slowest = len(s.starts), slowest
	return run
}

// lateOf summarizes lateness, which it sorts.
func lateOf(lateness []time.Duration) lateRun {
	slices.Sort(lateness)
	run := lateRun{
		Count: len(lateness), P50: precise(quantile(lateness, 0.5)), P99: precise(quantile(lateness, 0.99)),
		P999: precise(quantile(lateness, 0.999)),
		Max:  precise(quantile(lateness, 1)),
	}
	for _, l := range lateness {
		run.Histogram.add(l)
	}
	return run
}

func (c crowd) table(runs []lateRun) []string {
	lines := []string{fmt.Sprintf("%-9s %4s %9s %10s %10s %10s %10s %13s %13s %11s",
		c.id, "run", "n", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "slowest flow", "stalls > 2 ms", "longest ms")}
	floors, kept := 0, 0
	for _, r := range runs {
		slowest := ""
		if r.What == "floor" {
			if floors++; r.P99 <= lateTarget {
				kept++
			}
		} else {
			slowest = fmt.Sprintf("%.5f", r.Slowest)
		}
		lines = append(lines, fmt.Sprintf("%-9s %4d %9d %10.3f %10.3f %10.3f %10.3f %13s %13d %11.2f",
			r.What, r.Run, r.Count, r.P50, r.P99, r.P999, r.Max, slowest, r.Stalls, r.Longest))
	}
	if floors > 0 {
		lines = append(lines, fmt.Sprintf("the floor itself reached the target in %d of %d runs; "+
			"a miss of the floor is caused by the machine", kept, floors))
	}
	return lines
}

// histogram counts lateness in bins whose width grows with it: ten to each power of ten, from 10 µs
// to 10 s.
type histogram [61]int

// edge is the lower bound of a bin in milliseconds.
func (histogram) edge(bin int) float64 { return 0.01 * math.Pow(10, float64(bin)/10) }

// add counts one; what is outside the bins is counted in the nearest one.
func (h *histogram) add(l time.Duration) {
	bin := 0
	if ms := precise(l); ms > 0.01 {
		bin = min(len(h)-1, int(10*math.Log10(ms/0.01)))
	}
	h[bin]++
}

// beyond reports whether more than a thousandth is above the bin.
func (h histogram) beyond(bin int) bool {
	total, above := 0, 0
	for i, n := range h {
		total += n
		if i > bin {
			above += n
		}
	}
	return above*1000 > total
}
