package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Defaults of Options.
const (
	DefaultRetention = 365 * 24 * time.Hour
	DefaultMaxBytes  = 64 << 20
)

const (
	patience       = time.Second     // that a caller of Record waits for the chain
	callWait       = 5 * time.Second // for one call of Redis
	firstPause     = time.Second     // before entries are sent again
	maxPause       = 30 * time.Second
	complaintPause = 5 * time.Second // between two lines about a Redis that is away
	trimPause      = time.Hour       // between two looks at what is past retention

	batchEntries = 500 // of one call
	batchBytes   = 1 << 20
	tries        = 100 // of one call while other processes append

	heldEntries = 10_000 // that wait in memory while Redis is away
	heldBytes   = 8 << 20
)

// share is the percentage of the bytes that reads, and that refusals, may use.
const share = 20

// Options are the settings of a Log.
type Options struct {
	Retention time.Duration // after which an entry is removed; default DefaultRetention
	MaxBytes  int64         // of all entries in Redis; default DefaultMaxBytes
	Lines     io.Writer     // gets each entry as one line of JSON, in one Write; nil: none
	Logger    *slog.Logger  // default slog.Default()
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Log records entries. It is safe for concurrent use.
//
// One goroutine sends while others gather, so concurrent entries share a call. An entry that Redis
// does not take stays in memory and is sent again; its line is written at once. What exceeds the
// memory, or is left when the process ends, is lost for the chain and counted.
type Log struct {
	store   *store.Store
	options Options
	failed  prometheus.Counter
	lost    prometheus.Counter

	lines sync.Mutex // held while lines are written

	// Only the goroutine that sends uses these.
	batch   *batch // that may have been sent
	offset  time.Duration
	trimmed time.Time // when retention was last applied

	mu         sync.Mutex
	head       scripts.Chain // as last seen
	known      bool          // head was read
	waiting    []*pending
	held       int // bytes of waiting
	dropped    int64
	sending    chan struct{} // closed when the goroutine that sends ends; nil: there is none
	failing    bool          // the last call failed
	pause      time.Duration // before the next call after a failure
	closed     bool
	complained time.Time
	again      *time.Timer
	hourly     *time.Timer
	condenser
}

// pending is an entry that is not chained yet.
type pending struct {
	Entry
	sealed Entry // as in the chain, or as it was sent
	size   int
	tried  bool          // its line is written; Log.mu guards it
	done   chan struct{} // closed after the first try
}

// batch is what one call appends.
type batch struct {
	name    string
	entries []*pending
	remove  int
	unsure  bool // a try had no answer
	// remove must be of the chain whose first entry has this number
	first int64
}

// New returns the audit of a store. Its error is that of the metrics.
func New(s *store.Store, o Options) (*Log, error) {
	o.Retention, o.MaxBytes = cmp.Or(o.Retention, DefaultRetention), cmp.Or(o.MaxBytes, DefaultMaxBytes)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	l := &Log{
		store: s, options: o, pause: firstPause, condenser: newCondenser(),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_audit_failed_total",
			Help: "Audit entries that Redis did not take at once, so that they wait in the memory of this process and are sent again.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_audit_lost_total",
			Help: "Audit entries that are missing in the chain: too many waited for Redis, or Redis has lost them.",
		}),
	}
	if o.Registerer != nil {
		if err := errors.Join(o.Registerer.Register(l.failed), o.Registerer.Register(l.lost)); err != nil {
			return nil, fmt.Errorf("audit: metrics: %w", err)
		}
	}
	return l, nil
}

// Record chains an entry, or condenses it. It returns when the entry is in the chain, but waits for
// one second at most, and not at all while Redis does not answer: then the entry is sent later.
func (l *Log) Record(ctx context.Context, e Entry) {
	e.At = time.Now()
	e.fix()
	l.mu.Lock()
	if l.condense(&e) {
		l.mu.Unlock()
		return
	}
	healthy := !l.failing
	p := l.enqueue(e)
	l.mu.Unlock()
	if p != nil && !healthy {
		l.tell(p, p.Entry)
	}
	if p == nil || !healthy {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// enqueue hands an entry to the goroutine that sends. It returns nil if the memory is full. l.mu is
// held.
func (l *Log) enqueue(e Entry) *pending {
	p := &pending{Entry: e, done: make(chan struct{})}
	p.size = len(p.fields()) + 200
	if len(l.waiting) >= heldEntries || l.held+p.size > heldBytes || l.closed {
		l.dropped++
		l.lost.Inc()
		go l.line(e)
		return nil
	}
	l.waiting, l.held = append(l.waiting, p), l.held+p.size
	l.kick()
	return p
}

// kick starts the goroutine that sends. l.mu is held.
func (l *Log) kick() {
	if l.sending == nil && (len(l.waiting) > 0 || l.batch != nil) {
		l.sending = make(chan struct{})
		go l.send(l.sending)
	}
}

// Start applies the retention now and then once an hour, until Close.
func (l *Log) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat()
}

func (l *Log) beat() {
	if l.closed {
		return
	}
	l.hourly = time.AfterFunc(trimPause, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.beat()
	})
	if l.sending == nil {
		l.sending = make(chan struct{})
		go l.send(l.sending)
	}
}

// Close writes what was condensed and what waits, until ctx ends. Entries that come later are lost.
func (l *Log) Close(ctx context.Context) {
	l.mu.Lock()
	l.flush(time.Now(), true)
	l.closed = true
	for _, t := range []*time.Timer{l.again, l.hourly, l.timer} {
		if t != nil {
			t.Stop()
		}
	}
	l.kick()
	sending := l.sending
	l.mu.Unlock()
	if sending != nil {
		select {
		case <-sending:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := len(l.waiting); left > 0 {
		l.lost.Add(float64(left))
		l.options.Logger.Error("audit entries are lost for the chain: redis did not take them before the end",
			"entries", left)
	}
}

// send sends what waits, until nothing does or a call fails.
func (l *Log) send(ended chan struct{}) {
	defer close(ended)
	for {
		b := l.next()
		var err error
		if b != nil {
			err = l.chain(b)
			l.settle(b, err)
		}
		if err == nil {
			err = l.trim()
		}
		l.mu.Lock()
		var untold []*pending // that wait behind a batch without an answer
		if l.failing = err != nil; err != nil {
			l.complain(err)
			untold = slices.Clone(l.waiting)
		} else {
			l.pause = firstPause
		}
		ends := err != nil || len(l.waiting) == 0
		if ends {
			l.sending = nil
		}
		l.mu.Unlock()
		for _, p := range untold {
			l.tell(p, p.Entry)
		}
		if ends {
			return
		}
	}
}

// complain logs a failure and plans the next try. l.mu is held.
func (l *Log) complain(err error) {
	if now := time.Now(); now.Sub(l.complained) >= complaintPause {
		l.complained = now
		l.options.Logger.Error("the audit cannot be written; its entries wait in memory and are sent again",
			"entries", len(l.waiting), "error", err)
	}
	if l.closed {
		return
	}
	l.again = time.AfterFunc(l.pause, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.kick()
	})
	l.pause = min(2*l.pause, maxPause)
}

// next returns what to send: what may have been sent before, or the first entries that wait.
func (l *Log) next() *batch {
	if l.batch != nil {
		return l.batch
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < min(len(l.waiting), batchEntries) && (n == 0 || size+l.waiting[n].size <= batchBytes) {
		size += l.waiting[n].size
		n++
	}
	if n == 0 {
		return nil
	}
	l.batch = newBatch(l.waiting[:n:n])
	return l.batch
}

func newBatch(entries []*pending) *batch {
	name := make([]byte, 8)
	_, _ = rand.Read(name) // never fails
	return &batch{name: hex.EncodeToString(name), entries: entries}
}

// settle takes chained entries out of the memory, and writes lines.
func (l *Log) settle(b *batch, err error) {
	fresh := 0
	for _, p := range b.entries {
		e := p.sealed
		if err != nil { // it may get another hash
			e = p.Entry
		}
		if l.tell(p, e) {
			fresh++
		}
	}
	if err != nil {
		l.failed.Add(float64(fresh))
		return
	}
	l.batch = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range b.entries {
		l.held -= p.size
	}
	l.waiting = l.waiting[len(b.entries):]
	if l.dropped > 0 {
		n := l.dropped
		l.dropped = 0
		l.note(Lost, map[string]any{"count": n, "reason": "redis was away and the memory was full"})
	}
}

// tell writes the line of an entry, once, and ends the wait for it.
func (l *Log) tell(p *pending, e Entry) (first bool) {
	l.mu.Lock()
	first, p.tried = !p.tried, true
	l.mu.Unlock()
	if first {
		l.line(e)
		close(p.done)
	}
	return first
}

// note adds an entry of the audit about itself. l.mu is held.
func (l *Log) note(action string, detail any) {
	e := Entry{At: time.Now(), Actor: self, Action: action, Detail: detail, Outcome: OK}
	e.fix()
	l.enqueue(e)
}

// line writes the line of an entry.
func (l *Log) line(e Entry) {
	if l.options.Lines == nil {
		return
	}
	l.lines.Lock()
	defer l.lines.Unlock()
	if _, err := io.WriteString(l.options.Lines, e.fields()+"\n"); err != nil {
		l.options.Logger.Error("a line of the audit cannot be written", "action", e.Action, "error", err)
	}
}

// chain appends the entries of a batch behind the end of the chain.
func (l *Log) chain(b *batch) error {
	if !l.known {
		if err := l.look(); err != nil {
			return err
		}
	}
	for range tries {
		head := l.head
		if b.remove > 0 && head.First != b.first {
			return errTrimmed
		}
		call := scripts.ChainCall{
			Clock: store.AuditClock, Entries: store.AuditKey, Name: b.name, Previous: head.Hash, Remove: b.remove,
		}
		at, _ := time.Parse(timeFormat, head.At)
		previous := head.Hash
		for _, p := range b.entries {
			e := p.Entry
			if e.At = e.At.Add(l.offset); e.At.Before(at) {
				e.At = at
			}
			e.seal(previous)
			at, previous = e.At.UTC().Truncate(time.Microsecond), e.Hash
			p.sealed = e
			call.Append = append(call.Append, string(rune(e.class()))+e.fields())
		}
		call.Last, call.LastAt = previous, formatTime(at)
		sent := time.Now()
		answer, err := l.exec(call)
		if err != nil {
			b.unsure = true
			return err
		}
		l.met(answer, sent)
		if answer.Applied {
			return nil
		}
		if b.unsure { // so many calls may have come in between that Redis has forgotten this one
			if there, err := l.has(head.First+head.Count, call.Last); there || err != nil {
				return err
			}
			b.unsure = false
		}
	}
	return errBusy
}

var (
	errBusy    = errors.New("audit: too many concurrent entries of other processes")
	errTrimmed = errors.New("audit: another process has removed the oldest entries")
)

// look reads the end of the chain.
func (l *Log) look() error {
	sent := time.Now()
	answer, err := l.exec(scripts.ChainCall{Clock: store.AuditClock, Entries: store.AuditKey, Name: newBatch(nil).name})
	if err == nil {
		l.met(answer, sent)
	}
	return err
}

func (l *Log) exec(call scripts.ChainCall) (scripts.Chain, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callWait)
	defer cancel()
	answer, err := store.Invoke(ctx, l.store.RunDurable, call)
	if err != nil {
		return answer, fmt.Errorf("audit: %w", err)
	}
	return answer, nil
}

// met takes the end of the chain from an answer. Numbers never fall, so an end before the former
// one means that Redis has lost entries, as in a failover.
func (l *Log) met(now scripts.Chain, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offset = time.UnixMicro(now.Now).Sub(sent.Add(time.Since(sent) / 2))
	former := l.head
	if missing := former.First + former.Count - now.First - now.Count; l.known && missing > 0 {
		l.lost.Add(float64(missing))
		l.options.Logger.Error("redis has lost entries of the audit", "entries", missing, "last", former.Hash)
		l.note(Lost, map[string]any{"count": missing, "last_hash": former.Hash, "reason": "redis has lost them"})
	}
	l.head, l.known = now, true
}

// has reports whether the chain has a hash, from the entry with this number on.
func (l *Log) has(from int64, hash string) (bool, error) {
	for before := int64(0); ; {
		part, err := l.part(before, pageEntries)
		if err != nil {
			return false, err
		}
		for _, e := range part.Entries {
			if i, err := parse(e); err == nil && i.Hash == hash {
				return true, nil
			}
		}
		if before = part.From; before <= from || len(part.Entries) == 0 {
			return false, nil
		}
	}
}

// trim removes the oldest entries while there are too many bytes or they are past retention. An
// entry names the last hash that was removed.
func (l *Log) trim() error {
	for {
		now := time.Now()
		late := now.Sub(l.trimmed) >= trimPause
		bytes := func() int64 { return l.head.Changes + l.head.Reads + l.head.Refusals }
		if l.known && bytes() <= l.options.MaxBytes && !late {
			return nil
		}
		if err := l.look(); err != nil {
			return err
		}
		part, err := l.part(l.head.First+batchEntries, batchEntries)
		if err != nil {
			return err
		}
		end, size := now.Add(l.offset).Add(-l.options.Retention), bytes()
		low := size
		if size > l.options.MaxBytes {
			low = l.options.MaxBytes / 20 * 19 // so that not every entry removes one
		}
		reason, n, last := "retention", 0, Item{}
		for ; n < len(part.Entries) && part.From == l.head.First; n++ {
			i, err := parse(part.Entries[n])
			old := err == nil && !i.time().After(end)
			if !old && size <= low || int64(n) >= l.head.Count-1 {
				break
			}
			if !old {
				reason = "max_bytes"
			}
			size -= int64(len(part.Entries[n]))
			last = i
		}
		if n == 0 {
			l.trimmed = now
			return nil
		}
		e := Entry{At: now, Actor: self, Action: Trimmed, Outcome: OK, Detail: map[string]any{
			"count": n, "last_hash": last.Hash, "last_at": last.At, "reason": reason,
		}}
		e.fix()
		b := newBatch([]*pending{{Entry: e, done: make(chan struct{})}})
		b.remove, b.first = n, part.From
		switch err := l.chain(b); {
		case errors.Is(err, errTrimmed):
		case err != nil:
			return err
		default:
			l.line(b.entries[0].sealed)
			if n < batchEntries { // the entry about it may be old itself, for a short retention
				l.trimmed = now
			}
		}
	}
}
