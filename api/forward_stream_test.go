package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// events are server-sent events that a test lets out one by one.
func events(next <-chan string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "Sum")
		w.Header().Set("X-Seen", "1")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case text, more := <-next:
				switch {
				case !more:
					w.Header().Set("Sum", "42")
					return
				case text == "break":
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, text)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
}

// opened sends a request and returns when the head of its answer is there.
func (p *proxied) opened(ctx context.Context, method, url string, header ...string) *http.Response {
	p.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, p.url+url, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Sluice-Tenant", "t")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// TestForwardStreams: an answer reaches its client while it comes: head, bytes and trailers. Its
// key gets it from its first byte, during the answer and afterwards.
func TestForwardStreams(t *testing.T) {
	next := make(chan string)
	p := proxy(t, events(next), asIs)
	first := p.opened(t.Context(), "GET", "/v1/forward/partner/x", "Idempotency-Key", "k")
	if first.StatusCode != 200 || first.Header.Get("X-Seen") != "1" || first.Header.Get("Sluice-Job") == "" ||
		first.Header.Get("Sluice-Waited-Ms") == "" || first.ContentLength >= 0 {
		t.Fatalf("%d %v", first.StatusCode, first.Header)
	}
	next <- "data: 1\n\n"
	reader := bufio.NewReader(first.Body)
	if line, err := reader.ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Fatalf("%q, %v", line, err)
	}
	late := p.opened(t.Context(), "GET", "/v1/forward/partner/x", "Idempotency-Key", "k")
	stored := p.opened(t.Context(), "GET", "/v1/jobs/"+first.Header.Get("Sluice-Job")+"/response", "Prefer", "wait=10")
	next <- "data: 2\n\n"
	close(next)
	rest, err := io.ReadAll(reader)
	if err != nil || string(rest) != "\ndata: 2\n\n" || first.Trailer.Get("Sum") != "42" {
		t.Errorf("the rest: %q, %v, trailers %v", rest, err, first.Trailer)
	}
	again := p.opened(t.Context(), "GET", "/v1/forward/partner/x", "Idempotency-Key", "k")
	for name, resp := range map[string]*http.Response{"late": late, "response": stored, "again": again} {
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || string(body) != "data: 1\n\ndata: 2\n\n" || err != nil {
			t.Errorf("%s: %d %q, %v", name, resp.StatusCode, body, err)
		}
	}
	if p.reached() != 1 {
		t.Errorf("%d requests at the upstream", p.reached())
	}
	// Those that waited for an answer of another request are not counted.
	begun, err := p.metrics.Gather()
	for _, m := range begun {
		if m.GetName() == "sluice_forward_first_byte_seconds" && m.GetMetric()[0].GetHistogram().GetSampleCount() != 1 || err != nil {
			t.Errorf("%v %v", m, err)
		}
	}
}

// TestForwardEventSource: one who accepts events alone waits for an answer that has not begun, at
// both addresses of it.
func TestForwardEventSource(t *testing.T) {
	var p *proxied
	p = proxy(t, func(w http.ResponseWriter, _ *http.Request) {
		for tick := time.NewTicker(time.Millisecond); p.serving.Load() < 2; { // until both wait
			select {
			case <-tick.C:
			case <-t.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
	}, asIs)
	sent, body := p.ask("GET", "/v1/forward/partner/x", "", "Prefer", "respond-async")
	p.want("the request", http.StatusAccepted, "", sent, body)
	answers := make(chan string)
	for _, base := range []string{p.url, p.listener} {
		go func() {
			resp, body := p.send(t.Context(), "GET", base+sent.Header.Get("Location"), "", "Accept", "text/event-stream")
			answers <- fmt.Sprint(resp.StatusCode, " ", body)
		}()
	}
	for range 2 {
		if got := <-answers; got != "200 data: 1\n\n" {
			t.Error(got)
		}
	}
}

// TestForwardBreaksOff: half an answer has no clean end, its request is not sent again, and its job
// says so.
func TestForwardBreaksOff(t *testing.T) {
	for name, client := range map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "HTTP/2": overHTTP2(t)} {
		t.Run(name, func(t *testing.T) {
			next := make(chan string, 2)
			p := proxy(t, events(next), asIs)
			next <- "data: 1\n\n"
			req, _ := http.NewRequestWithContext(t.Context(), "GET", p.url+"/v1/forward/partner/x", nil)
			req.Header.Set("Sluice-Tenant", "t")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body := make([]byte, 9)
			if _, err := io.ReadFull(resp.Body, body); err != nil || string(body) != "data: 1\n\n" {
				t.Fatalf("%q, %v", body, err)
			}
			next <- "break"
			if rest, err := io.ReadAll(resp.Body); err == nil || len(rest) > 0 {
				t.Errorf("behind it: %q, %v", rest, err)
			}
			job := resp.Header.Get("Sluice-Job")
			queuetest.Await(t, "the end of the job", func() bool {
				j, err := p.q.Job(t.Context(), "t", job)
				return err == nil && j.State == shaper.Dead && j.LastError.Message == "the answer broke off after 9 bytes"
			})
			if p.reached() != 1 {
				t.Errorf("%d requests at the upstream", p.reached())
			}
			again := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/jobs/"+job+"/replay", nil)
			r.Header.Set("Sluice-Tenant", "t")
			p.server.Intake().ServeHTTP(again, r)
			if again.Code != http.StatusConflict || !strings.Contains(again.Body.String(), "a forwarded request cannot be replayed") {
				t.Errorf("replay: %d %s", again.Code, again.Body)
			}
		})
	}
}

// TestForwardBreaksOffForHTTP10: in HTTP/1.0 the end of the connection ends an answer, as for nginx
// with its defaults. So half an answer ends with a reset, on plain connections and with TLS.
func TestForwardBreaksOffForHTTP10(t *testing.T) {
	next := make(chan string, 2)
	p := proxy(t, events(next), asIs)
	secure := httptest.NewTLSServer(p.server.Intake())
	defer secure.Close()
	for name, dial := range map[string]func() (net.Conn, error){
		"plain": func() (net.Conn, error) { return net.Dial("tcp", strings.TrimPrefix(p.url, "http://")) },
		"TLS": func() (net.Conn, error) {
			return tls.Dial("tcp", strings.TrimPrefix(secure.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
		},
	} {
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		next <- "data: 1\n\n"
		_, _ = io.WriteString(conn, "GET /v1/forward/partner/x HTTP/1.0\r\nHost: localhost\r\nSluice-Tenant: t\r\n\r\n")
		reader := bufio.NewReader(conn)
		for line := ""; line != "data: 1\n"; {
			if line, err = reader.ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		next <- "break"
		if rest, err := io.ReadAll(reader); err == nil {
			t.Errorf("%s: half an answer has a clean end, %q", name, rest)
		}
	}
}

// TestForwardProgressKeepsLittle: behind comments, an answer without events is not kept whole, and
// events follow whatever the upstream calls them.
func TestForwardProgressKeepsLittle(t *testing.T) {
	var encodings []string
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		encodings = append(encodings, r.Header.Get("Accept-Encoding"))
		if r.URL.Path == "/base/events" {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			_, _ = io.WriteString(w, "data: 1\n\n")
			return
		}
		for range 1000 { // until the reader has enough
			if _, err := w.Write(bytes.Repeat([]byte("x"), 10_000)); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}, func(_ *api.Config, r *worker.Route, _ *queue.Queue) { r.Forward.MaxAnswer = 1000 })
	ask := func(path string) string {
		resp := p.opened(t.Context(), "GET", "/v1/forward/partner/"+path, "Sluice-Tenant", "each",
			"Accept", "text/event-stream", "Sluice-Progress", "sse", "Accept-Encoding", "gzip")
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return string(body)
	}
	p.ask("GET", "/v1/forward/partner/events", "", "Sluice-Tenant", "each") // the burst
	if body := ask("events"); !strings.HasSuffix(body, "\n\ndata: 1\n\n") {
		t.Errorf("%q", body)
	}
	body := ask("large")
	if !strings.Contains(body, "\nevent: answer\ndata: {\"status\":200,\"body\":\"xxx") || len(body) > 70_000 ||
		!strings.HasSuffix(body, "xxx\",\"truncated\":true}\n\n") {
		t.Errorf("%d bytes: %.100q", len(body), body)
	}
	if got := encodings[1:]; !slices.Equal(got, []string{"identity", "identity"}) {
		t.Errorf("Accept-Encoding at the upstream: %q", got)
	}
}

// TestForwardClientLeavesAStream: without a key the upstream's request ends; with one it goes on.
func TestForwardClientLeavesAStream(t *testing.T) {
	next, left := make(chan string), make(chan struct{}, 2)
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		events(next)(w, r)
		left <- struct{}{}
	}, asIs)
	ctx, leave := context.WithCancel(t.Context())
	resp := p.opened(ctx, "GET", "/v1/forward/partner/x")
	began := time.Now()
	leave()
	<-left
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the request ended %v after its client had left", took)
	}
	job := resp.Header.Get("Sluice-Job")
	queuetest.Await(t, "the end of the job", func() bool {
		j, err := p.q.Job(t.Context(), "t", job)
		return err == nil && j.State == shaper.Dead
	})

	ctx, leave = context.WithCancel(t.Context())
	resp = p.opened(ctx, "GET", "/v1/forward/partner/x", "Idempotency-Key", "k")
	leave()
	next <- "data: 1\n\n"
	close(next)
	<-left
	later := p.opened(t.Context(), "GET", "/v1/jobs/"+resp.Header.Get("Sluice-Job")+"/response", "Prefer", "wait=10")
	if body, err := io.ReadAll(later.Body); err != nil || string(body) != "data: 1\n\n" {
		t.Errorf("%q, %v", body, err)
	}
}

// TestForwardStreamsBeyond: of a large answer the client that waits gets all, and others what is
// stored; with fail nobody gets more.
func TestForwardStreamsBeyond(t *testing.T) {
	large := strings.Repeat("0123456789", 1000)
	for _, fail := range []bool{false, true} {
		p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, large)
		}, func(_ *api.Config, r *worker.Route, _ *queue.Queue) {
			r.Forward.MaxAnswer, r.Forward.FailLarge = 5000, fail
		})
		resp := p.opened(t.Context(), "GET", "/v1/forward/partner/x")
		body, err := io.ReadAll(resp.Body)
		if fail && (err == nil && resp.StatusCode != http.StatusBadGateway || len(body) > 5000) || !fail && (err != nil || string(body) != large) {
			t.Errorf("fail %v: %d bytes, %v", fail, len(body), err)
		}
		id := resp.Header.Get("Sluice-Job")
		queuetest.Await(t, "the end of the job", func() bool { // until then the answer is still passed on
			j, err := p.q.Job(t.Context(), "t", id)
			return err == nil && j.State.Done()
		})
		later, text := p.ask("GET", "/v1/jobs/"+id+"/response", "", "Sluice-Tenant", "t")
		switch {
		case fail && later.StatusCode != http.StatusBadGateway:
			t.Errorf("later: %d %s", later.StatusCode, text)
		case !fail && (text != large[:5000] || later.Header.Get("Sluice-Truncated") != "true"):
			t.Errorf("later: %d bytes, %v", len(text), later.Header)
		}
	}
}

// TestForwardStreamTimes: an answer that pauses for too long, or takes too long, breaks off.
func TestForwardStreamTimes(t *testing.T) {
	for _, one := range []struct {
		idle, most time.Duration
		detail     string
	}{
		{2 * time.Second, time.Minute, "nothing came for idle_timeout"},
		{time.Minute, 2 * time.Second, "it took longer than max_duration"},
	} {
		next := make(chan string)
		p := proxy(t, events(next), func(_ *api.Config, r *worker.Route, _ *queue.Queue) {
			r.IdleTimeout, r.Forward.MaxDuration = one.idle, one.most
		})
		resp := p.opened(t.Context(), "GET", "/v1/forward/partner/x")
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: a clean end", one.detail)
		}
		queuetest.Await(t, "the end of the job", func() bool {
			j, err := p.q.Job(t.Context(), "t", resp.Header.Get("Sluice-Job"))
			return err == nil && j.State == shaper.Dead && j.LastError.Detail == one.detail
		})
	}
}

// TestForwardNeverStreams: with never, an answer comes when it is complete.
func TestForwardNeverStreams(t *testing.T) {
	next := make(chan string, 1)
	p := proxy(t, events(next), func(_ *api.Config, r *worker.Route, _ *queue.Queue) { r.Forward.Stream = worker.StreamNever })
	next <- "data: 1\n\n"
	close(next)
	resp, body := p.ask("GET", "/v1/forward/partner/x", "")
	if body != "data: 1\n\n" || resp.ContentLength != 9 {
		t.Errorf("%q, %d", body, resp.ContentLength)
	}
}

// TestProgressIsPaidFor: reports of the progress of a request take of the reads of its tenant.
// Where none are left, they come later.
func TestProgressIsPaidFor(t *testing.T) {
	t.Parallel()
	a := away{fails: new(atomic.Int64), reads: new(atomic.Int64)}
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) {
		c.ReadRate = shaper.Rate{Limit: 1, Period: time.Hour}
	}, func(p *api.Ports) {
		a.Ends, a.Jobs = *p.Ends(), *p.Jobs()
		*p.Ends(), *p.Jobs() = a, a
	})
	p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Tenant", "paused", "Sluice-Progress", "102", "Prefer", "wait=5")
	// The one that it may, the one for which it is in debt, and that of the end of the wait. One
	// more is of an end that may have been missed.
	if n := a.reads.Load(); n > 4 {
		t.Errorf("the job was read %d times in five seconds", n)
	}
}

// TestForwardProgress: clients that wait learn where they are.
func TestForwardProgress(t *testing.T) {
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/bad" {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "no\nway")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
	}, asIs)
	ask := func(path, progress string) string {
		resp := p.opened(t.Context(), "GET", "/v1/forward/partner/"+path, "Sluice-Tenant", "each", "Accept", "text/event-stream", "Sluice-Progress", progress)
		body, err := io.ReadAll(resp.Body)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		return string(body)
	}
	p.ask("GET", "/v1/forward/partner/first", "", "Sluice-Tenant", "each") // the burst
	if body := ask("good", "sse"); !strings.HasPrefix(body, ": sluice position=1 eta_ms=") || !strings.HasSuffix(body, "\n\ndata: 1\n\n") {
		t.Errorf("%q", body)
	}
	if body := ask("bad", "sse"); !strings.HasSuffix(body, "\n\nevent: error\ndata: {\"status\":409,\"body\":\"no\\nway\"}\n\n") {
		t.Errorf("%q", body)
	}
	resp, body := p.ask("GET", "/v1/forward/partner/x", "", "Sluice-Progress", "200")
	p.want("another value", http.StatusUnprocessableEntity, "invalid-request", resp, body)
	var told []textproto.MIMEHeader
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
		if status == http.StatusProcessing {
			told = append(told, h)
		}
		return nil
	}})
	p.opened(ctx, "GET", "/v1/forward/partner/good", "Sluice-Tenant", "each", "Sluice-Progress", "102")
	if len(told) == 0 || told[0].Get("Sluice-Position") == "" || told[0].Get("Sluice-Eta-Ms") == "" {
		t.Errorf("informational answers: %v", told)
	}
}
