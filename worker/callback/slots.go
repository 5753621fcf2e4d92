package callback

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

// errPostponed ends a task that was not attempted: the task is repeated after the delay.
type errPostponed struct {
	delay time.Duration
	cause error // nil: it had no slot
}

func (e errPostponed) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return "its receiver or its tenant has no slot left"
}

// errSkipped is the failure of an attempt that was not made because the receiver's breaker is open.
var errSkipped = errors.New("no attempt was made: the receiver gave no answer several times in a row")

const (
	// slotWait is how long a task waits for a slot before it is postponed: less than taskTail, so
	// that the attempt still has its whole timeout.
	slotWait = 2 * time.Second
	// firstPostponement and longestPostponement bound the delay of a postponed task, and
	// longestOfTenant that of one whose tenant has no slot left.
	firstPostponement, longestPostponement, longestOfTenant = 5 * time.Second, 5 * time.Minute, 30 * time.Minute

	// breakerFailures are the attempts without an answer, one after the other, that open a breaker.
	breakerFailures = 5
	// firstOpen is how long a breaker stays open, doubled by each failed probe up to longestOpen.
	firstOpen, longestOpen = 5 * time.Second, 30 * time.Second

	// mostReceivers are remembered at once, and as many tenants. Beyond it those without attempts
	// are forgotten, first the receivers of the tenant that brings another one.
	mostReceivers = 10_000
)

// slots shares the attempts that may be under way at once between receivers and between tenants, so
// that a receiver that answers slowly, or never, holds up its own callbacks alone:
//
//   - a receiver has at most a quarter of the slots, a tenant at most half, and all guests together
//     as much as a tenant;
//   - a slot that comes free goes to the waiting task whose tenant has the fewest attempts under
//     way;
//   - few tasks wait, and only for slotWait: then they go back to Redis for a while, which is no
//     attempt;
//   - a receiver that gives no answer breakerFailures times in a row gets one attempt at a time,
//     after pauses. Other attempts at it fail at once.
type slots struct {
	most, perReceiver, perTenant int
	line                         int // tasks that may wait; receivers and tenants have the same parts of it

	mu        sync.Mutex
	taken     int
	receivers map[string]*receiver // by host and port
	tenants   map[string]*sender   // by name; all guests are one
	waiting   []*waiter            // in the order of their arrival
	stopped   chan struct{}        // closed when no attempt may begin
}

// sender counts the attempts of one tenant.
type sender struct {
	taken     int
	postponed int           // tasks since one found a slot at once, because the tenant had none left
	pace      time.Duration // how long the last attempt took
}

// receiver counts the attempts at one host and port, and has its circuit breaker.
type receiver struct {
	tenant    string // the first that called it
	taken     int
	postponed int           // tasks since one found a slot at once
	pace      time.Duration // how long the last attempt took

	failing int       // attempts without an answer in a row
	opened  int       // times since the last answer
	until   time.Time // when the breaker permits a probe; zero while it is closed
	probing bool
}

// waiter is a task that waits for a slot.
type waiter struct {
	receiver, tenant string
	granted          bool
	over             chan struct{} // closed when it has a slot, or gave way to another task
}

func newSlots(most int) *slots {
	return &slots{
		most: most, perReceiver: max(1, most/4), perTenant: max(1, most/2), line: 2 * most,
		receivers: map[string]*receiver{}, tenants: map[string]*sender{}, stopped: make(chan struct{}),
	}
}

// stop postpones all tasks that wait or come from now on.
func (s *slots) stop() { close(s.stopped) }

// take waits for a slot. last attempts are made though the breaker is open: no callback is given up
// without a real one. The error is errPostponed or errSkipped.
func (s *slots) take(ctx context.Context, to, tenant string, last bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tenant = party(tenant)
	r := s.receiver(to, tenant)
	if !r.until.IsZero() && !last {
		if r.probing || time.Now().Before(r.until) {
			return errSkipped
		}
		r.probing = true
	}
	if s.fits(to, tenant) {
		r.postponed, s.sender(tenant).postponed = 0, 0
		s.grant(to, tenant)
		return nil
	}
	w := &waiter{receiver: to, tenant: tenant, over: make(chan struct{})}
	if s.enqueue(w) && s.await(ctx, w) {
		return nil
	}
	return s.postpone(to, tenant)
}

// party is the tenant, or for a guest the name under which all guests share what one tenant has.
func party(tenant string) string {
	if queue.IsGuest(tenant) {
		return queue.GuestPrefix
	}
	return tenant
}

// await waits without the lock, and reports whether the task got a slot.
func (s *slots) await(ctx context.Context, w *waiter) bool {
	s.mu.Unlock()
	select {
	case <-w.over:
	case <-time.After(slotWait):
	case <-s.stopped:
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.leave(w)
	return w.granted
}

// give frees a slot that was taken at the instant start. answered reports whether the receiver
// answered; nil means unknown, for example because the process stops.
func (s *slots) give(to, tenant string, start time.Time, answered *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tenant = party(tenant)
	r, t := s.receiver(to, tenant), s.sender(tenant)
	r.taken--
	s.taken--
	if t.taken--; t.taken == 0 && t.postponed == 0 {
		delete(s.tenants, tenant)
	}
	r.pace, t.pace = time.Since(start), time.Since(start)
	r.probing = false
	switch {
	case answered == nil:
	case *answered:
		r.failing, r.opened, r.until = 0, 0, time.Time{}
	default:
		// Attempts that were under way together count once the breaker is open.
		if r.failing++; r.failing >= breakerFailures && !time.Now().Before(r.until) {
			r.until = time.Now().Add(min(firstOpen<<min(r.opened, 10), longestOpen))
			r.opened++
		}
	}
	if r.taken == 0 && r.failing == 0 && r.postponed == 0 {
		delete(s.receivers, to)
	}
	s.serve()
}

// slow reports whether callbacks of the receiver or of the tenant were postponed, or the receiver's
// breaker is open.
func (s *slots) slow(to, tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, t := s.receivers[to], s.tenants[party(tenant)]
	return r != nil && (r.postponed > 0 || !r.until.IsZero()) || t != nil && t.postponed > 0
}

// open counts the receivers whose breaker is open.
func (s *slots) open() (n float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.receivers {
		if !r.until.IsZero() {
			n++
		}
	}
	return n
}

// The rest holds s.mu.

func (s *slots) receiver(to, tenant string) *receiver {
	r := s.receivers[to]
	if r == nil {
		for _, all := range []bool{false, true} {
			if len(s.receivers) >= mostReceivers {
				maps.DeleteFunc(s.receivers, func(_ string, r *receiver) bool {
					return r.taken == 0 && (all || r.tenant == tenant)
				})
			}
		}
		r = &receiver{tenant: tenant}
		s.receivers[to] = r
	}
	return r
}

func (s *slots) sender(tenant string) *sender {
	t := s.tenants[tenant]
	if t == nil {
		if len(s.tenants) >= mostReceivers {
			maps.DeleteFunc(s.tenants, func(_ string, t *sender) bool { return t.taken == 0 })
		}
		t = &sender{}
		s.tenants[tenant] = t
	}
	return t
}

func (s *slots) fits(to, tenant string) bool {
	return s.taken < s.most && s.receiver(to, tenant).taken < s.perReceiver && s.sender(tenant).taken < s.perTenant
}

func (s *slots) grant(to, tenant string) {
	s.taken++
	s.receiver(to, tenant).taken++
	s.sender(tenant).taken++
}

// enqueue lets a task wait, unless enough tasks of its receiver or tenant do. When the line is
// full, it drops the latest task of the tenant with the most waiting tasks.
func (s *slots) enqueue(w *waiter) bool {
	ofReceiver, ofTenant := 0, map[string]int{}
	for _, other := range s.waiting {
		ofTenant[other.tenant]++
		if other.receiver == w.receiver {
			ofReceiver++
		}
	}
	if ofReceiver >= 2*s.perReceiver || ofTenant[w.tenant] >= 2*s.perTenant {
		return false
	}
	if len(s.waiting) >= s.line {
		victim := w
		for _, other := range s.waiting {
			if ofTenant[other.tenant] > ofTenant[w.tenant] && ofTenant[other.tenant] >= ofTenant[victim.tenant] {
				victim = other
			}
		}
		if victim == w {
			return false
		}
		s.leave(victim)
		close(victim.over)
	}
	s.waiting = append(s.waiting, w)
	return true
}

// leave ends a wait.
func (s *slots) leave(w *waiter) {
	s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == w })
}

// serve gives free slots to waiting tasks.
func (s *slots) serve() {
	for s.taken < s.most {
		var next *waiter
		for _, w := range s.waiting {
			if s.fits(w.receiver, w.tenant) && (next == nil || s.sender(w.tenant).taken < s.sender(next.tenant).taken) {
				next = w
			}
		}
		if next == nil {
			return
		}
		s.leave(next)
		s.grant(next.receiver, next.tenant)
		next.granted = true
		close(next.over)
	}
}

// postpone returns the error of a task without a slot. Its delay lets those that were postponed
// before come first, at the pace of the receiver, or of the tenant where that has no slot left. So
// asynq moves the tasks of a long backlog rarely.
func (s *slots) postpone(to, tenant string) error {
	r, t := s.receiver(to, tenant), s.sender(tenant)
	r.probing = false
	delay := min(firstPostponement+time.Duration(r.postponed)*r.pace/time.Duration(s.perReceiver),
		longestPostponement)
	r.postponed++
	if t.taken >= s.perTenant {
		delay = max(delay, min(firstPostponement+time.Duration(t.postponed)*t.pace/time.Duration(s.perTenant), longestOfTenant))
		t.postponed++
	}
	if t.taken == 0 && t.postponed == 0 {
		delete(s.tenants, tenant)
	}
	return errPostponed{delay + rand.N(delay/4), nil}
}
