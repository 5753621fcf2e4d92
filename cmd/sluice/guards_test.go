package main

import (
	"net/http"
	"testing"

	"github.com/7509e464/sluice/api/wire"
)

// TestGuardsOfAProcess: a guest sends two jobs a minute, is then blocked as the configuration says, and is let go by the operator.
func TestGuardsOfAProcess(t *testing.T) {
	now := startProcess(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
		"auth":   map[string]any{"mode": "guest"},
		"guards": map[string]any{"guests": map[string]any{
			"rate": "2/m", "algorithm": "sliding-log", "block": "60s", "by": []any{"guest"}, "endpoints": []any{"submit-job"},
		}},
	})
	ask := newAsker(t).ask
	submit := func(want int) {
		t.Helper()
		if got := ask("POST", now.api.String()+"/v1/jobs", `{"type":"t","payload":1}`, nil); got != want {
			t.Errorf("a submission: %d, want %d", got, want)
		}
	}
	submit(http.StatusAccepted)
	submit(http.StatusAccepted)
	submit(http.StatusTooManyRequests)
	if got := ask("GET", now.api.String()+"/v1/jobs?state=queued", "", nil); got != http.StatusOK {
		t.Errorf("an operation that is not guarded: %d", got)
	}
	var blocked wire.BlockedList
	guard := now.admin.String() + "/v1/guards/guests/blocked"
	if got := ask("GET", guard, "", &blocked); got != http.StatusOK || len(blocked.Items) != 1 || blocked.Items[0].Key != "guest:127.0.0.1" {
		t.Errorf("%d %+v", got, blocked)
	}
	if got := ask("DELETE", guard+"/guest:127.0.0.1", "", nil); got != http.StatusNoContent {
		t.Errorf("clear: %d", got)
	}
	submit(http.StatusAccepted)
}
