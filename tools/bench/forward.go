package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// forwardRoute is the route that forwards.
const forwardRoute = "partner"

// forwardFigures measure forward mode beside proxies that hold requests open.
func forwardFigures() []figure {
	return []figure{
		{id: "P15-added", what: "forward mode when idle: time of a request at the median beyond that through " +
			"httputil.ReverseProxy, in turns", unit: "ms", target: 2, atMost: true, measure: measureForwardDelays},
		{id: "P15-memory", what: "resident memory of the api process with 5,000 waiting clients", unit: "MB",
			target: 200, atMost: true, measure: measureWaiting},
		{id: "P15-tau", what: "forwarded requests that arrive in three crowds, to leave at 200/s: τ*, the " +
			"greatest, and that of nginx; see the table", unit: "ms", info: true, measure: measureForwardPace},
	}
}

// reverseProxy is httputil's, with connections that stay open.
func reverseProxy(upstream string) http.Handler {
	to, err := url.Parse(upstream)
	if err != nil {
		panic(err) // written in this program
	}
	p := httputil.NewSingleHostReverseProxy(to)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.DisableCompression = 64, true
	p.Transport = transport
	return p
}

// delays are the times of requests through one system, in ms.
type delays struct {
	Name    string      `json:"name"`
	Absent  string      `json:"absent,omitempty"`
	Samples [][]float64 `json:"-"` // by run
	P50     []float64   `json:"p50_ms"`
	P99     []float64   `json:"p99_ms"`
	client  *http.Client
	url     string
}

const (
	delayRequests = 400 // of each system in a run
	delayGap      = 5 * time.Millisecond
)

// measureForwardDelays sends one request after the other: to the upstream itself, and through each
// of the proxies, in turns.
func measureForwardDelays(ctx context.Context, b *bench) ([]float64, error) {
	sink, err := startPeer(ctx, "sink", "")
	if err != nil {
		return nil, err
	}
	defer sink.close()
	upstream := "http://" + sink.addr
	proxy, err := startPeer(ctx, "proxy", upstream)
	if err != nil {
		return nil, err
	}
	defer proxy.close()
	p, err := startLayout(ctx, layout{split: 1, forward: upstream})
	if err != nil {
		return nil, err
	}
	defer p.close()
	if _, err := p.change(ctx, http.MethodPut, "default", rate(10_000, 1000)); err != nil {
		return nil, err
	}
	systems := []*delays{
		{Name: "direct", url: upstream}, {Name: "ReverseProxy", url: "http://" + proxy.addr},
		{Name: "Sluice", url: "http://" + p.api + "/v1/forward/" + forwardRoute},
		{Name: "nginx", url: "http://nginx"},
	}
	for _, s := range systems[:3] {
		s.client = &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: time.Minute}
		defer s.client.CloseIdleConnections()
	}
	other, err := startNginx(ctx, sink.dir, upstream+"/", parse("10000/s"), 100)
	if missing, ok := errors.AsType[absent](err); ok {
		systems[3].Absent = missing.why
	} else if err != nil {
		return nil, err
	} else {
		defer other.end()
		systems[3].client = other.client
	}
	if err := pass(ctx, 2*time.Second); err != nil { // the worker takes its shards
		return nil, err
	}
	var samples []float64
	for run := range b.runs {
		b.progress("P15-added: run %d of %d", run+1, b.runs)
		if err := delayRun(ctx, systems); err != nil {
			return nil, err
		}
		samples = append(samples, systems[2].P50[run]-systems[1].P50[run])
	}
	b.detail("P15-added", delayTable(systems), systems)
	b.forwardPicture(systems, nil)
	return samples, nil
}

// delayRun times requests through all systems, one after the other.
func delayRun(ctx context.Context, systems []*delays) error {
	took := make([][]float64, len(systems))
	for i := range delayRequests + 20 { // the first warm up
		for k, s := range systems {
			if s.Absent != "" {
				continue
			}
			if err := pass(ctx, delayGap); err != nil {
				return err
			}
			began := time.Now()
			if err := post(s.client, s.url+"/orders"); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			if i >= 20 {
				took[k] = append(took[k], precise(time.Since(began)))
			}
		}
	}
	for k, s := range systems {
		if s.Absent != "" {
			continue
		}
		slices.Sort(took[k])
		s.Samples = append(s.Samples, took[k])
		s.P50, s.P99 = append(s.P50, quantile(took[k], 0.5)), append(s.P99, quantile(took[k], 0.99))
	}
	return nil
}

func delayTable(systems []*delays) []string {
	lines := []string{fmt.Sprintf("%-14s %9s %19s %9s   median of the runs; one request after the other",
		"P15-added", "p50 ms", "(min–max)", "p99 ms")}
	for _, s := range systems {
		if s.Absent != "" {
			lines = append(lines, fmt.Sprintf("%-14s absent: %s", s.Name, s.Absent))
			continue
		}
		lines = append(lines, fmt.Sprintf("%-14s %9.3f %19s %9.3f", s.Name, median(s.P50),
			fmt.Sprintf("(%.3f–%.3f)", slices.Min(s.P50), slices.Max(s.P50)), median(s.P99)))
	}
	return lines
}

// waiters are the clients that wait. They are of many tenants, because each has a share.
const waiters, waitingTenants = 5000, 5

// measureWaiting is the memory of the api process, in MB, while clients wait for forwarded requests
// that do not leave.
func measureWaiting(ctx context.Context, b *bench) ([]float64, error) {
	var samples []float64
	type sample struct {
		Before float64 `json:"before_mb"`
		With   float64 `json:"with_mb"`
		Most   float64 `json:"most_mb"`
	}
	var rows []sample
	lines := []string{fmt.Sprintf("%-14s %10s %10s %10s   resident MB of the api process", "P15-memory", "idle",
		"waiting", "most")}
	for run := range b.runs {
		b.progress("P15-memory: run %d of %d", run+1, b.runs)
		var s sample
		var err error
		if s.Before, s.With, s.Most, err = waitingRun(ctx); err != nil {
			return nil, err
		}
		samples, rows = append(samples, s.With), append(rows, s)
		lines = append(lines, fmt.Sprintf("run %-10d %10.1f %10.1f %10.1f", run+1, s.Before, s.With, s.Most))
	}
	b.detail("P15-memory", lines, rows)
	return samples, nil
}

func waitingRun(ctx context.Context) (before, with, most float64, err error) {
	p, err := startLayout(ctx, layout{split: 1, forward: "http://127.0.0.1:9"}) // nothing leaves
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.close()
	tenant := func(i int) string { return "waiting-" + strconv.Itoa(i%waitingTenants) }
	for i := range waitingTenants {
		if _, err := p.change(ctx, http.MethodPut, tenant(i), `{"paused":true}`); err != nil {
			return 0, 0, 0, err
		}
	}
	if before, _, err = resident(p.intake.pid()); err != nil {
		return 0, 0, 0, err
	}
	for i := range waiters {
		conn, err := net.Dial("tcp", p.api)
		if err != nil {
			return 0, 0, 0, err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "POST /v1/forward/%s/orders HTTP/1.1\r\nHost: localhost\r\n"+
			"Sluice-Tenant: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", forwardRoute,
			tenant(i), len(payload), payload); err != nil {
			return 0, 0, 0, err
		}
	}
	awaiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		depth := int64(0)
		for i := range waitingTenants {
			t, err := p.operator.Tenant(ctx, tenant(i))
			if err != nil {
				return 0, 0, 0, err
			}
			depth += t.Depth
		}
		if depth == waiters {
			break
		}
		if err := pass(awaiting, 100*time.Millisecond); err != nil {
			return 0, 0, 0, fmt.Errorf("%d of %d clients wait: %w", depth, waiters, err)
		}
	}
	if err := pass(ctx, 3*time.Second); err != nil {
		return 0, 0, 0, err
	}
	with, most, err = resident(p.intake.pid())
	return before, with, most, err
}

var residentLine = regexp.MustCompile(`(?m)^Vm(HWM|RSS):\s+(\d+) kB`)

// resident is the resident memory of a process and its greatest so far, in MB. Only Linux tells.
func resident(pid int) (now, most float64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0, err
	}
	for _, found := range residentLine.FindAllSubmatch(text, -1) {
		kB, err := strconv.ParseFloat(string(found[2]), 64)
		if err != nil {
			return 0, 0, err
		}
		if bytes.Equal(found[1], []byte("RSS")) {
			now = kB / 1000
		} else {
			most = kB / 1000
		}
	}
	if now == 0 {
		return 0, 0, io.ErrUnexpectedEOF
	}
	return now, most, nil
}

// forwardPeers hold requests open until it is their turn.
func forwardPeers() []peer {
	return []peer{
		{"Sluice", "forward mode, rate 200/s, two workers", prepareForward},
		{"nginx", "limit_req rate=200r/s burst=1000", prepareNginx},
	}
}

func prepareForward(ctx context.Context, r race) (contender, error) {
	binary, err := build(ctx, filepath.Dir(r.dir))
	if err != nil {
		return contender{}, err
	}
	p, err := startLayout(ctx, layout{split: 2, forward: r.url, binary: binary})
	if err != nil {
		return contender{}, err
	}
	_, err = p.change(ctx, http.MethodPut, "default", rate(r.rate.Limit, r.rate.Period.Milliseconds()))
	if err == nil {
		err = pass(ctx, 2*time.Second) // the workers agree on the owners of shards
	}
	if err != nil {
		p.close()
		return contender{}, err
	}
	hc := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: raceLimit}
	end := func() { hc.CloseIdleConnections(); p.close() }
	return contender{end: end, begin: r.open(hc, "http://"+p.api+"/v1/forward/"+forwardRoute)}, nil
}

// measureForwardPace lets requests that wait leave at a rate, beside nginx.
func measureForwardPace(ctx context.Context, b *bench) ([]float64, error) {
	runs, err := b.raceAll(ctx, "P15-tau", forwardPeers())
	if err != nil {
		return nil, err
	}
	b.detail("P15-tau", peerTable("P15-tau", runs), runs)
	b.forwardPicture(nil, runs)
	return picked(runs, tauMax), nil
}
