package queue_test

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// switchboard passes connections on to one server after another.
type switchboard struct {
	net.Listener
	mu   sync.Mutex
	port int
	open []net.Conn
}

func newSwitchboard(t *testing.T, port int) *switchboard {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &switchboard{Listener: l, port: port}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.pass(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		s.turn(0)
	})
	return s
}

func (s *switchboard) pass(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", s.port))
	if err != nil {
		_ = c.Close()
		return
	}
	s.open = append(s.open, c, to)
	for _, way := range [][2]net.Conn{{c, to}, {to, c}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // ends with either
			_ = way[0].Close()
		}()
	}
}

// turn closes the connections; others go to the server at the port.
func (s *switchboard) turn(port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port = port
	for _, c := range s.open {
		_ = c.Close()
	}
	s.open = nil
}

// TestStampsOverAFailover: a replica without the last writes takes over. The stamps of each flow
// and of its pool, before and after it, conform to their paces, and the clock does not run back.
func TestStampsOverAFailover(t *testing.T) {
	queuetest.Long(t)
	t.Run("a second is lost", func(t *testing.T) { stampsOverAFailover(t, 0, false) })
	t.Run("an hour of the clock is lost", func(t *testing.T) { stampsOverAFailover(t, time.Hour, false) })
	t.Run("the one who knows comes late", func(t *testing.T) { stampsOverAFailover(t, 0, true) })
}

func stampsOverAFailover(t *testing.T, lostClock time.Duration, late bool) {
	ctx := t.Context()
	first, port := redistest.StartTCP(t)
	second, otherPort := redistest.StartTCP(t, "--replicaof", "127.0.0.1", fmt.Sprint(port))
	inSync(t, first, 1)
	replica := client(t, second.URL())
	board := newSwitchboard(t, port)
	paces := map[string]shaper.Policy{
		"slow":    {Rate: shaper.Rate{Limit: 1, Period: time.Second}, Burst: 1, Capacity: 10_000},
		"steady":  {Rate: shaper.Rate{Limit: 50, Period: time.Second}, Burst: 1, Capacity: 10_000},
		"bursts":  {Rate: shaper.Rate{Limit: 5, Period: time.Second}, Burst: 8, Capacity: 10_000},
		"pooled1": {Rate: shaper.Rate{Limit: 30, Period: time.Second}, Burst: 4, Capacity: 10_000},
		"pooled2": {Rate: shaper.Rate{Limit: 30, Period: time.Second}, Burst: 4, Capacity: 10_000},
	}
	inPool := shaper.Policy{Rate: shaper.Rate{Limit: 20, Period: time.Second}, Burst: 3, Capacity: 20_000}
	process := func() *queue.Queue {
		return open(t, queue.EngineOptions{
			URL: "redis://" + board.Addr().String(), Logger: slog.New(slog.DiscardHandler),
		}, func(o *queue.Options) {
			o.Shards = 2
			o.Tenants = map[string]shaper.Overrides{}
			for tenant, p := range paces {
				o.Tenants[tenant] = shaper.Overrides{Rate: &p.Rate, Burst: &p.Burst, Capacity: &p.Capacity}
			}
			o.Pools = map[string]shaper.PoolSettings{"shared": {
				Overrides: shaper.Overrides{Rate: &inPool.Rate, Burst: &inPool.Burst, Capacity: &inPool.Capacity}, Routes: []string{"shared"},
			}}
		})
	}
	owner, helper := process(), process()
	for tenant := range paces {
		for i := range 100 {
			s := submission("")
			s.Tenant, s.Cost = tenant, int64(1+i%3)
			if strings.HasPrefix(tenant, "pooled") {
				s.Route = "shared"
			}
			queuetest.Await(t, "a submission", func() bool { // Redis may be late on a busy machine
				_, err := owner.Submit(ctx, s)
				return err == nil
			})
		}
	}
	var consumers []*queue.Consumer
	for _, q := range []*queue.Queue{owner, helper} {
		for shard := range 2 {
			consumers = append(consumers, q.Broker().Consumer(fmt.Sprint("w", len(consumers)), shard))
		}
	}
	departed, clocks := map[string][]queue.Lease{}, map[int]shaper.Instant{}
	var mu sync.Mutex
	var last string // what the last poll said, for a failure
	pollOne := func(consumers []*queue.Consumer, long time.Duration, least int64, all *atomic.Int64) {
		began := time.Now()
		for time.Since(began) < long || all.Load() < least && time.Since(began) < 20*time.Second {
			for i, c := range consumers {
				tick, err := c.Tick(ctx, queue.TickOptions{Max: 20, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second})
				mu.Lock()
				if last = fmt.Sprintf("paused: %v, error: %v", tick.Paused, err); err != nil {
					mu.Unlock()
					continue // another master
				}
				if shard := i % 2; tick.Now < clocks[shard].Add(-time.Second) { // answers overtake each other
					t.Errorf("the clock of shard %d ran back by %v", shard, clocks[shard].Sub(tick.Now))
				} else {
					clocks[shard] = max(clocks[shard], tick.Now)
				}
				for _, l := range tick.Leases {
					all.Add(1)
					departed[l.Tenant] = append(departed[l.Tenant], l)
					if l.Route == "shared" {
						departed["the pool"] = append(departed["the pool"], l)
					}
				}
				mu.Unlock()
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	// poll polls for long, and longer until least jobs have departed. Each process polls by itself.
	poll := func(consumers []*queue.Consumer, long time.Duration, least int64) int64 {
		var polls sync.WaitGroup
		var all atomic.Int64
		for process := range slices.Chunk(consumers, 2) {
			polls.Go(func() { pollOne(process, long, least, &all) })
		}
		polls.Wait()
		return all.Load()
	}
	poll(consumers, 700*time.Millisecond, 20)
	if err := replica.Do(ctx, "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if lostClock > 0 {
		for shard := range 2 {
			setForward(t, first, store.NewKeyspace(2).Shard(shard).Clock(), lostClock)
		}
	}
	// The jobs of the helper's last polls are lost, too.
	if n := poll(consumers, 700*time.Millisecond, 10) + poll(consumers[2:], 300*time.Millisecond, 10); n < 20 {
		t.Fatalf("only %d departures can be lost", n)
	}
	board.turn(otherPort)
	if late { // the owner ends the pause, leases nothing, and polls no more
		for _, c := range consumers[:2] {
			queuetest.Await(t, "the shard to resume", func() bool {
				tick, err := c.Tick(ctx, queue.TickOptions{Lease: time.Minute, Sweep: time.Second})
				return err == nil && !tick.Paused
			})
		}
		consumers = consumers[2:]
	}
	if n := poll(consumers, 1500*time.Millisecond, 20); n < 20 {
		t.Errorf("only %d departures after the failover; the last poll: %s", n, last)
	}
	paces["the pool"] = inPool
	for name, p := range paces {
		if by := tooEarly(p, departed[name]); by > 2*time.Microsecond {
			t.Errorf("%s: of %d stamps one is %v early", name, len(departed[name]), by)
		}
	}
}

// setForward sets the clock of a shard forward, as if the one of Redis had been set back.
func setForward(t *testing.T, s *redistest.Server, key string, by time.Duration) {
	t.Helper()
	c := client(t, s.URL())
	text, err := c.HGet(t.Context(), key, scripts.ClockNumbers).Result()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(text)
	off, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	fields[1] = strconv.FormatInt(off+by.Microseconds(), 10)
	if err := c.HSet(t.Context(), key, scripts.ClockNumbers, strings.Join(fields, " ")).Err(); err != nil {
		t.Fatal(err)
	}
}

// tooEarly is by how much a stamp comes before its pace allows it at most. Of jobs with one stamp
// the cheapest came first, for what a poll returns of a pool is not in the order of the pool.
func tooEarly(p shaper.Policy, leases []queue.Lease) (most time.Duration) {
	slices.SortFunc(leases, func(a, b queue.Lease) int { return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), cmp.Compare(a.Cost, b.Cost)) })
	interval := p.Rate.Period.Seconds() * 1e6 / float64(p.Rate.Limit)
	tat := 0.0
	for _, l := range leases {
		if early := tat - float64(p.Burst-1)*interval - float64(l.Stamp); early > 0 {
			most = max(most, time.Duration(early*1000))
		}
		tat = max(tat, float64(l.Stamp)) + float64(l.Cost)*interval
	}
	return most
}
