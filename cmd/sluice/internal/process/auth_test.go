package process_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// A process authenticates tokens, keys and guests as its file says.
func TestAuthOfAProcess(t *testing.T) {
	secret := strings.Repeat("k", 32)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{"url": upstream.URL}},
		"auth": map[string]any{
			"mode": []any{"jwt", "guest", "keys"},
			"jwt": map[string]any{
				"issuer": "i", "audience": "a", "tenant_claim": "org", "leeway": "1m",
				"keys": []any{map[string]any{"algorithm": "HS256", "secret": secret}},
			},
			"guest": map[string]any{"trusted_proxies": []any{"127.0.0.1/32"}},
		},
	})
	sign := func(expires time.Duration) string {
		text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
			"iss": "i", "aud": "a", "org": "shop", "exp": time.Now().Add(expires).Unix(),
		}).SignedString([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	hc := &http.Client{Transport: proxied{}}
	for _, c := range []struct {
		name, token, tenant string
		status              int
	}{
		{"a token", sign(time.Hour), "member:shop", 0},
		{"one that has expired within the leeway", sign(-30 * time.Second), "member:shop", 0},
		{"one that has expired", sign(-2 * time.Minute), "", http.StatusUnauthorized},
		{"a key that nobody made", "sluice_x_y", "", http.StatusUnauthorized},
		{"a guest behind a proxy", "", "guest:192.0.2.7", 0},
	} {
		intake, err := client.New("http://"+now.API.String(), c.token, hc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := intake.Submit(t.Context(), client.Submission{Submission: wire.Submission{
			Type: "t", Payload: json.RawMessage("1"),
		}})
		var refusal *client.Error
		status := 0
		if errors.As(err, &refusal) {
			status = refusal.Status
		} else if err != nil {
			t.Fatal(err)
		}
		if got.Job.Tenant != c.tenant || status != c.status {
			t.Errorf("%s: %q, %d, want %q, %d", c.name, got.Job.Tenant, status, c.tenant, c.status)
		}
	}
}

// proxied sends requests as a proxy does.
type proxied struct{}

// RoundTrip implements http.RoundTripper.
func (proxied) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	r.Close = true
	return http.DefaultTransport.RoundTrip(r)
}
