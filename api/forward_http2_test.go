package api_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// overHTTP2 is a client of HTTP/2 without TLS.
func overHTTP2(t *testing.T) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// TestForwardHTTP2: clients of HTTP/2 without TLS get the same answers, on both listeners, and many
// of them over one connection.
func TestForwardHTTP2(t *testing.T) {
	p := proxy(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/base/none":
			w.WriteHeader(http.StatusNoContent)
		case "/base/moved":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		default:
			w.Header()["X-Twice"] = []string{"1", "2"}
			_, _ = fmt.Fprintf(w, "%s %s %q %s", r.Method, r.RequestURI, r.Header.Get("Cookie"), b)
		}
	}, asIs)
	client := overHTTP2(t)
	for _, c := range []struct {
		method, url, body string
		status            int
		want              string
	}{
		{"POST", p.listener + "/a%2Fb?x=%00", "hello", 200, `POST /base/a%2Fb?x=%00 "a=1; b=2" hello`},
		{"PATCH", p.url + "/v1/forward/partner//x?", "", 200, `PATCH /base//x? "a=1; b=2" `},
		{"HEAD", p.listener + "/x", "", 200, ""},
		{"GET", p.listener + "/none", "", 204, ""},
		{"PUT", p.listener + "/moved", "", 302, ""},
		{"POST", p.listener + "/large", strings.Repeat("x", 200_000), 200,
			`POST /base/large "a=1; b=2" ` + strings.Repeat("x", 200_000)},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, c.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Cookie", "a=1; b=2")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != c.status || string(got) != c.want {
			t.Errorf("%s %s: %s %d %.200q, %v", c.method, c.url, resp.Proto, resp.StatusCode, got, err)
		}
		if resp.Header.Get("Sluice-Waited-Ms") == "" || c.status == 200 && len(resp.Header["X-Twice"]) != 2 {
			t.Errorf("%s %s: %v", c.method, c.url, resp.Header)
		}
	}
	resp, body := p.ask("GET", "/v1/forward/partner/x", "", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c",
		"Http2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA")
	p.want("an offer to change to HTTP/2", http.StatusOK, "", resp, body)
}

// TestForwardHTTP2Abandoned: a client that resets its stream has left.
func TestForwardHTTP2Abandoned(t *testing.T) {
	p := proxy(t, echo, asIs)
	client := overHTTP2(t)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", p.listener+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sluice-Tenant", "paused")
	left := make(chan error)
	go func() {
		_, err := client.Do(req)
		left <- err
	}()
	p.await("while the client is there", "paused", 1)
	leave()
	if err := <-left; err == nil {
		t.Error("an answer to a client that has left")
	}
	p.await("once it has left", "paused", 0)
}

// TestForwardHTTP2Streams: one client with many streams gets its share of requests, and others are
// served meanwhile.
func TestForwardHTTP2Streams(t *testing.T) {
	const most, share, streams = 40, 20, 200
	p := proxy(t, echo, func(c *api.Config, _ *worker.Route, _ *queue.Queue) {
		c.MaxRequests, c.AddressShare, c.TenantShare = most, 100*share/most, 100
	})
	client := overHTTP2(t)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	codes := make(chan int, streams)
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", p.listener+"/x", strings.NewReader("x"))
			if err != nil {
				panic(err)
			}
			req.Header.Set("Sluice-Tenant", "paused")
			resp, err := client.Do(req)
			if err != nil {
				return // at the end
			}
			codes <- resp.StatusCode
			_ = resp.Body.Close()
		})
	}
	for range streams - share {
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Fatalf("a stream beyond the share got %d", code)
		}
	}
	p.await("those within the share", "paused", share)
	end()
	all.Wait()
	p.await("once the client has left", "paused", 0)
	p.until("the end of the streams", func() bool { return p.serving.Load() == 0 })
	resp, body := p.ask("GET", "/v1/forward/partner/x", "")
	p.want("another", http.StatusTeapot, "", resp, body)
}

// leavingAdmitter lets the client leave between the admission of its request and the answer of the
// store.
type leavingAdmitter struct {
	api.Admitter
	leave func()
	left  <-chan struct{}
}

func (b leavingAdmitter) Submit(ctx context.Context, sub queue.Submission) (queue.Decision, error) {
	v, err := b.Admitter.Submit(ctx, sub)
	b.leave()
	<-b.left
	select {
	case <-ctx.Done(): // the answer is not read
		return queue.Decision{}, ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return v, err
	}
}

// TestForwardAbandonedWhileAdmitted: a request is cancelled also if its client leaves before the
// process knows that it is admitted.
func TestForwardAbandonedWhileAdmitted(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	p := proxy(t, echo, asIs, func(p *api.Ports) { *p.Admitter() = leavingAdmitter{*p.Admitter(), leave, left} })
	p.send(ctx, "POST", p.url+"/v1/forward/partner/x", "", "Sluice-Tenant", "paused")
	p.await("admitted", "paused", 1)
	close(left)
	p.await("once its client has left", "paused", 0)
}
