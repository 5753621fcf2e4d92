package shaper

// RetrySlots spreads the retries of clients that one full queue rejected over the coming drain, so
// that they do not all return for the same slot. The first client gets the instant at which the
// first slot frees, the next client that of the next slot, up to the last job that is queued now.
// Further clients get a random instant of this drain: after its end the queue could be empty while
// clients wait. The zero value belongs to a queue that has rejected no client.
type RetrySlots struct {
	last Instant // the latest slot that a client got
}

// Take returns when to retry a request for size slots that was rejected as Full or FullOfBytes. It
// is never before these slots are free, and 0 while that instant is unknown. random(n) returns a
// number from 0 to n-1.
func (t *RetrySlots) Take(a Admission, size int64, random func(n int64) int64) Instant {
	if a.RetryAfter <= 0 {
		return 0
	}
	first := a.Now.Add(max(a.RetryAfter, a.NextSlot))
	drained := max(first, a.Start)
	perSlot := (drained - first) / Instant(max(1, a.Depth))
	slot := max(first, t.last+perSlot*Instant(size))
	if slot > drained {
		return first + Instant(random(int64(drained-first)+1))
	}
	t.last = slot
	return slot
}
