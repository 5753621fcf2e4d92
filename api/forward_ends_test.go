package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// TestForwardWaitEnds: at the end of its wait a client that only changed its URL gets no success.
// One that said how long it waits gets 202. Both learn where the answer will be.
func TestForwardWaitEnds(t *testing.T) {
	for _, one := range []struct{ set, status, preferring int }{{0, 504, 202}, {504, 504, 202}, {503, 503, 202}, {202, 202, 202}} {
		p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) {
			c.Routes["partner"].Forward.Wait, c.Routes["partner"].Forward.OnWaitEnd = 50*time.Millisecond, one.set
		})
		resp, body := p.ask("POST", "/v1/forward/partner/x", "b", "Sluice-Tenant", "paused")
		kind := ""
		if one.status != http.StatusAccepted {
			kind = "answer-pending"
			if resp.Header.Get("Retry-After") == "" {
				t.Errorf("no Retry-After: %v", resp.Header)
			}
		}
		p.want(fmt.Sprint("on_wait_end ", one.set), one.status, kind, resp, body)
		if job := resp.Header.Get("Sluice-Job"); job == "" || resp.Header.Get("Location") != "/v1/jobs/"+job+"/response" {
			t.Errorf("%v", resp.Header)
		}
		for _, prefer := range []string{"wait=0", "respond-async"} {
			resp, body = p.ask("POST", "/v1/forward/partner/x", "b", "Sluice-Tenant", "paused", "Prefer", prefer)
			p.want(prefer, one.preferring, "", resp, body)
		}
		later, body := p.ask("GET", resp.Header.Get("Location"), "", "Sluice-Tenant", "paused")
		p.want("the answer before it is there", http.StatusAccepted, "", later, body)
	}
}

// TestForwardDrains: when the server drains, requests under way get their answers, and the others
// learn at once where theirs will be.
func TestForwardDrains(t *testing.T) {
	release, arrived := make(chan struct{}), make(chan struct{}, 2)
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		echo(w, r)
	}, asIs)
	type got struct {
		resp *http.Response
		body string
	}
	ask := func(header ...string) chan got {
		c := make(chan got, 1)
		go func() {
			resp, body := p.ask("POST", "/v1/forward/partner/x", "b", header...)
			c <- got{resp, body}
		}()
		return c
	}
	under, preferring := ask(), ask("Prefer", "wait=20")
	<-arrived
	<-arrived
	waits, prefers := ask("Sluice-Tenant", "paused"), ask("Sluice-Tenant", "paused", "Prefer", "wait=20")
	p.await("the others", "paused", 2)
	p.server.Drain()
	one := <-waits
	p.want("a request that waits", http.StatusServiceUnavailable, "shutting-down", one.resp, one.body)
	if h := one.resp.Header; h.Get("Retry-After") == "" || !strings.HasSuffix(h.Get("Location"), "/response") {
		t.Errorf("%v", h)
	}
	one = <-prefers
	p.want("one that prefers to wait", http.StatusAccepted, "", one.resp, one.body)
	ended := make(chan struct{})
	go func() {
		p.server.AwaitAnswers(t.Context())
		close(ended)
	}()
	select {
	case <-under:
		t.Error("answered before the upstream")
	case <-ended:
		t.Error("the server waits for nobody")
	case <-time.After(2 * 200 * time.Millisecond):
	}
	close(release)
	for _, c := range []chan got{under, preferring} {
		one = <-c
		p.want("a request under way", http.StatusTeapot, "", one.resp, one.body)
	}
	<-ended
}

// closing sends a request whose client then closes its side of the connection, and returns the
// answer.
func (p *proxied) closing(head, body string) (*http.Response, string) {
	p.t.Helper()
	conn := p.raw(head + fmt.Sprintf("\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	return resp, string(b)
}

// TestHalfClosed: a client that closes its side behind the request (nc -N, socat) is served.
func TestHalfClosed(t *testing.T) {
	p := proxy(t, echo, asIs)
	const json = "\r\nContent-Type: application/json"
	for range 20 {
		resp, body := p.closing("POST /v1/jobs HTTP/1.1"+json, `{"type":"a","route":"jobs","payload":1}`)
		p.want("a job", http.StatusAccepted, "", resp, body)
		resp, body = p.closing("POST /v1/jobs/batch HTTP/1.1"+json, `{"jobs":[{"type":"a","route":"jobs","payload":1}]}`)
		p.want("a batch", http.StatusOK, "", resp, body)
		resp, body = p.closing("GET /v1/jobs?state=all HTTP/1.1", "")
		p.want("a list", http.StatusOK, "", resp, body)
		closed := time.Now()
		resp, body = p.closing("POST /v1/forward/partner/x HTTP/1.1", "b")
		if resp.StatusCode == 499 && time.Since(closed) >= 800*time.Millisecond {
			continue // its answer may take that long then, and this machine is slow
		}
		p.want("a request", http.StatusTeapot, "", resp, body)
	}
}

// TestClientsThatLeave: they are no outage in the metrics, whatever they have asked for.
func TestClientsThatLeave(t *testing.T) {
	p := proxy(t, echo, asIs)
	resp, body := p.ask("POST", "/v1/jobs", `{"type":"a","route":"jobs","payload":1}`, "Content-Type", "application/json",
		"Sluice-Tenant", "paused")
	p.want("a job", http.StatusAccepted, "", resp, body)
	job := resp.Header.Get("Location")
	for _, c := range []struct{ method, url, body, kind string }{
		{"GET", p.url + job, "", ""}, {"GET", p.url + job + "/events", "", ""}, {"POST", p.listener + "/x", "b", ""},
		{"POST", p.url + "/v1/jobs", `{"type":"a","route":"jobs","payload":1}`, "application/json"},
	} {
		for range 5 {
			ctx, leave := context.WithTimeout(t.Context(), 30*time.Millisecond)
			header := []string{"Sluice-Tenant", "paused", "Prefer", "wait=20"}
			if c.kind != "" {
				header = append(header, "Content-Type", c.kind)
			}
			p.send(ctx, c.method, c.url, c.body, header...)
			leave()
		}
	}
	p.await("once they have left", "paused", 1+5) // the requests without a key are cancelled
	for _, reason := range []string{"unavailable", "internal", "overloaded"} {
		if got := p.counter("sluice_refusals_total", reason); got != 0 {
			t.Errorf("%v refusals %s", got, reason)
		}
	}
	if got := p.counter("sluice_admissions_total", "unavailable"); got != 0 {
		t.Errorf("%v admissions unavailable", got)
	}
	if got := p.counter("sluice_refusals_total", "client-left"); got == 0 {
		t.Error("nobody left")
	}
	if got := p.counter("sluice_http_requests_total", "5xx"); got != 0 {
		t.Errorf("%v answers are 5xx", got)
	}
}

// counter sums the series of a counter that have this value of a label.
func (p *proxied) counter(name, value string) (sum float64) {
	p.t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == value {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
