package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/lua"
)

// bounds are the checks of invariant 1.
func bounds() []check {
	return []check{
		{
			id: "B1", what: "the bound, by porcupine: histories of concurrent clients per tenant",
			target: "every history linearizable, max depth at admission = capacity, false 429 = 0",
			quick:  scale{jobs: 20, tenants: 8, rounds: 16},
			full:   scale{jobs: 40, tenants: 8, rounds: 60, limit: 5 * time.Minute},
			run:    bounded,
		},
		{
			id: "B1-rapid", what: "the bound and all else by rapid: the scripts on a real Redis beside their model",
			target:   "the same answers in ≥ 100,000 steps",
			full:     scale{limit: 5 * time.Minute},
			fullOnly: true,
			run:      parity,
		},
	}
}

// clientsPerTenant is how many clients call at once on behalf of one tenant.
const clientsPerTenant = 5

// plan is what the clients of one tenant will do, drawn before they start.
type plan struct {
	tenant   string
	capacity int
	clients  [][]ask
	delayed  []bool // by job
}

// drawPlan draws a plan of n calls for each client.
func drawPlan(rng *rand.Rand, tenant string, capacity, n int) plan {
	p := plan{tenant: tenant, capacity: capacity, clients: make([][]ask, clientsPerTenant)}
	fresh := func(n int, delayed bool) (jobs []int) {
		for range n {
			jobs = append(jobs, len(p.delayed))
			p.delayed = append(p.delayed, delayed)
		}
		return jobs
	}
	for i := range n {
		for c := range p.clients {
			var known []int // that this client has submitted before, or another one is about to
			for _, a := range p.clients[c] {
				known = append(known, a.jobs...)
			}
			if c > 0 {
				known = append(known, p.clients[c-1][i].jobs...)
			}
			a := ask{verb: submit}
			switch dice := rng.IntN(100); {
			case dice < 8 && len(known) > 0:
				job := known[len(known)-1]
				a.jobs, a.delayed = []int{job}, p.delayed[job]
			case dice < 16:
				a.jobs, a.atomic = fresh(2+rng.IntN(3), false), rng.IntN(2) == 0
			case dice < 30 && len(known) > 0:
				a.verb, a.jobs = cancel, []int{known[rng.IntN(len(known))]}
			case dice < 42 && len(known) > 0:
				a.verb, a.jobs = look, []int{known[rng.IntN(len(known))]}
			case dice < 49:
				a.verb = stat
			case dice < 53 && c == 0:
				a.verb, a.capacity = resize, 1+rng.IntN(2*capacity)
			default:
				a.delayed = rng.IntN(12) == 0
				a.jobs = fresh(1, a.delayed)
			}
			p.clients[c] = append(p.clients[c], a)
		}
	}
	return p
}

// bounded lets clients make histories on tenants of their own and, when all has left, has porcupine judge them.
func bounded(ctx context.Context, w *world, f *findings) error {
	var plans []plan
	s := settings{tenants: map[string]tenant{}}
	for i := range w.scale.rounds * w.scale.tenants {
		p := drawPlan(w.rng, "tenant"+strconv.Itoa(i), 1+w.rng.IntN(12), w.scale.jobs)
		s.tenants[p.tenant] = tenant{rate: []string{"50/s", "200/s", "500/s"}[w.rng.IntN(3)], capacity: p.capacity}
		plans = append(plans, p)
	}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	var players []*player
	for round := range slices.Chunk(plans, w.scale.tenants) {
		w.say("histories %d to %d of %d", len(players)+1, len(players)+len(round), len(plans))
		var wg sync.WaitGroup
		for _, p := range round {
			y := &player{w: w, plan: p, ids: make([]string, len(p.delayed))}
			players = append(players, y)
			seed := w.rng.Uint64()
			wg.Go(func() { y.play(ctx, seed) })
		}
		wg.Wait()
	}
	if err := w.drain(ctx); err != nil {
		return err
	}
	b := &judgement{arrived: map[string]instant{}}
	for _, d := range w.ledger.delivered(0) {
		if _, again := b.arrived[d.Job]; !again {
			b.arrived[d.Job] = d.At
		}
	}
	for _, y := range players {
		y.do(ctx, 0, ask{verb: stat}) // all is over
		if err := b.take(ctx, y); err != nil {
			return err
		}
	}
	if err := b.judge(ctx, w); err != nil {
		return err
	}
	b.find(f, w)
	return nil
}

// player makes the history of one tenant.
type player struct {
	w    *world
	plan plan

	mu        sync.Mutex
	ids       []string // by job
	cancelled map[string]bool
	calls     []called
	odd       []string // what no answer may be
}

// play has all clients do what is planned, at moments drawn from the seed, and then cancels the jobs whose time will not come.
func (y *player) play(ctx context.Context, seed uint64) {
	y.cancelled = map[string]bool{}
	var wg sync.WaitGroup
	for c, asks := range y.plan.clients {
		rng := rand.New(rand.NewPCG(seed, uint64(c)))
		wg.Go(func() {
			for _, a := range asks {
				if pause(ctx, time.Duration(rng.Int64N(int64(6*time.Millisecond)))) != nil {
					return
				}
				y.do(ctx, c, a)
			}
		})
	}
	wg.Wait()
	for job, delayed := range y.plan.delayed {
		if delayed && y.id(job) != "" {
			y.do(ctx, 0, ask{verb: cancel, jobs: []int{job}})
		}
	}
}

func (y *player) id(job int) string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.ids[job]
}

// do carries out a call and notes it.
func (y *player) do(ctx context.Context, client int, a ask) {
	if (a.verb == cancel || a.verb == look) && y.id(a.jobs[0]) == "" {
		a = ask{verb: stat} // nobody knows that job yet
	}
	c := called{client: client, ask: a, sent: y.w.ledger.now()}
	var err error
	switch a.verb {
	case submit:
		c.told.verdicts, err = y.submit(ctx, a)
	case cancel, look:
		c.told, err = y.ofJob(ctx, a)
	case stat:
		var t wire.Tenant
		t, err = y.w.operate(ctx, y.w.living("api")[0], http.MethodGet, y.plan.tenant, "")
		c.told.figures = figures{
			depth: int(t.Depth), running: int(t.Running), capacity: int(t.Capacity), admitted: int(t.Admitted), rejected: int(t.Rejected),
			departed: int(t.Departed),
		}
	case resize:
		_, err = y.w.operate(ctx, y.w.living("api")[0], http.MethodPatch, y.plan.tenant, fmt.Sprintf(`{"capacity":%d}`, a.capacity))
	}
	c.answered = y.w.ledger.now()
	y.mu.Lock()
	defer y.mu.Unlock()
	if err != nil {
		y.odd = append(y.odd, fmt.Sprintf("%s of %s: %v", a.verb, y.plan.tenant, err))
		return
	}
	y.calls = append(y.calls, c)
	if a.verb == cancel && c.told.state == "cancelled" {
		y.cancelled[y.ids[a.jobs[0]]] = true
	}
}

func (y *player) key(job int) string { return y.plan.tenant + "-" + strconv.Itoa(job) }

func (y *player) body(job int) string { return payload(y.key(job), 0) }

// submit submits the jobs and returns what the answer says of them.
func (y *player) submit(ctx context.Context, a ask) ([]judged, error) {
	var jobs []wire.BatchJob
	for _, job := range a.jobs {
		b := wire.BatchJob{IdempotencyKey: y.key(job), Submission: wire.Submission{Type: "battery", Payload: json.RawMessage(y.body(job))}}
		if a.delayed {
			b.DelayMS = time.Hour.Milliseconds()
		}
		jobs = append(jobs, b)
	}
	header := http.Header{"Sluice-Tenant": {y.plan.tenant}}
	if len(jobs) == 1 {
		header.Set("Idempotency-Key", jobs[0].IdempotencyKey)
		answer, err := y.post(ctx, "/v1/jobs", header, jobs[0].Submission)
		if err != nil {
			return nil, err
		}
		v, err := y.judged(a.jobs[0], answer.status, answer.body)
		if err != nil {
			return nil, err
		}
		v.replayed = answer.header.Get("Idempotent-Replayed") == "true"
		if v.remaining, err = strconv.Atoi(answer.header.Get("X-Ratelimit-Remaining")); err != nil {
			return nil, fmt.Errorf("%d says nothing of the places left: %w", answer.status, err)
		}
		return []judged{v}, nil
	}
	answer, err := y.post(ctx, "/v1/jobs/batch", header, wire.Batch{Jobs: jobs, Atomic: a.atomic})
	if err != nil {
		return nil, err
	}
	if answer.status == http.StatusTooManyRequests && a.atomic {
		v, err := y.judged(a.jobs[0], answer.status, answer.body)
		return []judged{v}, err
	}
	var all struct{ Items []json.RawMessage }
	if err := json.Unmarshal(answer.body, &all); err != nil || answer.status != http.StatusOK || len(all.Items) != len(jobs) {
		return nil, fmt.Errorf("%d %s: %w", answer.status, answer.body, err)
	}
	verdicts := make([]judged, len(jobs))
	for i, raw := range all.Items {
		var item wire.BatchVerdict
		if err := json.Unmarshal(raw, &item); err != nil {
			return nil, err
		}
		if item.Job != nil {
			if raw, err = json.Marshal(item.Job); err != nil {
				return nil, err
			}
		}
		if verdicts[i], err = y.judged(a.jobs[i], item.Status, raw); err != nil {
			return nil, err
		}
		verdicts[i].replayed = item.Replayed
	}
	return verdicts, nil
}

// judged reads the verdict on one job, a job or a problem, and learns its id.
func (y *player) judged(job, status int, body []byte) (judged, error) {
	v := judged{remaining: -1, depth: -1, capacity: -1}
	switch status {
	case http.StatusAccepted:
		var j wire.Job
		if err := json.Unmarshal(body, &j); err != nil {
			return v, err
		}
		y.mu.Lock()
		defer y.mu.Unlock()
		if known := y.ids[job]; known != "" && known != j.ID {
			return v, fmt.Errorf("key %s was given two jobs, %s and %s", y.key(job), known, j.ID)
		}
		y.ids[job] = j.ID
		v.outcome, v.state, v.position = acknowledged, j.State, int(j.Position)
		return v, nil
	case http.StatusTooManyRequests:
		var p wire.Problem
		if err := json.Unmarshal(body, &p); err != nil || p.Depth == nil || p.Capacity == nil {
			return v, fmt.Errorf("no depth and capacity in %s: %w", body, err)
		}
		v.outcome, v.depth, v.capacity = refused, int(*p.Depth), int(*p.Capacity)
		return v, nil
	}
	return v, fmt.Errorf("%d %s", status, body)
}

// ofJob cancels a job or looks at it.
func (y *player) ofJob(ctx context.Context, a ask) (told, error) {
	method := http.MethodGet
	if a.verb == cancel {
		method = http.MethodDelete
	}
	code, raw, err := y.w.call(ctx, method, y.w.api, "/v1/jobs/"+y.id(a.jobs[0]), map[string]string{"Sluice-Tenant": y.plan.tenant}, nil)
	if err != nil || code == http.StatusConflict && a.verb == cancel {
		return told{}, err
	}
	var j wire.Job
	if err := json.Unmarshal(raw, &j); err != nil || code != http.StatusOK {
		return told{}, fmt.Errorf("%d %s: %w", code, raw, err)
	}
	return told{state: j.State, position: int(j.Position)}, nil
}

// answered is an answer with its headers.
type answered struct {
	status int
	header http.Header
	body   []byte
}

func (y *player) post(ctx context.Context, path string, header http.Header, body any) (answered, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return answered{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+y.w.api+path, bytes.NewReader(raw))
	if err != nil {
		return answered{}, err
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	resp, err := y.w.web.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return answered{resp.StatusCode, resp.Header, text}, err
}

// judgement is what became of the histories.
type judgement struct {
	arrived   map[string]instant // by id
	histories []boundHistory

	calls, departures, givenBack, full int
	aside                              int // histories with too many give-backs
	filled                             int // histories in which the queue was full
	falsely, odd, unproven, illegal    []string
}

// giveBacksMost is how many hidden give-backs a history may have: each may have been at any time, and porcupine tries them all.
const giveBacksMost = 6

// take takes the player's history, unless the machine stalled so much that too many jobs were given back. How often a job was leased stands in its record: a worker that wakes too late for a stamp gives the job
// back, which nobody outside can see.
func (b *judgement) take(ctx context.Context, y *player) error {
	h := boundHistory{tenant: y.plan.tenant, capacity: y.plan.capacity, jobs: len(y.ids), calls: y.calls}
	b.odd = append(b.odd, y.odd...)
	givenBack := 0
	for job, id := range y.ids {
		if id == "" {
			continue
		}
		r := request{Key: y.key(job), Tenant: y.plan.tenant, Body: y.body(job), Job: id, Outcome: acknowledged, Status: http.StatusAccepted}
		if !y.cancelled[id] { // a cancelled one must not be delivered: nobody has asked for that
			y.w.ledger.request(r)
		}
		raw, err := y.w.store.Get(ctx, keyspace.ShardOf(y.plan.tenant).Job(id)).Bytes()
		if err != nil {
			return fmt.Errorf("job %s: %w", id, err)
		}
		record, err := lua.DecodeRecord(raw)
		if err != nil {
			return err
		}
		j := journey{job: job, leases: int(record.Epoch), at: y.w.ledger.now()}
		if at, ok := b.arrived[id]; ok {
			j.arrived, j.at = true, at
			b.departures++
			givenBack--
		}
		givenBack += j.leases
		h.journeys = append(h.journeys, j)
	}
	filled := false
	for _, c := range h.calls {
		b.calls++
		for _, v := range c.told.verdicts {
			size := 1
			if c.ask.atomic {
				size = len(c.ask.jobs)
			}
			if v.outcome == refused {
				b.full++
				filled = filled || v.depth == v.capacity
				if v.depth+size <= v.capacity {
					b.falsely = append(b.falsely, fmt.Sprintf("%s refused %d more than %d of %d", h.tenant, size, v.depth, v.capacity))
				}
			}
		}
	}
	if filled {
		b.filled++
	}
	b.givenBack += givenBack
	if givenBack > giveBacksMost {
		b.aside++
		return nil
	}
	b.histories = append(b.histories, h)
	return nil
}

// judge has porcupine look at the histories, for some seconds each at the most, until all are judged or three are not as they should be.
func (b *judgement) judge(ctx context.Context, w *world) error {
	const patience = 5 * time.Second
	for i, h := range b.histories {
		if len(b.illegal)+len(b.unproven) == 3 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d histories judged: %w", i, len(b.histories), ctx.Err())
		}
		w.say("judging history %d of %d", i+1, len(b.histories))
		model, operations := boundModel(h.capacity, h.jobs), h.operations()
		switch porcupine.CheckOperationsTimeout(model, operations, patience) {
		case porcupine.Unknown:
			b.unproven = append(b.unproven, h.tenant)
		case porcupine.Illegal:
			_, how := porcupine.CheckOperationsVerbose(model, operations, patience)
			page := filepath.Join(w.dir, h.tenant+".html")
			b.illegal = append(b.illegal, h.tenant+": see "+page+" (-keep)")
			if err := porcupine.VisualizePath(model, how, page); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *judgement) find(f *findings, w *world) {
	requests, deliveries := w.ledger.entries()
	e := ended{balance: reckon(requests, deliveries)}
	f.told("calls", float64(b.calls), "")
	f.told("departures", float64(b.departures), "")
	f.told("429s", float64(b.full), "")
	f.told("jobs given back by workers too late", float64(b.givenBack), "")
	f.told("histories put aside for those", float64(b.aside), "")
	f.atLeast("histories", float64(len(b.histories)), float64(w.scale.rounds*w.scale.tenants)/2, "")
	f.timed()
	f.atLeast("queues filled to their capacity", float64(b.filled), float64(w.scale.rounds*w.scale.tenants)/4, "") // else nothing was put to the test
	f.none("not linearizable", b.illegal)
	f.none("not decided in time", b.unproven)
	f.none("false 429s", b.falsely)
	f.none("other answers", b.odd)
	f.none("lost", e.Lost)
	f.none("unexpected", e.Unexpected)
	e.twice(f)
}

var parityLine = regexp.MustCompile(`(\d+) steps in \d+ histories`)

// parity runs the tests that hold the scripts and their model together over random histories, and counts their steps.
func parity(ctx context.Context, w *world, f *findings) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "TestParity/redis", "./lua",
		"-rapid.nofailfile", "-rapid.seed="+strconv.FormatUint(w.rng.Uint64()|1, 10))
	w.say("go %s", strings.Join(cmd.Args[1:], " "))
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return err
	}
	steps := 0
	for _, m := range parityLine.FindAllSubmatch(out, -1) {
		n, _ := strconv.Atoi(string(m[1])) // digits
		steps += n
	}
	f.atLeast("steps", float64(steps), 100_000, "")
	fails := strings.Count(string(out), "--- FAIL")
	f.atMost("failures", float64(fails), 0, "")
	if err != nil {
		f.because("go %s: %v\n%s", strings.Join(cmd.Args[1:], " "), err, out[max(0, len(out)-3000):])
		if fails == 0 {
			return err
		}
	}
	return nil
}
