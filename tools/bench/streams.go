package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// streamFigures measure answers that reach their clients while they come.
func streamFigures() []figure {
	return []figure{
		{id: "P17-first", what: "the first byte of a streamed answer after the upstream has sent it, the median, in " +
			"one process", unit: "ms", target: 2, atMost: true, measure: measureFirstBytes("P17-first", 0)},
		{id: "P17-split", what: "the same between two processes", unit: "ms", target: 5, atMost: true,
			measure: measureFirstBytes("P17-split", 1)},
		{id: "P17-cpu", what: "200 streams of 20 events a second: processor time of an event in one process and its " +
			"Redis ÷ httputil.ReverseProxy", unit: "ratio", target: 2, atMost: true,
			measure: measureStreams(func(r streamRun) float64 { return r.Event / r.ProxyEvent })},
		{id: "P17-memory", what: "resident memory of one process for each of 200 streams", unit: "KiB", target: 64,
			atMost: true, measure: measureStreams(func(r streamRun) float64 { return r.KiB })},
	}
}

// events is the upstream: events of the instant at which each is written, in nanoseconds, as many
// and as far apart as the query says.
func events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	n, _ := strconv.Atoi(q.Get("events"))
	every, err := time.ParseDuration(q.Get("every"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range n {
		if i > 0 {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
		if _, err := fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano()); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
	}
}

// streamTenants are the tenants of the streams. They are many, because each has a share.
const streamTenants = 5

// stream reads the events of one answer, and calls got with how long each was under way.
func stream(ctx context.Context, hc *http.Client, to string, n int, every time.Duration, tenant int, got func(time.Duration)) error {
	query := url.Values{"events": {strconv.Itoa(n)}, "every": {every.String()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to+"/events?"+query.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Sluice-Tenant", "streams-"+strconv.Itoa(tenant%streamTenants))
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	seen := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is {
			continue
		}
		sent, err := strconv.ParseInt(data, 10, 64)
		if err != nil {
			return err
		}
		seen++
		got(time.Since(time.Unix(0, sent)))
	}
	if seen != n {
		return fmt.Errorf("GET %s: %d events of %d", req.URL, seen, n)
	}
	return nil
}

// startStreams starts an upstream of events, and a program that forwards to it.
func startStreams(ctx context.Context, split int) (upstream *server, p *program, end func(), err error) {
	if upstream, err = startPeer(ctx, "events", ""); err != nil {
		return nil, nil, nil, err
	}
	if p, err = startLayout(ctx, layout{split: split, forward: "http://" + upstream.addr}); err != nil {
		upstream.close()
		return nil, nil, nil, err
	}
	end = func() { p.close(); upstream.close() }
	for i := range streamTenants {
		if _, err = p.change(ctx, http.MethodPut, "streams-"+strconv.Itoa(i), rate(10_000, 1000)); err != nil {
			end()
			return nil, nil, nil, err
		}
	}
	if err = pass(ctx, 2*time.Second); err != nil { // the worker takes its shards
		end()
		return nil, nil, nil, err
	}
	return upstream, p, end, nil
}

// firstBytes are the times of the first events of a run, in ms.
type firstBytes struct {
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
	Direct float64 `json:"direct_p50_ms"` // from the upstream itself
}

func measureFirstBytes(id string, split int) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) (samples []float64, err error) {
		upstream, p, end, err := startStreams(ctx, split)
		if err != nil {
			return nil, err
		}
		defer end()
		hc := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: time.Minute}
		defer hc.CloseIdleConnections()
		var runs []firstBytes
		lines := []string{fmt.Sprintf("%-14s %9s %9s %9s   one answer of three events after the other", id, "p50 ms", "p99 ms",
			"direct ms")}
		for run := range b.runs {
			b.progress("%s: run %d of %d", id, run+1, b.runs)
			var r firstBytes
			for _, to := range []string{"http://" + upstream.addr, "http://" + p.api + "/v1/forward/" + forwardRoute} {
				took := make([]float64, 0, 200)
				for i := range 220 {
					first := true
					if err := stream(ctx, hc, to, 3, 10*time.Millisecond, i, func(d time.Duration) {
						if first && i >= 20 { // the first ones warm up
							took = append(took, precise(d))
						}
						first = false
					}); err != nil {
						return nil, err
					}
				}
				slices.Sort(took)
				r = firstBytes{P50: quantile(took, 0.5), P99: quantile(took, 0.99), Direct: r.P50}
			}
			runs, samples = append(runs, r), append(samples, r.P50)
			lines = append(lines, fmt.Sprintf("run %-10d %9.3f %9.3f %9.3f", run+1, r.P50, r.P99, r.Direct))
		}
		b.detail(id, lines, runs)
		return samples, nil
	}
}

// streamRun is what streams side by side have taken.
type streamRun struct {
	Event      float64 `json:"event_us"`       // processor time of the process and its redis-server, an event
	Store      float64 `json:"store_us"`       // of the redis-server alone
	ProxyEvent float64 `json:"proxy_event_us"` // of a proxy
	KiB        float64 `json:"kib"`            // a stream
}

// Streams that run side by side.
const (
	streams       = 200
	streamEvery   = 50 * time.Millisecond
	streamEvents  = 120
	streamSettled = 1500 * time.Millisecond // after which all have begun
	streamWatched = 3 * time.Second
)

// measureStreams runs the streams once for all figures.
func measureStreams(figure func(streamRun) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) (samples []float64, err error) {
		runs, err := once(b, "streams", func() ([]streamRun, error) { return b.streamRuns(ctx) })
		for _, r := range runs {
			samples = append(samples, figure(r))
		}
		return samples, err
	}
}

func (b *bench) streamRuns(ctx context.Context) (runs []streamRun, err error) {
	lines := []string{fmt.Sprintf("%-10s %14s %14s %14s %14s   %d streams of %d events a second", "P17", "µs an event",
		"of Redis", "of a proxy", "KiB a stream", streams, time.Second/streamEvery)}
	for run := range b.runs {
		b.progress("P17: run %d of %d", run+1, b.runs)
		r, err := b.streamsOnce(ctx)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
		lines = append(lines, fmt.Sprintf("run %-6d %14.1f %14.1f %14.1f %14.1f", run+1, r.Event, r.Store, r.ProxyEvent, r.KiB))
	}
	b.detail("P17-cpu", lines, runs)
	return runs, nil
}

func (b *bench) streamsOnce(ctx context.Context) (r streamRun, err error) {
	upstream, p, end, err := startStreams(ctx, 0)
	if err != nil {
		return r, err
	}
	defer end()
	proxy, err := startPeer(ctx, "proxy", "http://"+upstream.addr)
	if err != nil {
		return r, err
	}
	defer proxy.close()
	before, _, err := resident(p.intake.pid())
	if err != nil {
		return r, err
	}
	of, err := family(p.intake.pid())
	if err != nil {
		return r, err
	}
	var with float64
	profiled := make(chan error, 1)
	cpu, err := watchStreams(ctx, "http://"+p.api+"/v1/forward/"+forwardRoute, of, func() {
		go func() { profiled <- b.fetchProfile(ctx, strings.TrimPrefix(p.admin, "http://"), "streams") }()
	}, func() error {
		with, _, err = resident(p.intake.pid())
		return errors.Join(err, <-profiled)
	})
	if err != nil {
		return r, err
	}
	for i, c := range cpu {
		if r.Event += c; i > 0 {
			r.Store += c
		}
	}
	r.KiB = (with - before) * 1e6 / 1024 / streams
	cpu, err = watchStreams(ctx, "http://"+proxy.addr, []int{proxy.pid()}, func() {}, func() error { return nil })
	if err != nil {
		return r, err
	}
	r.ProxyEvent = cpu[0]
	return r, nil
}

// watchStreams opens the streams, and returns the processor time of each process for an event, in
// microseconds, while all of them run. It calls begins before and during after that time, with the
// streams open.
func watchStreams(ctx context.Context, to string, processes []int, begins func(), during func() error) (cpu []float64, err error) {
	hc := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: time.Minute}
	defer hc.CloseIdleConnections()
	errs := make(chan error, streams)
	var clients sync.WaitGroup
	var events atomic.Int64 // an upstream that gets no processor time skips some
	for i := range streams {
		clients.Go(func() {
			errs <- stream(ctx, hc, to, streamEvents, streamEvery, i, func(time.Duration) { events.Add(1) })
		})
	}
	cpu = make([]float64, len(processes))
	count := float64(0)
	used := func(sign float64) error {
		count += sign * float64(events.Load())
		for i, pid := range processes {
			d, err := cpuOf(pid)
			if err != nil {
				return err
			}
			cpu[i] += sign * float64(d.Microseconds())
		}
		return nil
	}
	for _, step := range []func() error{
		func() error { return pass(ctx, streamSettled) },
		func() error { begins(); return used(-1) },
		func() error { return pass(ctx, streamWatched) },
		func() error { return used(1) },
		during,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	clients.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return nil, err
		}
	}
	for i := range cpu {
		cpu[i] /= count
	}
	return cpu, nil
}

// family is a process and those that it has started. Only Linux tells.
func family(pid int) ([]int, error) {
	all := []int{pid}
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "children"))
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return nil, err
		}
		for _, child := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				return nil, err
			}
			all = append(all, n)
		}
	}
	return all, nil
}
