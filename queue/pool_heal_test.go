package queue_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	poolOfWork = "+erp"
	poolFlow   = "flow:+erp/"
)

// newDamagedPool has ten jobs of each of three tenants queued in a pool. One of them has a reserve,
// and one is of a class.
func newDamagedPool(t *testing.T, o queue.EngineOptions) *damaged {
	t.Helper()
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatalf("OpenEngine: %v", err)
	}
	d := &damaged{T: t, redis: e.Client(), keys: store.NewKeyspace(1).Shard(0), log: &bytes.Buffer{}}
	d.Queue, err = queue.Open(t.Context(), e, queue.Options{
		Shards: 1, Defaults: perSecond(1000), Horizon: time.Minute,
		Logger:  slog.New(slog.NewTextHandler(d.log, nil)),
		Tenants: map[string]shaper.Overrides{"vip": {Reserve: &shaper.Rate{Limit: 60, Period: time.Second}}},
		Tiers:   map[string]shaper.Overrides{"free": {}}, PoolWeights: map[string]int64{"free": 2},
		Pools: map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{
			Rate: &shaper.Rate{Limit: 100, Period: time.Second}, Concurrency: new(int64(500)),
		}}},
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), e.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	d.consumer = d.Broker().Consumer("w", 0)
	for range 10 {
		for _, tenant := range []string{"vip", "b", "c"} {
			w := work()
			if w.Tenant, w.Route = tenant, "erp"; tenant == "c" {
				w.Tier = "free"
			}
			d.submit(w)
		}
	}
	poll := looking
	poll.Max = 4
	if tick, err := d.consumer.Tick(t.Context(), poll); err != nil || len(tick.Leases) != 4 {
		t.Fatalf("Tick: %d leases, %v", len(tick.Leases), err)
	}
	poll.Max = 0 // the flows obey the first policies
	if _, err := d.consumer.Tick(t.Context(), poll); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *damaged) key(name string) string { return strings.TrimSuffix(d.keys.Clock(), "clock") + name }

// strangers adds entries of flows that were forgotten to an index of the pool.
func (d *damaged) strangers(index string, score float64, of ...string) error {
	var list []redis.Z
	for i := range 130 {
		list = append(list, redis.Z{Score: score, Member: fmt.Sprintf("gone%d/erp", i)})
	}
	return d.redis.ZAdd(d.Context(), d.key(index+":"+poolOfWork+strings.Join(of, "")), list...).Err()
}

// turn rewrites the turn of a flow.
func (d *damaged) turn(flow string, edit func(fields []string) string) error {
	key := d.key("flow:" + flow)
	text, err := d.redis.HGet(d.Context(), key, "turn").Result()
	if err != nil {
		return err
	}
	return d.redis.HSet(d.Context(), key, "turn", edit(strings.Fields(text))).Err()
}

var poolDamages = map[string]func(d *damaged) error{
	"stale entries among the reserves": func(d *damaged) error { return d.strangers("reserve", 0) },
	"stale candidates":                 func(d *damaged) error { return d.strangers("ready", 0) },
	"stale entries of a class":         func(d *damaged) error { return d.strangers("wait", 0, "/free") },
	"stale entries that wait":          func(d *damaged) error { return d.strangers("wait", 0) },
	"behind of a turn without a reserve": func(d *damaged) error {
		return d.redis.HSet(d.Context(), d.key(poolFlow), "behind", "-9223372036854775808").Err()
	},
	"behind decades ahead": func(d *damaged) error {
		return d.redis.HSet(d.Context(), d.key(poolFlow), "behind", time.Now().AddDate(30, 0, 0).UnixMicro()).Err()
	},
	"a reserve decades ahead": func(d *damaged) error {
		far := time.Now().AddDate(30, 0, 0).UnixMicro()
		return errors.Join(
			d.redis.ZAddXX(d.Context(), d.key("reserve:"+poolOfWork), redis.Z{Score: float64(far), Member: "vip/erp"}).Err(),
			d.turn("vip/erp", func(f []string) string {
				cell := strings.Split(f[4], ":")
				cell[2] = fmt.Sprint(far)
				return strings.Join(append(f[:4], strings.Join(cell, ":")), " ")
			}))
	},
	"fewer running than none": func(d *damaged) error {
		return d.redis.HSet(d.Context(), d.key(poolFlow), "running", -10).Err()
	},
	"more running than all": func(d *damaged) error {
		return d.redis.HSet(d.Context(), d.key(poolFlow), "running", 500).Err()
	},
	"an entry without a reserve among the reserves": func(d *damaged) error {
		return d.redis.ZAdd(d.Context(), d.key("reserve:"+poolOfWork), redis.Z{Score: 0, Member: "b/erp"}).Err()
	},
	"a flow of a class that an older process has filed": func(d *damaged) error {
		return errors.Join(
			d.redis.HIncrBy(d.Context(), d.key(poolFlow), "weights", 1).Err(),
			d.redis.ZAdd(d.Context(), d.key("wait:"+poolOfWork), redis.Z{Score: 0, Member: "c/erp"}).Err(),
			d.turn("c/erp", func(f []string) string { return strings.Join(append(f[:3], "1"), " ") }))
	},
	"a flow of a class in the index of the others": func(d *damaged) error {
		return d.redis.ZAdd(d.Context(), d.key("ready:"+poolOfWork), redis.Z{Score: 0, Member: "c/erp"}).Err()
	},
	"a candidate that its turn does not name": func(d *damaged) error {
		return errors.Join(
			d.redis.ZAdd(d.Context(), d.key("ready:"+poolOfWork), redis.Z{Score: 0, Member: "b/erp"}).Err(),
			d.turn("b/erp", func(f []string) string { return "-" + strings.Join(f, " ")[1:] }))
	},
}

// TestDamagedPoolHeals: a pool whose indexes or clock older builds have damaged lets all jobs leave
// at its pace, the reserve first, and the log says what was wrong.
func TestDamagedPoolHeals(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		for damage, do := range poolDamages {
			t.Run(name+"/"+damage, func(t *testing.T) {
				t.Parallel()
				d := newDamagedPool(t, options(t))
				if err := do(d); err != nil {
					t.Fatal(err)
				}
				if left := d.drain(); len(left) != 26 {
					t.Errorf("%d jobs left, want 26\n%s", len(left), d.log)
				}
				if !strings.Contains(d.log.String(), "kind=misfiled ") {
					t.Errorf("nothing in the log:\n%s", d.log)
				}
				if strings.Count(d.log.String(), "\n") > 4 {
					t.Errorf("too many lines in the log:\n%s", d.log)
				}
				for _, index := range []string{"wait", "ready", "reserve", "class"} {
					key := d.key(index + ":" + poolOfWork)
					if index == "class" {
						key = d.key("wait:" + poolOfWork + "/free")
					}
					if n := d.redis.ZCard(t.Context(), key).Val(); n != 0 {
						t.Errorf("%d entries are left in %s", n, index)
					}
				}
				if weights := d.redis.HGet(t.Context(), d.key(poolFlow), "weights").Val(); weights != "0" && strings.Contains(damage, "class") {
					t.Errorf("the weights of no flow are %s", weights)
				}
				if running := d.redis.HGet(t.Context(), d.key(poolFlow), "running").Val(); strings.HasPrefix(running, "-") {
					t.Errorf("%s jobs run in the pool", running)
				}
			})
		}
	}
}

// TestCheckRepairsPools: a check finds it, and repairs it.
func TestCheckRepairsPools(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		for damage, do := range poolDamages {
			t.Run(name+"/"+damage, func(t *testing.T) {
				t.Parallel()
				d := newDamagedPool(t, options(t))
				if kinds := d.findings(false); len(kinds) > 0 {
					t.Fatalf("a sound pool: %v", kinds)
				}
				if err := do(d); err != nil {
					t.Fatal(err)
				}
				if kinds := d.findings(false); len(kinds) == 0 {
					t.Fatal("the damage is not found")
				}
				d.findings(true)
				if kinds := d.findings(false); len(kinds) > 0 {
					t.Errorf("after the repair: %v", kinds)
				}
				if left := d.drain(); len(left) != 26 || strings.Contains(d.log.String(), "misfiled") {
					t.Errorf("%d jobs left, want 26\n%s", len(left), d.log)
				}
			})
		}
	}
}

// TestNewPoliciesReportStaleEntries: the scan that applies new policies reports a flow that is in
// an index of its pool although its turn is in none, once.
func TestNewPoliciesReportStaleEntries(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamagedPool(t, options(t))
			if err := poolDamages["a candidate that its turn does not name"](d); err != nil {
				t.Fatal(err)
			}
			if err := d.redis.HSet(t.Context(), d.keys.Clock(), "looked", "00").Err(); err != nil {
				t.Fatal(err)
			}
			o := looking
			o.Max, o.Horizon = 0, time.Minute
			for range 10 {
				if _, err := d.consumer.Tick(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			if looked := d.redis.HGet(t.Context(), d.keys.Clock(), "looked").Val(); looked != "0" {
				t.Errorf("the scan has not ended: %s", looked)
			}
			if n := strings.Count(d.log.String(), "kind=misfiled "); n != 1 {
				t.Errorf("%d lines about it, want 1:\n%s", n, d.log)
			}
		})
	}
}

// TestPoolRebases: virtual times that have become large start again at zero, and flows and classes
// stay in their order.
func TestPoolRebases(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamagedPool(t, options(t))
			const by = 1 << 52
			classes := strings.Fields(d.redis.HGet(t.Context(), d.key(poolFlow), "classes").Val())
			start, err := strconv.ParseInt(classes[1], 10, 64)
			classes[1] = fmt.Sprint(start + by + 4000) // 8 of its jobs are charged already
			err = errors.Join(err, d.redis.HIncrBy(t.Context(), d.key(poolFlow), "virtual", by).Err(),
				d.redis.HSet(t.Context(), d.key(poolFlow), "classes", strings.Join(classes, " ")).Err())
			for _, flow := range []string{"vip/erp", "b/erp"} {
				err = errors.Join(err, d.redis.ZAddArgsIncr(t.Context(), d.key("ready:"+poolOfWork), redis.ZAddArgs{
					XX: true, Members: []redis.Z{{Score: by, Member: flow}}}).Err(), d.turn(flow, func(f []string) string {
					start, _ := strconv.ParseInt(f[1], 10, 64)
					f[1] = fmt.Sprint(start + by)
					return strings.Join(f, " ")
				}))
			}
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			poll, left := looking, map[string]int{}
			for poll.Max = 1; left["b"] < 3; {
				tick, err := d.consumer.Tick(t.Context(), poll)
				if err != nil || len(tick.Leases) == 0 {
					t.Fatalf("%v: no job leaves, %v", left, err)
				}
				for _, l := range tick.Leases {
					left[l.Tenant]++
				}
			}
			if left["c"] > 0 {
				t.Errorf("%v left, want none of the class", left)
			}
			now := d.redis.HMGet(t.Context(), d.key(poolFlow), "virtual", "classes").Val()
			if len(fmt.Sprint(now[0])) > 9 || len(strings.Fields(fmt.Sprint(now[1]))[1]) > 9 {
				t.Errorf("virtual time and classes are %v", now)
			}
		})
	}
}
