package lua_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// limitStart is the instant at which every story of a limiter begins: the start of a window of
// every period used.
var limitStart = shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))

const (
	maxTags   = 32               // requests of a key that are known when they are sent again
	sentAgain = 10 * time.Second // how long a state outlives its reset for them
)

// limited is one key of a limiter in Redis beside the model of it, the pure functions.
type limited struct {
	t    rapid.TB
	e    engine
	call scripts.LimitCall

	state  limiter.State
	tags   []string
	traced bool // with the tracer before the script
}

func newLimited(t rapid.TB, e engine, p limiter.Policy, number int) *limited {
	prefix := fmt.Sprintf("sluice:{%d}:", number)
	return &limited{t: t, e: e, call: scripts.LimitCall{
		State: prefix + "limit:k", Log: prefix + "log:k", Blocks: prefix + "blocks:r", Policy: p,
		Name: "the key's name",
	}}
}

func (l *limited) clean() {
	if err := l.e.Del(context.Background(), l.call.State, l.call.Log, l.call.Blocks).Err(); err != nil {
		l.t.Fatalf("clean: %v", err)
	}
}

// model is what the script must answer. Only what is allowed and takes something is kept, and the
// start of a block.
func (l *limited) model(at shaper.Instant, tag string, cost int64) (d limiter.Decision, kept bool) {
	again := slices.Contains(l.tags, tag)
	if again {
		cost = 0
	}
	next, d := limiter.Decide(l.state, l.call.Policy, at, cost)
	switch {
	case again:
		d.Allowed, d.RetryAfter = true, 0
	case d.Allowed && cost > 0:
		l.state, kept = next, true
		if tag != "" {
			l.tags = append(l.tags, tag)
			l.tags = l.tags[max(0, len(l.tags)-maxTags):]
		}
	case !d.Allowed && next.Until != 0 && l.state.Until != next.Until:
		l.state, kept = next, true
	}
	return d, kept
}

// take asks script and model, and compares.
func (l *limited) take(at shaper.Instant, tag string, cost int64) limiter.Decision {
	before := l.state
	want, kept := l.model(at, tag, cost)
	call := l.call
	call.At, call.Tag, call.Cost = scripts.AtInstant(at), tag, cost
	sent := call.Call()
	if l.traced {
		sent.Script = traced[sent.Script]
	}
	values, err := scripts.Run(context.Background(), l.e, nil, sent)
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	got, now, err := call.Decode(values)
	if err != nil {
		l.t.Fatalf("decode %v: %v", values, err)
	}
	if diff := cmp.Diff(want, got); diff != "" || now != max(at, before.Seen) {
		l.t.Fatalf("cost %d, tag %q at %v of %+v, state %+v (-model +script):\n%s", cost, tag,
			at.Sub(limitStart), call.Policy, before, diff)
	}
	if kept {
		l.living(now.Sub(at) + want.Reset)
	}
	return got
}

// living checks that all of the state expires together, once it is as if the key had never been
// used and no call is sent again.
func (l *limited) living(reset time.Duration) {
	for _, key := range []string{l.call.State, l.call.Log} {
		left, err := l.e.PTTL(context.Background(), key).Result()
		if err != nil {
			l.t.Fatalf("%v", err)
		}
		if key == l.call.Log && l.call.Policy.Algorithm != limiter.SlidingLog {
			continue
		}
		if most := reset + sentAgain + time.Millisecond; left > most || left < most-5*time.Second {
			l.t.Fatalf("%s lives for %v, want %v", key, left, most)
		}
	}
}

// limitPolicies draws legal policies of one limiter.
func limitPolicies(a limiter.Algorithm) *rapid.Generator[limiter.Policy] {
	return rapid.Custom(func(t *rapid.T) limiter.Policy {
		text := rapid.SampledFrom([]string{
			"1/ms", "3/s", "7/3s", "10/s", "50/s", "999/7s", "5/m", "5/24h", "13/m", "1/366d", "1000/s",
		}).Draw(t, "rate")
		rate, err := shaper.ParseRate(text)
		if err != nil {
			t.Fatalf("%v", err)
		}
		p := limiter.Policy{Algorithm: a, Rate: rate}
		switch a {
		case limiter.TokenBucket, limiter.LeakyMeter:
			p.Burst = rapid.SampledFrom([]int64{0, 1, 2, 5, 40}).Draw(t, "burst")
			if p.Validate() != nil {
				p.Burst = 0
			}
		case limiter.SlidingLog:
			p.Block = time.Duration(rapid.SampledFrom([]int64{0, 0, 1, 700, 100_000}).Draw(t,
				"block")) * time.Millisecond
		}
		return p
	})
}

// limitGap draws the time to the next request: mostly a few intervals, at times none, some periods,
// or backwards.
func limitGap(p limiter.Policy) *rapid.Generator[time.Duration] {
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	period := p.Rate.Period.Microseconds()
	interval := max(1, period/p.Rate.Limit)
	return rapid.OneOf(
		rapid.Just(time.Duration(0)),
		rapid.Map(rapid.Int64Range(0, 3*interval), micros),
		rapid.Map(rapid.Int64Range(0, 3*interval), micros),
		rapid.Map(rapid.Int64Range(0, 3*period), micros),
		rapid.Map(rapid.Int64Range(-2*period, 0), micros),
	)
}

// TestLimitParity holds the scripts of the limiters and the pure functions together: every answer,
// whatever is asked, sent again, and however the clock steps.
func TestLimitParity(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			for _, a := range limiter.Algorithms() {
				t.Run(string(a), func(t *testing.T) {
					histories, length := 0, steps(t, 30)
					rapid.Check(t, func(rt *rapid.T) {
						histories++
						p := limitPolicies(a).Draw(rt, "policy")
						l := newLimited(rt, e, p, histories)
						l.traced = kind.name == "redis" && histories%2 == 0
						defer l.clean()
						now, tags := limitStart, []string{""}
						for range rapid.IntRange(1, length).Draw(rt, "requests") {
							now = max(limitStart, now.Add(limitGap(p).Draw(rt, "gap")))
							cost := rapid.OneOf(
								rapid.Just(int64(1)), rapid.Int64Range(0, p.Limit()+2),
								rapid.SampledFrom([]int64{-1, p.Limit(), math.MaxInt64}),
							).Draw(rt, "cost")
							tag := fmt.Sprintf("%08d", len(tags))
							if rapid.IntRange(0, 9).Draw(rt, "again") == 0 {
								tag = rapid.SampledFrom(tags).Draw(rt, "tag")
							} else {
								tags = append(tags, tag)
							}
							l.take(now, tag, cost)
						}
					})
				})
			}
		})
	}
}

// TestLimitNumbers: at the greatest numbers that a policy may have nothing is lost in the doubles
// of Lua.
func TestLimitNumbers(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			for i, p := range []limiter.Policy{
				{Algorithm: limiter.FixedWindow, Rate: shaper.Rate{Limit: 1_000_000, Period: shaper.MaxPeriod}},
				{Algorithm: limiter.SlidingLog, Rate: shaper.Rate{
					Limit: limiter.MaxLog, Period: shaper.MaxPeriod,
				}, Block: shaper.MaxPeriod},
				{Algorithm: limiter.SlidingCounter, Rate: shaper.Rate{Limit: 99, Period: shaper.MaxPeriod}},
				{Algorithm: limiter.TokenBucket, Rate: shaper.Rate{Limit: 97, Period: shaper.MaxPeriod}, Burst: 199},
				{Algorithm: limiter.LeakyMeter, Rate: shaper.Rate{Limit: 97, Period: shaper.MaxPeriod}, Burst: 199},
			} {
				if err := p.Validate(); err != nil {
					t.Fatalf("%+v: %v", p, err)
				}
				l := newLimited(t, e, p, i+1)
				most := p.Limit()
				for _, step := range []struct {
					at   time.Duration
					cost int64
				}{
					{0, most - 1}, {1, 1}, {time.Microsecond, 1}, {time.Hour, most},
					{p.Rate.Period/2 + 7*time.Microsecond, 2}, {p.Rate.Period - 1, most},
					{p.Rate.Period + 3*time.Microsecond, 1}, {p.Rate.Period + time.Hour, most / 2},
					{3*p.Rate.Period + 1, most},
				} {
					l.take(limitStart.Add(step.at), "", step.cost)
				}
			}
		})
	}
}

// TestLimitLogInParts: a log is read in parts. The first ones may be too old, and a refusal reads
// far ahead.
func TestLimitLogInParts(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			p := limiter.Policy{Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 3000, Period: time.Second}}
			l := newLimited(t, kind.start(t), p, 1)
			for i := range 1500 {
				l.take(limitStart.Add(time.Duration(i)*500*time.Microsecond), "", 2)
			}
			l.take(limitStart.Add(time.Second), "", 2999)
			l.take(limitStart.Add(time.Second), "", 2)
			l.take(limitStart.Add(1600*time.Millisecond), "", 2999)
			l.take(limitStart.Add(1600*time.Millisecond), "", 2000)
			if n, err := l.e.LLen(context.Background(), l.call.Log).Result(); err != nil ||
				n != int64(2*len(l.state.Log)) {
				t.Errorf("%d numbers in the log (%v), the model has %d requests", n, err, len(l.state.Log))
			}
			l.take(limitStart.Add(time.Hour), "", 1)
			if n, err := l.e.LLen(context.Background(), l.call.Log).Result(); err != nil || n != 2 {
				t.Errorf("%d numbers in the log (%v): what was old is still there", n, err)
			}
		})
	}
}

// TestLimitRefusalsWriteNothing: a question and a refusal leave no key and change none.
func TestLimitRefusalsWriteNothing(t *testing.T) {
	ctx := context.Background()
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			for i, a := range limiter.Algorithms() {
				p := limiter.Policy{Algorithm: a, Rate: shaper.Rate{Limit: 2, Period: time.Minute}}
				l := newLimited(t, e, p, i+1)
				l.take(limitStart, "", 0)
				l.take(limitStart, "", 3)
				if n, err := e.Exists(ctx, l.call.State, l.call.Log).Result(); err != nil || n != 0 {
					t.Errorf("%s: %d keys of a key that was never used (%v)", a, n, err)
				}
				l.take(limitStart, "", 2)
				before := e.HGetAll(ctx, l.call.State).Val()
				l.take(limitStart.Add(time.Second), "", 1)
				if diff := cmp.Diff(before, e.HGetAll(ctx, l.call.State).Val()); diff != "" {
					t.Errorf("%s: a refusal changed the state:\n%s", a, diff)
				}
			}
		})
	}
}

// TestLimitSentAgain: a request that is sent again after a lost answer is allowed and not counted
// again, with fewer than maxTags others in between. A refusal is not remembered.
func TestLimitSentAgain(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			for i, a := range limiter.Algorithms() {
				p := limiter.Policy{Algorithm: a, Rate: shaper.Rate{Limit: 100, Period: time.Hour}}
				l := newLimited(t, e, p, i+1)
				for n := range maxTags {
					l.take(limitStart, fmt.Sprintf("%08d", n), 1)
				}
				if d := l.take(limitStart, "00000000", 1); !d.Allowed || d.Remaining != 100-maxTags {
					t.Errorf("%s: sent again: %+v", a, d)
				}
				l.take(limitStart, "one more", 1)
				if d := l.take(limitStart, "00000000", 1); d.Remaining != 100-maxTags-2 {
					t.Errorf("%s: sent again after more than are remembered: %+v", a, d)
				}
				l.take(limitStart, "too many", 99)
				if d := l.take(limitStart, "too many", 1); !d.Allowed || d.Remaining != 100-maxTags-3 {
					t.Errorf("%s: a refusal was remembered: %+v", a, d)
				}
			}
		})
	}
}

// TestLimitBlocks: a key that overflows is listed until its block is over, by its name and once.
func TestLimitBlocks(t *testing.T) {
	ctx := context.Background()
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			p := limiter.Policy{
				Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 1, Period: time.Second},
				Block: time.Minute,
			}
			l := newLimited(t, e, p, 1)
			l.take(limitStart, "", 1)
			l.take(limitStart.Add(time.Millisecond), "", 1)
			l.take(limitStart.Add(time.Second), "", 1)
			listed, err := e.ZRangeWithScores(ctx, l.call.Blocks, 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			until := limitStart.Add(time.Minute + time.Millisecond)
			if diff := cmp.Diff([]redis.Z{{Score: float64(until), Member: l.call.Name}}, listed); diff != "" {
				t.Errorf("the blocked keys (-want +got):\n%s", diff)
			}
			other := newLimited(t, e, p, 1)
			other.call.State, other.call.Log, other.call.Name = other.call.State+"2", other.call.Log+"2", "another"
			other.take(limitStart.Add(time.Hour), "", 1)
			other.take(limitStart.Add(time.Hour), "", 1)
			if listed, err := e.ZRange(ctx, l.call.Blocks, 0, -1).Result(); err != nil ||
				!slices.Equal(listed, []string{"another"}) {
				t.Errorf("an hour later: %v, %v", listed, err)
			}
		})
	}
}

// TestLimitMaxMemory: at maxmemory a limiter does not count and changes nothing. It still refuses
// what exceeds the limit.
func TestLimitMaxMemory(t *testing.T) {
	ctx, e := context.Background(), realEngine(t)
	for i, a := range limiter.Algorithms() {
		p := limiter.Policy{Algorithm: a, Rate: shaper.Rate{Limit: 2, Period: time.Minute}}
		l := newLimited(t, e, p, i+1)
		l.take(limitStart, "", 1)
		before := e.HGetAll(ctx, l.call.State).Val()
		if err := e.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
		call := l.call
		call.At, call.Cost = scripts.AtInstant(limitStart), 1
		if _, err := scripts.Run(ctx, e, nil, call.Call()); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s at maxmemory: %v, want OOM", a, err)
		}
		if diff := cmp.Diff(before, e.HGetAll(ctx, l.call.State).Val()); diff != "" {
			t.Errorf("%s at maxmemory changed:\n%s", a, diff)
		}
		l.take(limitStart, "", 2)
		if err := e.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLimitByTheServersClock: without an instant the server's clock decides.
func TestLimitByTheServersClock(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			for i, a := range limiter.Algorithms() {
				l := newLimited(t, e, limiter.Policy{Algorithm: a, Rate: shaper.Rate{Limit: 2, Period: time.Hour}}, i+1)
				call := l.call
				call.Cost = 1
				before := shaper.InstantOf(time.Now())
				values, err := scripts.Run(t.Context(), e, nil, call.Call())
				if err != nil {
					t.Fatal(err)
				}
				d, now, err := call.Decode(values)
				if err != nil || !d.Allowed {
					t.Errorf("%s: %+v, %v, want the request to be allowed", a, d, err)
				}
				if after := shaper.InstantOf(time.Now()); now < before || now > after {
					t.Errorf("%s: decided at %v, want from %v to %v", a, now, before, after)
				}
			}
		})
	}
}

// TestLimitDecodeRefuses: a malformed reply of a limiter is ErrReply.
func TestLimitDecodeRefuses(t *testing.T) {
	for _, values := range [][]any{
		nil, {"text"}, {int64(1), int64(1), int64(1)}, {int64(1), int64(1), int64(1), int64(1), "x"},
	} {
		if _, _, err := (scripts.LimitCall{}).Decode(values); !errors.Is(err, scripts.ErrReply) {
			t.Errorf("%v is taken for an answer (%v)", values, err)
		}
	}
}
