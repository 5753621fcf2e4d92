package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func (r reply) swept(t *testing.T) (out wire.Swept) {
	t.Helper()
	if err := json.Unmarshal(r.Body.Bytes(), &out); err != nil || r.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", r.Code, err, r.Body)
	}
	return out
}

// dead submits a job and ends it as dead.
func (b *bench) dead(body, why string) string {
	b.t.Helper()
	id := b.submit(body, nil).job.ID
	b.queue.Finish(id, shaper.Dead, nil, &queue.JobError{Message: why, At: time.Now()})
	return id
}

func TestDrainingTenant(t *testing.T) {
	b := newBench(t)
	const path = "/v1/tenants/default"
	b.submit(plainJob, nil)
	dead := b.dead(plainJob, "refused")
	first := b.admin.do(t, "POST", path+"/drain", headers{"If-Match": `"0"`}, `{"reason":"moving out"}`)
	got := first.tenant(t)
	queuetest.Compare(t, "the tenant", queuetest.Only(got, "Draining", "Reason", "Revision", "Depth"),
		wire.Tenant{Draining: true, Reason: "moving out", Revision: 1, Figures: wire.Figures{Depth: 1}})
	queuetest.Compare(t, "it is paused", *got.Paused, false)
	queuetest.Compare(t, "the ETag", first.Header().Get("ETag"), `"1"`)

	refused := func() {
		t.Helper()
		for _, r := range []reply{
			b.intake.do(t, "POST", "/v1/jobs", nil, plainJob),
			b.intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=5"}, plainJob),
			b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`],"atomic":true}`),
			b.intake.do(t, "POST", "/v1/jobs/"+dead+"/replay", nil, ""),
		} {
			r.want(t, http.StatusServiceUnavailable, "draining")
			if after, err := strconv.Atoi(r.Header().Get("Retry-After")); err != nil || after < 30 || after > 35 {
				t.Errorf("Retry-After %q", r.Header().Get("Retry-After"))
			}
		}
		r := b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+plainJob+`]}`)
		if !strings.Contains(r.Body.String(), `{"type":"urn:sluice:problem:draining"`) ||
			!strings.Contains(r.Body.String(), `"status":503`) {
			t.Errorf("batch: %d %s", r.Code, r.Body)
		}
		got := b.admin.do(t, "POST", path+"/replay", nil, `{"all":true}`).swept(t)
		queuetest.Compare(t, "the replay", got, wire.Swept{Stopped: "draining", CreatedBefore: got.CreatedBefore})
	}
	refused()
	// Neither a patch nor a replacement of the settings ends it.
	for _, method := range []string{"PATCH", "PUT"} {
		if r := b.admin.do(t, method, path, nil, `{"capacity":7}`); !r.tenant(t).Draining ||
			*r.tenant(t).Capacity != 7 {
			t.Errorf("%s: %s", method, r.Body)
		}
		refused()
	}
	if r := b.admin.do(t, "POST", path+"/pause", nil, ""); !r.tenant(t).Draining || !*r.tenant(t).Paused {
		t.Errorf("pause: %s", r.Body)
	}
	r := b.admin.do(t, "POST", path+"/resume", nil, "")
	if strings.Contains(r.Body.String(), `"draining":true`) {
		t.Errorf("resumed, the tenant drains: %s", r.Body)
	}
	queuetest.Compare(t, "resumed, it is paused", *r.tenant(t).Paused, false)
	queuetest.Compare(t, "resumed, its capacity", *r.tenant(t).Capacity, 7)
	b.submit(plainJob, nil)
	b.admin.do(t, "POST", path+"/drain", nil, "")
	b.admin.do(t, "DELETE", path, nil, "")
	b.submit(plainJob, nil)
	text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
	if !strings.Contains(text, `sluice_admissions_total{outcome="draining"} 18`) {
		t.Errorf("metrics: %s", text)
	}
}

func TestPurge(t *testing.T) {
	b := newBench(t)
	other := b.dead(`{"type":"t","payload":1,"route":"other"}`, "502 from upstream")
	ids := []string{
		b.submit(plainJob, nil).job.ID, b.submit(`{"type":"t","payload":1,"delay_ms":60000}`, nil).job.ID,
		b.dead(plainJob, "404"), b.dead(plainJob, "502 from upstream"),
	}
	leased := b.submit(plainJob, nil).job.ID
	b.queue.Finish(leased, shaper.Leased, nil, nil)
	b.submit(plainJob, headers{"Sluice-Tenant": "neighbour"})
	for _, step := range []struct {
		body string
		want int64
	}{
		{`{"created_before":"2020-01-01T00:00:00+02:00"}`, 0},
		{`{"error":"502","state":"queued"}`, 0},
		{`{"error":"502","route":"other"}`, 1},
		{fmt.Sprintf(`{"ids":["%s","%s"],"state":"dead"}`, ids[0], ids[2]), 1},
		{`{"state":"scheduled"}`, 1},
		{`{"ids":["nope"]}`, 0},
		{`{"all":true}`, 2},
		{`{"all":true,"route":"default"}`, 0},
	} {
		earliest := time.Now()
		if strings.Contains(step.body, "created_before") {
			earliest = time.Unix(0, 0)
		}
		got := b.admin.do(t, "POST", "/v1/tenants/default/purge", nil, step.body).swept(t)
		queuetest.Compare(t, "purge "+step.body, got,
			wire.Swept{Count: step.want, CreatedBefore: got.CreatedBefore})
		if got.CreatedBefore.Before(earliest) {
			t.Errorf("%s: created_before is %v, want %v or later", step.body, got.CreatedBefore, earliest)
		}
	}
	for id, want := range map[string]int{
		other: 404, ids[0]: 200, ids[1]: 200, ids[2]: 404, ids[3]: 404, leased: 200,
	} {
		r := b.intake.do(t, "GET", "/v1/jobs/"+id, nil, "")
		if r.Code != want || want == 200 && id != leased && r.job.State != "cancelled" {
			t.Errorf("%s: %d %s", id, r.Code, r.Body)
		}
	}
	if got := b.admin.do(t, "GET", "/v1/tenants/neighbour", nil, "").tenant(t); got.Depth != 1 {
		t.Errorf("the neighbour has %d", got.Depth)
	}
}

func TestPurgeInSteps(t *testing.T) {
	b := newBench(t)
	b.queue.SweptMost = 3
	for range 7 {
		b.submit(plainJob, nil)
	}
	body, counts := `{"all":true}`, []int64(nil)
	for more := true; more; {
		got := b.admin.do(t, "POST", "/v1/tenants/default/purge", nil, body).swept(t)
		counts, more = append(counts, got.Count), got.More
		body = string(must(json.Marshal(wire.Filter{All: true, CreatedBefore: got.CreatedBefore})))
		b.submit(plainJob, nil) // is younger than the purge, and stays
	}
	if fmt.Sprint(counts) != "[3 3 1]" {
		t.Errorf("counts %v", counts)
	}
	if got := b.admin.do(t, "GET", "/v1/tenants/default", nil, "").tenant(t); got.Depth != 3 {
		t.Errorf("%d left", got.Depth)
	}
}

func TestReplayMany(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/default", nil, `{"capacity":3,"rate":{"limit":2,"period_ms":1000}}`)
	gone := b.dead(`{"type":"t","payload":1,"route":"other"}`, "x")
	delete(b.s.cfg.Routes, "other")
	for range 4 {
		b.dead(plainJob, "x")
	}
	alive := b.submit(plainJob, nil).job.ID
	got := b.admin.do(t, "POST", "/v1/tenants/default/replay", nil, `{"state":"dead","ids":["`+gone+`"]}`).
		swept(t)
	if got.Count != 1 || got.Stopped != "" {
		t.Errorf("%+v", got)
	}
	if job := b.intake.do(t, "GET", "/v1/jobs/"+gone, nil, "").job; job.MaxAttempts != 1 ||
		job.State != "queued" {
		t.Errorf("of a route that is gone: %+v", job)
	}
	got = b.admin.do(t, "POST", "/v1/tenants/default/replay", nil, `{"all":true}`).swept(t)
	queuetest.Compare(t, "the replay into a full queue", queuetest.Only(got, "Count", "Stopped", "More"),
		wire.Swept{Count: 1, Stopped: "queue-full"})
	if ms := got.RetryAfterMS; ms < 1 || ms > 1000 {
		t.Errorf("retry_after_ms is %d, want 1 to 1000", ms)
	}
	b.admin.do(t, "POST", "/v1/tenants/default/pause", nil, "")
	got = b.admin.do(t, "POST", "/v1/tenants/default/replay", nil, `{"all":true}`).swept(t)
	queuetest.Compare(t, "the replay while paused", got,
		wire.Swept{Stopped: "queue-full", CreatedBefore: got.CreatedBefore})
	b.admin.do(t, "DELETE", "/v1/tenants/default", nil, "")
	if got := b.admin.do(t, "POST", "/v1/tenants/default/replay", nil, `{"all":true}`).swept(t); got.Count != 3 ||
		got.Stopped != "" {
		t.Errorf("%+v", got)
	}
	if job := b.intake.do(t, "GET", "/v1/jobs/"+alive, nil, "").job; job.State != "queued" {
		t.Errorf("%+v", job)
	}
	text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
	for _, want := range []string{`{outcome="admitted"} 11`, `{outcome="full"} 2`} {
		if !strings.Contains(text, "sluice_admissions_total"+want) {
			t.Errorf("no %s: %s", want, text)
		}
	}
}

func TestHistory(t *testing.T) {
	b := newBench(t)
	const path = "/v1/tenants/a"
	if r := b.admin.do(t, "GET", path+"/history", nil,
		""); strings.TrimSpace(r.Body.String()) != `{"items":[]}` {
		t.Errorf("none: %s", r.Body)
	}
	b.admin.do(t, "PUT", path, nil, `{"rate":{"limit":5,"period_ms":1000},"rates":[{"limit":9,`+
		`"period_ms":60000}],"capacity":0,"reason":"first"}`)
	b.admin.do(t, "PATCH", path, nil,
		`{"rate":null,"rates":[],"paused":true,"burst":2,"concurrency":0,"max_wait_ms":5}`)
	b.admin.do(t, "POST", path+"/drain", nil, "")
	b.admin.do(t, "DELETE", path, nil, "")
	r := b.admin.do(t, "GET", path+"/history", nil, "")
	var got wire.History
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || len(got.Items) != 4 {
		t.Fatalf("%v %s", err, r.Body)
	}
	for i, want := range []string{
		`{}`, `{"burst":2,"rates":[],"capacity":0,"concurrency":0,"max_wait_ms":5,"paused":true,"draining":true}`,
		`{"burst":2,"rates":[],"capacity":0,"concurrency":0,"max_wait_ms":5,"paused":true}`,
		`{"rate":{"limit":5,"period_ms":1000},"rates":[{"limit":9,"period_ms":60000,"burst":1}],"capacity":0}`,
	} {
		e := got.Items[i]
		if after := string(must(json.Marshal(e.After))); after != want {
			t.Errorf("%d: %s, want %s", i, after, want)
		}
		queuetest.Compare(t, fmt.Sprintf("%d: revision", i), e.Revision, int64(4-i))
		queuetest.Compare(t, fmt.Sprintf("%d: has the first reason", i), e.Reason == "first", i == 3)
		if e.At.IsZero() || !strings.HasPrefix(e.Actor, "local from ") {
			t.Errorf("%d: by %q at %v, want an actor of the API and an instant", i, e.Actor, e.At)
		}
		if i > 0 && string(must(json.Marshal(got.Items[i-1].Before))) != want {
			t.Errorf("%d: %+v does not begin where this ended", i-1, got.Items[i-1])
		}
	}
}

// A purge and a replay are in the history and in the log, with what was selected and how many it
// were; one that found nothing only in the log.
func TestSweepsAreRecorded(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	b.dead(plainJob, "502 from upstream")
	b.dead(plainJob, "404")
	b.submit(plainJob, nil)
	const path = "/v1/tenants/default"
	for _, step := range []struct{ verb, body string }{
		{"replay", `{"error":"502"}`}, {"purge", `{"state":"scheduled"}`}, {"purge", `{"all":true}`},
	} {
		b.admin.do(t, "POST", path+"/"+step.verb, nil, step.body).swept(t)
	}
	r := b.admin.do(t, "GET", path+"/history", nil, "")
	var got wire.History
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || len(got.Items) != 2 {
		t.Fatalf("%v %s", err, r.Body)
	}
	for i, want := range []wire.HistoryEntry{
		{Action: "purge", Actor: "local from 192.0.2.1", Count: 3, Filter: &wire.Filter{All: true}},
		{Action: "replay", Actor: "local from 192.0.2.1", Count: 1, Filter: &wire.Filter{All: true, Error: "502"}},
	} {
		e := got.Items[i]
		if e.At.IsZero() || e.Filter == nil || e.Filter.CreatedBefore.IsZero() {
			t.Fatalf("%+v lacks a time", e)
		}
		e.Filter.CreatedBefore = time.Time{}
		queuetest.Compare(t, "the entry", queuetest.Only(e, "Action", "Actor", "Count", "Filter"), want)
	}
	for _, want := range []string{
		`"level":"INFO","msg":"dead jobs were replayed","tenant":"default","count":1,"error":"502","created_before":"`,
		`"level":"INFO","msg":"jobs were purged","tenant":"default","count":0,"state":"scheduled","created_before":"`,
		`"level":"INFO","msg":"jobs were purged","tenant":"default","count":3,"created_before":"`,
		`,"actor":"local from 192.0.2.1"}`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, &log)
		}
	}
}
