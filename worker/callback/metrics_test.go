package callback

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/scrape"
	"github.com/7509e464/sluice/shaper"
)

// The gauges of the queue are the counts of asynq's own inspector.
func TestBacklogMetrics(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(500, 410)
		registry := prometheus.NewRegistry()
		s := b.service(Config{Registerer: registry})
		gather := func() map[string]float64 {
			b.pass(scrape.Age)
			return gauges(t, registry)
		}
		same := func(want map[string]float64) {
			t.Helper()
			info, err := b.inspector.GetQueueInfo(Queue)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{
				"pending": float64(info.Pending), "retrying": float64(info.Retry),
				"archived": float64(info.Archived),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("asynq (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, gather()); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		}
		if diff := cmp.Diff(map[string]float64{"pending": 0, "retrying": 0, "archived": 0}, gather()); diff != "" {
			t.Errorf("without a queue (-want +got):\n%s", diff)
		}
		b.handOver(s, completion(shaper.Succeeded, 1))
		same(map[string]float64{"pending": 1, "retrying": 0, "archived": 0})
		stop := b.run(s)
		b.pass(2 * time.Second)
		same(map[string]float64{"pending": 0, "retrying": 1, "archived": 0})
		b.pass(20 * time.Second)
		same(map[string]float64{"pending": 0, "retrying": 0, "archived": 1})
		stop()
	})
}

// gauges returns the gauges of the callbacks, by what follows sluice_callbacks_.
func gauges(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		name, is := strings.CutPrefix(f.GetName(), "sluice_callbacks_")
		if is && f.GetType().String() == "GAUGE" {
			got[name] = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return got
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := Config{Receivers: receivers(t), Registerer: registry}
	s := newService(t, cfg)
	if n, err := testutil.GatherAndCount(registry, "sluice_callbacks_total",
		"sluice_callbacks_handed_over_total"); n != 7 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
	if _, err := New(s.cfg); err == nil {
		t.Error("the same metrics are registered twice")
	}
}
