package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/shaper"
)

func TestPurgeOfManyTenants(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxRequests = 10_000 })
	b.queue.SweptMost = 2
	b.queue.Baseline.Tiers = map[string]shaper.Overrides{"free": {}}
	for i := range 630 { // more than a page
		b.submit(plainJob, headers{codec.TenantHeader: fmt.Sprintf("guest:%03d", i)})
	}
	for range 5 { // more than one call of the queue purges
		b.submit(plainJob, headers{codec.TenantHeader: "guest:000"})
		b.submit(plainJob, headers{codec.TenantHeader: "acme"})
	}
	steps := func(of wire.TenantsPurge) (sum wire.TenantsPurged, steps int) {
		t.Helper()
		for {
			body, err := json.Marshal(of)
			if err != nil {
				t.Fatal(err)
			}
			r := b.admin.do(t, "POST", "/v1/purge", nil, string(body))
			var got wire.TenantsPurged
			if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || r.Code != http.StatusOK {
				t.Fatalf("%d %s", r.Code, r.Body)
			}
			sum.Tenants, sum.Count, sum.Waiting = sum.Tenants+got.Tenants, sum.Count+got.Count, sum.Waiting+got.Waiting
			if steps++; !got.More {
				return sum, steps
			}
			if of.Cursor = got.Cursor; !got.CreatedBefore.IsZero() {
				of.CreatedBefore = got.CreatedBefore
			}
			if steps > 500 {
				t.Fatal("no end")
			}
		}
	}
	for body, field := range map[string]string{
		`{}`: "prefix", `{"state":"queued"}`: "prefix", `{"prefix":""}`: "prefix", `{"tier":""}`: "tier",
		`{"prefix":"guest:","cursor":"!"}`: "query.cursor", `{"prefix":"guest:","ids":["a"]}`: "ids", `{"prefix":"guest:","state":"leased"}`: "state",
	} {
		r := b.admin.do(t, "POST", "/v1/purge", nil, body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if !strings.Contains(r.Body.String(), `"field":"`+field+`"`) {
			t.Errorf("%s: %s", body, r.Body)
		}
	}
	b.admin.do(t, "POST", "/v1/purge", headers{"Content-Type": "application/json"}, "").want(t, http.StatusUnprocessableEntity, "")
	if got, n := steps(wire.TenantsPurge{Prefix: "guest:", DryRun: true}); got.Tenants != 630 || got.Waiting != 635 ||
		got.Count != 0 || n != 2 {
		t.Errorf("a dry run: %+v in %d steps", got, n)
	}
	if got, _ := steps(wire.TenantsPurge{Tier: "free"}); got.Count != 0 {
		t.Errorf("of a tier without tenants: %+v", got)
	}
	if got, _ := steps(wire.TenantsPurge{Prefix: "guest:", State: "dead"}); got.Count != 0 {
		t.Errorf("of another state: %+v", got)
	}
	if got, _ := steps(wire.TenantsPurge{Prefix: "guest:"}); got.Count != 635 {
		t.Errorf("%+v", got)
	}
	if got, _ := steps(wire.TenantsPurge{Prefix: "a", DryRun: true}); got.Waiting != 5 || got.Tenants != 1 {
		t.Errorf("others have left: %+v", got)
	}
}
