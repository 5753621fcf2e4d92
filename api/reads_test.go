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
		b.queue.Fail(queue.ErrUnavailable) // a call of the store would fail now
		for _, path := range append(paths, "/v1/jobs/"+id) {
			r := b.intake.do(t, "GET", path, headers{"Prefer": "wait=5"}, "")
			r.want(t, http.StatusTooManyRequests, "rate-limited")
			h := r.Header()
			after, _ := strconv.Atoi(h.Get("Retry-After"))
			if after < 1 || after > 3 || h.Get("RateLimit-Policy") != `"status";q=2;w=1` ||
				h.Get("RateLimit") != `"status";r=0;t=1` ||
				h.Get("X-RateLimit-Limit") != "2" || h.Get("X-RateLimit-Remaining") != "0" ||
				h.Get("X-RateLimit-Retry-After") != h.Get("Retry-After") ||
				!strings.Contains(r.Body.String(), `"retry_after_ms":500`) {
				t.Errorf("%s: %v %s", path, h, r.Body)
			}
		}
		b.queue.Fail(nil)
		if r := b.intake.do(t, "GET", paths[0], headers{"Sluice-Tenant": "another"},
			""); r.Code != http.StatusNotFound {
			t.Errorf("another tenant: %d", r.Code)
		}
		b.submit(plainJob, nil) // not a read
		text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
		if !strings.Contains(text, "sluice_reads_refused_total 4\n") {
			t.Errorf("metrics: %s", text)
		}
		<-time.After(500 * time.Millisecond)
		if r := b.intake.do(t, "GET", paths[1], nil, ""); r.Code != http.StatusOK {
			t.Errorf("half a second later: %d", r.Code)
		}
	})
}
