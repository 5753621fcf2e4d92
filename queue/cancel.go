package queue

import (
	"context"
	"errors"
	"sync"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// cancelMost bounds the jobs that one call cancels: it takes Redis about two milliseconds.
const cancelMost = 16

// cancels gathers the cancellations of a tenant in a shard: what comes during one call makes the
// next one. A call of one job takes Redis half a millisecond, so beside 16 clients that cancelled,
// submissions of others waited for 16 calls.
type cancels struct {
	mu    sync.Mutex
	lines map[cancelsOf][]*cancel // those that wait or are under way; none is empty
}

type cancelsOf struct {
	tenant string
	shard  store.ShardKeys
}

// cancel is one cancellation.
type cancel struct {
	job  Job
	lead chan struct{} // closed when its caller is to make the next call, of all that wait then
	done chan struct{} // closed once another caller has made it
	code scripts.JobCode
	err  error
}

// cancel ends a waiting job of a tenant, together with others.
func (q *Queue) cancel(ctx context.Context, of cancelsOf, job Job) (scripts.JobCode, error) {
	c, own := &q.cancels, &cancel{job: job, lead: make(chan struct{}), done: make(chan struct{})}
	c.mu.Lock()
	if len(c.lines[of]) == 0 {
		close(own.lead)
	}
	c.lines[of] = append(c.lines[of], own)
	c.mu.Unlock()
	select {
	case <-own.done:
		return own.code, own.err
	case <-own.lead:
	}
	c.mu.Lock()
	n := min(len(c.lines[of]), cancelMost)
	all := c.lines[of][:n:n]
	c.mu.Unlock()
	q.cancelAll(context.WithoutCancel(ctx), of.tenant, all)
	c.mu.Lock()
	defer c.mu.Unlock()
	if rest := c.lines[of][len(all):]; len(rest) > 0 {
		c.lines[of] = rest
		close(rest[0].lead)
	} else {
		delete(c.lines, of)
	}
	for _, other := range all[1:] {
		close(other.done)
	}
	return own.code, own.err
}

// cancelAll makes the call. Where it fails for a damaged flow, the jobs of others are cancelled.
func (q *Queue) cancelAll(ctx context.Context, tenant string, all []*cancel) {
	jobs := make([]Job, len(all))
	for i, one := range all {
		jobs[i] = one.job
	}
	codes, err := q.discard(ctx, tenant, jobs, false)
	if errors.Is(err, ErrScript) && len(all) > 1 {
		for i := range all {
			q.cancelAll(ctx, tenant, all[i:i+1])
		}
		return
	}
	for i, one := range all {
		if one.err = err; err == nil {
			one.code = codes[i]
		}
	}
}
