package process

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/7509e464/sluice/internal/certtest"
	"github.com/7509e464/sluice/internal/queuetest"
)

var someSpans = []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "send"}}}}}}

// TestCollectorVariables: the variables of headers, compression and certificates work, and those
// for traces alone outrank the others.
func TestCollectorVariables(t *testing.T) {
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue(t, certtest.Subject{})
	dir := t.TempDir()
	files := map[string]string{}
	for name, text := range map[string]string{"ca": ca.PEM, "cert": cert, "key": key} {
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := gzip.NewReader(r.Body)
		var text []byte
		if err == nil {
			text, err = io.ReadAll(body)
		}
		var got tracepb.TracesData
		if err != nil || proto.Unmarshal(text, &got) != nil || got.ResourceSpans[0].ScopeSpans[0].Spans[0].Name != "send" {
			t.Errorf("the request is no OTLP: %v, %v", err, &got)
		}
		queuetest.Compare(t, "the first header", r.Header.Get("X-Key"), "a b")
		queuetest.Compare(t, "the second header", r.Header.Get("X-Team"), "orders")
		queuetest.Compare(t, "certificates of the client", len(r.TLS.PeerCertificates), 1)
	}))
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Trust().RootCAs,
	}
	server.StartTLS()
	defer server.Close()
	variables := map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS": "x-key=other", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=a%20b, x-team = orders,",
		"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_CERTIFICATE": files["ca"],
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": files["cert"], "OTEL_EXPORTER_OTLP_CLIENT_KEY": files["key"],
	}
	c, err := newCollector(server.URL+"/v1/traces", func(name string) string { return variables[name] })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.UploadTraces(t.Context(), someSpans), c.Stop(t.Context())); err != nil {
		t.Error(err)
	}
}

// An invalid variable is refused by its name, without its value.
func TestInvalidCollectorVariables(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_TIMEOUT": "hunter2", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "-1",
		"OTEL_EXPORTER_OTLP_COMPRESSION": "hunter2", "OTEL_EXPORTER_OTLP_HEADERS": "hunter2",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "=hunter2", "OTEL_EXPORTER_OTLP_CERTIFICATE": os.DevNull,
		"OTEL_EXPORTER_OTLP_CLIENT_KEY": "hunter2",
	} {
		_, err := newCollector("https://c.example/", func(asked string) string {
			return map[string]string{name: value}[asked]
		})
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error is %v, want one with the name and without the value", name, err)
		}
	}
}

// answers is a collector with one answer after the other.
type answers struct {
	list []http.Response
	at   []time.Time
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	a.at = append(a.at, time.Now())
	next := a.list[0]
	a.list = a.list[1:]
	if next.StatusCode == 0 {
		return nil, errors.New("down")
	}
	next.Body = http.NoBody
	return &next, nil
}

// Spans are sent again when the collector asks for it, after the time that it asks for, until the
// export must end. What it refuses is not sent again.
func TestCollectorAsksForPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"20"}}}
		a := &answers{list: []http.Response{busy, {}, {StatusCode: 200}, {StatusCode: 400}, busy, busy}}
		c := &collector{url: "http://c.example/v1/traces", headers: http.Header{}, client: &http.Client{Transport: a}}
		begin := time.Now()
		if err := c.UploadTraces(t.Context(), someSpans); err != nil {
			t.Error(err)
		}
		if gap := a.at[1].Sub(begin); gap != 20*time.Second {
			t.Errorf("the second request came after %v, want 20 s", gap)
		}
		if gap := a.at[2].Sub(a.at[1]); gap < firstCollectorPause || gap > 2*firstCollectorPause {
			t.Errorf("the third request came %v after the second, want 5 to 10 s", gap)
		}
		if err := c.UploadTraces(t.Context(), someSpans); err == nil || len(a.list) != 2 {
			t.Errorf("after 400: %v, and %d answers are left of 2", err, len(a.list))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := c.UploadTraces(ctx, someSpans); err == nil || len(a.list) != 0 || time.Since(a.at[5]) != 0 {
			t.Errorf("with too little time: %v, %d answers are left", err, len(a.list))
		}
	})
}
