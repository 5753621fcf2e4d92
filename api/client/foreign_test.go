package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
)

// Any JSON object decodes into a job or a tenant; what another server says must not pass for one
// with nothing in it.
func TestAnswersOfOthers(t *testing.T) {
	for _, said := range []string{`{}`, `{"status":"ok"}`, `hello`, `[]`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, said)
		}))
		c, err := New(server.URL, "", server.Client())
		if err != nil {
			t.Fatal(err)
		}
		for name, ask := range map[string]func() error{
			"submit": func() error {
				_, err := c.Submit(t.Context(), Submission{Submission: wire.Submission{Type: "t", Payload: []byte("1")}})
				return err
			},
			"job":     func() error { _, err := c.Job(t.Context(), "", "id", 0); return err },
			"jobs":    func() error { _, err := c.Jobs(t.Context(), List{State: "dead"}); return err },
			"tenant":  func() error { _, err := c.Tenant(t.Context(), "acme"); return err },
			"tenants": func() error { _, err := c.Tenants(t.Context(), "", 10); return err },
			"history": func() error { _, err := c.History(t.Context(), "acme"); return err },
			"keys":    func() error { _, err := c.Keys(t.Context(), "acme"); return err },
			"key":     func() error { _, err := c.CreateKey(t.Context(), "acme", wire.KeyRequest{}); return err },
		} {
			if err := ask(); !errors.Is(err, ErrNotSluice) {
				t.Errorf("%s, answered with %s: %v", name, said, err)
			}
		}
		server.Close()
	}
}
