package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
)

// relays is the part of the queue that passes answers on while they come.
type relays interface {
	Relay(ctx context.Context, l queue.LeaseRef, tenant string, head []byte, most int, keep time.Duration) (*queue.Relay, error)
	OnLeave(id string, f func()) (stop func())
}

// Values of Forward.Stream: which answers are passed on while they come.
const (
	StreamAuto   = "auto"   // events, and those that are not complete soon after their headers
	StreamAlways = "always" // all
	StreamNever  = "never"  // none
)

const (
	// soon is how long an answer may take from its headers to its end to be read whole; sooner, for
	// one that does not say how long it is.
	soon, sooner = 50 * time.Millisecond, 5 * time.Millisecond
	// wholeMost bounds the bytes of a route's answers that are read whole at once. Beyond it an
	// answer is passed on sooner, and then read no faster than the store or its client takes it: to
	// read more would take the processors from the polls.
	wholeMost = 8 << 20
	// pieceSize is how many bytes are read at once, once a read has filled smallPiece of them.
	pieceSize, smallPiece = 16 << 10, 1 << 10
)

// Why an answer that is passed on ends before its end.
var (
	errLeft  = errors.New("the client left")
	errIdle  = errors.New("nothing came for idle_timeout")
	errSlow  = errors.New("the client took nothing for idle_timeout")
	errLong  = errors.New("it took longer than max_duration")
	errLost  = errors.New("the lease ended")
	errLarge = errors.New("the answer has more than")
)

// mayStream reports whether an answer may be passed on while it comes.
func (d *forwarder) mayStream(l *queue.Lease, m httpmsg.Request, a *outbound.Answer) bool {
	if d.route.Forward.Stream == StreamNever || m.Method == http.MethodHead ||
		a.StatusCode == http.StatusNoContent || a.StatusCode == http.StatusNotModified {
		return false
	}
	_, refused := d.refusal(l, m, a.Response)
	return !refused
}

// patience is how long an answer may take to be complete before it is passed on. whole is how many
// bytes of such answers there are with this one.
func (d *forwarder) patience(resp *http.Response, whole int64) time.Duration {
	switch {
	case d.route.Forward.Stream == StreamAlways, httpmsg.IsEvents(resp.Header), resp.ContentLength > d.route.Forward.MaxAnswer:
		return 0
	case resp.ContentLength < 0, whole > wholeMost:
		return sooner
	}
	return soon
}

// hasEvents reports whether the cost is in the events of an answer.
func (d *forwarder) hasEvents(resp *http.Response) bool {
	return strings.HasPrefix(d.route.CostFrom, "/") && httpmsg.IsEvents(resp.Header)
}

// reading reads a body.
type reading struct {
	body    io.Reader
	buffers [2][]byte
	next    int // of buffers
	size    int // of the next read
}

// piece returns the next bytes of the body, and perhaps an error beside them; io.EOF at the end.
// The call after the next one overwrites them.
func (r *reading) piece() ([]byte, error) {
	buffer := &r.buffers[r.next]
	r.next = 1 - r.next
	if len(*buffer) < r.size {
		*buffer = make([]byte, r.size)
	}
	n, err := r.body.Read(*buffer)
	if n == r.size {
		r.size = pieceSize
	}
	return (*buffer)[:n], err
}

// pump reads a body in a goroutine of its own. pieces is closed at its end; err is set then.
type pump struct {
	pieces chan []byte
	err    error
}

func pumpFrom(body *reading, stop <-chan struct{}) (p *pump, wait func()) {
	p = &pump{pieces: make(chan []byte)}
	var running sync.WaitGroup
	running.Go(func() {
		defer close(p.pieces)
		for p.err == nil {
			var piece []byte
			piece, p.err = body.piece()
			if len(piece) == 0 {
				continue
			}
			select {
			case p.pieces <- piece:
			case <-stop:
				p.err = context.Canceled
			}
			runtime.Gosched() // two goroutines that hand pieces on would keep their processor for 10 ms
		}
	})
	return p, running.Wait
}

// piece returns the next bytes of the body, as reading does.
func (p *pump) piece() ([]byte, error) {
	if piece, more := <-p.pieces; more {
		return piece, nil
	}
	return nil, p.err
}

// stream passes an answer on while it comes, unless it is complete soon. From its first byte on the
// request is not sent again: an answer that breaks off ends it.
func (d *forwarder) stream(
	ctx context.Context, end context.CancelCauseFunc, l *queue.Lease, m httpmsg.Request, a *outbound.Answer,
	departed time.Time,
) queue.Settlement {
	resp, f := a.Response, d.route.Forward
	if f.FailLarge && resp.ContentLength > f.MaxAnswer {
		return d.tooLarge(l, resp.StatusCode)
	}
	wait := func() {}
	defer func() { // first the request ends, and so the reading
		end(nil)
		a.Close()
		wait()
	}()
	bytes := max(0, resp.ContentLength)
	passes := sync.OnceFunc(func() { d.streams.whole.Add(-bytes) })
	defer passes()
	from := &reading{body: resp.Body, size: smallPiece}
	next := from.piece
	var p *pump
	var late <-chan time.Time
	if patience := d.patience(resp, d.streams.whole.Add(bytes)); patience > 0 {
		late = time.After(patience)
		p, wait = pumpFrom(from, ctx.Done())
		next = p.piece
	}
	var body []byte
	for late != nil {
		select {
		case piece, more := <-p.pieces:
			if !more && p.err != io.EOF {
				return d.unanswered(ctx, l, m, a.BrokeOff(p.err))
			}
			if !more {
				return d.answered(l, m, resp, body, false)
			}
			if body = append(body, piece...); int64(len(body)) > f.MaxAnswer {
				late = nil
			}
		case <-late:
			late = nil
		}
	}
	if f.FailLarge && int64(len(body)) > f.MaxAnswer {
		return d.tooLarge(l, resp.StatusCode)
	}
	passes()
	answering(ctx)
	d.streams.firstByte.Observe(time.Since(departed).Seconds())
	return d.relay(ctx, end, l, m, a, body, next)
}

// relay passes an answer on that has begun with body, and goes on with what next returns.
func (d *forwarder) relay(
	ctx context.Context, end context.CancelCauseFunc, l *queue.Lease, m httpmsg.Request, a *outbound.Answer, body []byte,
	next func() ([]byte, error),
) queue.Settlement {
	a.Within(0) // began bounds what follows
	resp, f := a.Response, d.route.Forward
	head := httpmsg.Answer{Status: resp.StatusCode, Header: httpmsg.ToClient(resp.Header)}
	if resp.ContentLength >= 0 {
		head.Header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	defer time.AfterFunc(f.MaxDuration, func() { end(errLong) }).Stop()
	began, cancel := context.WithTimeout(ctx, d.route.IdleTimeout)
	r, err := d.relays.Relay(began, l.LeaseRef, l.Tenant, head.Encode(), int(f.MaxAnswer), f.MaxDuration)
	cancel()
	if err != nil {
		s := d.failed(l, queue.JobError{Message: brokeOff(0), Detail: err.Error(), Status: resp.StatusCode})
		s.Relayed = true
		return s
	}
	defer d.streams.begin(l.ID)()
	var storing sync.WaitGroup
	storing.Go(func() { r.Run(ctx, func() { end(errLost) }) })
	defer storing.Wait()
	var events *eventCost
	if d.hasEvents(resp) {
		events = newEventCost(d.route.CostFrom)
	}
	err = d.pass(ctx, r, a, body, next, events)
	if err == nil {
		err = d.endRelay(ctx, r, resp)
	}
	kept, total, cut := r.Stored()
	d.streams.bytes.Add(total)
	if err != nil {
		d.streams.broken[brokenBy(context.Cause(ctx), err)].Add(1)
		limited, cancel := context.WithTimeout(ctx, time.Second)
		r.Drain(limited) // the client gets what came
		cancel()
		r.Break()
		why, broke := err.Error(), bodyError{}
		switch cause := context.Cause(ctx); {
		case cause == context.Canceled:
			why = "the worker stopped"
		case cause != nil:
			why = cause.Error()
		case errors.As(err, &broke):
			why = a.BrokeOff(broke.error).Error()
		}
		end(err)
		s := d.failed(l, queue.JobError{Message: brokeOff(total), Detail: why, Status: resp.StatusCode})
		s.Relayed, s.Left = true, context.Cause(ctx) == errLeft
		if events != nil {
			s.ActualCost = d.costs.ofEvents(d.route, l, resp.StatusCode, events)
		}
		return s
	}
	var cost *int64
	if events != nil {
		cost = d.costs.ofEvents(d.route, l, resp.StatusCode, events)
	} else {
		cost = d.costIn(l, resp, r.Body())
	}
	s := d.settlement(l, m, resp, kept, cut)
	s.ActualCost, s.Relayed = cost, true
	return s
}

// brokeOff is the message of an answer that broke off.
func brokeOff(bytes int64) string { return fmt.Sprintf("the answer broke off after %d bytes", bytes) }

// pass passes on what comes.
func (d *forwarder) pass(
	ctx context.Context, r *queue.Relay, a *outbound.Answer, body []byte, next func() ([]byte, error), events *eventCost,
) error {
	total := int64(0)
	for err := error(nil); ; {
		if len(body) > 0 {
			if events != nil {
				events.Write(body)
			}
			if total += int64(len(body)); d.route.Forward.FailLarge && total > d.route.Forward.MaxAnswer {
				return fmt.Errorf("%w %d bytes", errLarge, d.route.Forward.MaxAnswer)
			}
			if err := d.write(ctx, r, body); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && a.TimedOut():
			return errIdle
		case err != nil:
			return bodyError{err}
		}
		a.Within(d.route.IdleTimeout)
		body, err = next()
		a.Within(0)
	}
}

// bodyError is why the body of an upstream's answer has ended before its end.
type bodyError struct{ error }

// write passes a piece on, and waits for slow readers for a while.
func (d *forwarder) write(ctx context.Context, r *queue.Relay, piece []byte) error {
	if !r.Behind() {
		return r.Write(ctx, piece)
	}
	limited, cancel := context.WithTimeout(ctx, d.route.IdleTimeout)
	defer cancel()
	err := r.Write(limited, piece)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return errSlow
	}
	return err
}

// endRelay ends an answer that came whole.
func (d *forwarder) endRelay(ctx context.Context, r *queue.Relay, resp *http.Response) error {
	var trailers []byte
	if t := httpmsg.Trailers(resp.Trailer, resp.Header); len(t) > 0 {
		trailers = httpmsg.Answer{Status: http.StatusOK, Header: t}.Encode()
	}
	limited, cancel := context.WithTimeout(ctx, d.route.IdleTimeout)
	defer cancel()
	return r.End(limited, trailers)
}

// answeringKey is the key of the context value that answering calls.
type answeringKey struct{}

// answering says that the upstream answers: a delivery that takes long is not slow.
func answering(ctx context.Context) {
	if f, ok := ctx.Value(answeringKey{}).(func()); ok {
		f()
	}
}
