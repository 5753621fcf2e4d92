package api_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// TestForwardEstimates: a request costs what its route says, or more if the client says so. A wrong
// estimate reaches nobody, and another one is no other request.
func TestForwardEstimates(t *testing.T) {
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) { c.Routes["partner"].Forward.Cost = 5 })
	for estimate, want := range map[string]int64{"": 5, "1": 5, "5": 5, "700": 700, "1000000": 1_000_000} {
		header := []string{"Sluice-Tenant", "paused", "Prefer", "respond-async", "Idempotency-Key", "k" + estimate}
		if estimate != "" {
			header = append(header, "Sluice-Cost-Estimate", estimate)
		}
		resp, body := p.ask("POST", "/v1/forward/partner/x", "b", header...)
		p.want("estimate "+estimate, http.StatusAccepted, "", resp, body)
		job, err := p.q.Job(t.Context(), "paused", resp.Header.Get("Sluice-Job"))
		if err != nil || job.Cost != want {
			t.Errorf("%q: cost %d, %v; want %d", estimate, job.Cost, err, want)
		}
		resp, body = p.ask("POST", "/v1/forward/partner/x", "b", append(header[:6:6], "Sluice-Cost-Estimate", "9")...)
		p.want("again with another estimate", http.StatusAccepted, "", resp, body)
	}
	for _, wrong := range []string{"0", "-1", "1.5", "1000001", "many", " "} {
		resp, body := p.ask("POST", "/v1/forward/partner/x", "b", "Sluice-Cost-Estimate", wrong)
		p.want(fmt.Sprintf("estimate %q", wrong), http.StatusUnprocessableEntity, "invalid-request", resp, body)
	}
	if p.reached() != 0 {
		t.Error("the upstream was reached")
	}
}

// TestForwardMeter: the client cannot switch the meter off. The upstream is asked for what can be
// read, and an answer that cannot be costs what the operator says.
func TestForwardMeter(t *testing.T) {
	answer := ""
	status := http.StatusOK
	for _, missing := range []*int64{nil, new(int64(300))} {
		p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header["Accept-Encoding"]; len(got) != 1 || got[0] != "identity" {
				t.Errorf("the upstream is asked for %q", got)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, answer)
		}, func(_ *api.Config, r *worker.Route, _ *queue.Queue) {
			r.CostFrom, r.CostMissing = "/usage/total_tokens", missing
		})
		unreadable := int64(0) // no actual cost
		if missing != nil {
			unreadable = *missing
		}
		for _, one := range []struct {
			status int
			answer string
			want   int64
		}{
			{200, `{"usage":{"total_tokens":77}}`, 77}, {200, "\x1f\x8b\x08", unreadable}, {200, `{"usage":{}}`, unreadable},
			{200, "", unreadable}, {200, `{"usage":{"total_tokens":-5}}`, unreadable}, {500, "oops", 0}, {404, `{"error":1}`, 0},
		} {
			answer, status = one.answer, one.status
			resp, body := p.ask("GET", "/v1/forward/partner/x", "", "Accept-Encoding", "gzip, br")
			p.want("the answer", one.status, "", resp, body)
			job, err := p.q.Job(t.Context(), "default", resp.Header.Get("Sluice-Job"))
			actual := int64(0)
			if job.ActualCost != nil {
				actual = *job.ActualCost
			}
			if err != nil || actual != one.want {
				t.Errorf("%d %q: cost %d, %v; want %d", one.status, one.answer, actual, err, one.want)
			}
		}
	}
}
