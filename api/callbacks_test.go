package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
)

// TestCallbackSecrets: a secret is shown once, two may be in force, and neither a list nor the
// audit has one.
func TestCallbackSecrets(t *testing.T) {
	b := newBench(t)
	const path = "/v1/tenants/a%20b/callbacks/secrets"
	made := func(body string) (s wire.NewCallbackSecret) {
		t.Helper()
		r := b.admin.do(t, "POST", path, nil, body)
		r.want(t, http.StatusCreated, "")
		if err := json.Unmarshal(r.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	list := func() []wire.CallbackSecret {
		t.Helper()
		r := b.admin.do(t, "GET", path, nil, "")
		r.want(t, http.StatusOK, "")
		if strings.Contains(r.Body.String(), "whsec_") {
			t.Errorf("a list has a secret: %s", r.Body)
		}
		var l wire.CallbackSecretList
		if err := json.Unmarshal(r.Body.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		return l.Items
	}
	if got := list(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	b.recorded()
	first := made("")
	if first.Kind != "hmac" || !strings.HasPrefix(first.Secret, "whsec_") || first.PublicKey != "" || first.By != "local" {
		t.Errorf("%+v", first.CallbackSecret)
	}
	second := made(`{"kind":"ed25519"}`)
	if second.Kind != "ed25519" || second.Secret != "" || !strings.HasPrefix(second.PublicKey, "whpk_") {
		t.Errorf("%+v", second)
	}
	if got := list(); !slices.Equal(got, []wire.CallbackSecret{second.CallbackSecret, first.CallbackSecret}) {
		t.Errorf("%+v", got)
	}
	b.admin.do(t, "POST", path, nil, "").want(t, http.StatusConflict, "too-many-callback-secrets")
	for _, gone := range []string{"/v1/tenants/other/callbacks/secrets/" + first.ID, path + "/nosuch", path + "/" + strings.Repeat("x", 99)} {
		b.admin.do(t, "DELETE", gone, nil, "").want(t, http.StatusNotFound, "unknown-callback-secret")
	}
	b.admin.do(t, "DELETE", path+"/"+first.ID, nil, "").want(t, http.StatusNoContent, "")
	entries := b.recorded()
	for i, want := range []string{
		"callback.secret.create local admin 192.0.2.1 a b ok null {", "callback.secret.create local admin 192.0.2.1 a b ok null {",
		"callback.secret.create local admin 192.0.2.1 a b too-many-callback-secrets null null",
		"callback.secret.revoke local admin 192.0.2.1 other unknown-callback-secret null null",
		"callback.secret.revoke", "callback.secret.revoke", "callback.secret.revoke local admin 192.0.2.1 a b ok {",
	} {
		if len(entries) != 7 || !strings.HasPrefix(entries[i], want) {
			t.Fatalf("entry %d of %q, want %q", i, entries, want)
		}
	}
	if text := strings.Join(entries, ""); strings.Contains(text, "whsec") || strings.Contains(text, strings.TrimPrefix(first.Secret, "whsec_")) {
		t.Errorf("the audit has a secret: %s", text)
	}
	for body, field := range map[string]string{
		`{"kind":"rsa"}`: "kind", `{"kind":7}`: "kind", `{"kind":null}`: "kind", `{"secret":"whsec_hunter2hunter2"}`: "secret",
	} {
		r := b.admin.do(t, "POST", path, nil, body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) != 1 || r.problem.Errors[0].Field != field || strings.Contains(r.Body.String(), "hunter2") {
			t.Errorf("%s: %s", body, r.Body)
		}
	}
	b.queue.Fail(queue.ErrUnavailable)
	for method, path := range map[string]string{"POST": path, "GET": path, "DELETE": path + "/" + second.ID} {
		b.admin.do(t, method, path, nil, "").want(t, http.StatusServiceUnavailable, "unavailable")
	}
}

// TestCallbackEndpoints: a submission may name what is below an endpoint of its own tenant.
func TestCallbackEndpoints(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.CheckCallback = func(url string, endpoints []string) error {
			if slices.ContainsFunc(endpoints, func(e string) bool { return strings.HasPrefix(url, e) }) {
				return nil
			}
			return errors.New("must be below an endpoint")
		}
		c.CheckEndpoint = func(prefix string) error {
			if !strings.HasPrefix(prefix, "https://") {
				return errors.New("must be https")
			}
			return nil
		}
	})
	const path = "/v1/tenants/acme/callbacks/endpoints"
	if r := b.admin.do(t, "GET", path, nil, ""); strings.TrimSpace(r.Body.String()) != `{"endpoints":[]}` {
		t.Errorf("%d %s", r.Code, r.Body)
	}
	b.recorded()
	const both = `{"endpoints":["https://partner.example/hooks/hunter2/","https://other.example:8443/"]}`
	for range 2 {
		if r := b.admin.do(t, "PUT", path, nil, both); r.Code != http.StatusOK || strings.TrimSpace(r.Body.String()) != both {
			t.Errorf("%d %s", r.Code, r.Body)
		}
	}
	if r := b.admin.do(t, "GET", path, nil, ""); strings.TrimSpace(r.Body.String()) != both {
		t.Errorf("%d %s", r.Code, r.Body)
	}
	entries := b.recorded()
	const origins = `["https://partner.example","https://other.example:8443"]`
	if len(entries) != 2 || !strings.HasPrefix(entries[1], "callback.endpoints.put local admin 192.0.2.1 acme ok "+origins+" "+origins) {
		t.Errorf("%q", entries)
	}
	submit := func(tenant, url string) reply {
		return b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": tenant}, `{"type":"t","payload":1,"callback_url":"`+url+`"}`)
	}
	submit("acme", "https://partner.example/hooks/hunter2/1").want(t, http.StatusAccepted, "")
	for tenant, url := range map[string]string{"acme": "https://partner.example/hooks/hunter3", "other": "https://partner.example/hooks/hunter2/1"} {
		r := submit(tenant, url)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) != 1 || r.problem.Errors[0].Field != "callback_url" || strings.Contains(r.Body.String(), "hunter") {
			t.Errorf("%s", r.Body)
		}
	}
	many := `{"endpoints":["https://a/"` + strings.Repeat(`,"https://a/"`, queue.MaxCallbackEndpoints) + `]}`
	for body, field := range map[string]string{
		`{}`: "endpoints", `{"endpoints":"x"}`: "endpoints", `{"endpoints":["https://a/","http://hunter2/"]}`: "endpoints[1]",
		`{"endpoints":[""]}`: "endpoints[0]", many: "endpoints", `{"endpoint":[]}`: "endpoint",
	} {
		r := b.admin.do(t, "PUT", path, nil, body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) != 1 || r.problem.Errors[0].Field != field || strings.Contains(r.Body.String(), "hunter2") {
			t.Errorf("%.60s: %s", body, r.Body)
		}
	}
	b.queue.Fail(queue.ErrUnavailable)
	submit("third", "https://partner.example/hooks/").want(t, http.StatusServiceUnavailable, "unavailable")
	b.admin.do(t, "PUT", path, nil, both).want(t, http.StatusServiceUnavailable, "unavailable")
}
