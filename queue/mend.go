package queue

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/lua"
)

// Finding is one thing in the store that is not as it should be, or was not before it was repaired.
type Finding struct {
	Kind   string `json:"kind"` // one of FindingKinds
	Shard  int    `json:"shard"`
	Name   string `json:"name"` // of the key or what of it, without the shard's prefix
	Detail string `json:"detail"`
}

// FindingKinds are the kinds of findings, each with what it means.
var FindingKinds = map[string]string{
	"wrong_type":  "a key holds another type than Sluice stores there",
	"clock_lost":  "the clock of a shard is missing, and with it the totals of the shard",
	"flow_lost":   "a flow is missing although jobs of it are stored or its tenant lists it",
	"counts":      "the counts of a flow are not those of its jobs",
	"totals":      "the totals of a shard are not those of its flows",
	"no_record":   "an index names a job that is not stored, or not in that state",
	"unindexed":   "a job is stored and in no index, so that it would never leave",
	"no_deadline": "a job with a deadline is missing among those that expire",
	"not_due":     "a flow has jobs that may leave, and is not in the index of what is due",
	"unlisted":    "a flow is missing among those of its tenant",
	"no_flow":     "the index of what is due names something that is no flow",
}

// mender repairs what calls stumble over, and says so once: what is repaired is not found again.
type mender struct {
	q        *Queue
	repaired *prometheus.CounterVec

	mu    sync.Mutex
	tried map[int]time.Time // by shard, when a repair last did not help
}

// mendPause is how long a shard is left alone after a repair that did not help: what fails there is
// something else.
const mendPause = time.Second

func newMender(q *Queue, r prometheus.Registerer) (*mender, error) {
	m := &mender{q: q, tried: map[int]time.Time{}}
	m.repaired = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_store_repairs_total", Help: "Damage of stored data that this process has repaired, by kind: see the page on repair.",
	}, []string{"kind"})
	for kind := range FindingKinds {
		m.repaired.WithLabelValues(kind)
	}
	if r != nil {
		if err := r.Register(m.repaired); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// mend repairs what a call stumbled over: the flow that the error names, and those of the keys that
// the call was about. It reports whether the call may be made again: it was repaired here, or by
// another call meanwhile.
func (m *mender) mend(ctx context.Context, failed lua.Call, err error) bool {
	if FaultOf(err) != FaultScript || errors.Is(err, lua.ErrReply) {
		return false
	}
	n, known := m.q.keys.byClock[failed.Keys[0]]
	if !known || m.resting(n) {
		return false
	}
	shard := m.q.keys.Shard(n)
	l := comparison{shard: shard, repair: true, ofJobs: true}
	switch what, name, _ := lua.Damaged(err); what {
	case "flow":
		l.flows = []string{name}
	case "policies":
		return m.q.reinstate(ctx, shard) == nil
	}
	for _, key := range failed.Keys {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(key, shard.prefix), ":")
		switch kind {
		case "job":
			l.jobs = append(l.jobs, key)
		case "flow":
			l.flows = append(l.flows, rest)
		case "policy", "lines", "flows", "history":
			l.flows = append(l.flows, rest+"/") // no flow, but its tenant's keys are looked at
		}
	}
	if failed.Script.Polls() {
		// A key of another type is one of those that are due.
		due, _ := m.q.engine.patient.ZRange(ctx, shard.Due(), 0, dueMost-1).Result()
		l.flows = append(l.flows, due...)
	}
	_, err = m.repair(ctx, l)
	return err == nil
}

// mendAside repairs the items that a poll has set aside, each with its error behind a colon.
func (m *mender) mendAside(ctx context.Context, shard ShardKeys, items []string) bool {
	if len(items) == 0 || m.resting(shard.Index) {
		return false
	}
	l := comparison{shard: shard, repair: true, ofJobs: true}
	for _, item := range items {
		what, _, _ := strings.Cut(item, ": ")
		switch kind, name, _ := strings.Cut(what, " "); kind {
		case "flow":
			l.flows = append(l.flows, name)
		case "job":
			l.jobs = append(l.jobs, shard.Job(name))
		case "tenant":
			l.flows = append(l.flows, name+"/")
		}
	}
	found, err := m.repair(ctx, l)
	return err == nil && found > 0
}

// rest leaves the shard of a call alone for a while.
func (m *mender) rest(failed lua.Call) { m.restShard(m.q.keys.byClock[failed.Keys[0]]) }

func (m *mender) restShard(shard int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tried[shard] = time.Now()
}

// resting says whether a repair of the shard did not help lately.
func (m *mender) resting(shard int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.tried[shard]) < mendPause
}

func (m *mender) repair(ctx context.Context, l comparison) (findings int, err error) {
	found, err := m.q.findings(ctx, l)
	if err != nil {
		m.q.log.Warn("damaged stored data could not be repaired", "shard", l.shard.Index, "error", err)
		m.restShard(l.shard.Index)
		return 0, err
	}
	m.say(found)
	return len(found), nil
}

// dueMost is how many flows one poll of a worker takes.
const dueMost = 64

// say logs and counts repairs. Names of keys hold no client text.
func (m *mender) say(found []Finding) {
	const most = 20
	for i, f := range found {
		m.repaired.WithLabelValues(f.Kind).Inc()
		if i < most {
			m.q.log.Warn("stored data was damaged and is repaired", "kind", f.Kind, "shard", f.Shard, "name", f.Name, "found", f.Detail)
		}
	}
	if len(found) > most {
		m.q.log.Warn("more stored data was damaged and is repaired", "findings", len(found)-most)
	}
}

// comparison names what mend compares in one shard.
type comparison struct {
	shard          ShardKeys
	jobs, flows    []string // keys, names
	repair, totals bool
	ofJobs         bool // the flows of the jobs, too
}

// findings compares what is counted with what is stored, and repairs if asked to.
func (q *Queue) findings(ctx context.Context, l comparison) ([]Finding, error) {
	s := l.shard
	call := lua.MendCall{
		Clock: s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Tenants: s.Tenants(), Outbox: s.Outbox(),
		Jobs: l.jobs, Flows: l.flows, Horizon: q.horizon, Repair: l.repair, Totals: l.totals, JobFlows: l.ofJobs,
	}
	mended, err := invoke(ctx, q.sendPatient, call)
	if err != nil {
		return nil, err
	}
	found := make([]Finding, len(mended))
	for i, f := range mended {
		found[i] = Finding{Kind: f.Kind, Shard: s.Index, Name: f.Name, Detail: f.Detail}
	}
	return found, nil
}
