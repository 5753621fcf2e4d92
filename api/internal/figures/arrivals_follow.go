package figures

import (
	"errors"
	"slices"
	"sync"
)

// ErrTooManyFollowers means that the process has reached its limit of followers.
var ErrTooManyFollowers = errors.New("arrivals: too many followers")

// bufferMost bounds the arrivals that are buffered for a follower; it loses further ones.
const bufferMost = 1 << 14

// Follower receives every arrival of a tenant from the call of Arrivals.Follow on. It is for one
// reader.
type Follower struct {
	log    *Arrivals
	tenant string
	route  string // empty: all
	news   chan struct{}

	mu   sync.Mutex
	wait []Arrival
	lost int64
	read []Arrival // the buffer that was taken last; the two alternate
}

// Follow begins to follow a tenant, known or not; with a route, only its arrivals for that route.
// The caller must call Stop at the end. The error is ErrTooManyFollowers.
func (l *Arrivals) Follow(name, route string) (*Follower, error) {
	if l.followed.Add(1) > followsMost {
		l.followed.Add(-1)
		return nil, ErrTooManyFollowers
	}
	f := &Follower{log: l, tenant: name, route: route, news: make(chan struct{}, 1)}
	s := l.stripe(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[name]
	if t == nil {
		t = &tenant{}
		s.tenants[name] = t
	}
	t.followers = append(t.followers, f)
	return f, nil
}

// Stop ends the follower. It must be called once.
func (f *Follower) Stop() {
	s := f.log.stripe(f.tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[f.tenant]
	t.followers = slices.DeleteFunc(t.followers, func(other *Follower) bool { return other == f })
	s.dropIfEmpty(f.tenant, t)
	f.log.followed.Add(-1)
}

// News receives a signal when Take has arrivals to return.
func (f *Follower) News() <-chan struct{} { return f.news }

// Take returns the arrivals since the last call, nearly in order, and the number of those lost
// because the buffer was full. They are valid until the next call.
func (f *Follower) Take() (came []Arrival, lost int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	came, lost = f.wait, f.lost
	f.wait, f.read, f.lost = f.read[:0], came, 0
	return came, lost
}

// offer hands an arrival to the follower and never waits.
func (f *Follower) offer(a Arrival) {
	if f.route != "" && f.route != a.Route {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wait) >= bufferMost {
		f.lost++
		return
	}
	f.wait = append(f.wait, a)
	if len(f.wait) == 1 {
		select {
		case f.news <- struct{}{}:
		default:
		}
	}
}
