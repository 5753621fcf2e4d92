package callback

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// A receiver that never answers delays no callbacks of other tenants, although one tenant sends all
// its callbacks there.
func TestTarpitHoldsUpItsOwnCallbacksAlone(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(204)
		s := b.service(Config{})
		defer b.run(s)()
		for i := range 500 {
			c := completion(shaper.Succeeded, 1)
			c.Job.ID, c.Job.Tenant, c.CallbackURL = fmt.Sprintf("06ahtar%d", i), "loud", "http://"+tarpitHost+"/"
			b.handOver(s, c)
		}
		b.pass(3 * time.Second) // they have taken all that they can
		for i := range 20 {
			c := completion(shaper.Succeeded, 1)
			c.Job.ID, c.Job.Tenant = fmt.Sprintf("06ahquiet%d", i), "quiet"
			start := time.Now()
			b.handOver(s, c)
			for len(b.got()) == i {
				b.pass(10 * time.Millisecond)
				if time.Since(start) > 2*checkInterval {
					t.Fatalf("callback %d is not delivered after %v", i, time.Since(start))
				}
			}
			b.pass(500 * time.Millisecond)
		}
	})
}

// The callbacks of a receiver that does not keep up are in a queue of their own, and one that is
// handed over again is in one queue alone.
func TestSlowReceiversHaveTheirQueue(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(204)
		s := b.service(Config{})
		defer b.run(s)()
		loud := func(i int) queue.Completion {
			c := completion(shaper.Succeeded, 1)
			c.Job.ID, c.Job.Tenant, c.CallbackURL = fmt.Sprintf("06ahtar%d", i), "loud", "http://"+tarpitHost+"/"
			return c
		}
		of := func(name string) int {
			info, err := b.inspector.GetQueueInfo(name)
			if errors.Is(err, asynq.ErrQueueNotFound) {
				return 0
			}
			if err != nil {
				t.Fatal(err)
			}
			return info.Size
		}
		for i := range 60 { // 48 are attempted or wait for a slot
			b.handOver(s, loud(i))
		}
		b.pass(3 * time.Second)
		before := of(Queue)
		for i := range 200 {
			b.handOver(s, loud(i))
		}
		if main, slow := of(Queue), of(SlowQueue); main != before || slow != 200-before {
			t.Errorf("%d tasks are in the queue, want %d, and %d in that of slow receivers", main, before, slow)
		}
		b.handOver(s, completion(shaper.Succeeded, 1))
		b.pass(2 * checkInterval)
		if len(b.got()) != 1 {
			t.Error("the callback of another receiver is not delivered")
		}
	})
}

// A callback is archived only after a request of its own, although its receiver never answers and
// it has few attempts.
func TestEveryCallbackIsTriedBeforeItIsGivenUp(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.answers(204)
		s := b.service(Config{MaxAttempts: 2})
		defer b.run(s)()
		const n = 100
		for i := range n {
			c := completion(shaper.Succeeded, 1)
			c.Job.ID, c.CallbackURL = fmt.Sprintf("06ahtar%d", i), "http://"+tarpitHost+"/"
			b.handOver(s, c)
		}
		b.pass(10 * time.Minute)
		if got := counts(s); got[2] != n {
			t.Errorf("%v are archived, want %d", got, n)
		}
	})
}

// model is the slots of a test.
type model struct {
	*testing.T
	*slots
}

func (m model) take(to, tenant string) error { return m.slots.take(m.Context(), to, tenant, false) }

func (m model) mustTake(to, tenant string) {
	m.Helper()
	if err := m.take(to, tenant); err != nil {
		m.Fatal(err)
	}
}

func inSlots(t *testing.T, most int, test func(model)) {
	synctest.Test(t, func(t *testing.T) { test(model{t, newSlots(most)}) })
}

// A receiver gets at most a quarter of the slots, a tenant half. A free slot goes to the tenant
// with the fewest.
func TestSlotsAreShared(t *testing.T) {
	inSlots(t, 8, func(m model) { // 2 of a receiver, 4 of a tenant
		start := time.Now()
		m.mustTake("a", "loud")
		m.mustTake("a", "loud")
		if err := m.take("a", "quiet"); isFailure(err) || time.Since(start) != slotWait {
			t.Errorf("a third of one receiver: %v after %v", err, time.Since(start))
		}
		m.mustTake("b", "loud")
		m.mustTake("b", "loud")
		if err := m.take("c", "loud"); isFailure(err) {
			t.Errorf("a fifth of one tenant: %v", err)
		}
		m.mustTake("c", "quiet")
		m.mustTake("c", "quiet")
		m.mustTake("d", "other")
		m.mustTake("d", "other")
		// All are taken. Who has the fewest comes first, though it comes last.
		got := make(chan string, 2)
		for _, tenant := range []string{"quiet", "new"} {
			go func() {
				if m.take("e", tenant) == nil {
					got <- tenant
				}
			}()
			synctest.Wait()
		}
		m.give("b", "loud", start, new(true))
		synctest.Wait()
		if len(got) != 1 || <-got != "new" {
			t.Error("the slot went to the tenant that has more")
		}
		m.give("d", "other", start, new(true))
		if tenant := <-got; tenant != "quiet" {
			t.Errorf("then to %s", tenant)
		}
		for to, tenants := range map[string][]string{
			"a": {"loud", "loud"}, "b": {"loud"}, "c": {"quiet", "quiet"}, "d": {"other"},
			"e": {"new", "quiet"},
		} {
			for _, tenant := range tenants {
				m.give(to, tenant, start, new(true))
			}
		}
		m.mustTake("f", "loud") // it had been postponed
		m.give("f", "loud", start, new(true))
		queuetest.Compare(m, "slots that are still taken", m.taken, 0)
		queuetest.Compare(m, "tenants that are remembered", len(m.tenants), 0)
		queuetest.Compare(m, "callers that wait", len(m.waiting), 0)
	})
}

// Few callbacks of one tenant wait for a slot, and they give way to those of another.
func TestWaitersAreShared(t *testing.T) {
	inSlots(t, 4, func(m model) { // 8 wait at most, 4 of a tenant, 2 of a receiver
		for i, tenant := range []string{"a", "a", "b", "b"} {
			m.mustTake(fmt.Sprint(i), tenant)
		}
		postponed := make(chan string, 20)
		wait := func(to, tenant string) {
			go func() {
				if !isFailure(m.take(to, tenant)) {
					postponed <- tenant
				}
			}()
			synctest.Wait()
		}
		for i := range 5 {
			wait(fmt.Sprint("a", i), "a")
		}
		if len(postponed) != 1 || <-postponed != "a" {
			t.Error("a fifth of one tenant waits")
		}
		for i := range 4 {
			wait(fmt.Sprint("b", i), "b")
		}
		wait("c", "c")
		if tenant := <-postponed; tenant == "c" || len(m.waiting) != m.line {
			t.Errorf("%s made room, %d wait", tenant, len(m.waiting))
		}
		m.stop()
		synctest.Wait()
		if len(m.waiting) != 0 {
			t.Errorf("%d wait after the stop", len(m.waiting))
		}
	})
}

// Tasks of a slow receiver come back one after the other, at its pace.
func TestPostponedTasksCannotPileUp(t *testing.T) {
	inSlots(t, 8, func(m model) {
		start := time.Now()
		m.mustTake("a", "t")
		m.mustTake("a", "t")
		<-time.After(10 * time.Second)
		m.give("a", "t", start, new(true))
		m.mustTake("a", "t")
		m.slots.stop()
		var last time.Duration
		for i := range 100 {
			var p errPostponed
			if err := m.take("a", "t"); !errors.As(err, &p) {
				t.Fatal(err)
			}
			least := min(firstPostponement+time.Duration(i)*5*time.Second, longestPostponement)
			if p.delay < least || p.delay > least+least/4 {
				t.Fatalf("task %d is postponed by %v, want %v or up to a quarter more", i, p.delay, least)
			}
			last = p.delay
		}
		if last < longestPostponement {
			t.Errorf("the last by %v", last)
		}
	})
}

// A receiver that fails again and again gets only probes, at growing intervals, and the last
// attempts of callbacks. A success closes its breaker.
func TestBreakerOfAReceiver(t *testing.T) {
	inSlots(t, 8, func(m model) {
		fail := func() {
			t.Helper()
			m.mustTake("a", "t")
			m.give("a", "t", time.Now(), new(false))
		}
		for range breakerFailures {
			fail()
		}
		open := firstOpen
		for range 5 {
			if err := m.take("a", "t"); !errors.Is(err, errSkipped) {
				t.Fatalf("%v though it is open", err)
			}
			m.mustTake("b", "t") // another receiver
			m.give("b", "t", time.Now(), new(true))
			<-time.After(open - time.Millisecond)
			if err := m.take("a", "t"); !errors.Is(err, errSkipped) {
				t.Fatalf("%v before %v are over", err, open)
			}
			<-time.After(time.Millisecond)
			m.mustTake("a", "t") // the probe
			if err := m.take("a", "t"); !errors.Is(err, errSkipped) {
				t.Errorf("%v beside the probe", err)
			}
			m.give("a", "t", time.Now(), new(false))
			open = min(2*open, longestOpen)
		}
		if m.open() != 1 {
			t.Errorf("%v are open", m.open())
		}
		if err := m.slots.take(t.Context(), "a", "t", true); err != nil {
			t.Errorf("the last attempt of a callback: %v", err)
		}
		m.give("a", "t", time.Now(), new(true))
		if m.open() != 0 || len(m.receivers) != 0 {
			t.Errorf("%v are open, %v", m.open(), m.receivers)
		}
		fail() // one failure is none
		m.mustTake("a", "t")
	})
}

// TestReceiverOfTwoTenants: calls of one tenant that fail or hang take nothing of those of another
// at the same host.
func TestReceiverOfTwoTenants(t *testing.T) {
	inSlots(t, 16, func(m model) { // 4 of a receiver
		for range breakerFailures {
			m.mustTake("a", "loud") // with TLS to a port without, for example
			m.give("a", "loud", time.Now(), new(false))
		}
		if err := m.take("a", "loud"); !errors.Is(err, errSkipped) {
			t.Errorf("the one that fails: %v", err)
		}
		for range 20 {
			m.mustTake("a", "quiet")
			m.give("a", "quiet", time.Now(), new(true))
		}
		if err := m.take("a", "loud"); !errors.Is(err, errSkipped) {
			t.Errorf("the one that fails, after answers to the other: %v", err)
		}
		began := time.Now()
		for range 2 {
			m.mustTake("b", "quiet")
		}
		for range 2 {
			m.mustTake("b", "loud")
		}
		if err := m.take("b", "loud"); isFailure(err) || err == nil {
			t.Errorf("more than half of a receiver of two: %v", err)
		}
		for range 100 { // its calls hang, and always wait for more
			<-time.After(10 * time.Second)
			m.give("b", "loud", began, nil)
			m.mustTake("b", "loud")
			m.give("b", "quiet", began, nil)
			m.mustTake("b", "quiet")
		}
		for range 2 {
			m.give("b", "quiet", began, nil)
			m.give("b", "loud", began, nil)
		}
	})
}

// A tenant with more receivers than slots waits for its own: its tasks come back at its pace,
// and go to the slow queue. All guests together are as one tenant.
func TestATenantWithManyReceivers(t *testing.T) {
	for what, tenant := range map[string]func(i int) string{
		"a tenant": func(int) string { return "loud" },
		"guests":   func(i int) string { return fmt.Sprint("guest:192.0.2.", i) },
	} {
		inSlots(t, 64, func(m model) {
			start := time.Now()
			for i := range 32 {
				m.mustTake(fmt.Sprint("dark", i), tenant(i))
			}
			time.Sleep(10 * time.Second)
			m.give("dark0", tenant(0), start, new(false))
			m.mustTake("dark32", tenant(32))
			var last time.Duration
			for i := range 3000 {
				m.slots.mu.Lock()
				postponed, _ := errors.AsType[errPostponed](m.postpone(fmt.Sprint("dark", 100+i), party(tenant(i))))
				m.slots.mu.Unlock()
				last = postponed.delay
			}
			if last < 900*time.Second || last > longestOfTenant*5/4 {
				t.Errorf("%s: the last of 3,000 comes back after %v", what, last)
			}
			if !m.slow("new", tenant(7)) || m.slow("new", "quiet") {
				t.Errorf("%s: slow is %v, and of another %v", what, m.slow("new", tenant(7)), m.slow("new", "quiet"))
			}
			m.mustTake("dark0", "quiet")
		})
	}
}

// A tenant with thousands of receivers does not make the breakers of others forgotten.
func TestBreakersOfOthersAreRemembered(t *testing.T) {
	inSlots(t, 8, func(m model) {
		for range breakerFailures {
			m.mustTake("dead", "quiet")
			m.give("dead", "quiet", time.Now(), new(false))
		}
		for i := range 2 * mostReceivers {
			m.mustTake(fmt.Sprint(i), "loud")
			m.give(fmt.Sprint(i), "loud", time.Now(), new(false))
		}
		if m.open() != 1 {
			t.Errorf("%v breakers are open", m.open())
		}
	})
}

// At most mostReceivers receivers are remembered.
func TestReceiversAreBounded(t *testing.T) {
	inSlots(t, 8, func(m model) {
		for i := range 2 * mostReceivers {
			to := fmt.Sprint(i)
			m.mustTake(to, "t")
			m.give(to, "t", time.Now(), new(false))
		}
		if n := len(m.receivers); n > mostReceivers {
			t.Errorf("%d receivers are remembered", n)
		}
	})
}
