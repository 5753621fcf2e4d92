package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/redistest"
)

// The way of an operator: jobs die until their flow stops, the log of attempts says why, the
// upstream is mended, what it failed is replayed, and what it refuses for good is purged.
func TestDeadLettersAreFoundAndRepaired(t *testing.T) {
	var mended atomic.Bool
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch body, _ := io.ReadAll(r.Body); {
		case string(body) == `"malformed"`:
			w.WriteHeader(http.StatusUnprocessableEntity)
		case !mended.Load():
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"redis":     map[string]any{"url": redistest.Start(t).URL()},
		"retention": map[string]any{"dead_capacity": 2},
		"tenants":   map[string]any{"defaults": map[string]any{"rate": "200/s"}},
		"routes": map[string]any{"default": map[string]any{
			"url":   upstream.URL,
			"retry": map[string]any{"max_attempts": 2, "min_backoff": "10ms", "max_backoff": "10ms"},
		}},
	})
	// sluice runs a command against the process.
	sluice := func(want int, words ...string) string {
		t.Helper()
		server := "--api=http://" + now.API.String()
		if words[0] == "tenant" {
			server = "--admin=http://" + now.Admin.String()
		}
		var out, errs bytes.Buffer
		code := Run(t.Context(), append(words, server), cli.Stdio{
			In: strings.NewReader(""), Out: &out, Err: &errs,
		}, nil)
		if code != want {
			t.Fatalf("sluice %s: exit code %d, want %d\n%s%s", strings.Join(words, " "), code, want, &out, &errs)
		}
		return out.String()
	}
	// says compares what a command printed with patterns. Each one is a whole line, without spaces
	// at its end.
	says := func(text string, patterns ...string) {
		t.Helper()
		for _, p := range patterns {
			if !regexp.MustCompile("(?m)^" + p + " *$").MatchString(text) {
				t.Errorf("no line %s in\n%s", p, text)
			}
		}
	}
	idOf := regexp.MustCompile(`(?m)^id +(\S+)$`)
	submit := func(want int, payload string, flags ...string) (id string) {
		t.Helper()
		text := sluice(want, append([]string{"submit", "--type", "t", "--tenant", "acme", payload}, flags...)...)
		found := idOf.FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no id in\n%s", text)
		}
		return found[1]
	}

	failed := submit(cli.ExitFailed, `"fine"`, "--wait")
	refused := submit(cli.ExitFailed, `"malformed"`, "--wait")

	// Two dead letters are the limit: no job leaves, and the tenant shows why.
	waiting := submit(cli.ExitOK, `"fine"`)
	says(sluice(cli.ExitOK, "tenant", "get", "acme"), "limited by +paused",
		`reason +it had as many dead letters as are kept \(now 2\): replay or purge some`,
		"effective rate +0/s", "depth +1", "paused +false +default", "dead +2")
	says(sluice(cli.ExitOK, "job", "get", waiting, "--tenant", "acme"), "state +queued")

	list := sluice(cli.ExitOK, "job", "list", "--tenant", "acme", "--state", "dead")
	says(list, failed+" +dead +- +2 of 2 .*", refused+" +dead +- +1 of 2 .*")
	if strings.Contains(list, waiting) {
		t.Errorf("a job that waits is among the dead:\n%s", list)
	}
	const instant = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`
	attempts := []string{
		"ATTEMPT +OUTCOME +AT +STATUS +MESSAGE",
		"1 +retry +" + instant + " +502 +the upstream answered 502 Bad Gateway",
		"2 +dead +" + instant + " +502 +the upstream answered 502 Bad Gateway",
	}
	says(sluice(cli.ExitOK, "job", "get", failed, "--tenant", "acme"),
		append(attempts, "last error +the upstream answered 502 Bad Gateway")...)
	says(sluice(cli.ExitOK, "job", "show", refused, "--tenant", "acme"),
		"1 +dead +"+instant+" +422 +the upstream answered 422 Unprocessable Entity")

	// The replay of one makes room, so the flow goes on with all that waits.
	mended.Store(true)
	says(sluice(cli.ExitOK, "tenant", "replay", "acme", "--error", "502"), "replayed +1")
	for _, id := range []string{failed, waiting} {
		says(sluice(cli.ExitOK, "job", "wait", id, "--tenant", "acme"), "state +succeeded")
	}
	says(sluice(cli.ExitOK, "job", "get", failed, "--tenant", "acme"),
		append(attempts, "1 +succeeded +"+instant+" +200")...)
	says(sluice(cli.ExitOK, "tenant", "get", "acme"), "limited by +idle", "effective rate +200/s",
		"depth +0", "dead +1", "dead in all +2", "succeeded +2")

	says(sluice(cli.ExitOK, "tenant", "purge", "acme", "--state", "dead", "--yes"), "purged +1")
	if text := sluice(cli.ExitOK, "job", "list", "--tenant", "acme", "--state", "dead"); text != "" {
		t.Errorf("dead letters after the purge:\n%s", text)
	}
	sluice(cli.ExitFailed, "job", "get", refused, "--tenant", "acme")
}
