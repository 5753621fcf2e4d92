package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Cases of S4 whose offender only reads.

const (
	readers   = 32                    // connections that list
	takers    = 100                   // connections that read a stored answer
	afterwait = 20 * time.Millisecond // before the next read of a connection that was refused
)

// slowest is how much longer a submission may take beside an attack: twice as long, or by this.
const slowest = 5 * time.Millisecond

// longList gives the offender 30,000 jobs that wait.
func longList(_ *world, s *settings) (end func()) {
	s.tenants = map[string]tenant{offender: {rate: "1/m", capacity: 40_000}}
	return func() {}
}

// emptyLists lists jobs of a type that none of 30,000 has.
func emptyLists(ctx context.Context, w *world, f *findings) error {
	one := `{"type":"battery","payload":"listed"}`
	batch := []byte(`{"jobs":[` + strings.Repeat(one+",", 999) + one + `]}`)
	for range 30 {
		status, raw, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs/batch", map[string]string{"Sluice-Tenant": offender}, batch)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("submit 1,000 jobs: %d %s %w", status, raw, err)
		}
	}
	return w.flooded(ctx, f, readers, "/v1/jobs?state=queued&type=none")
}

// largeUpstream answers each forwarded request with 1 MB.
func largeUpstream(_ *world, s *settings) (end func()) {
	answer := bytes.Repeat([]byte("x"), 1_000_000)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(answer)
	}))
	s.routes = map[string]string{forwardRoute: fmt.Sprintf("forward: %q, retention: 1h", up.URL)}
	return up.Close
}

// largeAnswers reads one stored answer of 1 MB.
func largeAnswers(ctx context.Context, w *world, f *findings) error {
	header := map[string]string{"Sluice-Tenant": offender, "Prefer": "respond-async"}
	status, raw, err := w.call(ctx, http.MethodGet, w.api, "/v1/forward/"+forwardRoute+"/large", header, nil)
	var job struct{ ID string }
	if err == nil {
		err = json.Unmarshal(raw, &job)
	}
	if err != nil || status != http.StatusAccepted {
		return fmt.Errorf("forward: %d %.200s %w", status, raw, err)
	}
	path := "/v1/jobs/" + job.ID + "/response"
	for size := 0; size != 1_000_000; {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		_, raw, err := w.call(ctx, http.MethodGet, w.api, path, header, nil)
		if err != nil {
			return err
		}
		size = len(raw)
	}
	return w.flooded(ctx, f, takers, path)
}

// flooded reads a path over many connections until ctx ends. It compares how long submissions of
// a quiet tenant take without that and beside it.
func (w *world) flooded(ctx context.Context, f *findings, connections int, path string) error {
	alone, failed, err := w.submissions(ctx, time.Second)
	if err != nil {
		return err
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackFrom)}}
	client := &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: connections},
		Timeout:   20 * time.Second,
	}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	answers := map[int]int{}
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.api+path, nil)
				if err != nil {
					return
				}
				req.Header.Set("Sluice-Tenant", offender)
				resp, err := client.Do(req)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				mu.Lock()
				answers[resp.StatusCode]++
				mu.Unlock()
				if resp.StatusCode != http.StatusOK {
					_ = pause(ctx, afterwait)
				}
			}
		})
	}
	beside, more, err := w.submissions(ctx, 0)
	all.Wait()
	if err != nil {
		return err
	}
	f.none("submissions that failed", append(failed, more...))
	f.info("ms of a submission alone, p50", alone.Seconds()*1000, "ms")
	f.atMost("ms of a submission beside it, p50", beside.Seconds()*1000, max(2*alone, alone+slowest).Seconds()*1000, "ms")
	f.timed()
	f.atLeast("reads of the offender answered 200", float64(answers[http.StatusOK]), 1, "")
	f.atLeast("reads of the offender answered 429", float64(answers[http.StatusTooManyRequests]), 1, "")
	return nil
}

// submissions submits jobs of a quiet tenant, one after the other, for a while or, if that is 0,
// until ctx ends. It returns the median time.
func (w *world) submissions(ctx context.Context, window time.Duration) (median time.Duration, failed []string, err error) {
	if window > 0 {
		limited, cancel := context.WithTimeout(ctx, window)
		defer cancel()
		ctx = limited
	}
	var took []time.Duration
	body := []byte(`{"type":"battery","payload":` + payload("beside", 0) + `}`)
	for n := 0; pause(ctx, 20*time.Millisecond) == nil; n++ {
		began := time.Now()
		header := map[string]string{"Sluice-Tenant": fmt.Sprint("beside-", n%10)}
		status, _, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs", header, body)
		if ctx.Err() != nil {
			break
		}
		if took = append(took, time.Since(began)); err != nil || status != http.StatusAccepted {
			failed = append(failed, fmt.Sprintf("%d %v", status, err))
		}
	}
	if len(took) == 0 {
		return 0, nil, fmt.Errorf("no submission in %v", window)
	}
	slices.Sort(took)
	return took[len(took)/2], failed, nil
}
