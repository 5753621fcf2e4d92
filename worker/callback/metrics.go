package callback

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue/scrape"
)

// metrics are the service's own. No label grows with the number of tenants, jobs or receivers.
type metrics struct {
	handedOver                  prometheus.Counter
	delivered, failed, archived prometheus.Counter
	skipped, postponed          prometheus.Counter
}

// newMetrics makes the metrics and registers them, unless registerer is nil.
func newMetrics(registerer prometheus.Registerer, client redis.UniversalClient, limits *slots) (*metrics, error) {
	handedOver := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_callbacks_handed_over_total", Help: "Callbacks that became tasks of asynq's.",
	})
	attempts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_callbacks_total", Help: "Attempts at callbacks by outcome: delivered, failed (tried again later), skipped (failed without a request: the receiver's breaker is open), archived (given up) or postponed (no attempt: the receiver or the tenant has as many under way as it may).",
	}, []string{"outcome"})
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_callback_breakers_open", Help: "Receivers of callbacks that this process sends hardly anything, because they give no answer.",
	}, limits.open)
	if registerer != nil {
		for _, c := range []prometheus.Collector{handedOver, attempts, open, newBacklog(client)} {
			if err := registerer.Register(c); err != nil {
				return nil, err
			}
		}
	}
	return &metrics{
		handedOver: handedOver,
		delivered:  attempts.WithLabelValues("delivered"),
		failed:     attempts.WithLabelValues("failed"),
		archived:   attempts.WithLabelValues("archived"),
		skipped:    attempts.WithLabelValues("skipped"),
		postponed:  attempts.WithLabelValues("postponed"),
	}, nil
}

// asynqPrefix is how asynq's keys of the queue begin. Its inspector tells the same, but has no context and may wait for a Redis that is
// away for many seconds; a test holds the two together.
const asynqPrefix = "asynq:{" + Queue + "}:"

// backlog is what waits in the queue of callbacks, of all processes.
type backlog struct {
	*scrape.Metrics

	client                      redis.UniversalClient
	pending, retrying, archived *prometheus.Desc
}

func newBacklog(client redis.UniversalClient) *backlog {
	b := &backlog{client: client}
	b.Metrics = scrape.New(b.fetch)
	b.pending = b.Desc("callbacks_pending", "Callbacks that wait for their next attempt to begin at once, in all processes.")
	b.retrying = b.Desc("callbacks_retrying", "Callbacks whose last attempt failed and which are tried again later, in all processes.")
	b.archived = b.Desc("callbacks_archived", "Callbacks that were given up and are kept in asynq's archive.")
	return b
}

func (b *backlog) fetch(ctx context.Context) []prometheus.Metric {
	var pending, retrying, archived *redis.IntCmd
	if _, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		pending, retrying, archived = p.LLen(ctx, asynqPrefix+"pending"), p.ZCard(ctx, asynqPrefix+"retry"), p.ZCard(ctx, asynqPrefix+"archived")
		return nil
	}); err != nil {
		return nil
	}
	gauge := func(d *prometheus.Desc, n *redis.IntCmd) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n.Val()))
	}
	return []prometheus.Metric{gauge(b.pending, pending), gauge(b.retrying, retrying), gauge(b.archived, archived)}
}
