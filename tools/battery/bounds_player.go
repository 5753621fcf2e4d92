package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// player makes the history of one tenant.
type player struct {
	w    *world
	plan plan

	mu        sync.Mutex
	ids       []string // by job
	cancelled map[string]bool
	calls     []called
	odd       []string // wrong answers
}

// play has all clients do what is planned, at moments drawn from the seed, and then cancels the
// jobs whose time will not come.
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
	if (a.verb == cancel || a.verb == poll) && y.id(a.jobs[0]) == "" {
		a = ask{verb: stat} // that job has not been submitted yet
	}
	c := called{client: client, ask: a, sent: y.w.ledger.now()}
	var err error
	switch a.verb {
	case submit:
		c.reply.decisions, err = y.submit(ctx, a)
	case cancel, poll:
		c.reply, err = y.ofJob(ctx, a)
	case stat:
		var t wire.Tenant
		t, err = y.w.operate(ctx, y.w.living("api")[0], http.MethodGet, y.plan.tenant, "")
		c.reply.figures = figures{
			depth: int(t.Depth), running: int(t.Running), capacity: int(*t.Capacity),
			admitted: int(t.Admitted), rejected: int(t.Rejected),
			departed: int(t.Departed),
		}
	case resize:
		_, err = y.w.operate(ctx, y.w.living("api")[0], http.MethodPatch, y.plan.tenant,
			fmt.Sprintf(`{"capacity":%d}`, a.capacity))
	}
	c.answered = y.w.ledger.now()
	y.mu.Lock()
	defer y.mu.Unlock()
	if err != nil {
		y.odd = append(y.odd, fmt.Sprintf("%s of %s: %v", a.verb, y.plan.tenant, err))
		return
	}
	y.calls = append(y.calls, c)
	if a.verb == cancel && c.reply.state == "cancelled" {
		y.cancelled[y.ids[a.jobs[0]]] = true
	}
}

func (y *player) key(job int) string { return y.plan.tenant + "-" + strconv.Itoa(job) }

func (y *player) body(job int) string { return payload(y.key(job), 0) }

// submit submits the jobs and returns their decisions.
func (y *player) submit(ctx context.Context, a ask) ([]decision, error) {
	var jobs []wire.BatchJob
	for _, job := range a.jobs {
		b := wire.BatchJob{
			IdempotencyKey: y.key(job),
			Submission:     wire.Submission{Type: "battery", Payload: json.RawMessage(y.body(job))},
		}
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
		v, err := y.decision(a.jobs[0], answer.status, answer.body)
		if err != nil {
			return nil, err
		}
		v.replayed = answer.header.Get("Idempotent-Replayed") == "true"
		if v.remaining, err = strconv.Atoi(answer.header.Get("X-Ratelimit-Remaining")); err != nil {
			return nil, fmt.Errorf("%d without the remaining capacity: %w", answer.status, err)
		}
		return []decision{v}, nil
	}
	answer, err := y.post(ctx, "/v1/jobs/batch", header, wire.Batch{Jobs: jobs, Atomic: a.atomic})
	if err != nil {
		return nil, err
	}
	if answer.status == http.StatusTooManyRequests && a.atomic {
		v, err := y.decision(a.jobs[0], answer.status, answer.body)
		return []decision{v}, err
	}
	var all struct{ Items []json.RawMessage }
	if err := json.Unmarshal(answer.body, &all); err != nil || answer.status != http.StatusOK ||
		len(all.Items) != len(jobs) {
		return nil, fmt.Errorf("%d %s: %w", answer.status, answer.body, err)
	}
	decisions := make([]decision, len(jobs))
	for i, raw := range all.Items {
		var item wire.JobResult
		if err := json.Unmarshal(raw, &item); err != nil {
			return nil, err
		}
		if item.Job != nil {
			if raw, err = json.Marshal(item.Job); err != nil {
				return nil, err
			}
		}
		if decisions[i], err = y.decision(a.jobs[i], item.Status, raw); err != nil {
			return nil, err
		}
		decisions[i].replayed = item.Replayed
	}
	return decisions, nil
}

// decision reads the answer for one job, a job or a problem, and records its id.
func (y *player) decision(job, status int, body []byte) (decision, error) {
	v := decision{remaining: -1, depth: -1, capacity: -1}
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

// ofJob cancels or reads a job.
func (y *player) ofJob(ctx context.Context, a ask) (reply, error) {
	method := http.MethodGet
	if a.verb == cancel {
		method = http.MethodDelete
	}
	code, raw, err := y.w.call(ctx, method, y.w.api, "/v1/jobs/"+y.id(a.jobs[0]),
		map[string]string{"Sluice-Tenant": y.plan.tenant}, nil)
	if err != nil || code == http.StatusConflict && a.verb == cancel {
		return reply{}, err
	}
	var j wire.Job
	if err := json.Unmarshal(raw, &j); err != nil || code != http.StatusOK {
		return reply{}, fmt.Errorf("%d %s: %w", code, raw, err)
	}
	return reply{state: j.State, position: int(j.Position)}, nil
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
