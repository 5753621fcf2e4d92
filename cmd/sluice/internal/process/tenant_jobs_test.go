package process_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
)

// asker sends requests to a process under test.
type asker struct {
	*testing.T
	client *http.Client
	tenant string // in the header; empty for none
}

func newAsker(t *testing.T) asker {
	a := asker{T: t, client: &http.Client{}}
	t.Cleanup(a.client.CloseIdleConnections)
	return a
}

// ask sends a request to HOST:PORT/PATH and reads the answer into a value, unless that is nil.
func (a asker) ask(method, at, body string, into any) int {
	a.Helper()
	r, err := http.NewRequestWithContext(a.Context(), method, "http://"+at, strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if a.tenant != "" {
		r.Header.Set("Sluice-Tenant", a.tenant)
	}
	resp, err := a.client.Do(r)
	if err != nil {
		a.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			a.Fatal(err)
		}
	}
	return resp.StatusCode
}

// TestOperatorAtAProcess: the operator of a program that authenticates its clients submits a test
// job, reads it with its payload, cancels it, and brings a dead one back, all without a key.
func TestOperatorAtAProcess(t *testing.T) {
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{
			"url": "http://127.0.0.1:9/", "retry": map[string]any{"max_attempts": 1},
		}},
		"auth":    map[string]any{"mode": "keys"},
		"admin":   map[string]any{"submit": true},
		"tenants": map[string]any{"slow": map[string]any{"paused": true}},
	})
	a := newAsker(t)
	jobs := now.Admin.String() + "/v1/tenants/slow/jobs"
	var job wire.JobDetail
	if got := a.ask("POST", jobs, `{"type":"t","payload":{"sku": 1}}`, &job); got != http.StatusAccepted ||
		job.State != "queued" {
		t.Fatalf("submit: %d %+v", got, job)
	}
	queuetest.Compare(t, "the status of a read", a.ask("GET", jobs+"/"+job.ID, "", &job), http.StatusOK)
	queuetest.Compare(t, "the job", queuetest.Only(job, "Payload", "PayloadBytes", "Position"),
		wire.JobDetail{Job: wire.Job{Position: 1}, Payload: []byte(`{"sku":1}`), PayloadBytes: 10})
	var page wire.JobList
	queuetest.Compare(t, "the status of the list", a.ask("GET", jobs+"?state=queued", "", &page),
		http.StatusOK)
	if len(page.Items) != 1 || page.Items[0].ID != job.ID {
		t.Errorf("the list is %+v, want the job %s alone", page.Items, job.ID)
	}
	if got := a.ask("DELETE", jobs+"/"+job.ID, "", &job); got != http.StatusOK || job.State != "cancelled" {
		t.Errorf("cancel: %d %+v", got, job)
	}
	var ended wire.JobDetail
	queuetest.Compare(t, "the status of a read when it has ended",
		a.ask("GET", jobs+"/"+job.ID, "", &ended), http.StatusOK)
	queuetest.Compare(t, "its payload", queuetest.Only(ended, "Payload", "PayloadBytes"), wire.JobDetail{})
	if got := a.ask("POST", now.API.String()+"/v1/jobs", `{"type":"t","payload":1}`,
		nil); got != http.StatusUnauthorized {
		t.Errorf("a client without a key: %d", got)
	}

	jobs = now.Admin.String() + "/v1/tenants/quick/jobs"
	if got := a.ask("POST", jobs, `{"type":"t","payload":[1]}`, &job); got != http.StatusAccepted {
		t.Fatalf("submit: %d", got)
	}
	for deadline := time.Now().Add(20 * time.Second); job.State != "dead"; { // nobody is at port 9
		if a.ask("GET", jobs+"/"+job.ID, "", &job); time.Now().After(deadline) {
			t.Fatalf("the job is %+v", job)
		}
	}
	queuetest.Compare(t, "the payload of a dead job", string(job.Payload), "[1]")
	if len(job.AttemptLog) != 1 || job.AttemptLog[0].Outcome != "dead" {
		t.Errorf("its log of attempts is %+v, want one with the outcome dead", job.AttemptLog)
	}
	if got := a.ask("POST", now.Admin.String()+"/v1/tenants/quick/pause", "", nil); got != http.StatusOK {
		t.Errorf("pause: %d", got)
	}
	var again wire.JobDetail
	queuetest.Compare(t, "the status of the replay",
		a.ask("POST", jobs+"/"+job.ID+"/replay", "", &again), http.StatusAccepted)
	queuetest.Compare(t, "the job that it returns", queuetest.Only(again, "ID", "State"),
		wire.JobDetail{Job: wire.Job{ID: job.ID, State: "queued"}})
}
