package worker

import "sync"

// lots lets the jobs that a shard's two loops lease into the pacer in the order in which Redis gave them, for the loops may hear of them in
// another. Lots are numbered without gaps, but some may be another worker's.
type lots struct {
	mu      sync.Mutex
	changed sync.Cond
	last    int64 // number of the lot that was let in last
	loops   [2]struct {
		asking bool  // a look is under way, and may bring any lot
		lot    int64 // is to be let in; 0: none
	}
}

func newLots() *lots {
	l := &lots{}
	l.changed.L = &l.mu
	return l
}

// ask says that a look of the loop begins.
func (l *lots) ask(loop int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loops[loop].asking = true
}

// answer says which lot the look has brought, 0 for none or one without a number. It ends what ask began.
func (l *lots) answer(loop int, lot int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loops[loop].asking, l.loops[loop].lot = false, lot
	l.changed.Broadcast()
}

// enter waits until no earlier lot of the other loop is to be expected.
func (l *lots) enter(loop int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lot, other := l.loops[loop].lot, &l.loops[1-loop]
	for lot > 0 && (other.lot > 0 && other.lot < lot || other.asking && lot != l.last+1) {
		l.changed.Wait()
	}
}

// leave says that the loop's lot is in.
func (l *lots) leave(loop int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, l.loops[loop].lot)
	l.loops[loop].lot = 0
	l.changed.Broadcast()
}
