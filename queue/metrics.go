package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/scrape"
)

// scriptMetrics registers the duration and the errors of script calls. setAside counts items that a
// script has set aside as damaged.
func scriptMetrics(r prometheus.Registerer) (observe lua.Observer, setAside func(script string, items int), err error) {
	if r == nil {
		return nil, func(string, int) {}, nil
	}
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_script_duration_seconds",
		Help:    "Time from sending a script to its answer; calls sent together count the whole exchange.",
		Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1},
	}, []string{"script"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_script_errors_total",
		Help: "Script calls that failed, by fault: transport (no answer), state (Redis cannot serve now), script (stored data is damaged; items that a call set aside count, too).",
	}, []string{"script", "fault"})
	for _, c := range []prometheus.Collector{h, failed} {
		if err := r.Register(c); err != nil {
			return nil, nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	observers := map[string]prometheus.Observer{}
	for _, s := range lua.Commands.All() {
		observers[s.Name] = h.WithLabelValues(s.Name)
		for _, fault := range []Fault{FaultTransport, FaultState, FaultScript} {
			failed.WithLabelValues(s.Name, string(fault)) // 0 from the start: an alert sees the first one
		}
	}
	observe = func(script string, took time.Duration, err error) {
		observers[script].Observe(took.Seconds())
		if fault := FaultOf(err); fault != "" {
			failed.WithLabelValues(script, string(fault)).Inc()
		}
	}
	setAside = func(script string, items int) {
		failed.WithLabelValues(script, string(FaultScript)).Add(float64(items))
	}
	return observe, setAside, nil
}

// restartsOf counts the restarts of the private redis-server.
func restartsOf(e *Engine) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sluice_redis_restarts_total",
		Help: "Restarts of the private redis-server of this process after it ended by itself; 0 with a Redis of yours.",
	}, func() float64 {
		if e.child == nil {
			return 0
		}
		return float64(e.child.restarts.Load())
	})
}

// newPoolMetrics describes the connection pools of the engine's clients. Reading costs no call.
func newPoolMetrics(e *Engine) *scrape.Metrics {
	var stats []func(*redis.PoolStats, string) prometheus.Metric
	m := scrape.New(func(context.Context) (out []prometheus.Metric) {
		for label, client := range map[string]redis.UniversalClient{"intake": e.fast, "worker": e.patient} {
			pool := client.PoolStats()
			for _, stat := range stats {
				out = append(out, stat(pool, label))
			}
		}
		return out
	})
	add := func(kind prometheus.ValueType, of func(*redis.PoolStats) uint32, name, help string) {
		desc := m.Desc("redis_pool_"+name, help, "client")
		stats = append(stats, func(pool *redis.PoolStats, label string) prometheus.Metric {
			return prometheus.MustNewConstMetric(desc, kind, float64(of(pool)), label)
		})
	}
	count, gauge := prometheus.CounterValue, prometheus.GaugeValue
	add(count, func(s *redis.PoolStats) uint32 { return s.Hits }, "hits_total",
		"Commands that found an idle connection in the pool, by the client of the intake "+
			"and the one of the worker.")
	add(count, func(s *redis.PoolStats) uint32 { return s.Misses }, "misses_total",
		"Commands that found no idle connection in the pool and had to open one or wait.")
	add(count, func(s *redis.PoolStats) uint32 { return s.Timeouts }, "timeouts_total",
		"Commands that failed because no connection of the pool came free in time.")
	add(count, func(s *redis.PoolStats) uint32 { return s.StaleConns }, "stale_connections_total",
		"Connections that were removed from the pool because they were broken or too old.")
	add(gauge, func(s *redis.PoolStats) uint32 { return s.TotalConns }, "connections",
		"Connections in the pool, idle ones included.")
	add(gauge, func(s *redis.PoolStats) uint32 { return s.IdleConns }, "idle_connections",
		"Connections in the pool that are idle.")
	return m
}

// storeMetrics are figures of Redis and of all processes together.
type storeMetrics struct {
	*scrape.Metrics

	engine *Engine
	keys   Keyspace

	up, ping, used, limit, intake, written *prometheus.Desc
	stored                                 *prometheus.Desc
	workers, lapsed, dead, setBack, outbox *prometheus.Desc
}

func newStoreMetrics(e *Engine, keys Keyspace) *storeMetrics {
	m := &storeMetrics{engine: e, keys: keys}
	m.Metrics = scrape.New(m.fetch)
	m.up = m.Desc("redis_up", "1 if Redis answered a PING within half a second, 0 if not.")
	m.ping = m.Desc("redis_ping_seconds", "Time until Redis answered a PING.")
	m.used = m.Desc("redis_memory_used_bytes", "Memory that Redis uses, of a cluster that of its fullest master.")
	m.limit = m.Desc("redis_memory_max_bytes", "Memory that Redis may use, of a cluster that of its fullest master; 0 is no bound.")
	m.intake = m.Desc("redis_memory_intake_bytes", "Memory that Redis may use for jobs to be taken in, of a cluster that of its fullest master; 0 is no bound.")
	m.stored = m.Desc("stored_bytes", "Bytes of the jobs that are waiting, delivered or dead, with what Redis keeps beside them.")
	m.written = m.Desc("redis_aof_ok", "1 if the last write to Redis's append-only file succeeded, 0 if not or if there is no such file.")
	m.workers = m.Desc("workers", "Workers that beat within the last three seconds, in all processes.")
	m.lapsed = m.Desc("leases_expired_total", "Leases that ran out and were taken back, in all processes since the store is there.")
	m.dead = m.Desc("jobs_dead_total", "Jobs that became dead letters, in all processes since the store is there.")
	m.setBack = m.Desc("redis_clock_set_back_seconds", "By how much Redis's clock has been set back, all steps together, as the shard knows it that saw most.")
	m.outbox = m.Desc("callbacks_outbox", "Completions that wait to be handed over to the queue of callbacks.")
	return m
}

func (m *storeMetrics) fetch(ctx context.Context) (out []prometheus.Metric) {
	add := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
		out = append(out, prometheus.MustNewConstMetric(d, kind, v))
	}
	sent := time.Now()
	if err := m.engine.fast.Ping(ctx).Err(); err != nil {
		add(m.up, prometheus.GaugeValue, 0)
		return out
	}
	add(m.up, prometheus.GaugeValue, 1)
	add(m.ping, prometheus.GaugeValue, time.Since(sent).Seconds())
	if workers, err := liveWorkers(ctx, m.engine.fast); err == nil {
		add(m.workers, prometheus.GaugeValue, float64(len(workers)))
	}
	if shards, err := readShards(ctx, m.engine.fast, m.keys, ShardKeys.Outbox); err == nil {
		add(m.lapsed, prometheus.CounterValue, float64(shards.lapsed))
		add(m.dead, prometheus.CounterValue, float64(shards.dead))
		add(m.setBack, prometheus.GaugeValue, (time.Duration(shards.off) * time.Microsecond).Seconds())
		add(m.outbox, prometheus.GaugeValue, float64(shards.size))
		add(m.stored, prometheus.GaugeValue, float64(shards.Stored))
	}
	if nodes, err := m.engine.memory(ctx); err == nil && len(nodes) > 0 { // the embedded engine reports none
		fullest, written := slices.MaxFunc(nodes, func(a, b nodeMemory) int { return cmp.Compare(a.fullness(), b.fullness()) }), 1.0
		if slices.ContainsFunc(nodes, func(n nodeMemory) bool { return !n.written }) {
			written = 0
		}
		add(m.used, prometheus.GaugeValue, float64(fullest.used))
		add(m.limit, prometheus.GaugeValue, float64(fullest.most))
		add(m.intake, prometheus.GaugeValue, float64(fullest.intakeMost()))
		add(m.written, prometheus.GaugeValue, written)
	}
	return out
}
