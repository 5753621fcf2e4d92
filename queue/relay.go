package queue

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
)

// How an answer is passed on while it comes.
const (
	// RelayAhead is how many bytes of an answer its worker may have read that the fastest of its
	// readers, or the store, does not have yet.
	RelayAhead = 1 << 20
	// aheadMost bounds the same of all answers of the process: beyond it each may have
	// crowdedAhead. A hundred large answers that are read as fast as they come take the processors
	// from the polls (battery S4-fat-forwarded).
	aheadMost, crowdedAhead = 8 << 20, 8 * partSize

	partSize     = 16 << 10                // bytes of a part in the store
	callParts    = 16                      // parts of one call: where Redis is far, a call for each would be slow
	partEvery    = 20 * time.Millisecond   // between two writes for a reader in another process
	partSeldom   = 5 * time.Second         // while there is none; a reader that comes calls
	writesAtOnce = 4                       // of a tenant, about, while Redis has no time; see restAfter
	mostRest     = time.Second             // of an answer between two writes beside partEvery
	lookMost     = 8 * partEvery           // between two looks how far a slow reader is, each twice as long after the last
	seldomSize   = 8 * partSize            // and until this many bytes wait
	partsBeyond  = 160                     // parts that the store keeps beyond the stored bytes: RelayAhead and more
	tightAhead   = 4 * partSize            // RelayAhead while the store has no room
	tightBeyond  = 10                      // parts that are kept then, beside those that no reader has
	windowMost   = RelayAhead + 4*partSize // bytes beyond the stored ones that the worker's process keeps, up to twice as many
	relayPause   = 50 * time.Millisecond   // between two tries while the store does not answer
	relayExpects = time.Second             // how long an answer waits for its first reader
	relayLingers = 30 * time.Second        // how long the parts of an answer that has ended are kept
)

// ErrBrokeOff means that an answer ended before its end.
var ErrBrokeOff = errors.New("queue: the answer broke off")

// A part in the store begins with its kind.
const (
	partHead = 'h' // the answer without its body, as package httpmsg encodes it
	partData = 'd'
	partCut  = 'c' // what follows is not stored
	partEnd  = 'e' // the answer is complete; the trailers follow, as an answer without a body
)

// Relay is the answer to a forwarded request that reaches its readers while it comes. Readers in
// this process take it from memory. Those of other processes read its parts in the store, which
// has them also for readers that come later. One goroutine writes it.
type Relay struct {
	b       *Broker
	call    scripts.RelayCall // but for the part; the last number
	cutMark bool              // the store says that bytes are not stored
	id      string
	tenant  string // as in keys
	most    int    // bytes that are stored

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	head    []byte
	begun   bool   // the store has the head
	body    []byte // the first bytes: as many as most was when they came
	rest    []byte // the latest bytes behind body
	restAt  int64  // offset of rest
	total   int64
	end     []byte // trailers, once the answer is complete
	ended   bool
	broken  bool
	stale   bool // the lease is another's
	tight   bool // the store has no room for more of the answer: it gets only what readers need
	local   map[*Stream]bool
	drains  bool  // the rest is stored at once
	called  bool  // a reader in another process waits for parts that the store does not have
	joined  bool  // a reader of this process has come
	remote  int64 // offset of the reader of another process that has most; -1: none
	inStore int64 // bytes that the store has, or that it need not have
	endMark bool  // the store has the end
	began   time.Time
	held    int64 // bytes of its parts in the store, as counted in Broker.parts
	ahead   int64 // bytes that the store does not have yet, as counted in Broker.ahead
	seldom  time.Duration
	wrote   time.Time     // to the store
	rests   time.Duration // beside partEvery, until the next write for a reader in another process
	sleeps  time.Time     // until when Run does; zero: it does not

	woken chan struct{} // a token: Run must not sleep for so long

	// Of the goroutine that stores parts:
	size   int     // most bytes of the next parts
	beyond []int64 // ends of the latest parts beyond
}

// Relay begins to pass on the answer to a leased request; most bytes of its body are stored. From
// its return on the request is never sent again: if this process dies, the job fails. keep bounds
// how long the answer may take. The caller must call End or Break. Errors: ErrBrokeOff if the lease
// is not current, ErrUnavailable.
func (b *Broker) Relay(ctx context.Context, l LeaseRef, tenant string, head []byte, most int, keep time.Duration) (*Relay, error) {
	shard, ok := b.store.ShardOfID(l.ID)
	if !ok {
		return nil, ErrBrokeOff
	}
	r := &Relay{
		b: b, id: l.ID, tenant: store.EncodeName(tenant), most: most, head: head, seldom: partSeldom,
		changed: make(chan struct{}), woken: make(chan struct{}, 1), local: map[*Stream]bool{}, remote: -1, began: time.Now(),
		call: scripts.RelayCall{
			Clock: shard.Clock(), Job: shard.Job(l.ID), Stream: shard.Stream(l.ID), Beyond: shard.Beyond(l.ID),
			Reading: shard.Reading(l.ID), Epoch: l.Epoch, Most: partsBeyond, Keep: keep + time.Minute,
		},
	}
	r.enter() // first, or a reader here that sees the head in the store would read it there
	if err := r.store(ctx, false, part{partHead, head, 0}); err != nil {
		r.leave()
		return nil, err
	}
	r.mu.Lock()
	r.begun = true
	r.mu.Unlock()
	b.announce(shard.Channel(scripts.EndedChannel + l.ID))
	return r, nil
}

// enter makes the process pass on the answer, in place of one of a former lease.
func (r *Relay) enter() {
	if _, replaces := r.b.relays.Swap(r.id, r); !replaces {
		r.b.parts.add(r.tenant, 1, 0)
	}
}

// leave ends that the process passes on the answer.
func (r *Relay) leave() {
	if r.b.relays.CompareAndDelete(r.id, r) {
		r.b.parts.add(r.tenant, -1, 0)
	}
}

// part is a part of an answer, with the bytes of the body up to its end.
type part struct {
	kind  byte
	text  []byte
	bytes int64
}

// store writes the next parts, again until the store has answered. past: they are beyond the bytes
// that are stored.
func (r *Relay) store(ctx context.Context, past bool, parts ...part) error {
	call := r.call
	call.Number++
	call.More = !past && call.Number > 1 || past && len(r.beyond) > 0
	call.Past, call.Parts = past, make([]scripts.RelayPart, len(parts))
	for i, p := range parts {
		text := append(append(make([]byte, 0, 1+len(p.text)), p.kind), p.text...)
		place := partID(r.id, call.Epoch, call.Number+int64(i))
		call.Parts[i] = scripts.RelayPart{Text: r.b.box.Seal(sealed.Part, r.tenant, place, text), Bytes: p.bytes}
	}
	for {
		sent := time.Now()
		answer, err := store.Invoke(ctx, r.b.store.Run, call)
		switch {
		case err == nil && !answer.Current:
			return ErrBrokeOff
		case err == nil:
			r.call.Number += int64(len(parts))
			r.mu.Lock()
			r.remote, r.rests = answer.Furthest, r.restAfter(time.Since(sent))
			r.mu.Unlock()
			return nil
		case ctx.Err() != nil || !errors.Is(err, ErrUnavailable):
			return err
		}
		select {
		case <-time.After(relayPause):
		case <-ctx.Done():
			return store.Unavailable(ctx.Err())
		}
	}
}

// restAfter is how long the answer waits before its next parts, beside partEvery, after a write
// that took so long. Where writes take more than twice the way to Redis, it or a processor has no
// time left, and submissions wait for them: 64 answers of one tenant that came in 50 pieces a
// second made these take 14 to 60 ms (battery S4-thin-streams). So a tenant has about
// writesAtOnce in this process then, and those of the others come as ever.
func (r *Relay) restAfter(took time.Duration) time.Duration {
	over := took - 2*r.b.store.Way()
	return max(0, min(mostRest, over*time.Duration(r.b.parts.of(r.tenant).answers)/writesAtOnce))
}

// partID binds a part to its place.
func partID(id string, epoch, number int64) string {
	return id + " " + strconv.FormatInt(epoch, 10) + " " + strconv.FormatInt(number, 10)
}

// Run stores what is written until the answer has ended, or ctx does. The caller runs it beside the
// writing; lost is called if the lease is another's.
func (r *Relay) Run(ctx context.Context, lost func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r.mu.Lock()
		at, done := r.due()
		wait := time.Until(at)
		if r.sleeps = at; wait <= 0 {
			r.sleeps = time.Time{}
		}
		r.mu.Unlock()
		if done {
			return
		}
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-r.woken:
			case <-ctx.Done():
				return
			}
			r.expect(ctx)
			continue
		}
		r.fit(ctx)
		r.mu.Lock()
		expects := r.expects() // fit may have found that nothing more is stored, so the reader matters
		r.mu.Unlock()
		if expects {
			continue
		}
		err := r.flush(ctx)
		if errors.Is(err, ErrBrokeOff) || errors.Is(err, ErrScript) {
			r.mu.Lock()
			r.stale = true
			r.notify()
			r.mu.Unlock()
			lost()
			return
		}
		if err != nil && ctx.Err() != nil {
			return
		}
	}
}

// fit makes the answer fit the store: where that has no room for more answers, or none for those
// of this tenant, no more of this one is stored. What its readers in other processes need still
// passes through the store.
func (r *Relay) fit(ctx context.Context) {
	room := r.b.headroom.answers(ctx).Most - r.b.parts.of(r.tenant).bytes
	r.mu.Lock()
	defer r.mu.Unlock()
	r.call.Most, r.size = partsBeyond, int(min(callParts*partSize, max(partSize, room)))
	if r.tight = room <= 0; !r.tight {
		return
	}
	r.most = min(r.most, int(r.inStore))
	unread := 0
	for _, end := range r.beyond {
		if end > r.remote {
			unread++
		}
	}
	r.call.Most = min(partsBeyond, tightBeyond+unread)
}

// expect looks for the first reader in another process.
func (r *Relay) expect(ctx context.Context) {
	r.mu.Lock()
	expects := r.expects()
	r.mu.Unlock()
	if expects {
		r.look(ctx)
	}
}

// due returns when the next parts are to be stored, by what is known now; done: none will be. The
// lock must be held.
func (r *Relay) due() (at time.Time, done bool) {
	waiting, seldom := r.total-r.inStore, r.remote < 0 && (len(r.local) > 0 || time.Since(r.began) > time.Second)
	most, every := int64(partSize), partEvery+r.rests
	switch {
	case seldom:
		most, every = seldomSize, r.seldom
	case r.rests > partEvery:
		most = seldomSize
	}
	now := time.Now()
	switch {
	case r.endMark, r.broken:
		return now, true
	case r.expects():
		return now.Add(min(partEvery, time.Until(r.began.Add(relayExpects)))), false
	case r.ended, waiting >= most, r.drains && waiting > 0:
		return now, false
	case waiting == 0:
		return now.Add(time.Hour), false // a change ends that
	case r.called: // readers may come by the thousand
		every = partEvery + r.rests
	}
	return r.wrote.Add(every), false
}

// expects reports whether the store waits with what is beyond the stored bytes: whoever waits for
// the answer may not have come to read it yet, and then gets all. The lock must be held.
func (r *Relay) expects() bool {
	return r.inStore >= int64(r.most) && r.total > r.inStore && r.remote < 0 && len(r.local) == 0 && !r.joined &&
		time.Since(r.began) < relayExpects
}

// flush stores the next parts.
func (r *Relay) flush(ctx context.Context) error {
	r.mu.Lock()
	at, total, past := r.inStore, r.total, r.inStore >= int64(r.most)
	size := r.size
	var text []byte
	switch {
	case !past:
		text = r.body[at:min(len(r.body), r.most, int(at)+size)]
	case r.remote < 0:
		at = total // nobody reads it
	case at == total: // it has ended behind the bytes that a reader has got
	case at < int64(len(r.body)): // there was room for it when it came
		text = r.body[at:min(len(r.body), int(at)+size)]
	case at < r.restAt: // a reader came when its parts were gone; it begins further on, and breaks off
		at = r.restAt
		fallthrough
	default:
		from := int(at - r.restAt)
		text = append([]byte(nil), r.rest[from:min(len(r.rest), from+size)]...)
	}
	ends := r.ended && at+int64(len(text)) == total
	mark := past && !r.cutMark && total > int64(r.most)
	end := r.end
	r.wrote, r.called = time.Now(), false
	r.mu.Unlock()
	if mark { // its answer says whether a reader came before it, which needs what follows
		err := r.store(ctx, false, part{partCut, nil, int64(r.most)})
		r.cutMark = err == nil
		return err
	}
	var parts []part
	for piece := range slices.Chunk(text, partSize) {
		at += int64(len(piece))
		parts = append(parts, part{partData, piece, at})
	}
	if ends {
		parts = append(parts, part{partEnd, end, at})
	}
	if len(parts) > 0 {
		if err := r.store(ctx, past, parts...); err != nil {
			return err
		}
		r.b.headroom.answered(int64(len(text)))
	}
	if past {
		for _, p := range parts {
			r.beyond = append(r.beyond, p.bytes)
		}
		r.beyond = r.beyond[max(0, len(r.beyond)-partsBeyond):]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inStore = at
	if held := min(at, int64(r.most)); len(r.beyond) > 0 {
		r.hold(held + r.beyond[len(r.beyond)-1] - r.beyond[0])
	} else {
		r.hold(held)
	}
	r.endMark = r.endMark || ends
	r.notify()
	return nil
}

// hold counts the parts in the store, until the answer ends. The lock must be held.
func (r *Relay) hold(bytes int64) {
	if r.broken {
		bytes = 0
	}
	r.b.parts.add(r.tenant, 0, bytes-r.held)
	r.held = bytes
}

// notify counts a change, and wakes who waits for one. The lock must be held. Run wakes only if it
// has to: it would else do so at each event, to sleep again.
func (r *Relay) notify() {
	ahead := r.total - r.inStore
	if r.broken || r.endMark {
		ahead = 0
	}
	r.b.ahead.Add(ahead - r.ahead)
	r.ahead = ahead
	close(r.changed)
	r.changed = make(chan struct{})
	if r.sleeps.IsZero() {
		return
	}
	if at, done := r.due(); done || at.Before(r.sleeps) {
		r.sleeps = time.Time{}
		token(r.woken)
	}
}

// Write appends to the body. It waits while the readers, or the store, are RelayAhead behind.
// Errors: ErrBrokeOff if the lease is another's, or that of ctx.
func (r *Relay) Write(ctx context.Context, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for wait := partEvery; !r.stale && r.behind() >= r.mayBehind(); {
		changed := r.changed
		r.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
			r.mu.Lock()
			asks := r.remote >= 0 && r.total-r.inStore < r.mayBehind() // else it waits for the store
			r.mu.Unlock()
			if asks {
				r.look(ctx)
				wait = min(2*wait, lookMost)
			}
		case <-ctx.Done():
		}
		timer.Stop()
		r.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if r.stale {
		return ErrBrokeOff
	}
	n := max(0, min(len(p), r.most-len(r.body)))
	if n > cap(r.body)-len(r.body) { // append grows by a quarter, and copied large answers four times
		r.body = slices.Grow(r.body, max(n, min(len(r.body), r.most-len(r.body))))
	}
	r.body = append(r.body, p[:n]...)
	if more := p[n:]; len(more) > 0 {
		if len(r.rest) == 0 {
			r.restAt = r.total + int64(n)
		}
		r.rest = append(r.rest, more...)
		if over := len(r.rest) - windowMost; over > windowMost {
			r.rest = append(r.rest[:0], r.rest[over:]...)
			r.restAt += int64(over)
		}
	}
	r.total += int64(len(p))
	r.notify()
	return nil
}

// behind is how many bytes the store or the fastest reader has still to get. The lock must be held.
func (r *Relay) behind() int64 {
	behind := r.total - r.inStore
	furthest := r.remote
	for s := range r.local {
		furthest = max(furthest, s.at)
	}
	if furthest >= 0 {
		behind = max(behind, r.total-furthest)
	}
	return behind
}

// look asks the store how far readers in other processes are.
func (r *Relay) look(ctx context.Context) {
	found, err := r.b.store.Reads.ZRevRangeWithScores(ctx, r.call.Reading, 0, 0).Result()
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remote = -1
	if len(found) > 0 {
		r.remote = int64(found[0].Score)
	}
}

// Behind reports whether Write would have to wait.
func (r *Relay) Behind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behind() >= r.mayBehind()
}

// mayBehind is how far behind the store and the fastest reader may be. The lock must be held.
func (r *Relay) mayBehind() int64 {
	switch {
	case r.tight && len(r.local) == 0:
		return tightAhead
	case r.b.ahead.Load() > aheadMost:
		return crowdedAhead
	}
	return RelayAhead
}

// End ends the answer with its trailers, and returns when the store has all of it that it needs.
// The readers get the end once the job has succeeded. Errors: ErrBrokeOff, that of ctx.
func (r *Relay) End(ctx context.Context, trailers []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.end = true, trailers
	r.notify()
	for !r.endMark {
		changed := r.changed
		if r.stale {
			return ErrBrokeOff
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		if err := ctx.Err(); err != nil && !r.endMark {
			return err
		}
	}
	r.hold(0)
	r.leave()
	return nil
}

// Drain returns when the store has what was written, before Break.
func (r *Relay) Drain(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drains = true
	r.notify()
	for r.inStore < r.total && !r.stale && ctx.Err() == nil {
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
	}
}

// Break ends the answer before its end: so do the connections of its readers.
func (r *Relay) Break() {
	r.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = true
	r.hold(0)
	r.notify()
}

// InStore returns how many bytes of the body the store has, or need not have.
func (r *Relay) InStore() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inStore
}

// Stored returns what is stored of the body, and whether it was more.
func (r *Relay) Stored() (body []byte, total int64, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body[:min(len(r.body), r.most)], r.total, r.total > int64(r.most)
}

// Body returns the first bytes of the body, also those for which the store had no room.
func (r *Relay) Body() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body
}

// tenantParts counts the answers that this process passes on now, and their bytes in the store, by
// tenant.
type tenantParts struct {
	mu      sync.Mutex
	tenants map[string]partsOf
	all     int64
}

type partsOf struct {
	answers int
	bytes   int64
}

func (p *tenantParts) add(tenant string, answers int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all += bytes
	sum := partsOf{p.tenants[tenant].answers + answers, p.tenants[tenant].bytes + bytes}
	if p.tenants[tenant] = sum; sum == (partsOf{}) {
		delete(p.tenants, tenant)
	}
}

func (p *tenantParts) of(tenant string) partsOf {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tenants[tenant]
}

func (p *tenantParts) sum() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// linger lets the parts of answers go that have ended: their records have them.
func (b *Broker) linger(ctx context.Context, ids []string) {
	lingers := relayLingers
	if b.headroom.answers(ctx).Most <= 0 {
		lingers = readerGone
	}
	_, _ = b.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range ids {
			if shard, ok := b.store.ShardOfID(id); ok {
				p.Expire(ctx, shard.Stream(id), lingers)
				p.Expire(ctx, shard.Beyond(id), lingers)
			}
		}
		return nil
	})
}

// Messages of wake-ups about the client of a forwarded request begin so; the id of its job follows.
const (
	leftMessage  = "left "  // it has left
	readsMessage = "reads " // it reads the answer through the store, and waits for more
)

// called has the answer stored more often if this process passes it on.
func (b *Broker) called(id string) {
	if found, ok := b.relays.Load(id); ok {
		r := found.(*Relay)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.called = true
		r.notify()
	}
}

// Leave says that the client of a forwarded request has left, and nobody will read its answer: the
// worker that sends it ends that. Errors: ErrUnavailable.
func (q *Queue) Leave(ctx context.Context, id string) error {
	shard, ok := q.store.ShardOfID(id)
	if !ok || q.broker.left(id) {
		return nil
	}
	_, err := store.Invoke(ctx, q.store.Run, scripts.PublishCall{
		Clock: shard.Clock(), Channel: scripts.WakeChannel, Message: leftMessage + id,
	})
	return err
}

// OnLeave calls f once if the client of a forwarded request leaves. The caller must call stop.
func (b *Broker) OnLeave(id string, f func()) (stop func()) {
	b.leaving.Store(id, f)
	return func() { b.leaving.Delete(id) }
}

// left reports whether this process sends the request of a client that has left.
func (b *Broker) left(id string) bool {
	f, sends := b.leaving.LoadAndDelete(id)
	if sends {
		f.(func())()
	}
	return sends
}
