// Package reports keeps what workers report to the other processes: how late departures were, and
// the load of their routes. A report is kept for 3 s; the next one comes sooner.
package reports

import (
	"cmp"
	"context"
	"encoding/json"
	"math/bits"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

// Lateness is a histogram of how late departures were, up to 16.7 s. Each doubling has eight
// classes: a quantile is at most an eighth too high.
type Lateness [LatenessClasses]int64

// LatenessClasses is the number of classes.
const LatenessClasses = 176

// LatenessClass returns the class of a lateness, 0 to LatenessClasses-1; negative ones are in class
// 0.
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

// Sum returns the number of departures counted.
func (l *Lateness) Sum() (n int64) {
	for _, c := range l {
		n += c
	}
	return n
}

// Quantile returns the lateness that the share q, 0 to 1, of the departures does not exceed; 0 if
// there are none.
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

// age is how long a report is valid.
const age = 3 * time.Second

// Reports stores the reports of workers. Every error wraps queue.ErrUnavailable.
type Reports struct{ store *store.Store }

// New returns the reports of a queue; see store.Of.
func New(s *store.Store) *Reports { return &Reports{s} }

// ReportLateness stores the lateness of a worker's last departures for three seconds.
func (r *Reports) ReportLateness(ctx context.Context, worker string, l Lateness) error {
	return store.Unavailable(r.store.Patient.Set(ctx, store.LatenessKey+worker, l.encode(), age).Err())
}

// Workers sums the reports of the live workers for the last seconds.
type Workers struct {
	Live     int                  // number of live workers
	Lateness Lateness             // of the departures of their last reports
	Routes   map[string]RouteLoad // by name; idle ones and those without a worker are absent
}

// Workers sums the stored reports of the live workers.
func (r *Reports) Workers(ctx context.Context) (w Workers, err error) {
	names, err := r.store.LiveWorkers(ctx)
	if w.Live = len(names); err != nil || w.Live == 0 {
		return w, err
	}
	var keys []string
	for _, name := range names {
		keys = append(keys, store.LatenessKey+name, store.RoutesKey+name)
	}
	texts, err := r.store.Reads.MGet(ctx, keys...).Result()
	w.Routes = map[string]RouteLoad{}
	for i, t := range texts {
		text, _ := t.(string) // nil of a worker that is idle
		if i%2 == 0 {
			w.Lateness.add(text)
		} else {
			addRoutes(w.Routes, text)
		}
	}
	return w, store.Unavailable(err)
}

// BreakerState is the state of a route's circuit breaker; a higher one lets less through.
type BreakerState int

// The states of a circuit breaker.
const (
	BreakerClosed BreakerState = iota
	BreakerHalfOpen
	BreakerOpen
)

// String is the state as the API names it.
func (s BreakerState) String() string { return [...]string{"closed", "half-open", "open"}[s] }

// RouteLoad is the load of a route in one worker, or in all of them.
type RouteLoad struct {
	Breaker  BreakerState `json:"b"` // of several workers, the one that lets through the least
	InFlight int64        `json:"i"` // deliveries under way
	Ended    int64        `json:"e"` // deliveries that ended in the last minute
	Failed   int64        `json:"f"` // of them, those that did not succeed
	// Token is why the route has no token for its upstream, for operators; empty if it has one or
	// needs none. Until is when its token ends, in seconds since 1970; 0 for none.
	Token string `json:"t,omitempty"`
	Until int64  `json:"u,omitempty"`
	// Streams are the answers that are passed on while they come. Oldest is when the oldest of them
	// began, in seconds since 1970; 0 for none.
	Streams int64 `json:"s,omitempty"`
	Oldest  int64 `json:"o,omitempty"`
	// Last is the last of the failed ones; zero for none.
	Last Failure `json:"l,omitzero"`
}

// Failure is a delivery that failed.
type Failure struct {
	At      int64  `json:"t"` // µs since 1970, by the clock of the worker
	Tenant  string `json:"n"`
	Job     string `json:"j"`
	Message string `json:"m"`
	Detail  string `json:"d,omitempty"` // for operators
	Status  int    `json:"s,omitempty"`
}

// textMost is how many bytes of a text of a failure are reported.
const textMost = 200

// cut shortens a text that is reported.
func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), textMost)], "") }

// FailureOf returns the failure of a delivery. It cuts long texts.
func FailureOf(at time.Time, tenant, job, message, detail string, status int) Failure {
	return Failure{at.UnixMicro(), tenant, job, cut(message), cut(detail), status}
}

// latest is the last instant of a failure that JSON can express, in the year 9999.
const latest = 253402300799e6

// earlier returns the earlier of two instants in seconds since 1970, where 0 is none. The second is
// none, too, if JSON cannot express it.
func earlier(at, other int64) int64 {
	if other <= 0 || other >= latest/1e6 || at > 0 && at < other {
		return at
	}
	return other
}

// ReportRoutes stores the load of a worker's routes for three seconds.
func (r *Reports) ReportRoutes(ctx context.Context, worker string, routes map[string]RouteLoad) error {
	text, _ := json.Marshal(routes) // names and numbers cannot fail
	return store.Unavailable(r.store.Patient.Set(ctx, store.RoutesKey+worker, text, age).Err())
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
			!sane(l.InFlight) || !sane(l.Ended) || !sane(l.Failed) || !sane(l.Streams) {
			continue
		}
		sum := routes[name]
		routes[name] = RouteLoad{
			Breaker: max(sum.Breaker, l.Breaker), InFlight: sum.InFlight + l.InFlight,
			Ended: sum.Ended + l.Ended, Failed: sum.Failed + l.Failed, Last: sum.Last,
			Token: cmp.Or(sum.Token, cut(l.Token)), Until: earlier(sum.Until, l.Until),
			Streams: sum.Streams + l.Streams, Oldest: earlier(sum.Oldest, l.Oldest),
		}
		if l.Last.At > sum.Last.At && l.Last.At <= latest && l.Last.Job != "" {
			joined := routes[name]
			joined.Last = l.Last
			routes[name] = joined
		}
	}
}
