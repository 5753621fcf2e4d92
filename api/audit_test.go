package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/internal/audit"
)

// fakeTrail keeps the entries as they are recorded.
type fakeTrail struct {
	mu      sync.Mutex
	entries []audit.Entry
	asked   audit.Query
	page    audit.Page
}

func (f *fakeTrail) Record(_ context.Context, e audit.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries = append(f.entries, e)
}

func (f *fakeTrail) Find(_ context.Context, q audit.Query) (audit.Page, error) {
	f.asked = q
	return f.page, nil
}

func (f *fakeTrail) Start() {}

func (f *fakeTrail) Close(context.Context) {}

// take returns the entries since the last call, as text: action actor role address subject outcome,
// then before, after and detail as JSON.
func (b *bench) recorded() (texts []string) {
	b.t.Helper()
	f := b.s.queue.trail.(*fakeTrail)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		text := strings.Join([]string{e.Action, e.Actor, e.Role, e.Address, e.Subject, e.Outcome}, " ")
		for _, part := range []any{e.Before, e.After, e.Detail} {
			raw, err := json.Marshal(part)
			if err != nil {
				b.t.Fatal(err)
			}
			text += " " + string(raw)
		}
		texts = append(texts, text)
	}
	f.entries = nil
	return texts
}

// TestAuditOfOperations: what operators do is recorded with what it was about, what there was
// before and after, and how it ended.
func TestAuditOfOperations(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminSubmit = true })
	job := b.submit(`{"type":"t","payload":{"note":"secret-payload"}}`, headers{"Sluice-Tenant": "acme"}).job.ID
	for range 3 {
		b.submit(`{"type":"t","route":"other","payload":1}`, headers{"Sluice-Tenant": "acme"})
	}
	who := " local admin 192.0.2.1 "
	for _, c := range []struct{ method, path, body, want string }{
		{"PATCH", "/v1/tenants/acme", `{"capacity":4001}`, "tenant.patch" + who + `acme ok {} {"capacity":4001} null`},
		{"PATCH", "/v1/tenants/acme", `{"capacity":4002,"reason":"why"}`, "tenant.patch" + who + `acme ok {"capacity":4001} {"capacity":4002} {"reason":"why"}`},
		{"PATCH", "/v1/tenants/acme?dry_run=true", `{"capacity":5}`, ""},
		{"PATCH", "/v1/tenants/acme", `{"capacity":-1}`, "tenant.patch" + who + "acme invalid-request null null null"},
		{"POST", "/v1/tenants/acme/pause", `{}`, `"paused":true} null`},
		{"POST", "/v1/tenants/nobody/pause", `{}`, "tenant.pause" + who + "nobody unknown-tenant null null null"},
		{"POST", "/v1/tenants/acme/resume", `{}`, "tenant.resume" + who + "acme ok {"},
		{"POST", "/v1/tenants/acme/purge", `{"route":"other","state":"queued"}`, `"count":3`},
		{"GET", "/v1/tenants/acme", "", ""},
		{"GET", "/v1/tenants/acme/jobs/" + job, "", "job.read" + who + job + ` ok null null {"shown":["payload"],"tenant":"acme"}`},
		{"GET", "/v1/jobs/" + job, "", "job.read" + who + job + ` ok null null {"shown":["payload"],"tenant":"acme"}`},
		{"GET", "/v1/tenants/acme/jobs/" + b.job("none"), "", ""},
		{"DELETE", "/v1/tenants/acme/jobs/" + job, "", "job.cancel" + who + job + ` ok null null {"tenant":"acme"}`},
		{"POST", "/v1/tenants/acme/jobs/" + job + "/replay", "", "job.replay" + who + job + ` job-state-conflict null null {"tenant":"acme"}`},
		{"POST", "/v1/tenants/acme/keys", `{"name":"ci"}`, "key.create" + who + `acme ok null {"`},
		{"DELETE", "/v1/tenants/acme/keys/" + b.job("none"), "", "key.revoke" + who + `acme unknown-key null null {"key":"` + b.job("none") + `"}`},
		{"POST", "/v1/tenants/acme/jobs", `{"type":"t","payload":1}`, "job.submit" + who + `acme ok null null {"job":"`},
		{"POST", "/v1/purge", `{"prefix":"ac","dry_run":true}`, ""},
		{"POST", "/v1/purge", `{"prefix":"ac"}`, `"prefix":"ac"`},
		{"DELETE", "/v1/tenants/acme", "", "tenant.delete" + who + "acme ok {"},
		{"POST", "/v1/operators", `{"name":"olaf","role":"operator"}`, "operator.create" + who + `olaf ok null {"`},
		{"DELETE", "/v1/operators/" + b.job("none"), "", "operator.revoke" + who + b.job("none") + " unknown-operator null null"},
		{"GET", "/v1/audit", "", ""},
	} {
		b.recorded()
		r := b.admin.do(t, c.method, c.path, nil, c.body)
		got := b.recorded()
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s %s: %d, recorded %q, want %q", c.method, c.path, r.Code, got, c.want)
		}
		if strings.Contains(strings.Join(got, ""), "secret-payload") || strings.Contains(strings.Join(got, ""), "sluice_") {
			t.Errorf("%s %s: a secret is in %q", c.method, c.path, got)
		}
	}
}

// job returns an id that no job has.
func (b *bench) job(string) string { return "01890a5d-ac96-774b-bcce-b302099a8057" }

// TestAuditOfCredentials: a wrong token and a wrong sign-in are recorded as such, the right one and
// the end of a session, too; a request without credentials is not.
func TestAuditOfCredentials(t *testing.T) {
	b := newBench(t, func(c *Config) { c.AdminToken = "right" })
	do := func(method, path string, h http.Header, form url.Values) *http.Response {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form.Encode()))
		r.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
		for name, values := range h {
			r.Header[name] = values
		}
		w := httptest.NewRecorder()
		b.s.Admin().ServeHTTP(w, r)
		return w.Result()
	}
	in := do("POST", "/login", nil, url.Values{"token": {"right"}})
	cookie := http.Header{"Cookie": {strings.Split(in.Header.Get("Set-Cookie"), ";")[0]}}
	if got := b.recorded(); len(got) != 1 || got[0] != "login admin admin 192.0.2.1  ok null null null" {
		t.Errorf("sign-in: %q", got)
	}
	for _, c := range []struct {
		method, path string
		h            http.Header
		form         url.Values
		want         string
	}{
		{"GET", "/v1/tenants", http.Header{"Authorization": {"Bearer wrong"}}, nil, "auth.refused   192.0.2.1  unauthorized null null null"},
		{"GET", "/v1/tenants", nil, nil, ""},
		{"GET", "/v1/tenants", http.Header{"Authorization": {"Bearer right"}}, nil, ""},
		{"POST", "/login", nil, url.Values{"token": {"wrong"}}, "login.failed   192.0.2.1  unauthorized null null null"},
		{"GET", "/login", nil, nil, ""},
		{"POST", "/logout", cookie, nil, "logout admin admin 192.0.2.1  ok null null null"},
		{"POST", "/logout", cookie, nil, ""},
	} {
		do(c.method, c.path, c.h, c.form)
		if got := strings.Join(b.recorded(), "|"); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

// TestAuditedOperations: every operation of the admin listener that changes something has a name in
// the audit, and reading the audit has none.
func TestAuditedOperations(t *testing.T) {
	for _, op := range slices.Concat(contract.Tenants(), contract.Pools(), contract.TenantJobs(true, 1000), contract.Arrivals(),
		contract.Figures(), contract.Guards(), contract.Audit()) {
		changes := op.Method != http.MethodGet && !strings.HasSuffix(op.Path, "/predict")
		if changes && op.Action == "" {
			t.Errorf("%s changes something and is not recorded", op.ID)
		}
	}
}

// TestListAudit: the query reaches the audit, and a page its client.
func TestListAudit(t *testing.T) {
	b := newBench(t)
	f := b.s.queue.trail.(*fakeTrail)
	f.page = audit.Page{Next: 7, Items: []audit.Item{{At: "2026-01-02T03:04:05.000006Z", Action: "login", Outcome: "ok", Hash: "h",
		Detail: json.RawMessage(`{"a":1}`)}}}
	r := b.admin.do(t, "GET", "/v1/audit?actor=olaf&action=tenant.&subject=acme&limit=5&since=2026-01-02T03:04:05Z&until=2026-02-02T03:04:05Z", nil, "")
	var got wire.AuditList
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || r.Code != 200 || len(got.Items) != 1 || got.Items[0].Hash != "h" ||
		!strings.Contains(r.Body.String(), `"before":null`) {
		t.Errorf("%d %v: %s", r.Code, err, r.Body)
	}
	if q := f.asked; q.Actor != "olaf" || q.Action != "tenant." || q.Subject != "acme" || q.Limit != 5 || q.Since.Year() != 2026 ||
		q.Until.Month() != 2 || q.Before != 0 {
		t.Errorf("%+v", q)
	}
	b.admin.do(t, "GET", "/v1/audit?cursor="+got.NextCursor, nil, "")
	if q := f.asked; q.Before != 7 || q.Limit != 100 {
		t.Errorf("%+v", q)
	}
	for _, query := range []string{"limit=1001", "limit=0", "since=yesterday", "cursor=x", "cursor=" + codec.SealCursor(strconv.Itoa(-1)), "other=1"} {
		if r := b.admin.do(t, "GET", "/v1/audit?"+query, nil, ""); r.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", query, r.Code)
		}
	}
}
