package queue

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/engine"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// StoreBounds bound what all tenants together may keep. Zero is no bound.
//
// With FlowShare, intake closes while Redis uses more memory than its maximum less a reserve. Each
// flow may store a multiple of what is free now: one greedy flow leaves capacity to the others, and
// several leave less to each other. A flow beyond its share is refused alone.
//
// An admission has the sums over all shards read if the last reading is older than a second, and
// adds what this process admits. Several processes may pass a bound by what they admit meanwhile.
type StoreBounds struct {
	Bytes   int64 // of jobs that are waiting, leased or dead, with what Redis keeps beside them
	Tenants int64 // live ones: with jobs, or active in the last ten minutes
	// FlowShare is the percentage of the store that one flow may use while the others have nothing;
	// 100: all of it.
	FlowShare int64
	// Reserve is the percentage of the store, of its bytes and of Tenants, that is kept for tenants
	// with settings of their own and for submissions that are Vouched. 0: none.
	Reserve int64
	// Classes are what classes of tenants may use together. A tenant is in the class ClassGuests if
	// its submission says so, else in that of its claimed tier. One with settings of its own is in
	// none. Through each process, one network brings at most a 50th of all possible guests, or
	// 16, in ten minutes; its further guests are refused like those of a full class.
	Classes map[string]ClassBound
}

// ClassBound is the part of the store that the tenants of a class may use together, in percent; 0
// is no bound.
type ClassBound struct{ Bytes, Tenants int64 }

// ClassGuests is the class of all guests.
const ClassGuests = "guests"

// GuestPrefix begins the names of the tenants that clients without a credential are. No credential
// names such a tenant.
const GuestPrefix = "guest:"

// IsGuest reports whether a tenant has the name of a guest.
func IsGuest(tenant string) bool { return strings.HasPrefix(tenant, GuestPrefix) }

// ClassOfTier is the class of the tenants whose credential claims a tier.
func ClassOfTier(tier string) string { return "tier:" + store.TierName(tier) }

// tenantBytes is about what Redis keeps of a tenant, beside what its jobs have.
const tenantBytes = 2048

// Bounds of the sums over all shards.
const (
	headroomAge  = time.Second            // how long they are cached
	headroomWait = 10 * time.Millisecond  // how long an admission waits for a reading: a node may hang
	headroomOld  = 5 * time.Second        // age from which it waits for longer
	headroomMost = 250 * time.Millisecond // until when after the beginning of the reading
)

// headroom caches how much may still be stored.
type headroom struct {
	q      *Queue
	bounds StoreBounds

	mu      sync.Mutex
	reading chan struct{} // closed when the reading that is under way has ended; nil where none is
	since   time.Duration // when it began
	at      atomic.Int64
	free    atomic.Int64 // bytes that may still be stored; unbounded where nothing bounds them
	common  atomic.Int64 // those outside of the reserve
	spare   atomic.Int64 // those that answers to forwarded requests may use: they get half of the store
	full    atomic.Bool  // Redis has so little memory left that it gets no such answers
	tenants atomic.Int64
	classes map[string]*classRoom
	guests  *networks // nil: no bound on the number of guests
	begun   time.Time
	running sync.WaitGroup // the reading
}

// classRoom is what a class may store yet, and its tenants by shard.
type classRoom struct {
	bytes, tenants atomic.Int64
	members        []atomic.Int64
}

const unbounded = 1 << 60

func newHeadroom(q *Queue, bounds StoreBounds) *headroom {
	h := &headroom{q: q, bounds: bounds, begun: time.Now()}
	h.at.Store(int64(-headroomOld))
	h.free.Store(unbounded)
	h.common.Store(unbounded)
	h.spare.Store(unbounded)
	h.classes = make(map[string]*classRoom, len(bounds.Classes))
	for name, l := range bounds.Classes {
		if name == ClassGuests && l.Tenants > 0 && bounds.Tenants > 0 {
			h.guests = newNetworks(bounds.Tenants * l.Tenants / 100)
		}
		h.classes[name] = &classRoom{members: make([]atomic.Int64, q.store.Len())}
		h.classes[name].bytes.Store(unbounded)
		h.classes[name].tenants.Store(unbounded)
	}
	return h
}

// none reports whether nothing is bounded.
func (h *headroom) none() bool {
	return h.bounds.Bytes == 0 && h.bounds.Tenants == 0 && h.bounds.FlowShare == 0
}

// refresh has a reading replaced that is too old, and keeps it where Redis does not answer.
func (h *headroom) refresh(ctx context.Context) {
	now := time.Since(h.begun)
	age := now - time.Duration(h.at.Load())
	if age < headroomAge {
		return
	}
	reading, since, begun := h.read(ctx, now)
	wait := headroomWait
	if age >= headroomOld {
		wait = headroomMost - (now - since)
	} else if !begun {
		return
	}
	select {
	case <-reading:
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

// read begins a reading, unless one is under way. The channel is closed at its end.
func (h *headroom) read(ctx context.Context, now time.Duration) (reading chan struct{}, since time.Duration, begun bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reading != nil {
		return h.reading, h.since, false
	}
	reading = make(chan struct{})
	h.reading, h.since = reading, now
	h.running.Go(func() {
		free, common, spare, tenants := h.free.Load(), h.common.Load(), h.spare.Load(), h.tenants.Load()
		before := map[string]classReading{}
		for name, c := range h.classes {
			before[name] = classReading{c.bytes.Load(), c.tenants.Load()}
		}
		if m, err := h.measure(context.WithoutCancel(ctx)); err == nil {
			h.free.Add(m.free - free) // what was admitted during the reading counts twice until the next one
			h.common.Add(m.common - common)
			h.spare.Add(m.spare - spare)
			h.full.Store(m.full)
			h.tenants.Add(m.tenants - tenants)
			for name, c := range h.classes {
				c.bytes.Add(m.classes[name].bytes - before[name].bytes)
				c.tenants.Add(m.classes[name].tenants - before[name].tenants)
			}
		}
		h.at.Store(int64(now))
		h.mu.Lock()
		h.reading = nil
		h.mu.Unlock()
		close(reading)
	})
	return reading, now, true
}

func (h *headroom) close() { h.running.Wait() }

// answers returns how many bytes of answers to forwarded requests a flow may keep. Answers of all
// flows use at most half of the store, so that requests find the other, and no more than is free.
func (h *headroom) answers(ctx context.Context) *scripts.KeptBounds {
	if h.none() {
		return &scripts.KeptBounds{Most: unbounded}
	}
	h.refresh(ctx)
	spare, share := min(h.spare.Load(), h.free.Load()), min(cmp.Or(h.bounds.FlowShare, mostOfAnswers), mostOfAnswers)
	k := &scripts.KeptBounds{Most: unbounded, Classes: make(map[string]int64, len(h.classes))}
	if spare < unbounded/2 {
		k.Most = max(0, int64(float64(spare)*float64(share)/float64(100-share)))
	}
	for name, room := range h.classes {
		if bytes := room.bytes.Load(); bytes < unbounded/2 {
			k.Classes[name] = bytes
		}
	}
	return k
}

// mostOfAnswers is the greatest percentage of the memory for answers that one flow may use.
const mostOfAnswers = 90

// noAnswers reports whether Redis has too little memory to store any answer.
func (h *headroom) noAnswers(ctx context.Context) bool {
	if h.bounds.FlowShare > 0 {
		h.refresh(ctx)
	}
	return h.full.Load()
}

// limit closes an admission to what may no longer be stored, by the last reading where Redis does
// not answer.
func (h *headroom) limit(ctx context.Context, c *scripts.AdmitCall) {
	if h.none() {
		return
	}
	h.refresh(ctx)
	free := h.free.Load()
	c.NoBytes = free <= 0
	c.NoTenants = h.bounds.Tenants > 0 && h.tenants.Load() >= h.bounds.Tenants
	c.Share = h.share(free)
}

// share returns how many bytes a flow may store while free bytes are left in all; 0 is no bound.
func (h *headroom) share(free int64) int64 {
	share := h.bounds.FlowShare
	if share <= 0 || share >= 100 || free <= 0 || free >= unbounded/2 {
		return 0
	}
	return max(1, int64(float64(free)*float64(share)/float64(100-share)))
}

// shareOf returns how many bytes each flow of the tenant may store now; 0 is no bound.
func (h *headroom) shareOf(ctx context.Context, t scripts.ScannedTenant) int64 {
	if h.bounds.FlowShare == 0 {
		return 0
	}
	h.refresh(ctx)
	free := h.free.Load()
	if tier := claimedTier(t); tier != "" && t.API == "" && t.File == "" {
		if room := h.classes[ClassOfTier(tier)]; room != nil {
			free = min(free, room.bytes.Load())
		}
	}
	return h.share(free)
}

// place is what a tenant that is new takes, and what refuses it.
type place struct {
	network string // that it takes a place in; empty for none
	closed  shaper.StorePart
	wait    time.Duration // until the network has a place
}

// enter returns the class of a submission's tenant, and reserves a place for a tenant that is new,
// in the class and in the network, if any; left gives it back.
func (h *headroom) enter(s *Submission) (c scripts.Class, at place) {
	name := ""
	if s.Guest {
		name = ClassGuests
	} else if s.Tier != "" && len(h.classes) > 0 {
		name = ClassOfTier(s.Tier)
	}
	if h.bounds.Reserve > 0 && !s.Vouched {
		c.NoBytes = h.common.Load() <= 0
		c.NoTenants = h.bounds.Tenants > 0 && h.tenants.Load() >= h.unreserved(h.bounds.Tenants)
		at.closed = shaper.PartReserve
	}
	room := h.classes[name]
	if room == nil {
		return c, at
	}
	free := room.bytes.Load()
	c.Name, c.Share = name, h.share(min(free, h.free.Load()))
	crowded := room.tenants.Add(-1) < 0
	if s.Guest && s.Network != "" && h.guests != nil {
		if at.wait = h.guests.take(s.Network, time.Now()); at.wait == 0 {
			at.network = s.Network
		}
	}
	switch {
	case free <= 0:
		at.closed = shaper.PartBytes
	case c.NoBytes: // by the reserve
	case crowded:
		at.closed = shaper.PartTenants
	case at.wait > 0:
		at.closed = shaper.PartNetwork
	}
	c.NoBytes, c.NoTenants = c.NoBytes || free <= 0, c.NoTenants || crowded || at.wait > 0
	return c, at
}

// explain completes a refusal by a part of the store.
func (h *headroom) explain(a *shaper.Admission, at place) {
	if a.Outcome != shaper.StoreFull || !a.OfPart {
		return
	}
	if a.Part = at.closed; a.Part == shaper.PartNetwork {
		a.PartGuests, a.RetryAfter = h.guests.most, at.wait
	}
}

// unreserved is the part of the store, or of its tenants, that is no reserve.
func (h *headroom) unreserved(most int64) int64 {
	return most - most/100*h.bounds.Reserve - most%100*h.bounds.Reserve/100
}

// left gives back the place that enter has reserved.
func (h *headroom) left(c scripts.Class, network string) {
	if room := h.classes[c.Name]; room != nil {
		room.tenants.Add(1)
	}
	if network != "" {
		h.guests.give(network)
	}
}

// joined notes how many tenants of a class a shard has.
func (h *headroom) joined(c scripts.Class, shard int, members int64) {
	if room := h.classes[c.Name]; room != nil && members >= 0 {
		more := members - room.members[shard].Swap(members)
		room.tenants.Add(-more)
		room.bytes.Add(-more * tenantBytes)
	}
}

// reading is what measure reads; see headroom.
type reading struct {
	free, common, spare, tenants int64
	full                         bool
	classes                      map[string]classReading
}

// classReading is what a class may store yet.
type classReading struct{ bytes, tenants int64 }

// measure reads how many bytes may still be stored: of a cluster, on its fullest master.
func (h *headroom) measure(ctx context.Context) (r reading, err error) {
	var nodes []engine.Memory
	var failed error
	var both sync.WaitGroup
	if h.bounds.FlowShare > 0 {
		both.Go(func() { nodes, failed = h.q.engine.conn.Memory(ctx) })
	}
	s, err := readShards(ctx, h.q.store, store.ShardKeys.Tenants)
	// The parts of answers that are still coming are in no sum of a shard.
	answers := max(0, s.answers) + h.q.broker.parts.sum()
	used, classErr := h.used(ctx)
	both.Wait()
	all := int64(0) // bytes that all tenants together may store; 0: no bound
	r = reading{free: unbounded, common: unbounded, spare: unbounded, tenants: s.size}
	bound := func(most, used int64) {
		r.free = min(r.free, most-used)
		r.common = min(r.common, h.unreserved(most)-used)
	}
	if h.bounds.Bytes > 0 {
		bound(h.bounds.Bytes, s.Stored)
		r.spare = h.bounds.Bytes/2 - answers
	}
	for _, n := range nodes {
		if most := n.IntakeMax(); most > 0 {
			bound(most, n.Counted)
			r.spare = min(r.spare, most/2-answers/int64(len(nodes)))
			all += most
		}
		r.full = r.full || n.Max > 0 && n.Counted > n.Max-(n.Max-n.IntakeMax())/2
	}
	if most := h.bounds.Bytes; most > 0 && (all == 0 || most < all) {
		all = most
	}
	r.classes = make(map[string]classReading, len(h.classes))
	for name, l := range h.bounds.Classes {
		left := classReading{unbounded, unbounded}
		if l.Bytes > 0 && all > 0 {
			left.bytes = int64(float64(all)/100*float64(l.Bytes)) - used[name].bytes
		}
		if l.Tenants > 0 && h.bounds.Tenants > 0 {
			left.tenants = max(1, h.bounds.Tenants*l.Tenants/100) - used[name].tenants
		}
		r.classes[name] = left
	}
	return r, errors.Join(err, failed, classErr)
}

// used reads what each class has stored.
func (h *headroom) used(ctx context.Context) (map[string]classReading, error) {
	sums := make(map[string]classReading, len(h.classes))
	if len(h.classes) == 0 {
		return sums, nil
	}
	var names, fields []string
	for name := range h.classes {
		names, fields = append(names, name), append(fields, scripts.ClassField(name))
	}
	members := make([]*redis.IntCmd, 0, h.q.store.Len()*len(names))
	clocks, err := store.Pipeline(ctx, h.q.store.Fast, h.q.store.Shards(),
		func(p redis.Pipeliner, shard store.ShardKeys) *redis.SliceCmd {
			for _, name := range names {
				members = append(members, p.SCard(ctx, shard.Class(name)))
			}
			return p.HMGet(ctx, shard.Clock(), fields...)
		})
	if err != nil {
		return nil, err
	}
	now, kept := shaper.InstantOf(time.Now()), h.q.retention
	for i, values := range clocks {
		for k, name := range names {
			text, _ := values[k].(string)
			c, err := scripts.ParseClass(text)
			if err != nil {
				return nil, store.Unavailable(err)
			}
			tenants := members[i*len(names)+k].Val()
			h.classes[name].members[i].Store(tenants)
			bytes := c.Stored + c.Answers.Left(now, kept.Finished) + c.Keys.Left(now, max(kept.Finished, kept.Idempotency))
			sums[name] = classReading{sums[name].bytes + bytes + tenants*tenantBytes, sums[name].tenants + tenants}
		}
	}
	return sums, nil
}

// admitted notes bytes that came in since the last reading, answered those of answers to forwarded
// requests.
func (h *headroom) admitted(bytes int64) {
	h.free.Add(-bytes)
	h.common.Add(-bytes)
}

func (h *headroom) answered(bytes int64) {
	h.admitted(bytes)
	h.spare.Add(-bytes)
}

// reserve takes bytes of a class until the answer; negative ones are given back.
func (h *headroom) reserve(c scripts.Class, bytes int64) {
	if room := h.classes[c.Name]; room != nil {
		room.bytes.Add(-bytes)
	}
}

// Totals sums the figures of all tenants. Errors: ErrUnavailable.
func (q *Queue) Totals(ctx context.Context) (Totals, error) {
	s, err := readShards(ctx, q.store, store.ShardKeys.Tenants)
	s.Tenants = s.size
	return s.Totals, err
}

// shardSums are sums over all shards, without the tenants.
type shardSums struct {
	Totals
	lapsed, dead int64
	answers      int64          // bytes of answers to forwarded requests
	size         int64          // of the sorted sets
	off          shaper.Instant // of the shard that is ahead the most
}

// readShards reads the clocks of the shards, and the sizes of one of their sorted sets.
func readShards(ctx context.Context, st *store.Store, set func(store.ShardKeys) string) (s shardSums, err error) {
	sizes := make([]*redis.IntCmd, 0, st.Len())
	clocks, err := store.Pipeline(ctx, st.Fast, st.Shards(),
		func(p redis.Pipeliner, shard store.ShardKeys) *redis.SliceCmd {
			sizes = append(sizes, p.ZCard(ctx, set(shard)))
			return p.HMGet(ctx, shard.Clock(), scripts.ClockNumbers, "lapsed", "dead", "kept")
		})
	if err != nil {
		return s, err
	}
	for i, fields := range clocks {
		numbers, _ := fields[0].(string) // nil of a shard that is new
		clock, err := scripts.ParseClock(numbers)
		if err != nil {
			return s, store.Unavailable(err)
		}
		s.off = max(s.off, clock.Off)
		s.Depth += clock.Depth
		s.Running += clock.Running
		s.Bytes += clock.Bytes
		s.Stored += clock.Stored
		s.Admitted += clock.Admitted
		s.Rejected += clock.Rejected
		s.Departed += clock.Departed
		for k, sum := range []*int64{&s.lapsed, &s.dead, &s.answers} {
			text, _ := fields[1+k].(string)
			n, err := strconv.ParseInt(cmp.Or(text, "0"), 10, 64)
			if err != nil {
				return s, store.Unavailable(err)
			}
			*sum += n
		}
		s.size += sizes[i].Val()
	}
	return s, nil
}
