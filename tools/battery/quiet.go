package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

// quietTenants is what the quiet tenants of S4 do: some send now and then, each below its rate, and
// two have a backlog. What a case leaves zero has a default.
type quietTenants struct {
	route   string // of all their jobs; empty: the default route
	forward bool   // they send forwarded requests, and none has a backlog
	// backlog is how many jobs a second of the backlogs must leave, of both together.
	backlog int
	// span is what the windows are longer than 2 s, in which one job of another tenant may use
	// the rate of a pool.
	span time.Duration
}

const (
	quietPerSecond = 4               // jobs that each quiet tenant submits, which is less than its rate
	quietBacklog   = 100             // jobs a second that leave both backlogs, unless the case says otherwise
	backlogWeight  = 10              // of a tenant with a backlog in a pool
	quietWindow    = 2 * time.Second // in each of which the quiet tenants must have nearly everything
	floorEvery     = 20 * time.Millisecond
	floorSlack     = 10 * time.Millisecond // how late a departure may be without losing its slot
)

// inTime is how long a quiet tenant's job may take from its submission to its delivery. A job that
// takes longer counts as lost.
const inTime = time.Second

// settle adds the tenants with a backlog to the settings. In a pool, the pool alone bounds them.
func (q quietTenants) settle(s *settings) {
	if s.tenants == nil {
		s.tenants = map[string]tenant{}
	}
	each := tenant{rate: strconv.Itoa(or(q.backlog, quietBacklog)/2) + "/s"}
	if q.route == poolRoute {
		each = tenant{rate: s.pool, weight: backlogWeight}
	}
	for _, name := range names("backlog", 2) {
		s.tenants[name] = each
	}
}

// judge watches the quiet tenants of a case and decides on what they lost.
type judge struct {
	*world
	quiet  quietTenants
	phases []phase
	floor  *floor
}

// phase is a time in which the quiet tenants were watched.
type phase struct {
	name string
	from instant
	took time.Duration
}

// begin stores the backlogs for this time, and starts to watch the machine.
func (j *judge) begin(ctx context.Context, last time.Duration) error {
	j.floor = newFloor(j.ledger)
	if j.quiet.forward {
		return nil
	}
	jobs := int(last.Seconds()) * or(j.quiet.backlog, quietBacklog) * 3 / 5 // of each; more than half
	for _, name := range names("backlog", 2) {
		if err := j.pile(ctx, name, or(j.quiet.route, "default"), jobs); err != nil {
			return err
		}
	}
	return pause(ctx, quietWindow/4)
}

func (j *judge) end() { j.floor.end() }

// watch lets the quiet tenants send for a time, at least a window.
func (j *judge) watch(ctx context.Context, name string, d time.Duration) error {
	d = max(d, quietWindow+j.quiet.span)
	j.say("%s for %v", name, d)
	from := j.ledger.now()
	err := j.submit(ctx, load{
		name: name, jobs: int(d.Seconds() * quietPerSecond * float64(j.scale.tenants)), over: d,
		tenants: spread("quiet", j.scale.tenants), route: j.quiet.route, forward: j.quiet.forward, clients: 16,
	})
	j.phases = append(j.phases, phase{name, from, j.ledger.now().since(from)})
	return err
}

// judge reports what the quiet tenants lost in the worst window of each phase, their 503s, and how
// long their submissions took. What this machine itself lost meanwhile is not held against Sluice.
func (j *judge) judge(f *findings) {
	requests, deliveries := j.ledger.entries()
	arrived, left := map[string]instant{}, []instant(nil)
	for _, d := range deliveries {
		if _, before := arrived[d.Job]; !before {
			arrived[d.Job] = d.At
			if strings.HasPrefix(d.Tenant, "backlog") {
				left = append(left, d.At)
			}
		}
	}
	took := map[string][]time.Duration{}
	var alone, base time.Duration // the worst medians of submissions and of the floor, alone
	// Of the worst window beside: the median, and how much more of it the floor needs than alone.
	var beside, machine time.Duration
	for _, p := range j.phases {
		var sent []request
		var unavailable []string
		for _, r := range requests {
			if !strings.HasPrefix(r.Key, p.name+"-") {
				continue
			}
			sent = append(sent, r)
			took[p.name] = append(took[p.name], r.Answered.since(r.Sent))
			switch {
			case r.Status == http.StatusServiceUnavailable || r.Status == 0:
				unavailable = append(unavailable, fmt.Sprintf("%s: %d", r.Key, r.Status))
			case r.Outcome != acknowledged:
				f.because("%s: answered %d", r.Key, r.Status)
			}
		}
		f.none("503s "+p.name, unavailable)
		worst, whole := 0.0, quietWindow+j.quiet.span
		for from := p.from; from.add(whole) <= p.from.add(p.took+quietWindow/20); from = from.add(whole) {
			worst = max(worst, j.lost(sent, arrived, left, from, from.add(whole)))
			end := from.add(whole)
			submission, floor := quantile(between(sent, from, end), 0.5), quantile(j.floor.took(from, end), 0.5)
			switch p.name {
			case "alone":
				alone, base = max(alone, submission), max(base, floor)
			case "beside":
				if adds := max(0, floor-base); submission-adds > beside-machine {
					beside, machine = submission, adds
				}
			}
		}
		f.atMost("lost "+p.name, 100*worst, 1, "%")
		f.timed()
	}
	f.info("p50 of submissions alone", ms(alone), "ms")
	f.info("ms that a request to another server takes longer in the worst 2 s", ms(machine), "ms")
	f.atMost("p50 in the worst 2 s beside", ms(beside), ms(max(2*alone, alone+slowest)+machine), "ms")
	f.timed()
	f.info("p95 alone", ms(quantile(took["alone"], 0.95)), "ms")
	f.info("p95 beside", ms(quantile(took["beside"], 0.95)), "ms")
}

// lost is the part that the quiet tenants lost in a window: of the jobs that were sent in it, or of
// the backlogs without what the machine itself lost.
func (j *judge) lost(sent []request, arrived map[string]instant, left []instant, from, end instant) float64 {
	late := missing(sent, func(r request) (counts, good bool) {
		at, delivered := arrived[r.Job]
		return r.Sent >= from && r.Sent < end, r.Outcome == acknowledged && delivered && at.since(r.Sent) <= inTime
	})
	if j.quiet.forward {
		return late
	}
	n := 0
	for _, at := range left {
		if at >= from && at < end {
			n++
		}
	}
	all := float64(or(j.quiet.backlog, quietBacklog)) * quietWindow.Seconds()
	behind := (all - float64(n)) / all
	return max(late, behind-j.floor.lost(from, end))
}

// between is how long the requests took that were sent in a window.
func between(sent []request, from, end instant) (took []time.Duration) {
	for _, r := range sent {
		if r.Sent >= from && r.Sent < end {
			took = append(took, r.Answered.since(r.Sent))
		}
	}
	return took
}

// missing is the part of those that count which is not good; none where none counts.
func missing[T any](all []T, of func(T) (counts, good bool)) float64 {
	n, not := 0.0, 0.0
	for _, v := range all {
		counts, good := of(v)
		if counts {
			n++
		}
		if counts && !good {
			not++
		}
	}
	return not / max(n, 1)
}

// floor measures what this machine loses by itself, at any time: of departures on a grid that
// nothing but this process makes, and of requests to a server in this process.
type floor struct {
	ledger *ledger
	server *httptest.Server
	stop   context.CancelFunc
	done   sync.WaitGroup
	ticks  []tick
}

// tick is a departure of the floor.
type tick struct {
	due, at instant
	took    time.Duration // of a request after it
}

func newFloor(l *ledger) *floor {
	ctx, stop := context.WithCancel(context.Background())
	f := &floor{ledger: l, stop: stop, server: httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		}))}
	f.done.Go(func() { f.run(ctx) })
	return f
}

func (f *floor) run(ctx context.Context) {
	client := f.server.Client()
	for due := f.ledger.now(); ctx.Err() == nil; due = due.add(floorEvery) {
		if pause(ctx, due.since(f.ledger.now())) != nil {
			return
		}
		t := tick{due: due, at: f.ledger.now()}
		if resp, err := client.Post(f.server.URL, "text/plain", strings.NewReader("floor")); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		t.took = f.ledger.now().since(t.at)
		f.ticks = append(f.ticks, t)
	}
}

// end ends the measurement. Its results may be read afterwards.
func (f *floor) end() {
	f.stop()
	f.done.Wait()
	f.server.Close()
}

// lost is the part of the floor's departures in a window that came too late to keep their slots.
func (f *floor) lost(from, end instant) float64 {
	f.stop()
	f.done.Wait()
	return missing(f.ticks, func(t tick) (counts, good bool) {
		return t.due >= from && t.due < end, t.at.since(t.due) <= floorSlack
	})
}

// took is how long the floor's requests of a window took.
func (f *floor) took(from, end instant) (took []time.Duration) {
	f.stop()
	f.done.Wait()
	for _, t := range f.ticks {
		if t.due >= from && t.due < end {
			took = append(took, t.took)
		}
	}
	return took
}
