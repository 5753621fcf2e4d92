package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// starving is a case of S4: one client, or one tenant, does what it can to resources that it shares
// with quiet tenants. To add a case, add it to a list of starvingCases. One judge decides on all.
type starving struct {
	name, what string
	settings   settings // beside those of every case, see beset
	memory     string   // maxmemory of Redis, such as 64mb; empty: no bound
	quiet      quietTenants
	// prepare starts what the attack needs before the processes start, such as an upstream, and
	// adds it to the settings.
	prepare func(w *world, s *settings) (end func())
	// ready does what must be over before the quiet tenants begin, such as to store a backlog.
	ready func(ctx context.Context, w *world) error
	// attack goes on until ctx ends, and then adds figures of its own, such as how often it was
	// refused.
	attack func(ctx context.Context, w *world, f *findings) error
}

// starvingCases are the cases of S4. Each is a check of its own, S4-NAME; -only S4 carries out all
// of them.
func starvingCases() []starving {
	return slices.Concat(clientCases(), sharedCases())
}

// clientCases are attacks by clients on the processes and the store.
func clientCases() []starving {
	return []starving{
		{
			name: "dead", what: "one tenant fills a Redis of 64 MB with jobs that its upstream refuses for good",
			memory: "64mb", prepare: refusingUpstream, attack: deadLetters,
		},
		{
			name: "bodies", what: "16 connections repeatedly send large bodies without their last bytes",
			attack: silentBodies,
		},
		{
			name: "streams", what: "one tenant opens all the event streams, and waits for as many jobs as it may",
			settings: settings{env: []string{"SLUICE_API_MAX_STREAMS=100", "SLUICE_API_MAX_CONNECTIONS=400"}},
			attack:   manyStreams,
		},
		{
			name:     "connections",
			what:     "one address opens three times the connections there may be, with requests that drip",
			settings: settings{env: []string{"SLUICE_API_MAX_CONNECTIONS=200"}}, attack: drippingConnections,
		},
		{
			name: "callbacks", what: "one tenant's callbacks go to a receiver that never answers",
			prepare: tarpit, attack: stalledCallbacks,
		},
		{
			name: "lists", what: "32 connections list jobs by a type that none of 30,000 waiting jobs has",
			prepare: longList, attack: emptyLists,
		},
		{
			name: "answers", what: "100 connections read a stored answer of 1 MB",
			prepare: largeUpstream, attack: largeAnswers,
		},
		{
			name: "guesses", what: "one address guesses the admin token as fast as it can",
			settings: settings{env: []string{"SLUICE_ADMIN_TOKEN=" + operatorToken}}, attack: guessedTokens,
		},
	}
}

// starvation are the checks that no client can starve the others.
func starvation() []check {
	var checks []check
	for _, c := range starvingCases() {
		window := 6 * time.Second
		if c.memory != "" { // which takes its time to fill
			window = 12 * time.Second
		}
		checks = append(checks, check{
			id: "S4-" + c.name, what: c.what,
			target: "quiet tenants lose ≤ 1 % of what they may have in every 2 s and get no 503, during the " +
				"attack and after it; their submissions take ≤ 2 × as long, or 5 ms more",
			quick: scale{tenants: 10, jobs: 10_000, window: window},
			full:  scale{tenants: 10, jobs: 20_000, window: 30 * time.Second, limit: 4 * time.Minute},
			run:   c.run,
		})
	}
	return checks
}

// run lets the quiet tenants send alone, beside the attack and after it, and judges the outcomes of
// their jobs.
func (c starving) run(ctx context.Context, w *world, f *findings) error {
	s := c.settings
	s.defaults = tenant{rate: "20/s"}.over(s.defaults)
	if c.prepare != nil {
		defer c.prepare(w, &s)()
	}
	c.quiet.settle(&s)
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	if c.memory != "" {
		if err := w.store.ConfigSet(ctx, "maxmemory", c.memory).Err(); err != nil {
			return err
		}
	}
	if c.ready != nil {
		if err := c.ready(ctx, w); err != nil {
			return err
		}
	}
	j := judge{world: w, quiet: c.quiet}
	if err := j.begin(ctx, 2*w.scale.window); err != nil {
		return err
	}
	defer j.end()
	if err := j.watch(ctx, "alone", w.scale.window/3); err != nil {
		return err
	}
	attacking, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.attack(attacking, w, f) }()
	err := j.watch(ctx, "beside", w.scale.window)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	if err := j.watch(ctx, "after", w.scale.window/3); err != nil {
		return err
	}
	if err := pause(ctx, inTime); err != nil {
		return err
	}
	j.judge(f)
	return nil
}

// refusingRoute leads to an upstream that refuses every job for good.
const refusingRoute = "refusing"

// refusingUpstream is an upstream of its own: the sink would keep every body in its ledger.
func refusingUpstream(_ *world, s *settings) (end func()) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	s.routes = map[string]string{refusingRoute: fmt.Sprintf("url: %q, timeout: 5s", up.URL)}
	s.tenants = map[string]tenant{offender: {rate: "200/s"}}
	return up.Close
}

const offender = "offender"

// deadLetters submits large jobs that become dead letters, faster than Redis has memory for them.
func deadLetters(ctx context.Context, w *world, f *findings) error {
	const (
		clients = 4
		pad     = 200_000
		every   = 25 * time.Millisecond // of each client: 32 MB a second of all
	)
	body := []byte(`{"type":"battery","route":"` + refusingRoute + `","payload":` + payload("dead", pad) + `}`)
	var admitted, refused, unavailable atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for pause(ctx, every) == nil {
				code, _, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
					map[string]string{"Sluice-Tenant": offender}, body)
				switch {
				case err != nil: // cut off at the end
				case code == http.StatusAccepted:
					admitted.Add(1)
				case code == http.StatusTooManyRequests:
					refused.Add(1)
				default:
					unavailable.Add(1)
				}
			}
		})
	}
	all.Wait()
	f.info("MB admitted of the offender", float64(admitted.Load()*pad)/1e6, "")
	f.atLeast("429s of the offender", float64(refused.Load()), 1, "")
	f.atMost("other answers to the offender", float64(unavailable.Load()), 0, "")
	return nil
}
