package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	freeBody = 16 << 10  // bytes of a body that are taken without asking the budget
	bodyStep = 64 << 10  // bytes of a body that buy it another second, and the unit of the budget
	bodies   = 128 << 20 // bytes of all bodies at once, what is free not counted
)

// errNoRoom is the error of a body that the process has no memory for now.
var errNoRoom = errors.New("api: too many large bodies at once")

// bodyBudget bounds the memory of all bodies that are being read and handled: without it, connections × the largest batch would be a
// way to end the process.
type bodyBudget struct{ held atomic.Int64 }

// take reserves n bytes, if they are there.
func (b *bodyBudget) take(n int64) bool {
	if b.held.Add(n) <= bodies {
		return true
	}
	b.held.Add(-n)
	return false
}

func (b *bodyBudget) give(n int64) { b.held.Add(-n) }

// incoming is the body of a request as it arrives. The server's readTimeout holds for the header and the first bodyStep bytes, from the
// first byte of the request. Each further bodyStep moves the deadline by a second: an honest client may be slow, one that drips gains nothing.
type incoming struct {
	r       io.Reader
	control *http.ResponseController
	budget  *bodyBudget
	start   time.Time
	got     int64 // bytes
	held    int64 // bytes of the budget
	steps   int64 // that the deadline has moved
}

// Read reads on. errNoRoom is its own error.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.got += int64(n)
	for b.got > freeBody+b.held {
		if !b.budget.take(bodyStep) {
			return n, errNoRoom
		}
		b.held += bodyStep
	}
	// Not at the end: from there on the server watches the connection, and a deadline would look like a client that is gone.
	if steps := b.got / bodyStep; err == nil && steps > b.steps {
		b.steps = steps
		end := b.start.Add(readTimeout + time.Duration(steps)*time.Second)
		// What has no deadlines, as in tests, needs none moved.
		_ = b.control.SetReadDeadline(end)
		_ = b.control.SetWriteDeadline(end.Add(answerTimeout))
	}
	return n, err
}

// read reads the whole body within its limit. held is what it has taken of the budget, for the caller to give back, also after an error.
func (b *body) read(w http.ResponseWriter, r *http.Request, budget *bodyBudget) (content []byte, held int64, err error) {
	if r.ContentLength > b.limit {
		// The rest is not worth reading, so the connection cannot be used again.
		w.Header().Set("Connection", "close")
		return nil, 0, tooLargeBody("the body", b.limit)
	}
	empty := r.ContentLength == 0
	if !hasFormat(r.Header, b.formats) && !(empty && b.optional && r.Header.Get("Content-Type") == "") {
		p := unsupportedMedia.with("the Content-Type must be " + b.formats[0])
		p.SupportedFormats = b.formats
		return nil, 0, p
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		// A length is a promise at best: memory follows what has arrived.
		buf.Grow(int(min(r.ContentLength, freeBody)) + bytes.MinRead)
	}
	from := &incoming{r: http.MaxBytesReader(w, r.Body, b.limit), control: http.NewResponseController(w), budget: budget, start: time.Now()}
	_, err = buf.ReadFrom(from)
	return buf.Bytes(), from.held, bodyProblem(w, err)
}

// noBody reads what stands where no body belongs, and forgets it. Left alone it would be read when the answer begins, for a
// stream after the deadline of reading was lifted.
func noBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxSmallBody))
	return bodyProblem(w, err)
}

// bodyProblem is the problem of a body that could not be read, nil if it could. What is left of it is not worth reading.
func bodyProblem(w http.ResponseWriter, err error) error {
	if err == nil {
		return nil
	}
	var size *http.MaxBytesError
	switch {
	case errors.As(err, &size):
		return err
	case errors.Is(err, errNoRoom):
		w.Header().Set("Connection", "close")
		return overloaded.with("too many large bodies are being read; send the same request again, or a smaller one").retry(retryAfterSeconds(time.Second))
	}
	p := unreadableBody.with("the body ended early or came too slowly")
	p.cause = err
	return p
}
