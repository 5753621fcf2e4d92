package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// answer is what the sink does with a delivery: wait for delay, and for until if it is set, then
// answer with status. Status 0 never answers: the sink waits until the worker hangs up.
type answer struct {
	status int
	delay  time.Duration
	until  <-chan struct{}
	header map[string]string
	// The answer to a forwarded request comes in that many pieces beside the first, pieceEvery
	// apart.
	pieces int
}

const pieceEvery = 60 * time.Millisecond

// behaviour decides the answer to a delivery; nth counts those of its job, from 1. It is called
// from many goroutines.
type behaviour func(d delivery, nth int) answer

// sink is the upstream of all routes. It writes each delivery into the ledger as soon as its body
// has arrived.
type sink struct {
	url    string
	ledger *ledger
	server *http.Server
	behave atomic.Pointer[behaviour]

	mu     sync.Mutex
	times  map[string]int // deliveries by job
	inside map[string]int // deliveries being answered, by tenant
	most   map[string]int // the greatest inside
}

// newSink starts a sink that answers 200 to everything.
func newSink(l *ledger) (*sink, error) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{
		url: "http://" + socket.Addr().String(), ledger: l,
		times: map[string]int{}, inside: map[string]int{}, most: map[string]int{},
	}
	s.set(func(delivery, int) answer { return answer{status: http.StatusOK} })
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.server.Serve(socket) }() // ended by close
	return s, nil
}

// set changes the behaviour for the deliveries to come.
func (s *sink) set(b behaviour) { s.behave.Store(&b) }

func (s *sink) close() { _ = s.server.Close() }

// at is the URL of a process's route; deliveries there are put down to them.
func (s *sink) at(process, route string) string { return s.url + "/" + process + "/" + route }

// mostInside is the greatest number of the tenant's deliveries that were being answered at once.
func (s *sink) mostInside(tenant string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most[tenant]
}

// insideNow is the number of the tenant's deliveries that wait for their answer.
func (s *sink) insideNow(tenant string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside[tenant]
}

func (s *sink) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // cut off on the way: it did not arrive
	}
	process, route, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	route, _, forwarded := strings.Cut(route, "/")
	attempt, _ := strconv.Atoi(r.Header.Get("Sluice-Attempt")) // 0 where there is none, as from asynq
	tenant, err := url.PathUnescape(r.Header.Get("Sluice-Tenant"))
	if err != nil {
		tenant = r.Header.Get("Sluice-Tenant")
	}
	d := delivery{
		At: s.ledger.now(), Job: r.Header.Get("webhook-id"), Tenant: tenant,
		Process: process, Route: route, Attempt: attempt, Body: string(body),
	}
	if forwarded {
		d.Job = r.Header.Get("Sluice-Job")
	}
	a, nth := s.enter(&d)
	defer s.leave(d.Tenant)
	if a.wait(r.Context()) != nil || a.status == 0 {
		panic(http.ErrAbortHandler)
	}
	for name, value := range a.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	if !forwarded {
		return
	}
	// Its client gets the answer, and checks which delivery it is of.
	first := fmt.Sprintf("%s %d", d.Job, nth)
	_, _ = io.WriteString(w, first)
	for i := range a.pieces {
		if err := http.NewResponseController(w).Flush(); err != nil || pause(r.Context(), pieceEvery) != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = fmt.Fprintf(w, "\n%s %d", first, i)
	}
}

// whole reports whether an answer in pieces has all of them, of one delivery.
func whole(body string, pieces int) bool {
	lines := strings.Split(body, "\n")
	for i, line := range lines[1:] {
		if line != fmt.Sprintf("%s %d", lines[0], i) {
			return false
		}
	}
	return len(lines) == pieces+1
}

// enter decides on the answer and writes the delivery down.
func (s *sink) enter(d *delivery) (a answer, nth int) {
	s.mu.Lock()
	s.times[d.Job]++
	nth = s.times[d.Job]
	s.inside[d.Tenant]++
	s.most[d.Tenant] = max(s.most[d.Tenant], s.inside[d.Tenant])
	s.mu.Unlock()
	a = (*s.behave.Load())(*d, nth)
	d.Status = a.status
	s.ledger.delivery(*d)
	return a, nth
}

func (s *sink) leave(tenant string) {
	s.mu.Lock()
	s.inside[tenant]--
	s.mu.Unlock()
}

func (a answer) wait(ctx context.Context) error {
	if a.status == 0 {
		<-ctx.Done()
	}
	if a.until != nil {
		select {
		case <-a.until:
		case <-ctx.Done():
		}
	}
	if a.delay == 0 {
		return ctx.Err()
	}
	return pause(ctx, a.delay)
}
