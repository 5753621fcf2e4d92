package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
)

// shown is the job as operators see it.
func (p *proxied) shown(tenant, id string) (job wire.JobDetail, text string) {
	p.t.Helper()
	w := httptest.NewRecorder()
	p.admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/v1/tenants/"+tenant+"/jobs/"+id, nil))
	if err := json.Unmarshal(w.Body.Bytes(), &job); err != nil {
		p.t.Fatalf("%v: %s", err, w.Body)
	}
	return job, w.Body.String()
}

// TestForwardShown: operators read the request and its answer as text, and see no credential.
func TestForwardShown(t *testing.T) {
	const body = "caf\u00e9 \"1\""
	p := proxy(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Set-Cookie"] = []string{"a=seen1", "b=seen2"}
		w.Header().Set("Location", "/done?code=seen3&page=2")
		w.Header()["Vary"] = []string{"Accept", "Origin"}
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, strings.Repeat("\u00e9", 3000))
	}, asIs)
	secrets := []string{
		"Authorization", "Bearer seen", "Cookie", "id=seen", "X-Api-Key", "seen", "X-Auth-Token", "seen",
		"Ocp-Apim-Subscription-Key", "seen", "X-Hub-Signature-256", "seen",
	}
	send := func(tenant string) string {
		t.Helper()
		resp, got := p.ask("POST", "/v1/forward/partner/a%2Fb?x=1&api_key=seen&%74oken=seen&key=seen&y", body,
			append(secrets, "Sluice-Tenant", tenant, "Content-Type", "text/plain", "Prefer", "respond-async")...)
		p.want("the request", http.StatusAccepted, "", resp, got)
		return resp.Header.Get("Sluice-Job")
	}
	job, text := p.shown("paused", send("paused"))
	if job.Request == nil || job.Payload != nil || job.Type != "POST /a%2Fb" {
		t.Fatalf("shown as %s", text)
	}
	queuetest.Compare(t, "the target", job.Request.Target, "/a%2Fb?x=1&api_key=hidden&%74oken=hidden&key=hidden&y")
	queuetest.Compare(t, "the method, and no body", []any{job.Request.Method, job.Request.Body, job.Request.BodyBytes},
		[]any{"POST", "", len(body)})
	asked, _ := p.shown("paused", job.ID+"?request_body=true")
	queuetest.Compare(t, "the body where it is asked for", asked.Request.Body, body)
	queuetest.Compare(t, "a header", job.Request.Headers["Content-Type"], "text/plain")
	queuetest.Compare(t, "a credential", job.Request.Headers["Authorization"], "hidden")
	if strings.Contains(text, "seen") {
		t.Errorf("shows credentials: %s", text)
	}

	id := send("acme")
	resp, _ := p.ask("GET", "/v1/jobs/"+id+"/response", "", "Sluice-Tenant", "acme", "Prefer", "wait=20")
	queuetest.Compare(t, "cookies that the client gets", len(resp.Header["Set-Cookie"]), 2)
	job, text = p.shown("acme", id)
	if job.Request != nil || job.Response == nil {
		t.Fatalf("after its end: %s", text)
	}
	queuetest.Compare(t, "headers of the answer", []string{
		job.Response.Headers["Set-Cookie"], job.Response.Headers["Location"], job.Response.Headers["Vary"],
	}, []string{"hidden", "/done?code=hidden&page=2", "Accept, Origin"})
	queuetest.Compare(t, "the start of the body", job.Response.Body, strings.Repeat("\u00e9", 2048))
	queuetest.Compare(t, "whether it was cut", job.Response.BodyTruncated, true)
	if strings.Contains(text, "seen") {
		t.Errorf("shows credentials: %s", text)
	}
	_, text = p.ask("GET", "/v1/jobs/"+id, "", "Sluice-Tenant", "acme")
	if !strings.Contains(text, `"Vary":"Accept, Origin"`) || strings.Contains(text, "seen") {
		t.Errorf("its client reads %s", text)
	}
}

// TestTypeOfAForwardedRequest: its client reads the whole path, which it wrote; lists of operators
// have no segment that may be a secret.
func TestTypeOfAForwardedRequest(t *testing.T) {
	const secret = "aXbYcZdWeVfUgThS"
	p := proxy(t, echo, asIs)
	resp, got := p.ask("PUT", "/v1/forward/partner/hooks/"+secret+"/a/b/c/d/e", "x", "Sluice-Tenant", "paused", "Prefer", "respond-async")
	p.want("the request", http.StatusAccepted, "", resp, got)
	for _, path := range []string{"/v1/jobs/" + resp.Header.Get("Sluice-Job"), "/v1/jobs?state=queued"} {
		if _, text := p.ask("GET", path, "", "Sluice-Tenant", "paused"); !strings.Contains(text, "PUT /hooks/"+secret+"/a/b/c/d/e") {
			t.Errorf("its client reads %s", text)
		}
	}
	w := httptest.NewRecorder()
	p.admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/v1/tenants/paused/jobs?state=queued", nil))
	if text := w.Body.String(); !strings.Contains(text, `"PUT /hooks/*/a/b/c/…"`) || strings.Contains(text, secret) {
		t.Errorf("the list of operators is %s", text)
	}
}
