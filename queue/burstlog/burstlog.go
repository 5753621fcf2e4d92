// Package burstlog tells of many like events in few lines of a log. A burst is told a second after it began, with how many events it had by then,
// and once a minute while it lasts; what happens alone is told as well, a second later. A line names the tenant and route of the events, the
// tenant encoded as in the store's keys, for its text is a client's. When more bursts are due at once than anybody reads, the largest are told and
// the others summed up.
package burstlog

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	soon     = time.Second // from the first event of a burst to its first line
	every    = time.Minute // between two lines of one burst
	maxLines = 10          // at once
	maxKeys  = 10_000      // bursts that are told apart; what exceeds them is summed up
)

// Key is what like events have in common. Empty parts are left out of the line.
type Key struct {
	Tenant string // as the client names it
	Route  string
	Kind   string // what exactly happens, such as queue-full
}

// Log tells of one kind of event. It is safe for concurrent use, and runs nothing while nothing happens. A nil *Log tells nothing.
type Log struct {
	log     *slog.Logger
	level   slog.Level
	message string
	told    func(Key) // called after a line of the burst, outside of any lock; may be nil

	telling sync.Mutex // held while lines are written

	mu     sync.Mutex
	bursts map[Key]*burst
	beyond int64 // events that found no place
	timer  *time.Timer
}

// burst is what happened since its last line.
type burst struct {
	count   int64
	began   time.Time // of these events
	due     time.Time // of the next line
	example []any     // attributes of the latest event
}

// New is a log of events that the message names. told, unless it is nil, is called with a burst after each of its lines.
func New(log *slog.Logger, level slog.Level, message string, told func(Key)) *Log {
	return &Log{log: log, level: level, message: message, told: told, bursts: map[Key]*burst{}}
}

// Add notes n events. The example is attributes of the latest one, which its line shows; it must be fit for a log.
func (l *Log) Add(k Key, n int64, example ...any) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bursts[k]
	switch {
	case b == nil && len(l.bursts) >= maxKeys:
		l.beyond += n
		return
	case b == nil:
		now := time.Now()
		b = &burst{began: now, due: now.Add(soon)}
		l.bursts[k] = b
		if l.timer == nil {
			l.timer = time.AfterFunc(soon, func() { l.tell(false) })
		}
	case b.count == 0:
		b.began = time.Now()
	}
	b.count += n
	if len(example) > 0 {
		b.example = example
	}
}

// Flush tells what was not told yet, and forgets it all. When it returns, nothing of the log runs any more.
func (l *Log) Flush() {
	if l != nil {
		l.tell(true)
	}
}

// line is a burst to be told.
type line struct {
	Key
	burst
}

// tell writes the lines that are due and plans the next ones.
func (l *Log) tell(all bool) {
	l.telling.Lock()
	defer l.telling.Unlock()
	lines, beyond := l.take(all, time.Now())
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Route, b.Route), cmp.Compare(a.Kind, b.Kind))
	})
	ctx := context.Background()
	for _, s := range lines[:min(len(lines), maxLines)] {
		l.log.Log(ctx, l.level, l.message, s.attributes()...)
	}
	others := lines[min(len(lines), maxLines):]
	for _, s := range others {
		beyond += s.count
	}
	if beyond > 0 {
		l.log.Log(ctx, l.level, l.message+" (others, summed up)", "bursts", len(others), "count", beyond)
	}
	if l.told != nil {
		for _, s := range lines[:min(len(lines), maxLines)] {
			l.told(s.Key)
		}
	}
}

// take removes what is to be told.
func (l *Log) take(all bool, now time.Time) (lines []line, beyond int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next time.Time
	for k, b := range l.bursts {
		due := !b.due.After(now)
		if b.count > 0 && (due || all) {
			lines = append(lines, line{k, *b})
			*b = burst{due: now.Add(every)}
		} else if due {
			delete(l.bursts, k) // nothing for a minute: the burst is over
			continue
		}
		if next.IsZero() || b.due.Before(next) {
			next = b.due
		}
	}
	beyond, l.beyond = l.beyond, 0
	if all {
		clear(l.bursts)
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if len(l.bursts) > 0 {
		l.timer = time.AfterFunc(max(soon, next.Sub(now)), func() { l.tell(false) })
	}
	return lines, beyond
}

func (s line) attributes() []any {
	var attributes []any
	add := func(name, value string) {
		if value != "" {
			attributes = append(attributes, name, value)
		}
	}
	if s.Tenant != "" {
		add("tenant", queue.EncodeName(s.Tenant))
	}
	add("route", s.Route)
	add("kind", s.Kind)
	attributes = append(attributes, "count", s.count, "within", time.Since(s.began).Round(time.Millisecond).String())
	return append(attributes, s.example...)
}
