package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// The echo server answers with the job that it got. It leaves out a payload that is long or not
// JSON, and logs the tenant encoded.
func TestEcho(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"sku":1}`, `{"id":"j1","tenant":"a b","type":"t","attempt":2,"bytes":9,"payload":{"sku":1}}`},
		{"not json", `{"id":"j1","tenant":"a b","type":"t","attempt":2,"bytes":8}`},
		{`"` + strings.Repeat("x", 2000) + `"`, `{"id":"j1","tenant":"a b","type":"t","attempt":2,"bytes":2002}`},
	} {
		var log strings.Builder
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
		for name, value := range map[string]string{
			"webhook-id": "j1", "Sluice-Tenant": "a%20b", "Sluice-Job-Type": "t", "Sluice-Attempt": "2",
		} {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		echoHandler(cli.NewLogger(&log, "info")).ServeHTTP(w, r)
		got, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		queuetest.Compare(t, "the status", w.Code, http.StatusOK)
		queuetest.Compare(t, "the answer", strings.TrimSpace(string(got)), c.want)
		if !strings.Contains(log.String(), `"tenant":"`+store.EncodeName("a b")+`"`) {
			t.Errorf("logged %s", log.String())
		}
	}
}

// A request that is no job, such as a forwarded one, is answered with its method and its target.
func TestEchoOfAForwardedRequest(t *testing.T) {
	for _, c := range []struct{ job, want string }{
		{"j1", `{"id":"j1","tenant":"a b","method":"GET","target":"/orders/7?verbose=1","attempt":1,"bytes":0}`},
		{"", `{"method":"GET","target":"/orders/7?verbose=1","attempt":0,"bytes":0}`},
	} {
		r := httptest.NewRequest(http.MethodGet, "/orders/7?verbose=1", nil)
		if c.job != "" {
			r.Header = http.Header{"Sluice-Job": {c.job}, "Sluice-Tenant": {"a%20b"}, "Sluice-Attempt": {"1"}}
		}
		w := httptest.NewRecorder()
		echoHandler(cli.NewLogger(io.Discard, "info")).ServeHTTP(w, r)
		queuetest.Compare(t, "the answer", strings.TrimSpace(w.Body.String()), c.want)
	}
}

// With a rate, the echo server refuses what is beyond it.
func TestEchoOfARate(t *testing.T) {
	h, err := limited(echoHandler(cli.NewLogger(io.Discard, "info")), &shaper.Rate{Limit: 2, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
		queuetest.Compare(t, "the status", w.Code, want)
	}
	if _, err := limited(h, &shaper.Rate{Limit: 1}); err == nil {
		t.Error("a rate without a period was taken")
	}
}
