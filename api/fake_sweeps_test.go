package api

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func (f *fakeQueue) Cancel(_ context.Context, name, id string) (queue.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(name, id)
	switch {
	case err != nil:
		return queue.Job{}, err
	case j.State == shaper.Cancelled:
		return j.Job, nil
	case !j.State.Waiting():
		return j.Job, queue.ErrConflict
	}
	f.leave(j)
	j.State, j.Finished = shaper.Cancelled, time.Now()
	return j.Job, nil
}

func (f *fakeQueue) Replay(_ context.Context, name, id string, as queue.Replaying) (queue.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(name, id)
	switch {
	case err != nil:
		return queue.Decision{}, err
	case j.State != shaper.Dead:
		return queue.Decision{Job: j.Job}, queue.ErrConflict
	}
	if j.submission.Tier = "the last"; as.Tier != nil {
		j.submission.Tier = *as.Tier
	}
	return f.replay(j, as.MaxAttempts), nil
}

func (f *fakeQueue) replay(j *fakeJob, maxAttempts int) queue.Decision {
	t := f.tenant(j.Tenant)
	flow, a := shaper.Admit(t.flow, t.policy(), shaper.InstantOf(time.Now()),
		shaper.Request{Size: 1, Cost: 1, Type: j.Type}, nil)
	t.flow = flow
	if a.Outcome == shaper.Admitted {
		j.State, j.Attempts, j.Position, j.MaxAttempts = shaper.Queued, 0, a.Position, maxAttempts
	}
	return queue.Decision{Admission: a, Job: j.Job}
}

func (f *fakeQueue) Purge(_ context.Context, name string, filter queue.Filter) (queue.Swept, error) {
	return f.sweep(name, filter, func(j *fakeJob) *shaper.Admission {
		if j.State == shaper.Dead {
			delete(f.jobs, j.ID)
			return nil
		}
		f.leave(j)
		j.State, j.Finished = shaper.Cancelled, time.Now()
		return nil
	}, shaper.Queued, shaper.Scheduled, shaper.Retrying, shaper.Dead)
}

func (f *fakeQueue) ReplayAll(
	_ context.Context, name string, filter queue.Filter, attempts func(queue.Job) int,
) (queue.Swept, error) {
	return f.sweep(name, filter, func(j *fakeJob) *shaper.Admission {
		if v := f.replay(j, attempts(j.Job)); v.Outcome != shaper.Admitted {
			return &v.Admission
		}
		return nil
	}, shaper.Dead)
}

// sweep calls do with the filter's jobs in these states, the newest first, until one is refused.
func (f *fakeQueue) sweep(
	name string, filter queue.Filter, do func(*fakeJob) *shaper.Admission, states ...shaper.State,
) (queue.Swept, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	swept := queue.Swept{CreatedBefore: filter.CreatedBefore}
	if swept.CreatedBefore.IsZero() {
		swept.CreatedBefore = time.Now()
	}
	if f.failure != nil {
		return swept, f.failure
	}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(f.jobs))) {
		j := f.jobs[id]
		if j.Tenant != name || !slices.Contains(states, j.State) ||
			len(filter.IDs) > 0 && !slices.Contains(filter.IDs, id) ||
			filter.State != "" && j.State.String() != string(filter.State) ||
			filter.Route != "" && j.Route != filter.Route ||
			filter.Error != "" && !j.Failed(filter.Error) ||
			!j.Created.Before(swept.CreatedBefore) {
			continue
		}
		if swept.Count == f.SweptMost {
			swept.More = true
			break
		}
		if swept.Refusal = do(j); swept.Refusal != nil {
			break
		}
		swept.Count++
	}
	return swept, nil
}

func (f *fakeQueue) Note(_ context.Context, name string, entry queue.HistoryEntry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenant(name)
	entry.At, entry.Revision = time.Now(), t.revision
	t.history = append([]queue.HistoryEntry{entry}, t.history...)
	return f.failure
}
