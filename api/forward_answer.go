package api

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// abandon ends a request whose client has left, unless a key will ask for its answer.
func (s *Server) abandon(tenant string, job queue.Job, key string) {
	if key != "" || job.State.Done() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
	defer cancel()
	if job.State == shaper.Leased {
		if s.queue.Leave(ctx, job.ID) == nil {
			s.metrics.abandoned.Inc()
		}
		return
	}
	if _, err := s.queue.Cancel(ctx, tenant, job.ID); err == nil {
		s.metrics.abandoned.Inc()
	}
}

// getAnswer is GET /v1/jobs/{id}/response.
func (s *Server) getAnswer(c *call) (*answer, error) {
	_, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	if err := s.reading(c, 1); err != nil {
		return nil, err
	}
	f := newAwaited(s)
	if err := s.expect(c, id, f); err != nil {
		return nil, err
	}
	if f.prefer.Wait > 0 {
		s.rows.Charge(s.ownerOf(c), watchRows-1, time.Now())
	}
	if err := f.awaitAnswer(c.client); err != nil {
		return nil, err
	}
	write, err := s.answerTo(c, f, func(*answer) {})
	if err != nil {
		return nil, err
	}
	return &answer{raw: write}, nil
}

// answerTo returns what writes the answer to a forwarded request: the upstream's, or 202 with the
// job, which accepted completes.
func (s *Server) answerTo(c *call, f *awaited, accepted func(*answer)) (func(http.ResponseWriter), error) {
	job, prefer := f.decision.Job, f.prefer
	if f.stream != nil {
		m, err := httpmsg.DecodeAnswer(f.stream.Head)
		if err != nil {
			f.stream.Close()
			return nil, err
		}
		return func(w http.ResponseWriter) { s.writeStream(w, c, f, m) }, nil
	}
	if f.answer != nil {
		if err := s.readHead(c, f.answer); err != nil {
			return nil, err
		}
		m, err := httpmsg.DecodeAnswer(f.answer.Start)
		if err != nil {
			return nil, err
		}
		out, err := s.startAnswer(c, f, len(m.Body))
		if err == nil {
			return func(w http.ResponseWriter) { s.writeAnswer(w, c, f, m, out) }, nil
		}
		if f.decision.Outcome == "" { // the client may send this request again, but not a forwarded one
			return nil, err
		}
	}
	if f.answer != nil || !job.State.Done() {
		if f.atEnd > http.StatusAccepted && !prefer.Given {
			return nil, s.pending(f)
		}
		a := &answer{status: http.StatusAccepted, body: codec.Job(job)}
		a.set("Location", "/v1/jobs/"+job.ID+"/response").set("Sluice-Job", job.ID)
		if prefer.Given {
			a.set("Preference-Applied", prefer.Applied())
		}
		accepted(a)
		return func(w http.ResponseWriter) { _ = a.write(w, s, c) }, nil // always small
	}
	return nil, unanswered(job)
}

// pending is the problem of a request that has no answer yet. It says where the answer will be.
func (s *Server) pending(f *awaited) error {
	job := f.decision.Job
	p := problem.AnswerPending.With("the request is stored and will be sent: its answer will be at Location")
	p.Status = f.atEnd
	if f.drain == nil {
		p = problem.ShuttingDown.With("the request is stored, and another instance will serve it: its answer will be at Location")
	}
	wait := time.Second
	if !job.EstimatedStart.IsZero() {
		wait = min(max(wait, time.Until(job.EstimatedStart)), time.Minute)
	}
	return p.SetHeader("Location", "/v1/jobs/"+job.ID+"/response").SetHeader("Sluice-Job", job.ID).RetryIn(wait)
}

// unanswered is the problem of a request that ended without an answer.
func unanswered(job queue.Job) error {
	var p *problem.Problem
	switch {
	case job.State == shaper.Dead && job.LastError != nil && job.LastError.Timeout:
		p = problem.LateAnswer.With(job.LastError.Message)
	case job.State == shaper.Dead && job.LastError != nil:
		p = problem.NoAnswer.With(job.LastError.Message)
	case job.State == shaper.Dead:
		p = problem.NoAnswer.With("all attempts have failed")
	case job.State == shaper.Expired:
		p = problem.HopelessWait.With("the request waited longer than its max wait, and was not sent")
	case job.State == shaper.Cancelled:
		p = problem.JobGone.With("the request was cancelled, and was not sent")
	default:
		p = problem.JobGone.With("the job has no answer: it was no forwarded request")
	}
	return p.SetHeader("Sluice-Job", job.ID)
}

// readHead reads the start of an answer on to the end of its headers.
func (s *Server) readHead(c *call, a *queue.Answer) error {
	for len(a.Start) < a.Size && !bytes.Contains(a.Start, []byte("\r\n\r\n")) {
		piece, err := s.readPiece(c, a, len(a.Start))
		if err != nil {
			return err
		}
		a.Start = append(a.Start[:len(a.Start):len(a.Start)], piece...)
	}
	return nil
}

// readPiece reads the next piece of a stored answer from the store, when it is its turn.
func (s *Server) readPiece(c *call, a *queue.Answer, at int) ([]byte, error) {
	leave, err := s.gate.Enter(c.client, s.ownerOf(c), piecePatience)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.Read(c.client, at, budget.Piece)
}

// piecePatience is how long a piece of an answer waits until those of the same tenant or address
// were read.
const piecePatience = 30 * time.Second

// startAnswer reserves the memory of an answer, before more of it is read than its start with this
// part of the body. The work of reading it is charged to the client where it only reads.
func (s *Server) startAnswer(c *call, f *awaited, started int) (*budget.Outgoing, error) {
	rest := f.answer.Size - len(f.answer.Start)
	if c.r.Method == http.MethodHead {
		return nil, nil
	}
	if f.decision.Outcome == "" {
		s.rows.Charge(s.ownerOf(c), rest/budget.FreeBody, time.Now())
	}
	return s.answers.Begin(s.ownerOf(c), max(started, min(rest, budget.Piece)), started+rest)
}

// writeAnswer writes the upstream's answer as it was, without headers that are Sluice's own. What
// the start does not have is read in pieces as the client takes them. If that fails, the connection
// is cut: half an answer never ends like a whole one.
func (s *Server) writeAnswer(w http.ResponseWriter, c *call, f *awaited, m httpmsg.Answer, out *budget.Outgoing) {
	defer out.End()
	a := f.answer
	size := len(m.Body) + a.Size - len(a.Start)
	h := w.Header()
	bodiless := f.writeHead(h, c, m, size > 0)
	if !bodiless && c.r.Method != http.MethodHead { // the answer to a HEAD may be read later by a GET
		h["Content-Length"] = []string{strconv.Itoa(size)}
	}
	deadline.ForAnswer(w, size)
	out.To(w)
	out.Step(0)
	w.WriteHeader(m.Status)
	if bodiless || c.r.Method == http.MethodHead {
		return
	}
	at, piece := len(a.Start), m.Body
	a.Start, m.Body = nil, nil // only one piece stays in memory
	for {
		if _, err := w.Write(piece); err != nil {
			panic(http.ErrAbortHandler) // the client may be gone
		}
		if at == a.Size {
			return
		}
		var err error
		if piece = nil; !out.Step(at) {
			panic(http.ErrAbortHandler)
		}
		if piece, err = s.readPiece(c, a, at); err != nil {
			panic(http.ErrAbortHandler)
		}
		at += len(piece)
	}
}

// writeHead writes the headers of the upstream's answer, without those that are Sluice's own, and
// reports whether it has no body.
func (f *awaited) writeHead(h http.Header, c *call, m httpmsg.Answer, hasBody bool) (bodiless bool) {
	job := f.decision.Job
	clear(h)
	bodiless = m.Status == http.StatusNoContent || m.Status == http.StatusNotModified
	clientHeaders(h, m.Header, c.r, f.own, hasBody && !bodiless)
	if length := m.Header["Content-Length"]; length != nil { // to a HEAD, or of an answer that comes
		h["Content-Length"] = length
	}
	if f.decision.Outcome == shaper.Replayed {
		h.Set(replayedHeader, "true")
	}
	h.Set("Sluice-Job", job.ID)
	h.Set("Sluice-Waited-Ms", strconv.FormatInt(max(0, job.Started.Sub(job.Created).Milliseconds()), 10))
	if m.Truncated {
		h.Set("Sluice-Truncated", "true")
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http must not guess one
	}
	return bodiless
}
