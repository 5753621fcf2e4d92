package simulate

import "container/heap"

// line is a priority queue of the members of a pool. A member is in it at most once.
type line struct {
	members []*member
	which   int // of a member's places
	before  func(a, b *member) bool
}

func (l *line) Len() int           { return len(l.members) }
func (l *line) Less(i, j int) bool { return l.before(l.members[i], l.members[j]) }

func (l *line) Swap(i, j int) {
	l.members[i], l.members[j] = l.members[j], l.members[i]
	l.members[i].place[l.which], l.members[j].place[l.which] = i+1, j+1
}

// Push implements heap.Interface.
func (l *line) Push(x any) {
	m := x.(*member)
	l.members = append(l.members, m)
	m.place[l.which] = len(l.members)
}

// Pop implements heap.Interface.
func (l *line) Pop() any {
	last := len(l.members) - 1
	m := l.members[last]
	l.members, m.place[l.which] = l.members[:last], 0
	return m
}

func (l *line) add(m *member) { heap.Push(l, m) }

// remove takes a member out, if it is in.
func (l *line) remove(m *member) {
	if at := m.place[l.which]; at > 0 {
		heap.Remove(l, at-1)
	}
}

// first is the member at the head, nil for none.
func (l *line) first() *member {
	if len(l.members) == 0 {
		return nil
	}
	return l.members[0]
}
