package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// forwardRoute is a route that forwards to the sink.
const forwardRoute = "partner"

// forwarded are the checks of forwarded requests.
func forwarded() []check {
	return []check{{
		id: "R9", what: "clients, api, workers and Redis (appendfsync always) killed while forwarded requests wait",
		target: "every key gets one answer, that of its last delivery; delivered again only by a worker's death in it",
		quick:  scale{jobs: 900, tenants: 30, kills: 6, window: 9 * time.Second},
		full:   scale{jobs: 9000, tenants: 60, kills: 24, window: 60 * time.Second, limit: 4 * time.Minute},
		run:    waitersKilled,
	}, {
		id: "R9-streams", what: "the same while the answers come in pieces, as streams",
		target: "no half of an answer ends like a whole, none has pieces of two; every key has one answer, or none where " +
			"its worker died in it",
		quick: scale{jobs: 500, tenants: 30, kills: 6, window: 9 * time.Second},
		full:  scale{jobs: 5000, tenants: 60, kills: 24, window: 60 * time.Second, limit: 4 * time.Minute},
		run:   streamsKilled,
	}}
}

// streamPieces are the pieces of an answer in R9-streams.
const streamPieces = 8

// answers are the bodies that the clients of each key got with a 200.
type answers struct {
	mu    sync.Mutex
	first map[string]string // by key
	other []string          // descriptions of answers that were not the first of their key
	died  int               // clients that were killed while they waited

	pieces int             // of an answer, beside the first
	halves []string        // descriptions of answers that were not whole
	broken int             // answers that broke off
	none   map[string]bool // keys whose answer broke off for good
}

// got notes an answer.
func (a *answers) got(key, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !whole(body, a.pieces) {
		a.halves = append(a.halves, fmt.Sprintf("key %s got %q", key, body))
	}
	if before, known := a.first[key]; !known {
		a.first[key] = body
	} else if before != body {
		a.other = append(a.other, fmt.Sprintf("key %s got %q, before %q", key, body, before))
	}
}

func (a *answers) killed() {
	a.mu.Lock()
	a.died++
	a.mu.Unlock()
}

func waitersKilled(ctx context.Context, w *world, f *findings) error {
	// Requests come in half of the time in which they can leave, so most of them wait.
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	s := settings{
		fsync: "always", lease: 3 * time.Second, defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant)+1)},
		routes: map[string]string{forwardRoute: "forward " + retries + ", wait: 60s, retention: 1h"},
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	w.sink.set(slowly(20*time.Millisecond, 200*time.Millisecond))
	a := &answers{first: map[string]string{}}
	e, killed, err := w.forwardKilled(ctx, a, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	f.atLeast("keys with an answer", float64(len(a.first)), float64(w.scale.jobs), "")
	e.answersOf(f, a, killed)
	return nil
}

func streamsKilled(ctx context.Context, w *world, f *findings) error {
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	s := settings{
		fsync: "always", lease: 3 * time.Second, defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant)+1)},
		routes: map[string]string{forwardRoute: "forward " + retries + ", wait: 60s, retention: 1h, stream: always"},
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	w.sink.set(func(delivery, int) answer { return answer{status: http.StatusOK, pieces: streamPieces} })
	a := &answers{first: map[string]string{}, none: map[string]bool{}, pieces: streamPieces}
	e, killed, err := w.forwardKilled(ctx, a, f)
	if err != nil {
		return err
	}
	// A worker that dies in an answer ends its job.
	cut, keys := map[string]bool{}, map[string]string{}
	for _, c := range killed {
		maps.Copy(cut, c.leased)
	}
	for _, d := range e.deliveries {
		keys[d.Job] = d.Body
	}
	var failed, both []string
	for _, j := range e.jobs {
		if j.State != "succeeded" && !cut[j.ID] {
			failed = append(failed, fmt.Sprintf("job %s is %s, and its worker lives: %s", j.ID, j.State, keys[j.ID]))
		}
	}
	for key := range a.none {
		if body, answered := a.first[key]; answered {
			both = append(both, fmt.Sprintf("key %s got %q, and then none", key, body))
		}
	}
	f.none("failed with a living worker", failed)
	f.none("an answer and none", both)
	f.none("halves that ended like wholes", a.halves)
	f.info("answers that broke off", float64(a.broken), "")
	f.info("keys without an answer", float64(len(a.none)), "")
	f.atLeast("keys with an answer, or none for good", float64(len(a.first)+len(a.none)), float64(w.scale.jobs), "")
	e.answersOf(f, a, killed)
	return nil
}

// forwardKilled sends the requests while processes are killed, and then asks for all answers again.
func (w *world) forwardKilled(ctx context.Context, a *answers, f *findings) (e ended, killed []crash, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.forwardAll(ctx, a)
	}()
	if killed, err = w.killInTurns(ctx); err != nil {
		return e, nil, err
	}
	<-done
	if e, err = w.settle(ctx, f); err != nil {
		return e, nil, err
	}
	w.say("asking for all answers again")
	for i := range w.scale.jobs {
		w.forward(ctx, a, i, 0)
	}
	return e, killed, nil
}

// answersOf checks the answers that all clients got.
func (e ended) answersOf(f *findings, a *answers, killed []crash) {
	deliveries := map[string]int{}
	for _, d := range e.deliveries {
		deliveries[d.Job]++
	}
	var late []string
	for key, body := range a.first {
		first, _, _ := strings.Cut(body, "\n")
		if job, nth, _ := strings.Cut(first, " "); strconv.Itoa(deliveries[job]) != nth {
			late = append(late, fmt.Sprintf("key %s got %q of %d deliveries", key, body, deliveries[job]))
		}
	}
	var again []string
	for _, d := range unjustified(killed, e.Duplicates) {
		again = append(again, fmt.Sprintf("job %s by %s, again by %s %v later", d.again.Job, d.before.Process,
			d.again.Process, d.again.At.since(d.before.At)))
	}
	f.info("workers killed", float64(len(killed)), "")
	f.atLeast("clients killed", float64(a.died), 1, "")
	f.atLeast("in flight at the kills", float64(inFlight(killed, e.deliveries)), 1, "")
	f.none("answers unlike the first", a.other)
	f.none("answers of an earlier delivery", late)
	f.info("duplicates", float64(len(e.Duplicates)), "")
	f.none("duplicates not in flight", again)
}

// killInTurns kills a worker, the api and Redis, one after the other, and starts each again.
func (w *world) killInTurns(ctx context.Context) (killed []crash, err error) {
	mean := w.scale.window / time.Duration(w.scale.kills+1)
	for i := range w.scale.kills {
		if err := pause(ctx, w.between(mean/2, mean)); err != nil {
			return nil, err
		}
		switch i % 3 {
		case 0:
			workers := w.living("worker")
			c, err := w.crash(ctx, workers[w.rng.IntN(len(workers))])
			if err != nil {
				return nil, err
			}
			killed = append(killed, c)
			_, err = w.start(ctx, "worker")
			if err != nil {
				return nil, err
			}
		case 1:
			w.living("api")[0].kill()
			if _, err := w.start(ctx, "api"); err != nil {
				return nil, err
			}
		case 2:
			w.redis.kill()
			if err := pause(ctx, w.between(0, 300*time.Millisecond)); err != nil {
				return nil, err
			}
			if err := w.startRedis(ctx); err != nil {
				return nil, err
			}
		}
		w.say("kill %d of %d", i+1, w.scale.kills)
	}
	return killed, nil
}

// forwardAll sends the requests of the check, each by a client that insists on an answer. A third
// of the clients are killed once or twice while they wait.
func (w *world) forwardAll(ctx context.Context, a *answers) {
	var clients sync.WaitGroup
	defer clients.Wait()
	start := time.Now()
	for i := range w.scale.jobs {
		due := start.Add(time.Duration(float64(w.scale.window/2) * float64(i) / float64(w.scale.jobs)))
		if pause(ctx, time.Until(due)) != nil {
			return
		}
		clients.Go(func() {
			for try := range i%6/4 + i%6/5 {
				w.forward(ctx, a, i, time.Duration(50+i*37%700+100*try)*time.Millisecond)
			}
			for !w.forward(ctx, a, i, 0) && !a.never(i) && pause(ctx, 50*time.Millisecond) == nil {
			}
		})
	}
}

// keyOf is the key of request i.
func keyOf(i int) string { return "r9-" + strconv.Itoa(i) }

// never reports whether the answer to request i broke off for good.
func (a *answers) never(i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.none[keyOf(i)]
}

// lost notes an answer that broke off; for good, if the API says so.
func (a *answers) lost(key string, forGood bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken++; forGood && a.none != nil {
		a.none[key] = true
	}
}

// forward sends request i once and reports whether its client got an answer of the upstream. The
// client is killed after life, unless that is 0.
func (w *world) forward(ctx context.Context, a *answers, i int, life time.Duration) bool {
	key := keyOf(i)
	r := request{
		Key: key, Tenant: spread("tenant", w.scale.tenants)(i), Body: payload(key, 0), Outcome: unknown,
		Sent: w.ledger.now(),
	}
	if life > 0 {
		mortal, end := context.WithTimeout(ctx, life)
		defer end()
		ctx = mortal
	}
	header := map[string]string{"Sluice-Tenant": r.Tenant, "Idempotency-Key": key}
	code, raw, err := w.call(ctx, http.MethodPost, w.api, "/v1/forward/"+forwardRoute+"/orders", header, []byte(r.Body))
	r.Answered = w.ledger.now()
	if err != nil && life > 0 && ctx.Err() != nil {
		a.killed()
	} else if err != nil && code == http.StatusOK || code == http.StatusBadGateway {
		a.lost(key, code == http.StatusBadGateway)
	}
	if err == nil {
		r.Status = code
		switch {
		case code == http.StatusOK:
			r.Outcome = acknowledged
			r.Job, _, _ = strings.Cut(string(raw), " ")
			a.got(key, string(raw))
		case code >= 400 && code < 500:
			r.Outcome = refused
		}
	}
	w.ledger.request(r)
	return r.Outcome == acknowledged
}
