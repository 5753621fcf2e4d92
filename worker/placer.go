package worker

import (
	"sync"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// placer puts the stamps of a shard on this process's clock, for both of the shard's loops. What is known of the shard's clock changes, and a later stamp
// is never put before a moment at which a job of an earlier stamp is still to leave: else jobs of one flow would overtake each other.
type placer struct {
	mu     sync.Mutex
	clock  relation
	before relation       // that put stamps later than clock does, up to until
	until  shaper.Instant // the latest stamp of then
	last   shaper.Instant // the latest stamp of all
}

// known is what is known of the shard's clock.
func (p *placer) known() relation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock
}

// learn changes what is known of the shard's clock.
func (p *placer) learn(now moment, change func(*relation)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.before.moment(p.until) < now {
		p.before = relation{} // what it put has left
	}
	was := p.clock
	change(&p.clock)
	if !was.known || p.clock.moment(p.last) >= was.moment(p.last) {
		return
	}
	if !p.before.known || p.before.moment(p.last) < was.moment(p.last) {
		p.before = was
	}
	p.until = p.last
}

// place makes jobs of leases.
func (p *placer) place(leases []queue.Lease) []*job {
	p.mu.Lock()
	defer p.mu.Unlock()
	jobs := make([]*job, len(leases))
	for i, l := range leases {
		at := p.clock.moment(l.Stamp)
		if p.before.known {
			at = max(at, p.before.moment(min(l.Stamp, p.until)))
		}
		jobs[i] = newJob(l, at, p.clock.moment(l.Deadline))
		p.last = max(p.last, l.Stamp)
	}
	return jobs
}
