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
		behind bool  // the other loop's look that was under way when this lot came may bring an earlier one
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
	mine, other := &l.loops[loop], &l.loops[1-loop]
	mine.asking, mine.lot = false, lot
	mine.behind = other.asking && lot > l.last+1
	other.behind = false
	l.changed.Broadcast()
}

// enter waits until no earlier lot of the other loop is to be expected.
func (l *lots) enter(loop int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine, other := &l.loops[loop], &l.loops[1-loop]
	for mine.lot > 0 && (mine.behind || other.lot > 0 && other.lot < mine.lot) {
		l.changed.Wait()
	}
}

// leave says that the loop's lot is in.
func (l *lots) leave(loop int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lot := l.loops[loop].lot; lot > 0 {
		l.last = lot // or fewer than before, where Redis has forgotten its count
	}
	l.loops[loop].lot = 0
	l.changed.Broadcast()
}
