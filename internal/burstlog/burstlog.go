// Package burstlog logs many equal events in few lines. A burst is logged a second after it began,
// with its number of events, then once a minute while it lasts. Of more than maxLines bursts that
// are due at once, the largest are logged and the others summed up. Lines hold the tenant's name as
// in keys.
package burstlog

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

const (
	soon     = time.Second // from the first event of a burst to its first line
	every    = time.Minute // between two lines of one burst
	maxLines = 10          // at once
	maxKeys  = 10_000      // distinct bursts; events beyond them are summed up
)

// Key identifies equal events. Empty parts are left out of the line.
type Key struct {
	Tenant string // as the client names it
	Route  string // as the configuration names it
	Kind   string // what exactly happens, such as queue-full
}

// Log logs one kind of event. It is safe for concurrent use. A nil *Log logs nothing.
type Log struct {
	log     *slog.Logger
	level   slog.Level
	message string
	logged  func(Key) // called after a line of the burst, with no lock held; may be nil

	writing sync.Mutex // held while lines are written

	mu     sync.Mutex
	bursts map[Key]*burst
	beyond int64 // events beyond maxKeys
	timer  *time.Timer
	fires  time.Time // of the timer
}

// burst is what happened since its last line.
type burst struct {
	Key
	count   int64
	began   time.Time // of these events
	due     time.Time // of the next line
	example []any     // attributes of the latest event
}

// New returns a log with this message. logged may be nil; it is called after each line of a burst.
func New(log *slog.Logger, level slog.Level, message string, logged func(Key)) *Log {
	return &Log{log: log, level: level, message: message, logged: logged, bursts: map[Key]*burst{}}
}

// Add records n events. The example, slog attributes of the latest event, must be fit for a log.
func (l *Log) Add(k Key, n int64, example ...any) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bursts[k]
	if b == nil {
		if len(l.bursts) >= maxKeys {
			l.beyond += n
			return
		}
		b = &burst{Key: k, due: time.Now().Add(soon)}
		l.bursts[k] = b
		if l.timer == nil || l.fires.After(b.due) {
			l.plan(soon)
		}
	}
	if b.count == 0 {
		b.began = time.Now()
	}
	b.count += n
	if len(example) > 0 {
		b.example = example
	}
}

// Flush logs the events that are not logged yet and forgets all bursts.
func (l *Log) Flush() {
	if l != nil {
		l.write(true)
	}
}

// write writes the lines that are due and plans the next ones.
func (l *Log) write(all bool) {
	l.writing.Lock()
	defer l.writing.Unlock()
	lines, beyond := l.take(all, time.Now())
	slices.SortFunc(lines, func(a, b burst) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Route, b.Route),
			cmp.Compare(a.Kind, b.Kind))
	})
	largest := lines[:min(len(lines), maxLines)]
	ctx := context.Background()
	for _, s := range largest {
		l.log.Log(ctx, l.level, l.message, s.attributes()...)
	}
	others := lines[len(largest):]
	for _, s := range others {
		beyond += s.count
	}
	if beyond > 0 {
		l.log.Log(ctx, l.level, l.message+" (others, summed up)", "bursts", len(others), "count", beyond)
	}
	if l.logged != nil {
		for _, s := range largest {
			l.logged(s.Key)
		}
	}
}

// take removes the bursts that are due, or all of them.
func (l *Log) take(all bool, now time.Time) (lines []burst, beyond int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next time.Time
	for k, b := range l.bursts {
		due := !b.due.After(now)
		if b.count > 0 && (due || all) {
			lines = append(lines, *b)
			*b = burst{Key: k, due: now.Add(every)}
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
		l.plan(max(soon, next.Sub(now)))
	}
	return lines, beyond
}

// plan has lines written after a time, and not at another one that was planned. The lock is held.
func (l *Log) plan(after time.Duration) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer, l.fires = time.AfterFunc(after, func() { l.write(false) }), time.Now().Add(after)
}

func (s burst) attributes() (attributes []any) {
	tenant := ""
	if s.Tenant != "" {
		tenant = store.EncodeName(s.Tenant)
	}
	for _, part := range [][2]string{{"tenant", tenant}, {"route", s.Route}, {"kind", s.Kind}} {
		if part[1] != "" {
			attributes = append(attributes, part[0], part[1])
		}
	}
	within := time.Since(s.began).Round(time.Millisecond)
	return append(append(attributes, "count", s.count, "within", within.String()), s.example...)
}
