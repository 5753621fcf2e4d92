package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/engine"
	"github.com/7509e464/sluice/internal/scrape"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// registerMetrics registers the metrics of scripts, connections and the store. setAside counts
// items that a script has set aside as damaged, keyMissing jobs that could not be decrypted.
func registerMetrics(
	r prometheus.Registerer, e *engine.Engine, s *store.Store,
) (setAside func(script string, items int), keyMissing func(), err error) {
	if r == nil {
		return func(string, int) {}, func() {}, nil
	}
	missing := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_codec_key_missing_total",
		Help: "Leases of jobs that were given back without an attempt, because this process has no key to " +
			"decrypt the job: see codec.key_file and codec.command.",
	})
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_script_duration_seconds",
		Help:    "Time from sending a script to its answer; calls sent together count the whole exchange.",
		Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1},
	}, []string{"script"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_script_errors_total",
		Help: "Script calls that failed, by fault: transport (no answer), state (Redis cannot serve now), " +
			"script (stored data is damaged; items that a call set aside count, too).",
	}, []string{"script", "fault"})
	restarts := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "sluice_redis_restarts_total",
		Help: "Restarts of the private redis-server of this process after it ended by itself; " +
			"0 with a Redis of yours.",
	}, func() float64 {
		if e.Server == nil {
			return 0
		}
		return float64(e.Server.Restarts.Load())
	})
	for _, c := range []prometheus.Collector{h, failed, restarts, missing, poolMetrics(e), storeMetrics(e, s)} {
		if err := r.Register(c); err != nil {
			return nil, nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	observers := map[string]prometheus.Observer{}
	for _, s := range scripts.Commands.All() {
		observers[s.Name] = h.WithLabelValues(s.Name)
		for _, fault := range []Fault{FaultTransport, FaultState, FaultScript} {
			failed.WithLabelValues(s.Name, string(fault)) // 0 from the start: an alert sees the first one
		}
	}
	s.Observe = func(script string, took time.Duration, err error) {
		observers[script].Observe(took.Seconds())
		if fault := FaultOf(err); fault != "" {
			failed.WithLabelValues(script, string(fault)).Inc()
		}
	}
	return func(script string, items int) {
		failed.WithLabelValues(script, string(FaultScript)).Add(float64(items))
	}, missing.Inc, nil
}

// poolMetrics describes the connection pools of the engine's clients. Reading costs no call.
func poolMetrics(e *engine.Engine) *scrape.Metrics {
	var stats []func(*redis.PoolStats, string) prometheus.Metric
	m := scrape.New(func(context.Context) (out []prometheus.Metric) {
		clients := map[string]redis.UniversalClient{"intake": e.Fast, "reads": e.Reads, "worker": e.Patient}
		if e.Durability.On() {
			clients["durable"] = e.Durable
		}
		for label, client := range clients {
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
		"Commands that found an idle connection in the pool, by the client of the intake, the one of "+
			"reads, the one of the worker, and with redis.durability the one whose changes wait for replicas.")
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

// storeFigures are the metrics of Redis and of all processes together.
var storeFigures = []struct {
	kind       prometheus.ValueType
	name, help string
}{
	{prometheus.GaugeValue, "redis_up", "1 if Redis answered a PING within half a second, 0 if not."},
	{prometheus.GaugeValue, "redis_ping_seconds", "Time until Redis answered a PING."},
	{prometheus.GaugeValue, "redis_memory_used_bytes",
		"Memory that Redis uses, of a cluster that of its fullest master."},
	{prometheus.GaugeValue, "redis_memory_max_bytes",
		"Memory that Redis may use, of a cluster that of its fullest master; 0 is no bound."},
	{prometheus.GaugeValue, "redis_memory_intake_bytes",
		"Memory that Redis may use for jobs to be taken in, of a cluster that of its fullest master; " +
			"0 is no bound."},
	{prometheus.GaugeValue, "stored_bytes",
		"Bytes of the jobs that are waiting, delivered or dead, with what Redis keeps beside them."},
	{prometheus.GaugeValue, "redis_aof_ok",
		"1 if the last write to Redis's append-only file succeeded, 0 if not or if there is no such file."},
	{prometheus.GaugeValue, "redis_replicas",
		"Replicas in sync of the master, of a cluster those of the master that has the fewest."},
	{prometheus.GaugeValue, "redis_replicas_needed", "redis.durability.replicas: replicas that a change waits for; 0 is none."},
	{prometheus.GaugeValue, "workers", "Workers with a heartbeat in the last three seconds, in all processes."},
	{prometheus.CounterValue, "leases_expired_total",
		"Leases that ran out and were taken back, in all processes since the store is there."},
	{prometheus.CounterValue, "jobs_dead_total",
		"Jobs that became dead letters, in all processes since the store is there."},
	{prometheus.GaugeValue, "redis_clock_set_back_seconds",
		"By how much Redis's clock has been set back, all steps together, as the shard knows it that saw " +
			"most."},
	{prometheus.GaugeValue, "callbacks_outbox",
		"Completions that wait to be handed over to the queue of callbacks."},
}

func storeMetrics(e *engine.Engine, s *store.Store) *scrape.Metrics {
	descs := make([]*prometheus.Desc, len(storeFigures))
	m := scrape.New(func(ctx context.Context) (out []prometheus.Metric) {
		values := readFigures(ctx, e, s)
		for i, f := range storeFigures {
			if v, known := values[f.name]; known {
				out = append(out, prometheus.MustNewConstMetric(descs[i], f.kind, v))
			}
		}
		return out
	})
	for i, f := range storeFigures {
		descs[i] = m.Desc(f.name, f.help)
	}
	return m
}

// readFigures returns storeFigures by name, without those that cannot be read.
func readFigures(ctx context.Context, e *engine.Engine, s *store.Store) map[string]float64 {
	sent := time.Now()
	if err := s.Fast.Ping(ctx).Err(); err != nil {
		return map[string]float64{"redis_up": 0}
	}
	values := map[string]float64{"redis_up": 1, "redis_ping_seconds": time.Since(sent).Seconds()}
	if e.Version != "" {
		values["redis_replicas_needed"] = float64(e.Durability.Replicas)
		if n, err := e.Replicas(ctx); err == nil {
			values["redis_replicas"] = float64(n)
		}
	}
	if workers, err := s.LiveWorkers(ctx); err == nil {
		values["workers"] = float64(len(workers))
	}
	if shards, err := readShards(ctx, s, store.ShardKeys.Outbox); err == nil {
		values["leases_expired_total"] = float64(shards.lapsed)
		values["jobs_dead_total"] = float64(shards.dead)
		values["redis_clock_set_back_seconds"] = (time.Duration(shards.off) * time.Microsecond).Seconds()
		values["callbacks_outbox"] = float64(shards.size)
		values["stored_bytes"] = float64(shards.Stored)
	}
	if nodes, err := e.Memory(ctx); err == nil && len(nodes) > 0 {
		fullest := slices.MaxFunc(nodes, func(a, b engine.Memory) int {
			return cmp.Compare(a.Fullness(), b.Fullness())
		})
		values["redis_memory_used_bytes"] = float64(fullest.Used)
		values["redis_memory_max_bytes"] = float64(fullest.Max)
		values["redis_memory_intake_bytes"] = float64(fullest.IntakeMax())
		values["redis_aof_ok"] = 1
		if slices.ContainsFunc(nodes, func(n engine.Memory) bool { return !n.Written }) {
			values["redis_aof_ok"] = 0
		}
	}
	return values
}
