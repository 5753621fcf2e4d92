package queuetest

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var listTests = map[string]func(*suite){
	"every state lists its jobs, newest first": listStates,
	"a list pages through several routes":      listPages,
	"a list is of one tenant":                  listOneTenant,
	"a list of a route has no other":           listRoute,
	"an invalid cursor is refused":             listCursor,
	"a list pages through jobs of one instant": listOneInstant,
	"a list of all states has each job once":   listAll,
	"a list chooses by type and time":          listChosen,
	"a list of a rare type comes in pages":     listRare,
	"a job is listed by its idempotency key":   listByKey,
	"a job is found by its id alone":           listFind,
	"a list finds what an upstream answered":   listByError,
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
		queue.ListDead:      func(l queue.Lease) { s.settle(l, shaper.Die) },
		queue.ListSucceeded: func(l queue.Lease) { s.settle(l, shaper.Succeed) },
		queue.ListRetrying:  func(l queue.Lease) { s.settle(l, shaper.Retry, after(2*far)) },
		queue.ListLeased:    func(queue.Lease) {},
	}
	for state, end := range ending {
		s.backlog(each, work())
		for _, l := range s.lease(each) {
			end(l)
			want[state] = append(want[state], l.ID)
		}
	}
	for _, id := range ids(s.backlog(each, work())) {
		if _, err := s.q.Cancel(s.ctx, tenant, id); err != nil {
			s.Fatal(err)
		}
		want[queue.ListCancelled] = append(want[queue.ListCancelled], id)
	}
	want[queue.ListQueued] = ids(s.backlog(each, work()))
	later := work()
	later.Delay = time.Hour
	want[queue.ListScheduled] = ids(s.backlog(each, later))
	for _, state := range queue.ListStates() {
		if state == queue.ListAll {
			continue
		}
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
		got := s.list(queue.List{Tenant: tenant, State: queue.ListQueued, Limit: page})
		if !slices.Equal(got, reversed(want)) {
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
		if want := state == queue.ListQueued || state == queue.ListAll; slices.Equal(got, []string{id}) != want {
			s.Errorf("%s lists %q", state, got)
		}
	}
	s.lease(4)
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListLeased, Limit: 10}); !slices.Equal(got,
		[]string{id}) {
		s.Errorf("leased lists %q", got)
	}
}

func listRoute(s *suite) {
	other := work()
	other.Route = "weekly reports"
	s.admit(work())
	id := s.admit(other).ID
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListQueued, Route: other.Route,
		Limit: 10}); !slices.Equal(got, []string{id}) {
		s.Errorf("the list of a route is %q", got)
	}
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListQueued, Route: "never used",
		Limit: 10}); len(got) > 0 {
		s.Errorf("the list of a route never used is %q", got)
	}
}

func listCursor(s *suite) {
	s.backlog(3, work())
	var bomb bytes.Buffer // a megabyte that is valid but for its length
	w, _ := flate.NewWriter(&bomb, flate.BestCompression)
	_, _ = w.Write([]byte("{" + strings.Repeat(`"":{},`, 1<<20/6) + `"":{}}`))
	_ = w.Close()
	for _, cursor := range []string{base64.RawURLEncoding.EncodeToString(bomb.Bytes()), "x", "e30=", "bnVsbA", "W10", "eyJhIjoxfQ", "%", "e30\n"} {
		page, err := s.q.List(s.ctx, queue.List{
			Tenant: tenant, State: queue.ListQueued, Limit: 1, Cursor: cursor,
		})
		if !errors.Is(err, queue.ErrCursor) {
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
	const jobs = 600 // more than the 500 that one exchange reads
	want := reversed(ids(s.backlog(jobs, later)))
	for _, limit := range []int{jobs, 250} {
		if got := s.list(queue.List{Tenant: tenant, State: queue.ListScheduled, Limit: limit}); !slices.Equal(got, want) {
			s.Errorf("in pages of %d: %d jobs, want the %d scheduled ones, newest first", limit, len(got), len(want))
		}
	}
	if got := s.list(queue.List{Tenant: tenant, State: queue.ListRetrying, Limit: 10}); !slices.Equal(got,
		[]string{retrying.ID}) {
		s.Errorf("retrying: %v, want %s", got, retrying.ID)
	}
	var purged int64
	for more := true; more; { // one purge stops when its time is over
		swept := s.purge(queue.Filter{State: queue.ListScheduled})
		purged, more = purged+swept.Count, swept.More
	}
	equal(s, "the count of the purges", purged, jobs)
}

// listAll has jobs of two flows in all states.
func listAll(s *suite) {
	var all []string
	of := map[string][]string{}
	for _, route := range []string{"default", "reports"} {
		add := func(delay time.Duration) string {
			sub := work()
			sub.Route, sub.Delay = route, delay
			id := s.admit(sub).ID
			all, of[route] = append(all, id), append(of[route], id)
			return id
		}
		for _, event := range []shaper.Event{shaper.Succeed, shaper.Die, shaper.Retry} {
			add(0)
			s.settle(s.lease(1)[0], event, after(2*far))
		}
		add(0)
		s.lease(1)
		add(0)
		add(time.Hour)
		if _, err := s.q.Cancel(s.ctx, tenant, add(0)); err != nil {
			s.Fatal(err)
		}
	}
	for _, page := range []int{1, 3, len(all), 1000} {
		got := s.list(queue.List{Tenant: tenant, State: queue.ListAll, Limit: page})
		if slices.Sort(got); !slices.Equal(got, all) {
			s.Errorf("by %d: %q, want %q", page, got, all)
		}
	}
	got := s.list(queue.List{Tenant: tenant, State: queue.ListAll, Route: "reports", Limit: 2})
	if slices.Sort(got); !slices.Equal(got, of["reports"]) {
		s.Errorf("of one route: %q, want %q", got, of["reports"])
	}
}

func listChosen(s *suite) {
	mail := work()
	mail.Type = "mail"
	first, second, third := s.admit(mail), s.admit(work()), s.admit(mail)
	at := second.Created
	if !first.Created.Before(at) || !at.Before(third.Created) {
		s.Fatalf("created at %v, %v, %v", first.Created, at, third.Created)
	}
	for _, c := range []struct {
		what string
		l    queue.List
		want []string
	}{
		{"a type", queue.List{Type: "mail"}, []string{third.ID, first.ID}},
		{"no such type", queue.List{Type: "mai"}, nil},
		{"from an instant on", queue.List{CreatedAfter: at}, []string{third.ID, second.ID}},
		{"before an instant", queue.List{CreatedBefore: at}, []string{first.ID}},
		{"between two", queue.List{CreatedAfter: at, CreatedBefore: third.Created}, []string{second.ID}},
		{"a type since an instant", queue.List{Type: "mail", CreatedAfter: at}, []string{third.ID}},
	} {
		for _, c.l.State = range []queue.ListState{queue.ListAll, queue.ListQueued} {
			c.l.Tenant = tenant
			for _, c.l.Limit = range []int{1, 10} {
				if got := s.list(c.l); !slices.Equal(got, c.want) {
					s.Errorf("%s in pages of %d: %q, want %q", c.what, c.l.Limit, got, c.want)
				}
			}
		}
	}
}

// listRare has more jobs of another type than one call reads.
func listRare(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Capacity = 2000 })
	mail := work()
	mail.Type = "mail"
	want := []string{s.admit(mail).ID}
	for range 2 { // one call reads 1,000
		if _, err := s.q.SubmitBatch(s.ctx, slices.Repeat([]queue.Submission{work()}, 600), false); err != nil {
			s.Fatal(err)
		}
	}
	l := queue.List{Tenant: tenant, State: queue.ListQueued, Type: "mail", Limit: 10}
	if page, err := s.q.List(s.ctx, l); err != nil || len(page.Jobs) > 0 || page.Next == "" {
		s.Errorf("the first page: %d jobs, next %q, %v: one call reads all", len(page.Jobs), page.Next, err)
	}
	if got := s.list(l); !slices.Equal(got, want) {
		s.Errorf("%q, want %q", got, want)
	}
}

func listByKey(s *suite) {
	keyed := work()
	keyed.IdempotencyKey = "order 17"
	s.admit(work())
	id := s.admit(keyed).ID
	by := func(key string, state queue.ListState, route string) []string {
		return s.list(queue.List{Tenant: tenant, State: state, Route: route, IdempotencyKey: key, Limit: 10})
	}
	for state, found := range map[queue.ListState]bool{
		queue.ListAll: true, queue.ListQueued: true, queue.ListDead: false,
	} {
		if got := by("order 17", state, ""); slices.Equal(got, []string{id}) != found {
			s.Errorf("%s: %q", state, got)
		}
	}
	if got := by("order 17", queue.ListAll, "reports"); len(got) > 0 {
		s.Errorf("of another route: %q", got)
	}
	if got := by("order 18", queue.ListAll, ""); len(got) > 0 {
		s.Errorf("another key: %q", got)
	}
	page, err := s.q.List(s.ctx, queue.List{
		Tenant: "other", State: queue.ListAll, IdempotencyKey: "order 17", Limit: 1,
	})
	if err != nil || len(page.Jobs) > 0 {
		s.Errorf("of another tenant: %+v, %v", page, err)
	}
}

func listFind(s *suite) {
	other := work()
	other.Tenant = "a tenant whose name does not stand in keys as it is / €"
	for _, sub := range []queue.Submission{work(), other} {
		want := s.admit(sub)
		if got, err := s.q.Find(s.ctx, want.ID); err != nil || got.ID != want.ID ||
			got.Tenant != sub.Tenant || got.State != shaper.Queued || got.Position != 1 {
			s.Errorf("Find %s: %+v, %v", want.ID, got, err)
		}
	}
	for _, id := range []string{"", "x", strings.Repeat("0", 28), strings.Repeat("v", 28)} {
		if got, err := s.q.Find(s.ctx, id); !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("Find %q: %+v, %v", id, got, err)
		}
	}
}

// listByError finds jobs by the message, the detail or the upstream's answer, in pages of any size.
func listByError(s *suite) {
	s.backlog(4, work())
	var ids []string
	for i, l := range s.lease(4) {
		ids = append(ids, l.ID)
		s.settle(l, shaper.Die, func(t *queue.Settlement) {
			t.Error = &queue.JobError{Message: "the upstream answered 422", Detail: "host-" + strconv.Itoa(i%2)}
			if i == 3 {
				t.Response = &queue.Response{Status: 422, Body: []byte(`{"why":"sku is unknown"}`)}
			}
		})
	}
	waits := s.admit(work()).ID
	for text, want := range map[string][]string{
		"ANSWERED 422": reversed(ids), "HOST-1": {ids[3], ids[1]}, "sku is UNKNOWN": {ids[3]}, "500": nil, waits: nil,
	} {
		for _, state := range []queue.ListState{queue.ListAll, queue.ListDead} {
			for _, limit := range []int{1, 10} {
				l := queue.List{Tenant: tenant, State: state, Error: text, Limit: limit}
				if got := s.list(l); !slices.Equal(got, want) {
					s.Errorf("%q in pages of %d: %q, want %q", text, limit, got, want)
				}
			}
		}
	}
}
