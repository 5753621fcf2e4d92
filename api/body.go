package api

import (
	"bytes"
	"container/list"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	freeBody = 16 << 10  // bytes of a body that are taken without asking the budget
	bodyStep = 64 << 10  // bytes of a body that buy it another second, and the unit of the budget
	bodies   = 128 << 20 // bytes of all bodies at once, what is free not counted

	// bodyStall is how long the next bodyStep of a body may take, however fast the former ones
	// came.
	bodyStall = 5 * time.Second
	// bodyYield is after how long without a bodyStep a body gives its place to another one.
	bodyYield = time.Second
)

// errNoRoom is the error of a body that the process has no memory for now.
type errNoRoom struct{ full bound }

func (e errNoRoom) Error() string { return "api: " + e.full.blame("bytes of large bodies") }

// errEvicted is the error of a body that came too slowly while others needed its place.
var errEvicted = errors.New("api: a slow body made room for another one")

// bodyBudget bounds the memory of all bodies that are being read and handled. Without it,
// connections × the largest batch would be a way to end the process.
//
// A body that has stalled holds its place only while nobody else needs it: where there is no room,
// the one that has been without progress the longest is evicted. One that arrives at bodyStep per
// bodyYield or faster is never evicted.
type bodyBudget struct {
	shares
	arriving *list.List // of *incoming that hold something; the longest without progress first
	evicted  prometheus.Counter
}

func newBodyBudget(tenant, address Percent, evicted prometheus.Counter) *bodyBudget {
	return &bodyBudget{shares: newShares(bodies, tenant, address), arriving: list.New(), evicted: evicted}
}

// incoming is the body of a request as it arrives. The server's readTimeout holds for the header
// and the first bodyStep bytes, from the first byte of the request. Each further bodyStep moves the
// deadline by a second, but never beyond bodyStall from now: an honest client may be slow, one that
// drips or falls silent gains nothing.
type incoming struct {
	r       io.Reader
	control *http.ResponseController
	budget  *bodyBudget
	start   time.Time
	got     int64 // bytes
	steps   int64 // that the deadline has moved

	// Guarded by the budget's lock.
	owner   owner
	held    int64         // bytes of the budget
	last    time.Time     // when it took its last step
	place   *list.Element // in budget.arriving; nil while it holds nothing, and once it has arrived
	evicted bool
}

// Read reads on.
func (b *incoming) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.got += int64(n)
	for b.got > freeBody+b.held {
		if full := b.step(); full != nil {
			return n, full
		}
	}
	// Not at the end: from there on the server watches the connection, and a deadline would look
	// like a client that is gone.
	if steps := b.got / bodyStep; err == nil && steps > b.steps {
		b.steps = steps
		b.extend()
	}
	if err != nil && b.isEvicted() {
		return n, errEvicted
	}
	return n, err
}

// step takes the next bodyStep of the budget, if need be from bodies that have stalled.
func (b *incoming) step() error {
	budget := b.budget
	budget.mu.Lock()
	defer budget.mu.Unlock()
	if b.evicted {
		return errEvicted
	}
	now := time.Now()
	for {
		full := budget.full(b.owner, bodyStep)
		if full == unbound {
			break
		}
		if !budget.evict(b, full, now) {
			return errNoRoom{full}
		}
	}
	budget.add(b.owner, bodyStep)
	b.held += bodyStep
	b.last = now
	if b.place == nil {
		b.place = budget.arriving.PushBack(b)
	} else {
		budget.arriving.MoveToBack(b.place)
	}
	return nil
}

// evict ends the body that has been without progress the longest, of those that count in the bound;
// false if none has stalled. Its place is free at once, its memory a moment later. The lock is
// held.
func (budget *bodyBudget) evict(asking *incoming, full bound, now time.Time) bool {
	for e := budget.arriving.Front(); e != nil; e = e.Next() {
		b := e.Value.(*incoming)
		switch {
		case now.Sub(b.last) < bodyYield:
			return false // and none after it has stalled either
		case b == asking, full == ofTenant && b.owner.tenant != asking.owner.tenant,
			full == ofAddress && b.owner.address != asking.owner.address:
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
func (budget *bodyBudget) release(b *incoming) {
	budget.add(b.owner, -b.held)
	b.held = 0
	budget.settle(b)
}

// settle takes the body out of those that may be evicted. The lock is held.
func (budget *bodyBudget) settle(b *incoming) {
	if b.place != nil {
		budget.arriving.Remove(b.place)
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
	end := b.start.Add(readTimeout + time.Duration(b.steps)*time.Second)
	if stall := time.Now().Add(bodyStall); stall.Before(end) {
		end = stall
	}
	// What has no deadlines, as in tests, needs none moved.
	_ = b.control.SetReadDeadline(end)
	_ = b.control.SetWriteDeadline(end.Add(answerTimeout))
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

// read reads the whole body of the owner's request within its limit. The caller must call done,
// also after an error, once it needs the content no longer.
func (b *body) read(w http.ResponseWriter, r *http.Request, budget *bodyBudget, of func() owner) (
	content []byte, done func(), err error,
) {
	nothing := func() {}
	if r.ContentLength > b.limit {
		// The rest is not worth reading, so the connection cannot be used again.
		w.Header().Set("Connection", "close")
		return nil, nothing, tooLargeBody("the body", b.limit)
	}
	empty := r.ContentLength == 0
	if !hasFormat(r.Header, b.formats) && !(empty && b.optional && r.Header.Get("Content-Type") == "") {
		p := unsupportedMedia.with("the Content-Type must be " + b.formats[0])
		p.SupportedFormats = b.formats
		return nil, nothing, p
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		// A length is a promise at best: memory follows what has arrived.
		buf.Grow(int(min(r.ContentLength, freeBody)) + bytes.MinRead)
	}
	limited := http.MaxBytesReader(w, r.Body, b.limit)
	if r.ContentLength >= 0 && r.ContentLength <= freeBody { // the budget is never asked
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

// noBody reads what stands where no body belongs, and forgets it. Left alone it would be read when
// the answer begins, for a stream after the deadline of reading was lifted.
func noBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxSmallBody))
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
		return overloaded.with(room.full.blame("bytes of large bodies") + "; send the same request again, or a smaller one").
			retry(retryAfterSeconds(time.Second))
	case errors.Is(err, errEvicted):
		w.Header().Set("Connection", "close")
		return overloaded.with("the body came too slowly while others needed its memory; send the same request again").
			retry(retryAfterSeconds(time.Second))
	}
	p := unreadableBody.with("the body ended early or came too slowly")
	p.cause = err
	return p
}
