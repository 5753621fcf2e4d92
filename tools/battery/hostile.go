package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// hostile is the check of clients and upstreams that try to block the process or to fill its
// memory.
func hostile() []check {
	return []check{{
		id: "S3", what: "slow connections to both listeners, bodies of 1 GB, and upstreams with endless answers",
		target: "closed ≤ 10 s, memory bounded",
		quick:  scale{slow: 300, jobs: 400, window: 12 * time.Second},
		full:   scale{slow: 1000, jobs: 1000, window: 15 * time.Second, limit: 3 * time.Minute},
		run:    besieged,
	}}
}

// Bounds of S3 that the target leaves open.
const (
	memoryMost = 150 // MB of resident memory above what it was before
	// takenMost is the most MB that are read of a body of 1 GB: the largest batch, and what the
	// kernel buffers on both sides.
	takenMost     = 24
	hostileWithin = 3 // seconds: timeout of the routes to the hostile upstreams
	hugeBody      = int64(1) << 30
)

// besieged starts all that is hostile at once, and honest clients beside it.
func besieged(ctx context.Context, w *world, f *findings) error {
	up, err := newHostileUpstream()
	if err != nil {
		return err
	}
	defer up.close()
	s := settings{
		defaults: tenant{rate: "200/s"}, routes: map[string]string{},
		// All connections of the admin listener are in use, by one address.
		env: []string{"SLUICE_ADMIN_MAX_CONNECTIONS=" + strconv.Itoa(w.scale.slow), "SLUICE_API_ADDRESS_SHARE=100"},
	}
	for name := range up.answers {
		s.routes[name] = fmt.Sprintf("url: %q, timeout: %ds, breaker: { failures: 0 }, retry: { "+
			"max_attempts: 2, min_backoff: 100ms, max_backoff: 200ms }",
			up.url+"/"+name, hostileWithin)
	}
	if err := w.open(ctx, s, "api,worker"); err != nil {
		return err
	}
	process := w.living("api")[0]
	if err := w.submit(ctx, load{name: "warm", jobs: 200, tenants: spread("warm", 20), clients: 8}); err != nil {
		return err
	}
	before, err := resident(process.cmd.Process.Pid, "VmRSS")
	if err != nil {
		return err
	}
	for name := range up.answers {
		if err := w.submit(ctx, load{name: "hostile-" + name, jobs: 10, tenants: one("hostile-" + name),
			route: name}); err != nil {
			return err
		}
	}

	w.say("%d slow connections to each listener", w.scale.slow)
	var siege siege
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for i := range w.scale.slow {
		siege.attack(limited, process.api, i)
		siege.attack(limited, process.admin, i)
	}
	var huge, honest sync.WaitGroup
	giants := make([]giant, 4)
	for i, target := range []struct{ address, method, path string }{
		{process.api, http.MethodPost, "/v1/jobs"}, {process.api, http.MethodPost, "/v1/jobs/batch"},
		{process.api, http.MethodPost, "/nowhere"}, {process.admin, http.MethodPatch, "/v1/tenants/acme"},
	} {
		huge.Go(func() { giants[i] = sendHuge(limited, target.address, target.method, target.path, i%2 == 1) })
	}
	var probes probes
	watching, stop := context.WithTimeout(ctx, w.scale.window)
	defer stop()
	honest.Go(func() { probes.run(watching, "http://"+process.admin+"/readyz") })
	err = w.submit(ctx, load{
		name: "honest", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("honest", 20), clients: 8,
	})
	honest.Wait()
	huge.Wait()
	siege.wait()
	if err != nil {
		return err
	}
	if err := up.drained(ctx, w); err != nil {
		return err
	}
	peak, err := resident(process.cmd.Process.Pid, "VmHWM")
	if err != nil {
		return err
	}
	metrics, err := w.metrics(ctx, process)
	if err != nil {
		return err
	}

	f.atMost("longest slow connection", siege.longest().Seconds(), 10, "s")
	f.timed()
	f.atLeast("slow connections", float64(siege.ended.Load()), float64(2*w.scale.slow), "")
	f.none("slow connections that were left open", siege.open)
	for kind, took := range siege.byKind() {
		f.info(kind, took.Seconds(), "s")
	}
	for i, g := range giants {
		f.atMost("MB taken of 1 GB", float64(g.taken)/1e6, takenMost, "")
		f.atMost("until it was cut", g.took.Seconds(), 10, "s")
		f.timed()
		if g.status != 0 && g.status != http.StatusRequestEntityTooLarge && g.status != http.StatusNotFound {
			f.none("other answers to 1 GB", []string{fmt.Sprintf("body %d: %d", i, g.status)})
		}
	}
	f.atMost("longest answer of an upstream", up.longest().Seconds(), hostileWithin+1, "s")
	f.timed()
	f.none("jobs that ended otherwise", up.wrong)
	f.atMost("MB of memory above before", float64(peak-before)/1e6, memoryMost, "")
	requests, _ := w.ledger.entries()
	var took []time.Duration
	var failures []string
	for _, r := range requests {
		if !strings.HasPrefix(r.Key, "honest-") {
			continue
		}
		took = append(took, r.Answered.since(r.Sent))
		if r.Outcome != acknowledged {
			failures = append(failures, fmt.Sprintf("%s: %d", r.Key, r.Status))
		}
	}
	f.none("honest submissions that failed", failures)
	f.info("honest submissions", float64(len(took)), "")
	f.info("p99 of them", ms(quantile(took, 0.99)), "ms")
	f.none("probes that failed", probes.failed)
	f.info("probes", float64(len(probes.took)), "")
	f.info("p99 of them", ms(quantile(probes.took, 0.99)), "ms")
	f.info("connections evicted", metrics[`sluice_connections_evicted_total{listener="admin"}`], "")
	f.info("refused", metrics[`sluice_connections_refused_total{listener="admin"}`], "")
	return w.honestDelivered(ctx, f)
}

// honestDelivered checks that every acknowledged job of the honest clients arrives.
func (w *world) honestDelivered(ctx context.Context, f *findings) error {
	missing := func() (left []string) {
		arrived := map[string]bool{}
		requests, deliveries := w.ledger.entries()
		for _, d := range deliveries {
			arrived[d.Job] = true
		}
		for _, r := range requests {
			if r.Outcome == acknowledged && !strings.HasPrefix(r.Key, "hostile-") && !arrived[r.Job] {
				left = append(left, r.Key)
			}
		}
		return left
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_ = until(limited, "they arrive", 50*time.Millisecond, func() (bool, error) {
		return len(missing()) == 0, nil
	})
	f.none("honest jobs that did not arrive", missing())
	return ctx.Err()
}

// resident is a line of /proc/PID/status in bytes: VmRSS is the resident memory now, VmHWM the most
// there ever was.
func resident(pid int, line string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("%w: the memory of a process is read from /proc", errSkipped)
	}
	for l := range bytes.Lines(text) {
		if value, found := strings.CutPrefix(string(l), line+":"); found {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.Join(err, fmt.Errorf("/proc contains no %s", line))
}

// siege is all slow connections.
type siege struct {
	all   sync.WaitGroup
	ended atomic.Int64

	mu   sync.Mutex
	took map[string]time.Duration // the longest of its kind
	open []string                 // still open at the end
}

// tactics are the ways to hold a connection: what is sent first, what then comes a byte at a time,
// and whether answers are read.
var tactics = []struct {
	name, first, drip string
	deaf              bool
}{
	{name: "silent"},
	{name: "header", first: "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n", drip: "X-A: b\r\n"},
	{name: "body", first: "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
		"Content-Length: 100000\r\n\r\n{", drip: " "},
	{name: "chunk", first: "PATCH /v1/tenants/acme HTTP/1.1\r\nHost: localhost\r\n" +
		"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", drip: "1\r\n \r\n"},
	{name: "stream", first: "GET /v1/jobs/x/events HTTP/1.1\r\nHost: localhost\r\n" +
		"Content-Length: 100000\r\n\r\n", drip: " "},
	{name: "deaf", first: strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 500),
		drip: "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", deaf: true},
}

// pace is the time between two bytes of a drip.
const pace = 300 * time.Millisecond

// attack opens the i-th connection to the address and holds it for as long as it can, in the
// background.
func (s *siege) attack(ctx context.Context, address string, i int) {
	tactic := tactics[i%len(tactics)]
	s.all.Go(func() {
		if pause(ctx, time.Duration(i)*time.Millisecond) != nil {
			return
		}
		start := time.Now()
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil { // refused: closed, as it were
			s.over(tactic.name, time.Since(start), false)
			return
		}
		defer func() { _ = conn.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		gone := make(chan struct{})
		if tactic.deaf {
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // or the kernel would take much of it
		} else {
			go func() {
				defer close(gone)
				_, _ = io.Copy(io.Discard, conn) // until the server has had enough
			}()
		}
		send := func(text string) (alive bool) {
			_ = conn.SetWriteDeadline(time.Now().Add(pace))
			_, err := io.WriteString(conn, text)
			var timeout net.Error
			return err == nil || errors.As(err, &timeout) && timeout.Timeout()
		}
		for n, alive := 0, tactic.first == "" || send(tactic.first); alive; n++ {
			select {
			case <-gone:
				alive = false
			case <-time.After(pace):
				alive = tactic.drip == "" || send(string(tactic.drip[n%len(tactic.drip)]))
			}
		}
		s.over(tactic.name, time.Since(start), ctx.Err() != nil)
	})
}

func (s *siege) over(kind string, took time.Duration, open bool) {
	s.ended.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.took == nil {
		s.took = map[string]time.Duration{}
	}
	s.took[kind] = max(s.took[kind], took)
	if open {
		s.open = append(s.open, kind)
	}
}

func (s *siege) wait() { s.all.Wait() }

func (s *siege) longest() (longest time.Duration) {
	for _, took := range s.took {
		longest = max(longest, took)
	}
	return longest
}

// byKind yields the longest of each tactic.
func (s *siege) byKind() func(yield func(string, time.Duration) bool) {
	return func(yield func(string, time.Duration) bool) {
		for _, t := range tactics {
			if !yield(t.name, s.took[t.name]) {
				return
			}
		}
	}
}

// giant is how a body of 1 GB fared.
type giant struct {
	taken  int64 // bytes that the connection took
	took   time.Duration
	status int // 0 where the connection was cut before the answer could be read
}

// sendHuge sends 1 GB, without keeping it in memory, until all is sent or the other side ends the
// connection.
func sendHuge(ctx context.Context, address, method, path string, chunked bool) (g giant) {
	start := time.Now()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return g
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	answered := make(chan int, 1)
	go func() {
		line := make([]byte, len("HTTP/1.1 413"))
		_, _ = io.ReadFull(conn, line) // a reset leaves no status
		status, _ := strconv.Atoi(string(bytes.TrimSpace(line[len("HTTP/1.1"):])))
		_, _ = io.Copy(io.Discard, conn)
		answered <- status
	}()
	block := bytes.Repeat([]byte(" "), 64<<10)
	head := "Content-Length: " + strconv.FormatInt(hugeBody, 10)
	if chunked {
		head = "Transfer-Encoding: chunked"
		block = append([]byte("10000\r\n"), append(block, "\r\n"...)...)
	}
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"%s\r\n\r\n", method, path, head)
	for err == nil && g.taken < hugeBody {
		var n int
		n, err = conn.Write(block)
		g.taken += int64(n)
	}
	g.took = time.Since(start)
	g.status = <-answered
	return g
}

// probes are what a supervisor asks, each on a connection of its own.
type probes struct {
	took   []time.Duration
	failed []string
}

func (p *probes) run(ctx context.Context, url string) {
	web := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for pause(ctx, 50*time.Millisecond) == nil {
		start := time.Now()
		resp, err := web.Get(url)
		if err != nil {
			p.failed = append(p.failed, err.Error())
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		p.took = append(p.took, time.Since(start))
		if resp.StatusCode != http.StatusOK {
			p.failed = append(p.failed, resp.Status)
		}
	}
}
