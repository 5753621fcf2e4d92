package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs one of the commands of this package; it returns the exit code and what was printed.
func run(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	grammar := struct {
		Audit Cmd `cmd:""`
	}{}
	var o, e bytes.Buffer
	code = cli.Run(t.Context(), &grammar, append([]string{"audit"}, args...), cli.Stdio{In: strings.NewReader(""), Out: &o, Err: &e}, nil)
	return code, o.String(), e.String()
}

const token = "0123456789abcdef0123456789abcdef"

// TestAudit: a running process records what is done, 3,000 wrong tokens push none of it out, and
// the commands show and verify the chain.
func TestAudit(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:1/"}},
		"admin":  map[string]any{"token": token}, "audit": map[string]any{"log": log, "max_bytes": "1MiB"},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	admin := "http://" + now.Admin.String()
	send := func(method, path, token, body string) {
		r, err := http.NewRequestWithContext(t.Context(), method, admin+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		answer, err := hc.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		_ = answer.Body.Close()
	}
	send("PATCH", "/v1/tenants/acme", token, `{"capacity":4001}`)
	send("PATCH", "/v1/tenants/acme", token, `{"capacity":4002,"reason":"<b>"}`)
	send("POST", "/v1/tenants/%1b%5d52/pause", token, `{}`)
	var guesses sync.WaitGroup
	for range 8 {
		guesses.Go(func() {
			for n := range 375 {
				send("GET", "/v1/tenants", fmt.Sprintf("wrong-%016d", n), "")
			}
		})
	}
	guesses.Wait()
	access := []string{"--admin", admin, "--admin-token", token}
	code, out, errs := run(t, append(access, "--json", "--all")...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) > 6 || !strings.Contains(out, `"after":{"capacity":4002}`) || !strings.Contains(out, `"before":{"capacity":4001}`) ||
		!strings.Contains(out, `"action":"auth.refused"`) || strings.Contains(out, token) || strings.Contains(out, "wrong-") {
		t.Errorf("%d, %d lines: %s %s", code, len(lines), out, errs)
	}
	written, err := os.ReadFile(log)
	if err != nil || len(strings.Split(strings.TrimSpace(string(written)), "\n")) != len(lines) || !strings.Contains(string(written), lines[0]) {
		t.Errorf("audit.log: %v %s", err, written)
	}
	code, out, errs = run(t, append(access, "--subject", "acme", "--limit", "1")...)
	if code != 0 || !strings.Contains(out, "capacity 4001 → 4002") || strings.ContainsAny(out, "\x1b\u009b") || !strings.Contains(errs, "more entries") {
		t.Errorf("%d: %q %q", code, out, errs)
	}
	code, out, errs = run(t, append([]string{"verify"}, access...)...)
	if code != 0 || !strings.Contains(out, "The chain is whole.") {
		t.Errorf("verify: %d: %s %s", code, out, errs)
	}
	if code, out, _ = run(t, append([]string{"verify", "--expect", strings.Repeat("0", 64)}, access...)...); code != 1 || !strings.Contains(out, "no entry has the hash") {
		t.Errorf("verify: %d: %s", code, out)
	}
	for _, wrong := range [][]string{{"--limit", "0"}, {"--follow", "--all"}, {"--since", "1960-01-01T00:00:00Z"}} {
		if code, _, errs := run(t, append(access, wrong...)...); code != 2 {
			t.Errorf("%v: %d %s", wrong, code, errs)
		}
	}
}

// TestFaults: a chain with a gap is an exit code of 1, and names the gap.
func TestFaults(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(wire.AuditList{Items: []wire.AuditEntry{
			{At: "2026-01-02T15:04:06.000000Z", Hash: "b", Previous: "x\u001b[31m"}, {At: "2026-01-02T15:04:05.000000Z", Hash: "a"},
		}})
	}))
	defer s.Close()
	code, out, errs := run(t, "verify", "--admin", s.URL)
	if code != 1 || !strings.Contains(out, "gap before entry b") || !strings.Contains(out, "was changed") || strings.Contains(out, "\x1b") ||
		!strings.Contains(errs, "3 faults") {
		t.Errorf("%d: %q %q", code, out, errs)
	}
}

// TestWhat: what an entry shows of a change, whatever its shape.
func TestWhat(t *testing.T) {
	for _, c := range []struct{ before, after, detail, want string }{
		{`{"a":1,"b":2}`, `{"a":1,"b":3}`, "", "b 2 → 3"},
		{"null", `{"a":1}`, `{"key":"k"}`, `a 1, {"key":"k"}`},
		{`{"a":1}`, "null", "null", "a 1 → not set"},
		{`["https://a"]`, `["https://b"]`, "", `["https://a"] → ["https://b"]`},
		{"null", `[]`, "", "null → []"},
		{"null", "null", "", ""}, {"", "", "", ""},
	} {
		e := wire.AuditEntry{Before: json.RawMessage(c.before), After: json.RawMessage(c.after), Detail: json.RawMessage(c.detail)}
		if got := what(e); got != c.want {
			t.Errorf("%s to %s: %q, want %q", c.before, c.after, got, c.want)
		}
	}
}
