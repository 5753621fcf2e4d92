package callback

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scrape"
)

// Outcomes of attempts, as the metrics count them.
const (
	delivered = "delivered"
	failed    = "failed"
	skipped   = "skipped"
	archived  = "archived"
	deleted   = "deleted"
	postponed = "postponed"
)

// metrics are the service's own. No label grows with the number of tenants, jobs or receivers.
type metrics struct {
	handedOver prometheus.Counter
	attempts   *prometheus.CounterVec // by outcome
}

// newMetrics makes the metrics and registers them, unless registerer is nil.
func newMetrics(
	registerer prometheus.Registerer, client redis.UniversalClient, s *slots,
) (*metrics, error) {
	registry := prometheus.NewRegistry()
	f := promauto.With(registry)
	m := &metrics{
		handedOver: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_callbacks_handed_over_total", Help: "Callbacks that were enqueued as asynq tasks.",
		}),
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_callbacks_total",
			Help: "Attempts at callbacks by outcome: delivered, failed (tried again later), " +
				"skipped (failed without a request: the receiver's breaker is open), archived (given up), " +
				"deleted (given up, and the tenant has its part of the archive) or postponed " +
				"(no attempt: the receiver or the tenant has no slot left).",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{delivered, failed, skipped, archived, deleted, postponed} {
		m.attempts.WithLabelValues(outcome) // shown from the start
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_callback_breakers_open",
		Help: "Receivers of callbacks whose circuit breaker is open in this process, because they give no answer.",
	}, s.open)
	registry.MustRegister(newBacklog(client))
	if registerer == nil {
		return m, nil
	}
	return m, registerer.Register(registry)
}

// newBacklog makes the metrics of the callbacks that wait, of all processes. It reads asynq's keys:
// asynq's inspector has no context and may wait many seconds for an unreachable Redis. A test
// compares the two.
func newBacklog(client redis.UniversalClient) *scrape.Metrics {
	var descs [3]*prometheus.Desc
	m := scrape.New(func(ctx context.Context) []prometheus.Metric {
		var counts [len(descs)][]*redis.IntCmd // by metric and queue
		if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, q := range queuesOf(client) {
				counts[0] = append(counts[0], p.LLen(ctx, q.key("pending")))
				counts[1] = append(counts[1], p.ZCard(ctx, q.key("retry")))
				counts[2] = append(counts[2], p.ZCard(ctx, q.key("archived")))
			}
			return nil
		}); err != nil {
			return nil
		}
		var metrics []prometheus.Metric
		for i, d := range descs {
			sum := int64(0)
			for _, n := range counts[i] {
				sum += n.Val()
			}
			metrics = append(metrics, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(sum)))
		}
		return metrics
	})
	descs[0] = m.Desc("callbacks_pending",
		"Callbacks that wait for their next attempt to begin at once, in all processes.")
	descs[1] = m.Desc("callbacks_retrying",
		"Callbacks whose last attempt failed and which are tried again later, in all processes.")
	descs[2] = m.Desc("callbacks_archived", "Callbacks that were given up and are kept in asynq's archive.")
	return m
}
