package process_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
)

// The settings bound the reads of a tenant and the connections of a listener.
func TestBoundsOfAProcess(t *testing.T) {
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{"url": "http://127.0.0.1:9/"}},
		"api":    map[string]any{"status_rate": "1/h", "max_connections": 2, "address_share": 100},
	})
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	api, err := client.New("http://"+now.API.String(), "", hc)
	if err != nil {
		t.Fatal(err)
	}
	submitted, err := api.Submit(t.Context(), client.Submission{Submission: wire.Submission{
		Type: "t", Payload: json.RawMessage("1"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Job(t.Context(), "", submitted.Job.ID, 0); err != nil {
		t.Error(err)
	}
	_, err = api.Job(t.Context(), "", submitted.Job.ID, 0)
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Kind() != "rate-limited" {
		t.Fatalf("the second read: %v, want it to be rate-limited", err)
	}
	if wait := cli.TooOften(err); wait == 0 || wait < refused.RetryAfter {
		t.Errorf("commands wait %v, want at least %v", wait, refused.RetryAfter)
	}
	if cli.Transient(err) {
		t.Errorf("%v counts as an outage", err)
	}
	for range 5 { // the idle ones make room
		alone := &http.Client{Transport: &http.Transport{}}
		defer alone.CloseIdleConnections()
		resp, err := alone.Get("http://" + now.API.String() + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	resp, err := hc.Get("http://" + now.Admin.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for _, want := range []string{
		`sluice_connections{listener="api"} 2`, `sluice_connections{listener="admin"} 1`,
		"sluice_reads_refused_total 1",
		`sluice_connections_refused_total{listener="admin"} 0`, `sluice_connections_evicted_total{listener="api"} `,
	} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("the metrics do not say %q (%v): %s", want, err, text)
		}
	}
}

// Clients may begin with HTTP/2 on the intake and on listeners that forward, not on that of
// operators.
func TestHTTP2WithoutTLS(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer upstream.Close()
	now := processtest.Start(t, map[string]any{
		"routes":  map[string]any{"partner": map[string]any{"forward": upstream.URL}},
		"forward": []any{map[string]any{"listen": "127.0.0.1:0", "route": "partner"}},
	})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	hc := &http.Client{Transport: tr}
	defer hc.CloseIdleConnections()
	for url, want := range map[string]int{
		"http://" + now.API.String() + "/readyz":                 http.StatusOK,
		"http://" + now.API.String() + "/v1/forward/partner/tea": http.StatusTeapot,
		"http://" + now.Forward[0].String() + "/tea":             http.StatusTeapot,
	} {
		resp, err := hc.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %s", url, resp.Proto, resp.Status)
		}
	}
	if resp, err := hc.Get("http://" + now.Admin.String() + "/readyz"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("the listener of operators answers %s %s", resp.Proto, resp.Status)
	}
}
