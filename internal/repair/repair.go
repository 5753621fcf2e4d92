// Package repair compares what Sluice counts and indexes with the jobs that are stored, and repairs
// the difference. The queue repairs what a call finds damaged; Check goes through the whole store.
package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Finding is a defect of the stored data, or one that was repaired.
type Finding struct {
	Kind   string `json:"kind"` // one of Kinds
	Shard  int    `json:"shard"`
	Name   string `json:"name"` // of the key or of a part of it, without the shard's prefix
	Detail string `json:"detail"`
}

// Kinds are the kinds of findings, each with its meaning.
var Kinds = map[string]string{
	"wrong_type":  "a key holds another type than Sluice stores there",
	"clock_lost":  "the clock of a shard is missing, and with it the totals of the shard",
	"flow_lost":   "a flow is missing although jobs of it are stored or its tenant lists it",
	"counts":      "the counts of a flow are not those of its jobs",
	"totals":      "the totals of a shard are not those of its flows",
	"no_record":   "an index names a job that is not stored, or not in that state",
	"unindexed":   "a job is stored and in no index, so that it would never leave",
	"no_deadline": "a job with a deadline is missing among those that expire",
	"misfiled":    "a pool lists a flow in an index in which it is not, or its pace is out of range",
	"not_due":     "a flow has jobs that may leave, and is not in the index of what is due",
	"unlisted":    "a flow is missing among those of its tenant",
	"unreadable":  "a value cannot be read, so that what needs it is neither checked nor repaired",
	"no_flow":     "the index of what is due names something that is no flow",
}

// Repairer repairs damaged data. Each repair is logged once, because a repaired key is not found
// again.
type Repairer struct {
	store     *store.Store
	horizon   time.Duration
	log       *slog.Logger
	reinstate func(ctx context.Context, shard store.ShardKeys) error
	repaired  *prometheus.CounterVec

	mu    sync.Mutex
	tried map[int]time.Time // by shard: the last repair that did not help
}

// repairPause is how long a shard is not repaired after a repair that did not help: the call fails
// for another reason.
const repairPause = time.Second

// New returns a repairer of the store and sets its Repair and Rest, so that damage that a call
// finds is repaired. horizon is that of the workers. r gets the metrics; it may be nil. reinstate
// puts the policies in force into a shard that has lost them. The error is that of registering the
// metrics.
func New(
	s *store.Store, horizon time.Duration, log *slog.Logger, r prometheus.Registerer,
	reinstate func(ctx context.Context, shard store.ShardKeys) error,
) (*Repairer, error) {
	m := &Repairer{store: s, horizon: horizon, log: log, reinstate: reinstate, tried: map[int]time.Time{}}
	m.repaired = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_store_repairs_total",
		Help: "Damage of stored data that this process has repaired, by kind: see the page on repair.",
	}, []string{"kind"})
	for kind := range Kinds {
		m.repaired.WithLabelValues(kind)
	}
	if r != nil {
		if err := r.Register(m.repaired); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	s.Repair = m.repairFound
	s.Rest = func(failed scripts.Call) {
		if shard, ok := s.ShardOfClock(failed.Keys[0]); ok {
			m.rest(shard)
		}
	}
	return m, nil
}

// repairFound repairs what a call found damaged: the flow that the error names, and those of the
// call's keys. It reports whether the call may be sent again, after a repair here or by another
// call.
func (m *Repairer) repairFound(ctx context.Context, failed scripts.Call, err error) bool {
	shard, known := m.store.ShardOfClock(failed.Keys[0])
	if !known || errors.Is(err, scripts.ErrReply) || m.resting(shard) {
		return false
	}
	c := comparison{shard: shard, repair: true, ofJobs: true}
	switch what, name := scripts.Damaged(err); what {
	case "flow":
		c.flows = []string{name}
	case "policies":
		return m.reinstate(ctx, shard) == nil
	}
	for _, key := range failed.Keys {
		kind, name, _ := strings.Cut(shard.Trim(key), ":")
		c.add(kind, name)
	}
	if failed.Script.Polls() {
		// A key of another type is one of those that are due.
		due, _ := m.store.Patient.ZRange(ctx, shard.Due(), 0, dueMost-1).Result()
		c.flows = append(c.flows, due...)
	}
	_, err = m.repair(ctx, c)
	return err == nil
}

// Aside repairs the items that a poll has set aside. Each item is a kind and a name, then a colon
// and the error. It reports whether it repaired something.
func (m *Repairer) Aside(ctx context.Context, shard store.ShardKeys, items []string) bool {
	if len(items) == 0 {
		return false
	}
	c := comparison{shard: shard, repair: true, ofJobs: true}
	var repaired []Finding // by the poll itself
	for _, item := range items {
		what, detail, _ := strings.Cut(item, ": ")
		kind, name, _ := strings.Cut(what, " ")
		if kind == "pool" {
			repaired = append(repaired, Finding{Kind: "misfiled", Shard: shard.Index, Name: "flow:" + name + "/", Detail: detail})
			continue
		}
		c.add(kind, name)
	}
	m.report(repaired)
	if len(repaired) == len(items) || m.resting(shard) {
		return len(repaired) == len(items)
	}
	found, err := m.repair(ctx, c)
	return err == nil && found > 0
}

func (m *Repairer) rest(shard store.ShardKeys) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tried[shard.Index] = time.Now()
}

// resting reports whether a repair of the shard did not help in the last repairPause.
func (m *Repairer) resting(shard store.ShardKeys) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.tried[shard.Index]) < repairPause
}

func (m *Repairer) repair(ctx context.Context, c comparison) (findings int, err error) {
	found, err := m.compare(ctx, c)
	if err != nil {
		m.log.Warn("damaged stored data could not be repaired", "shard", c.shard.Index, "error", err)
		m.rest(c.shard)
		return 0, err
	}
	m.report(found)
	return len(found), nil
}

// dueMost is how many flows one poll of a worker takes.
const dueMost = 64

// report logs and counts repairs. Names of keys hold no client text.
func (m *Repairer) report(found []Finding) {
	const most = 20
	for i, f := range found {
		m.repaired.WithLabelValues(f.Kind).Inc()
		if i < most {
			m.log.Warn("stored data was damaged and is repaired", "kind", f.Kind, "shard", f.Shard, "name",
				f.Name, "found", f.Detail)
		}
	}
	if len(found) > most {
		m.log.Warn("more stored data was damaged and is repaired", "findings", len(found)-most)
	}
}

// comparison names what repair.lua compares in one shard.
type comparison struct {
	shard          store.ShardKeys
	jobs, flows    []string // keys, names
	repair, totals bool
	ofJobs         bool // also compares the flows of the jobs
}

// add adds the job, the flow, or the keys of the tenant that a key or an item names.
func (c *comparison) add(kind, name string) {
	switch kind {
	case "job":
		c.jobs = append(c.jobs, c.shard.Job(name))
	case "flow":
		c.flows = append(c.flows, name)
	case "policy", "lines", "flows", "history", "tenant":
		c.flows = append(c.flows, name+"/") // names no flow, but repair.lua checks the tenant's keys
	}
}

// compare compares what is counted with what is stored, and repairs it if c.repair is set.
func (m *Repairer) compare(ctx context.Context, c comparison) ([]Finding, error) {
	s := c.shard
	call := scripts.RepairCall{
		Clock: s.Clock(), Due: s.Due(), Expires: s.Expires(), Leases: s.Leases(), Tenants: s.Tenants(),
		Outbox: s.Outbox(),
		Jobs:   c.jobs, Flows: c.flows, Horizon: m.horizon, Repair: c.repair, Totals: c.totals, JobFlows: c.ofJobs,
	}
	repaired, err := store.Invoke(ctx, m.store.RunPatient, call)
	if err != nil {
		return nil, err
	}
	found := make([]Finding, len(repaired))
	for i, f := range repaired {
		found[i] = Finding{Kind: f.Kind, Shard: s.Index, Name: f.Name, Detail: f.Detail}
	}
	return found, nil
}
