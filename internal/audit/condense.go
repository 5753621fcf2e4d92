package audit

import (
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
)

// Reads and refusals can come in any number, so each process counts those beyond a bound, and
// chains the counts. Changes that were made are never condensed.
const (
	window     = time.Minute
	pageWindow = time.Hour // of pages that refresh themselves
	overWindow = time.Hour // of a class beyond its share

	alone        = 60  // entries of their own in a window, of one actor, address and action
	maxAddresses = 20  // with wrong credentials in windows of their own
	maxWindows   = 200 // of other kinds
	maxSubjects  = 50  // that the entry with the count names
)

// rare are the actions that have one entry in a window, and how long it is.
var rare = map[string]time.Duration{Refused: window, LoginFailed: window, PageRead: pageWindow}

// Others is the address, and the actor, of an entry that counts those beyond the bound.
const Others = "others"

// kind is what is counted together.
type kind struct {
	action, actor, role, address, outcome string
}

// counted is one window of a kind.
type counted struct {
	began    time.Time
	own      int // entries of their own
	more     int64
	subjects []string
	known    map[string]bool // subjects of reads with entries of their own, also in windows before
	last     Entry           // of more
}

// condenser is the part of a Log that condenses; Log.mu guards it.
type condenser struct {
	windows map[kind]*counted
	over    map[byte]*overflow
	timer   *time.Timer
}

// overflow counts the entries of a class that has used its share.
type overflow struct {
	began   time.Time
	actions map[string]int64
}

func newCondenser() condenser {
	return condenser{windows: map[kind]*counted{}, over: map[byte]*overflow{}}
}

// condense reports whether the entry is only counted.
func (l *Log) condense(e *Entry) bool {
	class := e.class()
	if class == scripts.AuditChange {
		return false
	}
	if l.full(class) {
		o := l.over[class]
		if o == nil {
			o = &overflow{began: e.At, actions: map[string]int64{}}
			l.over[class] = o
			l.plan()
		}
		o.actions[e.Action]++
		return true
	}
	_, once := rare[e.Action]
	k := kind{e.Action, e.Actor, e.Role, network(e.Address), e.Outcome}
	if once { // the outcome of guesses changes with their number
		k.outcome = ""
	}
	w := l.windows[k]
	if w == nil && l.crowded(e.Action) {
		if e.Actor != "" {
			e.Actor = Others
		}
		e.Role, e.Address = "", Others
		k = kind{action: e.Action, address: Others}
		w = l.windows[k]
	}
	if w == nil {
		w = &counted{began: e.At}
		l.windows[k] = w
		l.plan()
	}
	most := alone
	if once {
		most = 1
	}
	again := class == scripts.AuditRead && w.known[e.Subject] // as by a page that refreshes itself
	if w.own < most && !again {
		if w.known == nil || len(w.known) > maxWindows {
			w.known = map[string]bool{}
		}
		w.known[e.Subject] = true
		if w.own++; once && e.details == "null" {
			e.details = `{"count":1}`
		}
		return false
	}
	w.more++
	w.last = *e
	if len(w.subjects) < maxSubjects && e.Subject != "" && !slices.Contains(w.subjects, e.Subject) {
		w.subjects = append(w.subjects, e.Subject)
	}
	return true
}

// crowded reports whether no further kind of an action gets a window of its own.
func (l *Log) crowded(action string) bool {
	once, n, guesses := rare[action] == window, 0, 0
	for k := range l.windows {
		if rare[k.action] == window {
			guesses++
		} else {
			n++
		}
	}
	return once && guesses >= maxAddresses || !once && n >= maxWindows
}

// full reports whether a class has used its share of the bytes.
func (l *Log) full(class byte) bool {
	used := l.head.Reads
	if class == scripts.AuditRefusal {
		used = l.head.Refusals
	}
	return used >= l.options.MaxBytes*share/100
}

// network is what of an address is counted together: /64 of IPv6.
func network(address string) string {
	if a, err := parseAddress(address); err == nil {
		return a
	}
	return address
}

// plan lets flush run when the first window ends.
func (l *Log) plan() {
	if l.closed {
		return
	}
	var first time.Time
	for k, w := range l.windows {
		if end := w.began.Add(lengthOf(k)); first.IsZero() || end.Before(first) {
			first = end
		}
	}
	for _, o := range l.over {
		if end := o.began.Add(overWindow); first.IsZero() || end.Before(first) {
			first = end
		}
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if first.IsZero() {
		return
	}
	l.timer = time.AfterFunc(time.Until(first), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flush(time.Now(), false)
	})
}

func lengthOf(k kind) time.Duration {
	if d, once := rare[k.action]; once {
		return d
	}
	return window
}

// flush chains the counts of the windows that have ended, or of all. l.mu is held.
func (l *Log) flush(now time.Time, all bool) {
	for k, w := range l.windows {
		if !all && now.Before(w.began.Add(lengthOf(k))) {
			continue
		}
		if w.more == 0 {
			delete(l.windows, k)
			continue
		}
		detail := map[string]any{"count": w.more, "since": formatTime(w.began.Add(l.offset))}
		if len(w.subjects) > 0 {
			detail["subjects"] = w.subjects
		}
		e := w.last
		e.At, e.Subject, e.Detail, e.before, e.after = now, "", detail, "null", "null"
		e.details = value(detail)
		l.enqueue(e)
		next := &counted{began: now, known: w.known}
		if _, once := rare[k.action]; once {
			next.own = 1
		}
		l.windows[k] = next
	}
	for class, o := range l.over {
		if !all && now.Before(o.began.Add(overWindow)) {
			continue
		}
		e := Entry{At: now, Actor: self, Action: Condensed, Outcome: OK, Detail: map[string]any{
			"counts": o.actions, "since": formatTime(o.began.Add(l.offset)),
			"reason": "entries of this kind have used their share of audit.max_bytes",
		}}
		if class == scripts.AuditRefusal {
			e.Outcome = "refused"
		}
		e.fix()
		l.enqueue(e)
		delete(l.over, class)
	}
	l.plan()
}
