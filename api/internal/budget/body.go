package budget

import (
	"bytes"
	"container/list"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
)

const (
	// FreeBody is the number of bytes of each body that do not count in the budget.
	FreeBody = 16 << 10
	// MaxBodies is the budget: the bytes of all bodies at once, without their free parts.
	MaxBodies = 128 << 20

	// bodyStall bounds the time for the next deadline.BodyStep of a body, however fast the former
	// ones came.
	bodyStall = 5 * time.Second
	// BodyYield is the time without a deadline.BodyStep after which a body may be evicted for
	// another.
	BodyYield = time.Second
)

// maxIgnoredBody is the largest body that an operation without one reads and ignores, in bytes.
const maxIgnoredBody = 64 << 10

// errFull is the error of a body that exceeds the budget.
type errFull struct{ full Bound }

func (e errFull) Error() string { return "api: " + e.full.Text("bytes of large bodies") }

// errEvicted is the error of a slow body that was evicted for another.
var errEvicted = errors.New("api: a slow body was evicted for another one")

// Bodies bounds the memory of all bodies that are being read and handled. Without it, the largest
// batch on every connection would exhaust the memory of the process.
//
// A stalled body keeps its memory only while no other needs it: when the budget is used up, the
// body without progress for the longest time is evicted. A body that arrives at deadline.BodyStep
// per BodyYield or faster is never evicted.
type Bodies struct {
	Shares
	Arriving *list.List // of *incoming that hold something; the longest without progress first
	evicted  prometheus.Counter
}

// NewBodies returns a budget of MaxBodies bytes in which one tenant and one address get these
// shares. evicted counts the bodies that were evicted.
func NewBodies(tenant, address Percent, evicted prometheus.Counter) *Bodies {
	return &Bodies{Shares: NewShares(MaxBodies, tenant, address), Arriving: list.New(), evicted: evicted}
}

// incoming is the body of a request as it arrives. The server's deadline.ReadTimeout holds for the
// header and the first deadline.BodyStep bytes, from the first byte of the request. Each further
// deadline.BodyStep moves the deadline by a second, but never beyond bodyStall from now. So a slow
// client may finish, but one that drips or falls silent may not.
type incoming struct {
	r       io.Reader
	control *http.ResponseController
	budget  *Bodies
	start   time.Time
	got     int64 // bytes
	steps   int64 // by which the deadline has moved

	// Guarded by the budget's lock.
	owner   Owner
	held    int64         // bytes of the budget
	last    time.Time     // when it took its last step
	element *list.Element // in budget.arriving; nil while it holds nothing, and once it has arrived
	evicted bool
}

// Read reads the next part.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.got += int64(n)
	for b.got > FreeBody+b.held {
		if full := b.step(); full != nil {
			return n, full
		}
	}
	// Not at the end: from there on the server watches the connection, and would take a deadline
	// for a disconnect.
	if steps := b.got / deadline.BodyStep; err == nil && steps > b.steps {
		b.steps = steps
		b.extend()
	}
	if err != nil && b.isEvicted() {
		return n, errEvicted
	}
	return n, err
}

// step takes the next deadline.BodyStep of the budget, if need be from stalled bodies.
func (b *incoming) step() error {
	budget := b.budget
	budget.mu.Lock()
	defer budget.mu.Unlock()
	if b.evicted {
		return errEvicted
	}
	now := time.Now()
	for {
		full := budget.full(b.owner, deadline.BodyStep)
		if full == Unbound {
			break
		}
		if !budget.evict(b, full, now) {
			return errFull{full}
		}
	}
	budget.add(b.owner, deadline.BodyStep)
	b.held += deadline.BodyStep
	b.last = now
	if b.element == nil {
		b.element = budget.Arriving.PushBack(b)
	} else {
		budget.Arriving.MoveToBack(b.element)
	}
	return nil
}

// evict ends the body without progress for the longest time, among those that count in the bound.
// It returns false if none has stalled. The budget is free at once, the memory soon after. The lock
// is held.
func (budget *Bodies) evict(asking *incoming, full Bound, now time.Time) bool {
	for e := budget.Arriving.Front(); e != nil; e = e.Next() {
		b := e.Value.(*incoming)
		switch {
		case now.Sub(b.last) < BodyYield:
			return false // nor has any after it
		case b == asking, full == ofTenant && b.owner.Tenant != asking.owner.Tenant,
			full == ofAddress && b.owner.Address != asking.owner.Address:
			continue
		}
		b.evicted = true
		budget.release(b)
		// The deadline ends its Read. A body without deadlines, as in tests, fails at its next
		// step.
		_ = b.control.SetReadDeadline(now)
		budget.evicted.Inc()
		return true
	}
	return false
}

// release returns the body's part of the budget. The lock is held.
func (budget *Bodies) release(b *incoming) {
	budget.add(b.owner, -b.held)
	b.held = 0
	budget.settle(b)
}

// settle makes the body safe from eviction. The lock is held.
func (budget *Bodies) settle(b *incoming) {
	if b.element != nil {
		budget.Arriving.Remove(b.element)
		b.element = nil
	}
}

// extend moves the deadlines of a body that has made progress.
func (b *incoming) extend() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	if b.evicted { // its deadline is final
		return
	}
	end := b.start.Add(deadline.ReadTimeout + time.Duration(b.steps)*time.Second)
	if stall := time.Now().Add(bodyStall); stall.Before(end) {
		end = stall
	}
	// A writer without deadlines, as in tests, returns an error.
	_ = b.control.SetReadDeadline(end)
	_ = b.control.SetWriteDeadline(end.Add(deadline.AnswerTimeout))
}

func (b *incoming) isEvicted() bool {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	return b.evicted
}

// arrived ends the reading: the body keeps its part of the budget and cannot be evicted.
func (b *incoming) arrived() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.budget.settle(b)
}

// done returns the body's part of the budget, at the first call.
func (b *incoming) done() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.budget.release(b)
}

// Spec is what an operation accepts as a body. The zero value accepts nothing.
type Spec struct {
	Formats  []string // media types
	Optional bool     // an empty body is accepted
	Limit    int64    // bytes
}

// Read reads the whole body of a request. The caller must call done, also after an error, once it
// no longer needs the content. of returns the owner; it is only called for large bodies. The error
// is a *problem.Problem or wraps *http.MaxBytesError; problem.Of maps both.
func (budget *Bodies) Read(w http.ResponseWriter, r *http.Request, b Spec, of func() Owner) (
	content []byte, done func(), err error,
) {
	nothing := func() {}
	if r.ContentLength > b.Limit {
		// The rest is not read, so the connection cannot be used again.
		w.Header().Set("Connection", "close")
		return nil, nothing, problem.TooLargeBody("the body", b.Limit)
	}
	empty := r.ContentLength == 0
	if !hasFormat(r.Header, b.Formats) && !(empty && b.Optional && r.Header.Get("Content-Type") == "") {
		p := problem.UnsupportedMedia.With("the Content-Type must be " + b.Formats[0])
		p.SupportedFormats = b.Formats
		return nil, nothing, p
	}
	return budget.ReadAny(w, r, b.Limit, of)
}

// ReadAny is Read for a body of at most limit bytes, of any format.
func (budget *Bodies) ReadAny(w http.ResponseWriter, r *http.Request, limit int64, of func() Owner) (
	content []byte, done func(), err error,
) {
	nothing := func() {}
	if r.ContentLength > limit {
		// The rest is not read, so the connection cannot be used again.
		w.Header().Set("Connection", "close")
		return nil, nothing, problem.TooLargeBody("the body", limit)
	}
	limited := http.MaxBytesReader(w, r.Body, limit)
	if r.ContentLength >= 0 && r.ContentLength <= FreeBody { // free of the budget
		var buf bytes.Buffer
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
		_, err = buf.ReadFrom(limited)
		return buf.Bytes(), nothing, bodyProblem(w, err)
	}
	from := &incoming{
		r: limited, control: http.NewResponseController(w), budget: budget, start: time.Now(), owner: of(),
	}
	content, err = readPieces(from)
	from.arrived()
	return content, from.done, bodyProblem(w, err)
}

// pieces holds *[deadline.BodyStep]byte.
var pieces = sync.Pool{New: func() any { return new([deadline.BodyStep]byte) }}

// readPieces is io.ReadAll in pieces that are used again. A body's length may be a lie, so its
// memory grows with what arrives. Larger and larger buffers take several times the body in all,
// and copying one into new memory stops the whole process, if a garbage collection waits for it.
// It buys: beside 16 clients with bodies of 8 MiB, 95 % of the other submissions take 20 ms, and
// not 250.
//
// The pieces are those by which a body takes from the budget.
func readPieces(r io.Reader) (content []byte, err error) {
	first := make([]byte, FreeBody+1) // so each piece is taken after its part of the budget
	size, err := fill(first, r)
	var more []*[deadline.BodyStep]byte
	for err == nil {
		piece, n := pieces.Get().(*[deadline.BodyStep]byte), 0
		n, err = fill(piece[:], r)
		more, size = append(more, piece), size+n
	}
	if err == io.EOF {
		err, content = nil, append(make([]byte, 0, size), first[:min(len(first), size)]...)
	}
	for _, piece := range more {
		if err == nil {
			content = append(content, piece[:min(len(piece), size-len(content))]...)
		}
		pieces.Put(piece)
	}
	return content, err
}

// fill is io.ReadFull with io.EOF for an end in between, so that a body that broke off differs.
func fill(to []byte, r io.Reader) (n int, err error) {
	for n < len(to) && err == nil {
		var more int
		more, err = r.Read(to[n:])
		n += more
	}
	return n, err
}

// IgnoreBody reads and drops the body of a request that should have none. Unread, it would be read
// when the answer begins, which for a stream is after the end of the read deadline.
func IgnoreBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxIgnoredBody))
	return bodyProblem(w, err)
}

// bodyProblem is the problem of a body that could not be read, nil if it could. The rest of the
// body is not read.
func bodyProblem(w http.ResponseWriter, err error) error {
	if err == nil {
		return nil
	}
	var size *http.MaxBytesError
	var over errFull
	switch {
	case errors.As(err, &size):
		return err
	case errors.As(err, &over):
		w.Header().Set("Connection", "close")
		return problem.Overloaded.With(over.full.Text("bytes of large bodies") +
			"; send the same request again, or a smaller one").
			Retry(problem.RetryAfter(time.Second))
	case errors.Is(err, errEvicted):
		w.Header().Set("Connection", "close")
		return problem.Overloaded.With("the body came too slowly while others needed its memory; " +
			"send the same request again").
			Retry(problem.RetryAfter(time.Second))
	}
	p := problem.UnreadableBody.With("the body ended early or came too slowly")
	p.Cause = err
	return p
}

// hasFormat reports whether the Content-Type is one of the formats. A body without one is refused:
// a browser may send that across sites without asking.
func hasFormat(h http.Header, formats []string) bool {
	value := h.Get("Content-Type")
	for _, f := range formats {
		if value == f {
			return true
		}
	}
	media, _, err := mime.ParseMediaType(value)
	return err == nil && slices.Contains(formats, media)
}
