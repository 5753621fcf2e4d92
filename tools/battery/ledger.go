package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

// instant is nanoseconds on the monotonic clock since the ledger was opened.
type instant int64

func (i instant) add(d time.Duration) instant         { return i + instant(d) }
func (i instant) since(earlier instant) time.Duration { return time.Duration(i - earlier) }

// outcome is the result of a submission for its client.
type outcome string

const (
	acknowledged outcome = "acknowledged" // 202: the job is stored
	refused      outcome = "refused"      // 4xx: the job is not stored
	unknown      outcome = "unknown"      // no answer, or 5xx: it may be stored
)

// request is one submission as its client saw it. Several with the same key are retries.
type request struct {
	Key      string  `json:"key"`
	Tenant   string  `json:"tenant"`
	Body     string  `json:"body"` // of the delivery that is expected; no two keys share one
	Job      string  `json:"job,omitempty"`
	Outcome  outcome `json:"outcome"`
	Status   int     `json:"status"` // 0 without an answer
	Sent     instant `json:"sent"`
	Answered instant `json:"answered"`
}

// delivery is one request as it reached the sink.
type delivery struct {
	At      instant `json:"at"`
	Job     string  `json:"job"`
	Tenant  string  `json:"tenant"`
	Process string  `json:"process"` // which worker process sent it
	Route   string  `json:"route"`
	Attempt int     `json:"attempt"`
	Body    string  `json:"body"`
	Status  int     `json:"status"` // that the sink answers it with; 0: never answered
}

// failed reports whether the sink's answer asks for another delivery.
func (d delivery) failed() bool { return d.Status == 0 || d.Status == 429 || d.Status >= 500 }

// ledger is the record of one check: every request with its outcome and every delivery, in the
// order of their ends and arrivals. Entries never change.
type ledger struct {
	start time.Time

	mu         sync.Mutex
	requests   []request
	deliveries []delivery
}

func newLedger() *ledger { return &ledger{start: time.Now()} }

// now is the present instant.
func (l *ledger) now() instant { return instant(time.Since(l.start)) }

// instantOf converts a time of the wall clock, such as a stamp.
func (l *ledger) instantOf(t time.Time) instant { return instant(t.Sub(l.start.Round(0))) }

func (l *ledger) request(r request) {
	l.mu.Lock()
	l.requests = append(l.requests, r)
	l.mu.Unlock()
}

func (l *ledger) delivery(d delivery) {
	l.mu.Lock()
	l.deliveries = append(l.deliveries, d)
	l.mu.Unlock()
}

// entries returns what has been written so far. The slices must not be changed.
func (l *ledger) entries() ([]request, []delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.requests), slices.Clip(l.deliveries)
}

// delivered returns the deliveries from the n-th on.
func (l *ledger) delivered(n int) []delivery {
	_, all := l.entries()
	return all[min(n, len(all)):]
}

// write stores the ledger as JSON lines, requests first.
func (l *ledger) write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	enc := json.NewEncoder(out)
	requests, deliveries := l.entries()
	for _, r := range requests {
		err = errors.Join(err, enc.Encode(r))
	}
	for _, d := range deliveries {
		err = errors.Join(err, enc.Encode(d))
	}
	return errors.Join(err, out.Flush(), f.Close())
}
