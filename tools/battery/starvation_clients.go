package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// attackFrom is the address that attacks come from: the quiet tenants and the probes have another
// one.
const attackFrom = "127.0.0.2"

// dialFrom opens a connection from the attacker's address, closed when ctx ends.
func dialFrom(ctx context.Context, to string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackFrom)}}
	conn, err := dialer.DialContext(ctx, "tcp", to)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	return conn, err
}

// beside repeats a request until ctx ends, and counts unexpected answers.
func (w *world) beside(
	ctx context.Context, f *findings, what string, every time.Duration, want int, ask func() (int, error),
) {
	var failed []string
	asked := 0
	for pause(ctx, every) == nil {
		status, err := ask()
		if ctx.Err() != nil {
			break
		}
		if asked++; err != nil || status != want {
			failed = append(failed, fmt.Sprintf("%d %v", status, err))
		}
	}
	f.atLeast(what, float64(asked), 1, "")
	f.none(what+" that failed", failed)
}

// silentBodies holds the memory of large bodies, while a quiet tenant sends a large one now and
// then.
func silentBodies(ctx context.Context, w *world, f *findings) error {
	const size = 8 << 20
	text := []byte(strings.Repeat(" ", size-10))
	var longest atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for pause(ctx, 50*time.Millisecond) == nil {
				conn, err := dialFrom(ctx, w.api)
				if err != nil {
					continue
				}
				fmt.Fprintf(conn, "POST /v1/jobs/batch HTTP/1.1\r\nHost: localhost\r\n"+
					"Content-Type: application/json\r\nSluice-Tenant: %s\r\nContent-Length: %d\r\n\r\n",
					offender, size)
				_, _ = conn.Write(text)
				silent := time.Now()
				_, _ = io.Copy(io.Discard, conn) // until it is closed
				_ = conn.Close()
				if ctx.Err() == nil {
					longest.Store(max(longest.Load(), int64(time.Since(silent))))
				}
			}
		})
	}
	body := []byte(`{"type":"battery","payload":` + payload("large", 150_000) + `}`)
	w.beside(ctx, f, "large bodies of a quiet tenant", 200*time.Millisecond, http.StatusAccepted,
		func() (int, error) {
			status, _, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
				map[string]string{"Sluice-Tenant": "large"}, body)
			return status, err
		})
	all.Wait()
	f.atMost("longest silence", time.Duration(longest.Load()).Seconds(), 10, "s")
	f.timed()
	return nil
}

// later returns the id of a new job that does not leave for a minute.
func (w *world) later(ctx context.Context, tenant string) (id string, err error) {
	status, raw, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
		map[string]string{"Sluice-Tenant": tenant},
		[]byte(`{"type":"battery","payload":"later","delay_ms":60000}`))
	if err != nil || status != http.StatusAccepted {
		return "", fmt.Errorf("submit: %d %w", status, err)
	}
	var job struct{ ID string }
	err = json.Unmarshal(raw, &job)
	return job.ID, err
}

// manyStreams opens event streams and waits of one tenant, while a quiet one opens a stream now and
// then.
func manyStreams(ctx context.Context, w *world, f *findings) error {
	id, err := w.later(ctx, offender)
	if err != nil {
		return err
	}
	quiet, err := w.later(ctx, "watching")
	if err != nil {
		return err
	}
	for i := range 300 {
		conn, err := dialFrom(ctx, w.api)
		if err != nil {
			continue
		}
		path, prefer := "/v1/jobs/"+id+"/events", ""
		if i%2 == 1 {
			path, prefer = "/v1/jobs/"+id, "Prefer: wait=30\r\n"
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nSluice-Tenant: %s\r\n%s\r\n", path, offender,
			prefer)
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	w.beside(ctx, f, "streams of a quiet tenant", 200*time.Millisecond, http.StatusOK, func() (int, error) {
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		req, err := http.NewRequestWithContext(limited, http.MethodGet,
			"http://"+w.api+"/v1/jobs/"+quiet+"/events", nil)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Sluice-Tenant", "watching")
		resp, err := w.web.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	})
	return nil
}

// drippingConnections opens connections that send a byte a second, while probes go on.
func drippingConnections(ctx context.Context, w *world, f *findings) error {
	var all sync.WaitGroup
	for range 600 {
		all.Go(func() {
			for pause(ctx, 100*time.Millisecond) == nil {
				conn, err := dialFrom(ctx, w.api)
				if err != nil {
					continue
				}
				_, err = fmt.Fprintf(conn, "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"+
					"Content-Type: application/json\r\nSluice-Tenant: %s\r\nContent-Length: 1000\r\n\r\n",
					offender)
				for err == nil && pause(ctx, time.Second) == nil {
					_, err = io.WriteString(conn, " ")
				}
				_ = conn.Close()
			}
		})
	}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 3 * time.Second}
	w.beside(ctx, f, "probes, each with a connection of its own", 100*time.Millisecond, http.StatusOK,
		func() (int, error) {
			resp, err := fresh.Get("http://" + w.api + "/livez")
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		})
	all.Wait()
	return nil
}

// receivers of callbacks: one never answers, the other notes what came.
type receivers struct {
	stuck, good *httptest.Server
	came        chan struct{}
}

var callbackServers receivers

// tarpit starts the receivers.
func tarpit(_ *world, s *settings) (end func()) {
	closing := make(chan struct{})
	callbackServers.came = make(chan struct{}, 1)
	callbackServers.stuck = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-closing:
		case <-r.Context().Done():
		}
	}))
	callbackServers.good = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case callbackServers.came <- struct{}{}:
		default:
		}
	}))
	s.callbacks = callbackServers.stuck.URL + "/ " + callbackServers.good.URL + "/"
	s.tenants = map[string]tenant{offender: {rate: "200/s", capacity: 10_000}}
	return func() {
		close(closing)
		callbackServers.stuck.Close()
		callbackServers.good.Close()
	}
}

// stalledCallbacks submits jobs whose callbacks go nowhere, while a quiet tenant waits for its own.
func stalledCallbacks(ctx context.Context, w *world, f *findings) error {
	send := func(tenant, to string) (int, error) {
		body := []byte(`{"type":"battery","payload":` + payload("quiet", 0) + `,"callback_url":"` + to + `/"}`)
		status, _, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
			map[string]string{"Sluice-Tenant": tenant}, body)
		return status, err
	}
	var all sync.WaitGroup
	all.Go(func() {
		for pause(ctx, 10*time.Millisecond) == nil {
			_, _ = send(offender, callbackServers.stuck.URL)
		}
	})
	var longest time.Duration
	called := 0
	for pause(ctx, 500*time.Millisecond) == nil {
		start := time.Now()
		if status, err := send("quiet", callbackServers.good.URL); err != nil || status != http.StatusAccepted {
			continue
		}
		select {
		case <-callbackServers.came:
			called++
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
			continue
		}
		longest = max(longest, time.Since(start))
	}
	all.Wait()
	f.atLeast("callbacks of a quiet tenant", float64(called), 3, "")
	f.atMost("longest of them", longest.Seconds(), 3, "s")
	f.timed()
	return nil
}

const operatorToken = "the-token-of-the-operator"

// guessedTokens sends wrong tokens to the admin listener, while the operator at the same address
// uses the right one.
func guessedTokens(ctx context.Context, w *world, f *findings) error {
	admin := w.living("api")[0].admin
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackFrom)}}
	client := &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16},
		Timeout:   3 * time.Second,
	}
	defer client.CloseIdleConnections()
	get := func(token string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/v1/tenants", nil)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Body.Close()
	}
	var wrong, limited, other atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				switch status, err := get(fmt.Sprintf("a-guess-of-the-token-%d-%d", i, n)); {
				case err != nil:
				case status == http.StatusUnauthorized:
					wrong.Add(1)
				case status == http.StatusTooManyRequests:
					limited.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	w.beside(ctx, f, "requests of the operator", 200*time.Millisecond, http.StatusOK, func() (int, error) {
		return get(operatorToken)
	})
	all.Wait()
	f.atMost("guesses answered 401", float64(wrong.Load()), 10, "")
	f.atLeast("guesses answered 429", float64(limited.Load()), 1, "")
	f.atMost("guesses answered otherwise", float64(other.Load()), 0, "")
	return nil
}
