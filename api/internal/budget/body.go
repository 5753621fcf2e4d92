package budget

import (
	"bytes"
	"container/list"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/internal/deadline"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/internal/ratelimit"
)

const (
	FreeBody  = 16 << 10  // bytes of a body that are taken without asking the budget
	MaxBodies = 128 << 20 // bytes of all bodies at once, what is free not counted

	// bodyStall is how long the next deadline.BodyStep of a body may take, however fast the former
	// ones came.
	bodyStall = 5 * time.Second
	// BodyYield is after how long without a deadline.BodyStep a body gives its place to another
	// one.
	BodyYield = time.Second
)

// maxIgnoredBody is the largest body that an operation without one reads and ignores, in bytes.
const maxIgnoredBody = 64 << 10

// errNoRoom is the error of a body that the process has no memory for now.
type errNoRoom struct{ full Bound }

func (e errNoRoom) Error() string { return "api: " + e.full.Text("bytes of large bodies") }

// errEvicted is the error of a body that came too slowly while others needed its place.
var errEvicted = errors.New("api: a slow body made room for another one")

// Bodies bounds the memory of all bodies that are being read and handled. Without it, connections ×
// the largest batch would be a way to end the process.
//
// A body that has stalled holds its place only while nobody else needs it: where there is no room,
// the one that has been without progress the longest is evicted. One that arrives at
// deadline.BodyStep per BodyYield or faster is never evicted.
type Bodies struct {
	Shares
	Arriving *list.List // of *incoming that hold something; the longest without progress first
	evicted  prometheus.Counter
}

func NewBodies(tenant, address Percent, evicted prometheus.Counter) *Bodies {
	return &Bodies{Shares: NewShares(MaxBodies, tenant, address), Arriving: list.New(), evicted: evicted}
}

// incoming is the body of a request as it arrives. The server's deadline.ReadTimeout holds for the
// header and the first deadline.BodyStep bytes, from the first byte of the request. Each further
// deadline.BodyStep moves the deadline by a second, but never beyond bodyStall from now: an honest
// client may be slow, one that drips or falls silent gains nothing.
type incoming struct {
	r       io.Reader
	control *http.ResponseController
	budget  *Bodies
	start   time.Time
	got     int64 // bytes
	steps   int64 // that the deadline has moved

	// Guarded by the budget's lock.
	owner   Owner
	held    int64         // bytes of the budget
	last    time.Time     // when it took its last step
	place   *list.Element // in budget.arriving; nil while it holds nothing, and once it has arrived
	evicted bool
}

// Read reads on.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.got += int64(n)
	for b.got > FreeBody+b.held {
		if full := b.step(); full != nil {
			return n, full
		}
	}
	// Not at the end: from there on the server watches the connection, and a deadline would look
	// like a client that is gone.
	if steps := b.got / deadline.BodyStep; err == nil && steps > b.steps {
		b.steps = steps
		b.extend()
	}
	if err != nil && b.isEvicted() {
		return n, errEvicted
	}
	return n, err
}

// step takes the next deadline.BodyStep of the budget, if need be from bodies that have stalled.
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
			return errNoRoom{full}
		}
	}
	budget.add(b.owner, deadline.BodyStep)
	b.held += deadline.BodyStep
	b.last = now
	if b.place == nil {
		b.place = budget.Arriving.PushBack(b)
	} else {
		budget.Arriving.MoveToBack(b.place)
	}
	return nil
}

// evict ends the body that has been without progress the longest, of those that count in the bound;
// false if none has stalled. Its place is free at once, its memory a moment later. The lock is
// held.
func (budget *Bodies) evict(asking *incoming, full Bound, now time.Time) bool {
	for e := budget.Arriving.Front(); e != nil; e = e.Next() {
		b := e.Value.(*incoming)
		switch {
		case now.Sub(b.last) < BodyYield:
			return false // and none after it has stalled either
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

// release gives back what the body holds. The lock is held.
func (budget *Bodies) release(b *incoming) {
	budget.add(b.owner, -b.held)
	b.held = 0
	budget.settle(b)
}

// settle takes the body out of those that may be evicted. The lock is held.
func (budget *Bodies) settle(b *incoming) {
	if b.place != nil {
		budget.Arriving.Remove(b.place)
		b.place = nil
	}
}

// extend moves the deadlines of a body that has made progress.
func (b *incoming) extend() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	if b.evicted { // its deadline has been set for good
		return
	}
	end := b.start.Add(deadline.ReadTimeout + time.Duration(b.steps)*time.Second)
	if stall := time.Now().Add(bodyStall); stall.Before(end) {
		end = stall
	}
	// What has no deadlines, as in tests, needs none moved.
	_ = b.control.SetReadDeadline(end)
	_ = b.control.SetWriteDeadline(end.Add(deadline.AnswerTimeout))
}

func (b *incoming) isEvicted() bool {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	return b.evicted
}

// arrived says that nothing more is read: the body keeps what it holds and cannot be evicted.
func (b *incoming) arrived() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.budget.settle(b)
}

// done gives back what the body holds, at the first call.
func (b *incoming) done() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.budget.release(b)
}

// Spec is what an operation accepts as a body.
type Spec struct {
	Formats  []string // media types
	Optional bool     // an empty body is accepted
	Limit    int64    // bytes
}

// Read reads the whole body of a request. The caller must call done, also after an error, once it
// no longer needs the content. of returns the owner; it is only called for large bodies.
func (budget *Bodies) Read(w http.ResponseWriter, r *http.Request, b Spec, of func() Owner) (
	content []byte, done func(), err error,
) {
	nothing := func() {}
	if r.ContentLength > b.Limit {
		// The rest is not worth reading, so the connection cannot be used again.
		w.Header().Set("Connection", "close")
		return nil, nothing, problem.TooLargeBody("the body", b.Limit)
	}
	empty := r.ContentLength == 0
	if !hasFormat(r.Header, b.Formats) && !(empty && b.Optional && r.Header.Get("Content-Type") == "") {
		p := problem.UnsupportedMedia.With("the Content-Type must be " + b.Formats[0])
		p.SupportedFormats = b.Formats
		return nil, nothing, p
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		// A length is a promise at best: memory follows what has arrived.
		buf.Grow(int(min(r.ContentLength, FreeBody)) + bytes.MinRead)
	}
	limited := http.MaxBytesReader(w, r.Body, b.Limit)
	if r.ContentLength >= 0 && r.ContentLength <= FreeBody { // the budget is never asked
		_, err = buf.ReadFrom(limited)
		return buf.Bytes(), nothing, bodyProblem(w, err)
	}
	from := &incoming{
		r: limited, control: http.NewResponseController(w), budget: budget, start: time.Now(), owner: of(),
	}
	_, err = buf.ReadFrom(from)
	from.arrived()
	return buf.Bytes(), from.done, bodyProblem(w, err)
}

// IgnoreBody reads what stands where no body belongs, and forgets it. Left alone it would be read
// when the answer begins, for a stream after the deadline of reading was lifted.
func IgnoreBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxIgnoredBody))
	return bodyProblem(w, err)
}

// bodyProblem is the problem of a body that could not be read, nil if it could. What is left of it
// is not worth reading.
func bodyProblem(w http.ResponseWriter, err error) error {
	if err == nil {
		return nil
	}
	var size *http.MaxBytesError
	var room errNoRoom
	switch {
	case errors.As(err, &size):
		return err
	case errors.As(err, &room):
		w.Header().Set("Connection", "close")
		return problem.Overloaded.With(room.full.Text("bytes of large bodies") + "; send the same request again, or a smaller one").
			Retry(ratelimit.RetryAfter(time.Second))
	case errors.Is(err, errEvicted):
		w.Header().Set("Connection", "close")
		return problem.Overloaded.With("the body came too slowly while others needed its memory; send the same request again").
			Retry(ratelimit.RetryAfter(time.Second))
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
