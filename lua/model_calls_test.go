package lua_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// settlement is one call of settle.
type settlement struct {
	at    shaper.Instant
	items []scripts.SettleItem // with the job's id for a key
}

func (m *model) settle(r settlement) (codes []scripts.SettleCode) {
	m.begin(r.at)
	whole := map[string]bool{} // flows with other results than successes of plain jobs
	for _, s := range r.items {
		if j := m.jobs[s.Key]; j != nil && j.State == shaper.Leased {
			whole[j.Flow] = whole[j.Flow] || s.Outcome != scripts.OutcomeSucceeded || s.ActualCost != nil || j.Idem != "" || j.CallbackURL != ""
		}
	}
	flows, stays := map[string]*flow{}, map[*flow]bool{} // stays: neither retuned nor filed anew
	for _, s := range r.items {
		if j := m.jobs[s.Key]; j != nil && j.State == shaper.Leased && flows[j.Flow] == nil {
			f, known := m.flows[j.Flow]
			_, filed := m.due[j.Flow]
			stay := !m.clock.scan && !whole[j.Flow] && known && (filed || f.Depth == 0 || f.turn.filed)
			if f.pool = nil; stay && f.turn.pool != "" {
				f.pool = m.pool(f.turn.pool)
			}
			flows[j.Flow] = &f
			if !stay {
				flows[j.Flow] = m.load(j.Flow)
			}
			stays[flows[j.Flow]] = stay
		}
	}
	var touched []*flow
	for _, s := range r.items {
		j := m.jobs[s.Key]
		if j == nil {
			codes = append(codes, scripts.CodeStale)
			continue
		}
		if j.State == shaper.Leased && j.Epoch == s.Epoch {
			f := flows[j.Flow]
			m.reach("settled")
			settled := scripts.CodeSettled
			if m.apply(s, j, f) {
				settled = scripts.CodeCut
			}
			if !slices.Contains(touched, f) {
				touched = append(touched, f)
			}
			codes = append(codes, diedOr(settled, s, j))
			continue
		}
		// The outcome kept is that of the last lease that ended, which is the one before while the
		// job is leased again.
		ended := j.Epoch
		if j.State == shaper.Leased {
			ended--
		}
		if ended == s.Epoch && j.Outcome == byte(s.Outcome) {
			m.reach("repeated")
			codes = append(codes, diedOr(scripts.CodeRepeated, s, j))
		} else {
			m.reach("stale")
			codes = append(codes, scripts.CodeStale)
		}
	}
	for _, f := range touched {
		if due, filed := m.due[f.name]; !stays[f] {
			m.file(f, true)
		} else if filed {
			m.wakeFor(shaper.Instant(due))
		}
		m.store(f)
	}
	if len(touched) > 0 {
		m.savePools(true)
		m.save()
	}
	return codes
}

// diedOr returns the code of a settlement: CodeDied for a hold or a lapse that took the last
// attempt.
func diedOr(code scripts.SettleCode, s scripts.SettleItem, j *scripts.Record) scripts.SettleCode {
	if (s.Outcome == scripts.OutcomeHeld || s.Outcome == scripts.OutcomeLapsed) && j.State == shaper.Dead {
		return scripts.CodeDied
	}
	return code
}

// apply ends a current lease. It returns whether the actual cost exceeds what its pool is charged
// for.
func (m *model) apply(s scripts.SettleItem, j *scripts.Record, f *flow) (cut bool) {
	delete(m.leases, s.Key)
	m.run(f, -1)
	j.Outcome = byte(s.Outcome)
	if s.MaxAttempts > 0 {
		j.MaxAttempts = s.MaxAttempts
	}
	if s.ActualCost != nil {
		f.Bucket = f.Correct(j.Cost, *s.ActualCost, m.now)
		f.count(func(p *pooled) {
			cut = *s.ActualCost > p.maxCost
			idle, before, after := j.Stamp < f.Ready, m.chargeOf(p, j, j.Cost), m.chargeOf(p, j, *s.ActualCost)
			f.charge(after - before)
			m.reachIf(after > before, "pool cost more")
			m.reachIf(after < before, "pool cost less")
			if m.corrected[p.name] = true; after > before {
				after = m.exceed(f, before, after)
			} else {
				p.Bucket = p.Correct(before, after, m.now)
			}
			m.correctTurn(f, before, shaper.TurnCost(before, after), idle)
		})
		m.corrected[f.name] = true
		m.reachIf(*s.ActualCost > j.Cost, "cost more")
		m.reachIf(*s.ActualCost < j.Cost, "cost less")
		for _, c := range f.Cells {
			m.reachIf(c.Credit > 0, "credit left")
		}
	}
	die, again := false, s.Outcome == scripts.OutcomeRetry || s.Outcome == scripts.OutcomeOverload
	switch s.Outcome {
	case scripts.OutcomeSucceeded, scripts.OutcomeDead, scripts.OutcomeFailed, scripts.OutcomeRetry, scripts.OutcomeOverload:
		j.Attempts++
		die = s.Outcome == scripts.OutcomeDead || s.Outcome == scripts.OutcomeFailed || again && j.Attempts >= j.MaxAttempts
		if s.Outcome == scripts.OutcomeOverload {
			if f.pool == nil || !f.pool.policy.HoldPool {
				share := f.Share
				f.Bucket, f.trial = f.Refuse(f.trial, f.departed, m.now)
				m.reachIf(f.Share != share, "slowed by refusals")
			}
			f.count(func(p *pooled) {
				if !p.policy.HoldPool {
					m.refuse(p, f, j.Stamp)
					return
				}
				share := p.Share
				p.Bucket, p.trial = p.Refuse(p.trial, p.departed, m.now)
				m.reachIf(p.Share != share, "a pool slowed by all refusals")
			})
		}
	case scripts.OutcomeHeld:
		m.reach("held")
		alone := true
		if strings.HasPrefix(s.Cause, "retry_after") {
			f.count(func(p *pooled) { alone = m.answer(p, f, j.Stamp, s) })
		}
		if alone {
			m.hold(f, m.now.Add(s.Delay), s.Cause)
		}
		if strings.HasPrefix(s.Cause, "auth:") || strings.HasPrefix(s.Cause, "codec:") {
			m.reach("held without a charge")
		} else {
			die = chargeFree(j)
		}
	case scripts.OutcomeLapsed:
		m.reach("cut off")
		die = chargeFree(j)
	case scripts.OutcomeReleased, scripts.OutcomeMissed:
		if s.Outcome == scripts.OutcomeMissed {
			f.hindered = scripts.Hindrance{Cause: "late", Until: m.now.Add(2 * hindered)}
		}
		m.reachIf(j.Stamp == f.Last, "refunded")
		m.reachIf(j.Stamp != f.Last, "slot gone")
		f.Bucket = f.Refund(j.Stamp, j.Cost)
		f.count(func(p *pooled) { p.Bucket = p.Refund(j.Stamp, m.chargeOf(p, j, j.Cost)) })
		if f.pool != nil {
			charged := j.Cost
			if s.ActualCost != nil {
				charged = *s.ActualCost
			}
			charge := m.chargeOf(f.pool, j, charged)
			m.correctTurn(f, charge, 0, j.Stamp < f.Ready)
			f.charge(1 - charge)
		}
		m.depart(f, -1)
	}
	m.reachIf(die && s.Outcome != scripts.OutcomeDead && s.Outcome != scripts.OutcomeFailed, "out of attempts")
	m.reachIf(s.Outcome == scripts.OutcomeFailed, "failed for good")
	if !die && s.Outcome != scripts.OutcomeSucceeded && len(s.Result) > 0 {
		m.live(f, int64(len(s.Result)-len(j.Result)))
		j.Result = s.Result
	}
	switch {
	case die:
		f.dead++
		m.finish(s.Key, f, shaper.Die, s.Result)
	case s.Outcome == scripts.OutcomeSucceeded:
		f.succeeded++
		f.count(func(p *pooled) {
			m.contradict(p, f, j)
		})
		m.finish(s.Key, f, shaper.Succeed, s.Result)
	case again:
		become(j, shaper.Retry)
		m.cameBack(s.Key, f)
		j.At = m.now.Add(s.Delay)
		set(m.laters, f.name, s.Key, int64(j.At))
		if j.Deadline > 0 {
			m.expires[s.Key] = int64(j.Deadline)
		}
		f.later = min(f.later, j.At)
		m.countIn(f, j)
	default:
		m.giveBack(s.Key, f, map[scripts.Outcome]shaper.Event{
			scripts.OutcomeHeld: shaper.Hold, scripts.OutcomeReleased: shaper.Release,
			scripts.OutcomeMissed: shaper.Release, scripts.OutcomeLapsed: shaper.LeaseExpired,
		}[s.Outcome])
	}
	return cut
}

// hold holds a flow or a pool.
func (m *model) hold(f *flow, until shaper.Instant, cause string) {
	if until >= f.HeldUntil {
		f.cause = cmp.Or(cause, "0")
	}
	if strings.HasPrefix(cause, "auth:") {
		f.Bucket = f.Suspend(until, m.now)
	} else {
		f.Bucket = f.Hold(until, m.now)
	}
}

// refuse takes into account that a job of the flow, which departed at the stamp, was refused.
func (m *model) refuse(p *pooled, f *flow, stamp shaper.Instant) {
	share, named := p.Share, len(p.refusals.Parties)
	p.Bucket, p.refusals = p.refusals.Refuse(p.Bucket, f.party(), stamp, p.departed, m.now)
	m.reachIf(p.Share != share, "a pool slowed by refusals")
	m.reachIf(len(p.refusals.Parties) < named, "no longer refused")
}

// answer takes an answer with Retry-After into account, and reports whether it holds the flow.
func (m *model) answer(p *pooled, f *flow, stamp shaper.Instant, s scripts.SettleItem) (alone bool) {
	if !p.policy.HoldPool {
		m.refuse(p, f, stamp)
	}
	before := p.pauses
	next, alone, until := before.Answer(p.policy, f.party(), s.Delay, p.Bucket, m.now)
	p.pauses = next
	m.reachIf(before.Until > m.now && before.Party == "" && next.Since > 0, "no hold, because the last was wrong")
	if until > 0 {
		m.reachIf(alone, "a pool held by two tenants")
		m.reachIf(alone && before.Before > 0, "held again before a success")
		m.reachIf(!alone, "a pool held by one answer")
		p.refusals, p.Probe = shaper.Refusals{}, 0
		if alone {
			p.Probe, m.firstHold = m.now, cmp.Or(m.firstHold, m.now)
		}
		m.hold(&p.flow, until, s.Cause)
	}
	return alone
}

// contradict takes into account that a job of the flow succeeded.
func (m *model) contradict(p *pooled, f *flow, j *scripts.Record) {
	before, was := p.pauses, p.Bucket
	p.refusals = p.refusals.Succeed(f.party(), j.Stamp, p.departed, m.now)
	p.pauses, p.Bucket = before.Succeed(p.policy, f.party(), j.Stamp, p.Bucket, m.now)
	m.reachIf(was.HeldUntil > p.HeldUntil, "a probe ended the hold")
	m.reachIf(was.Share != p.Share, "a hold was wrong")
	if before.Since > 0 && p.pauses.Since == 0 && !p.policy.HoldPool {
		own := slices.Contains(before.Parties, f.party())
		m.reachIf(own, "recovered after a hold")
		m.reachIf(!own && p.pauses.Until == 0, "contradicted before a hold")
		m.reachIf(!own && before.Until > m.now && before.Party == "", "contradicted again")
	}
}

// What is stored of a pool of whose answers nothing is known. It is not written for the first time.
const noPauses, noRefusals = "0 / 0 0", "0 0 0 0 0"

// noteAnswers sets the texts that are stored.
func (p *pooled) noteAnswers() {
	a := p.pauses
	asked := strings.Join(append([]string{fmt.Sprintf("%d %s %d %d", a.Until, cmp.Or(a.Party, "/"), a.Since, a.Before)}, a.Parties...), " ")
	refused := fmt.Sprintf("%d %d %d %d %d", p.refusals.First, p.refusals.Since, p.refusals.Departed, p.refusals.Others.Refused, p.refusals.Others.Well)
	for _, a := range p.refusals.Parties {
		refused += fmt.Sprintf(" %s %d %d", a.Party, a.Refused, a.Well)
	}
	if p.asked != "" || asked != noPauses {
		p.asked = asked
	}
	if p.refused != "" || refused != noRefusals {
		p.refused = refused
	}
}

// extend answers, per lease, 1 if it is extended.
func (m *model) extend(at shaper.Instant, leases []leaseRef) []int64 {
	m.begin(at)
	answers := make([]int64, len(leases))
	extended := false
	for i, ref := range leases {
		if j := m.jobs[ref.id]; j != nil && j.State == shaper.Leased && j.Epoch == ref.epoch {
			m.leases[ref.id] = max(m.leases[ref.id], int64(m.now.Add(lease)))
			answers[i], extended = 1, true
		}
	}
	if extended {
		m.save()
	}
	return answers
}

// cancellation is one call of cancel.
type cancellation struct {
	at     shaper.Instant
	tenant string
	ids    []string
	dead   bool
}

func (m *model) cancel(r cancellation) []scripts.JobCode {
	m.begin(r.at)
	codes := make([]scripts.JobCode, len(r.ids))
	for i, id := range r.ids {
		j, codeOfWaiting := m.jobs[id], scripts.JobDone
		_, awaited := m.outbox[id]
		switch {
		case j == nil || tenantOf(j.Flow) != r.tenant || deadLetter(j) && m.forgot(j.Flow):
			codes[i] = scripts.JobAbsent
		case j.State == shaper.Cancelled || j.State.Waiting():
			codes[i] = codeOfWaiting
		case deadLetter(j) && r.dead && !awaited:
			codes[i] = scripts.JobDeleted
		default:
			m.reachIf(r.dead && awaited, "kept for its callback")
			codes[i] = scripts.JobConflict
		}
	}
	var touched []*flow
	for i, id := range r.ids {
		j := m.jobs[id]
		if j == nil || codes[i] == scripts.JobAbsent || codes[i] == scripts.JobConflict || j.State == shaper.Cancelled {
			continue
		}
		at := slices.IndexFunc(touched, func(f *flow) bool { return f.name == j.Flow })
		if at < 0 {
			at = len(touched)
			touched = append(touched, m.load(j.Flow))
		}
		f := touched[at]
		if codes[i] == scripts.JobDeleted {
			m.reach("deleted")
			m.deleted[id] = true
			delete(m.jobs, id)
			delete(m.deads[f.name], id)
			m.deadLeft(f, jobBytes(j))
			continue
		}
		m.leave(id, f)
		m.finish(id, f, shaper.Cancel, nil)
	}
	for _, f := range touched {
		f.later = m.laters[f.name].head()
	}
	m.storeAll(touched, true)
	if len(touched) > 0 {
		m.save()
	}
	return codes
}

// forgot reports whether a flow that had jobs is not stored.
func (m *model) forgot(flow string) bool {
	_, stored := m.flows[flow]
	m.reachIf(!stored, "dead letter of a forgotten flow")
	return !stored
}

// claim answers the completions with their records.
func (m *model) claim(
	at shaper.Instant, name string, most int,
) (more bool, ids []string, records []scripts.Record) {
	m.begin(at)
	again := m.claimed.name == name
	if again {
		m.reach("claimed again")
	} else if due := m.outbox.upTo(m.now, most); len(due) > 0 {
		m.reach("claimed")
		m.claimed = claimed{name, due}
		for _, id := range due {
			m.outbox[id] = int64(m.now.Add(lease))
		}
		m.save()
	}
	if m.claimed.name == name {
		for _, id := range m.claimed.ids {
			j := m.jobs[id]
			if j == nil || !j.State.Done() {
				m.reach("claimed after a replay")
				continue
			}
			record := *j
			record.Payload = nil
			ids, records = append(ids, id), append(records, bare(record))
		}
	}
	return m.outbox.head() <= m.now, ids, records
}

// handed answers, per completion, 1 if it is taken out.
func (m *model) handed(at shaper.Instant, list []scripts.HandedJob) (codes []int64) {
	m.begin(at)
	for _, h := range list {
		j := m.jobs[h.Key]
		if _, there := m.outbox[h.Key]; there && j != nil && j.Epoch == h.Epoch && j.State == h.State {
			m.reach("handed over")
			codes = append(codes, 1)
		} else {
			m.reach("handed over too late")
			codes = append(codes, 0)
		}
	}
	for i, h := range list {
		if codes[i] == 1 {
			delete(m.outbox, h.Key)
		}
	}
	return codes
}

// revival is one call of replay.
type revival struct {
	at          shaper.Instant
	tenant, id  string
	tag         uint32
	maxAttempts int
	tier        *string // claimed; nil: an operator's
}

func (m *model) replay(r revival) (scripts.JobCode, shaper.Admission) {
	m.begin(r.at)
	j := m.jobs[r.id]
	if j == nil || tenantOf(j.Flow) != r.tenant || m.forgot(j.Flow) {
		return scripts.JobAbsent, shaper.Admission{Now: m.now}
	}
	tier := m.flows[j.Flow].tier
	if r.tier != nil {
		m.reachIf(*r.tier != tier, "replay in another tier")
		tier = *r.tier
	}
	f := m.loadClaimed(j.Flow, tier)
	if j.Tag == r.tag {
		m.reach("replay repeated")
		a := m.facts(f, shaper.Admitted)
		if a.NextSlot = 0; j.State == shaper.Queued {
			a.Position, a.Start = m.place(r.id, f)
		}
		return scripts.JobDone, a
	}
	if !deadLetter(j) {
		return scripts.JobConflict, shaper.Admission{Now: m.now}
	}
	// A replay asks for a place like a new job, but no estimate refuses it for its max wait.
	ask := func() (shaper.Flow, shaper.Admission) {
		after, a := shaper.Admit(f.Flow, m.paused(f), m.now, shaper.Request{Size: 1, Bytes: size(j), Payload: size(j), Cost: j.Cost, Type: j.Type, Replay: true, Pool: m.shared(f, 1, size(j))}, instants(m.laters[f.name]))
		a.NextSlot = 0
		return after, a
	}
	if _, a := ask(); a.Outcome != shaper.Admitted {
		m.reachIf(a.Outcome == shaper.Full, "replay full")
		return scripts.JobDone, a
	}
	delete(m.deads[f.name], r.id)
	delete(m.outbox, r.id)
	m.deadLeft(f, jobBytes(j))
	m.live(f, jobBytes(j))
	after, a := ask()
	f.Flow = after
	f.count(func(p *pooled) {
		p.Depth, p.Bytes, p.Queued, p.Cost = p.Depth+1, p.Bytes+size(j), p.Queued+1, p.Cost+j.Cost
	})
	become(j, shaper.Replay)
	j.Seq, j.At, j.Attempts, j.FreeLeases, j.Tag, j.MaxAttempts = f.Seq, m.now, 0, 0, r.tag, r.maxAttempts
	if j.MaxWaitMS > 0 {
		j.Deadline = m.now + shaper.Instant(j.MaxWaitMS*1000)
		m.expires[r.id] = int64(j.Deadline)
		m.wakeFor(j.Deadline.Add(horizon))
	}
	m.clock.depth, m.clock.bytes = m.clock.depth+1, m.clock.bytes+size(j)
	set(m.queue, f.name, r.id, j.Seq)
	key := tenantOf(f.name) + ":" + j.Idem
	if known := m.idem[key]; j.Idem != "" && strings.HasPrefix(known, r.id+" ") {
		m.idem[key] = idAndPrint(known)
	}
	m.storeAll([]*flow{f}, true)
	m.save()
	return scripts.JobDone, a
}

// What a policy remembers of its changes.
const maxHistory, maxCalls = 100, 16

// tuning is one call of tune.
type tuning struct {
	at            shaper.Instant
	resolved      obeyed // what the tenant's flows are to obey
	tenant, entry string // as in keys
	name          string
	expected      *int64
	source, says  string
	file, api     shaper.Overrides // in force after the change
	reason        string
	historyEntry  string
	endHolds      bool
	endCharge     bool // of a pool, with endHolds
}

// lines are none of a tenant without settings of its own.
func (r tuning) lines() scripts.Lines {
	if r.file.Empty() && r.api.Empty() {
		return nil
	}
	return r.resolved.linesOf(r.tenant)
}

func (m *model) tune(r tuning) (tuned scripts.Tuned, revision int64) {
	m.begin(r.at)
	p := m.policies[r.tenant]
	calls := strings.Fields(p.fields["calls"])
	if slices.Contains(calls, r.name) {
		m.reach("call known")
		return scripts.TunedChanged, p.revision
	}
	if r.expected != nil && *r.expected != p.revision {
		m.reach("another revision")
		return scripts.TunedOtherTenant, p.revision
	}
	if r.resolved.revision != m.clock.revision {
		m.reach("other policies")
		return scripts.TunedOtherPolicies, p.revision
	}
	var flows []*flow
	for name := range m.names[r.tenant] {
		if isPool(name) {
			flows = append(flows, &m.pool(r.tenant).flow)
		} else {
			flows = append(flows, m.loadAnew(name))
		}
	}

	p.file, p.api = r.file, r.api
	if r.source != "" {
		p.fields = maps.Clone(p.fields)
		if p.fields == nil {
			p.fields = map[string]string{}
		}
		p.revision++
		calls = append([]string{r.name}, calls...)
		p.fields["calls"] = strings.Join(calls[:min(len(calls), maxCalls)], " ")
		p.fields["revision"] = strconv.FormatInt(p.revision, 10)
		p.fields[r.source] = r.says
		if !isPool(r.entry) {
			m.tenants[r.entry] = int64(m.now)
		}
	}
	if r.source == "api" {
		if !r.endHolds {
			p.fields["reason"] = r.reason
		}
		p.history = append([]string{r.historyEntry}, p.history...)
		p.history = p.history[:min(len(p.history), maxHistory)]
	}
	if p.fields != nil {
		m.policies[r.tenant] = p
	}
	delete(m.tuned, r.entry)
	if len(r.lines()) > 0 {
		m.tuned[r.entry] = r.resolved
	}
	for _, f := range flows {
		wasPaused := f.policy.Paused
		before := f.segment
		m.obey(f)
		if f.segment != before {
			m.reach("retuned by a change")
		}
		if wasPaused && !f.policy.Paused {
			f.Bucket = f.MarkReady(m.now)
		}
		if r.endHolds {
			m.reachIf(f.HeldUntil > m.now, "hold ended")
			f.HeldUntil = min(f.HeldUntil, m.now)
			if f.pool != nil {
				m.reachIf(f.owed > 0, "forgiven what it owed")
				f.pool.owed -= f.owed
				f.owed, f.dueBefore = 0, 0
			}
			if p := m.open[strings.TrimSuffix(f.name, "/")]; p != nil && isPool(f.name) {
				p.pauses, p.Probe = shaper.Pauses{Until: m.now.Add(p.policy.MaxHold)}, 0
				if r.endCharge {
					for _, c := range p.classes {
						p.owed, c.owed = p.owed-c.owed, 0
					}
					if p.ahead = 0; m.limit(f, 0, 0) {
						m.reach("charge ended")
					}
				}
			}
		}
		m.store(f)
	}
	m.storeAll(flows, true)
	m.save()
	return scripts.TunedChanged, p.revision
}

// status answers the job, and its record without its payload.
func (m *model) status(at shaper.Instant, tenant, id string) (s scripts.Status, record scripts.Record) {
	m.begin(at)
	s.Now = m.now
	j := m.jobs[id]
	if j == nil || tenantOf(j.Flow) != tenant {
		return s, record
	}
	s.Found = true
	f := m.load(j.Flow)
	switch {
	case j.State == shaper.Queued:
		s.Position, s.Start = m.place(id, f)
	case j.State.Waiting() && !m.paused(f).Paused:
		s.Start = m.startAt(f, j.At)
	}
	record = *j
	record.Payload = nil
	return s, bare(record)
}

// scanTenant answers the flows sorted by name.
func (m *model) scanTenant(at shaper.Instant, tenant string) scripts.Scan {
	m.begin(at)
	t := m.scanned(tenant)
	for i, flow := range t.Flows {
		f := m.load(flow.Flow)
		t.Flows[i].Stored = scripts.Stored{Live: f.live, Dead: m.deadAlive(f), Answers: f.answers, Keys: f.keys}
		m.reachIf(f.Pace(m.now) < 1, "slowed")
	}
	return scripts.Scan{Now: m.now, Cursor: "0", Tenants: []scripts.ScannedTenant{t}}
}

// scan answers by the entries of the tenants.
func (m *model) scan(at shaper.Instant) map[string]scripts.ScannedTenant {
	m.begin(at)
	out := map[string]scripts.ScannedTenant{}
	for entry := range m.tenants {
		tenant, _, _ := strings.Cut(entry, " ")
		t := m.scanned(tenant)
		t.Entry = entry
		out[entry] = t
	}
	return out
}

func (m *model) scanned(tenant string) scripts.ScannedTenant {
	p := m.policies[tenant]
	t := scripts.ScannedTenant{
		Entry: tenant, Revision: p.revision, API: p.fields["api"], File: p.fields["file"],
		Reason: p.fields["reason"], Flows: []scripts.ScannedFlow{},
	}
	for _, name := range slices.Sorted(maps.Keys(m.names[tenant])) {
		f := m.load(name)
		if f.retuned && f.pool != nil {
			f.Ready = max(m.now, f.full) // a scan reads no pool, and does not know what the flow owes
		}
		flow := scripts.ScannedFlow{
			Flow: name, Bucket: f.Bucket, Depth: f.Depth, Queued: f.Queued, Running: f.Running,
			Admitted: f.admitted, Rejected: f.rejected, Departed: f.departed, Extra: f.extra, Succeeded: f.succeeded, Dead: f.dead,
			Oldest: m.oldest(name), FullUntil: f.full, Bytes: f.Bytes, Tier: f.tier, Hindered: f.hindered,
			Letters: m.letters(name),
		}
		if f.cause != "0" {
			flow.Cause = f.cause
		}
		if turn := m.flows[name].turn; turn.pool != "" { // as stored
			flow.Pool, flow.InTurn = turn.pool, turn.filed
		}
		flow.Owed = m.flows[name].owed
		if p := m.pools[strings.TrimSuffix(name, "/")]; p != nil {
			flow.Weights, flow.Reserves, flow.Owed, flow.Oldest = p.weights, float64(p.reserves)/1e6, p.owed, 0
		}
		t.Flows = append(t.Flows, flow)
	}
	return t
}

// letters counts the dead letters that can be replayed.
func (m *model) letters(flow string) (n int64) {
	for _, died := range m.deads[flow] {
		if shaper.Instant(died) >= m.now.Add(-retention.Dead) {
			n++
		}
	}
	return n
}
