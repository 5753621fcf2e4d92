package jobs

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// A timeout that is shorter than any request still prints the state of the job.
func TestWaitPrintsTheStateWhateverTheTimeout(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(wire.Job{ID: "7", Tenant: "acme", State: "queued"})
	}))
	defer server.Close()
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"job", "wait", "--api", server.URL, "--timeout", "1ns", "7"},
		cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
	if code != cli.ExitFailed {
		t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
	}
	if !strings.Contains(out.String(), "queued") {
		t.Errorf("the output lacks the state:\n%s", out.String())
	}
	if want := "sluice: the job has not ended within 1ns; for an operator, sluice tenant get acme shows what limits its jobs\n"; errs.String() != want {
		t.Errorf("errors %q, want %q", errs.String(), want)
	}
}
