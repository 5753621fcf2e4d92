package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// all lists the figures; docs/development/measurements.md says how to read them.
func all() []figure {
	figures := []figure{
		{id: "P1", what: "intake: durable submits over HTTP ÷ chi + asynq.Enqueue with the same decoding, " +
			"rules and headers", unit: "ratio", target: 1.2, measure: intakeRatio(func(r intakeRun) float64 {
			return r.Sluice.PerSecond / r.Asynq.PerSecond
		})},
		{id: "P1-tls", what: "intake: submits over HTTPS on kept connections ÷ over HTTP", unit: "ratio", target: 0.7,
			measure: measureTLS},
		{id: "P1-codec", what: "intake: submits that are encrypted before they are stored ÷ in clear", unit: "ratio",
			target: 0.8, measure: measureCodec},
		{id: "P2", what: "the same ÷ chi doing that work without Redis", unit: "ratio", target: 0.5,
			measure: intakeRatio(func(r intakeRun) float64 { return r.Sluice.PerSecond / r.Chi.PerSecond })},
		{id: "P3", what: "drain of no-op Go handlers, jobs/s ÷ asynq server", unit: "ratio", target: 5,
			measure: drainRatio(func(r drainRun) float64 { return r.One / r.Asynq })},
		{id: "P4-one", what: "drain with 10,000 busy tenants ÷ with one", unit: "ratio", target: 0.5,
			measure: drainRatio(func(r drainRun) float64 { return r.Many / r.One })},
		{id: "P4-asynq", what: "drain with 10,000 busy tenants ÷ asynq with one queue", unit: "ratio",
			target: 2.5, measure: drainRatio(func(r drainRun) float64 { return r.Many / r.Asynq })},
		{id: "P5", what: "Redis commands a second with 100,000 idle tenants and one worker, those inside " +
			"scripts too", unit: "commands/s", target: 50, atMost: true, measure: idleCommands},
		{id: "P8", what: "memory in Redis per queued job beyond a 110-byte payload", unit: "bytes",
			target: 350, atMost: true, measure: memoryPerJob("")},
		{id: "P8-key", what: "the same with an idempotency key", unit: "bytes", target: 580, atMost: true,
			measure: memoryPerJob("key-")},
		{id: "P9-p50", what: "submit → handler start on an idle flow, the median", unit: "ms", target: 2,
			atMost: true, measure: startQuantile(0.5)},
		{id: "P9-p99", what: "the same, the 99th percentile", unit: "ms", target: 10, atMost: true,
			measure: startQuantile(0.99)},
		{id: "P10", what: "a rate change obeyed by the backlog without a burst, from the PATCH's answer; " +
			"the worst of eleven changes counts", unit: "ms", target: 100, atMost: true, worst: true,
			measure: measureRetunes},
		{id: "P11-admit", what: "admissions at depth 1,000,000 ÷ at depth 1,000", unit: "ratio", target: 0.85,
			measure: depthRatio(admitOne)},
		{id: "P11-tick", what: "tick and settle at depth 1,000,000 ÷ at depth 1,000", unit: "ratio",
			target: 0.85, measure: depthRatio(tickOne)},
		{id: "P11-status", what: "status of a job in the middle at depth 1,000,000 ÷ at depth 1,000",
			unit: "ratio", target: 0.85, measure: depthRatio(statusOne)},
		{id: "P12", what: "HTTP push from the queue to its settling, jobs/s ÷ a bare Go client posting to " +
			"the same sink", unit: "ratio", target: 0.4, measure: measurePush},
		{id: "P13", what: "processor time in Redis of a job in a pool of 10,000 tenants ÷ without a pool",
			unit: "ratio", target: 1.3, atMost: true, measure: measurePool},
		{id: "P14", what: "intake: submits over HTTP that wait for a replica on this machine ÷ those that do not",
			unit: "ratio", target: 0.7, measure: measureDurable},
	}
	return slices.Concat(figures, pacingFigures(), latenessFigures(), peerFigures(), forwardFigures(), streamFigures(), scaleFigures(),
		simulatorFigures(), mastersFigures())
}

const (
	route    = "default"
	attempts = 5
)

var payload = []byte(`{"sku":"abcdefgh-1234","qty":1,"note":"` + strings.Repeat("x", 110-41) + `"}`)

// store is a redis-server of its own with a queue on it, whose flows are as fast as policies allow.
type store struct {
	*queue.Queue
	engine *queue.Engine
	server *redisServer
}

// edits change the options of the queue.
func open(ctx context.Context, edits ...func(*queue.Options)) (*store, error) {
	server, err := newRedis(ctx)
	if err != nil {
		return nil, err
	}
	s, err := openOn(ctx, server, edits)
	if err != nil {
		server.close()
	}
	return s, err
}

func openOn(ctx context.Context, server *redisServer, edits []func(*queue.Options)) (*store, error) {
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{URL: server.url()})
	if err != nil {
		return nil, err
	}
	fast, err := shaper.RateOf(shaper.MaxPerSecond, 1000)
	if err != nil {
		return nil, err
	}
	policy := shaper.DefaultPolicy()
	policy.Rate, policy.Capacity, policy.Concurrency = fast, 10_000_000, 0
	o := queue.Options{Defaults: policy}
	for _, edit := range edits {
		edit(&o)
	}
	q, err := queue.Open(ctx, engine, o)
	if err != nil {
		return nil, err
	}
	return &store{Queue: q, engine: engine, server: server}, nil
}

func (s *store) close() {
	defer s.server.close()
	for _, err := range []error{s.Queue.Close(), s.engine.Close()} {
		if err != nil {
			slog.Warn("clean up", "error", err)
		}
	}
}

func submission(tenant, key string) queue.Submission {
	return queue.Submission{
		Tenant: tenant, Route: route, Type: "order.create", Payload: payload, MaxAttempts: attempts,
		IdempotencyKey: key,
	}
}

// fill admits n jobs of the tenant, each with an idempotency key when a prefix is given.
func (s *store) fill(ctx context.Context, b *bench, tenant, prefix string, n int) error {
	const most = 1000
	batch := make([]queue.Submission, 0, most)
	for i := 0; i < n; i += len(batch) {
		batch = batch[:0]
		for k := i; k < min(n, i+most); k++ {
			key := ""
			if prefix != "" {
				key = prefix + strconv.Itoa(k)
			}
			batch = append(batch, submission(tenant, key))
		}
		decisions, err := s.SubmitBatch(ctx, batch, true)
		if err != nil {
			return err
		}
		if decisions[0].Outcome != shaper.Admitted {
			return fmt.Errorf("a job was not admitted: %s", decisions[0].Outcome)
		}
		if i > 0 && i%100_000 == 0 { // progress for the reader
			b.progress("%s: %d of %d jobs admitted", tenant, i, n)
		}
	}
	return nil
}

func (s *store) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.engine.Client().Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	return infoFields(text), nil
}

// infoFields are the fields of an answer to INFO.
func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func (s *store) memory(ctx context.Context) (float64, error) {
	fields, err := s.info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	total, err := strconv.ParseFloat(fields["used_memory"], 64)
	// Of connections and of the file: they come and go.
	for _, buffers := range []string{"mem_clients_normal", "mem_aof_buffer"} {
		if n, err := strconv.ParseFloat(fields[buffers], 64); err == nil {
			total -= n
		}
	}
	return total, err
}

// memoryPerJob is the memory of a queued job in Redis, with its share of the tables, without its
// payload.
func memoryPerJob(prefix string) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		const n = 200_000
		s, err := open(ctx)
		if err != nil {
			return nil, err
		}
		defer s.close()
		before, err := s.memory(ctx)
		if err != nil {
			return nil, err
		}
		if err := s.fill(ctx, b, "memory", prefix, n); err != nil {
			return nil, err
		}
		after, err := s.memory(ctx)
		return []float64{(after-before)/n - float64(len(payload))}, err
	}
}

// commands counts all commands that Redis has executed, including those of scripts.
func (s *store) commands(ctx context.Context) (total float64, err error) {
	fields, err := s.info(ctx, "commandstats")
	if err != nil {
		return 0, err
	}
	for _, v := range fields {
		calls, _, _ := strings.Cut(strings.TrimPrefix(v, "calls="), ",")
		n, err := strconv.ParseFloat(calls, 64)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// idleCommands lets one worker finish a job of each of 100,000 tenants and counts commands while
// all tenants are idle.
func idleCommands(ctx context.Context, b *bench) ([]float64, error) {
	const tenants, window = 100_000, 30 * time.Second // twice the time in which a worker polls each shard once
	s, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for i := range tenants {
		if _, err := s.Submit(ctx, submission("idle-"+strconv.Itoa(i), "")); err != nil {
			return nil, err
		}
		if i%20_000 == 0 {
			b.progress("P5: %d of %d tenants", i, tenants)
		}
	}
	sink, err := newSink()
	if err != nil {
		return nil, err
	}
	defer sink.close()
	w, err := worker.New(s.Queue, worker.Config{
		Routes: map[string]worker.Route{route: {URL: sink.url}}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	defer func() { stop(); <-ended }()
	if err := s.drained(ctx, b); err != nil {
		return nil, err
	}
	before, err := s.commands(ctx)
	if err != nil {
		return nil, err
	}
	b.progress("P5: counting for %v", window)
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := s.commands(ctx)
	return []float64{(after - before) / window.Seconds()}, err
}

// drained waits until no job waits or runs.
func (s *store) drained(ctx context.Context, b *bench) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		t, err := s.Totals(ctx)
		if err != nil || t.Depth+t.Running == 0 {
			return err
		}
		b.progress("%d jobs wait, %d run", t.Depth, t.Running)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// work is one operation on a tenant's flow; middle is the id of a job far from both ends of its
// queue.
type work func(ctx context.Context, s *store, c *queue.Consumer, tenant, middle string) error

func admitOne(ctx context.Context, s *store, _ *queue.Consumer, tenant, _ string) error {
	_, err := s.Submit(ctx, submission(tenant, ""))
	return err
}

func statusOne(ctx context.Context, s *store, _ *queue.Consumer, tenant, middle string) error {
	_, err := s.Job(ctx, tenant, middle)
	return err
}

// tickOne leases up to 20 jobs and settles them as released, so that the depth stays.
func tickOne(ctx context.Context, s *store, c *queue.Consumer, _, _ string) error {
	t, err := c.Tick(ctx, queue.TickOptions{
		Max: 20, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second,
	})
	if err != nil || len(t.Leases) == 0 {
		return err
	}
	batch := make([]queue.Settlement, len(t.Leases))
	for i, l := range t.Leases {
		batch[i] = queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Release, MaxAttempts: l.MaxAttempts}
	}
	_, err = s.Broker().Settle(ctx, batch)
	return err
}

// depthRatio compares the speed of an operation on a deep queue with that on a shallow one, in
// turns.
func depthRatio(op work) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		const shallow, deep, ops = 1000, 1_000_000, 1000
		s, err := open(ctx)
		if err != nil {
			return nil, err
		}
		defer s.close()
		type side struct {
			tenant, middle string
			consumer       *queue.Consumer
		}
		sides := []side{{tenant: "shallow"}, {tenant: "deep"}}
		for i, n := range []int{shallow, deep} {
			half := n / 2
			if err := s.fill(ctx, b, sides[i].tenant, "", half); err != nil {
				return nil, err
			}
			v, err := s.Submit(ctx, submission(sides[i].tenant, ""))
			if err != nil {
				return nil, err
			}
			if err := s.fill(ctx, b, sides[i].tenant, "", n-half-1); err != nil {
				return nil, err
			}
			sides[i].middle, sides[i].consumer = v.Job.ID, s.Broker().Consumer("bench", shardOf(v.Job.ID))
		}
		var samples []float64
		for n := range b.runs + 1 {
			var took [2]time.Duration
			for i, side := range sides {
				start := time.Now()
				for range ops {
					if err := op(ctx, s, side.consumer, side.tenant, side.middle); err != nil {
						return nil, err
					}
				}
				took[i] = time.Since(start)
			}
			b.progress("run %d: %v an operation at depth %d, %v at %d", n, took[0]/ops, shallow, took[1]/ops, deep)
			if n > 0 { // the first run warms up
				samples = append(samples, float64(took[0])/float64(took[1]))
			}
		}
		return samples, nil
	}
}

// shardOf reads the shard from the end of an id: two digits of base 32.
func shardOf(id string) int {
	n, err := strconv.ParseInt(id[len(id)-2:], 32, 32)
	if err != nil {
		panic("a job id ends in its shard: " + err.Error())
	}
	return int(n)
}
