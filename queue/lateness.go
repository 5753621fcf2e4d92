package queue

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// Lateness counts departures by how late they were: a histogram with eight classes for each doubling, so that what it says is at most an
// eighth too high, up to 16.7 s.
type Lateness [LatenessClasses]int64

// LatenessClasses is the number of classes.
const LatenessClasses = 176

// LatenessClass is the class of a lateness, of which negative ones are the lowest.
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

// Quantile is the lateness that the share q of the departures, from 0 to 1, does not exceed; 0 when there are none.
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

// encode is the histogram as it is kept in Redis: its classes that are not empty, like "17:3 20:1".
func (l *Lateness) encode() string {
	var b strings.Builder
	for class, n := range l {
		if n > 0 {
			fmt.Fprintf(&b, " %d:%d", class, n)
		}
	}
	return strings.TrimPrefix(b.String(), " ")
}

// add counts in what a histogram in the form of encode says. What is malformed, as a version with other classes may write, is left out.
func (l *Lateness) add(text string) {
	for part := range strings.FieldsSeq(text) {
		left, right, _ := strings.Cut(part, ":")
		class, err := strconv.Atoi(left)
		if err != nil || class < 0 || class >= LatenessClasses {
			continue
		}
		if n, err := strconv.ParseInt(right, 10, 64); err == nil && n > 0 && n < 1<<40 {
			l[class] += n
		}
	}
}

// latenessKept is how long what a worker tells of its departures is kept; it tells it more often.
const latenessKept = 3 * time.Second

// TellLateness keeps for 3 s how late the worker's last departures were. Errors: ErrUnavailable.
func (q *Queue) TellLateness(ctx context.Context, worker string, l Lateness) error {
	return unavailable(q.engine.patient.Set(ctx, latenessPrefix+worker, l.encode(), latenessKept).Err())
}

// Workers are the live workers, how late the departures of all of them were in the last seconds, and how their routes are.
type Workers struct {
	Live     int
	Lateness Lateness
	Routes   map[string]RouteLoad // by name; what is not there has nothing to tell, or no worker
}

// workerTTL is how long a worker counts as live without having been heard of; those with short leases call each other gone sooner.
const workerTTL = 3 * time.Second

// Workers asks who works. Errors: ErrUnavailable.
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

// liveWorkers are the names of the workers that were heard of lately.
func liveWorkers(ctx context.Context, c redis.UniversalClient) (names []string, err error) {
	var server *redis.TimeCmd
	var numbers *redis.StringCmd
	var beats *redis.ZSliceCmd
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		server, numbers, beats = p.Time(ctx), p.HGet(ctx, workersClock, lua.ClockNumbers), p.ZRangeWithScores(ctx, workersKey, 0, -1)
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) { // no worker was ever heard of
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
