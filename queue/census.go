package queue

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// Brief is what a census tells of a tenant: the figures that Tenant tells, and the settings they are read by.
type Brief struct {
	Name     string
	Rate     shaper.Rate
	Rates    []shaper.Pace // shared: nobody changes them
	Capacity int64
	Paused   bool
	Figures
}

// Census reads the figures of tenants shard by shard, about most of them (at least 1) in one short script, so that Redis is kept from
// nothing else; pass next as cursor for what follows, "" starts and ends. Every tenant that is known all the while is told, perhaps twice.
// Errors: ErrCursor, ErrUnavailable.
func (q *Queue) Census(ctx context.Context, cursor string, most int) (part []Brief, next string, err error) {
	n, from, err := readCursor(cursor, q.keys.Len())
	if err != nil {
		return nil, "", err
	}
	shard := q.keys.Shard(n)
	call := lua.CensusCall{Clock: shard.Clock(), Tenants: shard.Tenants(), Cursor: strconv.FormatInt(from, 10), Most: max(1, most), Dead: q.retention.Dead}
	values, err := q.run(ctx, call.Call())
	if err != nil {
		return nil, "", err
	}
	census, err := call.Decode(values)
	if err != nil {
		return nil, "", unavailable(err)
	}
	return q.judge.briefs(q.policies.Load(), census), cursorAfter(n, census.Cursor, q.keys.Len()), nil
}

// judge makes figures of what is stored. It remembers the policies it came to: most tenants have the same, and what is said of the others
// is read again and again.
type judge struct {
	mu       sync.Mutex
	from     *filePolicies // that the known ones follow from
	policies map[statement]shaper.Policy
}

// statement is what a policy follows from, beside the baseline.
type statement struct{ route, claimed, api, file string }

// maxJudged bounds what a judge remembers.
const maxJudged = 100_000

// briefs makes figures of a part of a census.
func (j *judge) briefs(from *filePolicies, census lua.Census) []Brief {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.from != from || len(j.policies) > maxJudged {
		j.from, j.policies = from, map[statement]shaper.Policy{}
	}
	briefs := make([]Brief, len(census.Tenants))
	for i, t := range census.Tenants {
		briefs[i] = j.brief(t, census.Now)
	}
	return briefs
}

func (j *judge) brief(t lua.CountedTenant, now shaper.Instant) Brief {
	s := statement{api: t.API, file: t.File}
	for _, f := range t.Flows {
		s.claimed = f.Tier
	}
	general := j.policy(s)
	sum := newTally(general, now)
	for _, f := range t.Flows {
		_, s.route, _ = strings.Cut(f.Flow, "/")
		p := j.policy(s)
		stat := statOf(f, p, now)
		sum.add(figuresOf(p, stat, now), stat)
	}
	sum.end()
	return Brief{Name: tenantOfEntry(t.Entry), Rate: general.Rate, Rates: general.Rates, Capacity: general.Capacity, Paused: general.Paused, Figures: sum.Figures}
}

// policy resolves a policy. What this version cannot read is taken for unsaid: the figures are worth more than the whole truth about the
// rate, which Tenant refuses to tell.
func (j *judge) policy(s statement) shaper.Policy {
	if p, known := j.policies[s]; known {
		return p
	}
	said := shaper.Statements{Claimed: s.claimed}
	said.API, _ = readOverrides(s.api)
	said.File, _ = readOverrides(s.file)
	p, _ := j.from.baseline.Resolve(said, s.route)
	j.policies[s] = p
	return p
}

// statOf is the figures of a flow under its policy of now, as the script stat tells them.
func statOf(f lua.CountedFlow, p shaper.Policy, now shaper.Instant) lua.FlowStat {
	stat := f.FlowStat
	stat.Pace = f.Bucket.Pace(now)
	if stat.FullUntil <= now {
		stat.FullUntil = 0
	}
	if stat.Queued > 0 { // else nobody asks when the next one leaves
		bucket, changed := f.Bucket.Retune(p.Paces(), now)
		if changed {
			bucket.Ready = max(bucket.Ready, f.FullUntil)
		}
		stat.Earliest = bucket.Earliest()
	}
	return stat
}
