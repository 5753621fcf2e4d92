package api

import (
	"context"
	"time"

	"github.com/7509e464/sluice/queue"
)

// spuriousPause is the pause of a wait after a spurious signal, so that a noisy watch costs little.
const spuriousPause = 50 * time.Millisecond

// follow watches the job, reads it, and awaits its end unless it has come.
func (s *Server) follow(ctx context.Context, tenant, id string, end time.Time) (queue.Job, error) {
	ended, stop, err := s.watch(ctx, id, end)
	if err != nil {
		return queue.Job{}, err
	}
	job, err := s.backend.Job(ctx, tenant, id)
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
	return s.backend.Watch(ctx, id)
}

// await returns the job when it is done, at end, or when the server drains; the error is the
// context's or the queue's. The watch must have begun before the job was read; await stops it.
func (s *Server) await(
	ctx context.Context, tenant, id string, ended <-chan struct{}, stop func(), end time.Time,
) (queue.Job, error) {
	defer stop()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	for {
		over := false
		select {
		case <-ended:
		case <-timer.C:
			over = true
		case <-s.draining:
			over = true
		case <-ctx.Done():
			return queue.Job{}, ctx.Err()
		}
		job, err := s.backend.Job(ctx, tenant, id)
		if err != nil || over || job.State.Done() {
			return job, err
		}
		s.rest(ctx, min(spuriousPause, time.Until(end)))
	}
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
