package process_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
)

// A process that stops ends the streams of figures; it does not cut them off.
func TestStreamOfFiguresEndsWithTheProcess(t *testing.T) {
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	var stream *bufio.Reader
	var body io.Closer
	t.Run("process", func(t *testing.T) { // its end stops the process
		now := processtest.Start(t,
			map[string]any{"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}}})
		resp, err := hc.Get("http://" + now.Admin.String() + "/v1/stream?tenant=acme")
		if err != nil {
			t.Fatal(err)
		}
		body, stream = resp.Body, bufio.NewReader(resp.Body)
		for {
			line, err := stream.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, `data: {"at":`) && strings.Contains(line, `"ok":true`) {
				break
			}
		}
	})
	if stream == nil {
		return
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		t.Errorf("the end of the stream: %v", err)
	}
	_ = body.Close()
}

// A job's end reaches the listed target of its callback in a signed request. A target that is not
// listed is refused.
func TestCallbacksOfAProcess(t *testing.T) {
	const secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	type received struct {
		header http.Header
		body   []byte
	}
	calls := make(chan received, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls <- received{r.Header, body}
	}))
	defer target.Close()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"routes":    map[string]any{"default": map[string]any{"url": upstream.URL}},
		"callbacks": map[string]any{"allow": []any{target.URL + "/hooks/"}, "secrets": []any{secret}},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	jobs, err := client.New("http://"+now.API.String(), "", hc)
	if err != nil {
		t.Fatal(err)
	}
	submission := client.Submission{Submission: wire.Submission{
		Type: "t", Payload: json.RawMessage("1"), CallbackURL: target.URL + "/other/hunter2",
	}}
	_, err = jobs.Submit(t.Context(), submission)
	if err == nil {
		t.Fatal("a target that is not listed is accepted")
	}
	queuetest.Contains(t, "the error", err.Error(), "callback_url (string) must lead to a public address")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error repeats the target: %v", err)
	}
	submission.CallbackURL = target.URL + "/hooks/1"
	got, err := jobs.Submit(t.Context(), submission)
	if err != nil {
		t.Fatal(err)
	}
	var call received
	select {
	case call = <-calls:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody was called")
	}
	verifier, err := webhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify(call.body, call.header); err != nil {
		t.Error(err)
	}
	var event struct {
		Type      string
		Timestamp time.Time
		Data      wire.Job
	}
	if err := json.Unmarshal(call.body, &event); err != nil {
		t.Fatalf("the callback is %s: %v", call.body, err)
	}
	queuetest.Compare(t, "the type of the event", event.Type, "job.succeeded")
	queuetest.Compare(t, "its job", queuetest.Only(event.Data, "ID", "State"),
		wire.Job{ID: got.Job.ID, State: "succeeded"})
	queuetest.Compare(t, "its time, beside the end of the job", event.Timestamp, event.Data.Finished)
	if id := call.header.Get("webhook-id"); !strings.HasPrefix(id, got.Job.ID+":") {
		t.Errorf("webhook-id %q", id)
	}
}

// The profiles are served where the setting turns them on, and only with the token.
func TestAdminPages(t *testing.T) {
	for _, on := range []bool{true, false} {
		now := processtest.Start(t, map[string]any{
			"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
			"admin":  map[string]any{"profiles": on, "token": "0123456789abcdef"},
		})
		hc := &http.Client{}
		defer hc.CloseIdleConnections()
		ask := func(path, token string) (status int, format, body string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+now.Admin.String()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			resp, err := hc.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var buf bytes.Buffer
			_, _ = buf.ReadFrom(resp.Body)
			return resp.StatusCode, resp.Header.Get("Content-Type"), buf.String()
		}
		for _, c := range []struct{ path, format, says string }{
			{"/debug/pprof/", "text/html; charset=utf-8", "goroutine"},
			{"/debug/pprof/heap?debug=1", "", "heap profile"},
		} {
			if status, _, _ := ask(c.path, "wrong"); status != http.StatusUnauthorized {
				t.Errorf("%s without the token: %d", c.path, status)
			}
			status, format, body := ask(c.path, "0123456789abcdef")
			if !on {
				queuetest.Compare(t, "the status of "+c.path+" although it is off", status,
					http.StatusNotFound)
				continue
			}
			queuetest.Compare(t, "the status of "+c.path, status, http.StatusOK)
			if c.format != "" {
				queuetest.Compare(t, "the Content-Type of "+c.path, format, c.format)
			}
			if !strings.Contains(body, c.says) {
				t.Errorf("%s: got %.300s, want %q in it", c.path, body, c.says)
			}
		}
	}
}
