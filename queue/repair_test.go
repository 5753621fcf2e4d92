package queue_test

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// damaged is a queue of one shard whose keys a test damages, with what it logs.
type damaged struct {
	*testing.T
	*queue.Queue
	redis    redis.UniversalClient
	keys     store.ShardKeys
	log      *bytes.Buffer
	consumer *queue.Consumer
	ids      []string
}

const flowOfWork = "acme/default"

// newDamaged has six jobs queued, one scheduled and one leased.
func newDamaged(t *testing.T, o queue.EngineOptions) *damaged {
	t.Helper()
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatalf("OpenEngine: %v", err)
	}
	d := &damaged{T: t, redis: e.Client(), keys: store.NewKeyspace(1).Shard(0), log: &bytes.Buffer{}}
	d.Queue, err = queue.Open(t.Context(), e, queue.Options{
		Shards: 1, Defaults: perSecond(1000), Horizon: time.Minute,
		Logger: slog.New(slog.NewTextHandler(d.log, nil)),
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
	for range 7 {
		d.submit(work())
	}
	later := work()
	later.Delay = 30 * time.Second
	d.submit(later)
	poll := looking
	poll.Max = 1
	if tick, err := d.consumer.Tick(t.Context(), poll); err != nil || len(tick.Leases) != 1 {
		t.Fatalf("Tick: %d leases, %v", len(tick.Leases), err)
	}
	return d
}

func (d *damaged) submit(s queue.Submission) {
	d.Helper()
	v, err := d.Submit(d.Context(), s)
	if err != nil || v.Outcome != shaper.Admitted {
		d.Fatalf("Submit: %v, %v\n%s", v.Outcome, err, d.log)
	}
	d.ids = append(d.ids, v.Job.ID)
}

// drain leases and settles what is left within a minute, and returns the ids that left.
func (d *damaged) drain() (left []string) {
	d.Helper()
	o := looking
	o.Max, o.Horizon = 0, time.Minute
	queuetest.Await(d, "a shard that lost its clock to resume", func() bool {
		tick, err := d.consumer.Tick(d.Context(), o)
		return err == nil && !tick.Paused
	})
	o.Max = 100
	for range 10 {
		tick, err := d.consumer.Tick(d.Context(), o)
		if err != nil {
			d.Fatalf("Tick: %v\n%s", err, d.log)
		}
		var ends []queue.Settlement
		for _, l := range tick.Leases {
			left = append(left, l.ID)
			ends = append(ends, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: 3})
		}
		if len(ends) > 0 {
			if results, err := d.Broker().Settle(d.Context(), ends); err != nil ||
				slices.Contains(results, queue.Stale) {
				d.Fatalf("Settle: %v, %v\n%s", results, err, d.log)
			}
		}
	}
	return left
}

func (d *damaged) findings(fix bool) (kinds []string) {
	d.Helper()
	if _, err := d.Check(d.Context(), fix, func(found []repair.Finding) error {
		for _, f := range found {
			kinds = append(kinds, f.Kind)
		}
		return nil
	}); err != nil {
		d.Fatalf("Check: %v", err)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// figures fails unless the tenant's and the store's counts are these.
func (d *damaged) figures(depth, running int64) {
	d.Helper()
	tenant, err := d.Tenant(d.Context(), "acme")
	if err != nil {
		d.Fatal(err)
	}
	totals, err := d.Totals(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	if tenant.Depth != depth || tenant.Running != running || totals.Depth != depth || totals.Running != running {
		d.Errorf("depth %d and %d in all, want %d; running %d and %d in all, want %d\n%s",
			tenant.Depth, totals.Depth, depth, tenant.Running, totals.Running, running, d.log)
	}
}

// damages are what somebody or an eviction may do to the store, and what is left of the eight jobs.
var damages = []struct {
	name           string
	do             func(d *damaged) error
	depth, running int64
	kind           string // of the first repair, as it is logged; none where only a check finds it
}{
	{"a deleted flow", func(d *damaged) error {
		return d.redis.Del(d.Context(), d.keys.Flow(flowOfWork)).Err()
	}, 7, 1, "flow_lost"},
	{"a deleted index of scheduled jobs", func(d *damaged) error {
		return d.redis.Del(d.Context(), d.keys.Later(flowOfWork)).Err()
	}, 6, 1, "counts"},
	{"a deleted queue", func(d *damaged) error {
		return d.redis.Del(d.Context(), d.keys.Queue(flowOfWork)).Err()
	}, 1, 1, "counts"},
	{"a deleted clock", func(d *damaged) error {
		return d.redis.Del(d.Context(), d.keys.Clock()).Err()
	}, 7, 1, "clock_lost"},
	{"a clock that cannot be read", func(d *damaged) error {
		return d.redis.HSet(d.Context(), d.keys.Clock(), scripts.ClockNumbers, "garbage x").Err()
	}, 7, 1, "clock_lost"},
	{"deleted counts", func(d *damaged) error {
		return d.redis.HDel(d.Context(), d.keys.Flow(flowOfWork), "depth", "queued", "running").Err()
	}, 7, 1, "counts"},
	{"a deleted depth", func(d *damaged) error {
		return d.redis.HDel(d.Context(), d.keys.Flow(flowOfWork), "depth").Err()
	}, 7, 1, "counts"},
	{"a flow of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Flow(flowOfWork), "x", 0).Err()
	}, 7, 1, "wrong_type"},
	{"a queue of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Queue(flowOfWork), "x", 0).Err()
	}, 1, 1, "wrong_type"},
	{"an index of scheduled jobs of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Later(flowOfWork), "x", 0).Err()
	}, 6, 1, "wrong_type"},
	{"a clock of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Clock(), "x", 0).Err()
	}, 7, 1, "wrong_type"},
	{"what is due of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Due(), "x", 0).Err()
	}, 7, 1, "wrong_type"},
	{"a policy of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Policy("acme"), "x", 0).Err()
	}, 7, 1, "wrong_type"},
	{"the flows of a tenant of another type", func(d *damaged) error {
		return d.redis.Set(d.Context(), d.keys.Names("acme"), "x", 0).Err()
	}, 7, 1, ""},
}

// TestDamageHeals: after damage by hand or eviction the next admission or poll of the flow repairs
// it and says so once; counts are right, and what is still stored in an index leaves.
func TestDamageHeals(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		for _, damage := range damages {
			if damage.kind == "" {
				continue
			}
			for _, first := range []string{"admission", "poll"} {
				t.Run(name+"/"+damage.name+"/"+first, func(t *testing.T) {
					t.Parallel()
					d := newDamaged(t, options(t))
					if err := damage.do(d); err != nil {
						t.Fatal(err)
					}
					want := damage.depth
					if first == "admission" {
						d.submit(work())
						want++
						if damage.name != "a deleted queue" { // which a poll notices
							d.figures(want, damage.running)
						}
					}
					if left := d.drain(); len(left) != int(want) {
						t.Errorf("%d jobs left, want %d\n%s", len(left), want, d.log)
					}
					d.submit(work())
					d.figures(1, damage.running)
					if kind := damage.kind; strings.Count(d.log.String(), "kind="+kind+" ") != 1 {
						t.Errorf("said otherwise than once that %s is repaired:\n%s", kind, d.log)
					}
				})
			}
		}
	}
}

// TestCheckRepairs: a check finds what is wrong, writes nothing unless it is to repair, and finds
// nothing after that. Jobs that were in an index which was deleted come back.
func TestCheckRepairs(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		for _, damage := range damages {
			t.Run(name+"/"+damage.name, func(t *testing.T) {
				t.Parallel()
				d := newDamaged(t, options(t))
				if kinds := d.findings(false); len(kinds) > 0 {
					t.Fatalf("a sound store: %v", kinds)
				}
				if err := damage.do(d); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if kinds := d.findings(false); len(kinds) == 0 {
						t.Fatal("the damage is not found")
					}
				}
				for range 3 { // a key of another type hides what is behind it
					if len(d.findings(true)) == 0 {
						break
					}
				}
				if kinds := d.findings(false); len(kinds) > 0 {
					t.Errorf("after the repair: %v", kinds)
				}
				d.figures(7, 1)
				if left := d.drain(); len(left) != 7 {
					t.Errorf("%d jobs left, want 7\n%s", len(left), d.log)
				}
			})
		}
	}
}

// TestCheckFindsStrays: a tenant that a version without classes has forgotten is still in its
// class.
func TestCheckFindsStrays(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t, options(t))
			class := d.keys.Class(queue.ClassGuests)
			if err := errors.Join(
				d.redis.HSet(t.Context(), d.keys.Clock(), scripts.ClassField(queue.ClassGuests), "0 0 0 0 0 0 0").Err(),
				d.redis.SAdd(t.Context(), class, "gone").Err(),
			); err != nil {
				t.Fatal(err)
			}
			for _, fix := range []bool{false, true} {
				if kinds := d.findings(fix); !slices.Equal(kinds, []string{"unlisted"}) {
					t.Errorf("found %v", kinds)
				}
			}
			if kinds := d.findings(false); len(kinds) > 0 || d.redis.Exists(t.Context(), class).Val() > 0 {
				t.Errorf("after the repair: %v", kinds)
			}
		})
	}
}

// TestCheckAcceptsExpired: dead letters and answers that Redis has expired are no damage, and a
// repair counts them no longer.
func TestCheckAcceptsExpired(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t, options(t))
			flow := d.keys.Flow(flowOfWork)
			clock, err := scripts.ParseClock(d.redis.HGet(t.Context(), d.keys.Clock(), scripts.ClockNumbers).Val())
			if err != nil {
				t.Fatal(err)
			}
			numbers := strings.Fields(d.redis.HGet(t.Context(), d.keys.Clock(), scripts.ClockNumbers).Val())
			numbers[9] = strconv.FormatInt(clock.Stored+700+70, 10)
			if err := errors.Join(
				d.redis.HSet(t.Context(), flow, "dead_bytes", 700, "kept", 70).Err(),
				d.redis.HSet(t.Context(), d.keys.Clock(), scripts.ClockNumbers, strings.Join(numbers, " "), "kept", 70).Err(),
			); err != nil {
				t.Fatal(err)
			}
			for _, fix := range []bool{false, true} {
				if kinds := d.findings(fix); len(kinds) > 0 {
					t.Errorf("found %v", kinds)
				}
			}
			totals, err := d.Totals(t.Context())
			if left := d.redis.HMGet(t.Context(), flow, "dead_bytes", "kept").Val(); err != nil ||
				totals.Stored != clock.Stored || left[0] != "0" || left[1] != nil {
				t.Errorf("%d bytes are stored, want %d; of the flow %v; %v", totals.Stored, clock.Stored, left,
					err)
			}
		})
	}
}

// TestCheckFindsLostEntries: what stands in an index without its record, or runs without its lease.
func TestCheckFindsLostEntries(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t, options(t))
			if err := errors.Join(
				d.redis.Del(t.Context(), d.keys.Job(d.ids[3])).Err(), // queued
				d.redis.Del(t.Context(), d.keys.Leases()).Err(),
				d.redis.HSet(t.Context(), d.keys.Flow(flowOfWork), "bytes", 77, "cost", 99).Err(),
				d.redis.ZRem(t.Context(), d.keys.Due(), flowOfWork).Err(),
			); err != nil {
				t.Fatal(err)
			}
			if got, want := d.findings(false), []string{"counts", "no_record", "not_due", "totals",
				"unindexed"}; !slices.Equal(got, want) {
				t.Errorf("found %v, want %v", got, want)
			}
			d.findings(true)
			if got := d.findings(false); len(got) > 0 {
				t.Errorf("after the repair: %v", got)
			}
			d.figures(6, 1)
		})
	}
}

// TestCheckGoesOn: a flow that no repair can read hides neither the rest of its shard nor other
// shards.
func TestCheckGoesOn(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t, options(t))
			other := work()
			other.Tenant = "other"
			d.submit(other)
			for flow, field := range map[string]string{flowOfWork: "depth", "other/default": "cost"} {
				value := "many"
				if field == "cost" {
					value = "99"
				}
				if err := d.redis.HSet(d.Context(), d.keys.Flow(flow), field, value).Err(); err != nil {
					t.Fatal(err)
				}
			}
			var found []string
			checked, err := d.Check(d.Context(), true, func(list []repair.Finding) error {
				for _, f := range list {
					found = append(found, f.Kind+" "+f.Name)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"unreadable flow:" + flowOfWork, "counts flow:other/default"} {
				if !slices.Contains(found, want) {
					t.Errorf("found %q, want %q", found, want)
				}
			}
			if checked.Shards != 1 || checked.Flows != 2 {
				t.Errorf("checked %+v", checked)
			}
		})
	}
}
