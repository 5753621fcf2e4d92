package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// notes is an upstream that answers 200 to everything and notes when each request came, by its
// path.
type notes struct {
	url    string // without a path
	server *http.Server
	zero   time.Time

	mu sync.Mutex
	at map[string][]time.Duration // since zero
}

func newNotes() (*notes, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &notes{url: "http://" + l.Addr().String(), zero: time.Now(), at: map[string][]time.Duration{}}
	n.server = &http.Server{Handler: http.HandlerFunc(n.serve), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = n.server.Serve(l) }() // ends with close
	return n, nil
}

func (n *notes) close() { _ = n.server.Close() }

func (n *notes) serve(_ http.ResponseWriter, r *http.Request) {
	now := time.Since(n.zero)
	_, _ = io.Copy(io.Discard, r.Body)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[r.URL.Path] = append(n.at[r.URL.Path], now)
}

// count is the number of requests to the path since the last take.
func (n *notes) count(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.at[path])
}

// take returns the instants of requests to the path, in order, and deletes them.
func (n *notes) take(path string) []time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := n.at[path]
	delete(n.at, path)
	slices.Sort(at)
	return at
}

// await returns when the path has received as many requests as there are jobs.
func (n *notes) await(ctx context.Context, path string, jobs int) error {
	for n.count(path) < jobs {
		if err := pass(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d requests have come: %w", n.count(path), jobs, err)
		}
	}
	return nil
}
