package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func (r reply) list(t testing.TB) (page wire.JobList, ids []string) {
	t.Helper()
	if err := json.Unmarshal(r.Body.Bytes(), &page); err != nil || r.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", r.Code, err, r.Body)
	}
	for _, j := range page.Items {
		ids = append(ids, j.ID)
	}
	return page, ids
}

func TestListByState(t *testing.T) {
	b := newBench(t)
	jobs := map[string]string{} // id → state asked for
	add := func(list, body string, state shaper.State) {
		id := b.submit(body, nil).job.ID
		if state != shaper.Queued && state != shaper.Scheduled {
			b.queue.Finish(id, state, nil, nil)
		}
		jobs[id] = list
	}
	add("queued", plainJob, shaper.Queued)
	add("queued", `{"type":"t","payload":1,"route":"other"}`, shaper.Queued)
	add("scheduled", `{"type":"t","payload":1,"delay_ms":60000}`, shaper.Scheduled)
	add("retrying", plainJob, shaper.Retrying)
	add("leased", plainJob, shaper.Leased)
	add("dead", plainJob, shaper.Dead)
	add("succeeded", plainJob, shaper.Succeeded)
	add("cancelled", plainJob, shaper.Cancelled)
	add("expired", plainJob, shaper.Expired)
	for _, state := range codec.StateNames(queue.ListStates()) {
		_, got := b.intake.do(t, "GET", "/v1/jobs?state="+state, nil, "").list(t)
		var want []string
		for id, list := range jobs {
			if list == state || state == "all" {
				want = append(want, id)
			}
		}
		slices.Sort(want)
		slices.Reverse(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", state, got, want)
		}
	}
	b.submit(`{"type":"rare","payload":1}`, headers{"Idempotency-Key": "k&1"})
	for query, n := range map[string]int{
		"&route=other": 1, "&route=default": 2, "": 3, "&type=rare": 1, "&type=rar": 0,
		"&idempotency_key=k%261": 1, "&idempotency_key=k": 0,
		"&created_after=2000-01-02T15:04:05Z&created_before=2000-01-03T15:04:05Z": 0,
		"&created_before=2000-01-03T15:04:05%2B01:00":                             0,
		"&created_after=1990-01-02T15:04:05.5Z":                                   3,
	} {
		if _, ids := b.intake.do(t, "GET", "/v1/jobs?state=queued"+query, nil, "").list(t); len(ids) != n {
			t.Errorf("%q: %v, want %d", query, ids, n)
		}
	}
	if _, ids := b.intake.do(t, "GET", "/v1/jobs?state=queued", headers{"Sluice-Tenant": "other"}, "").
		list(t); len(ids) != 0 {
		t.Errorf("another tenant's jobs are listed: %v", ids)
	}
}

func TestListPageByPage(t *testing.T) {
	b := newBench(t, func(c *Config) { c.ReadRate = shaper.Rate{Limit: 100_000, Period: time.Second} })
	for range 250 {
		b.submit(plainJob, nil)
	}
	want := b.queue.IDs()
	slices.Reverse(want)
	for _, limit := range []int{0, 1, 60, 125, 249, 250, 251, 1000} {
		path := "/v1/jobs?state=queued"
		size := codec.DefaultJobs
		if limit > 0 {
			path += "&limit=" + strconv.Itoa(limit)
			size = limit
		}
		var got []string
		for cursor, pages := "", 0; ; pages++ {
			at := path
			if cursor != "" {
				at += "&cursor=" + url.QueryEscape(cursor)
			}
			page, ids := b.intake.do(t, "GET", at, nil, "").list(t)
			if len(ids) > size || len(ids) == 0 {
				t.Fatalf("limit %d: %d on page %d", size, len(ids), pages)
			}
			got = append(got, ids...)
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %d jobs, not the %d there are in order", size, len(got), len(want))
		}
	}
}
