package api

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/auth"
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

// Each guest has reads of its own, but all of one client's /48 have those of one address.
func TestReadsOfANetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuarded(t, []auth.Mode{auth.Guest}, func(c *Config) {
			c.ReadRate = shaper.Rate{Limit: 5, Period: time.Second} // 20 at once of an address
		})
		read := func(from string) int {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://localhost/v1/jobs?state=queued", nil)
			r.RemoteAddr = from
			b.s.Intake().ServeHTTP(w, r)
			return w.Code
		}
		served := 0
		for i := range 100 {
			if read("[2001:db8:1:"+strconv.Itoa(i)+"::1]:1") == http.StatusOK {
				served++
			}
		}
		if served < 19 || served > 21 {
			t.Errorf("a /48 has %d reads at once, want about 20", served)
		}
		for _, from := range []string{"[2001:db8:2:1::1]:1", "192.0.2.1:1"} {
			if code := read(from); code != http.StatusOK {
				t.Errorf("another network, %s: %d", from, code)
			}
		}
	})
}

// TestCancellationsBeyondTheBudget: those that change nothing cost the store as much as reads do.
func TestCancellationsBeyondTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.ReadRate = shaper.Rate{Limit: 6, Period: time.Second} }) // 12 at once
		job := b.submit(plainJob, nil).job.ID
		for method, path := range map[string]string{"DELETE": "/v1/jobs/" + job, "POST": "/v1/jobs/" + job + "/replay"} {
			served := 0
			for b.intake.do(t, method, path, nil, "").Code != http.StatusTooManyRequests {
				served++
			}
			if want := map[string]int{"DELETE": 4, "POST": 3}[method]; served != want {
				t.Errorf("%s: %d at once, want %d", method, served, want)
			}
			if code := b.admin.do(t, method, "/v1/tenants/default/jobs/"+job+strings.TrimPrefix(path, "/v1/jobs/"+job), nil, "").Code; code == http.StatusTooManyRequests {
				t.Errorf("%s of an operator: %d", method, code)
			}
			<-time.After(2 * time.Second)
		}
	})
}

// TestReadsByDefault: a client that polls fifty jobs every 100 ms is never refused. One that lists
// as fast as it can has a share of the store, and its address has two of them, whatever tenants it
// names.
func TestReadsByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxRequests = 1_000_000 })
		id := b.submit(plainJob, nil).job.ID
		for range 99 {
			b.submit(plainJob, nil)
		}
		read := func(path, tenant string) *httptest.ResponseRecorder {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
			r.Header.Set("Sluice-Tenant", tenant)
			b.s.Intake().ServeHTTP(w, r)
			return w
		}
		for range 50 {
			for range 50 {
				if w := read("/v1/jobs/"+id, "default"); w.Code != http.StatusOK {
					t.Fatalf("an honest poll: %d %s", w.Code, w.Body)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		const list = "/v1/jobs?state=queued&limit=100"
		flood := func(tenant string) (served int) {
			for {
				w := read(list, tenant)
				if w.Code != http.StatusOK {
					after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
					if w.Code != http.StatusTooManyRequests || after < 1 || after > 3 ||
						!strings.Contains(w.Body.String(), "rate-limited") || w.Header().Get("RateLimit-Policy") != `"reads";q=2000;w=1` {
						t.Fatalf("a list too many: %d %v %s", w.Code, w.Header(), w.Body)
					}
					return served
				}
				served++
			}
		}
		if n := flood("default"); n < 39 || n > 41 { // 101 reads each, 4,000 at once
			t.Errorf("%d lists at once", n)
		}
		time.Sleep(time.Second)
		if n := flood("default"); n < 18 || n > 21 {
			t.Errorf("%d lists after a second", n)
		}
		served := 0
		for i := range 10_000 { // of tenants without jobs: 1 read each
			if read(list, strconv.Itoa(i)).Code == http.StatusOK {
				served++
			}
		}
		if served > 8000 {
			t.Errorf("%d lists of one address", served)
		}
		if w := read("/v1/jobs?state=queued", "default"); w.Code != http.StatusTooManyRequests {
			t.Errorf("beyond the address's: %d", w.Code)
		}
		if w := httptest.NewRecorder(); true {
			b.s.Admin().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/v1/tenants/default/jobs?state=all", nil))
			if w.Code != http.StatusOK {
				t.Errorf("an operator: %d %s", w.Code, w.Body)
			}
		}
	})
}
