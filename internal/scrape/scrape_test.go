package scrape_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/scrape"
)

// TestMetrics: scrapes within a second get the same figures. A scrape waits half a second for a
// store that does not answer; then its metrics are absent.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, away := 0, false
		var depth *prometheus.Desc
		m := scrape.New(func(ctx context.Context) []prometheus.Metric {
			reads++
			if away {
				<-ctx.Done()
				return nil
			}
			return []prometheus.Metric{prometheus.MustNewConstMetric(depth, prometheus.GaugeValue,
				float64(reads), "x")}
		})
		depth = m.Desc("depth", "Jobs.", "of")
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(m)
		for _, step := range []struct {
			wait  time.Duration
			away  bool
			reads int
			found int
			took  time.Duration
		}{
			{0, false, 1, 1, 0}, {scrape.Age - 1, false, 1, 1, 0}, {1, false, 2, 1, 0},
			{scrape.Age, true, 3, 0, 500 * time.Millisecond}, {scrape.Age - 1, false, 3, 0, 0}, {1, false, 4, 1, 0},
		} {
			<-time.After(step.wait)
			away = step.away
			start := time.Now()
			found, err := testutil.GatherAndCount(registry)
			if err != nil || found != step.found || reads != step.reads || time.Since(start) != step.took {
				t.Errorf("%+v: %d metrics after %d reads in %v: %v", step, found, reads, time.Since(start), err)
			}
		}
	})
}
