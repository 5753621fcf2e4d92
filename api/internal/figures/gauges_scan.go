package figures

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/internal/scrape"
	"github.com/7509e464/sluice/queue"
)

// Bounds of a scan that is made in steps. When the budget of one is used up, the next continues it.
const (
	scrapeBudget = 200 * time.Millisecond // of a scrape
	liveBudget   = 50 * time.Millisecond  // of a sample for event streams
	scanRest     = 20                     // pause after a scan, as a multiple of its duration
)

// scanner reads up to limit tenants; next is the cursor of the following call, "" starts and ends.
type scanner interface {
	Scan(ctx context.Context, cursor string, limit int) (part []queue.Brief, next string, err error)
}

// tally has the findings of the last scan of all tenants. Watches and Remember make whole scans.
// Where there is no recent one, scrapes make theirs in steps, and so do overviews.
type tally struct {
	source scanner
	last   atomic.Pointer[findings] // of the last complete scan; nil before the first

	baton   chan struct{} // full while somebody scans
	wanted  []string      // tenants that the next scan keeps whatever their depth
	cursor  string
	gather  *findings // of the running scan; nil between two scans
	spent   time.Duration
	endedAt time.Time
	rest    time.Duration
}

func newTally(source scanner) *tally { return &tally{source: source, baton: make(chan struct{}, 1)} }

// goOn continues the scan, or begins another when it is due, and returns the findings of the last
// complete scan; nil before the end of the first.
func (t *tally) goOn(ctx context.Context, budget time.Duration) *findings {
	if t.gather == nil {
		if last := t.last.Load(); last != nil && time.Since(t.endedAt) < t.rest {
			return last
		}
		t.gather, t.spent = newFindings(t.wanted), 0
	}
	begin := time.Now()
	for time.Since(begin) < budget {
		some, next, err := t.source.Scan(ctx, t.cursor, queue.ScanPage)
		if err != nil {
			break // the next step continues at the cursor
		}
		t.gather.add(some)
		if t.cursor = next; next == "" {
			t.spent += time.Since(begin)
			t.end(t.gather, max(scrape.Age, scanRest*t.spent))
			return t.last.Load()
		}
		select { // so that the scan takes at most about half of Redis
		case <-time.After(queue.ScanCost(some)):
		case <-ctx.Done():
		}
	}
	t.spent += time.Since(begin)
	return t.last.Load()
}

// end stores the findings of a complete scan. None begins before the rest is over.
func (t *tally) end(found *findings, rest time.Duration) {
	t.last.Store(found)
	t.cursor, t.gather, t.endedAt, t.rest = "", nil, time.Now(), rest
}

// scrape is a step for a scrape that wants these tenants.
func (t *tally) scrape(ctx context.Context, wanted []string) *findings {
	t.baton <- struct{}{}
	defer t.leave()
	t.wanted = wanted
	return t.goOn(ctx, scrapeBudget)
}

// sample is a step for an overview, unless the last scan is recent or somebody is scanning.
func (t *tally) sample(ctx context.Context) {
	select {
	case t.baton <- struct{}{}:
		defer t.leave()
	default:
		return
	}
	if t.last.Load() == nil || time.Since(t.endedAt) >= scanAge {
		t.goOn(ctx, liveBudget)
	}
}

func (t *tally) leave() { <-t.baton }

// note takes a whole scan.
func (t *tally) note(c *Scan) {
	t.baton <- struct{}{}
	defer t.leave()
	found := newFindings(t.wanted)
	for some := range slices.Chunk(c.Briefs, queue.ScanPage) {
		found.add(some)
	}
	t.end(found, scanAge)
}

// still notes that nothing has changed since the last whole scan.
func (t *tally) still() {
	t.baton <- struct{}{}
	defer t.leave()
	t.endedAt = time.Now()
}

// findings are the results of a scan. They keep only the tenants that may be shown, to stay small.
type findings struct {
	dead    int64
	wanted  map[string]queue.Brief
	deepest []queue.Brief // the deepest first
	waits   []queue.Brief // the longest wait first
}

// foundMost is one more than the tenants that may be shown.
const foundMost = MaxShown + 1

func newFindings(wanted []string) *findings {
	f := &findings{wanted: make(map[string]queue.Brief, len(wanted))}
	for _, name := range wanted {
		f.wanted[name] = queue.Brief{Name: name}
	}
	return f
}

func (f *findings) add(some []queue.Brief) {
	for _, b := range some {
		f.dead += b.Dead // counts a tenant twice that the scan returned twice, which is rare
		if _, is := f.wanted[b.Name]; is {
			f.wanted[b.Name] = b
		}
		if b.Depth > 0 {
			f.deepest = append(f.deepest, b)
		}
		if b.OldestWait > 0 {
			f.waits = append(f.waits, b)
		}
	}
	f.deepest = first(f.deepest, func(a, b queue.Brief) int { return cmp.Compare(b.Depth, a.Depth) })
	f.waits = first(f.waits, func(a, b queue.Brief) int { return cmp.Compare(b.OldestWait, a.OldestWait) })
}

// first keeps the first foundMost in the order, each tenant once; equal ones are ordered by name.
func first(list []queue.Brief, order func(a, b queue.Brief) int) []queue.Brief {
	slices.SortFunc(list, func(a, b queue.Brief) int { return cmp.Or(order(a, b), cmp.Compare(a.Name, b.Name)) })
	list = slices.CompactFunc(list, func(a, b queue.Brief) bool { return a.Name == b.Name })
	return slices.Clip(list[:min(len(list), foundMost)])
}

// of returns the figures of a tenant, zero figures if they were not kept.
func (f *findings) of(tenant string) queue.Brief {
	if b, is := f.wanted[tenant]; is {
		return b
	}
	if i := slices.IndexFunc(f.deepest, func(b queue.Brief) bool { return b.Name == tenant }); i >= 0 {
		return f.deepest[i]
	}
	return queue.Brief{Name: tenant}
}

// oldest is the longest wait of all tenants.
func (f *findings) oldest() time.Duration { return f.oldestBut(func(string) bool { return false }) }

// oldestBut is the longest wait of all tenants except those that out reports, at most MaxShown.
func (f *findings) oldestBut(out func(tenant string) bool) time.Duration {
	for _, b := range f.waits {
		if !out(b.Name) {
			return b.OldestWait
		}
	}
	return 0
}
