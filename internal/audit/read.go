package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

const (
	pageEntries = 200 // of one call
	// scanned bounds the entries that one Find reads, and scannedBytes their bytes.
	scanned      = 5000
	scannedBytes = 4 << 20
)

// Query selects entries. Empty fields select all.
type Query struct {
	Since, Until           time.Time // Since is included, Until is not
	Actor, Action, Subject string    // an action that ends with a dot selects all that begin so
	Limit                  int
	Before                 int64 // number of the entry where an earlier Find ended; 0: the newest
}

// Page is what Find returns.
type Page struct {
	Items []Item // the newest first
	Next  int64  // Before of the next Find; 0: there are no further entries
}

// Find returns entries, the newest first. It reads a bounded part of the chain, so it may return
// fewer than Limit, or none, although there are more: follow Next. Errors: store.ErrUnavailable.
func (l *Log) Find(ctx context.Context, q Query) (Page, error) {
	page, read, size := Page{Items: []Item{}}, 0, 0
	before := q.Before
	if before == 0 && !q.Until.IsZero() {
		var err error
		if before, err = l.end(ctx, q.Until); err != nil {
			return page, err
		}
		if before <= 1 {
			return page, nil
		}
	}
	for {
		part, err := l.partOf(ctx, before, min(pageEntries, max(q.Limit, 20)))
		if err != nil {
			return page, err
		}
		for n, text := range slices.Backward(part.Entries) {
			i, err := parse(text)
			if err != nil {
				i = Item{Action: "audit.damaged", Outcome: OK} // verify names its place
			}
			if i.Hash != "" && !q.Since.IsZero() && i.time().Before(q.Since) {
				return page, nil
			}
			if i.Hash == "" || q.selects(i) {
				page.Items = append(page.Items, i)
			}
			read, size = read+1, size+len(text)
			if len(page.Items) >= q.Limit || read >= scanned || size >= scannedBytes {
				if number := part.From + int64(n); number > part.First {
					page.Next = number
				}
				return page, nil
			}
		}
		if before = part.From; len(part.Entries) == 0 || before <= part.First {
			return page, nil
		}
	}
}

// end returns the number of the first entry at or after the instant, by bisection: times never fall
// along the chain.
func (l *Log) end(ctx context.Context, until time.Time) (int64, error) {
	part, err := l.partOf(ctx, 0, 1)
	if err != nil {
		return 0, err
	}
	low, high := part.First, part.Stop
	for low < high {
		middle := low + (high-low)/2
		if part, err = l.partOf(ctx, middle+1, 1); err != nil {
			return 0, err
		}
		if len(part.Entries) == 0 || part.From != middle { // it was removed meanwhile
			low = middle + 1
			continue
		}
		i, err := parse(part.Entries[0])
		if err == nil && !i.time().Before(until) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if low == part.First { // all entries are later
		return 1, nil
	}
	return low, nil
}

func (q Query) selects(i Item) bool {
	if len(q.Action) > 0 && q.Action[len(q.Action)-1] == '.' {
		if len(i.Action) <= len(q.Action) || i.Action[:len(q.Action)] != q.Action {
			return false
		}
	} else if q.Action != "" && q.Action != i.Action {
		return false
	}
	return (q.Actor == "" || q.Actor == i.Actor) && (q.Subject == "" || q.Subject == i.Subject) &&
		(q.Until.IsZero() || i.time().Before(q.Until))
}

func (i Item) time() time.Time {
	at, _ := time.Parse(timeFormat, i.At)
	return at
}

// parse reads an entry as it is stored: its class and its JSON.
func parse(text string) (i Item, err error) {
	if len(text) < 2 {
		return i, fmt.Errorf("audit: an entry of %d bytes", len(text))
	}
	if err := json.Unmarshal([]byte(text[1:]), &i); err != nil {
		return Item{}, fmt.Errorf("audit: read an entry: %w", err)
	}
	return i, nil
}

func (l *Log) part(before int64, most int) (scripts.Trail, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callWait)
	defer cancel()
	return l.partOf(ctx, before, most)
}

func (l *Log) partOf(ctx context.Context, before int64, most int) (scripts.Trail, error) {
	part, err := store.Invoke(ctx, l.store.Read, scripts.TrailCall{
		Clock: store.AuditClock, Entries: store.AuditKey, Before: before, Most: most,
	})
	if err != nil {
		return part, fmt.Errorf("audit: %w", err)
	}
	return part, nil
}

// parseAddress returns the address, or the /64 of one of IPv6.
func parseAddress(text string) (string, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return "", fmt.Errorf("audit: address: %w", err)
	}
	if a = a.Unmap(); a.Is6() {
		p, _ := a.WithZone("").Prefix(64) // 64 bits fit
		return p.String(), nil
	}
	return a.String(), nil
}
