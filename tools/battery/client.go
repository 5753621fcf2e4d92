package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// call sends one request and returns status and body of the answer.
func (w *world) call(
	ctx context.Context, method, address, path string, header map[string]string, body []byte,
) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := w.web.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return resp.StatusCode, raw, err
}

// load is a stream of submissions: each job is sent at its turn, spread evenly over the time.
type load struct {
	name    string        // begins the keys; one name a world
	jobs    int           // 0: no end but that of its context
	over    time.Duration // from the first to the last; 0: as fast as the connections carry them
	tenants func(i int) string
	route   string
	pad     int  // bytes of payload beyond the key
	insist  bool // try again with the same key until there is a 202
	clients int  // at once; 0 is 32

	callback string // URL that is called at the end of jobs
	bare     bool   // without an Idempotency-Key: not to be tried again
	forward  bool   // as forwarded requests, whose clients wait for the answers
}

// spread gives the jobs to n tenants in turn.
func spread(prefix string, n int) func(int) string {
	return func(i int) string { return prefix + strconv.Itoa(i%n) }
}

// one gives all jobs to one tenant.
func one(name string) func(int) string { return func(int) string { return name } }

// submit sends the load and returns when every job has its answer. Nothing but the end of ctx is an
// error, and for a load without end not even that: what became of each request stands in the
// ledger.
func (w *world) submit(ctx context.Context, l load) error {
	clients := or(l.clients, 32)
	turns := make(chan int)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range turns {
				w.send(ctx, l, i)
			}
		})
	}
	defer wg.Wait()
	defer close(turns)
	start := time.Now()
	for i := 0; l.jobs == 0 || i < l.jobs; i++ {
		if l.over > 0 {
			due := start.Add(time.Duration(float64(l.over) * float64(i) / float64(l.jobs)))
			if err := pause(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		select {
		case turns <- i:
		case <-ctx.Done():
			if l.jobs == 0 {
				return nil
			}
			return ctx.Err()
		}
	}
	return nil
}

// stock submits the loads to tenants that are paused meanwhile, so that taking them in is over when
// they begin to leave.
func (w *world) stock(ctx context.Context, tenants []string, loads ...load) error {
	admin := w.living("api")[0]
	for _, t := range tenants {
		if _, err := w.operate(ctx, admin, "pause", t, ""); err != nil {
			return err
		}
	}
	for _, l := range loads {
		if err := w.submit(ctx, l); err != nil {
			return err
		}
	}
	for _, t := range tenants {
		if _, err := w.operate(ctx, admin, "resume", t, ""); err != nil {
			return err
		}
	}
	return nil
}

// names are the tenants of spread.
func names(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = spread(prefix, n)(i)
	}
	return all
}

// background starts the load and returns a function that waits for its end.
func (w *world) background(ctx context.Context, l load) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- w.submit(ctx, l) }()
	return func() error { return <-done }
}

// send submits job i of the load, once or until it is acknowledged.
func (w *world) send(ctx context.Context, l load, i int) {
	key := l.name + "-" + strconv.Itoa(i)
	tenant := l.tenants(i)
	body := payload(key, l.pad)
	header := map[string]string{"Sluice-Tenant": tenant, "Idempotency-Key": key}
	if l.bare {
		delete(header, "Idempotency-Key")
	}
	callback := ""
	if l.callback != "" {
		callback = `,"callback_url":"` + l.callback + `"`
	}
	path := "/v1/jobs"
	text := []byte(`{"type":"battery","route":"` + or(l.route, "default") + `","payload":` + body + callback +
		`}`)
	if l.forward {
		path, text = "/v1/forward/"+l.route+"/quiet", []byte(body)
	}
	for {
		r := request{Key: key, Tenant: tenant, Body: body, Outcome: unknown, Sent: w.ledger.now()}
		code, raw, err := w.call(ctx, http.MethodPost, w.api, path, header, text)
		r.Answered = w.ledger.now()
		if err == nil {
			r.Status = code
			var j wire.Job
			switch {
			case !l.forward && code == http.StatusAccepted && json.Unmarshal(raw, &j) == nil && j.ID != "":
				r.Outcome, r.Job = acknowledged, j.ID
			case l.forward && code == http.StatusOK: // the sink names the job
				r.Outcome = acknowledged
				r.Job, _, _ = strings.Cut(string(raw), " ")
			case code >= 400 && code < 500:
				r.Outcome = refused
			}
		}
		w.ledger.request(r)
		if r.Outcome == acknowledged || !l.insist || pause(ctx, 25*time.Millisecond) != nil {
			return
		}
	}
}

// payload is the JSON that a key's job carries; no two keys share one.
func payload(key string, pad int) string {
	return `{"key":"` + key + `","pad":"` + strings.Repeat("x", pad) + `"}`
}

// job reads a job as its tenant sees it.
func (w *world) job(ctx context.Context, tenant, id string) (wire.Job, error) {
	var j wire.Job
	code, raw, err := w.call(ctx, http.MethodGet, w.api, "/v1/jobs/"+id,
		map[string]string{"Sluice-Tenant": tenant}, nil)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("job %s: %d %.200s", id, code, raw)
	}
	if err != nil {
		return j, err
	}
	return j, json.Unmarshal(raw, &j)
}

// operate changes or reads a tenant on the admin listener: verb is a method, or POST's pause or
// resume. A pause creates the tenant.
func (w *world) operate(ctx context.Context, s *sluice, verb, tenant, body string) (wire.Tenant, error) {
	var t wire.Tenant
	method, path := verb, "/v1/tenants/"+tenant
	if verb == strings.ToLower(verb) {
		method, path = http.MethodPost, path+"/"+verb
	}
	if verb == "pause" {
		path += "?create=true"
	}
	var raw []byte
	if body != "" {
		raw = []byte(body)
	}
	code, answer, err := w.call(ctx, method, s.admin, path, nil, raw)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %.200s", verb, path, code, answer)
	}
	if err != nil {
		return t, err
	}
	return t, json.Unmarshal(answer, &t)
}

// metrics reads all metrics of a process; a name with labels is as in the text, such as
// `x_total{outcome="stale"}`.
func (w *world) metrics(ctx context.Context, s *sluice) (map[string]float64, error) {
	code, raw, err := w.call(ctx, http.MethodGet, s.admin, "/metrics", nil, nil)
	if err != nil || code != http.StatusOK {
		return nil, fmt.Errorf("metrics of %s: %d %w", s.name, code, err)
	}
	values := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		name, value, found := strings.Cut(lines.Text(), "} ")
		if found {
			name += "}"
		} else {
			name, value, found = strings.Cut(lines.Text(), " ")
		}
		if v, err := strconv.ParseFloat(value, 64); found && err == nil {
			values[name] = v
		}
	}
	return values, nil
}
