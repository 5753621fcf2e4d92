package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// The commands of operators on jobs need the token of the admin listener alone, however clients
// authenticate, and name the tenant or not.
func TestOperatorsReadAndChangeJobs(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	defer upstream.Close()
	keys := []any{map[string]any{"algorithm": "HS256", "secret": strings.Repeat("k", 32)}}
	jwt := map[string]any{"issuer": "i", "audience": "a", "tenant_claim": "org", "keys": keys}
	for mode, auth := range map[string]map[string]any{
		"none": {"mode": "none"}, "keys": {"mode": "keys"}, "guest": {"mode": "guest"}, "keys and guest": {"mode": []any{"keys", "guest"}},
		"jwt": {"mode": "jwt", "jwt": jwt},
	} {
		t.Run(mode, func(t *testing.T) {
			const token = "a-token-of-operators-0123456789abcdef"
			now := processtest.Start(t, map[string]any{
				"auth": auth, "admin": map[string]any{"token": token, "submit": true},
				"routes":  map[string]any{"default": map[string]any{"url": upstream.URL, "retry": map[string]any{"max_attempts": 1}}},
				"tenants": map[string]any{"slow": map[string]any{"paused": true}},
			})
			admin := "http://" + now.Admin.String()
			sluice := func(want int, words ...string) string {
				t.Helper()
				var out, errs bytes.Buffer
				code := Run(t.Context(), append(words, "--api=http://127.0.0.1:1", "--admin", admin, "--admin-token", token),
					cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
				if code != want {
					t.Fatalf("sluice %s: exit code %d, want %d\n%s%s", strings.Join(words, " "), code, want, &out, &errs)
				}
				return out.String() + errs.String()
			}
			submit := func(tenant string) (job wire.Job) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), "POST", admin+"/v1/tenants/"+tenant+"/jobs",
					strings.NewReader(`{"type":"t","payload":1}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if err := json.NewDecoder(resp.Body).Decode(&job); err != nil || job.ID == "" {
					t.Fatalf("%d %v", resp.StatusCode, err)
				}
				return job
			}
			dead, waiting := submit("acme"), submit("slow")
			for _, of := range [][]string{{"--tenant", "acme"}, nil} {
				for _, step := range []struct {
					code  int
					words []string
					says  string
				}{
					{cli.ExitFailed, []string{"job", "wait", dead.ID}, "the job ended as dead"},
					{cli.ExitOK, []string{"job", "get", dead.ID, "--wait", "10s"}, "answered 422"},
					{cli.ExitOK, []string{"job", "show", dead.ID}, "answered 422"},
					{cli.ExitOK, []string{"job", "replay", dead.ID}, "acme"},
					{cli.ExitFailed, []string{"job", "wait", dead.ID}, "the job ended as dead"},
				} {
					if text := sluice(step.code, append(step.words, of...)...); !strings.Contains(text, step.says) {
						t.Errorf("%s lacks %q:\n%s", step.words, step.says, text)
					}
				}
			}
			if text := sluice(cli.ExitOK, "job", "list", "--tenant", "acme", "--state", "dead"); !strings.Contains(text, dead.ID) {
				t.Errorf("the list lacks the job:\n%s", text)
			}
			all := sluice(cli.ExitOK, "job", "list", "--all-tenants", "--json", "--payload")
			for _, want := range []string{dead.ID, waiting.ID, `"payload": 1`} {
				if !strings.Contains(all, want) {
					t.Errorf("the jobs of all tenants lack %s:\n%s", want, all)
				}
			}
			if text := sluice(cli.ExitOK, "job", "list", "--all-tenants", "--state", "dead"); !strings.Contains(text, "t of acme") ||
				strings.Contains(text, waiting.ID) {
				t.Errorf("the dead letters of all tenants:\n%s", text)
			}
			if text := sluice(cli.ExitOK, "job", "list", "--all-tenants", "--limit", "1"); strings.Count(text, "\n") != 3 {
				t.Errorf("one job of all tenants, with the head and a note:\n%s", text)
			}
			if text := sluice(cli.ExitOK, "job", "show", "--tenant", "slow", waiting.ID); !strings.Contains(text, "limited by paused\n") {
				t.Errorf("the job of a paused tenant:\n%s", text)
			}
			// An API key beside the token does not turn an operator into a client.
			if text := sluice(cli.ExitOK, "job", "list", "--all-tenants", "--api-key", "k"); !strings.Contains(text, dead.ID) {
				t.Errorf("the jobs of all tenants beside an API key:\n%s", text)
			}
			if text := sluice(cli.ExitOK, "job", "list", "--tenant", "nosuch"); !strings.Contains(text, "The tenant nosuch is unknown") {
				t.Errorf("the jobs of no tenant: %q", text)
			}
			if text := sluice(cli.ExitOK, "job", "list", "--tenant", "acme", "--state", "queued"); text != "There is nothing to list.\n" {
				t.Errorf("no jobs of a tenant: %q", text)
			}
			if text := sluice(cli.ExitFailed, "job", "get", "--tenant", "acme", "zzz"); !strings.Contains(text,
				"sluice job list --tenant acme prints its jobs") {
				t.Errorf("a job that the tenant has not:\n%s", text)
			}
			if text := sluice(cli.ExitOK, "job", "cancel", waiting.ID); !strings.Contains(text, "cancelled") {
				t.Errorf("cancel:\n%s", text)
			}
			if text := sluice(cli.ExitFailed, "job", "get", "0000000000000000000000000000"); !strings.Contains(text, "There is no such job") {
				t.Errorf("a job that nobody has:\n%s", text)
			}
		})
	}
}

// A command that asks the other listener says so, and which flag has the address.
func TestTheOtherListener(t *testing.T) {
	for _, token := range []string{"", "a-token-of-operators-0123456789abcdef"} {
		for _, mode := range []string{"none", "keys"} {
			t.Run(fmt.Sprintf("mode %s, token %t", mode, token != ""), func(t *testing.T) {
				preset := map[string]any{"auth": map[string]any{"mode": mode},
					"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}}}
				if token != "" {
					preset["admin"] = map[string]any{"token": token}
				}
				now := processtest.Start(t, preset)
				api, admin := "http://"+now.API.String(), "http://"+now.Admin.String()
				const isAdmin = "This is the admin listener. Give --api (SLUICE_API)"
				const isAPI = "This is the listener of the API. Give --admin (SLUICE_ADMIN)"
				for _, c := range []struct {
					words []string
					says  string
				}{
					{[]string{"submit", "--type", "t", "1", "--api", admin}, isAdmin},
					{[]string{"burst", "-n", "1", "--no-follow", "--api", admin}, isAdmin},
					{[]string{"tenant", "list", "--admin", api}, isAPI},
					{[]string{"tenant", "pause", "acme", "--admin", api}, isAPI},
					{[]string{"job", "find", "0000000000000000000000000000", "--admin", api}, isAPI},
					{[]string{"pool", "list", "--admin", api}, isAPI},
				} {
					var out, errs bytes.Buffer
					code := Run(t.Context(), c.words, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}, nil)
					if code == cli.ExitOK || !strings.Contains(errs.String(), c.says) {
						t.Errorf("sluice %s: exit code %d, want %q in\n%s", strings.Join(c.words, " "), code, c.says, &errs)
					}
				}
				// A program sees it, too.
				program, err := client.New(admin, "", nil)
				if err != nil {
					t.Fatal(err)
				}
				_, err = program.Submit(t.Context(), client.Submission{Submission: wire.Submission{Type: "t", Payload: []byte("1")}})
				if err == nil || !strings.Contains(err.Error(), "this is the admin listener") || !strings.Contains(err.Error(), "api.listen") {
					t.Errorf("a submission at the admin listener: %v", err)
				}
			})
		}
	}
}
