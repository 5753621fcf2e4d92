package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// predictions are the checks of the simulator against the running program.
func predictions() []check {
	return []check{{
		id: "F1", what: "flash sales against the simulator's runs of their recordings",
		target: "admitted exactly as simulated, waits within 2 %; with a cap of concurrency both within 2 %",
		quick:  scale{window: 12 * time.Second},
		full:   scale{window: time.Minute, limit: 4 * time.Minute},
		run:    foretell,
	}}
}

const (
	predictedService = 250 * time.Millisecond // that a delivery takes where the cap counts
	predictedMost    = 2.0                    // % by which waits may differ
	// recordedEarly is how long an arrival may be recorded before Redis judges it. One that
	// comes as close before a departure finds a slot there that the recording, as it is, does
	// not give it.
	recordedEarly = 2 * time.Millisecond
)

// sale is a tenant's flash sale with its results.
type sale struct {
	tenant string
	policy shaper.Policy
	slow   bool // its deliveries take time, and the cap of concurrency is what limits it

	mu       sync.Mutex
	recorded []wire.Arrival
	lost     int64
}

// foretell sends two flash sales through the program, one of a tenant that its rate limits and one
// of a tenant that its cap does, and replays the recording of each.
func foretell(ctx context.Context, w *world, f *findings) error {
	second := func(limit int64) shaper.Rate { return shaper.Rate{Limit: limit, Period: time.Second} }
	sales := []*sale{
		{tenant: "shop", policy: shaper.Policy{Rate: second(20), Burst: 1, Capacity: 60, Concurrency: 256}},
		{tenant: "bank", policy: shaper.Policy{Rate: second(100), Burst: 1, Capacity: 60, Concurrency: 5},
			slow: true},
	}
	s := settings{tenants: map[string]tenant{}}
	for _, of := range sales {
		s.tenants[of.tenant] = tenant{
			rate: of.policy.Rate.String(), capacity: int(of.policy.Capacity),
			concurrency: int(of.policy.Concurrency),
		}
	}
	if err := w.open(ctx, s, "api", "worker"); err != nil {
		return err
	}
	w.sink.set(func(d delivery, _ int) answer {
		a := answer{status: http.StatusOK}
		if d.Tenant == "bank" {
			a.delay = predictedService
		}
		return a
	})
	following, stop := context.WithCancel(ctx)
	var ears, clients sync.WaitGroup
	defer ears.Wait()
	defer stop()
	sent := make([]int, len(sales))
	for i, of := range sales {
		stream, err := w.listen(following, of.tenant)
		if err != nil {
			return err
		}
		ears.Go(func() { of.record(following, stream) })
		trace, err := simulate.Generator{
			Shape: simulate.FlashSale, Rate: second(5), Peak: second(150), For: w.scale.window, Seed: w.rng.Uint64(),
		}.Trace()
		if err != nil {
			return err
		}
		sent[i] = len(trace)
		clients.Go(func() { w.replay(ctx, of.tenant, trace) })
	}
	w.say("two flash sales of %v, %d and %d arrivals", w.scale.window, sent[0], sent[1])
	clients.Wait()
	if err := until(ctx, "all arrivals are recorded", 50*time.Millisecond, func() (bool, error) {
		return sales[0].heard() == sent[0] && sales[1].heard() == sent[1], nil
	}); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	for _, of := range sales {
		if err := of.compare(ctx, w, f, e.jobs); err != nil {
			return err
		}
	}
	return nil
}

// listen opens the stream of the tenant's arrivals.
func (w *world) listen(ctx context.Context, tenant string) (*client.Stream, error) {
	c, err := client.New("http://"+w.living("api")[0].admin, "", &http.Client{})
	if err != nil {
		return nil, err
	}
	return c.Arrivals(ctx, tenant, "", time.Minute)
}

// record stores the events of the stream until its end.
func (s *sale) record(ctx context.Context, stream *client.Stream) {
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	for {
		e, err := stream.Next()
		if err != nil {
			return
		}
		var came wire.Arrivals
		if json.Unmarshal(e.Data, &came) != nil {
			return
		}
		s.mu.Lock()
		s.recorded = append(s.recorded, came.Items...)
		s.lost += came.Lost
		s.mu.Unlock()
	}
}

func (s *sale) heard() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.recorded) + int(s.lost)
}

// replay submits a job at each instant of the trace, counted from its first, each on a connection
// of its own if need be.
func (w *world) replay(ctx context.Context, tenant string, trace simulate.Trace) {
	start := time.Now()
	var sending sync.WaitGroup
	defer sending.Wait()
	for i, a := range trace {
		if pause(ctx, time.Until(start.Add(a.At.Sub(trace[0].At)))) != nil {
			return
		}
		sending.Go(func() { w.send(ctx, load{name: tenant, tenants: one(tenant)}, i) })
	}
}

// compare compares the results of the sale with the simulator's run of its recording, and with the
// program's own prediction.
func (s *sale) compare(ctx context.Context, w *world, f *findings, jobs []wire.Job) error {
	var waits, services []time.Duration
	for _, j := range jobs {
		if j.Tenant == s.tenant {
			waits, services = append(waits, j.Started.Sub(j.Created)), append(services, j.Finished.Sub(j.Started))
		}
	}
	if len(waits) == 0 {
		return errors.New("no job of " + s.tenant + " has left")
	}
	var trace simulate.Trace
	admitted := 0
	for _, a := range s.recorded {
		trace = append(trace, simulate.Arrival{At: shaper.InstantOf(a.At), Cost: a.Cost})
		if a.Outcome == "admitted" {
			admitted++
		}
	}
	slices.SortFunc(trace, func(a, b simulate.Arrival) int { return int(a.At - b.At) })
	workers := simulate.Workers{Horizon: horizon}
	if s.slow {
		var sum time.Duration
		for _, d := range services {
			sum += d
		}
		workers.Service = sum / time.Duration(len(services))
		f.info(s.tenant+" service", ms(workers.Service), "ms")
	}
	run, err := simulate.Shaper(trace, s.policy, workers)
	if err != nil {
		return err
	}
	report := run.Report()
	slices.Sort(waits)
	at := func(share float64) time.Duration { return waits[max(0, int(math.Ceil(share*float64(len(waits))))-1)] }
	f.info(s.tenant+" arrivals", float64(len(trace)), "")
	f.none(s.tenant+" recorded other than admitted", differ(admitted, len(waits)))
	f.info(s.tenant+" admitted", float64(admitted), "")
	off := math.Abs(float64(report.Admitted - int64(admitted)))
	for late := recordedEarly / 8; late <= recordedEarly && off > 0; late += recordedEarly / 8 {
		for i := range trace {
			trace[i].At = trace[i].At.Add(recordedEarly / 8)
		}
		run, err := simulate.Shaper(trace, s.policy, workers)
		if err != nil {
			return err
		}
		off = min(off, math.Abs(float64(run.Report().Admitted-int64(admitted))))
	}
	if s.slow {
		f.atMost(s.tenant+" admitted, off by", 100*off/float64(admitted), predictedMost, "%")
		f.timed()
	} else {
		f.atMost(s.tenant+" admitted, off by", off, 0, "")
		f.timed() // a slot that is missed in a stall of the machine is lost
	}
	for _, q := range []struct {
		name            string
		real, simulated time.Duration
	}{{"p50", at(0.5), report.WaitP50}, {"p95", at(0.95), report.WaitP95}, {"p99", at(0.99), report.WaitP99}} {
		f.info(s.tenant+" wait "+q.name, ms(q.real), "ms")
		f.atMost("off by", percentOff(q.real, q.simulated), predictedMost, "%")
		f.timed()
	}
	return s.predicted(ctx, w, f, admitted, at(0.99))
}

// predicted compares the program's own prediction, which is from runs of arrivals, with the
// results.
func (s *sale) predicted(ctx context.Context, w *world, f *findings, admitted int, p99 time.Duration) error {
	code, raw, err := w.call(ctx, http.MethodPost, w.living("api")[0].admin,
		"/v1/tenants/"+s.tenant+"/predict", nil, []byte(`{}`))
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("predict: %d %.200s", code, raw)
	}
	if err != nil {
		return err
	}
	var p wire.Prediction
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	if p.Now.WaitP99 == nil {
		return fmt.Errorf("predict: %s", raw)
	}
	f.atMost(s.tenant+" predicted admitted, off by",
		100*math.Abs(float64(p.Now.Admitted)/float64(admitted)-1), predictedMost, "%")
	f.timed()
	f.atMost("wait p99, off by", percentOff(p99, time.Duration(*p.Now.WaitP99)*time.Millisecond),
		predictedMost, "%")
	f.timed()
	return nil
}

// percentOff is by how much the second of two times differs from the first.
func percentOff(real, predicted time.Duration) float64 {
	return 100 * math.Abs(float64(predicted)/float64(real)-1)
}

// differ is an example where the two numbers are not the same.
func differ(a, b int) []string {
	if a == b {
		return nil
	}
	return []string{fmt.Sprintf("%d and %d", a, b)}
}
