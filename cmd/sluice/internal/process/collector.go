package process

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	collectorTimeout    = 10 * time.Second // of one request, unless a variable sets it
	firstCollectorPause = 5 * time.Second  // before a request is sent again; doubles up to the next
	maxCollectorPause   = 30 * time.Second
	maxCollectorAnswer  = 1 << 10 // bytes of an answer that are read
)

// collector sends spans by OTLP over HTTP. It implements otlptrace.Client. The client of
// OpenTelemetry itself brings gRPC along, which takes a tenth of the time to compile Sluice.
type collector struct {
	url     string
	headers http.Header
	gzip    bool
	client  *http.Client
}

// newCollector reads OpenTelemetry's variables of the exporter. Those for traces alone outrank the
// others. The errors name the variable, not its value.
func newCollector(at string, getenv func(string) string) (*collector, error) {
	c := &collector{url: at, headers: http.Header{}}
	get := func(name string) (variable, value string) {
		for _, variable = range []string{"OTEL_EXPORTER_OTLP_TRACES_" + name, "OTEL_EXPORTER_OTLP_" + name} {
			if value = strings.TrimSpace(getenv(variable)); value != "" {
				return variable, value
			}
		}
		return variable, ""
	}
	timeout := collectorTimeout
	if variable, value := get("TIMEOUT"); value != "" {
		ms, err := strconv.Atoi(value)
		if err != nil || ms <= 0 {
			return nil, fmt.Errorf("%s: must be a number of milliseconds above 0", variable)
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	switch variable, value := get("COMPRESSION"); value {
	case "", "none":
	case "gzip":
		c.gzip = true
	default:
		return nil, fmt.Errorf("%s: must be gzip or none", variable)
	}
	if variable, value := get("HEADERS"); value != "" {
		for pair := range strings.SplitSeq(value, ",") {
			if pair = strings.TrimSpace(pair); pair == "" {
				continue
			}
			name, text, found := strings.Cut(pair, "=")
			text, err := url.PathUnescape(strings.TrimSpace(text))
			if name = strings.TrimSpace(name); !found || name == "" || err != nil {
				return nil, fmt.Errorf("%s: must be a list like name=value,name=value", variable)
			}
			c.headers.Set(name, text)
		}
	}
	transport := &http.Transport{ // without a proxy: see docs/deploy.md
		ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
	}
	config, err := collectorTLS(get)
	if err != nil {
		return nil, err
	}
	if config != nil && !strings.HasPrefix(at, "https:") {
		return nil, errors.New("certificates are set for an endpoint without TLS")
	}
	transport.TLSClientConfig = config
	c.client = &http.Client{Transport: transport, Timeout: timeout}
	return c, nil
}

// collectorTLS returns nil if no variable sets a certificate.
func collectorTLS(get func(string) (variable, value string)) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if variable, file := get("CERTIFICATE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", variable, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: the file has no certificate in PEM", variable)
		}
	}
	variable, cert := get("CLIENT_CERTIFICATE")
	keyVariable, key := get("CLIENT_KEY")
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("%s and %s: set both or none", variable, keyVariable)
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", variable, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if config.RootCAs == nil && config.Certificates == nil {
		return nil, nil
	}
	return config, nil
}

// Start implements otlptrace.Client.
func (c *collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client. The exporter calls it after the last UploadTraces.
func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It sends again until ctx ends, if the collector asks
// for it or does not answer.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// TracesData has the fields of the request message, whose package imports gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	if c.gzip {
		var small bytes.Buffer
		w := gzip.NewWriter(&small)
		_, _ = w.Write(body) // a bytes.Buffer returns no error
		_ = w.Close()
		body = small.Bytes()
	}
	for pause := firstCollectorPause; ; pause = min(2*pause, maxCollectorPause) {
		asked, again, err := c.post(ctx, body)
		if err == nil || !again || ctx.Err() != nil {
			return err
		}
		wait := max(asked, pause/2+rand.N(pause/2))
		if end, bounded := ctx.Deadline(); bounded && time.Until(end) < wait {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// post sends one request. If it fails, again reports whether another one may succeed, and asked is
// the time that the collector wants to pass before.
func (c *collector) post(ctx context.Context, body []byte) (asked time.Duration, again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return 0, false, err
	}
	r.Header = c.headers.Clone()
	r.Header.Set("User-Agent", "sluice")
	r.Header.Set("Content-Type", "application/x-protobuf")
	if c.gzip {
		r.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return 0, true, err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxCollectorAnswer))
	if resp.StatusCode/100 == 2 {
		return 0, false, nil
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout:
		again = true
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			asked = time.Duration(min(s, 3600)) * time.Second
		} else if at, err := http.ParseTime(resp.Header.Get("Retry-After")); err == nil {
			asked = time.Until(at)
		}
	}
	return asked, again, fmt.Errorf("the collector answers %s: %q", resp.Status, text)
}
