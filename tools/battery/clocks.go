package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// clocks are the checks of a Redis whose clock is set.
func clocks() []check {
	return []check{{
		id: "C1",
		what: "Redis' clock set back by an hour and forward by an hour, under load and with deliveries " +
			"that outlast it",
		target: "stall ≤ 2T, stamps τ* ≤ 1 µs, no lease expires, no submission refused",
		quick:  scale{jobs: 30, tenants: 10, kills: 2, window: 2500 * time.Millisecond},
		full:   scale{jobs: 100, tenants: 50, kills: 8, window: 6 * time.Second, limit: 3 * time.Minute},
		run:    clockSet,
	}}
}

// clockSet sets the clock, at random moments, while tenants have a backlog, others submit, and
// deliveries hang.
func clockSet(ctx context.Context, w *world, f *findings) error {
	const long = "long"
	s := settings{
		lease:    2 * time.Second,
		defaults: tenant{rate: "5/s"},
		tenants:  map[string]tenant{long: {rate: "500/s"}},
		routes: map[string]string{long: "timeout: 5m, retry: { max_attempts: 5, min_backoff: 100ms, " +
			"max_backoff: 200ms }"},
		// Ended jobs expire by Redis' own clock, and are read at the end.
		env: []string{"SLUICE_RETENTION_SUCCEEDED=48h", "SLUICE_RETENTION_IDEMPOTENCY=48h"},
	}
	clock, err := w.newClock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = clock.file.Close() }()
	s.redisEnv = clock.env
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	if err := w.shared(ctx); err != nil {
		return err
	}
	hold := make(chan struct{})
	w.sink.set(func(d delivery, _ int) answer {
		if d.Route == long {
			return answer{status: http.StatusOK, until: hold}
		}
		return answer{status: http.StatusOK}
	})
	if err := w.submit(ctx, load{name: long, jobs: w.scale.jobs, tenants: one(long), route: long}); err != nil {
		return err
	}
	T := interval(w.settings.rate(""))
	under := time.Duration(w.scale.kills+2) * w.scale.window
	busy := names("busy", w.scale.tenants)
	if err := w.stock(ctx, busy, load{name: "busy", jobs: int(under/T) * len(busy),
		tenants: spread("busy", len(busy))}); err != nil {
		return err
	}
	if err := until(ctx, "the deliveries hang", 5*time.Millisecond, func() (bool, error) {
		return w.sink.insideNow(long) == w.scale.jobs, nil
	}); err != nil {
		return err
	}
	submitting, stop := context.WithCancel(ctx)
	defer stop()
	wait := w.background(submitting, load{
		name: "fresh", jobs: int(under / (20 * time.Millisecond)), over: under,
		tenants: spread("fresh", len(busy)),
	})
	type step struct {
		by time.Duration
		at instant
	}
	var steps []step
	var offset time.Duration
	for i := range w.scale.kills {
		if err := pause(ctx, w.between(w.scale.window-T, w.scale.window)); err != nil {
			return err
		}
		by := time.Hour
		if i == 0 || i > 1 && w.rng.IntN(2) == 0 { // one back and one forward at the least
			by = -by
		}
		offset += by
		if err := clock.set(offset); err != nil {
			return err
		}
		steps = append(steps, step{by: by, at: w.ledger.now()})
		if err := clock.verify(ctx, w, offset); err != nil {
			return err
		}
		w.say("clock set by %v", by)
	}
	if err := pause(ctx, w.scale.window); err != nil {
		return err
	}
	if err := pause(ctx, 2*w.settings.lease); err != nil { // leases that are no longer extended have expired
		return err
	}
	hanging := w.sink.insideNow(long)
	close(hold)
	stop()
	if err := wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.twice(f)
	e.stamps(w, f)
	var worst time.Duration
	var when string
	for _, name := range busy {
		var at []instant
		for _, d := range e.deliveries {
			if d.Tenant == name {
				at = append(at, d.At)
			}
		}
		for _, s := range steps {
			gap := longestGap(at, s.at, s.at.add(w.scale.window-T))
			if gap > worst {
				worst = gap
				when = fmt.Sprintf("nothing of %s was delivered for %v when the clock was set by %v at %v",
					name, gap.Round(time.Millisecond), s.by, time.Duration(s.at).Round(time.Millisecond))
			}
		}
	}
	f.info("steps", float64(len(steps)), "")
	f.atMost("longest gap of a flow over a step", ms(worst), ms(2*T), "ms")
	f.timed()
	if worst > 2*T {
		f.because("%s", when)
	}
	f.atLeast("deliveries that hung throughout", float64(hanging), float64(w.scale.jobs), "")
	var stale float64
	for _, s := range w.living("worker") {
		m, err := w.metrics(ctx, s)
		if err != nil {
			return err
		}
		stale += m[`sluice_deliveries_total{outcome="stale"}`]
	}
	f.atMost("leases lost", stale, 0, "")
	var turned []string
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		if r.Outcome != acknowledged && r.Status != 0 { // those cut off at the end have none
			turned = append(turned, fmt.Sprintf("key %s: %d, sent at %v", r.Key, r.Status, time.Duration(r.Sent)))
		}
	}
	f.none("submissions not taken", turned)
	return nil
}

// longestGap returns the longest time between two successive instants: the later one, or the end if
// there is none, comes after from, and the earlier one before to. Without an instant before from,
// the gap begins there.
func longestGap(at []instant, from, to instant) (longest time.Duration) {
	before := from
	for _, i := range slices.Sorted(slices.Values(at)) {
		if i > from {
			longest = max(longest, i.since(before))
		}
		if i >= to {
			return longest
		}
		before = i
	}
	return max(longest, to.since(before))
}

// wallClock is the clock of a redis-server, which can be set.
type wallClock struct {
	env  []string // what redis-server is to be started with
	file *os.File // holds the offset
}

//go:embed preload/clock.c
var clockSource []byte

// newClock builds what shifts the clock of a redis-server that is started later.
func (w *world) newClock(ctx context.Context) (*wallClock, error) {
	library, err := w.compile(ctx, "clock", clockSource)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(w.dir, "clock")
	c := &wallClock{env: []string{"LD_PRELOAD=" + library, "SLUICE_BATTERY_CLOCK=" + file}}
	if c.file, err = os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	return c, c.set(0)
}

// compile builds a shared library to preload and returns its path.
func (w *world) compile(ctx context.Context, name string, text []byte) (library string, err error) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		compiler, err = exec.LookPath("gcc")
	}
	if err != nil {
		return "", errors.New("no C compiler on PATH, with which calls of redis-server are caught: install gcc " +
			"(apt-get install gcc libc6-dev)")
	}
	source, library := filepath.Join(w.dir, name+".c"), filepath.Join(w.dir, name+".so")
	if err := os.WriteFile(source, text, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, compiler, "-shared", "-fPIC", "-O2", "-o", library, source).
		CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s cannot build a shared library (apt-get install gcc libc6-dev): %w\n%s",
			compiler, err, out)
	}
	return library, nil
}

// set sets the clock to now + offset. The eight bytes change at once: they are one aligned word of
// a page that both sides share.
func (c *wallClock) set(offset time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset.Microseconds())), 0)
	return err
}

// verify checks that Redis uses the clock that was set; another version might use another call.
func (c *wallClock) verify(ctx context.Context, w *world, offset time.Duration) error {
	at, err := w.store.Time(ctx).Result()
	if err != nil {
		return err
	}
	if off := time.Until(at) - offset; off.Abs() > 10*time.Second {
		return fmt.Errorf("redis-server does not go by gettimeofday, or is linked statically: its TIME is "+
			"%v off", off)
	}
	return nil
}
