package api

import (
	"context"
	"errors"
	"time"

	"github.com/7509e464/sluice/api/internal/request"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// ends report the ends of jobs. A state that is read after Watch returned cannot miss the end.
type ends interface {
	Watch(ctx context.Context, id string) (ended <-chan struct{}, stop func(), err error)
	Answer(ctx context.Context, tenant, id string) (job queue.Job, answer *queue.Answer, err error)
}

// spuriousPause is the pause of a wait after a spurious signal, so that a noisy watch costs little.
const spuriousPause = 50 * time.Millisecond

// follow watches the job, reads it, and awaits its end unless it has come.
func (s *Server) follow(ctx context.Context, tenant, id string, end time.Time) (queue.Job, error) {
	ended, stop, err := s.watch(ctx, id, end)
	if err != nil {
		return queue.Job{}, err
	}
	return s.seen(ctx, tenant, id, ended, stop, end)
}

// seen is await for a job that may have ended before the watch.
func (s *Server) seen(
	ctx context.Context, tenant, id string, ended <-chan struct{}, stop func(), end time.Time,
) (queue.Job, error) {
	job, err := s.queue.Job(ctx, tenant, id)
	if err != nil || job.State.Done() {
		stop()
		return job, err
	}
	return s.await(ctx, tenant, id, ended, stop, end)
}

// watch begins a watch, which must be in force before end.
func (s *Server) watch(ctx context.Context, id string, end time.Time) (<-chan struct{}, func(), error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	return s.queue.Watch(ctx, id)
}

// await returns the job when it is done, at end, or when the server drains; the error is the
// context's or the queue's. The watch must have begun before the job was read; await stops it.
func (s *Server) await(
	ctx context.Context, tenant, id string, ended <-chan struct{}, stop func(), end time.Time,
) (queue.Job, error) {
	defer stop()
	for {
		over := s.pause(ctx, ended, end)
		if err := ctx.Err(); err != nil {
			return queue.Job{}, err
		}
		job, err := s.queue.Job(ctx, tenant, id)
		if err != nil || over || job.State.Done() {
			return job, err
		}
		s.rest(ctx, min(spuriousPause, time.Until(end)))
	}
}

// awaited is a job that a client waits for.
type awaited struct {
	decision queue.Decision  // with the job as it was last seen
	known    bool            // the job may have ended before the watch
	wait     time.Duration   // for the end of the job, at most; 0 for none
	ended    <-chan struct{} // of the watch; nil for none
	stop     func()          // ends the watch
	end      time.Time       // of the wait

	// Of a forwarded request:
	key    string // idempotency key; empty for none
	prefer request.Preference
	answer *queue.Answer   // nil for none, or none yet
	own    bool            // the client came by a listener of the route alone
	last   time.Time       // when the wait ends at the latest
	left   <-chan struct{} // closed when the client leaves; nil once it has
	drain  <-chan struct{} // closed when the server drains; nil once it does
	// atEnd is the status at the end of the wait, unless the client prefers how long it is; 0: 202.
	atEnd int
}

// newAwaited returns one without a watch. Inlined, it would take a kilobyte of its caller's frame.
//
//go:noinline
func newAwaited() *awaited { return &awaited{stop: func() {}} }

// Waits beyond that for the answer.
const (
	// leftPatience is how long a request may take to leave after its client has closed its side of
	// the connection. One that only says so that it sends no more (nc -N) gets its answer then.
	leftPatience = time.Second
	// leasedLook is how often a request that is under way is looked at: its worker may give it
	// back.
	leasedLook = 200 * time.Millisecond
)

// awaitAnswer waits for the answer to a forwarded request, and reads it with its job. Thousands of
// clients wait here at once: so that their stacks stay small, it has a small frame, and what it
// calls returns before the wait. While the store is unavailable it goes on until the end of the
// wait. A request that is under way when the server drains, or its client leaves, is waited for. If
// the client of another one leaves, the error is context.Canceled.
func (s *Server) awaitAnswer(ctx context.Context, f *awaited) error {
	defer f.stop()
	s.awaiting.Add(1)
	defer s.awaiting.Add(-1)
	f.left, f.drain, f.last = ctx.Done(), s.draining, f.end
	ctx = context.WithoutCancel(ctx)
	for look := f.known; ; {
		over := f.ended == nil || !time.Now().Before(f.end)
		if !look && !over {
			over = s.pauseFor(f)
		}
		done, err := s.readAnswer(ctx, f)
		away := errors.Is(err, queue.ErrUnavailable)
		switch {
		case over && away && f.decision.Outcome != "": // an error would make the client send it twice
			return nil
		case done, err != nil && !away:
			return err
		case over && f.underWay():
		case over && f.left == nil:
			return context.Canceled
		case over:
			return err
		}
		if look = away; away || !f.known {
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

// pauseFor returns when the watch reports, and true when the wait must end otherwise.
func (s *Server) pauseFor(f *awaited) (over bool) {
	timer := time.NewTimer(time.Until(f.end))
	defer timer.Stop()
	select {
	case <-f.ended:
		return false
	case <-timer.C:
		return true
	case <-f.drain:
		f.drain, f.last = nil, earlier(f.last, time.Now().Add(s.cfg.DrainGrace))
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

// pause returns when the watch reports, and true at end and when the wait must end otherwise.
func (s *Server) pause(ctx context.Context, ended <-chan struct{}, end time.Time) (over bool) {
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-ended:
		return false
	case <-timer.C:
	case <-s.draining:
	case <-ctx.Done():
	}
	return true
}

// readAnswer reads a job and its answer. done means that there will be no other. It has a frame of
// its own: see awaitAnswer.
//
//go:noinline
func (s *Server) readAnswer(ctx context.Context, f *awaited) (done bool, err error) {
	job, answer, err := s.queue.Answer(ctx, f.decision.Job.Tenant, f.decision.Job.ID)
	if err != nil {
		return false, err
	}
	f.decision.Job, f.answer = job, answer
	return answer != nil || job.State.Done(), nil
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
