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
//   - a receiver has at most a quarter of the slots, and one tenant at most half of these while
//     another one calls it, too; a tenant at most half of all, and all guests together as much;
//   - a slot that comes free goes to the waiting task whose tenant has the fewest attempts under
//     way;
//   - few tasks wait, and only for slotWait: then they go back to Redis for a while, which is no
//     attempt;
//   - a receiver that gives no answer to a tenant breakerFailures times in a row gets one attempt
//     of that tenant at a time, after pauses. Its other attempts there fail at once. Those of other
//     tenants do not: a tenant chooses the path and the scheme, and so whether there is an answer.
type slots struct {
	most, perReceiver, perTenant int
	line                         int // tasks that may wait; receivers and tenants have the same parts of it

	mu        sync.Mutex
	taken     int
	hosts     map[string]*host // by host and port
	receivers map[pair]*receiver
	tenants   map[string]*sender // by name; all guests are one
	waiting   []*waiter          // in the order of their arrival
	stopped   chan struct{}      // closed when no attempt may begin
}

// sender counts the attempts of one tenant.
type sender struct {
	taken     int
	postponed int           // tasks since one found a slot at once, because the tenant had none left
	pace      time.Duration // how long the last attempt took
}

// host counts the attempts of all tenants at one host and port.
type host struct {
	taken   int
	callers int // tenants for which there is a receiver
	busy    int // receivers of them that are busy
}

// pair names a receiver: the host and port, and the tenant that calls it.
type pair struct{ to, tenant string }

// receiver counts the attempts of a tenant at one host and port, and has their circuit breaker.
type receiver struct {
	taken     int
	postponed int           // tasks since one found a slot at once
	pace      time.Duration // how long the last attempt took
	busy      bool          // it has attempts or postponed tasks

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
		hosts: map[string]*host{}, receivers: map[pair]*receiver{}, tenants: map[string]*sender{}, stopped: make(chan struct{}),
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
	s.hosts[to].taken--
	s.taken--
	if t.taken--; t.taken == 0 && t.postponed == 0 {
		delete(s.tenants, tenant)
	}
	r.pace, t.pace = time.Since(start), time.Since(start)
	r.probing = false
	s.note(to, r)
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
		s.forget(pair{to, tenant})
	}
	s.serve()
}

// slow reports whether callbacks of the receiver or of the tenant were postponed, or the receiver's
// breaker is open.
func (s *slots) slow(to, tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	tenant = party(tenant)
	r, t := s.receivers[pair{to, tenant}], s.tenants[tenant]
	return r != nil && (r.postponed > 0 || !r.until.IsZero()) || t != nil && t.postponed > 0
}

// open counts the receivers whose breaker is open for some tenant.
func (s *slots) open() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := map[string]bool{}
	for p, r := range s.receivers {
		if !r.until.IsZero() {
			hosts[p.to] = true
		}
	}
	return float64(len(hosts))
}

// The rest holds s.mu.

func (s *slots) receiver(to, tenant string) *receiver {
	r := s.receivers[pair{to, tenant}]
	if r == nil {
		for _, all := range []bool{false, true} {
			if len(s.receivers) >= mostReceivers {
				for p, r := range s.receivers {
					if r.taken == 0 && (all || p.tenant == tenant) {
						s.forget(p)
					}
				}
			}
		}
		r = &receiver{}
		s.receivers[pair{to, tenant}] = r
		if s.hosts[to] == nil {
			s.hosts[to] = &host{}
		}
		s.hosts[to].callers++
	}
	return r
}

// note counts a receiver among the busy ones of its host, if it is one now.
func (s *slots) note(to string, r *receiver) {
	if busy := r.taken > 0 || r.postponed > 0; busy != r.busy {
		r.busy = busy
		if busy {
			s.hosts[to].busy++
		} else {
			s.hosts[to].busy--
		}
	}
}

// forget removes a receiver without attempts.
func (s *slots) forget(p pair) {
	s.receivers[p].postponed = 0
	s.note(p.to, s.receivers[p])
	delete(s.receivers, p)
	if s.hosts[p.to].callers--; s.hosts[p.to].callers == 0 {
		delete(s.hosts, p.to)
	}
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
	r, h, mine := s.receiver(to, tenant), s.hosts[to], s.perReceiver
	if h.busy > 1 || h.busy == 1 && !r.busy {
		mine = (mine + 1) / 2
	}
	return s.taken < s.most && h.taken < s.perReceiver && r.taken < mine && s.sender(tenant).taken < s.perTenant
}

func (s *slots) grant(to, tenant string) {
	s.taken++
	r := s.receiver(to, tenant)
	r.taken++
	s.note(to, r)
	s.hosts[to].taken++
	s.sender(tenant).taken++
}

// enqueue lets a task wait, unless enough tasks of its tenant do, or of its tenant for its
// receiver. When the line is
// full, it drops the latest task of the tenant with the most waiting tasks.
func (s *slots) enqueue(w *waiter) bool {
	ofReceiver, ofTenant := 0, map[string]int{}
	for _, other := range s.waiting {
		ofTenant[other.tenant]++
		if other.receiver == w.receiver && other.tenant == w.tenant {
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
	if t.taken >= s.perTenant {
		delay = max(delay, min(firstPostponement+time.Duration(t.postponed)*t.pace/time.Duration(s.perTenant), longestOfTenant))
		t.postponed++
	} else {
		r.postponed++
		s.note(to, r)
	}
	if t.taken == 0 && t.postponed == 0 {
		delete(s.tenants, tenant)
	}
	return errPostponed{delay + rand.N(delay/4), nil}
}
