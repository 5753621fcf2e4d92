package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/7509e464/sluice/internal/scripts"
)

// boundResults holds the results of the histories.
type boundResults struct {
	arrived   map[string]instant // by id
	histories []boundHistory

	calls, departures, givenBack, full int
	aside                              int // histories with too many give-backs
	filled                             int // histories in which the queue was full
	falsely, odd, unproven, illegal    []string
}

// giveBacksMost is how many hidden give-backs a history may have: each may have been at any time,
// and porcupine tries them all.
const giveBacksMost = 6

// take takes the player's history, unless the machine stalled so much that too many jobs were given
// back. How often a job was leased stands in its record: a worker that wakes too late for a stamp
// gives the job back, which clients cannot see.
func (b *boundResults) take(ctx context.Context, y *player) error {
	h := boundHistory{tenant: y.plan.tenant, capacity: y.plan.capacity, jobs: len(y.ids), calls: y.calls}
	b.odd = append(b.odd, y.odd...)
	givenBack := 0
	for job, id := range y.ids {
		if id == "" {
			continue
		}
		r := request{
			Key: y.key(job), Tenant: y.plan.tenant, Body: y.body(job), Job: id, Outcome: acknowledged,
			Status: http.StatusAccepted,
		}
		if !y.cancelled[id] { // a cancelled one must not be delivered
			y.w.ledger.request(r)
		}
		raw, err := y.w.store.Get(ctx, keyspace.ShardOf(y.plan.tenant).Job(id)).Bytes()
		if err != nil {
			return fmt.Errorf("job %s: %w", id, err)
		}
		record, err := scripts.DecodeRecord(raw)
		if err != nil {
			return err
		}
		j := journey{job: job, leases: int(record.Epoch), at: y.w.ledger.now()}
		if at, ok := b.arrived[id]; ok {
			j.arrived, j.at = true, at
			b.departures++
			givenBack--
		}
		givenBack += j.leases
		h.journeys = append(h.journeys, j)
	}
	filled := false
	for _, c := range h.calls {
		b.calls++
		for _, v := range c.reply.decisions {
			size := 1
			if c.ask.atomic {
				size = len(c.ask.jobs)
			}
			if v.outcome == refused {
				b.full++
				filled = filled || v.depth == v.capacity
				if v.depth+size <= v.capacity {
					b.falsely = append(b.falsely, fmt.Sprintf("%s refused %d more than %d of %d", h.tenant,
						size, v.depth, v.capacity))
				}
			}
		}
	}
	if filled {
		b.filled++
	}
	b.givenBack += givenBack
	if givenBack > giveBacksMost {
		b.aside++
		return nil
	}
	b.histories = append(b.histories, h)
	return nil
}

// check checks the histories with porcupine, for some seconds each at most, until all are checked
// or three are wrong.
func (b *boundResults) check(ctx context.Context, w *world) error {
	const patience = 5 * time.Second
	for i, h := range b.histories {
		if len(b.illegal)+len(b.unproven) == 3 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d histories checked: %w", i, len(b.histories), ctx.Err())
		}
		w.say("checking history %d of %d", i+1, len(b.histories))
		model, operations := boundModel(h.capacity, h.jobs), h.operations()
		switch porcupine.CheckOperationsTimeout(model, operations, patience) {
		case porcupine.Unknown:
			b.unproven = append(b.unproven, h.tenant)
		case porcupine.Illegal:
			_, how := porcupine.CheckOperationsVerbose(model, operations, patience)
			page := filepath.Join(w.dir, h.tenant+".html")
			b.illegal = append(b.illegal, h.tenant+": see "+page+" (-keep)")
			if err := porcupine.VisualizePath(model, how, page); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *boundResults) find(f *findings, w *world) {
	requests, deliveries := w.ledger.entries()
	e := ended{balance: reckon(requests, deliveries)}
	f.info("calls", float64(b.calls), "")
	f.info("departures", float64(b.departures), "")
	f.info("429s", float64(b.full), "")
	f.info("jobs given back by workers too late", float64(b.givenBack), "")
	f.info("histories put aside for those", float64(b.aside), "")
	f.atLeast("histories", float64(len(b.histories)), float64(w.scale.rounds*w.scale.tenants)/2, "")
	f.timed()
	// Else nothing was put to the test.
	f.atLeast("queues filled to their capacity", float64(b.filled), float64(w.scale.rounds*w.scale.tenants)/4,
		"")
	f.none("not linearizable", b.illegal)
	f.none("not decided in time", b.unproven)
	f.none("false 429s", b.falsely)
	f.none("other answers", b.odd)
	f.none("lost", e.Lost)
	f.none("unexpected", e.Unexpected)
	e.twice(f)
}
