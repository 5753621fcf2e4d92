package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Member is a flow of a pool.
type Member struct {
	Name   string // unique; it breaks ties
	Policy shaper.Policy
	Trace  Trace
	// Backlog is the cost of each job of a flow that waits all the time, instead of a trace; 0 for
	// none. The run ends when no job of a trace waits.
	Backlog int64
}

// Departure is a job that left a pool.
type Departure struct {
	Member   int // its index
	At       shaper.Instant
	Cost     int64
	Reserved bool // by the reserve of its flow, not by weight
}

// PoolRun is a run of the flows of a pool.
type PoolRun struct {
	Runs       []*Run // of the members; without arrivals for those with a backlog
	Departures []Departure
	// Parts are what each member got of the cost that the pool gave while the member had jobs, from
	// 0 to 1; 0 if it never had any.
	Parts     []float64
	PeakDepth int64 // the greatest depth of the pool after an admission
	rate      shaper.Rate
}

// backlogMost bounds the departures of members with a backlog. Jobs that still wait then stay.
const backlogMost = 1_000_000

// horizon is that of workers which poll at each stamp.
const horizon = 2 * time.Microsecond

// Pool replays the traces through the flows of a pool with the policy. It does the arithmetic of
// shaper.Pool, to the microsecond. Jobs count in the depth until they leave: workers that lease
// ahead of the stamps are not simulated. service is as in Workers. The error is of type
// shaper.Problems or wraps ErrTrace.
func Pool(members []Member, p shaper.Policy, service time.Duration) (*PoolRun, error) {
	if err := (Workers{Service: service}).validate(); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, m := range members {
		var ps shaper.Problems
		ps.Check(!names[m.Name], "members", m.Name, "must have different names")
		ps.Check(m.Backlog >= 0 && m.Backlog <= shaper.MaxCost, "backlog", m.Backlog, "must be a cost")
		if problems, broken := m.Policy.Validate().(shaper.Problems); broken {
			ps = append(ps, problems.Under(m.Name)...)
		}
		if err := ps.Err(); err != nil {
			return nil, err
		}
		names[m.Name] = true
		if m.Backlog > 0 {
			continue
		}
		if err := m.Trace.validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	s := newSharing(members, p, service)
	s.replay()
	return s.result(), nil
}

// member is a flow while the pool is simulated.
type member struct {
	shaper.Candidate
	of       Member
	flow     shaper.Flow
	run      *Run
	index    int
	head     int              // the first arrival that may wait
	next     int              // the next arrival to come
	gone     []shaper.Instant // its departures, if its concurrency is bounded
	eligible shaper.Instant   // when the flow itself may give its next job
	putOff   shaper.Instant   // when the flow had its part of the concurrency last
	awaited  shaper.Awaited   // by the pool
	departed int64            // jobs that have left
	place    [3]int           // in the lines, from 1; 0: not in it
	got      int64            // cost of its departures
	since    int64            // cost that the pool had given when the flow last got jobs
	beside   int64            // cost that the pool gave while the flow had jobs
}

// sharing is the state of a simulated pool.
type sharing struct {
	pool    shaper.Pool
	policy  shaper.Policy
	service time.Duration
	members []*member
	shared  shaper.Shared // sums over the members

	wait     line // members with jobs that may not leave yet, by eligible
	ready    line // candidates, by virtual start
	reserved line // those with a reserve, by the instant from which they are reserved

	given int64 // cost of all departures
	left  []Departure
	waits int // jobs of traces that wait and may leave
	spent int // departures of members with a backlog
	peak  int64
}

func newSharing(members []Member, p shaper.Policy, service time.Duration) *sharing {
	if service == 0 {
		p.Concurrency = 0
	}
	s := &sharing{pool: shaper.Pool{Bucket: shaper.NewBucket(p.Paces()), MaxCost: p.PoolCost()}, policy: p, service: service}
	s.shared.Policy = p
	byName := func(a, b *member, order int) bool { return cmp.Or(order, strings.Compare(a.Name, b.Name)) < 0 }
	s.wait = line{which: 0, before: func(a, b *member) bool {
		return byName(a, b, cmp.Compare(a.eligible, b.eligible))
	}}
	s.ready = line{which: 1, before: func(a, b *member) bool {
		return byName(a, b, cmp.Compare(a.Start, b.Start))
	}}
	s.reserved = line{which: 2, before: func(a, b *member) bool {
		return byName(a, b, cmp.Compare(a.Reserve.TAT, b.Reserve.TAT))
	}}
	for i, of := range members {
		if service == 0 {
			of.Policy.Concurrency = 0
		}
		of.Policy.Paused = of.Policy.Paused || p.Paused
		m := &member{of: of, index: i, run: newRun(NameShaper, of.Trace, of.Policy.Rate)}
		m.run.Capacity = of.Policy.Capacity
		m.flow.Bucket = shaper.NewBucket(of.Policy.Paces())
		m.Candidate = shaper.Candidate{Name: of.Name, Weight: max(1, of.Policy.Weight)}
		m.Tag = s.pool.Obey(m.Tag, m.Weight, of.Policy.Reserve, 0)
		s.members = append(s.members, m)
	}
	return s
}

// replay decides on all arrivals in order, and lets jobs leave between them.
func (s *sharing) replay() {
	type arrival struct {
		at shaper.Instant
		of *member
	}
	var coming []arrival
	for _, m := range s.members {
		for _, a := range m.of.Trace {
			coming = append(coming, arrival{a.At + afterZero, m})
		}
	}
	if len(coming) == 0 {
		return
	}
	slices.SortStableFunc(coming, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	for _, m := range s.members {
		if m.of.Backlog > 0 && !m.of.Policy.Paused {
			m.flow.Queued, m.flow.Cost = 1, m.of.Backlog
			m.flow.Bucket = m.flow.MarkReady(coming[0].at)
			s.shared.Queued += backlogMost // for estimates: it does not end
			s.shared.Cost += backlogMost * m.of.Backlog
			s.join(m)
		}
	}
	for i, a := range coming {
		if i == 0 || coming[i-1].at < a.at {
			s.leave(a.at)
		}
		s.admit(a.of, a.at)
	}
	s.leave(latest)
	for _, m := range s.members {
		s.expire(m, latest)
	}
}

// admit decides on the next arrival of a member.
func (s *sharing) admit(m *member, now shaper.Instant) {
	s.expire(m, now)
	a, policy := m.of.Trace[m.next], m.of.Policy
	policy.Types = nil // a trace has none
	shared := s.shared
	shared.Bucket, shared.Size = s.pool.Bucket, 1
	shared.Weight, shared.Reserve = m.Weight, policy.Reserve
	before := m.flow.Queued
	if before == 0 {
		shared.Weights += m.Weight
		shared.ReservesMicro += shaper.ReserveMicro(policy.Reserve)
	}
	var v shaper.Admission
	m.flow, v = shaper.Admit(m.flow, policy, now, shaper.Request{
		Size: 1, Cost: a.Cost, MaxWait: policy.MaxWait, Pool: &shared,
	}, nil)
	switch v.Outcome {
	case shaper.Admitted:
		m.run.Fates[m.next] = Waiting
		if !policy.Paused {
			s.waits++
		}
		s.shared.Depth++
		s.shared.Queued++
		s.shared.Cost += a.Cost
		s.peak = max(s.peak, s.shared.Depth)
		if before == 0 {
			s.join(m)
		}
	case shaper.DeadlineUnreachable:
		m.run.Fates[m.next] = Unreachable
	}
	m.next++
}

// join makes a member one that waits: it has got its first job.
func (s *sharing) join(m *member) {
	s.shared.Weights += m.Weight
	s.shared.ReservesMicro += shaper.ReserveMicro(m.of.Policy.Reserve)
	m.since = s.given
	if !m.of.Policy.Paused {
		s.file(m)
	}
}

// part makes a member one without jobs.
func (s *sharing) part(m *member) {
	s.shared.Weights -= m.Weight
	s.shared.ReservesMicro -= shaper.ReserveMicro(m.of.Policy.Reserve)
	m.beside += s.given - m.since
	for _, l := range []*line{&s.wait, &s.ready, &s.reserved} {
		l.remove(m)
	}
}

// file puts a member that has jobs among those that wait for their own instant.
func (s *sharing) file(m *member) {
	m.eligible = max(m.flow.Earliest(), s.capped(m))
	s.wait.add(m)
}

// capped is the instant until which a member has as many deliveries as it may, 0 for none.
func (s *sharing) capped(m *member) shaper.Instant {
	if most := int(m.of.Policy.Concurrency); most > 0 && len(m.gone) >= most {
		return m.gone[len(m.gone)-most].Add(s.service)
	}
	return 0
}

// expire ends the jobs at the head of a member's queue whose max wait is over before the instant.
func (s *sharing) expire(m *member, now shaper.Instant) {
	for m.of.Policy.MaxWait > 0 && m.of.Backlog == 0 && m.flow.Queued > 0 {
		m.skip()
		deadline := m.of.Trace[m.head].At.Add(m.of.Policy.MaxWait)
		if deadline+afterZero >= now {
			return
		}
		m.run.Fates[m.head], m.run.Gone[m.head] = Expired, deadline
		s.take(m)
	}
}

// skip moves the head to the first job that waits.
func (m *member) skip() {
	for m.run.Fates[m.head] != Waiting {
		m.head++
	}
}

// take removes the job at the head of the queue.
func (s *sharing) take(m *member) {
	cost := m.of.Trace[m.head].Cost
	m.flow.Depth, m.flow.Queued, m.flow.Cost = m.flow.Depth-1, m.flow.Queued-1, m.flow.Cost-cost
	s.shared.Depth, s.shared.Queued, s.shared.Cost = s.shared.Depth-1, s.shared.Queued-1, s.shared.Cost-cost
	if !m.of.Policy.Paused {
		s.waits--
	}
	if m.flow.Queued == 0 {
		s.part(m)
	}
}

// leave lets jobs leave up to an instant, while jobs of traces wait or will come.
func (s *sharing) leave(now shaper.Instant) {
	for (s.waits > 0 || now < latest) && s.spent < backlogMost {
		at, eligible := s.pool.Earliest(), shaper.Instant(0)
		if s.ready.first() == nil {
			m := s.wait.first()
			if m == nil {
				return
			}
			eligible = m.eligible
			at = max(at, eligible)
		}
		if most := int(s.policy.Concurrency); most > 0 && len(s.left) >= most {
			at = max(at, s.left[len(s.left)-most].At.Add(s.service)+afterZero)
		}
		if at > now {
			return
		}
		if s.uncap(at) && s.ready.first() == nil {
			eligible = s.wait.first().eligible
		}
		slot := s.pool.Stamp(eligible, at)
		s.candidates(slot)
		m, reserved := s.pick(slot)
		if s.hasItsPart(m, at) {
			s.ready.remove(m)
			s.reserved.remove(m)
			m.flow.Bucket, m.putOff = m.flow.PutOff(at, horizon), at
			s.file(m)
		} else if s.expire(m, at); m.place[s.ready.which] > 0 && !s.spares(m, reserved, slot) {
			s.serve(m, reserved, slot, at)
		}
	}
}

// spares makes a member wait whose job would keep others from their turns.
func (s *sharing) spares(m *member, reserved bool, slot shaper.Instant) bool {
	if reserved || s.ready.Len() > 1 || m.nextCost() == 1 {
		return false
	}
	var coming []shaper.Coming
	var who []*member
	for _, other := range s.wait.members {
		if s.capped(other) < slot && other.putOff < slot {
			coming, who = append(coming, shaper.Coming{Candidate: other.Candidate, Due: other.eligible,
				Missed: other.awaited.Missed(other.eligible, slot, other.departed)}), append(who, other)
		}
	}
	var waited int
	var until shaper.Instant
	if s.pool, waited, until = s.pool.Spare(m.Candidate, m.nextCost(), slot, coming); until == 0 {
		return false
	}
	who[waited].awaited = shaper.Awaited{Due: coming[waited].Due, Departed: who[waited].departed}
	s.ready.remove(m)
	s.reserved.remove(m)
	m.flow.Bucket = m.flow.MarkReady(until)
	s.file(m)
	return true
}

// nextCost is the cost of the job at the head of the queue.
func (m *member) nextCost() int64 {
	if m.of.Backlog > 0 {
		return m.of.Backlog
	}
	m.skip()
	return m.of.Trace[m.head].Cost
}

// uncap files the members anew whose deliveries have ended by the instant: their own paces alone
// count then. It reports whether there are any.
func (s *sharing) uncap(at shaper.Instant) (some bool) {
	for _, m := range s.members {
		if m.of.Policy.Concurrency == 0 || m.place[s.wait.which] == 0 || m.eligible > at {
			continue
		}
		if own := m.flow.Earliest(); m.eligible > own {
			s.wait.remove(m)
			m.eligible, some = own, true
			s.wait.add(m)
		}
	}
	return some
}

// hasItsPart reports whether a member holds its part of the concurrency of the pool: three times
// what it leaves to the others.
func (s *sharing) hasItsPart(m *member, at shaper.Instant) bool {
	most := int(s.policy.Concurrency)
	if most == 0 {
		return false
	}
	running, own := 0, 0
	for i := len(s.left) - 1; i >= 0 && s.left[i].At.Add(s.service)+afterZero > at; i-- {
		if running++; s.left[i].Member == m.index {
			own++
		}
	}
	return own >= 3*(most-running)
}

// candidates makes members candidates for the slot. One that left at the slot before was a
// candidate then; the others enter after the clock of the reserves has been set.
func (s *sharing) candidates(slot shaper.Instant) {
	var entering []*member
	for m := s.wait.first(); m != nil && m.eligible <= slot; m = s.wait.first() {
		s.wait.remove(m)
		if m.flow.Last == s.pool.Last && s.pool.Last > 0 {
			s.compete(m)
		} else {
			entering = append(entering, m)
		}
	}
	if head := s.reserved.first(); head != nil {
		s.pool = s.pool.Advance(head.Tag, slot)
	}
	for _, m := range entering {
		m.Tag = s.pool.Enter(m.Tag, slot)
		s.compete(m)
	}
}

func (s *sharing) compete(m *member) {
	s.ready.add(m)
	if m.Reserve != (shaper.Cell{}) {
		s.reserved.add(m)
	}
}

// pick chooses who departs: of all candidates only the heads of the lines can.
func (s *sharing) pick(slot shaper.Instant) (m *member, reserved bool) {
	byWeight, byReserve := s.ready.first(), s.reserved.first()
	if byReserve == nil {
		byReserve = byWeight
	}
	i, reserved := s.pool.Pick([]shaper.Candidate{byWeight.Candidate, byReserve.Candidate}, slot)
	return []*member{byWeight, byReserve}[i], reserved
}

// serve lets the next job of a candidate leave.
func (s *sharing) serve(m *member, reserved bool, slot, at shaper.Instant) {
	cost := m.nextCost()
	s.pool, m.Tag = s.pool.Serve(m.Candidate, reserved, slot, cost)
	m.flow.Bucket, m.departed = m.flow.Depart(slot, cost), m.departed+1
	s.ready.remove(m)
	s.reserved.remove(m)
	at = max(at, slot)
	s.left = append(s.left, Departure{m.index, at - afterZero, cost, reserved})
	s.given, m.got = s.given+cost, m.got+cost
	if m.of.Policy.Concurrency > 0 {
		m.gone = append(m.gone, at)
	}
	if m.of.Backlog > 0 {
		s.spent++
		s.file(m)
		return
	}
	m.run.Fates[m.head], m.run.Gone[m.head] = Departed, at-afterZero
	if s.take(m); m.flow.Queued > 0 {
		s.file(m)
	}
}

func (s *sharing) result() *PoolRun {
	r := &PoolRun{Departures: s.left, PeakDepth: s.peak, rate: s.policy.Rate}
	for _, m := range s.members {
		if m.flow.Queued > 0 {
			m.beside += s.given - m.since
		}
		part := 0.0
		if m.beside > 0 {
			part = float64(m.got) / float64(m.beside)
		}
		r.Runs, r.Parts = append(r.Runs, m.run), append(r.Parts, part)
	}
	return r
}

// Report returns the figures of all flows with a trace together. FullestWindow counts those with a
// backlog, too.
func (r *PoolRun) Report() Report {
	all := Together(r.Runs...)
	all.PeakDepth, all.Window = r.PeakDepth, r.rate.Period
	window, oldest, inWindow := shaper.Instant(r.rate.Period.Microseconds()), 0, int64(0)
	for _, d := range r.Departures {
		for inWindow += d.Cost; r.Departures[oldest].At <= d.At-window; oldest++ {
			inWindow -= r.Departures[oldest].Cost
		}
		all.FullestWindow = max(all.FullestWindow, inWindow)
	}
	return all
}
