package api

import (
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/shaper"
)

// A misspelt name of a tier, a route or a pool is refused with the known names. A route that was
// removed may still have jobs.
func TestUnknownNames(t *testing.T) {
	b := pooled(t)
	b.queue.Baseline.Tiers = map[string]shaper.Overrides{"free": {}, "pro": {}}
	b.submit(plainJob, headers{codec.TenantHeader: "acme"})
	delete(b.s.cfg.Routes, "default")
	tenant := "/v1/tenants/acme"
	for _, tt := range []struct {
		method, path, body, says string
		status                   int
	}{
		{"POST", "/v1/purge", `{"tier":"fre","dry_run":true}`, `tier (string \"fre\") must be one of the tiers: free, pro; is free meant?`, 422},
		{"POST", "/v1/purge", `{"tier":"free","dry_run":true}`, "", 200},
		{"POST", "/v1/purge", `{"prefix":"x","route":"othr"}`, `"note":"route must be one of the routes: other; is other meant?`, 200},
		{"PATCH", tenant, `{"tier":"fre"}`, "is free meant?", 422},
		{"PATCH", tenant, `{"routes":{"othr":{"paused":true}}}`, "must be one of the routes: other; is other meant?", 422},
		{"POST", tenant + "/purge", `{"route":"othr"}`, "must be one of the routes: other; is other meant?", 404},
		{"POST", tenant + "/replay", `{"route":"othr"}`, "is other meant?", 404},
		{"GET", tenant + "/jobs?state=all&route=othr", "", "must be one of the routes: other; is other meant?", 404},
		{"GET", tenant + "/jobs?state=all&route=default", "", `"route":"default"`, 200},
		{"HEAD", tenant + "/arrivals?route=othr", "", "", 404},
		{"POST", tenant + "/purge", `{"route":"default"}`, `"count":1`, 200},
		{"GET", "/v1/pools/erb", "", "must be one of the pools of the configuration file: erp; is erp meant?", 404},
	} {
		r := b.admin.do(t, tt.method, tt.path, nil, tt.body)
		if r.Code != tt.status || !strings.Contains(r.Body.String(), tt.says) {
			t.Errorf("%s %s %s: %d %s", tt.method, tt.path, tt.body, r.Code, r.Body)
		}
	}
}
