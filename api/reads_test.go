package api

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestReadBudget(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for rate, story := range map[string][]struct {
		at     time.Duration
		tenant string
		wait   time.Duration
	}{
		"2/s": {
			{0, "a", 0}, {0, "a", 0}, {0, "a", 500 * time.Millisecond}, {0, "b", 0}, // each has its own
			{499 * time.Millisecond, "a", time.Millisecond}, {500 * time.Millisecond, "a", 0}, // a refusal spends nothing
			{500 * time.Millisecond, "a", 500 * time.Millisecond},
			{time.Hour, "a", 0}, {time.Hour, "a", 0}, {time.Hour, "a", 500 * time.Millisecond}, // no more than a second's worth gathers
		},
		"5/m": { // less than one a second: one at once
			{0, "a", 0}, {0, "a", 12 * time.Second}, {11 * time.Second, "a", time.Second}, {12 * time.Second, "a", 0},
			{13 * time.Second, "b", 0}, {25 * time.Second, "a", 0}, // a generation is over, and forgets nothing that matters
			{25 * time.Second, "b", 0}, {26 * time.Second, "a", 11 * time.Second}, {36 * time.Second, "b", time.Second},
		},
	} {
		r, err := shaper.ParseRate(rate)
		if err != nil {
			t.Fatal(err)
		}
		b := newReadBudget(r)
		for i, s := range story {
			if wait := b.take(s.tenant, start.Add(s.at)); wait.Round(time.Microsecond) != s.wait {
				t.Errorf("%s, step %d: %s at %v waits %v, want %v", rate, i, s.tenant, s.at, wait, s.wait)
			}
		}
	}
}

// A flood of names fills no memory, and does not give back its reads to a tenant that reads on.
func TestFloodOfNames(t *testing.T) {
	b := newReadBudget(shaper.Rate{Limit: 1, Period: time.Hour})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b.take("busy", now)
	for i := range 5 * maxReaders {
		b.take(strconv.Itoa(i), now)
		if i%100 == 0 && b.take("busy", now) == 0 {
			t.Fatalf("after %d names the busy tenant is forgotten", i)
		}
		if n := b.readers.Len(); n > maxReaders {
			t.Fatalf("%d tenants are remembered", n)
		}
	}
}

// The store is not asked: it would answer otherwise.
func TestReadsBeyondTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.StatusRate = shaper.Rate{Limit: 2, Period: time.Second} })
		id := b.submit(plainJob, nil).job.ID
		paths := []string{"/v1/jobs/" + id, "/v1/jobs?state=queued", "/v1/jobs/" + id + "/events"}
		for range 2 {
			if r := b.intake.do(t, "GET", paths[0], nil, ""); r.Code != http.StatusOK {
				t.Fatalf("%d %s", r.Code, r.Body)
			}
		}
		b.queue.Fail(queue.ErrUnavailable) // whoever asks it now gets another answer
		for _, path := range append(paths, "/v1/jobs/"+id) {
			r := b.intake.do(t, "GET", path, headers{"Prefer": "wait=5"}, "")
			r.want(t, http.StatusTooManyRequests, "rate-limited")
			h := r.Header()
			after, _ := strconv.Atoi(h.Get("Retry-After"))
			if after < 1 || after > 3 || h.Get("RateLimit-Policy") != `"status";q=2;w=1` || h.Get("RateLimit") != `"status";r=0;t=1` ||
				h.Get("X-RateLimit-Limit") != "2" || h.Get("X-RateLimit-Remaining") != "0" || h.Get("X-RateLimit-Retry-After") != h.Get("Retry-After") ||
				!strings.Contains(r.Body.String(), `"retry_after_ms":500`) {
				t.Errorf("%s: %v %s", path, h, r.Body)
			}
		}
		b.queue.Fail(nil)
		if r := b.intake.do(t, "GET", paths[0], headers{"Sluice-Tenant": "another"}, ""); r.Code != http.StatusNotFound {
			t.Errorf("another tenant: %d", r.Code)
		}
		b.submit(plainJob, nil) // not a read
		if text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String(); !strings.Contains(text, "sluice_reads_refused_total 4\n") {
			t.Errorf("metrics: %s", text)
		}
		<-time.After(500 * time.Millisecond)
		if r := b.intake.do(t, "GET", paths[1], nil, ""); r.Code != http.StatusOK {
			t.Errorf("half a second later: %d", r.Code)
		}
	})
}
