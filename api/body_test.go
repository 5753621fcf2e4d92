package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/shaper"
)

// longest is what figure S3 grants a client that means harm.
const longest = 10 * time.Second

// drip sends the text a byte a second over and over, until the server has had enough, and returns
// what that answered and when.
func drip(conn io.ReadWriter, first, text string) (answer string, took time.Duration) {
	start := time.Now()
	read := make(chan string)
	go func() {
		got, _ := io.ReadAll(conn)
		read <- string(got)
	}()
	_, err := io.WriteString(conn, first)
	for i := 0; err == nil; i++ {
		<-time.After(time.Second)
		_, err = io.WriteString(conn, string(text[i%len(text)]))
	}
	answer = <-read
	return answer, time.Since(start)
}

// TestDrippersAreCut: whatever comes a byte a second, and wherever, the connection is closed within
// ten seconds of its start.
func TestDrippersAreCut(t *testing.T) {
	const post = " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	for name, c := range map[string]struct {
		admin       bool
		first, text string
		answer      string // part of it
	}{
		"request line": {text: "GET /aaaaaaaaaaaaaaaaaa"},
		"header":       {first: "POST /v1/jobs" + post, text: "X-A: b\r\n"},
		"body": {
			first: "POST /v1/jobs" + post + "Content-Length: 100000\r\n\r\n", text: " ",
			answer: "unreadable-body",
		},
		"chunks": {
			first: "POST /v1/jobs/batch" + post + "Transfer-Encoding: chunked\r\n\r\n", text: "1\r\n \r\n",
			answer: "unreadable-body",
		},
		"size of a chunk": {
			first: "POST /v1/jobs" + post + "Transfer-Encoding: chunked\r\n\r\n", text: "0",
			answer: "unreadable-body",
		},
		"extension of a chunk": {
			first: "POST /v1/jobs" + post + "Transfer-Encoding: chunked\r\n\r\n1;", text: "a",
			answer: "unreadable-body",
		},
		"trailer": {
			first: "POST /v1/jobs" + post + "Transfer-Encoding: chunked\r\n\r\n0\r\n", text: "X-A: b\r\n",
			answer: "unreadable-body",
		},
		"after Expect": {
			first: "POST /v1/jobs" + post + "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n", text: " ",
			answer: "unreadable-body",
		},
		"body of a wrong type": {
			first: "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", text: " ",
			answer: "unsupported-media-type",
		},
		"body of nothing": {
			first: "POST /nowhere" + post + "Content-Length: 100\r\n\r\n", text: " ", answer: "not-found",
		},
		"body of a GET": {
			first: "GET /v1/jobs/ID HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", text: " ",
			answer: "unreadable-body",
		},
		"body of a wait": {
			first: "GET /v1/jobs/ID HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=30\r\n" +
				"Content-Length: 100\r\n\r\n",
			text: " ", answer: "unreadable-body",
		},
		"body of an event stream": {
			first: "GET /v1/jobs/ID/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
			text:  " ", answer: "unreadable-body",
		},
		"body of a tenant's settings": {
			admin: true, first: "PATCH /v1/tenants/a" + post + "Content-Length: 100\r\n\r\n", text: " ",
			answer: "unreadable-body",
		},
		"body of a scrape": {
			admin: true, first: "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
			text: " ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				handler := b.s.Intake()
				if c.admin {
					handler = b.s.Admin()
				}
				l, stop := b.serveAll(handler)
				defer stop()
				id := b.submit(plainJob, nil).job.ID
				conn := l.dial()
				defer conn.Close()
				answer, took := drip(conn, strings.Replace(c.first, "ID", id, 1), c.text)
				if took > longest || !strings.Contains(answer, c.answer) {
					t.Errorf("closed after %v with %q, want %q", took, answer, c.answer)
				}
				if n := b.queue.Watching(); n != 0 || b.s.streams.Count() != 0 || b.s.bodies.Count() != 0 {
					t.Errorf("%d watches, %d streams and %d bytes are left", n, b.s.streams.Count(), b.s.bodies.Count())
				}
			})
		})
	}
}

func TestEndlessHeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l, stop := b.serve()
		defer stop()
		conn := l.dial()
		defer conn.Close()
		answer := make(chan string)
		go func() {
			got, _ := io.ReadAll(conn)
			answer <- string(got)
		}()
		sent, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n")
		for line := "X-A: " + strings.Repeat("a", 1000) + "\r\n"; err == nil && sent < 1<<20; sent += len(line) {
			_, err = io.WriteString(conn, line)
		}
		if got := <-answer; !strings.HasPrefix(got, "HTTP/1.1 431 ") || sent > 2*deadline.MaxHeader {
			t.Errorf("%d bytes were taken, then %q", sent, got)
		}
	})
}

// TestSlowBodyWithinTheBounds: a large batch over a slow connection gets through, and so does its
// answer.
func TestSlowBodyWithinTheBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxBody = contract.MaxBatchBody })
		l, stop := b.serve()
		defer stop()
		conn := l.dial()
		defer conn.Close()
		body := `{"jobs":[{"type":"t","payload":"` + strings.Repeat("x", contract.MaxBatchBody-100) + `"}]}`
		start := time.Now()
		go func() {
			_, err := fmt.Fprintf(conn, "POST /v1/jobs/batch HTTP/1.1\r\nHost: x\r\n"+
				"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
			for rest := body; err == nil && rest != ""; {
				n := min(len(rest), deadline.BodyStep+deadline.BodyStep/8)
				<-time.After(time.Second)
				_, err = io.WriteString(conn, rest[:n])
				rest = rest[n:]
			}
		}()
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || time.Since(start) < 100*time.Second {
			t.Errorf("%d after %v: %.200s %v", r.StatusCode, time.Since(start), text, err)
		}
		if held := b.s.bodies.Count(); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

// TestSlowReadersAreCut: who does not take an answer is closed within ten seconds of its beginning,
// however long it may have waited for it.
func TestSlowReadersAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l, stop := b.serve()
		defer stop()
		id := b.submit(plainJob, nil).job.ID
		conn := l.dial()
		defer conn.Close()
		if _, err := io.WriteString(conn,
			"GET /v1/jobs/"+id+" HTTP/1.1\r\nHost: x\r\nPrefer: wait=30\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Second)
		b.queue.Finish(id, shaper.Succeeded, nil, nil)
		<-time.After(longest)
		synctest.Wait()
		if _, err := io.WriteString(conn, "GET /livez"); err == nil { // it is no longer read
			t.Error("the connection is open")
		}
	})
}

func TestBodiesShareABudget(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxBody = contract.MaxBatchBody })
	large := `{"type":"t","payload":"` + strings.Repeat("x", 1<<20) + `"}`
	const taken = budget.MaxBodies - 512<<10
	b.s.bodies.Give(budget.Owner{}, -taken)
	r := b.intake.do(t, "POST", "/v1/jobs", nil, large)
	r.want(t, http.StatusServiceUnavailable, "overloaded")
	if r.Header().Get("Retry-After") == "" || r.Header().Get("Connection") != "close" {
		t.Errorf("%v", r.Header())
	}
	b.submit(plainJob, nil) // small ones need no room
	b.submit(`{"type":"t","payload":"`+strings.Repeat("x", budget.FreeBody)+`"}`, nil)
	b.s.bodies.Give(budget.Owner{}, 1<<20)
	b.submit(large, nil)
	if held := b.s.bodies.Count(); held != taken-1<<20 {
		t.Errorf("%d bytes are held", held)
	}
}

// TestBatchesOfClientsThatLeave: while Redis does not answer, a batch whose client has left is
// given up. A thousand jobs take half a megabyte.
func TestBatchesOfClientsThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.queue.silent = true
		const stays = time.Minute
		client, leave := context.WithTimeout(t.Context(), stays)
		defer leave()
		r := httptest.NewRequest(http.MethodPost, "/v1/jobs/batch", strings.NewReader(`{"jobs":[`+plainJob+`]}`))
		r.Header.Set("Content-Type", "application/json")
		start := time.Now()
		b.intake.handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(client))
		if took := time.Since(start) - stays; took != leftPatience {
			t.Errorf("it was given up %v after its client had left, want %v", took, leftPatience)
		}
	})
}

// silent sends all of a batch of size bytes but its last ten, and returns what is answered and
// when.
func silent(t *testing.T, conn net.Conn, tenant string, size int) (answer chan string) {
	t.Helper()
	answer = make(chan string, 1)
	go func() {
		got, _ := io.ReadAll(conn)
		answer <- string(got)
	}()
	fmt.Fprintf(conn, "POST /v1/jobs/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
		"Sluice-Tenant: %s\r\nContent-Length: %d\r\n\r\n", tenant, size)
	if _, err := io.WriteString(conn, strings.Repeat(" ", size-10)); err != nil {
		t.Error(err)
	}
	return answer
}

// TestSilentBodies: who sends almost all of large bodies and falls silent is closed within ten
// seconds, whatever has come before, and until then evicts no other.
func TestSilentBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxBody, c.TenantShare = contract.MaxBatchBody, 100 })
		l, stop := b.serve()
		defer stop()
		var answers []chan string
		for range 16 {
			conn := l.dial()
			defer conn.Close()
			answers = append(answers, silent(t, conn, "loud", contract.MaxBatchBody))
		}
		synctest.Wait()
		if held := b.s.bodies.Count(); held < budget.MaxBodies-16*deadline.BodyStep {
			t.Fatalf("%d bytes are held", held)
		}
		start := time.Now()
		<-time.After(budget.BodyYield)
		large := `{"type":"t","payload":"` + strings.Repeat("x", 7<<20) + `"}`
		r := b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": "quiet"}, large)
		r.want(t, http.StatusAccepted, "")
		evicted := 0
		for _, answer := range answers {
			switch text := <-answer; {
			case strings.Contains(text, "overloaded"):
				evicted++
			case !strings.Contains(text, "unreadable-body"):
				t.Errorf("answered %q", text)
			}
		}
		if took := time.Since(start); took > longest {
			t.Errorf("closed after %v", took)
		}
		if evicted != 1 || b.s.bodies.Count() != 0 || b.s.bodies.Arriving.Len() != 0 {
			t.Errorf("%d evicted, %d bytes held, %d arriving", evicted, b.s.bodies.Count(), b.s.bodies.Arriving.Len())
		}
	})
}

// A client that waits for its job has given the memory of its body back.
func TestWaitHoldsNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		go b.intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=20"},
			`{"type":"t","payload":"`+strings.Repeat("x", 100<<10)+`"}`)
		synctest.Wait()
		if n := b.s.bodies.Count(); n != 0 || b.queue.Watching() != 1 {
			t.Errorf("%d bytes held, %d wait", n, b.queue.Watching())
		}
		b.queue.Finish(b.queue.IDs()[0], shaper.Succeeded, nil, nil)
		synctest.Wait()
	})
}

// One tenant that waits for many jobs leaves requests to the others.
func TestRequestsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.MaxRequests = 8 }) // 2 of a tenant
		for range 2 {
			go b.intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=20", "Sluice-Tenant": "loud"}, plainJob)
		}
		synctest.Wait()
		b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": "loud"}, plainJob).want(t,
			http.StatusTooManyRequests, "rate-limited")
		b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": "quiet"}, plainJob).want(t,
			http.StatusAccepted, "")
		for _, id := range b.queue.IDs() {
			b.queue.Finish(id, shaper.Succeeded, nil, nil)
		}
		synctest.Wait()
		b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": "loud"}, plainJob).want(t,
			http.StatusAccepted, "")
		if n := b.s.requests.Count(); n != 0 {
			t.Errorf("%d requests are under way", n)
		}
	})
}

// failing is a body that breaks off.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestBodyThatBreaksOff(t *testing.T) {
	b := newBench(t)
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		r := httptest.NewRequest(method, "/v1/jobs?state=queued", failing{errors.New("reset")})
		if method == http.MethodPost {
			r.URL.RawQuery = ""
		}
		r.ContentLength = 10
		r.Header.Set("Content-Type", "application/json")
		b.intake.send(t, r).want(t, http.StatusBadRequest, "unreadable-body")
	}
}
