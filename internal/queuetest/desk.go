package queuetest

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue"
)

// Desk is a queue on an embedded engine whose jobs leave only when a test ends them.
type Desk struct {
	*queue.Queue
	t      testing.TB
	worker *queue.Consumer
	leases map[string]queue.Lease
	close  func()
}

// NewDesk opens a queue of one shard, which is closed with the test.
func NewDesk(t testing.TB, o queue.Options) *Desk {
	t.Helper()
	o.Shards, o.Logger = 1, slog.New(slog.DiscardHandler)
	q, err := queue.Connect(t.Context(), queue.EngineOptions{Embedded: true, Logger: o.Logger}, o)
	if err != nil {
		t.Fatal(err)
	}
	d := &Desk{Queue: q, t: t, worker: q.Broker().Consumer("desk", 0), leases: map[string]queue.Lease{}}
	d.close = sync.OnceFunc(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(d.close)
	return d
}

// Break closes the queue: from now on it is unavailable.
func (d *Desk) Break() { d.close() }

// End leases the jobs that wait, whenever they are to leave, and ends the one with the id by s.
func (d *Desk) End(id string, s queue.Settlement) {
	d.t.Helper()
	Await(d.t, "the lease of job "+id, func() bool {
		tick, err := d.worker.Tick(d.t.Context(), queue.TickOptions{Max: 1000, Lease: time.Hour, Horizon: time.Hour})
		if err != nil {
			d.t.Fatal(err)
		}
		for _, l := range tick.Leases {
			d.leases[l.ID] = l
		}
		_, leased := d.leases[id]
		return leased
	})
	s.LeaseRef = d.leases[id].LeaseRef
	results, err := d.Broker().Settle(d.t.Context(), []queue.Settlement{s})
	if err != nil || results[0] != queue.Settled && results[0] != queue.Died {
		d.t.Fatalf("job %s ended as %v: %v", id, results, err)
	}
}
