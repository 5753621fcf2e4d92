package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// hostileAnswer is what an upstream does once a request has come: it writes first, then more again
// and again, until the other side is gone.
type hostileAnswer struct {
	first string
	more  []byte
	pause time.Duration
	state string // in which the job must end: the status counts where there is one
}

// hostileUpstream answers a request for /NAME as its answers say.
type hostileUpstream struct {
	url     string
	answers map[string]hostileAnswer
	socket  net.Listener
	all     sync.WaitGroup
	stop    chan struct{}

	mu    sync.Mutex
	took  time.Duration // the longest answer
	wrong []string      // jobs that ended otherwise than they must
}

func newHostileUpstream() (*hostileUpstream, error) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var bomb bytes.Buffer // 64 MB of zeros in 64 KB, and again
	z := gzip.NewWriter(&bomb)
	for range 64 {
		_, _ = z.Write(make([]byte, 1<<20)) // into memory
	}
	_ = z.Close()
	block := bytes.Repeat([]byte("a"), 64<<10)
	u := &hostileUpstream{
		url: "http://" + socket.Addr().String(), socket: socket, stop: make(chan struct{}),
		answers: map[string]hostileAnswer{
			"bomb": {
				first: "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", more: bomb.Bytes(),
				state: "succeeded",
			},
			"body": {
				first: "HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n", more: block,
				state: "succeeded",
			},
			"drip": {
				first: "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", more: []byte("a"),
				pause: 10 * time.Millisecond, state: "succeeded",
			},
			"headers": {
				first: "HTTP/1.1 200 OK\r\n",
				more:  append([]byte("X-A: "), append(block[:1000:1000], "\r\n"...)...), state: "dead",
			},
			"header": {first: "HTTP/1.1 200 OK\r\nX-A: ", more: block, state: "dead"},
			"slow": {
				first: "HTTP/1.1 200 OK\r\nX-A: ", more: []byte("a"), pause: 10 * time.Millisecond,
				state: "dead",
			},
			"interim": {more: []byte("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), state: "dead"},
			"mute":    {pause: 10 * time.Millisecond, state: "dead"},
		},
	}
	u.all.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return // closed
			}
			u.all.Go(func() { u.serve(conn) })
		}
	})
	return u, nil
}

// serve answers one request, and is over when the other side is.
func (u *hostileUpstream) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	start := time.Now()
	answer := u.answers[strings.TrimPrefix(request.URL.Path, "/")]
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn)
	}()
	_, err = io.WriteString(conn, answer.first)
	for err == nil {
		select {
		case <-gone:
			err = io.EOF
		case <-u.stop:
			err = io.EOF
		case <-time.After(answer.pause):
			_ = conn.SetWriteDeadline(time.Now().Add(time.Minute))
			_, err = conn.Write(answer.more)
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.took = max(u.took, time.Since(start))
}

func (u *hostileUpstream) longest() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.took
}

// drained waits until the jobs for these upstreams have ended, and notes which of them ended
// otherwise than they must.
func (u *hostileUpstream) drained(ctx context.Context, w *world) error {
	w.say("what the hostile upstreams were sent ends")
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		name, hostile := strings.CutPrefix(r.Tenant, "hostile-")
		if !hostile {
			continue
		}
		var job wire.Job
		if err := until(ctx, "the job for "+name+" ends", 50*time.Millisecond, func() (bool, error) {
			var err error
			job, err = w.job(ctx, r.Tenant, r.Job)
			return err != nil || job.Done, err
		}); err != nil {
			return err
		}
		if job.State != u.answers[name].state {
			u.wrong = append(u.wrong, fmt.Sprintf("%s is %s: %+v", name, job.State, job.LastError))
		}
	}
	return nil
}

func (u *hostileUpstream) close() {
	close(u.stop)
	_ = u.socket.Close()
	u.all.Wait()
}
