package main

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// This file is the bound as a sequential machine: what a tenant's queue must answer if calls came
// one after the other. porcupine searches an order of the concurrent calls, each between its
// sending and its answer, in which the machine gives the same answers.

// verb is the kind of a call.
type verb string

const (
	submit verb = "submit" // the jobs one by one, or all or none of them
	cancel verb = "cancel" // one job
	poll   verb = "poll"   // read one job
	stat   verb = "stat"   // the tenant's figures
	resize verb = "resize" // set the capacity
	depart verb = "depart" // no call: a worker leases the job at the head of the queue
	giveUp verb = "giveUp" // the worker came too late to send it, and gives it back
)

// ask is one call. Jobs are numbered within their tenant, in the order in which they were planned;
// one job may be submitted by several calls with the same key.
type ask struct {
	verb     verb
	jobs     []int
	atomic   bool // submit all or none
	delayed  bool // submit for a time that does not come
	capacity int  // resize
}

// reply is the answer to a call.
type reply struct {
	decisions []decision // submit: one per job; one alone for a refused atomic batch
	state     string     // poll, cancel: of the job; empty for a cancellation that came too late
	position  int        // poll
	figures   figures    // stat
}

// decision is the answer to one submission. depth and capacity are -1 if the answer lacks them.
type decision struct {
	outcome         outcome // acknowledged or refused as full
	replayed        bool
	state           string // of an admitted job
	position        int    // of an admitted job
	remaining       int    // free capacity; -1: not in the answer
	depth, capacity int
}

// figures are those of a tenant.
type figures struct{ depth, running, capacity, admitted, rejected, departed int }

// Where a job is, in shelf.at.
const (
	nowhere   = '-'
	queued    = 'q'
	scheduled = 's'
	departed  = 'g' // leased, or ended unseen
	succeeded = 'e'
	cancelled = 'c'
)

// shelf is the state of the machine. Its values are comparable and never changed.
type shelf struct {
	capacity           int
	at                 string // one letter per job
	order              string // the jobs in the order of their admission, a rune each
	admitted, rejected int
}

func (s shelf) depth() int { return s.count(queued) + s.count(scheduled) }

func (s shelf) count(where rune) int { return strings.Count(s.at, string(where)) }

func (s shelf) put(job int, where byte) shelf {
	at := []byte(s.at)
	at[job] = where
	s.at = string(at)
	return s
}

// position is the job's position in the queue, from 1; 0 if it is not queued. A job that was given
// back keeps its position.
func (s shelf) position(job int) int {
	if s.at[job] != queued {
		return 0
	}
	n := 1
	for _, other := range s.order {
		switch {
		case int(other) == job:
			return n
		case s.at[other] == queued:
			n++
		}
	}
	return 0
}

// boundModel is the machine for a tenant with this first capacity and number of jobs.
func boundModel(capacity, jobs int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return shelf{capacity: capacity, at: strings.Repeat(string(rune(nowhere)), jobs)} },
		Step: func(state, input, output any) (bool, any) {
			return state.(shelf).step(input.(ask), output.(reply))
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// step is whether the machine may answer so, and its next state.
func (s shelf) step(a ask, t reply) (bool, shelf) {
	switch a.verb {
	case submit:
		return s.submit(a, t.decisions)
	case cancel:
		job := a.jobs[0]
		switch s.at[job] {
		case queued, scheduled, cancelled:
			return t.state == "cancelled", s.put(job, cancelled)
		}
		return s.at[job] != nowhere && t.state == "", s
	case poll:
		return s.poll(a.jobs[0], t)
	case stat:
		gone := s.count(departed)
		want := figures{
			depth: s.depth(), running: t.figures.running, capacity: s.capacity, admitted: s.admitted,
			rejected: s.rejected,
			departed: gone + s.count(succeeded),
		}
		return t.figures == want && t.figures.running <= gone, s
	case resize:
		s.capacity = a.capacity
		return true, s
	case depart:
		return s.position(a.jobs[0]) == 1, s.put(a.jobs[0], departed)
	case giveUp:
		return s.at[a.jobs[0]] == departed, s.put(a.jobs[0], queued)
	}
	return false, s
}

func (s shelf) poll(job int, t reply) (bool, shelf) {
	if t.position != s.position(job) {
		return false, s
	}
	switch s.at[job] {
	case queued:
		return t.state == "queued", s
	case scheduled:
		return t.state == "scheduled", s
	case cancelled:
		return t.state == "cancelled", s
	case succeeded:
		return t.state == "succeeded", s
	case departed:
		if t.state == "succeeded" {
			return true, s.put(job, succeeded)
		}
		return t.state == "leased", s
	}
	return false, s
}

func (s shelf) submit(a ask, decisions []decision) (bool, shelf) {
	if a.atomic {
		size := 0 // a known job takes no capacity
		for _, job := range a.jobs {
			if s.at[job] == nowhere {
				size++
			}
		}
		if size > 0 && s.depth()+size > s.capacity {
			ok := len(decisions) == 1 && decisions[0].outcome == refused && s.agrees(decisions[0])
			if s.admitted+s.rejected > 0 { // an unknown flow has no counters
				s.rejected += len(a.jobs)
			}
			return ok, s
		}
	}
	if len(decisions) != len(a.jobs) {
		return false, s
	}
	for i, job := range a.jobs {
		v := decisions[i]
		switch {
		case s.at[job] != nowhere:
			if v.outcome != acknowledged || !v.replayed {
				return false, s
			}
		case s.depth() >= s.capacity:
			s.rejected++
			if v.outcome != refused {
				return false, s
			}
		default:
			s.admitted++
			state, where := "queued", byte(queued)
			if a.delayed {
				state, where = "scheduled", scheduled
			}
			s.order += string(rune(job))
			s = s.put(job, where)
			if v.outcome != acknowledged || v.replayed || v.state != state || v.position != s.position(job) {
				return false, s
			}
		}
		if !s.agrees(v) {
			return false, s
		}
	}
	return true, s
}

// agrees reports whether the answer has the right figures of the bound.
func (s shelf) agrees(v decision) bool {
	return (v.remaining < 0 || v.remaining == max(0, s.capacity-s.depth())) &&
		(v.depth < 0 || v.depth == s.depth()) && (v.capacity < 0 || v.capacity == s.capacity)
}

// called is a call as it was seen from outside.
type called struct {
	client         int
	ask            ask
	reply          reply
	sent, answered instant
}

// boundHistory is the calls on one tenant, and what the workers did with its jobs.
type boundHistory struct {
	tenant   string
	capacity int // at first
	jobs     int
	calls    []called
	journeys []journey
}

// journey holds the leases of a job. All but the last were given back, and the last, too, if the
// job never arrived.
type journey struct {
	job     int
	leases  int
	arrived bool
	at      instant // of the arrival; of the end of the history if there was none
}

// operations is the history as porcupine reads it. A lease lies somewhere between the first
// submission of its job and the arrival.
func (h boundHistory) operations() []porcupine.Operation {
	var all []porcupine.Operation
	add := func(client int, a ask, t reply, from, to instant) {
		all = append(all, porcupine.Operation{
			ClientId: client, Input: a, Call: int64(from), Output: t, Return: int64(to),
		})
	}
	first := map[int]instant{}
	for _, c := range h.calls {
		add(c.client, c.ask, c.reply, c.sent, c.answered)
		if c.ask.verb != submit {
			continue
		}
		for _, job := range c.ask.jobs {
			if at, known := first[job]; !known || c.sent < at {
				first[job] = c.sent
			}
		}
	}
	for _, j := range h.journeys {
		for lease := range j.leases {
			add(0, ask{verb: depart, jobs: []int{j.job}}, reply{}, first[j.job], j.at)
			if !j.arrived || lease+1 < j.leases {
				add(0, ask{verb: giveUp, jobs: []int{j.job}}, reply{}, first[j.job], j.at)
			}
		}
	}
	return all
}
