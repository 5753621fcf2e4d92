package jobs

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// TestSubmitHeaders: --header sets headers of the job, in JSON and beside raw bytes.
func TestSubmitHeaders(t *testing.T) {
	var body string
	var header http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body, header = string(text), r.Header
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"id":"1","state":"queued"}`)
	}))
	defer server.Close()
	submit := func(args ...string) (int, string) {
		body, header = "", nil
		var errs bytes.Buffer
		code := run(t.Context(), append([]string{"submit", "--api", server.URL}, args...),
			cli.Stdio{In: strings.NewReader("1"), Out: io.Discard, Err: &errs}, nil)
		return code, errs.String()
	}
	if code, errs := submit("--type", "t", "--header", "X-Request-Id: 17", "--header", "Accept-Language:de, en:x ", "1"); code != 0 ||
		!strings.Contains(body, `"headers":{"Accept-Language":"de, en:x","X-Request-Id":"17"}`) {
		t.Errorf("exit code %d %s, sent %s", code, errs, body)
	}
	raw := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(raw, []byte("a;b"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, errs := submit("--type", "t", "--raw", raw, "--header", "X-Request-Id: 17"); code != 0 ||
		header.Get("Sluice-Set-X-Request-Id") != "17" || body != "a;b" {
		t.Errorf("exit code %d %s, sent %s with %v", code, errs, body, header)
	}
	for _, args := range [][]string{
		{"--type", "t", "--header", "X-Request-Id", "1"}, {"--type", "t", "--header", ": 17", "1"},
		{"--type", "t", "--header", "A: 1", "--header", "A: 2", "1"}, {"--file", "-", "--header", "A: 1"},
	} {
		if code, errs := submit(args...); code != cli.ExitUsage || !strings.Contains(errs, "--header") || header != nil {
			t.Errorf("%q: exit code %d %s", args, code, errs)
		}
	}
}
