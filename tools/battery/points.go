package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	crashpoints "github.com/7509e464/sluice/internal/crash" // crash is a word of the checker
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/tools/internal/product"
	"github.com/7509e464/sluice/worker/callback"
	"github.com/7509e464/sluice/worker/handoff"
)

// points are the checks of crashes at the very points where they do most.
func points() []check {
	return []check{{
		id: "R6", what: "a process ends itself with SIGKILL at every labelled point of the way of a job",
		target: "every point is reached; lost 0, ≤ 1 duplicate by each crash; every completion handed over once",
		quick:  scale{jobs: 5, kills: 1},
		full:   scale{jobs: 20, kills: 6, window: 40 * time.Second, limit: 6 * time.Minute},
		run:    pointsCrashed,
	}}
}

// stage is one crash to come: the jobs that lead a process to its point.
type stage struct {
	crashpoints.Point
	tenant string // of its jobs alone
	route  string
	jobs   int
	nth    int // the process crashes at the nth passing of the point
}

// asynq routes: Sluice does not follow the tasks of the first; those of the second report their
// ends.
const (
	fireRoute  = "fire"
	fleetRoute = "fleet"
)

// stages are the crashes of one round. Those of the route whose tasks report nothing come last:
// such a task may run twice, which is put down to its tenant, and what a stage leaves behind is
// there for the crashes after it.
func stages(round, jobs int, pick func(n int) int) []stage {
	byRoute := map[string][]stage{}
	for _, p := range crashpoints.Points {
		routes := []string{"default"}
		switch p.Label {
		case "before-enqueue", "after-enqueue":
			routes = []string{fireRoute, fleetRoute}
		}
		for _, route := range routes {
			s := stage{
				Point: p, tenant: fmt.Sprintf("%s-%s-%d", p.Label, route, round), route: route, jobs: jobs,
				nth: 1 + pick(jobs),
			}
			switch p.Label {
			case "at-heartbeat":
				s.jobs, s.nth = 1, 1+pick(2) // one that takes long; see slowAtFirst
			case "after-handed-over":
				s.nth = 1 // all may be handed over at once
			}
			byRoute[route] = append(byRoute[route], s)
		}
	}
	return slices.Concat(byRoute["default"], byRoute[fleetRoute], byRoute[fireRoute])
}

// asksForCallback reports whether the stage is about callbacks.
func (s stage) asksForCallback() bool { return strings.Contains(s.Label, "hand") }

// slowAtFirst makes the first delivery of a heartbeat's job outlast two thirds of its lease twice.
func slowAtFirst(lease time.Duration) behaviour {
	return func(d delivery, nth int) answer {
		if nth == 1 && strings.HasPrefix(d.Tenant, "at-heartbeat-") {
			return answer{status: http.StatusOK, delay: 2 * lease}
		}
		return answer{status: http.StatusOK}
	}
}

// pointsCrashed lets one process after the other crash, each alone in its role and each worker with
// one job at a time, so that a crash can cost one duplicate at the most. At the end of each round a
// worker that does not crash drains what they leave.
func pointsCrashed(ctx context.Context, w *world, f *findings) error {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer receiver.Close()
	s := settings{
		lease: time.Second, callbacks: receiver.URL + "/", defaults: tenant{rate: "50/s"},
		routes: map[string]string{
			fireRoute:  "asynq { queue: fire }",
			fleetRoute: "asynq { queue: fleet, reports: true, report_within: 2s }",
		},
	}
	w.say("building ./cmd/sluice with its crash points")
	w.bin = filepath.Join(w.dir, "sluice")
	if err := product.Build(ctx, w.bin, "-tags", "crashpoints"); err != nil {
		return err
	}
	if err := w.open(ctx, s, "api"); err != nil {
		return err
	}
	stop, err := w.fleet(ctx)
	if err != nil {
		return err
	}
	defer stop()
	w.sink.set(slowAtFirst(s.lease))
	var unreached []string
	crashes, ofWorkers, callbacks := 0, 0, 0
	for round := range w.scale.kills {
		all := stages(round, w.scale.jobs, w.rng.IntN)
		for _, p := range append(w.living("api"), w.living("worker")...) {
			p.kill()
		}
		for _, role := range []string{"api", "worker"} {
			for _, st := range all {
				if st.Role != role {
					continue
				}
				w.say("round %d: %s:%d", round+1, st.Label, st.nth)
				reached, err := w.crashAt(ctx, st, receiver.URL+"/callback")
				if err != nil {
					return err
				}
				if !reached {
					unreached = append(unreached, fmt.Sprintf("%s (passing %d)", st.Label, st.nth))
					continue
				}
				crashes++
				if role == "worker" {
					ofWorkers++
				}
				if st.asksForCallback() {
					callbacks += st.jobs
				}
			}
			if _, err := w.start(ctx, role); err != nil {
				return err
			}
		}
		if err := w.drain(ctx); err != nil {
			return err
		}
	}
	if err := w.outboxesEmpty(ctx); err != nil {
		return err
	}
	inspector := asynq.NewInspectorFromRedisClient(w.store)
	if err := until(ctx, "the fleet has run all tasks", 20*time.Millisecond, func() (bool, error) {
		return idle(inspector, fireRoute, fleetRoute)
	}); err != nil {
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	e.stamps(w, f)
	f.info("points", float64(len(crashpoints.Points)), "")
	f.info("crashes", float64(crashes), "")
	f.none("points not reached", unreached)
	f.atMost("jobs beyond keys", float64(len(e.stored)-e.Keys), 0, "")
	f.atMost("duplicates", float64(len(e.Duplicates)), float64(ofWorkers), "")
	most, whose := mostByOne(e.Duplicates)
	f.atMost("most duplicates by one crash", float64(most), 1, "")
	if most > 1 {
		f.because("%d deliveries of %s came again", most, whose)
	}
	tasks, err := callbackTasks(w.store, inspector)
	if err != nil {
		return err
	}
	f.info("callbacks asked for", float64(callbacks), "")
	f.none("callbacks wrong", wrongCallbacks(tasks, e))
	return nil
}

// crashAt submits the stage's jobs and has a process crash on them; reached is false when it did
// not within ten seconds, and was killed.
func (w *world) crashAt(ctx context.Context, st stage, callbackURL string) (reached bool, err error) {
	l := load{name: st.tenant, jobs: st.jobs, tenants: one(st.tenant), route: st.route, insist: true, clients: 1}
	if st.asksForCallback() {
		l.callback = callbackURL
	}
	if st.Role == "worker" {
		if err := w.submit(ctx, l); err != nil {
			return false, err
		}
	} else {
		wait := w.background(ctx, l)
		defer func() { err = errors.Join(err, w.answer(ctx, wait)) }()
	}
	w.settings.env = []string{
		fmt.Sprintf("SLUICE_CRASH_AT=%s:%d", st.Label, st.nth), "SLUICE_WORKER_CONCURRENCY=1",
	}
	victim, err := w.launch(st.Role)
	w.settings.env = nil
	if victim == nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := victim.wait(limited); err != nil {
		victim.kill()
		return false, ctx.Err()
	}
	status, ok := victim.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGKILL {
		return false, fmt.Errorf("%s ended by itself: %s", victim.name, victim.tail())
	}
	return true, nil
}

// answer lets an api process that does not crash take the rest of a load.
func (w *world) answer(ctx context.Context, wait func() error) error {
	p, err := w.start(ctx, "api")
	if err != nil {
		return err
	}
	defer p.kill()
	return wait()
}

// fleet starts an asynq server in this process that runs the tasks handed off, each as a delivery.
// Those of one queue report their ends.
func (w *world) fleet(ctx context.Context) (stop func(), err error) {
	quiet := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{URL: "unix://" + w.socket(), Logger: quiet})
	if err != nil {
		return nil, err
	}
	q, err := queue.Open(ctx, engine, queue.Options{Reporter: true, Logger: quiet})
	if err != nil {
		_ = engine.Close()
		return nil, err
	}
	server := asynq.NewServerFromRedisClient(engine.Client(), asynq.Config{
		Queues: map[string]int{fireRoute: 1, fleetRoute: 1}, Concurrency: 8,
		TaskCheckInterval: 20 * time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	run := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		route, _ := asynq.GetQueueName(ctx)
		job, _, _ := strings.Cut(id, ":")
		w.ledger.delivery(delivery{
			At: w.ledger.now(), Job: job, Tenant: tenantOf(t.Payload()), Process: "fleet", Route: route,
			Body: string(t.Payload()), Status: http.StatusOK,
		})
		return nil
	})
	if err := server.Start(handoff.Middleware(q.Broker(), handoff.Options{Logger: quiet})(run)); err != nil {
		_, _ = q.Close(), engine.Close()
		return nil, err
	}
	return func() {
		server.Shutdown()
		_, _ = q.Close(), engine.Close()
	}, nil
}

// tenantOf is the tenant of a stage's job, by its payload, because a task does not name it.
func tenantOf(body []byte) string {
	var p struct{ Key string }
	_ = json.Unmarshal(body, &p) // another form belongs to no tenant, which the checker reports
	return p.Key[:max(0, strings.LastIndexByte(p.Key, '-'))]
}

// outboxesEmpty waits until all completions are handed over. What a crashed worker had claimed is
// its own for another half a minute; unless the scale has the time, that ends now.
func (w *world) outboxesEmpty(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, or(w.scale.window, 10*time.Second))
	defer cancel()
	first := true
	return until(limited, "all completions are handed over", 50*time.Millisecond, func() (bool, error) {
		left := 0
		for i := range keyspace.Len() {
			shard := keyspace.Shard(i)
			ids, err := w.store.ZRange(limited, shard.Outbox(), 0, -1).Result()
			if err != nil {
				return false, err
			}
			left += len(ids)
			if !first || w.scale.window > 0 {
				continue
			}
			for _, id := range ids {
				if err := w.store.ZAddXX(limited, shard.Outbox(), redis.Z{Score: 0, Member: id}).Err(); err != nil {
					return false, err
				}
			}
			if err := w.store.Publish(limited, shard.Channel(scripts.WakeChannel), "").Err(); err != nil {
				return false, err
			}
		}
		first = false
		w.say("%d completions are not handed over", left)
		return left == 0, nil
	})
}

// idle reports whether none of the queues has a task that is still to be run; a queue that never
// had one is idle.
func idle(inspector *asynq.Inspector, names ...string) (bool, error) {
	known, err := inspector.Queues()
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			continue
		}
		info, err := inspector.GetQueueInfo(name)
		if err != nil || info.Pending+info.Active+info.Scheduled+info.Retry > 0 {
			return false, err
		}
	}
	return true, nil
}

// callbackTasks is the ids of all tasks for callbacks, sent or not. The lists are read in the order
// in which a task goes through them, so that none is missed on its way.
func callbackTasks(client redis.UniversalClient, inspector *asynq.Inspector) (ids []string, err error) {
	const all = 100_000
	known, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		inspector.ListPendingTasks, inspector.ListActiveTasks, inspector.ListScheduledTasks,
		inspector.ListRetryTasks, inspector.ListCompletedTasks,
		inspector.ListArchivedTasks,
	} {
		for _, queue := range callback.Queues(client) {
			if !slices.Contains(known, queue) {
				continue
			}
			tasks, err := list(queue, asynq.PageSize(all))
			if err != nil {
				return nil, err
			}
			for _, t := range tasks {
				ids = append(ids, t.ID)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// wrongCallbacks lists the jobs without exactly one callback task.
func wrongCallbacks(tasks []string, e ended) (wrong []string) {
	times := map[string]int{} // by job
	for _, id := range tasks {
		job, _, _ := strings.Cut(id, ":")
		times[job]++
	}
	for _, j := range e.jobs {
		want := 0
		if strings.Contains(j.Tenant, "hand") {
			want = 1
		}
		if times[j.ID] != want {
			wrong = append(wrong, fmt.Sprintf("job %s of %s has %d callbacks, not %d", j.ID, j.Tenant,
				times[j.ID], want))
		}
	}
	return wrong
}

// mostByOne is the greatest number of duplicates that one crash has caused. A crash is known by the
// process that had made the delivery before, and for tasks, which are run elsewhere, by the tenant,
// for each crash has its own.
func mostByOne(duplicates []duplicate) (most int, whose string) {
	times := map[string]int{}
	for _, d := range duplicates {
		by := d.before.Process
		if by == "fleet" {
			by = d.before.Tenant
		}
		times[by]++
		if times[by] > most {
			most, whose = times[by], by
		}
	}
	return most, whose
}
