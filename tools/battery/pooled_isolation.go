package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
)

// crowded lets the quiet tenants of a pool send alone and beside one with a long backlog, in turns,
// and compares how long their jobs wait: from the admission until they reach the sink.
func crowded(ctx context.Context, w *world, f *findings) error {
	const long = "backlog"
	s := settings{pool: "1000/s", defaults: tenant{rate: "1000/s", capacity: 2_000_000}}
	if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
		return err
	}
	perSecond := w.scale.tenants * 3 / 10
	quiet := func(name string) error {
		w.say("%s: %d jobs a second by %d tenants", name, perSecond, w.scale.tenants)
		return w.submit(ctx, load{
			name: name, jobs: int(w.scale.window.Seconds()) * perSecond, over: w.scale.window, route: poolRoute,
			tenants: spread("quiet", w.scale.tenants), clients: 16, insist: true,
		})
	}
	if err := quiet("warm-0"); err != nil {
		return err
	}
	for turn := range 2 {
		if err := quiet(fmt.Sprint("alone-", turn)); err != nil {
			return err
		}
		if turn == 0 {
			if err := w.pile(ctx, long, poolRoute, w.scale.jobs); err != nil {
				return err
			}
		} else if _, err := w.operate(ctx, w.living("api")[0], "resume", long, ""); err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if err := quiet(fmt.Sprint("beside-", turn)); err != nil {
			return err
		}
		if _, err := w.operate(ctx, w.living("api")[0], "pause", long, ""); err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	t, err := w.operate(ctx, w.living("api")[0], http.MethodGet, long, "")
	if err != nil {
		return err
	}
	late, err := w.quietWaits(ctx, long)
	if err != nil {
		return err
	}
	alone, beside := quantile(late["alone"], 0.99), quantile(late["beside"], 0.99)
	f.info("quiet tenants", float64(w.scale.tenants), "")
	f.atLeast("jobs of the other that wait at the end", float64(t.Depth), float64(w.scale.jobs)/2, "")
	f.info("p50 alone", ms(quantile(late["alone"], 0.5)), "ms")
	f.info("p50 beside", ms(quantile(late["beside"], 0.5)), "ms")
	f.info("p99 alone", ms(alone), "ms")
	f.atMost("p99 beside", ms(beside), max(2*ms(alone), 2), "ms")
	f.timed()
	return nil
}

// pile gives a tenant a backlog on a route. It is not in the ledger.
func (w *world) pile(ctx context.Context, tenant, route string, jobs int) error {
	return w.pileOf(ctx, tenant, jobs, func() wire.Submission {
		return wire.Submission{Type: "battery", Route: route, Payload: json.RawMessage(`"long"`)}
	})
}

// pileOf is pile with jobs made by the given function, which is called for each batch.
func (w *world) pileOf(ctx context.Context, tenant string, jobs int, job func() wire.Submission) error {
	c, err := client.New("http://"+w.api, "", w.web)
	if err != nil {
		return err
	}
	for done := 0; done < jobs; done += wire.MaxBatch {
		w.say("%d of %d jobs of one tenant", done, jobs)
		batch := wire.Batch{
			Atomic: true, Jobs: slices.Repeat([]wire.BatchJob{{Submission: job()}}, min(wire.MaxBatch, jobs-done)),
		}
		results, err := c.SubmitBatch(ctx, tenant, batch)
		if err != nil {
			return err
		}
		if results[0].Job == nil {
			return fmt.Errorf("a batch was not admitted: %s", results[0].Detail)
		}
	}
	return nil
}

// quietWaits is how long the jobs waited of all tenants but one, by the first word of their keys.
func (w *world) quietWaits(ctx context.Context, but string) (map[string][]time.Duration, error) {
	owners, arrived, phase := map[string]string{}, map[string]instant{}, map[string]string{}
	_, deliveries := w.ledger.entries()
	for _, d := range deliveries {
		if d.Tenant != but {
			owners[d.Job], arrived[d.Job] = d.Tenant, d.At
			phase[d.Job], _, _ = strings.Cut(strings.TrimPrefix(d.Body, `{"key":"`), "-")
		}
	}
	jobs, err := w.read(ctx, owners)
	waits := map[string][]time.Duration{}
	for _, j := range jobs {
		waits[phase[j.ID]] = append(waits[phase[j.ID]], arrived[j.ID].since(w.ledger.instantOf(j.Created)))
	}
	return waits, err
}
