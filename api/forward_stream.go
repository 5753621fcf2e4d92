package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// streamIdle is how long a client may take nothing of an answer, where its route does not say.
const streamIdle = 30 * time.Second

// writeStream writes an answer while it comes. If that breaks off, or the client takes too long,
// the connection is cut: half an answer never ends like a whole one.
func (s *Server) writeStream(w http.ResponseWriter, c *call, f *awaited, m httpmsg.Answer) {
	defer f.stream.Close()
	if f.decision.Outcome == "" {
		s.rows.Charge(s.ownerOf(c), comingRows, time.Now())
	}
	h := w.Header()
	m.Truncated = f.stream.Truncated
	bodiless := f.writeHead(h, c, m, true)
	if m.Truncated {
		delete(h, "Content-Length")
	}
	w.WriteHeader(m.Status)
	if bodiless || c.r.Method == http.MethodHead {
		return
	}
	s.writePieces(w, c, f)
	if m.Truncated && f.decision.Outcome == shaper.Admitted {
		panic(http.ErrAbortHandler) // a client that waited gets all or a broken connection
	}
	if t, err := httpmsg.DecodeAnswer(f.stream.Trailers()); err == nil {
		for name, values := range t.Header {
			h[http.TrailerPrefix+name] = values
		}
	}
}

// writePieces writes the body of an answer while it comes, to its end. Otherwise it panics with
// http.ErrAbortHandler. A client that leaves ends the request, unless others may ask for the
// answer.
func (s *Server) writePieces(w http.ResponseWriter, c *call, f *awaited) {
	s.awaiting.Add(1)
	defer s.awaiting.Add(-1)
	idle := streamIdle
	if info := s.cfg.Routes[f.decision.Job.Route].Forward; info != nil {
		idle = cmp.Or(info.Idle, idle)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.client))
	defer cancel()
	// One that only says that it sends no more, as nc -N, gets what comes soon.
	defer context.AfterFunc(c.client, func() { time.AfterFunc(leftPatience, cancel) })()
	control := http.NewResponseController(w)
	waited, began := f.decision.Outcome == shaper.Admitted, false
	unpaid := 0 // bytes that a client has read which did not send the request
	for {
		_ = control.Flush()
		if waited && began {
			s.metrics.firstByte.WithLabelValues(f.decision.Job.Route).Observe(time.Since(f.since).Seconds())
			waited = false
		}
		_ = control.SetWriteDeadline(time.Time{}) // a writer without deadlines, as in tests, returns an error
		piece, err := f.stream.Next(ctx)
		if err == io.EOF {
			deadline.ForAnswer(w, 0)
			return
		}
		if err == nil {
			deadline.Within(w, idle)
			switch _, err = w.Write(piece); err {
			case nil:
				began = true
				if unpaid += len(piece); f.decision.Outcome == "" && unpaid >= budget.FreeBody {
					s.rows.Charge(s.ownerOf(c), unpaid/budget.FreeBody, time.Now())
					unpaid %= budget.FreeBody
				}
			case errKeptAll:
				return
			default:
				cancel()
			}
		}
		if err != nil {
			if ctx.Err() != nil && f.abandoned() {
				s.abandon(f.decision.Job.Tenant, f.decision.Job, f.key)
			}
			panic(http.ErrAbortHandler)
		}
	}
}

// progressEvery is the interval of reports to a client that waits.
const progressEvery = time.Second

// progress tells a client that waits where its request is: by informational answers (102), or by
// comments of server-sent events, which begin the answer.
type progress struct {
	comments bool
	w        http.ResponseWriter
	next     time.Time // of the next report
	position int64     // in the last report
	eta      int64     // in ms
	began    bool      // the answer has
}

// readProgress reads how the client of a forwarded request wants to be told; nil for not at all.
func readProgress(r *http.Request) (*progress, error) {
	values := r.Header[progressHeader]
	if len(values) == 0 {
		return nil, nil
	}
	switch {
	case len(values) == 1 && values[0] == "102":
		if !r.ProtoAtLeast(1, 1) {
			return nil, nil // HTTP/1.0 has no informational answers
		}
		return &progress{}, nil
	case len(values) == 1 && values[0] == "sse":
		accepted := slices.ContainsFunc(r.Header["Accept"], func(v string) bool { return strings.Contains(v, "text/event-stream") })
		if !accepted || r.Method == http.MethodHead {
			return nil, nil
		}
		return &progress{comments: true}, nil
	}
	return nil, problem.InvalidValue(progressHeader, "string", values[0], "must be 102 or sse")
}

// begins reports whether the answer is to begin with comments.
func (p *progress) begins() bool { return p != nil && p.comments }

// begun reports whether the answer has begun with comments.
func (p *progress) begun() bool { return p != nil && p.began }

// showProgress begins to tell the client where its request is, if it waits.
func (f *awaited) showProgress(w http.ResponseWriter, c *call) {
	p := f.shown
	if p == nil || f.wait <= 0 || f.decision.Job.State.Done() {
		f.shown = nil
		return
	}
	p.w = w
	if p.comments {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("Sluice-Job", f.decision.Job.ID)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		p.began = true
	}
	p.tell(f.decision.Job, time.Now())
}

// tell tells the client where its request is, if it has come nearer.
func (p *progress) tell(job queue.Job, now time.Time) {
	p.next = now.Add(progressEvery)
	eta := max(0, job.EstimatedStart.Sub(now).Milliseconds())
	if job.Position == 0 || job.EstimatedStart.IsZero() || p.position > 0 && (job.Position > p.position || eta >= p.eta) {
		return
	}
	p.position, p.eta = job.Position, eta
	position, millis := strconv.FormatInt(job.Position, 10), strconv.FormatInt(eta, 10)
	if p.comments {
		_, _ = io.WriteString(p.w, ": sluice position="+position+" eta_ms="+millis+"\n\n")
		_ = http.NewResponseController(p.w).Flush()
		return
	}
	h := p.w.Header()
	h.Set("Sluice-Position", position)
	h.Set("Sluice-Eta-Ms", millis)
	p.w.WriteHeader(http.StatusProcessing)
	h.Del("Sluice-Position")
	h.Del("Sluice-Eta-Ms")
}

func (p *progress) due(now time.Time) bool { return !now.Before(p.next) }

// writeEvents ends an answer that has begun with comments: by the upstream's events, or by an event
// that has another answer.
func (s *Server) writeEvents(w http.ResponseWriter, c *call, f *awaited, write func(http.ResponseWriter), err error) {
	if m, truncated := f.head(); err == nil && m.Status == http.StatusOK && passesEvents(m.Header) {
		s.errors.worked()
		write(behindComments{w, http.Header{}})
		if truncated { // the header that says so would have come before the comments
			_, _ = io.WriteString(w, "\n\n") // it may have ended in the middle of an event
			writeEvent(w, "error", keptEvent{Status: m.Status, Truncated: true})
		}
		return
	}
	kept := &keptAnswer{header: http.Header{}, status: http.StatusOK}
	if err != nil {
		s.metrics.refusal(s.fail(kept, c.r, hopeless(err)))
	} else {
		s.errors.worked()
		write(kept)
	}
	name := "error"
	if kept.status < http.StatusMultipleChoices {
		name = "answer"
	}
	cut := kept.cut || kept.header.Get("Sluice-Truncated") != ""
	writeEvent(w, name, keptEvent{kept.status, string(kept.body), cut})
}

// head returns the head of the answer that comes or is stored, and whether bytes of it are missing.
func (f *awaited) head() (m httpmsg.Answer, truncated bool) {
	switch {
	case f.stream != nil:
		m, _ = httpmsg.DecodeAnswer(f.stream.Head)
		return m, f.stream.Truncated
	case f.answer != nil:
		m, _ = httpmsg.DecodeAnswer(f.answer.Start)
	}
	return m, m.Truncated
}

// keptEvent is the data of an event that has an answer.
type keptEvent struct {
	Status    int    `json:"status"`
	Body      string `json:"body"`
	Truncated bool   `json:"truncated,omitempty"`
}

func writeEvent(w http.ResponseWriter, name string, event keptEvent) {
	data, _ := json.Marshal(event) // cannot fail
	body := []byte("event: " + name + "\ndata: " + string(data) + "\n\n")
	deadline.ForAnswer(w, len(body))
	if _, err := w.Write(body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// behindComments writes the body of an answer behind comments.
type behindComments struct {
	http.ResponseWriter
	header http.Header // which is not written
}

// Header implements http.ResponseWriter.
func (b behindComments) Header() http.Header { return b.header }

// WriteHeader implements http.ResponseWriter.
func (b behindComments) WriteHeader(int) {}

// Unwrap is for http.ResponseController.
func (b behindComments) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// passesEvents reports whether an answer with these headers has events that may follow comments.
// Compressed ones may not.
func passesEvents(h http.Header) bool { return httpmsg.IsEvents(h) && h["Content-Encoding"] == nil }

// mostKept is how many bytes of an answer become an event: each client holds them in memory.
const mostKept = 64 << 10

// errKeptAll is the error of a write to a keptAnswer that has mostKept bytes.
var errKeptAll = errors.New("api: no more of the answer is kept")

// keptAnswer keeps the beginning of an answer that becomes an event.
type keptAnswer struct {
	header http.Header
	status int
	body   []byte
	cut    bool
}

// Header implements http.ResponseWriter.
func (k *keptAnswer) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *keptAnswer) WriteHeader(status int) { k.status = status }

// Write implements http.ResponseWriter.
func (k *keptAnswer) Write(p []byte) (int, error) {
	n := min(len(p), mostKept-len(k.body))
	k.body = append(k.body, p[:n]...)
	if n < len(p) {
		k.cut = true
		return n, errKeptAll
	}
	return n, nil
}
