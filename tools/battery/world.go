package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// world is what one check has to itself: a directory, a sink, a ledger, a Redis, sluice processes,
// randomness from the seed.
type world struct {
	id      string // of the check
	bin     string // the sluice program
	dir     string
	scale   scale
	rng     *rand.Rand
	say     func(format string, args ...any) // shows what is being done
	rates   *rateBook
	nursery *nursery
	ledger  *ledger
	sink    *sink
	web     *http.Client

	settings settings
	redis    *process
	data     string // directory of Redis' files; empty: dir
	url      string // of Redis, for the processes; empty: that of the socket
	store    redis.UniversalClient
	sluices  []*sluice
	started  map[string]int // processes by role, for their names
	api      string         // address of the latest api process
}

// settings are those of a world that differ from check to check. Zero values have defaults.
type settings struct {
	fsync       string // everysec; a kill does not lose the page cache, so always is for where Redis is killed
	lease       time.Duration
	sweep       time.Duration
	concurrency int               // of a worker
	defaults    tenant            // of tenants
	tenants     map[string]tenant // by name
	// routes has further settings of routes, such as "timeout: 60s", "asynq { queue: x }" to hand
	// off, "forward wait: 60s" to forward, or "url: x, …" or "forward: x, …" for an upstream of its
	// own.
	// There is always one named default.
	routes map[string]string
	// env has further variables of sluice processes, NAME=value; they outrank the configuration
	// file.
	env       []string
	redisEnv  []string // the same of redis-server
	redis     string   // further settings of Redis, after a comma
	node      []string // further options of the nodes of a cluster
	pool      string   // rate of the pool that poolTenants share; empty: there is none
	poolMore  string   // further settings of the pool, after a comma
	more      string   // further sections of the configuration file, in lines
	callbacks string   // prefixes of the callback URLs that may be called, separated by spaces
}

// tenant is the policy of a tenant in the configuration.
type tenant struct {
	rate        string
	capacity    int
	concurrency int
	weight      int    // in the pool
	more        string // further settings, after a comma
}

func (t tenant) yaml() string {
	weight := ""
	if t.weight > 0 { // versions before pools do not know it
		weight = fmt.Sprintf(", weight: %d", t.weight)
	}
	return fmt.Sprintf("{ rate: %s, capacity: %d, concurrency: %d%s%s }", t.rate, t.capacity, t.concurrency, weight,
		t.more)
}

// retries are the retries of routes, unless a check sets others.
const retries = "timeout: 10s, retry: { max_attempts: 20, min_backoff: 100ms, max_backoff: 400ms }"

func (s settings) withDefaults() settings {
	s.fsync = or(s.fsync, "everysec")
	s.lease = or(s.lease, 2*time.Second)
	s.sweep = or(s.sweep, 250*time.Millisecond)
	s.concurrency = or(s.concurrency, 1024)
	whole := tenant{rate: "100/s", capacity: 1_000_000, concurrency: 256}
	s.defaults = s.defaults.over(whole)
	tenants := map[string]tenant{}
	for name, t := range s.tenants {
		tenants[name] = t.over(s.defaults)
	}
	s.tenants = tenants
	routes := map[string]string{"default": retries}
	maps.Copy(routes, s.routes)
	s.routes = routes
	return s.withPool()
}

func (t tenant) over(below tenant) tenant {
	return tenant{
		rate: or(t.rate, below.rate), capacity: or(t.capacity, below.capacity),
		concurrency: or(t.concurrency, below.concurrency), weight: or(t.weight, below.weight), more: or(t.more, below.more),
	}
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// rate is the tenant's rate as configured.
func (s settings) rate(name string) shaper.Rate {
	t, ok := s.tenants[name]
	if !ok {
		t = s.defaults
	}
	r, err := shaper.ParseRate(t.rate)
	if err != nil {
		panic(err) // written in this program
	}
	return r
}

// newWorld makes the directory and the sink; nothing else runs yet.
func newWorld(w world) (*world, error) {
	var err error
	if w.dir, err = os.MkdirTemp("", "sluice-battery-"+w.id+"-"); err != nil {
		return nil, err
	}
	w.ledger = newLedger()
	w.started = map[string]int{}
	w.web = &http.Client{
		Timeout:   15 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true},
	}
	if w.sink, err = newSink(w.ledger); err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.dir))
	}
	return &w, nil
}

// close ends everything the world has started. With keep, its directory stays, with the ledger in
// it.
func (w *world) close(keep bool) error {
	w.nursery.clear()
	w.sink.close()
	w.web.CloseIdleConnections()
	var err error
	if w.store != nil {
		err = w.store.Close()
	}
	if keep {
		return errors.Join(err, w.ledger.write(filepath.Join(w.dir, "ledger.jsonl")))
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// open starts a Redis and one process for each of the roles, "api", "worker" or "api,worker".
func (w *world) open(ctx context.Context, s settings, roles ...string) error {
	w.settings = s.withDefaults()
	if err := w.startRedis(ctx); err != nil {
		return err
	}
	for _, r := range roles {
		if _, err := w.start(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) socket() string { return filepath.Join(w.dir, "redis.sock") }

// startRedis starts the world's Redis, again on the data it had after a kill, and returns when it
// answers.
func (w *world) startRedis(ctx context.Context) error {
	args := append(slices.Clone(w.settings.redisEnv), "redis-server", "--port", "0", "--unixsocket",
		w.socket(), "--dir", or(w.data, w.dir),
		"--save", "", "--appendonly", "yes", "--appendfsync", w.settings.fsync, "--maxmemory-policy", "noeviction")
	p, err := w.nursery.start(w.dir, "redis", nil, "env", args...)
	if err != nil {
		return err
	}
	w.redis = p
	if w.store == nil {
		w.store = redis.NewClient(&redis.Options{
			Network: "unix", Addr: w.socket(), DialTimeout: time.Second, ReadTimeout: 5 * time.Second, MaxRetries: -1,
			ContextTimeoutEnabled: true, DisableIdentity: true, DialerRetries: 1,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	return until(ctx, "redis-server answers", 2*time.Millisecond, func() (bool, error) {
		if !p.alive() {
			return false, fmt.Errorf("redis-server ended at start: %s", p.tail())
		}
		return w.answers(ctx), nil
	})
}

// answers reports whether Redis answers on a new connection. The client would not do: after some
// failures in a row go-redis dials once a second only.
func (w *world) answers(ctx context.Context) bool {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", w.socket())
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	if c.SetDeadline(time.Now().Add(time.Second)) != nil {
		return false
	}
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return false
	}
	answer := make([]byte, len("+PONG"))
	_, err = io.ReadFull(c, answer)
	return err == nil && string(answer) == "+PONG"
}

// sluice is a process of the program with its addresses.
type sluice struct {
	*process
	api, admin string // empty until the process has reported them
}

// start starts a sluice process and returns when it is ready. A later api process takes the address
// of the first.
func (w *world) start(ctx context.Context, roles string) (*sluice, error) {
	s, err := w.launch(roles)
	if err != nil {
		return nil, err
	}
	return s, w.ready(ctx, s)
}

// launch starts a sluice process with a configuration file of its own, in which its name is part of
// its routes' URLs. A process that has ended by itself is returned with the error.
func (w *world) launch(roles string) (*sluice, error) {
	kind := strings.ReplaceAll(roles, ",", "-")
	w.started[kind]++
	name := fmt.Sprintf("%s-%d", kind, w.started[kind])
	config, err := w.configure(name)
	if err != nil {
		return nil, err
	}
	addresses := make(chan [2]string, 4)
	args := append(slices.Clone(w.settings.env), w.bin, "serve", "--config", config, "--roles", roles,
		"--admin", "127.0.0.1:0", "--api", or(w.api, "127.0.0.1:0"))
	p, err := w.nursery.start(w.dir, name, listening(addresses), "env", args...)
	if err != nil {
		return nil, err
	}
	s := &sluice{process: p}
	for s.admin == "" || s.api == "" && strings.Contains(roles, "api") {
		select {
		case a := <-addresses:
			if a[0] == "api.listen" {
				s.api, w.api = a[1], a[1]
			} else {
				s.admin = a[1]
			}
		case <-p.exited:
			return s, fmt.Errorf("%s ended at start: %s", name, p.tail())
		case <-time.After(10 * time.Second):
			return nil, fmt.Errorf("%s does not listen: %s", name, p.tail())
		}
	}
	w.sluices = append(w.sluices, s)
	return s, nil
}

// ready waits until the process reports that it is ready.
func (w *world) ready(ctx context.Context, s *sluice) error {
	return until(ctx, s.name+" is ready", 5*time.Millisecond, func() (bool, error) {
		if !s.alive() {
			return false, fmt.Errorf("%s ended at start: %s", s.name, s.tail())
		}
		code, _, err := w.call(ctx, http.MethodGet, s.admin, "/readyz", nil, nil)
		return err == nil && code == http.StatusOK, nil
	})
}

// shared waits until the workers that have just started and the others agree on who owns which
// shard, which takes some beats.
func (w *world) shared(ctx context.Context) error { return pause(ctx, w.settings.lease/2) }

// listening passes on which address the process listens on, and for what.
func listening(found chan<- [2]string) func([]byte) {
	return func(line []byte) {
		var l struct{ Msg, For, Address string }
		if json.Unmarshal(line, &l) == nil && l.Msg == "listening" {
			found <- [2]string{l.For, l.Address}
		}
	}
}

// configure writes the configuration file of a process and returns its path.
func (w *world) configure(name string) (path string, err error) {
	var b strings.Builder
	s := w.settings
	fmt.Fprintf(&b, "redis: { url: %q%s }\n", or(w.url, "unix://"+w.socket()), s.redis)
	fmt.Fprintf(&b, "worker: { lease: %v, sweep: %v, concurrency: %d }\n", s.lease, s.sweep, s.concurrency)
	fmt.Fprintf(&b, "routes:\n")
	for _, route := range slices.Sorted(maps.Keys(s.routes)) {
		rest := s.routes[route]
		to := fmt.Sprintf("url: %q, connections: 2048", w.sink.at(name, route))
		if queue, handsOff := strings.CutPrefix(rest, "asynq "); handsOff {
			to = "asynq: " + queue
			rest = retries
		} else if further, forwards := strings.CutPrefix(rest, "forward "); forwards {
			to, rest = fmt.Sprintf("forward: %q, connections: 2048", w.sink.at(name, route)), further
		} else if strings.HasPrefix(rest, "url: ") || strings.HasPrefix(rest, "forward: ") {
			to, rest, _ = strings.Cut(rest, ", ")
		}
		fmt.Fprintf(&b, "  %s: { %s, %s }\n", route, to, rest)
	}
	if s.pool != "" {
		fmt.Fprintf(&b, "pools: { %s: { rate: %s, routes: [ %s ]%s } }\n", poolName, s.pool, poolRoute, s.poolMore)
	}
	b.WriteString(s.more)
	if s.callbacks != "" {
		fmt.Fprintf(&b, "callbacks: { allow: [ %s ] }\n", strings.Join(strings.Fields(s.callbacks), ", "))
	}
	fmt.Fprintf(&b, "tenants:\n  defaults: %s\n", s.defaults.yaml())
	for _, t := range slices.Sorted(maps.Keys(s.tenants)) {
		fmt.Fprintf(&b, "  %s: %s\n", t, s.tenants[t].yaml())
	}
	path = filepath.Join(w.dir, name+".yaml")
	return path, os.WriteFile(path, []byte(b.String()), 0o600)
}

// living are the processes of the role, "api" or "worker", that have not ended.
func (w *world) living(role string) []*sluice {
	var living []*sluice
	for _, s := range w.sluices {
		if strings.Contains(s.name, role) && s.alive() {
			living = append(living, s)
		}
	}
	return living
}

// crash kills a worker and notes what was leased at that instant. The process is stopped first, so
// that it settles nothing between the reading and the kill. What it had sent gets a moment to be
// executed.
func (w *world) crash(ctx context.Context, s *sluice) (crash, error) {
	w.lateness(ctx, s)
	s.stop()
	if err := pause(ctx, 30*time.Millisecond); err != nil {
		return crash{}, err
	}
	leased, err := w.leases(ctx)
	s.kill()
	return crash{process: s.name, leased: leased}, err
}

// between draws a duration from [least, most).
func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)))
}

// keyspace is that of a store made by the program's defaults, which no check changes.
var keyspace = store.NewKeyspace(64)

// leases is the ids of all leased jobs, as Redis has them.
func (w *world) leases(ctx context.Context) (map[string]bool, error) {
	shards := make([]*redis.StringSliceCmd, keyspace.Len())
	_, err := w.store.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range shards {
			shards[i] = p.ZRange(ctx, keyspace.Shard(i).Leases(), 0, -1)
		}
		return nil
	})
	ids := map[string]bool{}
	for _, s := range shards {
		for _, id := range s.Val() {
			ids[id] = true
		}
	}
	return ids, err
}

// backlog is the number of jobs that wait and run, by the books of Redis.
func (w *world) backlog(ctx context.Context) (waiting, running int, err error) {
	shards := make([]*redis.StringCmd, keyspace.Len())
	if _, err := w.store.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range shards {
			shards[i] = p.HGet(ctx, keyspace.Shard(i).Clock(), scripts.ClockNumbers)
		}
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) {
		return 0, 0, err
	}
	for _, s := range shards {
		c, err := scripts.ParseClock(s.Val())
		if err != nil {
			return 0, 0, err
		}
		waiting += int(c.Depth)
		running += int(c.Running)
	}
	return waiting, running, nil
}

// stored is the ids of all jobs in Redis, done or not.
func (w *world) stored(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	collect := func(ctx context.Context, node *redis.Client) error {
		it := node.Scan(ctx, 0, "sluice:{*}:job:*", 5000).Iterator()
		for it.Next(ctx) {
			ids[it.Val()[strings.LastIndexByte(it.Val(), ':')+1:]] = true
		}
		return it.Err()
	}
	switch store := w.store.(type) {
	case *redis.ClusterClient:
		var one sync.Mutex // the nodes are asked at once
		return ids, store.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			one.Lock()
			defer one.Unlock()
			return collect(ctx, node)
		})
	case *redis.Client:
		return ids, collect(ctx, store)
	}
	return nil, fmt.Errorf("no way to read all keys by a %T", w.store)
}
