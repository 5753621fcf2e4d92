package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/scrape"
	"github.com/7509e464/sluice/shaper"
)

// liveBeat is how old a worker's last beat may be: workers beat every second, or more often, and are gone after three missed beats.
const liveBeat = 3 * time.Second

// scriptMetrics registers the duration and the errors of script calls, seen from here. setAside counts items that a script has set aside
// as damaged.
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

// poolMetrics are the connection pools of the engine's clients, which are read without asking Redis.
type poolMetrics struct {
	clients                                            map[string]redis.UniversalClient // by the label
	hits, misses, timeouts, stale, connections, isIdle *prometheus.Desc
}

func newPoolMetrics(e *Engine) *poolMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_redis_pool_"+name, help, []string{"client"}, nil)
	}
	return &poolMetrics{
		clients:     map[string]redis.UniversalClient{"intake": e.fast, "worker": e.patient},
		hits:        desc("hits_total", "Commands that found an idle connection in the pool, by the client of the intake and the one of the worker."),
		misses:      desc("misses_total", "Commands that found no idle connection in the pool and had to open one or wait."),
		timeouts:    desc("timeouts_total", "Commands that failed because no connection of the pool came free in time."),
		stale:       desc("stale_connections_total", "Connections that were removed from the pool because they were broken or too old."),
		connections: desc("connections", "Connections in the pool, idle ones included."),
		isIdle:      desc("idle_connections", "Connections in the pool that are idle."),
	}
}

// Describe implements prometheus.Collector.
func (m *poolMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *poolMetrics) Collect(ch chan<- prometheus.Metric) {
	for name, client := range m.clients {
		s := client.PoolStats()
		for desc, n := range map[*prometheus.Desc]uint32{m.hits: s.Hits, m.misses: s.Misses, m.timeouts: s.Timeouts, m.stale: s.StaleConns} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), name)
		}
		ch <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(s.TotalConns), name)
		ch <- prometheus.MustNewConstMetric(m.isIdle, prometheus.GaugeValue, float64(s.IdleConns), name)
	}
}

// storeMetrics are what Redis tells of itself and of all processes together.
type storeMetrics struct {
	*scrape.Metrics

	client redis.UniversalClient
	keys   Keyspace

	up, ping, used, limit, intake, written *prometheus.Desc
	stored                                 *prometheus.Desc
	workers, lapsed, dead, setBack, outbox *prometheus.Desc
}

func newStoreMetrics(e *Engine, keys Keyspace) *storeMetrics {
	m := &storeMetrics{client: e.fast, keys: keys}
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
	if err := m.client.Ping(ctx).Err(); err != nil {
		add(m.up, prometheus.GaugeValue, 0)
		return out
	}
	add(m.up, prometheus.GaugeValue, 1)
	add(m.ping, prometheus.GaugeValue, time.Since(sent).Seconds())
	if s, err := m.sums(ctx); err == nil {
		add(m.workers, prometheus.GaugeValue, float64(s.workers))
		add(m.lapsed, prometheus.CounterValue, float64(s.lapsed))
		add(m.dead, prometheus.CounterValue, float64(s.dead))
		add(m.setBack, prometheus.GaugeValue, s.setBack.Seconds())
		add(m.outbox, prometheus.GaugeValue, float64(s.outbox))
		add(m.stored, prometheus.GaugeValue, float64(s.stored))
	}
	if n, known := m.fullest(ctx); known { // the embedded engine does not know
		add(m.used, prometheus.GaugeValue, n.used)
		add(m.limit, prometheus.GaugeValue, n.limit)
		add(m.intake, prometheus.GaugeValue, n.intake)
		add(m.written, prometheus.GaugeValue, n.aof)
	}
	return out
}

// storeSums are what the shards count, summed, and the live workers.
type storeSums struct {
	lapsed, dead, outbox int64
	stored               int64
	workers              int
	setBack              time.Duration
}

func (m *storeMetrics) sums(ctx context.Context) (s storeSums, err error) {
	clocks, outboxes := make([]*redis.SliceCmd, m.keys.Len()), make([]*redis.IntCmd, m.keys.Len())
	var now *redis.TimeCmd
	var workers *redis.StringCmd
	var beats *redis.ZSliceCmd
	if _, err = m.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		now, workers, beats = p.Time(ctx), p.HGet(ctx, workersClock, lua.ClockNumbers), p.ZRangeWithScores(ctx, workersKey, 0, -1)
		for i := range clocks {
			clocks[i] = p.HMGet(ctx, m.keys.Shard(i).Clock(), lua.ClockNumbers, "lapsed", "dead")
			outboxes[i] = p.ZCard(ctx, m.keys.Shard(i).Outbox())
		}
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) { // no clock of workers yet
		return s, unavailable(err)
	}
	for i, cmd := range clocks {
		var counts struct {
			Numbers string `redis:"n"`
			Lapsed  int64  `redis:"lapsed"`
			Dead    int64  `redis:"dead"`
		}
		if err := cmd.Scan(&counts); err != nil {
			return s, unavailable(err)
		}
		clock, err := lua.ParseClock(counts.Numbers)
		if err != nil {
			return s, unavailable(err)
		}
		s.lapsed += counts.Lapsed
		s.dead += counts.Dead
		s.stored += clock.Stored
		s.setBack = max(s.setBack, time.Duration(clock.Off)*time.Microsecond)
		s.outbox += outboxes[i].Val()
	}
	if err := errors.Join(now.Err(), beats.Err()); err != nil {
		return s, unavailable(err)
	}
	clock, err := lua.ParseClock(workers.Val())
	if err != nil {
		return s, unavailable(err)
	}
	since := shaper.InstantOf(now.Val()) + clock.Off - shaper.Instant(liveBeat.Microseconds())
	for _, beat := range beats.Val() {
		if shaper.Instant(beat.Score) > since {
			s.workers++
		}
	}
	return s, nil
}

// redisNode is what one Redis tells of itself.
type redisNode struct{ used, limit, intake, aof float64 }

// fullest is the Redis, of a cluster the master, that has the least memory left for its size; false where none tells.
func (m *storeMetrics) fullest(ctx context.Context) (fullest redisNode, known bool) {
	var mu sync.Mutex
	ask := func(ctx context.Context, c *redis.Client) error {
		n, err := askNode(ctx, c)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		written := n.aof // of all masters
		if known {
			written = min(n.aof, fullest.aof)
		}
		if !known || n.fullness() > fullest.fullness() {
			fullest, known = n, true
		}
		fullest.aof = written
		return nil
	}
	var err error
	switch c := m.client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, ask)
	case *redis.Client:
		err = ask(ctx, c)
	}
	return fullest, known && err == nil
}

func (n redisNode) fullness() float64 {
	if n.limit > 0 {
		return n.used / n.limit
	}
	return n.used / (1 << 62)
}

// askNode reads the sections one by one, for Redis 6.2 takes no more than one at a time.
func askNode(ctx context.Context, c *redis.Client) (n redisNode, err error) {
	var memory, persistence *redis.StringCmd
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		memory, persistence = p.Info(ctx, "memory"), p.Info(ctx, "persistence")
		return nil
	}); err != nil {
		return n, unavailable(err)
	}
	fields := infoFields(memory.Val() + "\n" + persistence.Val())
	if n.used, err = strconv.ParseFloat(fields["used_memory"], 64); err != nil {
		return n, unavailable(fmt.Errorf("used_memory: %w", err))
	}
	if n.limit, err = strconv.ParseFloat(fields["maxmemory"], 64); err != nil {
		return n, unavailable(fmt.Errorf("maxmemory: %w", err))
	}
	n.intake = float64(memoryOf(fields).intakeMost())
	if fields["aof_enabled"] == "1" && fields["aof_last_write_status"] == "ok" {
		n.aof = 1
	}
	return n, nil
}

// infoFields are the fields of an answer to INFO.
func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}
