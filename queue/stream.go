package queue

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Stream is an answer that a client reads while it comes, from its first byte on.
type Stream struct {
	Head      []byte // the answer without its body, as package httpmsg encodes it
	Truncated bool   // it is only what is stored of it

	q      *Queue
	tenant string
	id     string
	at     int64 // bytes that the reader has got

	read     []byte // not returned yet
	complete bool   // the answer has no more
	broken   bool
	trailers []byte

	relay *Relay // nil: in another process

	// In another process:
	shard  store.ShardKeys
	name   string // of the reader
	epoch  int64
	number int64     // of the last part
	far    bool      // the last read took long
	looked time.Time // when the job was last looked at
	lapsed time.Time // since when the lease was seen to be over

	mu     sync.Mutex
	seen   time.Time   // when the store was last told of the reader
	told   int64       // how far it was then
	taking *time.Timer // tells the store of the reader while the client takes a piece; nil for none yet
	takes  bool        // the client does

	ended <-chan End
	stop  func()
	timer *time.Timer // of wait
}

// Stream returns the answer to a request of the tenant that comes now; nil for none. The caller
// must call Close. Errors: ErrUnavailable, ErrScript.
func (q *Queue) Stream(ctx context.Context, tenant, id string) (*Stream, error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return nil, nil
	}
	s := &Stream{q: q, tenant: tenant, id: id, shard: shard, name: q.reader + strconv.FormatInt(readers.Add(1), 36), stop: func() {}}
	if found, ok := q.broker.relays.Load(id); ok {
		if r := found.(*Relay); r.tenant == store.EncodeName(tenant) && !r.join(s) {
			return nil, nil // Relay announces the answer once it has begun
		}
	}
	if s.relay == nil {
		if n, err := q.store.Reads.Exists(ctx, shard.Stream(id)).Result(); err != nil || n == 0 {
			return nil, store.Unavailable(err)
		}
	}
	if s.ended, s.stop, err = q.Watch(ctx, id); err != nil {
		s.stop = func() {}
		s.Close()
		return nil, err
	}
	if s.relay == nil {
		if err := s.open(ctx); err != nil || s.Head == nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// join makes s a reader of the relay in this process, if that has begun.
func (r *Relay) join(s *Stream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun {
		return false
	}
	s.Head, s.relay = r.head, r
	s.Truncated = r.total > int64(r.most) && r.restAt > int64(len(r.body))
	r.local[s], r.joined = true, true
	r.notify()
	return true
}

// open reads the first parts. A reader that is in the store before the mark that bytes are not
// stored gets them all the same.
func (s *Stream) open(ctx context.Context) error {
	var newest *redis.XMessageSliceCmd
	_, err := s.q.store.Reads.Pipelined(ctx, func(p redis.Pipeliner) error {
		s.tell(ctx, p)
		newest = p.XRevRangeN(ctx, s.shard.Stream(s.id), "+", "-", 1)
		return nil
	})
	last := newest.Val()
	if err != nil || len(last) == 0 {
		return store.Unavailable(err)
	}
	epoch, number, _ := strings.Cut(last[0].ID, "-")
	s.epoch, _ = strconv.ParseInt(epoch, 10, 64)
	n, _ := strconv.ParseInt(number, 10, 64)
	kind, _, _, err := s.part(last[0], n)
	if err != nil {
		return err
	}
	if s.Truncated = kind == partCut; s.Truncated {
		s.forget(ctx)
	} else if n > 1 && kind != partEnd {
		s.call(ctx)
	}
	return s.more(ctx)
}

// call says that the reader waits. The process that passes the answer on may store its parts
// seldom, and would learn of the reader only then.
func (s *Stream) call(ctx context.Context) {
	_, _ = store.Invoke(ctx, s.q.store.Run, scripts.PublishCall{ // a failure costs partSeldom
		Clock: s.shard.Clock(), Channel: scripts.WakeChannel, Message: readsMessage + s.id,
	})
}

// part opens a part in the store.
func (s *Stream) part(m redis.XMessage, number int64) (kind byte, text []byte, bytes int64, err error) {
	raw, _ := m.Values["p"].(string)
	count, _ := m.Values["n"].(string)
	bytes, _ = strconv.ParseInt(count, 10, 64)
	tenant := store.EncodeName(s.tenant)
	text, err = s.q.box.Open(sealed.Part, tenant, partID(s.id, s.epoch, number), []byte(raw))
	if err != nil {
		return 0, nil, 0, unopened(err)
	}
	if len(text) == 0 {
		return 0, nil, 0, ErrBrokeOff
	}
	return text[0], text[1:], bytes, nil
}

// readerTime is how often a reader says that it is still there, and looks at the job. After
// readerGone it counts as gone.
const readerTime, readerGone = time.Second, 5 * time.Second

// A reader holds the parts of one read in memory: few, unless a read takes longer than farRead.
const (
	nearParts = 8
	farRead   = 10 * time.Millisecond
)

// more reads the next parts. It tells the store how far the reader is.
func (s *Stream) more(ctx context.Context) error {
	after := strconv.FormatInt(s.epoch, 10) + "-" + strconv.FormatInt(s.number, 10)
	var parts *redis.XStreamSliceCmd
	count, asked := int64(nearParts), time.Now()
	if s.far {
		count = callParts
	}
	_, err := s.q.store.Reads.Pipelined(ctx, func(p redis.Pipeliner) error {
		parts = p.XRead(ctx, &redis.XReadArgs{
			Streams: []string{s.shard.Stream(s.id), s.shard.Beyond(s.id), after, after}, Count: count, Block: -1,
		})
		if s.isNews() {
			s.tell(ctx, p)
		}
		return nil
	})
	s.far = time.Since(asked) > farRead
	if err != nil && !errors.Is(err, redis.Nil) {
		return store.Unavailable(err)
	}
	for _, from := range parts.Val() {
		for _, m := range from.Messages {
			if s.Truncated && from.Stream == s.shard.Beyond(s.id) {
				break
			}
			if m.ID != strconv.FormatInt(s.epoch, 10)+"-"+strconv.FormatInt(s.number+1, 10) {
				if from.Stream == s.shard.Beyond(s.id) && len(s.read) > 0 {
					break // those before it have still to be read
				}
				return ErrBrokeOff // the reader was too slow
			}
			s.number++
			kind, text, bytes, err := s.part(m, s.number)
			if err != nil {
				return err
			}
			switch kind {
			case partHead:
				s.Head = text
			case partData:
				s.read = append(s.read, text...)
			case partEnd:
				s.complete, s.trailers = true, text
			case partCut:
				s.complete = s.Truncated
			}
			if bytes != s.at+int64(len(s.read)) {
				return ErrBrokeOff // a part was not stored
			}
		}
	}
	return nil
}

// isNews reports whether the store should be told of the reader.
func (s *Stream) isNews() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.Truncated && (time.Since(s.seen) >= readerTime || s.at-s.told >= RelayAhead/8)
}

// tell tells the store how far the reader is.
func (s *Stream) tell(ctx context.Context, c redis.Cmdable) {
	s.mu.Lock()
	s.seen, s.told = time.Now(), s.at
	s.mu.Unlock()
	s.mark(ctx, c, s.at)
}

func (s *Stream) mark(ctx context.Context, c redis.Cmdable, at int64) {
	c.ZAdd(ctx, s.shard.Reading(s.id), redis.Z{Score: float64(at), Member: s.name})
	c.PExpire(ctx, s.shard.Reading(s.id), readerGone)
}

// taken says whether the client takes a piece now. That may last for long, and the reader must not
// count as gone meanwhile.
func (s *Stream) taken(takes bool) {
	if s.relay != nil || s.Truncated {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.takes = takes; {
	case !takes && s.taking != nil:
		s.taking.Stop()
	case takes && s.taking != nil:
		s.taking.Reset(readerTime)
	case takes:
		s.taking = time.AfterFunc(readerTime, s.remind)
	}
}

// remind tells the store of the reader while the client takes a piece. It holds the lock meanwhile,
// so that Next does not tell it a later place that this one would replace.
func (s *Stream) remind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.takes {
		return
	}
	at := s.told // s.at is the caller's
	ctx, cancel := context.WithTimeout(context.Background(), readerTime)
	defer cancel()
	_, _ = s.q.store.Reads.Pipelined(ctx, func(p redis.Pipeliner) error { // a failure is made good at the next
		s.mark(ctx, p, at)
		return nil
	})
	s.seen = time.Now()
	s.taking.Reset(readerTime)
}

// forget tells the store that the reader is gone.
func (s *Stream) forget(ctx context.Context) {
	_ = s.q.store.Reads.ZRem(ctx, s.shard.Reading(s.id), s.name).Err() // else it counts as gone after readerGone
}

// Next returns the next bytes of the body. It waits for them until the answer has ended (io.EOF)
// or broken off (ErrBrokeOff), or ctx ends. The caller has passed on what the call before returned.
func (s *Stream) Next(ctx context.Context) ([]byte, error) {
	s.taken(false)
	for signalled := false; ; {
		var err error
		var changed <-chan struct{}
		if s.relay != nil {
			changed = s.pull()
		} else if len(s.read) == 0 && !s.complete {
			if err = s.more(ctx); err != nil && !errors.Is(err, ErrUnavailable) {
				return nil, err
			}
		}
		switch {
		case len(s.read) > 0:
			return s.take(), nil
		case s.broken:
			return nil, ErrBrokeOff
		case s.complete && s.Truncated:
			return nil, io.EOF
		case err == nil && (s.complete || s.relay == nil) && (signalled || time.Since(s.looked) >= readerTime):
			if err = s.look(ctx); err != nil && !errors.Is(err, ErrUnavailable) {
				return nil, err
			}
			if len(s.read) > 0 {
				continue
			}
		}
		if signalled, err = s.wait(ctx, changed); err != nil {
			return nil, err
		}
	}
}

// take takes what was read.
func (s *Stream) take() (piece []byte) {
	if r := s.relay; r != nil { // its writer looks how far the readers are
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	piece = s.read
	s.at, s.read = s.at+int64(len(piece)), nil
	s.taken(true)
	return piece
}

// wait waits for a change, for a while.
func (s *Stream) wait(ctx context.Context, changed <-chan struct{}) (signalled bool, err error) {
	if s.timer == nil {
		s.timer = time.NewTimer(readerTime)
	} else {
		s.timer.Reset(readerTime)
	}
	select {
	case <-s.ended:
		return true, nil
	case <-changed:
	case <-s.timer.C:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return false, nil
}

// pull takes the next bytes of a relay in this process, and returns what tells of others.
func (s *Stream) pull() (changed <-chan struct{}) {
	r := s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	s.read = nil
	most := r.total
	if s.Truncated {
		most = int64(r.most)
	}
	switch {
	case s.at < min(most, int64(len(r.body))):
		s.read = r.body[s.at:min(most, int64(len(r.body)), s.at+4*partSize)]
	case s.at < most && s.at < r.restAt:
		s.broken = true // it was too slow
	case s.at < most:
		from := int(s.at - r.restAt)
		s.read = append([]byte(nil), r.rest[from:min(len(r.rest), from+4*partSize)]...)
	case r.broken || r.stale:
		s.broken = true
	case r.ended || s.Truncated:
		s.complete, s.trailers = true, r.end
	}
	if r.behind() >= r.mayBehind()-8*partSize { // its writer may wait
		r.notify()
	}
	return r.changed
}

// look looks at the job after all that has come was read. It returns io.EOF if that was all, and
// ErrBrokeOff if no more will come.
func (s *Stream) look(ctx context.Context) error {
	s.looked = time.Now()
	job, answer, err := s.q.Answer(ctx, s.tenant, s.id, End{})
	switch {
	case errors.Is(err, ErrUnavailable):
		return err
	case err != nil:
		return ErrBrokeOff
	case job.State == shaper.Leased:
		return s.leased(ctx)
	case s.complete && job.State == shaper.Succeeded:
		return io.EOF
	case s.complete || s.relay != nil:
		return ErrBrokeOff
	}
	// The last parts were not read yet, or are gone.
	err = s.more(ctx)
	switch {
	case err == nil && len(s.read) == 0 && s.complete && job.State == shaper.Succeeded:
		return io.EOF
	case err != nil, len(s.read) > 0, s.complete:
		return err
	}
	if job.State != shaper.Succeeded || answer == nil {
		return ErrBrokeOff
	}
	stored, err := answer.body(ctx)
	if err != nil {
		return err
	}
	if stored.Truncated || int64(len(stored.Body)) < s.at {
		return ErrBrokeOff
	}
	s.read, s.complete = stored.Body[s.at:], true
	if len(s.read) == 0 {
		return io.EOF
	}
	return nil
}

// leaseGone is how long the lease of an answer may be over while the store answers. A living worker
// extends it each second, and living workers end the job of one that is not heard of; but there may
// be none.
const leaseGone = 3 * time.Second

// leased returns ErrBrokeOff if the lease of the job has been over for long.
func (s *Stream) leased(ctx context.Context) error {
	if s.relay != nil {
		return nil
	}
	var end *redis.FloatCmd
	var now *redis.TimeCmd
	_, err := s.q.store.Reads.Pipelined(ctx, func(p redis.Pipeliner) error {
		end, now = p.ZScore(ctx, s.shard.Leases(), s.id), p.Time(ctx)
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, redis.Nil):
		s.lapsed = time.Time{}
		return store.Unavailable(err)
	case err != nil || shaper.Instant(end.Val()) > shaper.InstantOf(now.Val()):
		s.lapsed = time.Time{}
	case s.lapsed.IsZero():
		s.lapsed = time.Now()
	case time.Since(s.lapsed) >= leaseGone:
		return ErrBrokeOff
	}
	return nil
}

// body reads a stored answer as a whole.
func (a *Answer) body(ctx context.Context) (httpmsg.Answer, error) {
	whole := append([]byte(nil), a.Start...)
	for len(whole) < a.Size {
		piece, err := a.Read(ctx, len(whole), 4*partSize)
		if err != nil {
			return httpmsg.Answer{}, err
		}
		whole = append(whole, piece...)
	}
	return httpmsg.DecodeAnswer(whole)
}

// Trailers returns the trailers of an answer that has ended, encoded as an answer without a body;
// nil for none.
func (s *Stream) Trailers() []byte { return s.trailers }

// Close ends the reading.
func (s *Stream) Close() {
	s.stop()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.taken(false)
	if r := s.relay; r != nil {
		r.mu.Lock()
		delete(r.local, s)
		r.notify()
		r.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readerTime)
	defer cancel()
	s.forget(ctx)
}

// readers numbers the readers of this process.
var readers atomic.Int64
