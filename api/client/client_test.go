package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "s3cret"

// serve runs a real API and returns a client of each listener.
func serve(t *testing.T) (q *queuetest.Desk, intake, admin *client.Client) {
	t.Helper()
	q = queuetest.NewDesk(t, queue.Options{})
	s, err := api.New(q.Queue, api.Config{
		Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}, AdminToken: token,
		Logger:  slog.New(slog.DiscardHandler),
		Version: api.VersionInfo{Version: "1.2.3"}, CheckCallback: func(string, []string) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return q, to(t, s.Intake(), ""), to(t, s.Admin(), token)
}

func to(t *testing.T, h http.Handler, token string) *client.Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := client.New(srv.URL+"/", token, srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func job(tenant string) client.Submission {
	return client.Submission{
		Tenant: tenant, Submission: wire.Submission{Type: "t", Payload: json.RawMessage(`{"n":1}`)},
	}
}

func TestJobs(t *testing.T) {
	q, c, _ := serve(t)
	ctx := t.Context()
	got, err := c.Submit(ctx, job("acme"))
	if err != nil {
		t.Fatal(err)
	}
	queuetest.Compare(t, "the job", queuetest.Only(got.Job, "Tenant", "State"),
		wire.Job{Tenant: "acme", State: "queued"})
	queuetest.Compare(t, "replayed", got.Replayed, false)
	if read, err := c.Job(ctx, "acme", got.Job.ID, 0); err != nil || read.ID != got.Job.ID {
		t.Errorf("%+v %v", read, err)
	}
	if gone, err := c.Cancel(ctx, "acme", got.Job.ID); err != nil || gone.State != "cancelled" {
		t.Errorf("%+v %v", gone, err)
	}
	next, err := c.Submit(ctx, job("acme"))
	if err != nil {
		t.Fatal(err)
	}
	q.End(next.Job.ID, queue.Settlement{Event: shaper.Die, Error: &queue.JobError{Message: "refused", Status: 400}})
	done, err := c.Job(ctx, "acme", next.Job.ID, time.Second)
	if err != nil || len(done.AttemptLog) != 1 {
		t.Fatalf("%v, the log of attempts %+v, want one", err, done.AttemptLog)
	}
	queuetest.Compare(t, "the job is done", done.Done, true)
	queuetest.Compare(t, "the status of its attempt", done.AttemptLog[0].Status, 400)
	if back, err := c.Replay(ctx, "acme", next.Job.ID); err != nil || back.State != "queued" {
		t.Errorf("%+v %v", back, err)
	}
	batch := wire.Batch{Jobs: []wire.BatchJob{
		{Submission: job("").Submission}, {Submission: job("").Submission, IdempotencyKey: "k"},
	}}
	items, err := c.SubmitBatch(ctx, "acme", batch)
	if err != nil || len(items) != 2 {
		t.Fatalf("%v, the items %+v, want two", err, items)
	}
	queuetest.Compare(t, "the status of the second job", items[1].Status, 202)
	queuetest.Compare(t, "it has a job", items[1].Job != nil, true)
}

func TestJobsPageByPage(t *testing.T) {
	_, c, _ := serve(t)
	for range 7 {
		if _, err := c.Submit(t.Context(), job("a/é")); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	list := client.List{Tenant: "a/é", State: "queued", Route: "default", Limit: 3}
	for {
		page, err := c.Jobs(t.Context(), list)
		if err != nil || len(page.Items) > 3 {
			t.Fatalf("%+v %v", page, err)
		}
		for _, j := range page.Items {
			seen[j.ID] = true
		}
		if list.Cursor = page.NextCursor; list.Cursor == "" {
			break
		}
	}
	if len(seen) != 7 {
		t.Errorf("listed %d of 7", len(seen))
	}
	var e *client.Error
	if _, err := c.Jobs(t.Context(), client.List{State: "nope"}); !errors.As(err, &e) || e.Status != 422 {
		t.Errorf("%v", err)
	}
}

func TestKeysOfEveryForm(t *testing.T) {
	_, c, _ := serve(t)
	for _, key := range []string{"k-1", `"quoted"`, "a b", "é"} {
		s := job("")
		s.IdempotencyKey = key
		first, err := c.Submit(t.Context(), s)
		if err != nil {
			t.Errorf("%q: %v", key, err)
			continue
		}
		if again, err := c.Submit(t.Context(), s); err != nil || !again.Replayed || again.Job.ID != first.Job.ID {
			t.Errorf("%q: %+v %v", key, again, err)
		}
	}
	s := job("")
	s.IdempotencyKey = `"é`
	if _, err := c.Submit(t.Context(), s); err == nil {
		t.Error("a key that has no form was sent")
	}
}

func TestErrorsHaveTheServersProblem(t *testing.T) {
	q, c, admin := serve(t)
	ctx := t.Context()
	if _, err := admin.Patch(ctx, "default",
		map[string]any{"capacity": 1, "rate": map[string]int{"limit": 1, "period_ms": 60000}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Submit(ctx, job("")); err != nil {
		t.Fatal(err)
	}
	_, err := c.Submit(ctx, job(""))
	var e *client.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v, want a *client.Error", err)
	}
	queuetest.Compare(t, "the status", e.Status, 429)
	queuetest.Compare(t, "the kind", e.Kind(), "queue-full")
	queuetest.Compare(t, "the capacity", *e.Capacity, 1)
	if e.RetryAfter <= 0 || !strings.Contains(err.Error(), "1 of 1") {
		t.Errorf("%v, retry after %v, want the depth of the capacity and when to come back", err, e.RetryAfter)
	}
	q.Break()
	if err := c.Ready(ctx); !errors.As(err, &e) || e.Status != 503 || e.RetryAfter != time.Second {
		t.Errorf("%v", err)
	}
}

func TestForeignAnswers(t *testing.T) {
	answer := func(status int, format, body string) *client.Client {
		return to(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", format)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}), "")
	}
	for _, c := range []*client.Client{
		answer(502, "text/html", "<h1>proxy</h1>"), answer(502, "application/problem+json", "{"),
		answer(502, "application/problem+json", "{}"),
	} {
		var e *client.Error
		if _, err := c.Job(t.Context(), "", "x", 0); !errors.As(err, &e) {
			t.Fatalf("%v, want a *client.Error", err)
		}
		queuetest.Compare(t, "the problem", wire.Problem{Status: e.Status, Title: e.Title, Type: e.Kind()},
			wire.Problem{Status: 502, Title: "Bad Gateway"})
	}
	if _, err := answer(200, "text/html", "<h1>").Job(t.Context(), "", "x", 0); err == nil {
		t.Error("a page passed for a job")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := answer(200, "application/json", "{}").Job(ctx, "", "x", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestManyJobsOfATenant(t *testing.T) {
	q, c, admin := serve(t)
	ctx := t.Context()
	var first string
	for i := range 3 {
		got, err := c.Submit(ctx, job("a/b"))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = got.Job.ID
		}
		q.End(got.Job.ID, queue.Settlement{Event: shaper.Die})
	}
	if got, err := admin.ReplayAll(ctx, "a/b",
		wire.Filter{IDs: []string{first}, State: "dead"}); err != nil || got.Count != 1 || got.More {
		t.Errorf("%+v %v", got, err)
	}
	got, err := admin.Purge(ctx, "a/b", wire.Filter{All: true})
	if err != nil || got.Count != 3 || got.More {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := admin.Purge(ctx, "a/b", wire.Filter{All: true, CreatedBefore: got.CreatedBefore}); err != nil ||
		got.Count != 0 || got.More {
		t.Errorf("%+v %v", got, err)
	}
	// A list of no ids must not come to mean every job.
	if got, err := admin.Purge(ctx, "a/b", wire.Filter{IDs: []string{}}); err == nil {
		t.Errorf("%+v", got)
	}
	if got, err := admin.Drain(ctx, "a/b", "moving"); err != nil || !got.Draining {
		t.Errorf("%+v %v", got, err)
	}
	var refused *client.Error
	if _, err := c.Submit(ctx, job("a/b")); !errors.As(err, &refused) || refused.Kind() != "draining" ||
		refused.RetryAfter < 30*time.Second {
		t.Errorf("%v", err)
	}
	if got, err := admin.Resume(ctx, "a/b", ""); err != nil || got.Draining {
		t.Errorf("%+v %v", got, err)
	}
	k, err := admin.CreateKey(ctx, "a/b", wire.KeyRequest{Name: "ci"})
	if err != nil || k.Name != "ci" || !strings.HasPrefix(k.Secret, "sluice_"+k.ID+"_") {
		t.Errorf("%v", err)
	}
	if got, err := admin.Keys(ctx, "a/b"); err != nil || len(got.Items) != 1 || !reflect.DeepEqual(got.Items[0], k.Key) {
		t.Errorf("%+v %v", got, err)
	}
	if err := admin.RevokeKey(ctx, "a/b", k.ID); err != nil {
		t.Error(err)
	}
	var gone *client.Error
	if err := admin.RevokeKey(ctx, "a/b", k.ID); !errors.As(err, &gone) || gone.Kind() != "unknown-key" {
		t.Errorf("%v", err)
	}
	secret, err := admin.CreateCallbackSecret(ctx, "a/b", wire.CallbackSecretRequest{Kind: "hmac"})
	if err != nil || !strings.HasPrefix(secret.Secret, "whsec_") {
		t.Errorf("%v", err)
	}
	if got, err := admin.CallbackSecrets(ctx, "a/b"); err != nil || len(got.Items) != 1 || got.Items[0] != secret.CallbackSecret {
		t.Errorf("%+v %v", got, err)
	}
	if err := admin.RevokeCallbackSecret(ctx, "a/b", secret.ID); err != nil {
		t.Error(err)
	}
	wanted := wire.CallbackEndpoints{Endpoints: []string{"https://partner.example/"}}
	if got, err := admin.PutCallbackEndpoints(ctx, "a/b", wanted); err != nil || !reflect.DeepEqual(got, wanted) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := admin.CallbackEndpoints(ctx, "a/b"); err != nil || !reflect.DeepEqual(got, wanted) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := admin.History(ctx, "a/b"); err != nil || len(got.Items) != 4 ||
		got.Items[1].Reason != "moving" || got.Items[1].After.Draining == nil || got.Items[2].Action != "purge" {
		t.Errorf("%+v %v", got, err)
	}
}

func TestTenants(t *testing.T) {
	_, _, c := serve(t)
	ctx := t.Context()
	for _, name := range []string{"acme", "a/b", "é", ".", "..", "%2e", "a b"} {
		limit := int64(5)
		change := wire.Settings{Overrides: shaper.Overrides{Capacity: &limit}, Reason: "r"}
		got, err := c.Patch(ctx, name, change)
		if err != nil {
			t.Errorf("Patch %q: %v", name, err)
		}
		queuetest.Compare(t, "the tenant", got.Tenant, name)
		queuetest.Compare(t, "the capacity of "+name, *got.Capacity, 5)
		queuetest.Compare(t, "the reason of "+name, got.Reason, "r")
		if got, err = c.Pause(ctx, name, "deploy"); err != nil {
			t.Errorf("Pause %q: %v", name, err)
		}
		queuetest.Compare(t, name+" is paused", *got.Paused, true)
		queuetest.Compare(t, "the reason of "+name, got.Reason, "deploy")
		if got, err := c.Resume(ctx, name, ""); err != nil || *got.Paused {
			t.Errorf("%q: %+v %v", name, got, err)
		}
		if got, err := c.Patch(ctx, name, map[string]any{"capacity": nil}); err != nil || *got.Capacity != 1000 {
			t.Errorf("%q: %+v %v", name, got, err)
		}
		if got, err := c.Put(ctx, name,
			wire.Settings{Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: 3,
				Period: time.Second}}}); err != nil || got.Rate.Limit != 3 {
			t.Errorf("%q: %+v %v", name, got, err)
		}
		if err := c.Reset(ctx, name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if got, err := c.Tenant(ctx, name); err != nil || got.Tenant != name || got.Rate.Limit != 10 {
			t.Errorf("%q: %+v %v", name, got, err)
		}
	}
	n := 0
	for cursor := ""; ; {
		page, err := c.Tenants(ctx, cursor, 3)
		if err != nil {
			t.Fatal(err)
		}
		n += len(page.Items)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if n != 7 {
		t.Errorf("listed %d of 7", n)
	}
	if v, err := c.Version(ctx); err != nil || v.Version != "1.2.3" {
		t.Errorf("%+v %v", v, err)
	}
	if err := c.Ready(ctx); err != nil {
		t.Error(err)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for _, base := range []string{
		"", "localhost:8080", "127.0.0.1:8080", "ftp://x", "http://", "http://[::1", "\x00",
	} {
		if _, err := client.New(base, "", nil); err == nil {
			t.Errorf("%q was taken", base)
		}
	}
}
