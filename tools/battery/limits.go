package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// limits are the checks of a Redis that is full.
func limits() []check {
	return []check{
		{
			id: "M1", what: "maxmemory reached, with a flood of submissions going on",
			target: "503 at intake, drain and heartbeats ≥ 99 % of their rate, lost 0, recovers alone",
			quick:  scale{tenants: 20, window: 6 * time.Second},
			full:   scale{tenants: 20, window: 20 * time.Second, limit: 3 * time.Minute},
			run:    memoryFull,
		},
	}
}

// memoryFull counts deliveries and heartbeats in a window before and in one while Redis is full. A
// flood of submissions for a paused tenant keeps it full.
func memoryFull(ctx context.Context, w *world, f *findings) error {
	const perSecond, long = 20, "long"
	s := settings{
		defaults: tenant{rate: strconv.Itoa(perSecond) + "/s"},
		tenants:  map[string]tenant{"flood": {rate: "1000/s"}},
		routes: map[string]string{long: "timeout: 5m, retry: { max_attempts: 5, min_backoff: 100ms, " +
			"max_backoff: 200ms }"},
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	hold := make(chan struct{})
	w.sink.set(func(d delivery, _ int) answer {
		if d.Tenant == long {
			return answer{status: http.StatusOK, until: hold} // outlives many leases, if those are extended
		}
		return answer{status: http.StatusOK}
	})
	api := w.living("api")[0]
	if _, err := w.operate(ctx, api, "pause", "flood", ""); err != nil {
		return err
	}
	const settling = time.Second
	jobs := int((2*w.scale.window + 4*settling).Seconds()) * perSecond * w.scale.tenants
	if err := w.stock(ctx, names("tenant", w.scale.tenants),
		load{name: "drain", jobs: jobs, tenants: spread("tenant", w.scale.tenants), pad: 1000}); err != nil {
		return err
	}
	if err := w.submit(ctx, load{name: long, jobs: 5, tenants: one(long), route: long}); err != nil {
		return err
	}
	count := func(what string) (delivered, beats float64, err error) {
		if err := pause(ctx, settling); err != nil {
			return 0, 0, err
		}
		w.say("%s for %v", what, w.scale.window)
		before, err := w.beats(ctx)
		if err != nil {
			return 0, 0, err
		}
		from := w.ledger.now()
		if err := pause(ctx, w.scale.window); err != nil {
			return 0, 0, err
		}
		after, err := w.beats(ctx)
		for _, d := range w.ledger.delivered(0) {
			if d.At >= from && d.At < from.add(w.scale.window) {
				delivered++
			}
		}
		return delivered, after - before, err
	}
	plain, plainBeats, err := count("draining")
	if err != nil {
		return err
	}
	used, err := w.memory(ctx)
	if err != nil {
		return err
	}
	if err := w.store.ConfigSet(ctx, "maxmemory", strconv.Itoa(used+ballastBytes)).Err(); err != nil {
		return err
	}
	// Sluice stays below maxmemory by itself, so foreign data fills the memory.
	if err := w.ballast(ctx); err != nil {
		return err
	}
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	wait := w.background(flooding, load{name: "flood", tenants: one("flood"), pad: 8000, clients: 4})
	if err := until(ctx, "the intake is refused", 5*time.Millisecond, func() (bool, error) {
		requests, _ := w.ledger.entries()
		return requests[len(requests)-1].Status == http.StatusServiceUnavailable, nil
	}); err != nil {
		return err
	}
	fullFrom := w.ledger.now()
	full, fullBeats, err := count("draining with the memory full")
	fullTo := w.ledger.now()
	stop()
	if err := wait(); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	if err := w.store.Del(ctx, ballastKey).Err(); err != nil {
		return err
	}
	if err := w.store.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
		return err
	}
	recovering := time.Now()
	for i := 0; ; i++ {
		if err := w.submit(ctx, load{name: "after" + strconv.Itoa(i), jobs: 1, tenants: one("after")}); err != nil {
			return err
		}
		requests, _ := w.ledger.entries()
		if requests[len(requests)-1].Outcome == acknowledged {
			break
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("the intake does not recover: %w", err)
		}
	}
	recovered := time.Since(recovering)
	close(hold)
	if _, err := w.operate(ctx, api, "resume", "flood", ""); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f) // the long ones too: their leases were kept
	requests, _ := w.ledger.entries()
	var refusals, shares, other, admitted float64
	for _, r := range requests {
		if r.Tenant != "flood" || r.Sent < fullFrom || r.Sent > fullTo {
			continue
		}
		switch r.Status {
		case http.StatusServiceUnavailable:
			refusals++
		case http.StatusTooManyRequests: // over its share of what the drain has freed
			shares++
		case http.StatusAccepted:
			admitted++
		case 0: // cut off at the end
		default:
			other++
			f.because("the intake answered %d", r.Status)
		}
	}
	f.atLeast("503s", refusals, 1, "")
	f.info("429s", shares, "")
	f.info("202s into what the drain has freed", admitted, "")
	f.atMost("other answers", other, 0, "")
	f.atLeast("drain", 100*full/plain, 99, "%")
	f.timed()
	f.atLeast("heartbeats", 100*(fullBeats+2)/plainBeats, 99, "%") // a window may cut off a beat of each worker
	f.timed()
	f.info("beats before", plainBeats, "")
	f.info("beats while full", fullBeats, "")
	f.info("intake back after the flood", ms(recovered), "ms")
	return nil
}

const ballastKey, ballastBytes = "ballast", 2 << 20

// ballast writes foreign data until Redis refuses more.
func (w *world) ballast(ctx context.Context) error {
	piece := strings.Repeat("x", 4096)
	for ctx.Err() == nil {
		err := w.store.RPush(ctx, ballastKey, piece).Err()
		if err != nil && strings.Contains(err.Error(), "OOM") {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// beats counts the acknowledged heartbeats of all live workers.
func (w *world) beats(ctx context.Context) (n float64, err error) {
	for _, s := range w.living("worker") {
		m, err := w.metrics(ctx, s)
		if err != nil {
			return 0, err
		}
		n += m[`sluice_script_duration_seconds_count{script="heartbeat"}`]
	}
	return n, nil
}

func (w *world) memory(ctx context.Context) (int, error) {
	info, err := w.store.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if v, found := strings.CutPrefix(line, "used_memory:"); found {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, fmt.Errorf("INFO contains no used_memory")
}
