package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// tape is a client of a stream that notes what came when.
type tape struct {
	*httptest.ResponseRecorder
	began time.Time
	seen  int
	notes []string // "offset state" for events, "offset beat" for heartbeats
	t     testing.TB
}

// Flush notes what was written since the last one.
func (p *tape) Flush() {
	fresh := p.Body.String()[p.seen:]
	p.seen += len(fresh)
	for _, e := range readEvents(p.t, fresh) {
		p.notes = append(p.notes, fmt.Sprint(time.Since(p.began), " ", e.job(p.t).State))
	}
	if strings.Contains(fresh, ": alive\n\n") {
		p.notes = append(p.notes, fmt.Sprint(time.Since(p.began), " beat"))
	}
}

// follow reads the stream of the job to its end.
func (b *bench) follow(
	ctx context.Context, id string, h headers,
) (notes []string, took time.Duration, got *httptest.ResponseRecorder) {
	b.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/v1/jobs/"+id+"/events", nil).WithContext(ctx)
	for k, v := range h {
		r.Header.Set(k, v)
	}
	p := &tape{ResponseRecorder: httptest.NewRecorder(), began: time.Now(), t: b.t}
	b.s.Intake().ServeHTTP(p, r)
	b.intake.check(b.t, r, reply{ResponseRecorder: p.ResponseRecorder})
	return p.notes, time.Since(p.began), p.ResponseRecorder
}

// Time stories: what happens to a queued job, what its client sees and when, and when the stream
// ends.
func TestEventStreams(t *testing.T) {
	type step struct {
		at time.Duration
		do func(b *bench, id string)
	}
	become := func(state shaper.State) func(*bench, string) {
		return func(b *bench, id string) { b.queue.Change(id, state, nil, nil) }
	}
	finish := func(state shaper.State) func(*bench, string) {
		return func(b *bench, id string) { b.queue.Finish(id, state, nil, nil) }
	}
	fail := func(err error) func(*bench, string) { return func(b *bench, _ string) { b.queue.Fail(err) } }
	ms := time.Millisecond
	for _, tt := range []struct {
		name  string
		steps []step
		want  []string
		took  time.Duration
	}{
		{"the end is sent at once", []step{{310 * ms, finish(shaper.Succeeded)}},
			[]string{"0s queued", "310ms succeeded"}, 310 * ms},
		{"done already", []step{{-1, finish(shaper.Dead)}}, []string{"0s dead"}, 0},
		{"an end that nobody signals is found", []step{{310 * ms, become(shaper.Dead)}},
			[]string{"0s queued", "500ms dead"}, 500 * ms},
		{"leased, retrying, leased, succeeded", []step{
			{310 * ms, become(shaper.Leased)}, {910 * ms, become(shaper.Retrying)},
			{1910 * ms, become(shaper.Leased)}, {1950 * ms, finish(shaper.Succeeded)},
		}, []string{"0s queued", "500ms leased", "1s retrying", "1.95s succeeded"}, 1950 * ms},
		{"a short state is not seen", []step{
			{310 * ms, become(shaper.Leased)}, {320 * ms, become(shaper.Retrying)},
			{time.Second + ms, finish(shaper.Cancelled)},
		}, []string{"0s queued", "500ms retrying", "1.001s cancelled"}, 1001 * ms},
		{"another departure is news though the state is not", []step{
			{310 * ms, become(shaper.Leased)}, {610 * ms, become(shaper.Leased)}, {910 * ms, finish(shaper.Expired)},
		}, []string{"0s queued", "500ms leased", "750ms leased", "910ms expired"}, 910 * ms},
		{"a signal without news", []step{{310 * ms, func(b *bench, id string) {
			b.queue.Signal(id)
		}}, {400 * ms, finish(shaper.Succeeded)}},
			[]string{"0s queued", "400ms succeeded"}, 400 * ms},
		{"a heartbeat, then the end", []step{{20 * time.Second, finish(shaper.Succeeded)}},
			[]string{"0s queued", "15s beat", "20s succeeded"}, 20 * time.Second},
		{"the server drains", []step{{310 * ms, func(b *bench, _ string) {
			b.s.Drain()
		}}}, []string{"0s queued"}, 310 * ms},
		{"the server drains, and there is news", []step{{310 * ms, func(b *bench, id string) {
			b.queue.Change(id, shaper.Leased, nil, nil)
			b.s.Drain()
		}}}, []string{"0s queued", "310ms leased"}, 310 * ms},
		{"the server drains before", []step{{-1, func(b *bench, _ string) {
			b.s.Drain()
		}}}, []string{"0s queued"}, 0},
		{"the store is away for a while", []step{
			{310 * ms, fail(queue.ErrUnavailable)}, {320 * ms, become(shaper.Succeeded)}, {2310 * ms, fail(nil)},
		}, []string{"0s queued", "2.5s succeeded"}, 2500 * ms},
		{"a fault ends it", []step{{310 * ms, fail(errors.New("a fault"))}}, []string{"0s queued"}, 500 * ms},
		{"past retention", []step{{310 * ms, fail(queue.ErrNotFound)}}, []string{"0s queued"}, 500 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				id := b.submit(plainJob, nil).job.ID
				began := time.Now()
				for _, s := range tt.steps {
					if s.at < 0 {
						s.do(b, id)
					}
				}
				go func() {
					for _, s := range tt.steps {
						if s.at >= 0 {
							<-time.After(s.at - time.Since(began))
							s.do(b, id)
						}
					}
				}()
				notes, took, _ := b.follow(t.Context(), id, nil)
				if !slices.Equal(notes, tt.want) || took != tt.took {
					t.Errorf("%q after %v, want %q after %v", notes, took, tt.want, tt.took)
				}
				if n := b.queue.Watching(); n != 0 || b.s.streams.Count() != 0 {
					t.Errorf("%d watches and %d streams left", n, b.s.streams.Count())
				}
				<-time.After(time.Minute) // whatever is still to happen
			})
		})
	}
}

func TestEventStreamLivesTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		id := b.submit(plainJob, nil).job.ID
		notes, took, got := b.follow(t.Context(), id, nil)
		if took != 10*time.Minute || notes[0] != "0s queued" || notes[1] != "15s beat" ||
			notes[2] != "30s beat" || len(notes) < 40 || len(notes) > 41 {
			t.Errorf("after %v: %q", took, notes)
		}
		if !strings.HasPrefix(got.Body.String(), "retry: 1000\n\nid: ") ||
			got.Header().Get("Content-Type") != "text/event-stream" ||
			got.Header().Get("X-Accel-Buffering") != "no" {
			t.Errorf("%v %.100q", got.Header(), got.Body)
		}
	})
}

func TestEventStreamEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithTimeout(t.Context(), 1100*time.Millisecond)
		defer cancel()
		_, took, _ := b.follow(ctx, b.submit(plainJob, nil).job.ID, nil)
		if took != 1100*time.Millisecond || b.queue.Watching() != 0 || b.s.streams.Count() != 0 {
			t.Errorf("after %v, %d watches left", took, b.queue.Watching())
		}
	})
}

// A client that has received the end gets 204: an EventSource would reconnect forever otherwise.
func TestEventStreamAfterTheEnd(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	path := "/v1/jobs/" + id + "/events"
	b.queue.Finish(id, shaper.Dead, nil, nil)
	r := b.intake.do(t, "GET", path, headers{"Last-Event-ID": "queued-0-"}, "")
	events := readEvents(t, r.Body.String())
	if r.Code != http.StatusOK || len(events) != 1 || !events[0].job(t).Done {
		t.Fatalf("%d %s", r.Code, r.Body)
	}
	if r := b.intake.do(t, "GET", path, headers{"Last-Event-ID": events[0].ID},
		""); r.Code != http.StatusNoContent || r.Body.Len() != 0 {
		t.Errorf("%d %s", r.Code, r.Body)
	}
	if r := b.intake.do(t, "HEAD", path, nil, ""); r.Code != http.StatusOK || r.Body.Len() != 0 ||
		r.Header().Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD: %d %v %s", r.Code, r.Header(), r.Body)
	}
	if n := b.queue.Watching(); n != 0 || b.s.streams.Count() != 0 {
		t.Errorf("%d watches and %d streams left", n, b.s.streams.Count())
	}
}

func TestEventStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxStreams, c.TenantShare, c.AddressShare = 2, 100, 100 })
		id := b.submit(plainJob, nil).job.ID
		for range 2 {
			go b.follow(t.Context(), id, nil)
		}
		synctest.Wait()
		r := b.intake.do(t, "GET", "/v1/jobs/"+id+"/events", nil, "")
		r.want(t, http.StatusServiceUnavailable, "too-many-streams")
		if after := r.Header().Get("Retry-After"); after != "5" && after != "6" {
			t.Errorf("Retry-After %q", r.Header().Get("Retry-After"))
		}
		text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
		if !strings.Contains(text, "sluice_event_streams 2\n") {
			t.Errorf("metrics: %s", text)
		}
		b.queue.Finish(id, shaper.Succeeded, nil, nil)
		synctest.Wait()
		if r := b.intake.do(t, "GET", "/v1/jobs/"+id+"/events", nil, ""); r.Code != http.StatusOK {
			t.Errorf("%d %s", r.Code, r.Body)
		}
	})
}

// A stream outlives the bounds of ordinary answers, and the connection is good for another request
// after it.
func TestEventStreamOverAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l, stop := b.serve()
		defer stop()
		conn := l.dial()
		defer conn.Close()
		id := b.submit(plainJob, nil).job.ID
		get := func(path string) *http.Response {
			if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(bufio.NewReaderSize(conn, 1), nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		start := time.Now()
		r := get("/v1/jobs/" + id + "/events")
		go func() {
			<-time.After(5*time.Minute + time.Second)
			b.queue.Finish(id, shaper.Succeeded, nil, nil)
		}()
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(text), `"succeeded"`) ||
			strings.Count(string(text), ": alive") != 20 ||
			time.Since(start) != 5*time.Minute+time.Second {
			t.Errorf("after %v: %v %s", time.Since(start), err, text)
		}
		if r := get("/livez"); r.StatusCode != http.StatusOK {
			t.Errorf("the next request: %d", r.StatusCode)
		}
	})
}

// A client that does not read holds its stream for at most the time of one write.
func TestEventStreamToADeafClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l, stop := b.serve()
		defer stop()
		conn := l.dial()
		defer conn.Close()
		id := b.submit(plainJob, nil).job.ID
		if _, err := io.WriteString(conn, "GET /v1/jobs/"+id+"/events HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if b.s.streams.Count() != 1 {
			t.Fatalf("%d streams", b.s.streams.Count())
		}
		<-time.After(streamPatience)
		synctest.Wait()
		if n := b.queue.Watching(); n != 0 || b.s.streams.Count() != 0 {
			t.Errorf("%d watches and %d streams left", n, b.s.streams.Count())
		}
	})
}

// One tenant does not take the event streams of all, and neither does one address with many names.
func TestEventStreamsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxStreams = 8 }) // 2 of a tenant, 4 of an address
		follow := func(tenant string) {
			id := b.submit(plainJob, headers{"Sluice-Tenant": tenant}).job.ID
			go b.follow(t.Context(), id, headers{"Sluice-Tenant": tenant})
			synctest.Wait()
		}
		ask := func(tenant, address string) reply {
			id := b.submit(plainJob, headers{"Sluice-Tenant": tenant}).job.ID
			r := httptest.NewRequest("GET", "http://localhost/v1/jobs/"+id+"/events", nil)
			r.Header.Set("Sluice-Tenant", tenant)
			r.RemoteAddr = address
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Second, cancel)
			return b.intake.send(t, r.WithContext(ctx))
		}
		const here, elsewhere = "192.0.2.1:1234", "192.0.2.9:1"
		follow("a")
		follow("a")
		ask("a", elsewhere).want(t, http.StatusServiceUnavailable, "too-many-streams")
		follow("b")
		follow("c")
		ask("quiet", here).want(t, http.StatusServiceUnavailable, "too-many-streams")
		ask("quiet", elsewhere).want(t, http.StatusOK, "")
		for _, id := range b.queue.IDs() {
			b.queue.Finish(id, shaper.Succeeded, nil, nil)
		}
		synctest.Wait()
		if n := b.s.streams.Count(); n != 0 {
			t.Errorf("%d streams left", n)
		}
	})
}
