package queue

import "testing"

// TestTenantsTakeTurns: however many submissions of one tenant wait, that of another is next. Those
// of one tenant keep their order, and those whose callers have left are gone.
func TestTenantsTakeTurns(t *testing.T) {
	l := newLines()
	put := func(tenant string, id string) *pending {
		p := &pending{batch: []Submission{{Tenant: tenant, ID: id}}}
		l.put(p)
		return p
	}
	put("flood", "1")
	left := put("flood", "2")
	put("flood", "3")
	put("flood", "4")
	alone := put("gone", "1")
	put("quiet", "1")
	put("other", "1")
	l.drop(left)
	l.drop(alone)
	l.drop(alone)
	for _, want := range []string{"flood 1", "quiet 1", "other 1", "flood 3", "flood 4"} {
		select {
		case <-l.some:
		default:
			t.Fatalf("nobody is told of %s", want)
		}
		if p := l.take(); p == nil || p.batch[0].Tenant+" "+p.batch[0].ID != want {
			t.Fatalf("%v is next, want %s", p, want)
		}
	}
	if p := l.take(); p != nil || l.len() != 0 || len(l.of) != 0 || len(l.ring) != 0 {
		t.Errorf("%v is left", p)
	}
	l.drop(left) // a flusher may have it
}
