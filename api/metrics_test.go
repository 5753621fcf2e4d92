package api

import (
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
)

func TestMetrics(t *testing.T) {
	b := newBench(t, func(c *Config) { c.StatusTenants = []string{"named before"} })
	b.submit(plainJob, headers{"Sluice-Tenant": "named"})
	b.submit(plainJob, headers{"Sluice-Tenant": "not-named"})
	b.s.SetStatusTenants([]string{"named", "named"})
	b.admin.do(t, "PATCH", "/v1/tenants/named", nil, `{"rates":[{"limit":5,"period_ms":10000}],"paused":true}`)
	b.admin.do(t, "PATCH", "/v1/tenants/full", nil, `{"capacity":0}`)
	b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": "full"}, plainJob)
	b.intake.do(t, "GET", "/v1/jobs/abc", nil, "")
	b.intake.do(t, "GET", "/no/such/path", nil, "")
	b.intake.do(t, "BREW", "/v1/jobs", nil, "")
	text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
	for _, line := range []string{
		`sluice_admissions_total{outcome="admitted"} 2`,
		`sluice_admissions_total{outcome="full"} 1`,
		`sluice_http_requests_total{method="POST",route="/v1/jobs",status="2xx"} 2`,
		`sluice_http_requests_total{method="POST",route="/v1/jobs",status="4xx"} 1`,
		`sluice_http_requests_total{method="GET",route="/v1/jobs/{id}",status="4xx"} 1`,
		`sluice_http_requests_total{method="GET",route="unmatched",status="4xx"} 1`,
		`sluice_http_requests_total{method="other",route="unmatched",status="4xx"} 1`,
		`sluice_http_requests_total{method="PATCH",route="/v1/tenants/{tenant}",status="2xx"} 2`,
		`sluice_http_request_duration_seconds_count{method="POST",route="/v1/jobs"} 3`,
		`sluice_queue_depth 2`,
		`sluice_running 0`,
		`sluice_event_streams 0`,
		`sluice_tenant_depth{tenant="named"} 1`,
		`sluice_tenant_capacity{tenant="named"} 1000`,
		`sluice_tenant_depth{tenant="other"} 1`,
		`sluice_tenant_rate_per_second{tenant="named"} 0.5`,
		`sluice_tenant_effective_rate_per_second{tenant="named"} 0`,
		`sluice_tenant_rate_ratio{tenant="named"} 0`,
		`sluice_oldest_wait_seconds 0`,
		`sluice_dead_letters 0`,
		`sluice_admissions_total{outcome="unavailable"} 0`,
		`sluice_refusals_total{reason="queue-full"} 1`,
		`sluice_refusals_total{reason="unknown-job"} 1`,
		`sluice_refusals_total{reason="draining"} 0`,
		`sluice_tenant_limited_by{by="paused",tenant="named"} 1`,
		`sluice_tenant_limited_by{by="held",tenant="named"} 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if strings.Contains(text, "not-named") {
		t.Error("a tenant that is not named in the configuration became a label")
	}
	if t.Failed() {
		t.Log(text)
	}
}

// The series are those of the values that a tenant's limited_by may have.
func TestLimitsAreThoseOfATenant(t *testing.T) {
	field, _ := reflect.TypeFor[wire.Tenant]().FieldByName("LimitedBy")
	if got := strings.Join(queue.LimitCauses, ","); got != field.Tag.Get("enum") {
		t.Errorf("%s, a tenant has %s", got, field.Tag.Get("enum"))
	}
}

func TestNoMetricsWithoutARegistry(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Registerer, c.Gatherer = nil, nil })
	b.submit(plainJob, nil)
	b.admin.do(t, "GET", "/metrics", nil, "").want(t, http.StatusNotFound, "not-found")
}

func TestMetricsAreRegisteredOnceOrNotAtAll(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := Config{Registerer: registry, Logger: slog.New(slog.DiscardHandler)}
	if _, err := newServer(newFake().ports(), cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := newServer(newFake().ports(), cfg); err == nil {
		t.Error("the second server registered its metrics beside the first's")
	}
}

func TestAccessLogHasIDsOnly(t *testing.T) {
	var text strings.Builder
	b := newBench(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	id := b.submit(`{"type":"secret-type","payload":"secret-payload"}`, headers{
		"Sluice-Tenant": "secret-tenant", "Idempotency-Key": "secret-key",
	}).job.ID
	b.intake.do(t, "GET", "/v1/jobs/"+id, headers{"Sluice-Tenant": "secret-tenant"}, "")
	log := text.String()
	if strings.Contains(log, "secret") || !strings.Contains(log, "job="+id) ||
		!strings.Contains(log, "route=/v1/jobs/{id}") {
		t.Errorf("log: %s", log)
	}
}

// A batch that no store could admit is the client's mistake, not an outage.
func TestMistakesAreNoOutage(t *testing.T) {
	b := pooled(t)
	b.intake.do(t, "POST", "/v1/jobs/batch", headers{"Sluice-Tenant": "a"},
		`{"atomic":true,"jobs":[{"type":"t","payload":1},{"type":"t","route":"other","payload":1}]}`).
		want(t, http.StatusUnprocessableEntity, "invalid-request")
	text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
	if !strings.Contains(text, `sluice_admissions_total{outcome="unavailable"} 0`+"\n") {
		t.Error("it counts as unavailable")
	}
}
