package worker

import (
	"sync"
	"time"
)

// Bounds of the window of looks: how many may be under way, and how many jobs one may lease at the least.
const (
	windowMost  = 64
	windowLeast = 12          // of looks for few jobs: fewer would wait for one another's way to Redis and back
	windowStart = windowLeast // each of the first looks makes a connection, and a worker that starts beside others must not take the processor from them
	leastLook   = 8
)

// window bounds how many looks are under way at once. Redis works off one script after the other, so more of them do not bring more jobs;
// they wait there instead, and what they lease comes too late to leave. It grows while answers come in time and shrinks when they do not,
// by additive increase and multiplicative decrease (Chiu and Jain, 1989); when it cannot shrink further, the looks become smaller.
type window struct {
	inTime time.Duration // an answer within it is

	mu      sync.Mutex
	size    float64
	most    int // jobs that a look may lease
	out     int
	begun   int           // polls so far
	least   time.Duration // about the shortest time of the answers of late: what the way alone takes
	waiting []chan struct{}
}

// entry is a poll's room in the window.
type entry struct {
	most  int // jobs that it may lease
	alone int // polls so far at its entry, if no other poll was under way then; else 0
}

func newWindow(inTime time.Duration) *window {
	return &window{inTime: inTime, size: windowStart, most: lookMost}
}

// enter waits until a look may begin; false if done is closed before.
func (w *window) enter(done <-chan struct{}) (e entry, ok bool) {
	w.mu.Lock()
	if w.out < int(w.size) {
		defer w.mu.Unlock()
		w.out++
		return w.begin(), true
	}
	room := make(chan struct{})
	w.waiting = append(w.waiting, room)
	w.mu.Unlock()
	select {
	case <-room:
	case <-done:
		w.mu.Lock()
		defer w.mu.Unlock()
		select {
		case <-room: // came at the same time: it is the next one's
			w.out--
			w.next()
		default:
			for i, other := range w.waiting {
				if other == room {
					w.waiting = append(w.waiting[:i], w.waiting[i+1:]...)
					break
				}
			}
		}
		return entry{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begin(), true
}

// begin counts a poll that has room. It is called with the lock held.
func (w *window) begin() entry {
	w.begun++
	e := entry{most: w.most}
	if w.out == 1 {
		e.alone = w.begun
	}
	return e
}

// yield gives the room of a look back before it has ended.
func (w *window) yield() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out--
	w.next()
}

// leave ends a look that took so long, 0 for one that did not come about, and leased so many jobs; yielded if its room is another's by now. Late
// answers to looks for many jobs are Redis's work; to looks for few, the way and the machine may be slow. A poll that was alone
// waited for no other, so its time is what the way takes now: of a Redis that has moved away, too.
func (w *window) leave(e entry, took time.Duration, leased int, yielded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !yielded {
		w.out--
	}
	defer w.next()
	if took <= 0 {
		return
	}
	switch {
	case w.least == 0 || took < w.least:
		w.least = took
	case e.alone == w.begun:
		w.least += (took - w.least) / 4
	default:
		w.least += (took - w.least) / 1000
	}
	// On a long way no answer is fast: what counts is the wait beside it.
	least := 1.0
	if leased < lookLeast {
		least = windowLeast
	}
	switch limit := max(w.inTime, 3*w.least); {
	case took > limit && w.size > least:
		w.size = max(least, w.size*0.9)
	case took > limit && leased >= lookLeast:
		w.most = max(leastLook, w.most*3/4)
	case took <= limit:
		w.size = min(windowMost, w.size+1/w.size)
		if took < limit/2 {
			w.most = min(lookMost, w.most+1)
		}
	}
}

// next lets those begin for whom there is room. It is called with the lock held.
func (w *window) next() {
	for len(w.waiting) > 0 && w.out < int(w.size) {
		close(w.waiting[0])
		w.waiting = w.waiting[1:]
		w.out++
	}
}
