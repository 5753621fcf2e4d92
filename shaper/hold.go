package shaper

import (
	"slices"
	"time"
)

// What a pool learns from the answers of its upstream. An answer to one tenant says nothing of the
// others: its account may be at its limit, or its path closed. So a pool counts answers by party. A
// party is a tenant, or a class, whose tenants may all be one client. Refusals of up to partiesMost
// parties do not slow the pool while others succeed that are refused nothing.

// DefaultMaxHold is how long answers of an upstream hold a pool at most, unless it is set.
const DefaultMaxHold = time.Minute

// partiesMost is how many refused parties a pool tells from the others.
const partiesMost = 8

// Pauses remembers the answers that asked flows of a pool for a pause, until the success of another
// party contradicts them. The zero value remembers none.
type Pauses struct {
	// Until is until when the answer to Party counts. Of a pool that every answer holds, it is the
	// latest end of the hold.
	Until Instant
	Party string // empty: until Until, no answer holds the pool
	// Since is the instant of the first answer that was not contradicted; 0 for none.
	Since Instant
	// Before is the share of the rate that the pool had before the first hold since then, in
	// millionths; 0 without a hold.
	Before int64
	// Parties got such an answer since then. If there are more than partiesMost, the success of
	// another party contradicts nothing: the upstream refuses many.
	Parties []string
}

// Answer returns what an answer with Retry-After to a party of the pool holds: the flow, and the
// pool until the given instant, 0 for not at all. A pool is held if a second party gets such an
// answer while that to the first one counts, or with HoldPool at the first one. b is the pool's
// bucket.
func (p Pauses) Answer(policy Policy, party string, delay time.Duration, b Bucket, now Instant) (next Pauses, flow bool, pool Instant) {
	counts, held := p.Until > now, b.HeldUntil > now
	end := now.Add(min(delay, policy.MaxHold))
	grace := counts && p.Party == ""
	switch {
	case policy.HoldPool && grace:
		return p, true, 0
	case policy.HoldPool && held:
		return p, false, min(now.Add(delay), max(b.HeldUntil, p.Until))
	case policy.HoldPool:
		return Pauses{Until: now.Add(policy.MaxHold), Party: party}, false, end
	}
	if p.Since == 0 || !counts && p.recovered(b, now) {
		p.Since, p.Before, p.Parties = now, 0, nil
	}
	if len(p.Parties) <= partiesMost && !slices.Contains(p.Parties, party) {
		p.Parties = append(slices.Clone(p.Parties), party)
	}
	switch {
	case grace, held, counts && p.Party == party:
		return p, true, 0
	case counts:
		if p.Before == 0 {
			p.Before = b.share(now)
		}
		p.Until, p.Party = 0, ""
		return p, true, end
	}
	p.Until, p.Party = end, party
	return p, true, 0
}

// recovered reports whether the pool is neither held nor slower than before the holds.
func (p Pauses) recovered(b Bucket, now Instant) bool {
	return b.HeldUntil <= now && b.share(now) >= p.Before
}

// Succeed takes into account that a job of a party succeeded that departed at the stamp. b is the
// pool's bucket. A hold by several parties ends: the job departed after the first of their answers.
//
// The success of another party contradicts the answers. Then they are forgotten. If they have held
// the pool, no answer does so again for MaxHold, and every further answer that is contradicted
// renews that time. If the job departed before the end of the hold, the pool has its share of
// before again: the hold was wrong. One that departed later says only that the hold is over.
func (p Pauses) Succeed(policy Policy, party string, stamp Instant, b Bucket, now Instant) (Pauses, Bucket) {
	if p.Since == 0 || stamp < p.Since {
		return p, b
	}
	if policy.HoldPool { // since then
		return Pauses{Until: p.Until, Party: p.Party}, b
	}
	held := b.HeldUntil
	if b.Probe > 0 && held > now {
		b = b.Resume(now)
	}
	grace := p.Until > now && p.Party == ""
	if len(p.Parties) > partiesMost || slices.Contains(p.Parties, party) {
		if p.Until <= now && p.recovered(b, now) {
			p = Pauses{}
		}
		return p, b
	}
	if p.Before > 0 && b.Share > 0 && stamp < held {
		b.Share, b.Spaced = max(b.Share, p.Before), min(b.Spaced, now)
	}
	if !grace && p.Before == 0 {
		return Pauses{}, b
	}
	return Pauses{Until: now.Add(policy.MaxHold)}, b
}

// Refusals counts the answers to the parties of a pool since an instant, out of the departures. It
// is a Trial by parties. The zero value counts nothing.
type Refusals struct {
	// First is the instant of the first refusal of this trial and of those directly before it. An
	// answer counts if its job departed since then. Successes may take longer than a trial. And if
	// refusals of jobs from before it counted, there would seem to be none that has no answer yet.
	First    Instant
	Since    Instant // of the first refusal, which is not counted itself
	Departed int64   // departures of the pool until then
	Others   Answers // to parties that are not in Parties
	// Parties were refused something in this trial or the one before, at most partiesMost. If there
	// are more, their refusals are among those of Others.
	Parties []Answers
}

// Answers counts what jobs of a party got.
type Answers struct {
	Party         string
	Refused, Well int64
}

// to returns the place of a party in Parties, -1 if it is one of the others.
func (r Refusals) to(party string) int {
	return slices.IndexFunc(r.Parties, func(a Answers) bool { return a.Party == party })
}

// Refuse counts that the upstream refused a job of a party because of its load, with or without a
// time to wait; the job departed at the stamp. Once the trial is over, the share of the pool's
// rate falls by the part that was refused of the party that was refused least, at most by half. b
// is the pool's bucket, departed the number of its departures so far.
func (r Refusals) Refuse(b Bucket, party string, stamp Instant, departed int64, now Instant) (Bucket, Refusals) {
	age, departures := now-r.Since, departed-r.Departed
	over := overdue(r.Since, age, departures)
	if !over && stamp < r.First {
		return b, r
	}
	if over {
		return b, Refusals{First: now, Since: now, Departed: departed, Parties: []Answers{{Party: party}}}
	}
	r.Parties = slices.Clone(r.Parties)
	switch i := r.to(party); {
	case i >= 0:
		r.Parties[i].Refused++
	case len(r.Parties) < partiesMost:
		r.Parties = append(r.Parties, Answers{Party: party, Refused: 1})
	default:
		r.Others.Refused++
	}
	if age < trialSpan || departures < trialLeast {
		return b, r
	}
	if len(r.Parties) > 1 {
		refused, of := r.least(departures)
		b = b.slow(refused, of, now)
	}
	next := Refusals{First: r.First, Since: now, Departed: departed}
	for _, a := range r.Parties {
		if a.Refused > 0 {
			next.Parties = append(next.Parties, Answers{Party: a.Party})
		}
	}
	return b, next
}

// answers is the number of all answers.
func (r Refusals) answers() int64 {
	n := r.Others.Refused + r.Others.Well
	for _, a := range r.Parties {
		n += a.Refused + a.Well
	}
	return n
}

// least returns the part that was refused of the party that was refused least. The others count as
// one. Half a refusal is added to each, because few answers prove little. But where none of the
// others was refused, one success of them is enough, and so are departures without an answer: those
// may be theirs, and a success may take longer than a refusal.
func (r Refusals) least(departures int64) (refused, of int64) {
	if r.Others.Refused == 0 && (r.Others.Well > 0 || (departures-r.answers())*trialTolerated > departures) {
		return 0, 1
	}
	refused, of = 1, 1
	for _, a := range append([]Answers{r.Others}, r.Parties...) {
		if n, all := 2*a.Refused+1, 2*(a.Refused+a.Well)+1; n*of < refused*all {
			refused, of = n, all
		}
	}
	return refused, of
}

// Succeed counts that a job of a party succeeded that departed at the stamp.
func (r Refusals) Succeed(party string, stamp Instant, departed int64, now Instant) Refusals {
	if r.Since == 0 || stamp < r.First {
		return r
	}
	if overdue(r.Since, now-r.Since, departed-r.Departed) {
		return Refusals{}
	}
	r.Parties = slices.Clone(r.Parties)
	if i := r.to(party); i >= 0 {
		r.Parties[i].Well++
	} else {
		r.Others.Well++
	}
	return r
}

// Watched returns since when departures matter to a pool if they succeed: 0 where nothing is to be
// contradicted or counted.
func Watched(p Pauses, r Refusals) Instant {
	if p.Since == 0 || r.First == 0 {
		return max(p.Since, r.First)
	}
	return min(p.Since, r.First)
}
