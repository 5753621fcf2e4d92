package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
)

// script answers requests one after the other, the last answer again and again, and notes when they
// came and with which keys.
type script struct {
	answers []string // "STATUS Retry-After KIND", "lost"
	at      []time.Duration
	keys    []string
	began   time.Time
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.began.IsZero() {
		s.began = time.Now()
	}
	var batch wire.Batch
	if req.Body != nil {
		body, _ := io.ReadAll(req.Body)
		_ = json.Unmarshal(body, &batch)
	}
	key := req.Header.Get("Idempotency-Key")
	for _, job := range batch.Jobs {
		key += job.IdempotencyKey + " "
	}
	s.at, s.keys = append(s.at, time.Since(s.began)), append(s.keys, key)
	answer := s.answers[min(len(s.at), len(s.answers))-1]
	if answer == "lost" {
		return nil, errors.New("the connection was reset")
	}
	var status int
	var after, kind string
	_, _ = fmt.Sscan(answer, &status, &after, &kind)
	h := http.Header{"Content-Type": {"application/problem+json"}}
	if after != "" && after != "-" {
		h.Set("Retry-After", after)
	}
	body := fmt.Sprintf(`{"status":%d,"type":"urn:sluice:problem:%s","title":"no","retry_after_ms":5}`, status, kind)
	if status < 300 {
		body = `{"id":"1","tenant":"t","state":"queued","items":[{"job":{"id":"1"}},{"job":{"id":"2"}}]}`
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

func retrying(t *testing.T, within time.Duration, answers ...string) (*script, *client.Client) {
	t.Helper()
	s := &script{answers: answers}
	c, err := client.New("http://sluice.test", "", &http.Client{Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	return s, c.Retrying(within)
}

var order = client.Submission{Submission: wire.Submission{Type: "order", Payload: json.RawMessage(`1`)}}

func TestRetrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := retrying(t, time.Minute, "429 7 queue-full", "lost", "503 2", "502", "202")
		if _, err := c.Submit(t.Context(), order); err != nil {
			t.Fatal(err)
		}
		if len(s.at) != 5 || s.at[1] != 7*time.Second || s.at[2] > s.at[1]+200*time.Millisecond ||
			s.at[3] != s.at[2]+2*time.Second || s.at[4] > s.at[3]+800*time.Millisecond {
			t.Errorf("sent at %v, want after 7 s, 0.1 to 0.2, 2, and 0.4 to 0.8", s.at)
		}
		for _, key := range s.keys {
			if len(key) < 20 || key != s.keys[0] {
				t.Errorf("keys %q, want one that is random", s.keys)
			}
		}
	})
}

func TestRetryingEnds(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		within       time.Duration
		call         func(ctx context.Context, c *client.Client) error
		most         int // requests
	}{
		{"for good", "422 - invalid", time.Minute, submit, 1},
		{"never fits", "429 - never-fits", time.Minute, submit, 1},
		{"too late", "429 61 queue-full", time.Minute, submit, 1},
		{"in time", "429 25 queue-full", time.Minute, submit, 3},
		{"not asked for", "429 1 queue-full", 0, submit, 1},
		{"a cancellation", "503 1", time.Minute, func(ctx context.Context, c *client.Client) error {
			_, err := c.Cancel(ctx, "", "1")
			return err
		}, 1},
		{"a read", "503 20", time.Minute, func(ctx context.Context, c *client.Client) error {
			_, err := c.Job(ctx, "", "1", 0)
			return err
		}, 4},
		{"jobs as they are", "503 20", time.Minute, func(ctx context.Context, c *client.Client) error {
			_, err := c.SubmitRaw(ctx, "", []json.RawMessage{json.RawMessage(`{}`)}, false)
			return err
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := retrying(t, tt.within, tt.answer)
				if err := tt.call(t.Context(), c); err == nil || len(s.at) != tt.most {
					t.Errorf("%d requests, %v, want %d and the last refusal", len(s.at), err, tt.most)
				}
			})
		})
	}
}

func submit(ctx context.Context, c *client.Client) error {
	_, err := c.Submit(ctx, order)
	return err
}

func TestRetryingABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := retrying(t, time.Minute, "lost", "200")
		_, err := c.SubmitBatch(t.Context(), "", wire.Batch{Jobs: []wire.BatchJob{
			{Submission: order.Submission}, {Submission: order.Submission, IdempotencyKey: "mine"},
		}})
		if err != nil || len(s.keys) != 2 || s.keys[0] != s.keys[1] || !strings.Contains(s.keys[0], " mine ") {
			t.Errorf("%v, keys %q, want two equal ones with one that is given", err, s.keys)
		}
	})
}

func TestRetryingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := retrying(t, time.Hour, "503 60")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := submit(ctx, c); !errors.Is(err, context.DeadlineExceeded) || len(s.at) != 1 {
			t.Errorf("%v after %d requests, want the end of the context", err, len(s.at))
		}
	})
}
