package queue

import (
	"context"
	"encoding/json"
	"errors"
	"math/bits"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// Lateness is a histogram of how late departures were, up to 16.7 s. Each doubling has eight
// classes: a quantile is at most an eighth too high.
type Lateness [LatenessClasses]int64

// LatenessClasses is the number of classes.
const LatenessClasses = 176

// LatenessClass is the class of a lateness; negative ones are in class 0.
func LatenessClass(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	if us < 8 {
		return int(us)
	}
	doublings := bits.Len64(us) - 4
	return min(LatenessClasses-1, 8*doublings+int(us>>doublings))
}

// latenessOf is the upper end of a class.
func latenessOf(class int) time.Duration {
	if class < 8 {
		return time.Duration(class+1) * time.Microsecond
	}
	doublings := class/8 - 1
	return time.Duration(class%8+9) << doublings * time.Microsecond
}

// Sum is the number of departures counted.
func (l *Lateness) Sum() (n int64) {
	for _, c := range l {
		n += c
	}
	return n
}

// Quantile is the lateness that the share q of the departures does not exceed; 0 without any.
func (l *Lateness) Quantile(q float64) time.Duration {
	sum := l.Sum()
	rest := int64(q*float64(sum)+0.999999) - 1
	for class, c := range l {
		if rest -= c; c > 0 && rest < 0 {
			return latenessOf(class)
		}
	}
	return 0
}

// encode is the histogram as it is kept in Redis: a JSON object of its classes that are not empty.
func (l *Lateness) encode() []byte {
	counts := map[int]int64{}
	for class, n := range l {
		if n > 0 {
			counts[class] = n
		}
	}
	text, _ := json.Marshal(counts) // numbers cannot fail
	return text
}

// add adds an encoded histogram. It ignores what another version with other classes may write.
func (l *Lateness) add(text string) {
	var counts map[int]int64
	if json.Unmarshal([]byte(text), &counts) != nil {
		return
	}
	for class, n := range counts {
		if class >= 0 && class < LatenessClasses && n > 0 && n < 1<<40 {
			l[class] += n
		}
	}
}

// reportKept is how long a report of lateness or routes is kept; the next one comes sooner.
const reportKept = 3 * time.Second

// TellLateness keeps the lateness of a worker's last departures for 3 s. Errors: ErrUnavailable.
func (q *Queue) TellLateness(ctx context.Context, worker string, l Lateness) error {
	return unavailable(q.engine.patient.Set(ctx, latenessPrefix+worker, l.encode(), reportKept).Err())
}

// Workers sums the reports of the live workers for the last seconds.
type Workers struct {
	Live     int
	Lateness Lateness
	Routes   map[string]RouteLoad // by name; idle ones and those without a worker are absent
}

// workerTTL is how long a worker counts as live after a heartbeat.
const workerTTL = 3 * time.Second

// Workers reads the reports of the live workers. Errors: ErrUnavailable.
func (q *Queue) Workers(ctx context.Context) (w Workers, err error) {
	names, err := liveWorkers(ctx, q.engine.fast)
	if w.Live = len(names); err != nil || w.Live == 0 {
		return w, err
	}
	var keys []string
	for _, name := range names {
		keys = append(keys, latenessPrefix+name, routesPrefix+name)
	}
	texts, err := q.engine.fast.MGet(ctx, keys...).Result()
	w.Routes = map[string]RouteLoad{}
	for i, t := range texts {
		text, _ := t.(string) // nil of a worker that is idle
		if i%2 == 0 {
			w.Lateness.add(text)
		} else {
			addRoutes(w.Routes, text)
		}
	}
	return w, unavailable(err)
}

// liveWorkers returns the names of the workers with a recent heartbeat.
func liveWorkers(ctx context.Context, c redis.UniversalClient) (names []string, err error) {
	var server *redis.TimeCmd
	var numbers *redis.StringCmd
	var beats *redis.ZSliceCmd
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		server, numbers = p.Time(ctx), p.HGet(ctx, workersClock, lua.ClockNumbers)
		beats = p.ZRangeWithScores(ctx, workersKey, 0, -1)
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) { // Nil: there was no worker yet
		return nil, unavailable(err)
	}
	clock, err := lua.ParseClock(numbers.Val())
	if err != nil {
		return nil, unavailable(err)
	}
	now := max(server.Val().UnixMicro()+int64(clock.Off), int64(clock.Last)) // as in lib/clock.lua
	for _, b := range beats.Val() {
		if name, _ := b.Member.(string); int64(b.Score) > now-workerTTL.Microseconds() {
			names = append(names, name)
		}
	}
	return names, nil
}

// BreakerState is the state of a route's circuit breaker; a higher one lets less through.
type BreakerState int

// The states of a circuit breaker.
const (
	BreakerClosed BreakerState = iota
	BreakerHalfOpen
	BreakerOpen
)

// RouteLoad is the load of a route in one worker, or in all of them.
type RouteLoad struct {
	Breaker  BreakerState `json:"b"` // of several workers, the one that lets through the least
	InFlight int64        `json:"i"` // deliveries under way
	Ended    int64        `json:"e"` // deliveries that ended in the last minute
	Failed   int64        `json:"f"` // of them, those that did not succeed
}

// ReportRoutes keeps the load of a worker's routes for 3 s. Errors: ErrUnavailable.
func (q *Queue) ReportRoutes(ctx context.Context, worker string, routes map[string]RouteLoad) error {
	text, _ := json.Marshal(routes) // names and numbers cannot fail
	return unavailable(q.engine.patient.Set(ctx, routesPrefix+worker, text, reportKept).Err())
}

// addRoutes adds a report to routes. A malformed report, or a malformed route of one, is ignored.
func addRoutes(routes map[string]RouteLoad, report string) {
	var loads map[string]RouteLoad
	if json.Unmarshal([]byte(report), &loads) != nil {
		return
	}
	sane := func(n int64) bool { return n >= 0 && n <= 1<<40 }
	for name, l := range loads {
		if name == "" || l.Breaker < BreakerClosed || l.Breaker > BreakerOpen ||
			!sane(l.InFlight) || !sane(l.Ended) || !sane(l.Failed) {
			continue
		}
		sum := routes[name]
		routes[name] = RouteLoad{
			Breaker: max(sum.Breaker, l.Breaker), InFlight: sum.InFlight + l.InFlight,
			Ended: sum.Ended + l.Ended, Failed: sum.Failed + l.Failed,
		}
	}
}
