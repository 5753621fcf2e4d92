package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// streams are the answers of a route that this worker passes on while they come. Many goroutines
// use it at once.
type streams struct {
	bytes     atomic.Int64             // passed on; only grows
	whole     atomic.Int64             // of answers that may yet be complete before they are passed on
	broken    map[string]*atomic.Int64 // by cause; only grow
	firstByte prometheus.Histogram     // from the departure to the first byte

	mu   sync.Mutex
	open map[string]time.Time // when the answer to a job began, by its id
}

// Why an answer broke off, as the metrics name it.
const (
	brokenByUpstream = "upstream"
	brokenByClient   = "client_left"
	brokenSlow       = "client_slow"
	brokenIdle       = "idle_timeout"
	brokenLong       = "max_duration"
	brokenTooLarge   = "max_response"
	brokenByLease    = "lease_lost"
	brokenByWorker   = "worker_stopped"
	brokenByStore    = "store"
)

func newStreams() *streams {
	s := &streams{open: map[string]time.Time{}, broken: map[string]*atomic.Int64{}}
	for _, cause := range []string{
		brokenByUpstream, brokenByClient, brokenSlow, brokenIdle, brokenLong, brokenTooLarge, brokenByLease, brokenByWorker,
		brokenByStore,
	} {
		s.broken[cause] = new(atomic.Int64)
	}
	s.firstByte = prometheus.NewHistogram(prometheus.HistogramOpts{})
	return s
}

// brokenBy names why an answer broke off by the cause of the end of its context, nil while that
// goes on, and the error of passing it on.
func brokenBy(cause, err error) string {
	var lost bodyError
	switch {
	case cause == context.Canceled:
		return brokenByWorker
	case cause == errLeft:
		return brokenByClient
	case cause == errLong:
		return brokenLong
	case cause == errLost:
		return brokenByLease
	case err == errIdle:
		return brokenIdle
	case err == errSlow:
		return brokenSlow
	case errors.Is(err, errLarge):
		return brokenTooLarge
	case errors.As(err, &lost):
		return brokenByUpstream
	}
	return brokenByStore
}

// begin notes that an answer to a job begins. The caller calls end when it ends.
func (s *streams) begin(id string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[id] = time.Now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, id)
	}
}

// now returns how many answers are open, and when the oldest began, in seconds since 1970; 0 for
// none.
func (s *streams) now() (open, oldest int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, began := range s.open {
		if at := began.Unix(); oldest == 0 || at < oldest {
			oldest = at
		}
	}
	return int64(len(s.open)), oldest
}
