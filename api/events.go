package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

const (
	defaultStreams = 1000                   // event streams of one process at once
	streamLife     = 10 * time.Minute       // then the client opens another one
	streamPoll     = 250 * time.Millisecond // how often the job is read for changes without a signal
	streamCheck    = time.Second            // how often a stream checks its credential
	// streamBeat is the time between two heartbeats; proxies close streams that are silent for a
	// minute.
	streamBeat     = 15 * time.Second
	streamPatience = 10 * time.Second // how long one write may take before the client counts as gone
	streamSetup    = 5 * time.Second  // how long the store may take to begin the watch
	streamRetry    = time.Second      // how soon a client should open the stream again after its end
)

// streamJob is GET /v1/jobs/{id}/events. It refuses what can be refused, before the stream begins.
func (s *Server) streamJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	if err := s.reading(c, watchRows); err != nil {
		return nil, err
	}
	holder := budget.Owner{Tenant: tenant, Address: s.addressOf(c.r)}
	if full := s.streams.Take(holder, 1); full != budget.Unbound {
		return nil, problem.TooManyStreams.With(full.Text("event streams") + "; poll the job instead").
			RetryIn(5 * time.Second)
	}
	release := func() { s.streams.Give(holder, 1) }
	taken := false
	defer func() {
		if !taken {
			release()
		}
	}()
	ctx, f := c.client, newAwaited(s)
	f.end = time.Now().Add(streamSetup)
	if err := f.watch(ctx, id); err != nil {
		return nil, err
	}
	defer func() {
		if !taken {
			f.stop()
		}
	}()
	job, err := s.queue.Job(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	if codec.Job(job).Done && c.r.Header.Get("Last-Event-ID") == eventID(job) {
		return &answer{status: http.StatusNoContent}, nil // after which an EventSource does not reconnect
	}
	a := &answer{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {contract.StreamFormat}, "X-Accel-Buffering": {"no"}},
	}
	if c.r.Method == http.MethodHead {
		return a, nil
	}
	taken = true
	a.stream = func(w http.ResponseWriter) {
		defer release()
		defer f.stop()
		s.metrics.streams.Inc()
		defer s.metrics.streams.Dec()
		show, good := codec.Job, s.stillGood
		if c.operator {
			show = func(j queue.Job) *wire.Job { return shown(c.r, codec.Job(j)).(*wire.Job) }
			good = s.stillOperator
		}
		s.sendStates(ctx, newEventWriter(w), job, f.ended, show, func() bool { return good(c.r) })
	}
	return a, nil
}

// sendStates sends the job, and again after each change of its state. It returns when the job is
// done, the stream reaches its age limit, the client disconnects or loses its permission, or the
// server drains. The watch reports the end at once; other changes are found by polling.
func (s *Server) sendStates(
	ctx context.Context, out *eventWriter, job queue.Job, ended <-chan queue.End,
	show func(queue.Job) *wire.Job, allowed func() bool,
) {
	life := time.NewTimer(streamLife)
	defer life.Stop()
	poll := time.NewTicker(streamPoll)
	defer poll.Stop()
	beat := time.NewTicker(streamBeat)
	defer beat.Stop()
	check := time.NewTicker(streamCheck)
	defer check.Stop()
	defer out.extend() // for the end of the answer
	sent, over := "", false
	for {
		signalled := true
		if id := eventID(job); id != sent {
			if out.send(id, show(job)) != nil {
				return
			}
			sent = id
		}
		if over || codec.Job(job).Done {
			return
		}
		select {
		case end := <-ended:
			if end.Part() {
				continue
			}
		case <-poll.C:
			signalled = false
		case <-s.draining:
			over = true
		case <-life.C:
			over = true
		case <-ctx.Done():
			return
		}
		select {
		case <-check.C:
			if !allowed() {
				return
			}
		default:
		}
		select {
		case <-beat.C:
			if out.beat() != nil {
				return
			}
		default:
		}
		if !signalled && s.rows.Take(budget.Owner{Tenant: job.Tenant}, time.Now()) > 0 {
			continue // the tenant reads too much: the next poll may find the change
		}
		switch now, err := s.queue.Job(ctx, job.Tenant, job.ID); {
		case err == nil:
			job = now
		case errors.Is(err, queue.ErrUnavailable): // it may recover, and then the client has missed nothing
		default:
			if ctx.Err() == nil && !errors.Is(err, queue.ErrNotFound) {
				s.log.Warn("event stream ended", "job", job.ID, "error", err)
			}
			return
		}
	}
}

// eventID names the state of a job: another state, attempt, departure, due time or end has another
// id. Another position in the queue has not.
func eventID(j queue.Job) string {
	id := []byte("0")
	if j.State != 0 {
		id = []byte(j.State.String())
	}
	id = strconv.AppendInt(append(id, '-'), int64(j.Attempts), 10)
	for _, t := range []time.Time{j.Scheduled, j.Started, j.Finished} {
		id = append(id, '-')
		if !t.IsZero() {
			id = strconv.AppendInt(id, t.UnixMicro(), 36)
		}
	}
	return string(id)
}

// eventWriter writes server-sent events to a client that may be slow or gone. The deadline of an
// ordinary answer does not fit a stream, so each write has its own.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

// newEventWriter begins the stream; the first event goes out with the delay for reconnects.
func newEventWriter(w http.ResponseWriter) *eventWriter {
	e := &eventWriter{w: w, control: http.NewResponseController(w)}
	// Without a read deadline: net/http would take it for a disconnect. A writer without deadlines
	// returns an error, which does not matter.
	_ = e.control.SetReadDeadline(time.Time{})
	e.buf.WriteString("retry: " + strconv.FormatInt(streamRetry.Milliseconds(), 10) + "\n\n")
	return e
}

// send writes the job as a state event.
func (e *eventWriter) send(id string, job *wire.Job) error {
	e.buf.WriteString("id: " + id + "\nevent: " + contract.StateEvent + "\ndata: ")
	if err := codec.Encode(&e.buf, job); err != nil {
		return err
	}
	e.buf.WriteByte('\n')
	return e.flush()
}

// add appends an event without an id to the next flush.
func (e *eventWriter) add(name string, data any) error {
	e.buf.WriteString("event: " + name + "\ndata: ")
	if err := codec.Encode(&e.buf, data); err != nil {
		return err
	}
	return e.buf.WriteByte('\n')
}

// beat writes a comment, which clients skip.
func (e *eventWriter) beat() error {
	e.buf.WriteString(": alive\n\n")
	return e.flush()
}

// extend sets the deadline of the next write.
func (e *eventWriter) extend() { _ = e.control.SetWriteDeadline(time.Now().Add(streamPatience)) }

func (e *eventWriter) flush() error {
	e.extend()
	if _, err := e.buf.WriteTo(e.w); err != nil {
		return err
	}
	return e.control.Flush()
}
