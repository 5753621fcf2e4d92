package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	followPause = 100 * time.Millisecond // between two events, so that a busy tenant's arrivals go out together
)

// followArrivals is GET /v1/tenants/{tenant}/arrivals. Unlike a job's stream it has no age limit,
// because arrivals between two streams would be missed.
func (s *Server) followArrivals(c *call) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	query := c.r.URL.Query()
	route := query.Get("route")
	if rule := codec.TextRule(route, 1, wire.MaxTenantBytes); query.Has("route") && rule != "" {
		return nil, problem.Invalid("query.route", "string", rule)
	}
	if rule := s.routeRule(route); query.Has("route") && rule != "" { // of others nothing arrives
		return nil, problem.UnknownRouteAt("query.route", route, rule)
	}
	a := &answer{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {contract.StreamFormat}, "X-Accel-Buffering": {"no"}},
	}
	if c.r.Method == http.MethodHead {
		return a, nil
	}
	f, err := s.arrivals.Follow(name, route)
	if errors.Is(err, figures.ErrTooManyFollowers) {
		return nil, problem.TooManyStreams.With("the process has reached its limit of streams of arrivals").
			RetryIn(5 * time.Second)
	}
	if err != nil {
		return nil, err
	}
	a.stream = func(w http.ResponseWriter) {
		defer f.Stop()
		s.metrics.streams.Inc()
		defer s.metrics.streams.Dec()
		s.sendArrivals(c.client, newEventWriter(w), f, func() bool { return s.stillOperator(c.r) })
	}
	return a, nil
}

// sendArrivals sends arrivals until the client disconnects or loses its permission, or the server
// drains. Then it sends the rest.
func (s *Server) sendArrivals(
	ctx context.Context, out *eventWriter, f *figures.Follower, allowed func() bool,
) {
	defer out.extend() // for the end of the answer
	beat := time.NewTicker(streamBeat)
	defer beat.Stop()
	check := time.NewTicker(streamCheck)
	defer check.Stop()
	if out.beat() != nil { // the headers go out: the client follows from now on
		return
	}
	var buf bytes.Buffer
	for over := false; !over; {
		select {
		case <-f.News():
		case <-check.C:
			if !allowed() {
				return
			}
			continue
		case <-beat.C:
			if out.beat() != nil {
				return
			}
			continue
		case <-s.draining:
			over = true
		case <-ctx.Done():
			return
		}
		came, lost := f.Take()
		if len(came) == 0 {
			continue
		}
		buf.Reset()
		err := codec.Encode(&buf, figures.EncodeArrivals(came, lost))
		if err != nil || out.event(contract.ArrivalsEvent, buf.Bytes()) != nil {
			return
		}
		s.rest(ctx, followPause)
	}
}

// event writes an event without an id; data is one line with its end.
func (e *eventWriter) event(name string, data []byte) error {
	e.buf.WriteString("event: " + name + "\ndata: ")
	e.buf.Write(data)
	e.buf.WriteByte('\n')
	return e.flush()
}

// noteArrival records a submission that the queue has decided on. A replayed one was recorded
// before.
func (s *Server) noteArrival(sub queue.Submission, v queue.Decision) {
	if v.Outcome == shaper.Replayed || v.Outcome == shaper.KeyReused {
		return
	}
	a := figures.Arrival{At: v.Now, Cost: sub.Cost, Route: sub.Route, Admitted: v.Outcome == shaper.Admitted}
	if a.Admitted {
		a.At = shaper.InstantOf(v.Job.Created) // earlier, if the call was sent again
	}
	s.arrivals.Note(sub.Tenant, a)
	s.live.Stir()
}
