package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// gate counts script calls and exchanges and can hold exchanges back.
type gate struct {
	calls, exchanges atomic.Int64
	entered          chan struct{} // receives when an exchange is held back; nil: none is
	pass             chan struct{} // closed to let them go
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g.enter(cmd)
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.enter(cmds...)
		return next(ctx, cmds)
	}
}

func (g *gate) enter(cmds ...redis.Cmder) {
	scripts := 0
	for _, c := range cmds {
		if c.Name() == "evalsha" || c.Name() == "eval" {
			scripts++
		}
	}
	if scripts == 0 {
		return
	}
	g.calls.Add(int64(scripts))
	g.exchanges.Add(1)
	if g.entered != nil {
		g.entered <- struct{}{}
		<-g.pass
	}
}

// embedded opens a queue on the embedded engine, both closed with the test.
func embedded(t *testing.T, edit func(*queue.Options), hooks ...redis.Hook) *queue.Queue {
	t.Helper()
	return open(t, queue.EngineOptions{Embedded: true}, edit, hooks...)
}

func open(
	t *testing.T, engine queue.EngineOptions, edit func(*queue.Options), hooks ...redis.Hook,
) *queue.Queue {
	t.Helper()
	e, err := queue.OpenEngine(t.Context(), engine)
	if err != nil {
		t.Fatalf("OpenEngine: %v", err)
	}
	o := queue.Options{
		Shards: 4,
		Defaults: shaper.Policy{
			Rate: shaper.Rate{Limit: 1000, Period: time.Second}, Burst: 1, Capacity: 1_000_000,
		},
	}
	edit(&o)
	q, err := queue.Open(t.Context(), e, o)
	for range 20 { // a busy machine may answer, and a replica acknowledge, too late
		if errors.Is(err, queue.ErrUnavailable) || errors.Is(err, queue.ErrOutcomeUnknown) {
			q, err = queue.Open(t.Context(), e, o)
		}
	}
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if len(hooks) > 0 { // which are to see each script once
		if err := scripts.Load(t.Context(), e.Client()); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range hooks {
		e.AddHook(h)
	}
	t.Cleanup(func() {
		_ = q.Close() // an error is that of a server which the test has ended
		_ = e.Close()
	})
	return q
}

func defaults(*queue.Options) {}

func work() queue.Submission {
	return queue.Submission{Tenant: "acme", Route: "default", Type: "t", Payload: []byte(`{}`), MaxAttempts: 3}
}

// slowType is the type of the jobs that slowly holds back.
const slowType = "takes.long"

// slowly is a hook that holds exchanges with jobs of slowType back for a time.
type slowly time.Duration

func (slowly) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d slowly) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		d.wait(cmd)
		return next(ctx, cmd)
	}
}

func (d slowly) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		d.wait(cmds...)
		return next(ctx, cmds)
	}
}

func (d slowly) wait(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			if text, is := arg.([]byte); is && bytes.Contains(text, []byte(slowType)) {
				time.Sleep(time.Duration(d))
				return
			}
		}
	}
}

// TestSlowOnesHoldUpNoOthers: submissions go with others of their kind.
func TestSlowOnesHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]struct{ jobs, bytes, beside int }{
		"large payloads": {1, 200 << 10, 2}, "small batches": {2, 2, 2}, "large batches": {100, 2, 2},
		"large beside middling payloads": {1, 200 << 10, 12 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const wait = time.Second
			q := embedded(t, defaults, slowly(wait))
			var all sync.WaitGroup
			for i := range 4 {
				s := work()
				s.Type, s.Payload = slowType, make([]byte, slow.bytes)
				rand.NewChaCha8([32]byte{byte(i)}).Read(s.Payload) // what can be compressed is not large
				all.Go(func() {
					batch := slices.Repeat([]queue.Submission{s}, slow.jobs)
					if _, err := q.SubmitBatch(t.Context(), batch, false); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(wait / 10) // until they are under way
			other := work()
			other.Payload = make([]byte, slow.beside)
			rand.NewChaCha8([32]byte{}).Read(other.Payload)
			start := time.Now()
			for range 20 {
				if _, err := q.Submit(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(start); took > wait*3/4 {
				t.Errorf("20 submissions of %d bytes took %v", slow.beside, took)
			}
			all.Wait()
		})
	}
}

// TestConcurrentSubmissionsAreGathered: what comes while exchanges are under way goes in few calls
// after them.
func TestConcurrentSubmissionsAreGathered(t *testing.T) {
	const submitters, atOnce = 400, 4
	g := &gate{entered: make(chan struct{}, submitters), pass: make(chan struct{})}
	q := embedded(t, defaults, g)
	var all sync.WaitGroup
	var admitted atomic.Int64
	for range submitters {
		all.Go(func() {
			if v, err := q.Submit(t.Context(), work()); err == nil && v.Outcome == shaper.Admitted {
				admitted.Add(1)
			}
		})
	}
	for range atOnce {
		<-g.entered
	}
	queuetest.Await(t, "all submissions to wait", func() bool {
		return q.Waiting() >= submitters-atOnce*128 && q.Waiting()+int(g.calls.Load()) >= atOnce
	})
	close(g.pass)
	all.Wait()
	if n := admitted.Load(); n != submitters {
		t.Errorf("%d of %d submissions were admitted", n, submitters)
	}
	if n := g.calls.Load(); n > submitters/8 {
		t.Errorf("%d script calls for %d concurrent submissions of one shard", n, submitters)
	}
}

// TestGatheredCallsGoTogether: submissions of several shards and batches that wait together share
// exchanges.
func TestGatheredCallsGoTogether(t *testing.T) {
	const tenants, atOnce = 60, 4
	g := &gate{entered: make(chan struct{}, 1000), pass: make(chan struct{})}
	q := embedded(t, defaults, g)
	var all sync.WaitGroup
	submit := func(i int) {
		all.Go(func() {
			w := work()
			w.Tenant = fmt.Sprint("tenant", i)
			v, err := q.Submit(t.Context(), w)
			if err != nil {
				t.Errorf("Submit: %v", err)
			}
			queuetest.Compare(t, "the admission", queuetest.Only(v.Admission, "Outcome", "Position"),
				shaper.Admission{Outcome: shaper.Admitted, Position: 1})
		})
	}
	for i := range atOnce {
		submit(i)
		<-g.entered
	}
	for i := atOnce; i < tenants; i++ {
		submit(i)
	}
	queuetest.Await(t, "the others to wait", func() bool { return q.Waiting() == tenants-atOnce })
	close(g.pass)
	all.Wait()
	if n := g.exchanges.Load(); n > 3*atOnce {
		t.Errorf("%d exchanges for %d submissions that waited together", n, tenants)
	}
}

// TestOneIDGatheredTwice: a client that gave up and one that tries again with its id may meet in
// one call; there is one job.
func TestOneIDGatheredTwice(t *testing.T) {
	g := &gate{entered: make(chan struct{}, 100), pass: make(chan struct{})}
	q := embedded(t, defaults, g)
	var all sync.WaitGroup
	submit := func(w queue.Submission) {
		all.Go(func() {
			if v, err := q.Submit(t.Context(), w); err != nil || v.Outcome != shaper.Admitted {
				t.Errorf("Submit: %+v, %v", v, err)
			}
		})
	}
	for range 4 {
		submit(work())
		<-g.entered
	}
	w := work()
	var err error
	if w.ID, err = q.NewID(w.Tenant, w.Route); err != nil {
		t.Fatal(err)
	}
	submit(w)
	submit(w)
	queuetest.Await(t, "both to wait", func() bool { return q.Waiting() == 2 })
	close(g.pass)
	all.Wait()
	tenant, err := q.Tenant(t.Context(), w.Tenant)
	if err != nil {
		t.Errorf("Tenant: %v", err)
	}
	queuetest.Compare(t, "after five jobs, one of them submitted twice",
		queuetest.Only(tenant.Figures, "Depth", "Admitted"), queue.Figures{Depth: 5, Admitted: 5})
}

// TestIdleSubmitDoesNotWait: no clock passes in the bubble between a lone submission and its
// answer.
func TestIdleSubmitDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		q := embedded(t, defaults, g)
		start := time.Now()
		if v, err := q.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
			t.Errorf("Submit: %+v, %v", v, err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("a lone submission took %v", d)
		}
		if n := g.calls.Load(); n != 1 {
			t.Errorf("%d script calls for one submission", n)
		}
	})
}

// TestCancelledSubmission: a caller whose context ends is answered at once, and what was not sent
// yet is not sent.
func TestCancelledSubmission(t *testing.T) {
	g := &gate{entered: make(chan struct{}, 100), pass: make(chan struct{})}
	q := embedded(t, defaults, g)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := q.Submit(t.Context(), work()); err != nil {
				t.Errorf("Submit: %v", err)
			}
		})
		<-g.entered
	}
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithCancel(t.Context())
		if errors.Is(cause, context.DeadlineExceeded) {
			ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		}
		failed := make(chan error)
		go func() {
			_, err := q.Submit(ctx, work())
			failed <- err
		}()
		if errors.Is(cause, context.Canceled) {
			queuetest.Await(t, "the submission to wait", func() bool { return q.Waiting() > 0 })
			cancel()
		}
		if err := <-failed; !errors.Is(err, cause) {
			t.Errorf("Submit: %v, want %v", err, cause)
		}
		cancel()
	}
	close(g.pass)
	all.Wait()
	if v, err := q.Submit(t.Context(), work()); err != nil || v.Position != 5 {
		t.Errorf("after four submissions and two given up: %+v, %v", v, err)
	}
}

// TestCloseAnswers: nobody waits for ever for a queue that closes.
func TestCloseAnswers(t *testing.T) {
	g := &gate{entered: make(chan struct{}, 100), pass: make(chan struct{})}
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	q, err := queue.Open(t.Context(), e, queue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.AddHook(g)
	failed := make(chan error, 20)
	for i := range 20 {
		go func() {
			_, err := q.Submit(t.Context(), work())
			failed <- err
		}()
		if i < 4 { // one for each flusher; the others wait
			<-g.entered
		}
	}
	closed := make(chan error)
	go func() { closed <- q.Close() }()
	for range 20 {
		if err := <-failed; !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("Submit while closing: %v, want ErrUnavailable", err)
		}
	}
	close(g.pass)
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := q.Submit(t.Context(), work()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("Submit after Close: %v, want ErrUnavailable", err)
	}
	if _, _, err := q.Watch(t.Context(), "x"); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("Watch after Close: %v, want ErrUnavailable", err)
	}
}

// TestOneBadSubmissionHarmsNoOther: what cannot be encoded is answered by itself, and costs Redis
// nothing.
func TestOneBadSubmissionHarmsNoOther(t *testing.T) {
	g := &gate{}
	q := embedded(t, defaults, g)
	bad := work()
	bad.Type = string(make([]byte, 256))
	if _, err := q.Submit(t.Context(), bad); err == nil {
		t.Error("a type of 256 bytes was taken")
	}
	if n := g.calls.Load(); n != 0 {
		t.Errorf("%d script calls for a submission that cannot be stored", n)
	}
	if _, err := q.SubmitBatch(t.Context(), []queue.Submission{work(), bad}, false); err == nil {
		t.Error("a batch with a type of 256 bytes was taken")
	}
	if v, err := q.Submit(t.Context(), work()); err != nil || v.Position != 1 {
		t.Errorf("the submission after it: %+v, %v", v, err)
	}
}

// TestOneIDPlainAndKeyed: one id is one job, also where one submission of a call has an idempotency
// key and the other none, and those behind them are stored under keys of their own.
func TestOneIDPlainAndKeyed(t *testing.T) {
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			g := &gate{entered: make(chan struct{}, 10), pass: make(chan struct{})}
			q := open(t, options(t), func(o *queue.Options) { o.Shards = 1 }, g)
			var all sync.WaitGroup
			submit := func(s queue.Submission) {
				all.Go(func() {
					v, err := q.Submit(t.Context(), s)
					if err != nil || v.Outcome != shaper.Admitted {
						t.Errorf("%q, key %q: %+v, %v", s.ID, s.IdempotencyKey, v, err)
					}
					if _, err := q.Job(t.Context(), "acme", v.Job.ID); err != nil {
						t.Errorf("%q, key %q was admitted: %v", s.ID, s.IdempotencyKey, err)
					}
				})
			}
			const atOnce = 4
			for range atOnce {
				submit(work())
				<-g.entered
			}
			twin := work()
			var err error
			if twin.ID, err = q.NewID("acme", twin.Route); err != nil {
				t.Fatal(err)
			}
			keyed := twin
			keyed.IdempotencyKey = "k"
			for i, s := range []queue.Submission{twin, keyed, work()} {
				submit(s)
				queuetest.Await(t, "it to wait", func() bool { return q.Waiting() == i+1 })
			}
			close(g.pass)
			all.Wait()
		})
	}
}
