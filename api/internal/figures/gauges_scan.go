package figures

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/scrape"
	"github.com/7509e464/sluice/queue"
)

// Bounds of a scan of all tenants. When the budget is used up, the next scrape or sample continues
// it.
const (
	scrapeBudget = 200 * time.Millisecond // of a scrape
	liveBudget   = 50 * time.Millisecond  // of a sample for event streams
	scanRest     = 20                     // pause after a scan, as a multiple of its duration
)

// scan reads the figures of all tenants, over several scrapes where there are many. It is not safe
// for concurrent use.
type scan struct {
	store   Store
	cursor  string
	gather  *findings // of the running scan; nil between two scans
	spent   time.Duration
	done    *findings // of the last complete scan; nil before the first
	endedAt time.Time
	rest    time.Duration
}

// goOn continues the scan, or begins another when it is due, and returns the findings of the last
// complete scan; nil before the end of the first. The next scan keeps the wanted tenants whatever
// their depth.
func (s *scan) goOn(ctx context.Context, wanted []string, budget time.Duration) *findings {
	if s.gather == nil {
		if s.done != nil && time.Since(s.endedAt) < s.rest {
			return s.done
		}
		s.gather, s.spent = newFindings(wanted), 0
	}
	begin := time.Now()
	for time.Since(begin) < budget {
		some, next, err := s.store.Scan(ctx, s.cursor, queue.ScanPage)
		if err != nil {
			break // the next scrape continues at the cursor
		}
		s.gather.add(some)
		if s.cursor = next; next == "" {
			s.spent += time.Since(begin)
			s.done, s.gather, s.endedAt, s.rest = s.gather, nil, time.Now(), max(scrape.Age, scanRest*s.spent)
			return s.done
		}
		select { // so that the scan takes at most about half of Redis
		case <-time.After(time.Duration(len(some)) * queue.ScanCost):
		case <-ctx.Done():
		}
	}
	s.spent += time.Since(begin)
	return s.done
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
