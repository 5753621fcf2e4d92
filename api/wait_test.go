package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Time stories: what happens at an instant after the request, and when and how the request is then
// answered.
func TestWaits(t *testing.T) {
	succeed := func(b *bench, id string) {
		b.queue.Finish(id, shaper.Succeeded, &queue.Response{Status: 200}, nil)
	}
	signal := func(b *bench, id string) { b.queue.Signal(id) }
	for _, tt := range []struct {
		name   string
		prefer string
		at     time.Duration
		event  func(*bench, string)
		took   time.Duration
		posted int // status of the POST; a GET is always 200
		done   bool
		said   string
	}{
		{"ends in time", "wait=5", 300 * time.Millisecond, succeed, 300 * time.Millisecond, 200, true, "wait=5"},
		{"ends at once", "wait=5", 0, succeed, 0, 200, true, "wait=5"},
		{"ends too late", "wait=1", 2 * time.Second, succeed, time.Second, 202, false, "wait=1"},
		{"longer than the longest", "wait=3600", 31 * time.Second, succeed, 30 * time.Second, 202, false,
			"wait=30"},
		{"not at all", "wait=0", time.Second, succeed, 0, 202, false, "wait=0"},
		{"malformed", "wait=soon", time.Second, succeed, 0, 202, false, ""},
		{"a spurious signal", "wait=2", time.Second, signal, 2 * time.Second, 202, false, "wait=2"},
		{"a spurious signal close to the end", "wait=2", 1990 * time.Millisecond, signal, 2 * time.Second,
			202, false, "wait=2"},
		{"two signals, the second true", "wait=5", time.Second, func(b *bench, id string) {
			signal(b, id)
			synctest.Wait()
			succeed(b, id)
		}, time.Second + spuriousPause, 200, true, "wait=5"},
		{"leased and given back", "wait=2", time.Second, func(b *bench, id string) {
			b.queue.Finish(id, shaper.Retrying, nil, nil)
		}, 2 * time.Second, 202, false, "wait=2"},
		{"the server drains", "wait=5", time.Second, func(b *bench, _ string) {
			b.s.Drain()
		}, time.Second, 202, false, "wait=5"},
		{"the store goes away", "wait=5", time.Second, func(b *bench, id string) {
			b.queue.Fail(queue.ErrUnavailable)
			signal(b, id)
		}, time.Second, 202, false, "wait=5"},
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			t.Run(tt.name+" "+method, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t)
					path, body, status := "/v1/jobs", plainJob, tt.posted
					if method == http.MethodGet {
						path, body, status = "/v1/jobs/"+b.submit(plainJob, nil).job.ID, "", http.StatusOK
						if tt.name == "the store goes away" {
							status = http.StatusServiceUnavailable
						}
					}
					go func() {
						<-time.After(tt.at)
						synctest.Wait()
						for _, id := range b.queue.IDs() {
							tt.event(b, id)
						}
					}()
					start := time.Now()
					r := b.handle(method, path, body, tt.prefer)
					took := time.Since(start)
					if r.Code != status || took != tt.took || r.job.Done != tt.done {
						t.Errorf("%d after %v: %s", r.Code, took, r.Body)
					}
					if said := r.Header().Get("Preference-Applied"); said != tt.said && r.Code < 400 {
						t.Errorf("Preference-Applied %q, want %q", said, tt.said)
					}
					if n := b.queue.Watching(); n != 0 {
						t.Errorf("%d watches left", n)
					}
					<-time.After(time.Minute) // whatever is still to happen
				})
			})
		}
	}
}

// TestMissedEnds: a job that ends before the watch of its submission is in force is read soon
// after, and one that ends later is read at its end.
func TestMissedEnds(t *testing.T) {
	const early = 100 * time.Millisecond
	const later = early + doubtAfter + time.Millisecond
	for _, tt := range []struct{ at, took time.Duration }{
		{early / 2, early + doubtAfter}, {2 * early, 2 * early}, {later, later}, {10 * time.Second, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.queue.Early = early
			go func() {
				<-time.After(tt.at)
				synctest.Wait()
				for _, id := range b.queue.IDs() {
					b.queue.Finish(id, shaper.Succeeded, nil, nil)
				}
			}()
			began := time.Now()
			r := b.handle("POST", "/v1/jobs", plainJob, "wait=5")
			if took := time.Since(began); took != tt.took || r.job.Done != (tt.took < 5*time.Second) || b.queue.Watching() != 0 {
				t.Errorf("a job that ended at %v: done %v after %v, want %v", tt.at, r.job.Done, took, tt.took)
			}
			<-time.After(time.Minute)
		})
	}
}

func (b *bench) handle(method, path, body, prefer string) reply {
	b.t.Helper()
	d := b.intake
	return d.do(b.t, method, path, headers{"Prefer": prefer}, body)
}

// A known key waits for the job of then, which the first watch was not for.
func TestWaitForReplayedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		h := headers{"Idempotency-Key": "k", "Prefer": "wait=5"}
		first := b.submit(plainJob, headers{"Idempotency-Key": "k"})
		go func() {
			<-time.After(time.Second)
			b.queue.Finish(first.job.ID, shaper.Succeeded, nil, nil)
		}()
		start := time.Now()
		r := b.submit(plainJob, h)
		if r.Code != 200 || r.job.ID != first.job.ID || time.Since(start) != time.Second ||
			r.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%d after %v: %s", r.Code, time.Since(start), r.Body)
		}
		start = time.Now()
		if r := b.submit(plainJob, h); r.Code != 200 || time.Since(start) != 0 {
			t.Errorf("already done: %d after %v", r.Code, time.Since(start))
		}
		if n := b.queue.Watching(); n != 0 {
			t.Errorf("%d watches left", n)
		}
	})
}

// A client that goes away ends its wait.
func TestWaitEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-time.After(time.Second)
			cancel()
		}()
		start := time.Now()
		r := httptest.NewRequest(http.MethodPost, "/v1/jobs", strings.NewReader(plainJob)).WithContext(ctx)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Prefer", "wait=10")
		b.s.Intake().ServeHTTP(httptest.NewRecorder(), r)
		if took := time.Since(start); took != time.Second || b.queue.Watching() != 0 {
			t.Errorf("after %v, %d watches left", took, b.queue.Watching())
		}
	})
}

// A refusal is answered at once, whatever was preferred.
func TestNoWaitForARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.admin.do(t, "PATCH", "/v1/tenants/default", nil, `{"capacity":0}`)
		start := time.Now()
		b.handle(http.MethodPost, "/v1/jobs", plainJob, "wait=5").want(t, http.StatusTooManyRequests, "queue-full")
		if time.Since(start) != 0 || b.queue.Watching() != 0 {
			t.Errorf("after %v, %d watches left", time.Since(start), b.queue.Watching())
		}
	})
}

func TestDrain(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	b.s.Drain()
	b.s.Drain() // again does no harm
	for _, r := range []reply{
		b.intake.do(t, "POST", "/v1/jobs", nil, plainJob),
		b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`]}`),
		b.intake.do(t, "POST", "/v1/jobs/"+id+"/replay", nil, ""),
		b.intake.do(t, "GET", "/readyz", nil, ""),
		b.admin.do(t, "GET", "/readyz", nil, ""),
	} {
		r.want(t, http.StatusServiceUnavailable, "shutting-down")
		if r.Header().Get("Retry-After") == "" {
			t.Errorf("no Retry-After: %s", r.Body)
		}
	}
	for _, r := range []reply{
		b.intake.do(t, "GET", "/v1/jobs/"+id, headers{"Prefer": "wait=30"}, ""),
		b.intake.do(t, "DELETE", "/v1/jobs/"+id, nil, ""),
		b.intake.do(t, "GET", "/livez", nil, ""),
		b.admin.do(t, "POST", "/v1/tenants/a/pause?create=true", nil, ""),
	} {
		r.want(t, http.StatusOK, "")
	}
}
