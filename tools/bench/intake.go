package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const intakeConnections = 64

// intakeSide is the result of one intake: requests a second, and the processor time of each request
// in the server, in Redis and in the client.
type intakeSide struct {
	PerSecond float64 `json:"per_second"`
	Server    float64 `json:"server_us"`
	Redis     float64 `json:"redis_us"`
	Client    float64 `json:"client_us"`
}

func (s intakeSide) String() string {
	return fmt.Sprintf("%7.0f/s %4.0f+%.0f+%.0f µs", s.PerSecond, s.Server, s.Redis, s.Client)
}

// intakeRun holds the results of the intakes, one after the other. Floor is the least work that
// stores jobs in Redis.
type intakeRun struct {
	Sluice intakeSide `json:"sluice"`
	Asynq  intakeSide `json:"chi_asynq"`
	Floor  intakeSide `json:"floor"`
	Chi    intakeSide `json:"chi"`
}

var intakeBody = []byte(`{"type":"order.create","payload":` + string(payload) + `}`)

// measureIntake loads Sluice's intake and its peers in turns, each by the same client on the same
// machine, alone.
func measureIntake(ctx context.Context, b *bench) ([]intakeRun, error) {
	ours, err := startIntake(ctx, plainRedis, "")
	if err != nil {
		return nil, err
	}
	defer ours.close()
	store, err := newRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer store.close()
	withAsynq, err := startPeer(ctx, "chi-asynq", store.socket)
	if err != nil {
		return nil, err
	}
	defer withAsynq.close()
	beneath, err := newRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer beneath.close()
	floor, err := startPeer(ctx, "chi-floor", beneath.socket)
	if err != nil {
		return nil, err
	}
	defer floor.close()
	bare, err := startPeer(ctx, "chi", "")
	if err != nil {
		return nil, err
	}
	defer bare.close()
	var runs []intakeRun
	for n := range b.runs {
		var r intakeRun
		for _, side := range []struct {
			name    string
			addr    string
			result  *intakeSide
			server  int
			store   *redisServer
			profile string // address of its profiles, empty for none
		}{
			{"sluice", ours.addr, &r.Sluice, ours.pid(), ours.store, ours.admin},
			{"chi + asynq", withAsynq.addr, &r.Asynq, withAsynq.pid(), store, ""},
			{"floor", floor.addr, &r.Floor, floor.pid(), beneath, ""},
			{"chi", bare.addr, &r.Chi, bare.pid(), nil, ""},
		} {
			profiled := make(chan error, 1)
			go func() { profiled <- b.fetchProfile(ctx, side.profile, "intake") }()
			l := load{addr: side.addr, path: "/v1/jobs", body: intakeBody, connections: intakeConnections, want: "202"}
			err := side.result.measure(ctx, l, side.server, side.store)
			if err := errors.Join(err, <-profiled); err != nil {
				return nil, fmt.Errorf("%s: %w", side.name, err)
			}
			b.progress("intake, run %d of %d: %s %v", n+1, b.runs, side.name, side.result)
		}
		runs = append(runs, r)
	}
	lines := []string{fmt.Sprintf("%-8s %-25s %-25s %-25s %-25s   %d connections; "+
		"processor time a request in server + Redis + client", "intake", "sluice", "chi + asynq", "floor",
		"chi alone", intakeConnections)}
	for i, r := range runs {
		lines = append(lines, fmt.Sprintf("run %-4d %-25v %-25v %-25v %-25v", i+1, r.Sluice, r.Asynq, r.Floor,
			r.Chi))
	}
	lines = append(lines, "floor: chi and a bare pipeline, of a string and a member of a sorted set for "+
		"each job, without a bound, a rate or a script: no queue in Redis takes less")
	b.detail("P1", lines, runs)
	return runs, nil
}

// measure loads one intake.
func (s *intakeSide) measure(ctx context.Context, l load, server int, store *redisServer) error {
	processes := []int{server, os.Getpid()}
	if store != nil {
		processes = append(processes, store.pid())
	}
	times := func() (out [3]time.Duration, err error) {
		for i, pid := range processes {
			if out[i], err = cpuOf(pid); err != nil {
				return out, err
			}
		}
		return out, nil
	}
	before, err := times()
	if err != nil {
		return err
	}
	n, took, err := l.run(ctx, 500*time.Millisecond, 3*time.Second)
	if err != nil {
		return err
	}
	after, err := times()
	if err != nil {
		return err
	}
	s.PerSecond = float64(n.measured) / took.Seconds()
	of := func(i int) float64 { return micros(after[i]-before[i]) / float64(n.all) }
	s.Server, s.Client, s.Redis = of(0), of(1), of(2)
	return nil
}

func intakeRatio(ratio func(intakeRun) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		runs, err := once(b, "intake", func() ([]intakeRun, error) { return measureIntake(ctx, b) })
		samples := make([]float64, len(runs))
		for i, r := range runs {
			samples[i] = ratio(r)
		}
		return samples, err
	}
}

// intake is a running sluice that only accepts jobs, over a redis-server of its own.
type intake struct {
	*child
	addr  string
	admin string
	store *redisServer
	dir   string
}

// startIntake runs the real program. Its tenant drains at one job a second, so that the queue is
// busy and never full. settings follow those of redis in the file; environ are further variables.
func startIntake(
	ctx context.Context, store func(context.Context) (*redisServer, error), settings string, environ ...string,
) (*intake, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	p := &intake{dir: dir}
	if err := p.start(ctx, store, settings, environ); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *intake) start(
	ctx context.Context, store func(context.Context) (*redisServer, error), settings string, environ []string,
) error {
	var err error
	if p.store, err = store(ctx); err != nil {
		return err
	}
	binary, err := build(ctx, p.dir)
	if err != nil {
		return err
	}
	config := filepath.Join(p.dir, "sluice.yaml")
	text := fmt.Sprintf("redis: { url: %q%s }\napi: { listen: \"127.0.0.1:0\" }\n"+
		"admin: { listen: \"127.0.0.1:0\", profiles: true }\n"+
		"routes: { default: { url: \"http://127.0.0.1:9/\" } }\n"+
		"tenants: { defaults: { rate: 1/s, capacity: 100000000 } }\n", p.store.url(), settings)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(binary, "serve", "--config", config, "--roles", "api")
	cmd.Env = append(os.Environ(), environ...)
	if p.child, err = spawn(cmd, p.dir, "intake"); err != nil {
		return err
	}
	found, err := p.awaitLine(ctx, readyLine)
	if err != nil {
		return err
	}
	p.admin, p.addr = found[0], found[1]
	return nil
}

func (p *intake) close() {
	p.end()
	if p.store != nil {
		p.store.close()
	}
	_ = os.RemoveAll(p.dir)
}
