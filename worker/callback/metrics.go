package callback

import "github.com/prometheus/client_golang/prometheus"

// metrics are the service's own. No label grows with the number of tenants, jobs or receivers.
type metrics struct {
	handedOver                  prometheus.Counter
	delivered, failed, archived prometheus.Counter
}

// newMetrics makes the metrics and registers them, unless registerer is nil.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	handedOver := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_callbacks_handed_over_total", Help: "Callbacks that became tasks of asynq's.",
	})
	attempts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_callbacks_total", Help: "Attempts at callbacks by outcome: delivered, failed (tried again later) or archived (given up).",
	}, []string{"outcome"})
	if registerer != nil {
		for _, c := range []prometheus.Collector{handedOver, attempts} {
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
	}, nil
}
