package api

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

// TestRawPayload: with a content type the payload is the body, and the rest is in the query.
func TestRawPayload(t *testing.T) {
	b := newBench(t, func(c *Config) { c.CheckCallback = func(string, []string) error { return nil } })
	srv := httptest.NewServer(b.intake.handler)
	defer srv.Close()
	c, err := client.New(srv.URL, "", srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	s := client.Submission{
		Tenant: "acme", IdempotencyKey: "k", ContentType: "text/csv", Submission: wire.Submission{
			Type: "a b&c=d", Payload: []byte("not;json"), Route: "default", Cost: 2, DelayMS: 3, MaxWaitMS: 60_000,
			CallbackURL: "https://partner.example/?a=<&>",
		},
	}
	got, err := c.Submit(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	sent := b.queue.Submission(got.Job.ID)
	sent.ID, sent.Tier, sent.TraceParent, sent.MaxAttempts = "", "", "", 0
	queuetest.Compare(t, "the submission", sent, queue.Submission{
		Tenant: "acme", IdempotencyKey: "k", Route: "default", Type: s.Type, Payload: s.Payload,
		ContentType: "text/csv", Cost: 2, Delay: 3 * time.Millisecond, MaxWait: time.Minute, CallbackURL: s.CallbackURL,
	})
}

func TestPayloadsGoByteForByte(t *testing.T) {
	b := newBench(t, func(c *Config) { c.CheckCallback = func(string, []string) error { return nil } })
	srv := httptest.NewServer(b.intake.handler)
	defer srv.Close()
	c, err := client.New(srv.URL, "", srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{`{ "a" : "<&>" }`, `"\u2028"`, `[1, 2]`, `0.10`, `null`, ` 1`} {
		s := client.Submission{Submission: wire.Submission{Type: "t"}}
		s.Payload = json.RawMessage(payload)
		s.Route, s.Cost, s.CallbackURL = "default", 2, "https://partner.example/?a=<&>"
		s.Type = `,"payload":null \`
		got, err := c.Submit(t.Context(), s)
		if err != nil {
			t.Errorf("%s: %v", payload, err)
			continue
		}
		items, err := c.SubmitBatch(t.Context(), "", wire.Batch{
			Jobs: []wire.BatchJob{{Submission: s.Submission, IdempotencyKey: "k" + payload}}, Atomic: true,
		})
		if err != nil || len(items) != 1 || items[0].Job == nil {
			t.Errorf("%s: %+v %v", payload, items, err)
			continue
		}
		for _, id := range []string{got.Job.ID, items[0].Job.ID} {
			sent := b.queue.Submission(id)
			queuetest.Compare(t, "what became of "+payload,
				queuetest.Only(sent, "Payload", "Type", "Cost", "CallbackURL"), queue.Submission{
					Payload: []byte(strings.TrimSpace(payload)), Type: s.Type, Cost: 2, CallbackURL: s.CallbackURL,
				})
		}
	}
	s := client.Submission{Submission: wire.Submission{Type: "t"}}
	s.Payload = json.RawMessage(`{`)
	if _, err := c.Submit(t.Context(), s); err == nil || !strings.Contains(err.Error(), "one JSON value") {
		t.Errorf("%v", err)
	}
}
