package queuetest

import (
	"errors"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var listTests = map[string]func(*suite){
	"every state lists its jobs, newest first": listStates,
	"a list pages through several routes":      listPages,
	"a list is of one tenant":                  listOneTenant,
	"a list of a route has no other":           listRoute,
	"a list's cursor must be one":              listCursor,
	"a list goes on after many of one instant": listOneInstant,
}

// list pages through the whole list.
func (s *suite) list(l queue.List) []string {
	s.Helper()
	var got []string
	for pages := 0; pages == 0 || l.Cursor != ""; pages++ {
		page, err := s.q.List(s.ctx, l)
		if err != nil || len(page.Jobs) > l.Limit || pages > 200 {
			s.Fatalf("List %+v: %d jobs, %v", l, len(page.Jobs), err)
		}
		got, l.Cursor = append(got, ids(page.Jobs)...), page.Next
	}
	return got
}

func reversed(ids []string) []string {
	out := slices.Clone(ids)
	slices.Reverse(out)
	return out
}

func listStates(s *suite) {
	const each = 3
	want := map[queue.ListState][]string{}
	ending := map[queue.ListState]func(queue.Lease){
		queue.ListDead:     func(l queue.Lease) { s.settle(l, shaper.Die) },
		queue.ListDone:     func(l queue.Lease) { s.settle(l, shaper.Succeed) },
		queue.ListRetrying: func(l queue.Lease) { s.settle(l, shaper.Retry, after(2*far)) },
		queue.ListLeased:   func(queue.Lease) {},
	}
	for state, end := range ending {
		s.backlog(each, work())
		for _, l := range s.lease(each) {
			end(l)
			want[state] = append(want[state], l.ID)
		}
	}
	want[queue.ListQueued] = ids(s.backlog(each, work()))
	later := work()
	later.Delay = time.Hour
	want[queue.ListScheduled] = ids(s.backlog(each, later))
	for _, state := range queue.ListStates() {
		for _, page := range []int{1, each - 1, each, each + 1} {
			got := s.list(queue.List{Tenant: tenant, State: state, Limit: page})
			if state == queue.ListScheduled || state == queue.ListRetrying { // all of one instant, in any order
				slices.Sort(got)
				got = reversed(got)
			}
			if !slices.Equal(got, reversed(want[state])) {
				s.Errorf("%s by %d: %q, want %q", state, page, got, reversed(want[state]))
			}
		}
	}
}

func listPages(s *suite) {
	other := work()
	other.Route = "reports"
	var want []string
	for range 20 {
		want = append(want, s.admit(work()).ID, s.admit(other).ID)
	}
	for _, page := range []int{1, 7, 40, 1000} {
		if got := s.list(queue.List{Tenant: tenant, State: queue.ListQueued, Limit: page}); !slices.Equal(got, reversed(want)) {
			s.Errorf("by %d: %q, want %q", page, got, reversed(want))
		}
	}
}

func listOneTenant(s *suite) {
	other := work()
	for _, name := range []string{"acme ", "acme2", "acme/default"} {
		other.Tenant = name
		s.admit(other)
	}
	id := s.admit(work()).ID
	for _, state := range queue.ListStates() {
		got := s.list(queue.List{Tenant: tenant, State: state, Limit: 10})
		if want := state == queue.ListQueued; slices.Equal(got, []string{id}) != want {
			s.Errorf("%s lists %q", state, got)
		}
	}
	s.lease(4)
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListLeased, Limit: 10}); !slices.Equal(got, []string{id}) {
		s.Errorf("leased lists %q", got)
	}
}

func listRoute(s *suite) {
	other := work()
	other.Route = "weekly reports"
	s.admit(work())
	id := s.admit(other).ID
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListQueued, Route: other.Route, Limit: 10}); !slices.Equal(got, []string{id}) {
		s.Errorf("the list of a route is %q", got)
	}
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListQueued, Route: "never used", Limit: 10}); len(got) > 0 {
		s.Errorf("the list of a route never used is %q", got)
	}
}

func listCursor(s *suite) {
	s.backlog(3, work())
	for _, cursor := range []string{"x", "e30=", "bnVsbA", "W10", "eyJhIjoxfQ", "%", "e30\n"} {
		if page, err := s.q.List(s.ctx, queue.List{Tenant: tenant, State: queue.ListQueued, Limit: 1, Cursor: cursor}); !errors.Is(err, queue.ErrCursor) {
			s.Errorf("cursor %q: %+v, %v, want ErrCursor", cursor, page, err)
		}
	}
}

// listOneInstant has more jobs of one score than are read in one go.
func listOneInstant(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Capacity = 2000 })
	s.admit(work())
	retrying := s.lease(1)[0]
	s.settle(retrying, shaper.Retry, after(time.Minute))
	later := work()
	later.Delay = 2 * far
	want := reversed(ids(s.backlog(1000, later)))
	for _, limit := range []int{1000, 300} {
		if got := s.list(queue.List{Tenant: tenant, State: queue.ListScheduled, Limit: limit}); !slices.Equal(got, want) {
			s.Errorf("in pages of %d: %d jobs, want the %d scheduled ones, newest first", limit, len(got), len(want))
		}
	}
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListRetrying, Limit: 10}); !slices.Equal(got, []string{retrying.ID}) {
		s.Errorf("retrying: %v, want %s", got, retrying.ID)
	}
	equal(s, "the count of a purge", s.purge(queue.Filter{State: queue.ListScheduled}).Count, 1000)
}
