// Package scrape makes metrics of what a store reports. It reads the store at most once a second,
// and for at most half a second. A figure that the store does not report is absent, not 0.
package scrape

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	Age      = time.Second            // the maximum age of the metrics
	patience = 500 * time.Millisecond // with the store
)

// Metrics is a prometheus.Collector that caches what it reads for the time Age. Make it with New.
type Metrics struct {
	read  func(ctx context.Context) []prometheus.Metric
	descs []*prometheus.Desc

	mu    sync.Mutex
	at    time.Time
	cache []prometheus.Metric
}

// New returns metrics that are read by read, which is never called concurrently.
func New(read func(ctx context.Context) []prometheus.Metric) *Metrics { return &Metrics{read: read} }

// Desc declares one of the metrics and returns its descriptor; the name gets the prefix "sluice_".
// Call it before the first scrape.
func (m *Metrics) Desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("sluice_"+name, help, labels, nil)
	m.descs = append(m.descs, d)
	return d
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() || time.Since(m.at) >= Age {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		m.cache = m.read(ctx)
		cancel()
		m.at = time.Now()
	}
	for _, metric := range m.cache {
		ch <- metric
	}
}
