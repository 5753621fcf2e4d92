package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// lateStore is the bench's queue, which is made after the authenticator.
type lateStore struct{ auth.KeyStore }

var tokenSecret = strings.Repeat("k", 32)

// newGuarded is a bench whose clients must authenticate in one of the modes.
func newGuarded(t testing.TB, modes []auth.Mode, change ...func(*Config)) *bench {
	t.Helper()
	key, err := auth.NewSecretKey("", tokenSecret)
	if err != nil {
		t.Fatal(err)
	}
	store := &lateStore{}
	guesses := auth.NewGuesses()
	a, err := auth.New(t.Context(), auth.Config{
		Guesses: guesses, Modes: modes, Keys: store, Logger: slog.New(slog.DiscardHandler),
		Guest: auth.GuestConfig{Tier: "free"}, Cert: auth.CertCN,
		JWT: auth.JWTConfig{Issuer: "i", Audience: "a", TierClaim: "plan", Keys: []auth.TokenKey{key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, append(change, func(c *Config) { c.Auth, c.Guesses = a, guesses })...)
	store.KeyStore = b.queue
	return b
}

// key makes a key of the tenant through the API.
func (b *bench) key(tenant, body string) wire.NewKey {
	b.t.Helper()
	r := b.admin.do(b.t, http.MethodPost, "/v1/tenants/"+tenant+"/keys", nil, body)
	var k wire.NewKey
	if err := json.Unmarshal(r.Body.Bytes(), &k); err != nil || r.Code != http.StatusCreated {
		b.t.Fatalf("create a key: %d %s %v", r.Code, r.problem.Title, err)
	}
	return k
}

func bearing(text string) headers { return headers{"Authorization": "Bearer " + text} }

// dataPlane is every operation on jobs, with a legal request for the job.
func dataPlane(id string) []struct{ method, target, body string } {
	return []struct{ method, target, body string }{
		{"POST", "/v1/jobs", plainJob},
		{"POST", "/v1/jobs/batch", `{"jobs":[` + plainJob + `]}`},
		{"GET", "/v1/jobs?state=queued", ""},
		{"GET", "/v1/jobs/" + id, ""},
		{"HEAD", "/v1/jobs/" + id, ""},
		{"GET", "/v1/jobs/" + id + "/events", ""},
		{"GET", "/v1/jobs/" + id + "/response", ""},
		{"POST", "/v1/jobs/" + id + "/replay", ""},
		{"DELETE", "/v1/jobs/" + id, ""},
	}
}

func TestDataPlaneIsOfThePrincipal(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys, auth.JWT})
	acme, other := b.key("acme", ""), b.key("other", "")
	id := b.submit(plainJob, bearing(acme.Secret)).job.ID
	for path := range b.intake.read().paths {
		if strings.HasPrefix(path, contract.ForwardPath) { // see TestForwardCredentials
			continue
		}
		if strings.HasPrefix(path, "/v1/") && !slices.ContainsFunc(dataPlane("{id}"), func(op struct{ method, target, body string }) bool {
			target, _, _ := strings.Cut(op.target, "?")
			return target == path
		}) {
			t.Errorf("%s is not in this test", path)
		}
	}
	for _, op := range dataPlane(id) {
		name := op.method + " " + op.target
		r := b.intake.do(t, op.method, op.target, nil, op.body)
		if r.Code != http.StatusUnauthorized || r.Header().Get("WWW-Authenticate") != `Bearer realm="sluice"` {
			t.Errorf("%s without a credential: %d %q", name, r.Code, r.Header().Get("WWW-Authenticate"))
		}
		r = b.intake.do(t, op.method, op.target, headers{
			"Authorization": "Bearer " + acme.Secret + "x", "Sluice-Tenant": "acme",
		}, op.body)
		if r.Code != http.StatusUnauthorized ||
			!strings.Contains(r.Header().Get("WWW-Authenticate"), `error="invalid_token"`) {
			t.Errorf("%s with a bad key: %d", name, r.Code)
		}
		if op.method != http.MethodHead {
			r.want(t, http.StatusUnauthorized, "unauthorized")
		}
		h := bearing(other.Secret)
		if strings.Contains(op.target, id) {
			if r = b.intake.do(t, op.method, op.target, h, op.body); r.Code != http.StatusNotFound {
				t.Errorf("%s by another tenant: %d", name, r.Code)
			}
		}
		h["Sluice-Tenant"] = "acme"
		if r = b.intake.do(t, op.method, op.target, h, op.body); r.Code != http.StatusForbidden {
			t.Errorf("%s for another tenant: %d", name, r.Code)
		}
		if op.method != http.MethodHead {
			r.want(t, http.StatusForbidden, "tenant-mismatch")
		}
	}
	if n := len(b.queue.IDs()); n != 1 {
		t.Errorf("%d jobs, want the first alone", n)
	}
	// The batch's jobs, the list and a job read with the header that says the same.
	b.intake.do(t, "POST", "/v1/jobs/batch", bearing(other.Secret), `{"jobs":[`+plainJob+`]}`).want(t,
		http.StatusOK, "")
	for key, want := range map[string]string{acme.Secret: "acme", other.Secret: "other"} {
		var page wire.JobList
		r := b.intake.do(t, "GET", "/v1/jobs?state=queued", headers{
			"Authorization": "Bearer " + key, "Sluice-Tenant": want,
		}, "")
		err := json.Unmarshal(r.Body.Bytes(), &page)
		if err != nil || len(page.Items) != 1 || page.Items[0].Tenant != want {
			t.Errorf("the list of %s: %d %s", want, r.Code, r.Body)
		}
	}
	b.intake.do(t, "DELETE", "/v1/jobs/"+id, headers{"X-API-Key": acme.Secret}, "").want(t, http.StatusOK, "")
}

func TestTenantHeaderBesideACredential(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Guest})
	for _, c := range []struct {
		named  []string
		status int
		kind   string
	}{
		{nil, http.StatusAccepted, ""},
		{[]string{"guest:192.0.2.1"}, http.StatusAccepted, ""},
		{[]string{"default"}, http.StatusForbidden, "tenant-mismatch"},
		{[]string{""}, http.StatusForbidden, "tenant-mismatch"},
		{[]string{"guest:192.0.2.1", "guest:192.0.2.1"}, http.StatusUnprocessableEntity, "invalid-request"},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/jobs", strings.NewReader(plainJob))
		r.Header.Set("Content-Type", "application/json")
		if c.named != nil {
			r.Header[codec.TenantHeader] = c.named
		}
		b.intake.send(t, r).want(t, c.status, c.kind)
	}
}

// The open paths contain no secrets: probes, and the contract.
func TestOpenPathsOfTheIntake(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys})
	for _, path := range []string{
		"/livez", "/readyz", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css",
	} {
		if r := b.intake.do(t, "GET", path, bearing("not even a key"), ""); r.Code != http.StatusOK {
			t.Errorf("%s: %d", path, r.Code)
		}
	}
}

func TestTiersReachTheQueue(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys, auth.JWT, auth.Guest})
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": "i", "aud": "a", "sub": "u-17", "exp": time.Now().Add(time.Hour).Unix(), "plan": "pro",
	}).SignedString([]byte(tokenSecret))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		h            headers
		tenant, tier string
	}{
		{bearing(token), "member:u-17", "pro"},
		{nil, "guest:192.0.2.1", "free"},
		{bearing(b.key("acme", "").Secret), "acme", ""},
	} {
		one := b.submit(plainJob, c.h)
		r := b.intake.do(t, "POST", "/v1/jobs/batch", c.h, `{"jobs":[`+plainJob+`]}`)
		var batch wire.BatchResult
		if err := json.Unmarshal(r.Body.Bytes(), &batch); err != nil || len(batch.Items) != 1 {
			t.Fatalf("%d %s", r.Code, r.Body)
		}
		for _, id := range []string{one.job.ID, batch.Items[0].Job.ID} {
			if s := b.queue.Submission(id); s.Tenant != c.tenant || s.Tier != c.tier {
				t.Errorf("submitted for %q with the tier %q, want %q, %q", s.Tenant, s.Tier, c.tenant, c.tier)
			}
		}
		replay := func(from document, path string, h headers, tier string) {
			t.Helper()
			b.queue.Finish(one.job.ID, shaper.Dead, nil, nil)
			from.do(t, "POST", path+one.job.ID+"/replay", h, "").want(t, http.StatusAccepted, "")
			if s := b.queue.Submission(one.job.ID); s.Tier != tier {
				t.Errorf("replayed with the tier %q, want %q", s.Tier, tier)
			}
		}
		replay(b.intake, "/v1/jobs/", c.h, c.tier)
		replay(b.admin, "/v1/tenants/"+c.tenant+"/jobs/", nil, "the last")
	}
}

func TestStoreAwayIsNoRefusal(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys, auth.Guest})
	key := b.key("acme", "")
	b.queue.Fail(fmt.Errorf("%w: away", queue.ErrUnavailable))
	r := b.intake.do(t, "POST", "/v1/jobs", bearing(key.Secret), plainJob)
	r.want(t, http.StatusServiceUnavailable, "unavailable")
	if r.Header().Get("Retry-After") == "" || r.Header().Get("WWW-Authenticate") != "" {
		t.Errorf("%v", r.Header())
	}
}

// A token whose issuer's keys were never there is not refused either.
func TestIssuerAwayIsNoRefusal(t *testing.T) {
	a, err := auth.New(t.Context(), auth.Config{
		Modes: []auth.Mode{auth.JWT}, Logger: slog.New(slog.DiscardHandler),
		JWT: auth.JWTConfig{Issuer: "i", Audience: "a", JWKS: "http://127.0.0.1:1/"},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(c *Config) { c.Auth = a })
	token := "eyJhbGciOiJFUzI1NiJ9.e30.AAAA"
	r := b.intake.do(t, "POST", "/v1/jobs", bearing(token), plainJob)
	r.want(t, http.StatusServiceUnavailable, "issuer-unavailable")
	if r.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// Credentials stand in no answer and no log; ids of keys at debug alone. Refusals are counted by
// class.
func TestCredentialsAreNeverShown(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		var said queuetest.Log
		b := newGuarded(t, []auth.Mode{auth.Keys}, func(c *Config) {
			c.Logger = said.Logger(level)
		})
		key := b.key("acme", `{"name":"ci"}`)
		secret := key.Secret[len(key.Secret)-43:]
		b.submit(plainJob, bearing(key.Secret))
		answers := ""
		for _, h := range []headers{
			bearing(key.Secret + "x"), bearing(key.Secret[:len(key.Secret)-1]),
			{"Authorization": "Basic " + key.Secret}, bearing("a." + secret + ".c"),
			{"Authorization": "Bearer " + key.Secret, "X-API-Key": key.Secret},
			{"Authorization": "Bearer " + key.Secret, "Sluice-Tenant": "other"}, nil,
		} {
			r := b.intake.do(t, "POST", "/v1/jobs", h, plainJob)
			if r.Code != http.StatusUnauthorized && r.Code != http.StatusForbidden {
				t.Errorf("%v: %d", r.problem, r.Code)
			}
			answers += fmt.Sprint(r.Body, r.Header())
		}
		b.admin.do(t, "GET", "/v1/tenants/acme/keys", nil, "")
		b.admin.do(t, "DELETE", "/v1/tenants/acme/keys/"+key.ID, nil, "").want(t, http.StatusNoContent, "")
		part := secret[:20]
		if strings.Contains(answers, part) || strings.Contains(said.String(), part) {
			t.Error("a secret was logged")
		}
		if debug := level == slog.LevelDebug; strings.Contains(said.String(), key.ID) != debug {
			t.Errorf("at %v the id of the key is logged: %v", level, !debug)
		}
		text := b.admin.do(t, "GET", "/metrics", nil, "").Body.String()
		for _, line := range []string{
			`{class="key"} 2`, `{class="malformed"} 2`, `{class="not-taken"} 1`, `{class="tenant"} 1`,
			`{class="missing"} 1`, `{class="token-expired"} 0`,
		} {
			if !strings.Contains(text, "sluice_auth_refusals_total"+line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
	}
}

// A stream that was let in ends soon after its key is revoked; one whose store is away goes on.
func TestStreamsEndWithTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuarded(t, []auth.Mode{auth.Keys})
		key := b.key("acme", "")
		id := b.submit(plainJob, bearing(key.Secret)).job.ID
		<-time.After(2 * time.Second)
		go func() {
			<-time.After(1500 * time.Millisecond)
			b.queue.Fail(queue.ErrUnavailable)
			<-time.After(5 * time.Second)
			b.queue.Fail(nil)
			<-time.After(3500 * time.Millisecond)
			if err := b.queue.RevokeKey(context.Background(), "acme", key.ID); err != nil {
				t.Error(err)
			}
		}()
		_, took, _ := b.follow(t.Context(), id, bearing(key.Secret))
		if took < 10*time.Second || took > 12250*time.Millisecond {
			t.Errorf("the stream ended after %v, the key after 10s", took)
		}
		if b.queue.Watching() != 0 {
			t.Error("its watch goes on")
		}
	})
}

func TestDocumentDescribesAuthentication(t *testing.T) {
	for _, c := range []struct {
		modes []auth.Mode
		want  string
	}{
		{nil, "null"},
		{[]auth.Mode{auth.Keys}, `[{"bearer":[]},{"apiKey":[]}]`},
		{[]auth.Mode{auth.JWT, auth.Guest}, `[{"bearer":[]},{"apiKey":[]},{}]`},
		{[]auth.Mode{auth.Guest}, `[{}]`},
		{[]auth.Mode{auth.Cert}, `[{"certificate":[]}]`},
		{[]auth.Mode{auth.Keys, auth.Cert, auth.Guest}, `[{"bearer":[]},{"apiKey":[]},{"certificate":[]},{}]`},
	} {
		b := newBench(t)
		if c.modes != nil {
			b = newGuarded(t, c.modes)
		}
		for path, item := range b.intake.read().paths {
			for method, op := range item {
				security, _ := json.Marshal(op.(map[string]any)["security"])
				want := c.want
				if !strings.HasPrefix(path, "/v1/") {
					want = "null"
				}
				if string(security) != want {
					t.Errorf("%v: %s %s: %s, want %s", c.modes, method, path, security, want)
				}
			}
		}
	}
}

func TestKeysOfATenant(t *testing.T) {
	b := newBench(t)
	const path = "/v1/tenants/a%20b/keys"
	list := func() []wire.Key {
		t.Helper()
		var out wire.KeyList
		r := b.admin.do(t, "GET", path, nil, "")
		if err := json.Unmarshal(r.Body.Bytes(), &out); err != nil || r.Code != http.StatusOK ||
			strings.Contains(r.Body.String(), "sluice_") {
			t.Fatalf("%d %s", r.Code, r.Body)
		}
		return out.Items
	}
	if got := list(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	ends := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	first, second := b.key("a%20b", ""), b.key("a%20b",
		`{"name":"ci","expires_at":"`+ends.Format(time.RFC3339)+`"}`)
	if first.Name != "" || !first.Expires.IsZero() || second.Name != "ci" || !second.Expires.Equal(ends) ||
		first.ID == second.ID ||
		!strings.HasPrefix(first.Secret, "sluice_"+first.ID+"_") || first.Created.IsZero() {
		t.Error("the keys are not as they were wanted")
	}
	if got := list(); !reflect.DeepEqual(got, []wire.Key{first.Key, second.Key}) {
		t.Errorf("%v", got)
	}
	b.admin.do(t, "DELETE", "/v1/tenants/other/keys/"+first.ID, nil, "").want(t, http.StatusNotFound,
		"unknown-key")
	b.admin.do(t, "DELETE", path+"/"+first.ID, nil, "").want(t, http.StatusNoContent, "")
	b.admin.do(t, "DELETE", path+"/"+first.ID, nil, "").want(t, http.StatusNotFound, "unknown-key")
	b.admin.do(t, "DELETE", path+"/"+strings.Repeat("x", 100), nil, "").want(t, http.StatusNotFound,
		"unknown-key")
	if got := list(); !reflect.DeepEqual(got, []wire.Key{second.Key}) {
		t.Errorf("%v", got)
	}
	for body, field := range map[string]string{
		`{"secret":"x"}`: "secret", `{"name":7}`: "name", `{"name":"a\nb"}`: "name",
		`{"name":"` + strings.Repeat("x", 256) + `"}`:    "name",
		`{"expires_at":"9999-12-31T23:59:59.999-00:01"}`: "expires_at",
		`{"expires_at":"tomorrow"}`:                      "expires_at",
		`{"expires_at":"2020-01-01T00:00:00Z"}`:          "expires_at",
		`{"expires_at":null}`:                            "expires_at", `{"tenant":"x"}`: "tenant",
	} {
		r := b.admin.do(t, "POST", path, nil, body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) != 1 || r.problem.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, r.problem.Errors)
		}
	}
	b.admin.do(t, "POST", path, nil, `{}{}`).want(t, http.StatusBadRequest, "malformed-json")
	b.admin.do(t, "GET", "/v1/tenants/"+strings.Repeat("x", 256)+"/keys", nil, "").want(t,
		http.StatusUnprocessableEntity, "invalid-request")
	// RFC 3339 has no years of five digits. Another program or an earlier version may have made a
	// key that expires then; the list still works.
	if _, err := b.queue.CreateKey(t.Context(), queue.Key{Tenant: "a b", Name: "late",
		Expires: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}); err != nil {
		t.Fatal(err)
	}
	if got := list(); len(got) != 2 || got[1].Expires.Year() != 9999 {
		t.Errorf("%v", got)
	}
	for len(list()) < queue.MaxKeys {
		b.key("a%20b", "")
	}
	b.admin.do(t, "POST", path, nil, "").want(t, http.StatusConflict, "too-many-keys")
	b.queue.Fail(queue.ErrUnavailable)
	for _, method := range []string{"POST", "GET"} {
		b.admin.do(t, method, path, nil, "").want(t, http.StatusServiceUnavailable, "unavailable")
	}
	b.admin.do(t, "DELETE", path+"/"+second.ID, nil, "").want(t, http.StatusServiceUnavailable, "unavailable")
}

// The keys are the operator's: with an admin token they need it, and a client's key is none.
func TestKeysNeedTheAdminToken(t *testing.T) {
	const token = "an admin token of the tests"
	b := newGuarded(t, []auth.Mode{auth.Keys}, func(c *Config) { c.AdminToken = token })
	r := b.admin.do(t, "POST", "/v1/tenants/acme/keys", bearing(token), "")
	var k wire.NewKey
	if err := json.Unmarshal(r.Body.Bytes(), &k); err != nil || r.Code != http.StatusCreated {
		t.Fatalf("%d %v", r.Code, err)
	}
	for _, h := range []headers{nil, bearing(k.Secret)} {
		b.admin.do(t, "GET", "/v1/tenants/acme/keys", h, "").want(t, http.StatusUnauthorized, "unauthorized")
	}
}

// One story over a real queue: what the store keeps of a key opens the data plane, until it is
// revoked.
func TestKeysOfARealQueue(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	q, err := queue.Open(t.Context(), engine, queue.Options{Logger: log, Defaults: shaper.DefaultPolicy()})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	a, err := auth.New(t.Context(), auth.Config{
		Modes: []auth.Mode{auth.Keys}, Keys: q.Keys(), Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(q, Config{
		Routes: map[string]RouteInfo{"default": {MaxAttempts: 1}}, Auth: a, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, s: s, intake: readDocument(t, s.Intake()), admin: readDocument(t, s.Admin())}
	key := b.key("member:a%20b", "")
	if got := b.submit(plainJob, bearing(key.Secret)).job.Tenant; got != "member:a b" {
		t.Errorf("submitted for %q", got)
	}
	b.admin.do(t, "DELETE", "/v1/tenants/member:a%20b/keys/"+key.ID, nil, "").want(t, http.StatusNoContent, "")
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for b.intake.do(t, "GET", "/v1/jobs?state=queued", bearing(key.Secret), "").Code != http.StatusUnauthorized {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatal("the revoked key opens for good")
		}
	}
}

// Guessed keys are refused without a question to the store once there are many, and lock out nobody
// who has a good one: neither one that was in use, nor one that was made meanwhile.
func TestGuessedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newGuarded(t, []auth.Mode{auth.Keys})
		good, fresh := b.key("quiet", ""), b.key("new", "")
		guess := func(n int) headers {
			return bearing(auth.NewSecret().Key(fmt.Sprintf("%s%04d", good.Key.ID[:24], n)))
		}
		for n := range auth.GuessLimit {
			b.intake.do(t, "POST", "/v1/jobs", guess(n), plainJob).want(t, http.StatusUnauthorized, "unauthorized")
		}
		r := b.intake.do(t, "POST", "/v1/jobs", guess(100), plainJob)
		r.want(t, http.StatusTooManyRequests, "rate-limited")
		if r.Header().Get("Retry-After") == "" {
			t.Error("without Retry-After")
		}
		before := b.queue.Found()
		var all sync.WaitGroup
		for n := range 500 {
			all.Go(func() {
				b.intake.do(t, "POST", "/v1/jobs", guess(1000+n), plainJob).want(t,
					http.StatusTooManyRequests, "rate-limited")
			})
		}
		all.Wait()
		if asked := b.queue.Found() - before; asked > 40 {
			t.Errorf("500 guesses asked the store %d times", asked)
		}
		for _, key := range []wire.NewKey{good, fresh} {
			b.intake.do(t, "POST", "/v1/jobs", bearing(key.Secret), plainJob).want(t, http.StatusAccepted, "")
		}
		// No guess.
		b.intake.do(t, "POST", "/v1/jobs", nil, plainJob).want(t, http.StatusUnauthorized, "unauthorized")
		time.Sleep(time.Minute)
		b.intake.do(t, "POST", "/v1/jobs", guess(2), plainJob).want(t, http.StatusUnauthorized, "unauthorized")
	})
}

// The store is told who costs its client nothing, and whom the operator knows.
func TestWhoOfSubmissions(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys, auth.JWT, auth.Guest})
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": "i", "aud": "a", "sub": "shop", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(tokenSecret))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		with           headers
		guest, vouched bool
	}{
		"a guest": {nil, true, false},
		"a key":   {bearing(b.key("acme", `{}`).Secret), false, true},
		"a token": {bearing(token), false, false},
	} {
		sub := b.queue.Submission(b.submit(plainJob, c.with).job.ID)
		if sub.Guest != c.guest || sub.Vouched != c.vouched {
			t.Errorf("%s: guest %v, vouched for %v", name, sub.Guest, sub.Vouched)
		}
	}
}

// A client that costs nothing must not fill the store for a year.
func TestDelayOfGuests(t *testing.T) {
	b := newGuarded(t, []auth.Mode{auth.Keys, auth.Guest}, func(c *Config) {
		c.MaxDelay = func(who auth.Principal) (time.Duration, string) {
			if who.Guest() {
				return 10 * time.Minute, "auth.guest.max_delay"
			}
			return 366 * 24 * time.Hour, "the longest delay"
		}
	})
	late := `{"type":"t","payload":1,"delay_ms":600001}`
	r := b.intake.do(t, "POST", "/v1/jobs", nil, late)
	r.want(t, http.StatusUnprocessableEntity, "invalid-request")
	if got := r.problem.Errors[0]; got.Field != "delay_ms" || got.Value != "600001" ||
		got.Rule != "must be at most 600000 (auth.guest.max_delay)" {
		t.Errorf("%+v", got)
	}
	b.intake.do(t, "POST", "/v1/jobs", nil, `{"type":"t","payload":1,"delay_ms":600000}`).want(t, http.StatusAccepted, "")
	b.intake.do(t, "POST", "/v1/jobs", bearing(b.key("acme", `{}`).Secret), late).want(t, http.StatusAccepted, "")
}
