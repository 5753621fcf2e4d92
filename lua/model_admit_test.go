package lua_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// admission is one call of admit.
type admission struct {
	at    shaper.Instant
	tiers map[string]string // claimed, by tenant as in keys
	class scripts.Class     // of all tenants without settings of their own

	noBytes, noTenants bool  // the store takes no more of them
	share              int64 // bytes that may be stored of a flow; 0: no bound
	atomic, estimated  bool
	jobs               []candidate
}

// candidate is a job that asks for a place.
type candidate struct {
	id, tenant, route string // tenant and route as the client wrote them
	flow              string // as in keys
	entry             string // of the tenant
	idem, print       string
	delay, maxWait    time.Duration
	cost              int64
	maxAttempts       int
	payload           []byte
	callback, trace   string
	kind              string // type
}

func (r admission) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "admit %d atomic %v estimated %v claiming %v, class %v, closed %v %v, share %d:", r.at, r.atomic, r.estimated, r.tiers,
		r.class, r.noBytes, r.noTenants, r.share)
	for _, c := range r.jobs {
		fmt.Fprintf(&b, " %s %s %s key %q %q delay %v max wait %v cost %d attempts %d;", c.id, c.flow, c.kind, c.idem,
			c.print, c.delay, c.maxWait, c.cost, c.maxAttempts)
	}
	return b.String()
}

// flowsOf lists the flows of a call in the order of their first job.
func flowsOf(jobs []candidate) (names []string) {
	for _, c := range jobs {
		if !slices.Contains(names, c.flow) {
			names = append(names, c.flow)
		}
	}
	return names
}

func (m *model) admit(r admission) []scripts.Decision {
	m.begin(r.at)
	askedOf, askedBytesOf := map[*pooled]int64{}, map[*pooled]int64{} // an atomic batch of pools
	flows, asked, askedBytes, touched := map[string]*flow{}, map[string]int64{}, map[string]int64{}, map[string]bool{}
	before, stored := map[string]shaper.Admission{}, map[string]int64{}
	for _, name := range flowsOf(r.jobs) {
		was := m.flows[name]
		flows[name] = m.loadClaimed(name, r.tiers[tenantOf(name)])
		before[name] = m.facts(flows[name], "")
		flows[name].Stored = m.storedOf(flows[name])
		stored[name] = flows[name].Stored
		touched[name] = !flows[name].fresh && (flows[name].tier != was.tier || flows[name].revision != was.revision)
	}
	// An atomic batch asks for as many places as it has jobs that need one: neither admitted
	// before, nor under a key known already.
	twins := map[string]bool{}
	for _, c := range r.jobs {
		twin := c.idem != "" && twins[tenantOf(c.flow)+":"+c.idem]
		twins[tenantOf(c.flow)+":"+c.idem] = true
		if m.jobs[c.id] == nil && m.known(c, nil) == "" && !twin {
			asked[c.flow]++
			askedBytes[c.flow] += int64(len(c.payload))
			askedOf[flows[c.flow].pool]++
			askedBytesOf[flows[c.flow].pool] += int64(len(c.payload))
		}
	}

	decisions, made := make([]scripts.Decision, len(r.jobs)), map[string]string{}
	var admitted []candidate
	var records []*scripts.Record
	var refusal *scripts.Decision
	refusedBy := "" // the flow of the refusal
	for i, c := range r.jobs {
		f, v := flows[c.flow], &decisions[i]
		refused := false
		if j := m.jobs[c.id]; j != nil {
			m.reach("sent before")
			v.Admission, v.State, v.Created = m.facts(f, shaper.Admitted), j.State, j.Created
			switch {
			case j.State == shaper.Queued:
				v.Position, v.Start = m.place(c.id, f)
			case (j.State == shaper.Scheduled || j.State == shaper.Retrying) && !m.paused(f).Paused:
				v.Start = m.startAt(f, j.At)
			}
		} else if known := m.known(c, made); known != "" {
			refused = strings.Fields(known)[1] != c.print
			v.Admission, v.Known = m.facts(f, shaper.Replayed), scripts.ParseKnown(known)
			if refused {
				v.Outcome = shaper.KeyReused
			}
		} else {
			size, payload, wait := int64(1), int64(len(c.payload)), c.maxWait
			bytes := payload
			if r.atomic {
				size, bytes = asked[c.flow], askedBytes[c.flow]
			}
			sizeOf, bytesOf := int64(1), payload
			if r.atomic {
				sizeOf, bytesOf = askedOf[f.pool], askedBytesOf[f.pool]
			}
			asked[c.flow]--
			askedBytes[c.flow] -= payload
			askedOf[f.pool]--
			askedBytesOf[f.pool] -= payload
			_, live := m.tenants[c.entry]
			class := r.class
			if _, own := m.tuned[c.entry]; own {
				class = scripts.Class{}
			}
			unknown := (r.noTenants || class.NoBytes || class.NoTenants) && f.fresh && !live
			closed := r.noBytes || r.noTenants && unknown
			classFull := !closed && (class.NoBytes || class.NoTenants && unknown)
			share := cmp.Or(class.Share, r.share)
			if wait == 0 {
				wait = f.policy.MaxWait
			}
			f.Flow, v.Admission = shaper.Admit(f.Flow, m.paused(f), m.now,
				shaper.Request{
					Size: size, Bytes: bytes, Payload: payload, Cost: c.cost, Type: c.kind, Delay: c.delay, MaxWait: wait, Estimated: r.estimated, Closed: closed || classFull,
					Stored: jobBytes(m.record(c, 0, 0)), Share: share, Pool: m.shared(f, sizeOf, bytesOf),
				}, instants(m.laters[c.flow]))
			forbidden := v.Outcome == shaper.Denied || v.Outcome == shaper.TypeDenied
			unseen := unknown || f.fresh && forbidden && !touched[c.flow]
			m.reachIf(unseen && !unknown, string(v.Outcome)+" and unseen")
			if !unseen {
				touched[c.flow] = true
			}
			if refused = v.Outcome != shaper.Admitted; refused {
				if !unseen {
					f.rejected++
					m.clock.rejected++
				}
				if classFull && v.Outcome == shaper.StoreFull {
					v.OfPart = true
				}
				if v.Outcome == shaper.OverShare {
					v.Stored = stored[c.flow]
				}
			} else {
				f.admitted++
				m.clock.admitted++
				f.count(func(p *pooled) {
					if p.Depth, p.Bytes = p.Depth+1, p.Bytes+payload; c.delay <= 0 {
						p.Queued, p.Cost = p.Queued+1, p.Cost+c.cost
					}
				})
				j := m.record(c, f.Seq, wait)
				v.State, v.Created = j.State, m.now
				admitted, records = append(admitted, c), append(records, j)
				if c.idem != "" {
					made[tenantOf(c.flow)+":"+c.idem] = c.id + " " + c.print
				}
			}
		}
		m.reach(string(v.Outcome))
		m.reachIf(v.OfPool && v.Outcome != shaper.TooCostly, "pool full")
		m.reachIf(v.OfPool && v.Outcome == shaper.TooCostly, "too costly for its pool")
		m.reachIf(v.OfPool && v.OfPart, "part of the pool full")
		m.reachIf(!v.OfPool && v.OfPart, "class full")
		m.reachIf(v.Outcome == shaper.StoreFull && v.OfPart && r.class.Name == "", "reserve left")
		if refused && refusal == nil {
			if refusal, refusedBy = v, c.flow; r.atomic {
				v.Refused = i
				break
			}
		}
	}
	if r.atomic && refusal != nil {
		m.reachIf(len(r.jobs) > 1, "refused whole")
		was := before[refusedBy]
		if refusal.NextSlot = was.NextSlot; !refusal.OfPool || refusal.Outcome == shaper.TooCostly {
			refusal.Depth, refusal.Bytes, refusal.Remaining = was.Depth, was.Bytes, was.Remaining
		}
		refusal.Members = -1
		for i := range decisions {
			decisions[i] = *refusal
		}
		if f, known := m.flows[refusedBy]; known && refusal.Outcome != shaper.KeyReused {
			f.rejected += int64(len(r.jobs))
			m.flows[refusedBy] = f
			m.stored.rejected += int64(len(r.jobs))
			m.stored.last, m.stored.off = m.now, m.clock.off
		}
		return decisions
	}

	for i, c := range r.jobs { // the answer tells it once for a flow
		decisions[i].NextSlot = m.facts(flows[c.flow], "").NextSlot
	}
	saved, fresh := false, map[string]bool{}
	for _, c := range r.jobs {
		f := flows[c.flow]
		if !touched[c.flow] {
			continue
		}
		saved = true
		if f.fresh {
			m.name(f.name)
		}
		looks := !f.fresh && m.now.Sub(f.seen) > time.Minute
		if looks {
			m.lapse(f)
		}
		class := r.class.Name
		if _, own := m.tuned[c.entry]; own {
			class = ""
		}
		m.classify(f, class)
		if m.now.Sub(f.seen) > time.Minute {
			f.seen = m.now
			if _, live := m.tenants[c.entry]; !live {
				fresh[c.flow] = true
			}
			m.tenants[c.entry] = int64(m.now)
		}
	}
	for i, c := range r.jobs {
		decisions[i].NewTenant, fresh[c.flow] = fresh[c.flow], false
		if decisions[i].Members = -1; flows[c.flow].class != "" {
			decisions[i].Members = int64(len(m.members[flows[c.flow].class]))
		}
	}
	for i, c := range admitted {
		j, f := records[i], flows[c.flow]
		m.jobs[c.id] = j
		if j.State == shaper.Queued {
			set(m.queue, c.flow, c.id, j.Seq)
		} else {
			set(m.laters, c.flow, c.id, int64(j.At))
			f.later = min(f.later, j.At)
		}
		if j.Deadline > 0 {
			m.expires[c.id] = int64(j.Deadline)
			m.wakeFor(j.Deadline.Add(horizon))
		}
		if c.idem != "" {
			m.idem[tenantOf(c.flow)+":"+c.idem] = made[tenantOf(c.flow)+":"+c.idem]
		}
		m.clock.depth, m.clock.bytes = m.clock.depth+1, m.clock.bytes+size(j)
		m.live(f, jobBytes(j))
	}
	if saved {
		var stored []*flow
		for _, name := range flowsOf(r.jobs) {
			if touched[name] {
				stored = append(stored, flows[name])
			}
		}
		m.storeAll(stored, true)
		m.save()
	}
	return decisions
}

// known is what is kept under a job's idempotency key, or what an earlier job of the call will put
// there.
func (m *model) known(c candidate, made map[string]string) string {
	if c.idem == "" {
		return ""
	}
	key := tenantOf(c.flow) + ":" + c.idem
	if known := m.idem[key]; known != "" {
		return known
	}
	return made[key]
}

// startAt estimates when a scheduled or retrying job leaves.
func (m *model) startAt(f *flow, eligible shaper.Instant) shaper.Instant {
	start := f.StartIn(m.shared(f, 0, 0), f.Queued, f.Cost, m.now)
	if start == 0 {
		return 0
	}
	return max(start, eligible)
}

func (m *model) name(flow string) {
	tenant := tenantOf(flow)
	if m.names[tenant] == nil {
		m.names[tenant] = map[string]bool{}
	}
	m.names[tenant][flow] = true
}

func (m *model) record(c candidate, seq int64, wait time.Duration) *scripts.Record {
	j := &scripts.Record{
		State: shaper.Queued, Outcome: '-', At: m.now.Add(c.delay), Seq: seq, Created: m.now,
		MaxWaitMS: wait.Milliseconds(), Cost: c.cost,
		MaxAttempts: c.maxAttempts, Flow: c.flow, Idem: c.idem, Type: c.kind, Tenant: c.tenant,
		Route: c.route, Payload: c.payload,
		CallbackURL: c.callback, TraceParent: c.trace,
	}
	if c.delay > 0 {
		j.State = shaper.Scheduled
	}
	if wait > 0 {
		j.Deadline = m.now.Add(wait)
	}
	return j
}
