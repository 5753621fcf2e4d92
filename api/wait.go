package api

import (
	"context"
	"errors"
	"time"

	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// ends report the ends of jobs. A state that is read after Watch returned cannot miss the end.
type ends interface {
	Watch(ctx context.Context, id string) (ended <-chan queue.End, stop func(), err error)
	WatchEarly(id string) (ended <-chan queue.End, inForce <-chan struct{}, stop func(), err error)
	Answer(ctx context.Context, tenant, id string, end queue.End) (job queue.Job, answer *queue.Answer, err error)
	Stream(ctx context.Context, tenant, id string) (*queue.Stream, error)
	Leave(ctx context.Context, id string) error
}

// awaited is a job that a client waits for.
type awaited struct {
	server   *Server
	decision queue.Decision   // with the job as it was last seen
	known    bool             // the job may have ended before the watch
	wait     time.Duration    // for the end of the job, at most; 0 for none
	ended    <-chan queue.End // of the watch; nil for none
	heard    queue.End        // that the watch received last
	stop     func()           // ends the watch
	end      time.Time        // of the wait
	doubt    time.Time        // when to read the job, whose end the watch may have missed; zero: never
	doubted  bool             // the wait was interrupted for that

	// Of a forwarded request:
	key    string // idempotency key; empty for none
	prefer codec.Preference
	answer *queue.Answer   // nil for none, or none yet
	stream *queue.Stream   // an answer that comes now; nil for none
	shown  *progress       // what the client is told while it waits; nil for nothing
	own    bool            // the client came by a listener of the route alone
	since  time.Time       // when the client came
	last   time.Time       // when the wait ends at the latest
	left   <-chan struct{} // closed when the client leaves; nil once it has
	drain  <-chan struct{} // closed when the server drains; nil once it does
	// atEnd is the status at the end of the wait, unless the client prefers how long it is; 0: 202.
	atEnd int
}

// newAwaited returns one without a watch. Inlined, it would take a kilobyte of its caller's frame:
// see awaitAnswer.
//
//go:noinline
func newAwaited(s *Server) *awaited { return &awaited{server: s, stop: func() {}} }

// watch begins a watch of the job, which must be in force before the end of the wait.
func (f *awaited) watch(ctx context.Context, id string) (err error) {
	ctx, cancel := context.WithDeadline(ctx, f.end)
	defer cancel()
	if f.ended, f.stop, err = f.server.queue.Watch(ctx, id); err != nil {
		f.ended, f.stop = nil, func() {}
	}
	return err
}

// watchEarly begins a watch of a job that is to be submitted. Beside its admission the watch costs
// no time, where Redis is 80 ms away as long as that.
func (f *awaited) watchEarly(id string) (inForce <-chan struct{}, err error) {
	if f.ended, inForce, f.stop, err = f.server.queue.WatchEarly(id); err != nil {
		f.ended, f.stop = nil, func() {}
	}
	return inForce, err
}

// admitted waits until the watch of a job that was submitted is in force. The job may have ended
// before that. This is rare, so it is enough to read the job once, a little later.
func (f *awaited) admitted(inForce <-chan struct{}) {
	timer := time.NewTimer(time.Until(f.end))
	defer timer.Stop()
	select {
	case <-inForce:
		f.doubt = time.Now().Add(doubtAfter)
	case <-timer.C:
	}
}

// look returns when a pause ends: at the given end, or before it to read a job whose end may have
// been missed.
func (f *awaited) look(end time.Time) time.Time {
	if f.doubted = false; f.doubt.IsZero() {
		return end
	}
	return earlier(end, f.doubt)
}

// interrupted reports whether a pause has ended to read such a job. That happens once in a wait.
func (f *awaited) interrupted() bool {
	f.doubted = !f.doubt.IsZero() && !time.Now().Before(f.doubt) && time.Now().Before(f.end)
	if f.doubted {
		f.doubt = time.Time{}
	}
	return f.doubted
}

// follow reads a job when it is done, at the end of the wait, or when the server drains.
func (s *Server) follow(ctx context.Context, tenant, id string, wait time.Duration) (queue.Job, error) {
	f := newAwaited(s)
	f.wait, f.end, f.known = wait, time.Now().Add(wait), true
	if err := f.watch(ctx, id); err != nil {
		return queue.Job{}, err
	}
	f.decision.Job.Tenant, f.decision.Job.ID = tenant, id
	err := f.awaitEnd(ctx)
	return f.decision.Job, err
}

// awaitEnd waits until the job is done, the wait is over or the server drains. decision has the job
// as it is then. After an error, which is the context's or the queue's, it has the job as it was.
func (f *awaited) awaitEnd(ctx context.Context) error {
	defer f.stop()
	if job := f.decision.Job; f.wait <= 0 || job.State.Done() || job.State == 0 && !f.known {
		return nil
	}
	for look := f.known; ; look = false {
		over := !look && f.pause(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		job, err := f.server.queue.Job(ctx, f.decision.Job.Tenant, f.decision.Job.ID)
		if err != nil {
			return err
		}
		if f.decision.Job = job; over || job.State.Done() {
			return nil
		}
		if !look && !f.doubted {
			f.server.rest(ctx, min(spuriousPause, time.Until(f.end)))
		}
	}
}

// pause returns when the watch reports, and true when the wait must end otherwise.
func (f *awaited) pause(ctx context.Context) (over bool) {
	timer := time.NewTimer(time.Until(f.look(f.end)))
	defer timer.Stop()
	for {
		select {
		case end := <-f.ended:
			if end.Part() {
				continue
			}
			return false
		case <-timer.C:
			return !f.interrupted()
		case <-f.server.draining:
		case <-ctx.Done():
		}
		return true
	}
}

// Pauses of waits, and waits beyond the end of a wait.
const (
	// spuriousPause follows a spurious signal, so that a noisy watch costs little.
	spuriousPause = 50 * time.Millisecond
	// doubtAfter is how long after an admission a job is read whose end may have been missed. Most
	// jobs of clients that wait end before.
	doubtAfter = 200 * time.Millisecond
	// leftPatience is how long a request may take to leave after its client has closed its side of
	// the connection. One that only says so that it sends no more (nc -N) gets its answer then.
	leftPatience = 800 * time.Millisecond
	// leasedLook is how often a request that is under way is looked at: its worker may give it
	// back.
	leasedLook = 200 * time.Millisecond
	// drainTail follows DrainGrace. A worker that stops at the same time cuts off what is under
	// way, and the client gets to know what became of its request.
	drainTail = time.Second
)

// awaitAnswer waits for the answer to a forwarded request, and reads it with its job. While the
// store is unavailable it goes on until the end of the wait. A request that is under way when the
// server drains, or its client leaves, is waited for. If the client of another one leaves, the
// error is context.Canceled.
//
// Thousands of clients wait here at once. So that each has a stack of 8 KiB and not of 16, it has a
// small frame, and what it calls returns before the wait (TestForwardWaitsOnSmallStacks).
func (f *awaited) awaitAnswer(ctx context.Context) error {
	s := f.server
	defer f.stop()
	s.awaiting.Add(1)
	defer s.awaiting.Add(-1)
	f.left, f.drain, f.last = ctx.Done(), s.draining, f.end
	ctx = context.WithoutCancel(ctx)
	for look := f.known; ; {
		over := f.ended == nil || !time.Now().Before(f.end)
		if !look && !over {
			over = f.pauseForAnswer()
		}
		done, err := f.readAnswer(ctx)
		away := errors.Is(err, queue.ErrUnavailable)
		switch {
		case over && away && f.decision.Outcome != "": // an error would make the client send it twice
			return nil
		case done, err != nil && !away:
			return err
		case over && f.left == nil && f.abandoned():
			return context.Canceled
		case over && f.underWay():
		case over && f.left == nil:
			return context.Canceled
		case over:
			return err
		}
		if look = away; away || !f.known && !f.doubted {
			s.rest(ctx, min(spuriousPause, time.Until(f.end)))
		}
		f.known = false
	}
}

// AwaitAnswers returns when no client waits for the answer to a forwarded request, or when ctx
// ends. While the server drains, they wait only for requests that are under way.
func (s *Server) AwaitAnswers(ctx context.Context) {
	for s.awaiting.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(leasedLook / 10):
		}
	}
}

// pauseForAnswer returns when the watch reports, and true when the wait must end otherwise.
func (f *awaited) pauseForAnswer() (over bool) {
	end := f.look(f.end)
	if f.shown != nil {
		end = earlier(end, f.shown.next)
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	f.heard = queue.End{}
	select {
	case f.heard = <-f.ended:
		return false
	case <-timer.C:
		f.interrupted()
		return !time.Now().Before(f.end)
	case <-f.drain:
		f.drain, f.last = nil, earlier(f.last, time.Now().Add(f.server.cfg.DrainGrace+drainTail))
		f.end = time.Now()
	case <-f.left:
		f.left, f.end = nil, time.Now()
		if f.decision.Outcome == "" { // it only reads
			f.last = f.end
			return true
		}
		f.end = earlier(f.last, f.end.Add(leftPatience))
		return false
	}
	return true
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// underWay reports whether to go on waiting at the end of the wait: while the server drains or the
// client has left, as long as the request is under way.
func (f *awaited) underWay() bool {
	now := time.Now()
	if f.drain != nil && f.left != nil || f.decision.Job.State != shaper.Leased || !now.Before(f.last) {
		return false
	}
	f.end = earlier(f.last, now.Add(leasedLook))
	return true
}

// readAnswer reads a job and its answer. done means that there will be no other. It has a frame of
// its own: see awaitAnswer.
//
//go:noinline
func (f *awaited) readAnswer(ctx context.Context) (done bool, err error) {
	s := f.server
	job, answer, err := s.queue.Answer(ctx, f.decision.Job.Tenant, f.decision.Job.ID, f.heard)
	if err != nil {
		return false, err
	}
	f.decision.Job, f.answer = job, answer
	if now := time.Now(); f.shown != nil && f.shown.due(now) {
		f.shown.tell(job, now)
		reader := budget.Owner{Tenant: job.Tenant}
		if wait := s.rows.Take(reader, now); wait > 0 { // the tenant reads too much: less often, then
			s.rows.Charge(reader, 1, now)
			f.shown.next = f.shown.next.Add(wait)
		}
	}
	if answer == nil && job.State == shaper.Leased {
		if f.stream, err = s.queue.Stream(ctx, job.Tenant, job.ID); err != nil {
			return false, err
		}
	}
	return answer != nil || f.stream != nil || job.State.Done(), nil
}

// abandoned reports whether nobody will read the answer once the client has left.
func (f *awaited) abandoned() bool {
	return f.key == "" && f.decision.Outcome != "" && (f.wait > 0 || !f.prefer.Given)
}

// rest sleeps, unless there is a reason to go on.
func (s *Server) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.draining:
	case <-ctx.Done():
	}
}
