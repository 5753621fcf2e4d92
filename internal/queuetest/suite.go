// Package queuetest is the conformance suite of package queue: what it promises, each promise one
// small named test, through its public methods alone. It runs on every engine; a new promise
// is written down here first.
//
// No test sleeps. Where possible a poll has a horizon of an hour, so that what leaves later is
// leased now and its stamps are compared exactly; where real time must pass, the test waits for
// what it brings.
package queuetest

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Run runs the suite. Every test gets an engine of its own from fresh, empty, which must end with
// that test.
func Run(t *testing.T, fresh func(t *testing.T) *queue.Engine) { run(t, fresh, "") }

// ofSizes are tests that count bytes as they are stored in clear.
var ofSizes = []string{
	"bytes count as they are stored", "stored answers count in the share", "payloads are bounded in bytes",
	"compressed payloads count by their stored bytes", "bytes come and go with the jobs", "a replay is bounded in bytes",
}

// RunEncrypted runs the suite in encrypted stores, without the tests that count bytes.
func RunEncrypted(t *testing.T, fresh func(t *testing.T) *queue.Engine) {
	file := filepath.Join(t.TempDir(), "codec.key")
	if err := sealed.AddKey(file); err != nil {
		t.Fatal(err)
	}
	run(t, fresh, file)
}

// run runs the suite, encrypted if there is a key file.
func run(t *testing.T, fresh func(t *testing.T) *queue.Engine, keyFile string) {
	topics := map[string]map[string]func(*suite){
		"admission": admissionTests, "idempotency": idempotencyTests, "batch": batchTests,
		"delay": delayTests, "job": jobTests,
		"names": nameTests, "replay": replayTests, "lease": leaseTests, "settle": settleTests,
		"fence": fenceTests, "tune": tuneTests,
		"figures": figureTests, "file": fileTests, "list": listTests, "workers": workerTests, "watch": watchTests,
		"outbox": outboxTests, "purge": purgeTests, "bounds": boundsTests, "keys": keyTests, "tiers": tierTests, "payload": payloadTests,
		"motion": motionTests, "damage": damageTests, "costs": costTests, "pools": poolTests, "answers": answerTests, "relays": relayTests,
	}
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		t.Run(topic, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(topics[topic])) {
				if keyFile != "" && slices.Contains(ofSizes, name) {
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s := &suite{T: t, ctx: t.Context(), engine: fresh(t), keyFile: keyFile, consumers: map[string]*queue.Consumer{}}
					s.open(func(*queue.Options) {})
					t.Cleanup(func() { _ = s.q.Close() }) // before the engine; a test that closes it checks the error itself
					topics[topic][name](s)
				})
			}
		})
	}
}

// Rates that tests use: quick hands out a backlog at once, slow gives one departure and then
// nothing for the rest of the test.
var (
	quick = shaper.Rate{Limit: 1000, Period: time.Second}
	slow  = shaper.Rate{Limit: 1, Period: time.Minute}
)

const (
	far    = time.Hour        // a horizon that leases whatever is planned
	near   = time.Millisecond // a horizon that leases what is due
	limit  = 20 * time.Second // of everything that a test waits for
	tenant = "acme"
)

// suite is one test with a queue of one shard, in which nothing but the test's own calls happens.
type suite struct {
	*testing.T
	ctx       context.Context
	engine    *queue.Engine
	q         *queue.Queue
	consumers map[string]*queue.Consumer
	keyFile   string // empty: not encrypted
	restarts  int    // part of the worker's ids, which are unique to a process
}

// open opens a queue on the engine: quick, of one shard and without a cap, but for what edit
// changes.
func (s *suite) open(edit func(*queue.Options)) {
	s.Helper()
	o := queue.Options{Shards: 1, Defaults: shaper.Policy{Rate: quick, Burst: 1, Capacity: 1000}}
	o.Encryption.KeyFile = s.keyFile
	edit(&o)
	q, err := queue.Open(s.ctx, s.engine, o)
	if err != nil {
		s.Fatalf("Open: %v", err)
	}
	s.q = q
}

// restart closes the queue and opens another on the same data, as after a restart of the process.
func (s *suite) restart(edit func(*queue.Options)) {
	s.Helper()
	if err := s.q.Close(); err != nil {
		s.Fatalf("Close: %v", err)
	}
	clear(s.consumers)
	s.restarts++
	s.open(edit)
}

// policy restarts with other defaults.
func (s *suite) policy(edit func(*shaper.Policy)) {
	s.Helper()
	s.restart(func(o *queue.Options) { edit(&o.Defaults) })
}

// work is a submission that asks for nothing special.
func work() queue.Submission {
	return queue.Submission{
		Tenant: tenant, Route: "default", Type: "order.create", Payload: []byte(`{"n":1}`), MaxAttempts: 3,
	}
}

func (s *suite) submit(w queue.Submission) queue.Decision {
	s.Helper()
	v, err := s.q.Submit(s.ctx, w)
	if err != nil {
		s.Fatalf("Submit: %v", err)
	}
	return v
}

// admit submits and insists on admission.
func (s *suite) admit(w queue.Submission) queue.Job {
	s.Helper()
	v := s.submit(w)
	if v.Outcome != shaper.Admitted {
		s.Fatalf("Submit: %s, want it admitted: %+v", v.Outcome, v)
	}
	return v.Job
}

// backlog admits n jobs and returns them in order.
func (s *suite) backlog(n int, w queue.Submission) []queue.Job {
	s.Helper()
	var jobs []queue.Job
	for len(jobs) < n {
		batch := slices.Repeat([]queue.Submission{w}, min(n-len(jobs), 1000))
		decisions, err := s.q.SubmitBatch(s.ctx, batch, true)
		if err != nil || decisions[0].Outcome != shaper.Admitted {
			s.Fatalf("SubmitBatch: %+v, %v", decisions, err)
		}
		for _, v := range decisions {
			jobs = append(jobs, v.Job)
		}
	}
	return jobs
}

// pollOptions are the options of one poll.
func pollOptions(most int, horizon time.Duration) queue.TickOptions {
	return queue.TickOptions{Max: most, Lease: time.Minute, Horizon: horizon, Sweep: time.Second}
}

// poll is one tick of shard 0 by the worker.
func (s *suite) poll(worker string, o queue.TickOptions) queue.Tick {
	s.Helper()
	tick, err := s.consumer(worker).Tick(s.ctx, o)
	if err != nil {
		s.Fatalf("Tick: %v", err)
	}
	return tick
}

// consumer is the worker's of shard 0.
func (s *suite) consumer(worker string) *queue.Consumer {
	c := s.consumers[worker]
	if c == nil {
		c = s.q.Broker().Consumer(fmt.Sprint(worker, s.restarts), 0)
		s.consumers[worker] = c
	}
	return c
}

// leaseUpTo polls until nothing is left to do or most jobs are leased.
func (s *suite) leaseUpTo(most int, horizon time.Duration) []queue.Lease {
	s.Helper()
	var leases []queue.Lease
	for polls := 0; len(leases) < most; polls++ {
		tick := s.poll("w", pollOptions(most-len(leases), horizon))
		leases = append(leases, tick.Leases...)
		if !tick.More {
			break
		}
		if polls > 1000 {
			s.Fatalf("a poll after a poll leaves work undone; %d jobs were leased", len(leases))
		}
	}
	return leases
}

// warm lets the shard apply the default policy to its flows, which it does once after a start, so
// that the next poll leases.
func (s *suite) warm() {
	s.Helper()
	for s.poll("w", pollOptions(0, near)).More {
		continue
	}
}

// lease leases exactly n jobs, however far ahead their stamps are.
func (s *suite) lease(n int) []queue.Lease {
	s.Helper()
	leases := s.leaseUpTo(n, far)
	if len(leases) != n {
		s.Fatalf("%d jobs leased, want %d", len(leases), n)
	}
	return leases
}

// none insists that nothing can be leased now, even with a far horizon.
func (s *suite) none() {
	s.Helper()
	if leases := s.leaseUpTo(1, far); len(leases) > 0 {
		s.Fatalf("leased %+v, want nothing to leave", leases)
	}
}

// settle ends one lease.
func (s *suite) settle(
	l queue.Lease, event shaper.Event, edit ...func(*queue.Settlement),
) queue.SettleResult {
	s.Helper()
	t := queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Event: event, MaxAttempts: l.MaxAttempts}
	for _, e := range edit {
		e(&t)
	}
	results, err := s.q.Broker().Settle(s.ctx, []queue.Settlement{t})
	if err != nil || len(results) != 1 {
		s.Fatalf("Settle: %v, %v", results, err)
	}
	return results[0]
}

func after(d time.Duration) func(*queue.Settlement) {
	return func(t *queue.Settlement) { t.Delay = d }
}

func (s *suite) job(id string) queue.Job {
	s.Helper()
	j, err := s.q.Job(s.ctx, tenant, id)
	if err != nil {
		s.Fatalf("Job: %v", err)
	}
	return j
}

func (s *suite) tenant(name string) queue.Tenant {
	s.Helper()
	t, err := s.q.Tenant(s.ctx, name)
	if err != nil {
		s.Fatalf("Tenant: %v", err)
	}
	return t
}

func (s *suite) tune(edit func(*shaper.Overrides)) queue.Tenant {
	s.Helper()
	t, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		edit(&o)
		return o, nil
	}})
	if err != nil {
		s.Fatalf("Tune: %v", err)
	}
	return t
}

// await polls until the condition holds.
func (s *suite) await(what string, holds func() bool) {
	s.Helper()
	Await(s, what, holds)
}

// Await polls until the condition holds, less often the longer it takes, and fails the test when it
// does not in time.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); {
		waited := time.Since(began)
		if waited > limit {
			t.Fatalf("waited %v in vain for: %s", limit, what)
		}
		// Polls that are further apart than two thirds of a lease would count as an outage.
		<-time.After(min(max(5*time.Millisecond, waited/8), 20*time.Millisecond))
	}
}

// Compare reports an error with the difference if the values differ. The test goes on.
func Compare[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Contains reports an error for each of the parts that the text lacks. The test goes on.
func Contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: got %s, want %q in it", what, text, part)
		}
	}
}

// Only returns the struct with the named fields alone; the others are zero. It serves to compare a
// few fields at once.
func Only[T any](v T, fields ...string) (out T) {
	from, to := reflect.ValueOf(v), reflect.ValueOf(&out).Elem()
	for _, name := range fields {
		to.FieldByName(name).Set(from.FieldByName(name))
	}
	return out
}

// receive takes a value from a channel in time.
func receive[T any](s *suite, what string, c <-chan T) T {
	s.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	select {
	case v, open := <-c:
		if !open {
			s.Fatalf("the channel was closed before: %s", what)
		}
		return v
	case <-deadline.C:
		s.Fatalf("waited %v in vain for: %s", limit, what)
	}
	panic("not reached")
}

// within insists on a value from low to high.
func within[T ~int64 | ~float64](s *suite, what string, got, low, high T) {
	s.Helper()
	if got < low || got > high {
		s.Errorf("%s is %v, want %v to %v", what, got, low, high)
	}
}

// equal compares two values that print well.
func equal[T comparable](s *suite, what string, got, want T) {
	s.Helper()
	if got != want {
		s.Errorf("%s is %v, want %v", what, got, want)
	}
}

func ids(jobs []queue.Job) []string {
	out := make([]string, len(jobs))
	for i, j := range jobs {
		out[i] = j.ID
	}
	return out
}

func leased(leases []queue.Lease) []string {
	out := make([]string, len(leases))
	for i, l := range leases {
		out[i] = l.ID
	}
	return out
}

// sameOrder insists that the jobs left in the order given.
func (s *suite) sameOrder(leases []queue.Lease, want ...string) {
	s.Helper()
	if got := leased(leases); !slices.Equal(got, want) {
		s.Errorf("left in the order %v, want %v", got, want)
	}
}

// spaced insists that consecutive stamps are exactly d apart.
func (s *suite) spaced(leases []queue.Lease, d time.Duration) {
	s.Helper()
	for i := 1; i < len(leases); i++ {
		if gap := leases[i].Stamp.Sub(leases[i-1].Stamp); gap != d {
			s.Errorf("gap %d between stamps is %v, want %v", i, gap, d)
		}
	}
}

func pointer[T any](v T) *T { return &v }

func text(v any) string { return fmt.Sprintf("%+v", v) }
