package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// raw opens a connection to the intake and writes text to it.
func (p *proxied) raw(text string) net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		p.t.Fatal(err)
	}
	return conn
}

// TestForwardUnluckyClients: clients that die, stall or ask for odd things leave nothing behind,
// and harm no other.
func TestForwardUnluckyClients(t *testing.T) {
	p := proxy(t, echo, asIs)
	const head = "POST /v1/forward/partner/x HTTP/1.1\r\nHost: localhost\r\n"
	for _, rest := range []string{ // of clients that die in the body, in a chunk, in the headers
		"Content-Length: 1000\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n5\r\nab", "X-A: ",
	} {
		_ = p.raw(head + rest).Close()
	}
	conn := p.raw(head + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
	r := bufio.NewReader(conn)
	line, _ := r.ReadString('\n')
	if !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Errorf("to Expect: %q", line)
	}
	_, _ = r.ReadString('\n')
	_, _ = io.WriteString(conn, "abc")
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusTeapot {
		t.Fatalf("after 100-continue: %v %v", resp, err)
	}
	if p.last().Header.Get("Expect") != "" {
		t.Error("Expect was sent on")
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "POST /base/x abc" {
		t.Errorf("%q", b)
	}
	resp, body := p.ask("POST", "/v1/forward/partner/x", "", "Expect", "102-nothing")
	p.want("an unknown expectation", http.StatusExpectationFailed, "", resp, body)
	if n := p.reached(); n != 1 {
		t.Errorf("the upstream was reached %d times", n)
	}
	queuetest.Await(t, "nothing to wait", func() bool {
		totals, err := p.q.Totals(t.Context())
		return err == nil && totals.Depth == 0 && totals.Running == 0
	})
	// Trailers come after the body, and are not sent on.
	conn = p.raw(head + "Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n")
	if resp, err = http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusTeapot {
		t.Errorf("with a trailer: %v %v", resp, err)
	}
	if h := p.last(); h.Header.Get("Trailer") != "" || h.Header.Get("X-Sum") != "" || h.ContentLength != 3 {
		t.Errorf("sent on: %v", h.Header)
	}
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "X-Large", strings.Repeat("x", 30<<10))
	p.want("30 KiB of headers", http.StatusTeapot, "", resp, body)
}

// TestForwardOddAnswers: what an upstream may answer reaches the client, or fails the request.
func TestForwardOddAnswers(t *testing.T) {
	answers := map[string]string{
		"/early":    "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"/lots":     strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 50) + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"/304":      "HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\nEtag: \"a\"\r\n\r\n",
		"/head":     "HTTP/1.1 200 OK\r\nContent-Length: 123456\r\nX-A: 1\r\n\r\n",
		"/headless": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"/205":      "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
		"/trailer":  "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
		"/999":      "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
		"/large":    "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("x", 40<<10) + "\r\nContent-Length: 0\r\n\r\n",
		"/short":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok",
		"/none":     "",
		"/nul":      "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
		"/latin":    "HTTP/1.1 200 OK\r\nX-A: \xe9\r\nContent-Length: 0\r\n\r\n",
		"/own":      "HTTP/1.1 200 OK\r\nSluice-Job: mine\r\nSluice-Truncated: true\r\nSluice-Waited-Ms: -1\r\nContent-Length: 0\r\n\r\n",
		"/two":      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
		"/both":     "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"/fold":     "HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\nContent-Length: 0\r\n\r\n",
		"/cr":       "HTTP/1.1 200 OK\r\nX-A: 1\rX-B: 2\r\nContent-Length: 0\r\n\r\n",
		"/nocolon":  "HTTP/1.1 200 OK\r\nX-A\r\nContent-Length: 0\r\n\r\n",
		"/blank":    "HTTP/1.1 200 OK\r\nX-A : 1\r\nContent-Length: 0\r\n\r\n",
		"/minus":    "HTTP/1.1 -20 Odd\r\nContent-Length: 0\r\n\r\n",
		"/four":     "HTTP/1.1 2000 Odd\r\nContent-Length: 0\r\n\r\n",
		"/zero":     "HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n",
		"/199":      "HTTP/1.1 199 Odd\r\n\r\n",
		"/101":      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"/old":      "HTTP/0.9 200 OK\r\n\r\nbody",
		"/plain":    "just text",
		"/version":  "HTTP/3.7 200 OK\r\nContent-Length: 0\r\n\r\n",
		"/ten":      "HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nok",
		"/surplus":  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
		"/sign":     "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
		"/hex":      "HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok",
		"/xchunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\nok",
		"/badchunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
		"/cutchunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok",
		"/nochunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
		"/204":      "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil",
		"/location": "HTTP/1.1 302 Found\r\nLocation: http://x/\x0b\r\nContent-Length: 0\r\n\r\n",
		"/cookie":   "HTTP/1.1 200 OK\r\nSet-Cookie: sluice_session_8081=x\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n",
		"/date":     "HTTP/1.1 200 OK\r\nDate: then\r\nServer: x\r\nContent-Length: 0\r\n\r\n",
	}
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, answers[strings.TrimPrefix(r.URL.Path, "/base")])
	}, func(_ *api.Config, r *worker.Route, _ *queue.Queue) {
		r.Retry.MinBackoff = time.Millisecond
		r.Forward.Stream = worker.StreamNever // else a busy machine passes on what has begun, and breaks it off
	})
	for path, want := range map[string]struct {
		method string
		status int
		length int64
		body   string
	}{
		"/early": {"GET", 200, 2, "ok"}, "/lots": {"GET", 200, 2, "ok"}, "/304": {"GET", 304, 0, ""},
		"/head": {"HEAD", 200, 123456, ""}, "/headless": {"HEAD", 200, -1, ""}, "/205": {"GET", 205, 0, ""},
		"/trailer": {"GET", 200, 2, "ok"}, "/999": {"GET", 999, 0, ""}, "/large": {"GET", 502, -1, ""},
		"/short": {"GET", 502, -1, ""}, "/none": {"GET", 502, -1, ""}, "/nul": {"GET", 502, -1, ""},
		"/latin": {"GET", 200, 0, ""}, "/own": {"GET", 200, 0, ""}, "/date": {"GET", 200, 0, ""},
		"/two": {"GET", 502, -1, ""}, "/both": {"GET", 200, 2, "ok"}, "/fold": {"GET", 200, 0, ""}, "/cr": {"GET", 502, -1, ""},
		"/nocolon": {"GET", 502, -1, ""}, "/blank": {"GET", 200, 0, ""}, "/minus": {"GET", 502, -1, ""},
		"/four": {"GET", 502, -1, ""}, "/zero": {"GET", 502, -1, ""}, "/199": {"GET", 502, -1, ""}, "/101": {"GET", 502, -1, ""},
		"/old": {"GET", 200, 4, "body"}, "/plain": {"GET", 502, -1, ""}, "/version": {"GET", 200, 0, ""},
		"/ten": {"GET", 200, 2, "ok"}, "/surplus": {"GET", 200, 2, "ok"}, "/sign": {"GET", 502, -1, ""}, "/hex": {"GET", 502, -1, ""},
		"/xchunked": {"GET", 502, -1, ""}, "/badchunk": {"GET", 502, -1, ""}, "/cutchunk": {"GET", 502, -1, ""},
		"/nochunks": {"GET", 502, -1, ""}, "/204": {"GET", 204, 0, ""}, "/location": {"GET", 502, -1, ""},
		"/cookie": {"GET", 200, 0, ""},
	} {
		resp, body := p.ask(want.method, "/v1/forward/partner"+path, "")
		if resp.StatusCode != want.status || want.status != 502 && (resp.ContentLength != want.length || body != want.body) {
			t.Errorf("%s: %d, %d bytes %q, want %+v\n%v", path, resp.StatusCode, resp.ContentLength, body, want, resp.Header)
		}
		switch path {
		case "/own":
			if resp.Header.Get("Sluice-Truncated") != "" || resp.Header.Get("Sluice-Job") == "mine" ||
				strings.HasPrefix(resp.Header.Get("Sluice-Waited-Ms"), "-") || len(resp.Header["Sluice-Job"]) != 1 {
				t.Errorf("an upstream speaks for Sluice: %v", resp.Header)
			}
		case "/date":
			if fmt.Sprint(resp.Header["Date"], resp.Header["Server"]) != "[then] [x]" {
				t.Errorf("%v", resp.Header)
			}
		case "/latin":
			if resp.Header.Get("X-A") != "\xe9" {
				t.Errorf("%q", resp.Header["X-A"])
			}
		}
		later, again := p.ask(want.method, "/v1/jobs/"+resp.Header.Get("Sluice-Job")+"/response", "")
		if later.StatusCode != resp.StatusCode || again != body && want.status != 502 {
			t.Errorf("%s: later %d %q", path, later.StatusCode, again)
		}
	}
}

// TestForwardLargeAnswers: where answers are read whole, they are cut at the bound and said so;
// or refused; one that trickles ends with the timeout of its route.
func TestForwardLargeAnswers(t *testing.T) {
	upstream := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/trickle":
			step := time.NewTicker(50 * time.Millisecond)
			defer step.Stop()
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte("x")); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-step.C:
				case <-r.Context().Done():
				}
			}
		case "/base/exact":
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1000))
		default:
			w.Header().Set("Etag", `"a"`)
			_, _ = w.Write(bytes.Repeat([]byte("x"), 5_000_000))
		}
	}
	for _, fails := range []bool{false, true} {
		p := proxy(t, upstream, func(_ *api.Config, r *worker.Route, _ *queue.Queue) {
			r.Forward.MaxAnswer, r.Forward.FailLarge, r.Forward.Stream = 1000, fails, worker.StreamNever
			r.Timeout = time.Second
		})
		resp, body := p.ask("GET", "/v1/forward/partner/exact", "")
		p.want("an answer at the bound", http.StatusOK, "", resp, body[:min(len(body), 100)])
		if len(body) != 1000 || resp.Header.Get("Sluice-Truncated") != "" {
			t.Errorf("at the bound: %d bytes, %v", len(body), resp.Header)
		}
		resp, body = p.ask("GET", "/v1/forward/partner/large", "")
		if fails {
			p.want("an answer above it", http.StatusBadGateway, "upstream-no-answer", resp, body)
		} else if resp.StatusCode != 200 || len(body) != 1000 || resp.Header.Get("Sluice-Truncated") != "true" {
			t.Errorf("above the bound: %d, %d bytes, %v", resp.StatusCode, len(body), resp.Header)
		}
		began := time.Now()
		resp, body = p.ask("POST", "/v1/forward/partner/trickle", "")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if resp.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("an answer that trickles: %d %.100s", resp.StatusCode, body)
		}
	}
}

// TestForwardLocationOfTheListener: the Location of a 202 leads to the answer on the listener of
// forwarded requests, too. Ids that are not Sluice's are the upstream's.
func TestForwardLocationOfTheListener(t *testing.T) {
	p := proxy(t, echo, asIs)
	ctx := t.Context()
	resp, body := p.send(ctx, "PUT", p.listener+"/x", "later", "Prefer", "respond-async", "Sluice-Tenant", "acme")
	p.want("the request", http.StatusAccepted, "", resp, body)
	at := resp.Header.Get("Location")
	resp, body = p.send(ctx, "GET", p.listener+at, "", "Prefer", "wait=10", "Sluice-Tenant", "acme")
	if resp.StatusCode != http.StatusTeapot || body != "PUT /base/x later" || p.reached() != 1 {
		t.Errorf("its answer: %d %q; the upstream was reached %d times", resp.StatusCode, body, p.reached())
	}
	for _, other := range []string{"/v1/jobs/7/response", strings.Replace(at, "/response", "/other", 1), at + "?a"} {
		if _, body = p.send(ctx, "GET", p.listener+other, "", "Sluice-Tenant", "acme"); body != "GET /base"+other+" " {
			t.Errorf("%s: %q", other, body)
		}
	}
	if _, body = p.send(ctx, "GET", p.listener+at, "", "Sluice-Tenant", "other"); body != "GET /base"+at+" " {
		t.Errorf("for another tenant: %q", body)
	}
	if _, body = p.ask("GET", "/v1/forward/partner"+at, "", "Sluice-Tenant", "acme"); body != "GET /base"+at+" " {
		t.Errorf("below the route: %q", body)
	}
}

// away is a store that is unavailable for a while to those who read answers.
type away struct {
	api.Ends
	api.Jobs
	fails *atomic.Int64 // how often
	reads *atomic.Int64 // of jobs
}

func (a away) Answer(ctx context.Context, tenant, id string, end queue.End) (queue.Job, *queue.Answer, error) {
	if a.fails.Add(-1) >= 0 {
		return queue.Job{}, nil, fmt.Errorf("%w: away", queue.ErrUnavailable)
	}
	a.reads.Add(1)
	return a.Ends.Answer(ctx, tenant, id, end)
}

func (a away) Job(ctx context.Context, tenant, id string) (queue.Job, error) {
	a.reads.Add(1)
	return a.Jobs.Job(ctx, tenant, id)
}

// TestForwardWhileTheStoreIsAway: a client that waits gets its answer once the store is back, and
// else 202: the request is stored.
func TestForwardWhileTheStoreIsAway(t *testing.T) {
	a := away{fails: new(atomic.Int64), reads: new(atomic.Int64)}
	p := proxy(t, echo, asIs, func(p *api.Ports) {
		a.Ends, a.Jobs = *p.Ends(), *p.Jobs()
		*p.Ends(), *p.Jobs() = a, a
	})
	began := time.Now()
	resp, body := p.ask("GET", "/v1/forward/partner/x", "")
	p.want("a request", http.StatusTeapot, "", resp, body)
	// Once more where its end came so late that the watch might have missed it.
	if n, late := a.reads.Load(), time.Since(began) > 200*time.Millisecond; n != 1 && !(late && n == 2) {
		t.Errorf("its job was read %d times", n)
	}
	a.fails.Store(3)
	resp, body = p.ask("GET", "/v1/forward/partner/x", "")
	p.want("a request while the store is away for a moment", http.StatusTeapot, "", resp, body)
	a.fails.Store(1 << 40)
	resp, body = p.ask("GET", "/v1/forward/partner/x", "", "Prefer", "wait=1")
	p.want("a request while it is away for longer", http.StatusAccepted, "", resp, body)
	at := resp.Header.Get("Location")
	resp, body = p.ask("GET", at, "", "Prefer", "wait=1")
	p.want("its answer", http.StatusServiceUnavailable, "unavailable", resp, body)
	a.fails.Store(0)
	resp, body = p.ask("GET", at, "", "Prefer", "wait=1")
	p.want("its answer then", http.StatusTeapot, "", resp, body)
}
