package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/apitest"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
)

func TestGate(t *testing.T) {
	g := newGate()
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	if w := ask("/livez"); w.Code != http.StatusOK {
		t.Errorf("/livez before: %d", w.Code)
	}
	for _, path := range []string{"/readyz", "/v1/jobs/x"} {
		if w := ask(path); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" ||
			w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s before: %d %v", path, w.Code, w.Header())
		}
	}
	// Clients find the problem in the document.
	var said wire.Problem
	if err := json.Unmarshal(ask("/v1/jobs/x").Body.Bytes(), &said); err != nil {
		t.Fatal(err)
	}
	s, err := api.New(apitest.New(), api.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]http.Handler{"intake": s.Intake(), "admin": s.Admin()} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/openapi.json", nil))
		if !strings.Contains(w.Body.String(), said.Type+": "+said.Title) {
			t.Errorf("%s: %s is not documented as %q", name, said.Type, said.Title)
		}
	}
	g.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for _, path := range []string{"/livez", "/readyz"} {
		if w := ask(path); w.Code != http.StatusTeapot {
			t.Errorf("%s after: %d", path, w.Code)
		}
	}
}

func TestEcho(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"sku":1}`, `{"id":"j1","tenant":"a b","type":"t","attempt":2,"bytes":9,"payload":{"sku":1}}`},
		{"not json", `{"id":"j1","tenant":"a b","type":"t","attempt":2,"bytes":8}`},
		{`"` + strings.Repeat("x", 2000) + `"`, `{"id":"j1","tenant":"a b","type":"t","attempt":2,"bytes":2002}`},
	} {
		var log strings.Builder
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
		for name, value := range map[string]string{"webhook-id": "j1", "Sluice-Tenant": "a%20b", "Sluice-Job-Type": "t", "Sluice-Attempt": "2"} {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		echoHandler(newLogger(&log, "info")).ServeHTTP(w, r)
		got, err := io.ReadAll(w.Result().Body)
		if err != nil || w.Code != http.StatusOK || strings.TrimSpace(string(got)) != c.want {
			t.Errorf("%d %s, want %s", w.Code, got, c.want)
		}
		if !strings.Contains(log.String(), `"tenant":"`+queue.EncodeName("a b")+`"`) {
			t.Errorf("logged %s", log.String())
		}
	}
}

func TestBaseURL(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:8081":    "http://127.0.0.1:8081",
		"0.0.0.0:8081":      "http://127.0.0.1:8081",
		":8081":             "http://127.0.0.1:8081",
		"[::]:8081":         "http://127.0.0.1:8081",
		"localhost:1":       "http://localhost:1",
		"https://x.example": "https://x.example",
		"http://x:1/":       "http://x:1",
	} {
		if got := baseURL(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
