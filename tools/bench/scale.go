package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// scaleFigures measure the cost of a job with many tenants and many waiting jobs. They have no
// target, unlike P4 and P11.
func scaleFigures() []figure {
	const at = " a job with 100,000 tenants and 1,000,000 waiting jobs, in Redis"
	return []figure{
		{id: "SCALE-admit", what: "admit" + at, unit: "µs", info: true,
			measure: scaled(func(c scaleCell) float64 { return c.Admit })},
		{id: "SCALE-drain", what: "tick and settle" + at, unit: "µs", info: true,
			measure: scaled(func(c scaleCell) float64 { return c.Drain })},
	}
}

// scaleCell is the cost of a job at a number of tenants and waiting jobs, in microseconds: in
// Redis, and with the round trip.
type scaleCell struct {
	Tenants   int     `json:"tenants"`
	Waiting   int     `json:"waiting"`
	Admit     float64 `json:"admit_redis_us"`
	AdmitWall float64 `json:"admit_us"` // one submission after the other
	Drain     float64 `json:"tick_settle_redis_us"`
	DrainWall float64 `json:"tick_settle_us"` // ten leases a poll

	runs []scaleCell // this cell is their median
}

// depths of all tenants together at which the cost is measured.
var depths = []int{10, 1000, 10_000, 100_000, 1_000_000}

// scaled picks a cost of the greatest cell.
func scaled(pick func(scaleCell) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		cells, err := once(b, "SCALE", func() ([]scaleCell, error) { return measureScale(ctx, b) })
		if err != nil {
			return nil, err
		}
		var samples []float64
		for _, r := range cells[len(cells)-1].runs {
			samples = append(samples, pick(r))
		}
		return samples, nil
	}
}

// measureScale fills a store for each number of tenants, step by step, and measures the cost at
// each depth.
func measureScale(ctx context.Context, b *bench) ([]scaleCell, error) {
	const most, fits = 4 * time.Minute, 150 * time.Second
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	began := time.Now()
	var cells []scaleCell
	var skipped []int
	// The ends come first: on a slow machine there may be no time for the greatest depth of the
	// others.
	for _, tenants := range []int{100_000, 1, 10_000, 100} {
		deepest := depths[len(depths)-1]
		if time.Since(began) > fits {
			deepest = depths[len(depths)-2]
			skipped = append(skipped, tenants)
		}
		found, err := scaleOf(ctx, b, tenants, deepest)
		if err != nil {
			return nil, fmt.Errorf("%d tenants: %w", tenants, err)
		}
		cells = append(cells, found...)
	}
	slices.SortFunc(cells, func(a, b scaleCell) int {
		return cmp.Or(cmp.Compare(a.Tenants, b.Tenants), cmp.Compare(a.Waiting, b.Waiting))
	})
	lines := scaleTable(cells)
	if len(skipped) > 0 {
		lines = append(lines, fmt.Sprintf("no time was left for the greatest depth of %v tenants", skipped))
	}
	b.detail("SCALE-admit", lines, cells)
	b.scale(cells)
	return cells, nil
}

func scaleOf(ctx context.Context, b *bench, tenants, deepest int) ([]scaleCell, error) {
	s, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	g := &ground{store: s, tenants: tenants, shards: map[int]*queue.Consumer{}}
	var cells []scaleCell
	for _, depth := range depths {
		if depth < tenants || depth > deepest {
			continue
		}
		b.progress("SCALE: %d tenants, %d waiting jobs", tenants, depth)
		if err := g.fill(ctx, depth); err != nil {
			return nil, err
		}
		c := scaleCell{Tenants: tenants, Waiting: depth}
		for run := range b.runs + 1 {
			r, err := g.measure(ctx)
			if err != nil {
				return nil, err
			}
			if run > 0 { // the first run warms up
				c.runs = append(c.runs, r)
			}
		}
		of := func(pick func(scaleCell) float64) float64 {
			var values []float64
			for _, r := range c.runs {
				values = append(values, pick(r))
			}
			return median(values)
		}
		c.Admit, c.AdmitWall = of(func(c scaleCell) float64 {
			return c.Admit
		}), of(func(c scaleCell) float64 { return c.AdmitWall })
		c.Drain, c.DrainWall = of(func(c scaleCell) float64 {
			return c.Drain
		}), of(func(c scaleCell) float64 { return c.DrainWall })
		cells = append(cells, c)
	}
	return cells, nil
}

// ground is a store with a number of tenants, all with the same number of jobs.
type ground struct {
	*store
	tenants int
	waiting int
	shards  map[int]*queue.Consumer // that tenants are in
	order   []int                   // of the shards
	next    int
}

func (g *ground) name(i int) string { return "scale-" + strconv.Itoa(i) }

// fill admits jobs of every tenant until the total is reached.
func (g *ground) fill(ctx context.Context, depth int) error {
	err := g.fillMany(ctx, g.tenants, (depth-g.waiting)/g.tenants, g.name, 0, func(id string) {
		if n := shardOf(id); g.shards[n] == nil {
			g.shards[n] = g.Broker().Consumer("bench", n)
			g.order = append(g.order, n)
		}
	})
	g.waiting = depth
	return err
}

// fillMany admits a number of jobs of each of the tenants, some tenants at a time and in about
// their order; with ahead, one more of that cost goes before them. It calls seen with the id of one
// job of each tenant, one call at a time.
func (s *store) fillMany(
	ctx context.Context, tenants, jobs int, name func(int) string, ahead int64, seen func(id string),
) error {
	var (
		filling sync.WaitGroup
		mu      sync.Mutex
		failed  error
		next    int
	)
	take := func(id string, err error) (i int, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if id != "" {
			seen(id)
		}
		failed = cmp.Or(failed, err)
		next++
		return next - 1, failed == nil && next <= tenants
	}
	// Redis admits this number of jobs in some tens of milliseconds. With more at once the intake
	// would time out.
	const together = 3000
	for range min(32, tenants, max(1, together/max(1, min(jobs, 1000)))) {
		filling.Go(func() {
			for i, more := take("", nil); more; {
				i, more = take(s.fillOne(ctx, name(i), jobs, ahead))
			}
		})
	}
	filling.Wait()
	return failed
}

// fillOne admits jobs of the tenant and returns the id of one of them.
func (s *store) fillOne(ctx context.Context, tenant string, jobs int, ahead int64) (id string, err error) {
	if ahead > 0 {
		jobs++
	}
	for left := jobs; left > 0; {
		batch := slices.Repeat([]queue.Submission{submission(tenant, "")}, min(left, 1000))
		if left == jobs {
			batch[0].Cost = ahead
		}
		for i := range batch {
			if batch[i].ID, err = s.NewID(tenant, batch[i].Route); err != nil {
				return "", err
			}
		}
		var decisions []queue.Decision
		if err := patiently(func() (err error) {
			decisions, err = s.SubmitBatch(ctx, batch, true)
			return err
		}); err != nil {
			return "", err
		}
		if decisions[0].Outcome != shaper.Admitted {
			return "", fmt.Errorf("a job was not admitted: %s", decisions[0].Outcome)
		}
		id, left = batch[0].ID, left-len(batch)
	}
	return id, nil
}

// measure admits some jobs and drains as many, so that the depth stays about what it is.
func (g *ground) measure(ctx context.Context) (cell scaleCell, err error) {
	const jobs = 600
	turn := min(jobs, max(10, g.waiting/10))
	var admit, drain meter
	for done := 0; done < jobs; done += turn {
		if err := admit.run(ctx, g.store, func() error { return g.admit(ctx, turn) }); err != nil {
			return cell, err
		}
		if err := drain.run(ctx, g.store, func() error { return g.drain(ctx, turn) }); err != nil {
			return cell, err
		}
		cell.Waiting += turn // jobs so far
	}
	n := float64(cell.Waiting)
	return scaleCell{Admit: admit.redis / n, AdmitWall: admit.wall / n, Drain: drain.redis / n,
		DrainWall: drain.wall / n}, nil
}

func (g *ground) admit(ctx context.Context, n int) error {
	for range n {
		v, err := g.Submit(ctx, submission(g.name(rand.IntN(g.tenants)), ""))
		if err != nil {
			return err
		}
		if v.Outcome != shaper.Admitted {
			return fmt.Errorf("a job was not admitted: %s", v.Outcome)
		}
	}
	return nil
}

// drain leases and settles n jobs, ten at a time, in turns of the shards.
func (g *ground) drain(ctx context.Context, n int) error {
	for misses := 0; n > 0; g.next++ {
		t, err := g.shards[g.order[g.next%len(g.order)]].Tick(ctx, queue.TickOptions{
			Max: min(10, n), Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second,
		})
		if err != nil {
			return err
		}
		if len(t.Leases) == 0 {
			if misses++; misses > 10*len(g.order) {
				return fmt.Errorf("%d jobs that should be due are not", n)
			}
			continue
		}
		misses = 0
		batch := make([]queue.Settlement, len(t.Leases))
		for i, l := range t.Leases {
			batch[i] = queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts}
		}
		results, err := g.Broker().Settle(ctx, batch)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(results, func(r queue.SettleResult) bool { return r != queue.Settled }); i >= 0 {
			return fmt.Errorf("a job was not settled: %s", results[i])
		}
		n -= len(batch)
	}
	return nil
}

// patiently repeats a call that timed out, because a stall of the machine may be longer than the
// timeout. The call must be safe to repeat.
func patiently(call func() error) error {
	for range 10 {
		if err := call(); !errors.Is(err, queue.ErrUnavailable) {
			return err
		}
	}
	return call()
}

// meter adds up time, in microseconds: that of scripts in Redis, and that on the wall.
type meter struct{ redis, wall float64 }

func (m *meter) run(ctx context.Context, s *store, work func() error) error {
	before, err := s.scripts(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := work(); err != nil {
		return err
	}
	m.wall += float64(time.Since(start).Nanoseconds()) / 1000
	after, err := s.scripts(ctx)
	m.redis += after - before
	return err
}

// scripts is how long scripts have run, in microseconds.
func (s *store) scripts(ctx context.Context) (total float64, err error) {
	fields, err := s.info(ctx, "commandstats")
	if err != nil {
		return 0, err
	}
	for _, command := range []string{"eval", "evalsha"} {
		us, err := statOf(fields["cmdstat_"+command], "usec")
		if err != nil {
			return 0, err
		}
		total += us
	}
	return total, nil
}

// statOf reads one value of a line of INFO commandstats, such as usec of
// "calls=2,usec=35,usec_per_call=17.50"; 0 of a line that is not there.
func statOf(line, name string) (float64, error) {
	for field := range strings.SplitSeq(line, ",") {
		if key, value, _ := strings.Cut(field, "="); key == name {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, nil
}

func scaleTable(cells []scaleCell) []string {
	lines := []string{fmt.Sprintf("%-9s %9s %15s %15s %21s %21s", "tenants", "waiting", "admit, Redis µs",
		"admit, whole µs", "tick+settle, Redis µs", "tick+settle, whole µs")}
	for _, c := range cells {
		lines = append(lines, fmt.Sprintf("%-9d %9d %15.1f %15.1f %21.1f %21.1f", c.Tenants, c.Waiting,
			c.Admit, c.AdmitWall, c.Drain, c.DrainWall))
	}
	return lines
}
