package worker

import (
	"slices"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// placer puts the stamps of a shard on this process's clock. What is known of the shard's clock
// changes, but a later stamp is never put before a moment at which a job of an earlier stamp is
// still to leave: on a cluster, jobs of one flow would overtake each other, by up to 2.5 ms.
type placer struct {
	known  relation
	last   shaper.Instant // the latest stamp that was put by known; 0: none
	before []placed
}

// placed is what was known of the clock while stamps up to until were put.
type placed struct {
	clock relation
	until shaper.Instant
}

// learn changes what is known of the shard's clock.
func (p *placer) learn(now moment, change func(*relation)) {
	was := p.known
	change(&p.known)
	if p.known != was && p.last != 0 {
		p.before = append(p.before, placed{was, p.last})
		p.last = 0
	}
	haveLeft := func(b placed) bool { return b.clock.moment(b.until) < now }
	p.before = slices.DeleteFunc(p.before, haveLeft)
}

// place makes jobs of the shard's leases.
func (p *placer) place(shard int, leases []queue.Lease) []*job {
	jobs := make([]*job, len(leases))
	for i, l := range leases {
		at := p.known.moment(l.Stamp)
		for _, b := range p.before {
			at = max(at, b.clock.moment(min(l.Stamp, b.until)))
		}
		jobs[i] = &job{lease: l, shard: shard, at: at}
		jobs[i].deadline.Store(int64(p.known.moment(l.Deadline)))
		p.last = max(p.last, l.Stamp)
	}
	return jobs
}
