package main

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// honest is a tenant's queue written another way than the machine, with one bug if it is set
// have one.
type honest struct {
	bug      string
	bit      bool // the bug has shown in an answer or in what follows from one
	capacity int
	known    []int // admitted, in order
	state    map[int]string
	ended    map[int]bool // and an answer has said so
	figures  figures
}

func (q *honest) waiting() (ids []int) {
	for _, job := range q.known {
		if q.state[job] == "queued" {
			ids = append(ids, job)
		}
	}
	return ids
}

func (q *honest) depth() int {
	n := 0
	for _, s := range q.state {
		if s == "queued" || s == "scheduled" {
			n++
		}
	}
	return n
}

// has reports whether the queue has the bug, and notes that it shows here.
func (q *honest) has(bug string, shows bool) bool {
	q.bit = q.bit || bug == q.bug && shows
	return bug == q.bug
}

func (q *honest) submit(a ask) (t reply) {
	size := 1
	if a.atomic {
		size = 0
		for _, job := range a.jobs {
			if q.state[job] == "" {
				size++
			}
		}
	}
	for _, job := range a.jobs {
		bound, asked := q.capacity, size
		if a.atomic && q.has("batch-not-counted", q.depth()+size > bound && q.depth()+1 <= bound) {
			asked = 1
		}
		if q.has("bound-off-by-one", q.depth()+asked == bound+1 && q.state[job] == "") {
			bound++
		}
		if q.has("false-429", q.depth()+asked == bound && q.state[job] == "") {
			bound--
		}
		v := decision{outcome: acknowledged, remaining: -1, depth: -1, capacity: -1}
		switch {
		case q.state[job] != "":
			v.replayed = true
			if q.has("key-forgotten", true) {
				v.replayed, v.state, v.position = false, "queued", len(q.waiting())+1
			}
		case q.depth()+asked > bound:
			v = decision{
				outcome: refused, remaining: max(0, q.capacity-q.depth()), depth: q.depth(),
				capacity: q.capacity,
			}
			if a.atomic {
				if q.figures.admitted+q.figures.rejected > 0 {
					q.figures.rejected += len(a.jobs)
				}
				return reply{decisions: []decision{v}}
			}
			q.figures.rejected++
		default:
			q.known, q.state[job] = append(q.known, job), "queued"
			v.state, v.position = "queued", len(q.waiting())
			if a.delayed {
				q.state[job], v.state, v.position = "scheduled", "scheduled", 0
			}
			if q.has("position-from-zero", v.position > 0) {
				v.position = max(0, v.position-1)
			}
			q.figures.admitted++
			if a.atomic {
				size--
			}
		}
		if !a.atomic && v.outcome == acknowledged {
			v.remaining = max(0, q.capacity-q.depth())
		}
		t.decisions = append(t.decisions, v)
	}
	return t
}

func (q *honest) do(a ask) (t reply) {
	job := -1
	if len(a.jobs) > 0 {
		job = a.jobs[0]
	}
	switch a.verb {
	case submit:
		return q.submit(a)
	case cancel:
		switch q.state[job] {
		case "queued", "scheduled", "cancelled":
			if q.has("cancelled-in-word-only", q.state[job] != "cancelled") {
				return reply{state: "cancelled"}
			}
			q.state[job] = "cancelled"
			return reply{state: "cancelled"}
		}
	case poll:
		t.state = q.state[job]
		if t.state == "queued" {
			t.position = 1 + slices.Index(q.waiting(), job)
		}
		if t.state == "leased" {
			q.state[job] = "succeeded" // between two polls
		} else if t.state == "succeeded" && q.has("ended-and-leased-again", q.ended[job]) && q.ended[job] {
			t.state = "leased"
		}
		q.ended[job] = q.ended[job] || t.state == "succeeded"
	case stat:
		t.figures = q.figures
		t.figures.depth, t.figures.capacity = q.depth(), q.capacity
		if q.has("depth-of-the-queue-alone", len(q.waiting()) != q.depth()) {
			t.figures.depth = len(q.waiting())
		}
	case resize:
		q.capacity = a.capacity
	case depart:
		q.state[job] = "leased"
		q.figures.departed++
	case giveUp:
		q.state[job] = "queued"
		q.figures.departed--
	}
	return t
}

// tell makes a history of a queue with the bug: the calls of a plan in some order, and departures
// between them. With overlap the calls are as if many had been under way at once.
func tell(
	seed uint64, bug string, overlap int64,
) (q *honest, capacity, jobs int, operations []porcupine.Operation) {
	rng := rand.New(rand.NewPCG(seed, 0))
	capacity = 1 + rng.IntN(6)
	p := drawPlan(rng, "t", capacity, 20)
	q = &honest{bug: bug, capacity: capacity, state: map[int]string{}, ended: map[int]bool{}}
	at := int64(0)
	do := func(client int, a ask) {
		at += 100
		operations = append(operations, porcupine.Operation{
			ClientId: client, Input: a, Output: q.do(a), Call: at - rng.Int64N(overlap),
			Return: at + rng.Int64N(overlap),
		})
	}
	for i := range p.clients[0] {
		for c := range p.clients {
			a := p.clients[c][i]
			if (a.verb == cancel || a.verb == poll) && q.state[a.jobs[0]] == "" {
				a = ask{verb: stat}
			}
			do(c, a)
			head := q.waiting()
			if len(head) == 0 || rng.IntN(3) > 0 {
				continue
			}
			gone := head[0]
			if q.has("last-in-first-out", len(head) > 1) {
				gone = head[len(head)-1]
			}
			do(0, ask{verb: depart, jobs: []int{gone}})
			if rng.IntN(4) == 0 {
				do(0, ask{verb: giveUp, jobs: []int{gone}})
			}
		}
	}
	return q, capacity, len(p.delayed), operations
}

func TestMachineAcceptsWhatIsRight(t *testing.T) {
	for _, overlap := range []int64{1, 50, 300} {
		for seed := range uint64(20) {
			_, capacity, jobs, operations := tell(seed, "", overlap)
			got := porcupine.CheckOperationsTimeout(boundModel(capacity, jobs), operations, 10*time.Second)
			if got != porcupine.Ok {
				t.Errorf("seed %d, overlap %d: %s", seed, overlap, got)
			}
		}
	}
}

// TestMachineRefusesWhatIsWrong: a history that a bug shows in is refused, each and every one.
func TestMachineRefusesWhatIsWrong(t *testing.T) {
	for _, bug := range []string{
		"bound-off-by-one", "false-429", "batch-not-counted", "key-forgotten", "position-from-zero",
		"cancelled-in-word-only",
		"ended-and-leased-again", "depth-of-the-queue-alone", "last-in-first-out",
	} {
		t.Run(bug, func(t *testing.T) {
			shown := 0
			for seed := range uint64(20) {
				q, capacity, jobs, operations := tell(seed, bug, 1)
				if !q.bit {
					continue
				}
				shown++
				got := porcupine.CheckOperationsTimeout(boundModel(capacity, jobs), operations,
					10*time.Second)
				if got != porcupine.Illegal {
					t.Errorf("seed %d: %s", seed, got)
				}
			}
			if shown == 0 {
				t.Error("the bug shows in no history")
			}
		})
	}
}

func TestPlanFollowsFromTheSeed(t *testing.T) {
	draw := func(seed uint64) plan { return drawPlan(rand.New(rand.NewPCG(seed, 0)), "t", 5, 20) }
	a, b := draw(1), draw(1)
	if !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, draw(2)) {
		t.Error("not by its seed alone")
	}
	for _, asks := range a.clients {
		for _, c := range asks {
			for _, job := range c.jobs {
				if c.verb == submit && len(c.jobs) == 1 && c.delayed != a.delayed[job] {
					t.Errorf("job %d is submitted otherwise than planned", job)
				}
			}
		}
	}
}

// TestLeasesOfAJourney: each lease but the one that arrived ends with a give-back, between the
// first submission and the arrival.
func TestLeasesOfAJourney(t *testing.T) {
	call := called{ask: ask{verb: submit, jobs: []int{0}}, sent: 5, answered: 7}
	again := called{ask: ask{verb: submit, jobs: []int{0}}, sent: 3, answered: 9}
	for _, c := range []struct {
		name             string
		j                journey
		departs, giveUps int
	}{
		{"never leased", journey{at: 20}, 0, 0},
		{"arrived at once", journey{leases: 1, arrived: true, at: 20}, 1, 0},
		{"arrived by its third lease", journey{leases: 3, arrived: true, at: 20}, 3, 2},
		{"leased and then cancelled", journey{leases: 1, at: 20}, 1, 1},
	} {
		departs, giveUps := 0, 0
		for _, o := range (boundHistory{calls: []called{call, again}, journeys: []journey{c.j}}).operations() {
			switch o.Input.(ask).verb {
			case depart:
				departs++
			case giveUp:
				giveUps++
			default:
				continue
			}
			if o.Call != 3 || o.Return != 20 {
				t.Errorf("%s: from %d to %d, want 3 to 20", c.name, o.Call, o.Return)
			}
		}
		if departs != c.departs || giveUps != c.giveUps {
			t.Errorf("%s: %d leases and %d give-backs, want %d and %d", c.name, departs, giveUps, c.departs, c.giveUps)
		}
	}
}
