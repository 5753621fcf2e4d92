package budget

import (
	"container/list"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
)

const (
	// MaxAnswers is the budget of answers: the bytes that all of them hold at once, without their
	// free parts.
	MaxAnswers = 128 << 20
	// Piece is how many bytes of a stored answer are in memory at once.
	Piece = deadline.BodyStep
)

// Answers bounds the memory of all answers that are on their way out. Without it, clients that read
// nothing would exhaust the memory of the process.
//
// A stalled answer keeps its memory only while no other needs it: when the budget is used up, the
// answer without progress for the longest time is ended. An answer of which the client takes a
// Piece in each BodyYield is never ended.
type Answers struct {
	Shares
	sending *list.List // of *Outgoing; the longest without progress first
	evicted prometheus.Counter
}

// NewAnswers returns a budget of MaxAnswers bytes in which one tenant and one address get these
// shares. evicted counts the answers that were ended.
func NewAnswers(tenant, address Percent, evicted prometheus.Counter) *Answers {
	return &Answers{Shares: NewShares(MaxAnswers, tenant, address), sending: list.New(), evicted: evicted}
}

// Outgoing is an answer that holds a part of the budget. A nil one holds nothing.
type Outgoing struct {
	budget  *Answers
	owner   Owner
	control *http.ResponseController
	start   time.Time
	size    int

	// Guarded by the budget's lock.
	held    int64
	last    time.Time // when the client took the last piece
	element *list.Element
	evicted bool
}

// Begin reserves the memory of an answer of size bytes, of which held are in memory at once. The
// caller must call End, and To before it writes. The answer is nil, and free, if held is at most
// FreeBody. The error is a *problem.Problem.
func (b *Answers) Begin(owner Owner, held, size int) (*Outgoing, error) {
	if held <= FreeBody {
		return nil, nil
	}
	now := time.Now()
	o := &Outgoing{
		budget: b, owner: owner, start: now, size: size,
		held: int64(held), last: now,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		full := b.full(owner, o.held)
		if full == Unbound {
			break
		}
		if !b.evict(owner, full, now) {
			return nil, problem.Overloaded.With(full.Text("bytes of answers that clients have not taken") +
				"; send the same request again").RetryIn(time.Second)
		}
	}
	b.add(owner, o.held)
	o.element = b.sending.PushBack(o)
	return o, nil
}

// evict ends the answer without progress for the longest time, among those that count in the bound.
// It returns false if none has stalled. The lock is held.
func (b *Answers) evict(asking Owner, full Bound, now time.Time) bool {
	for e := b.sending.Front(); e != nil; e = e.Next() {
		o := e.Value.(*Outgoing)
		switch {
		case now.Sub(o.last) < BodyYield:
			return false // nor has any after it
		case full == ofTenant && o.owner.Tenant != asking.Tenant,
			full == ofAddress && o.owner.Address != asking.Address:
			continue
		}
		o.evicted = true
		b.release(o)
		// The deadline ends its Write. A writer without deadlines, as in tests, fails at its next
		// Step.
		if o.control != nil {
			_ = o.control.SetWriteDeadline(now)
		}
		b.evicted.Inc()
		return true
	}
	return false
}

// release returns the answer's part of the budget. The lock is held.
func (b *Answers) release(o *Outgoing) {
	b.add(o.owner, -o.held)
	o.held = 0
	if o.element != nil {
		b.sending.Remove(o.element)
		o.element = nil
	}
}

// To sets where the answer is sent.
func (o *Outgoing) To(w http.ResponseWriter) {
	if o == nil {
		return
	}
	o.budget.mu.Lock()
	defer o.budget.mu.Unlock()
	o.control = http.NewResponseController(w)
	if o.evicted {
		_ = o.control.SetWriteDeadline(time.Now())
	}
}

// Step notes that the client has taken sent bytes, and gives the next piece its time: bodyStall,
// within what deadline.ForAnswer gives the whole. It returns false for an answer that was ended.
func (o *Outgoing) Step(sent int) bool {
	if o == nil {
		return true
	}
	o.budget.mu.Lock()
	defer o.budget.mu.Unlock()
	if o.evicted {
		return false
	}
	o.last = time.Now()
	o.budget.sending.MoveToBack(o.element)
	end := o.start.Add(deadline.AnswerTimeout + time.Duration(o.size/deadline.BodyStep)*time.Second)
	if stall := o.last.Add(bodyStall); sent < o.size && stall.Before(end) {
		end = stall
	}
	_ = o.control.SetWriteDeadline(end) // a writer without deadlines, as in tests, returns an error
	return true
}

// End returns the answer's part of the budget.
func (o *Outgoing) End() {
	if o == nil {
		return
	}
	o.budget.mu.Lock()
	defer o.budget.mu.Unlock()
	o.budget.release(o)
}
