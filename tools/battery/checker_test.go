package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// history is a ledger in the making. Its clock counts entries.
type history struct {
	requests   []request
	deliveries []delivery
}

func (h *history) ask(key string, o outcome) {
	r := request{Key: key, Tenant: "t", Body: payload(key, 0), Outcome: o}
	if o == acknowledged {
		r.Job = "job-" + key
	}
	h.requests = append(h.requests, r)
}

func (h *history) deliver(key, process string, status int) {
	h.deliveries = append(h.deliveries, delivery{
		At: instant(len(h.deliveries)), Job: "job-" + key, Tenant: "t", Process: process,
		Body: payload(key, 0), Status: status,
	})
}

func TestCheckerAcceptsWhatIsRight(t *testing.T) {
	var h history
	h.ask("plain", acknowledged)
	h.deliver("plain", "a", 200)
	h.ask("retried", unknown)
	h.ask("retried", acknowledged)
	h.deliver("retried", "a", 500)
	h.deliver("retried", "b", 0)
	h.deliver("retried", "a", 200)
	h.ask("recovered", unknown)
	h.deliver("recovered", "a", 200)
	h.ask("never heard of", unknown)
	h.ask("full", refused)
	b := reckon(h.requests, h.deliveries)
	if !b.valid() || b.Keys != 5 || b.Acknowledged != 2 || b.Recovered != 1 || len(b.Duplicates) != 0 {
		t.Errorf("%+v", b)
	}
}

// TestCheckerFindsSeededFaults: each fault, put into a history that is right, is found and named,
// and nothing else is.
func TestCheckerFindsSeededFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault                        func(h *history)
		lost, unexpected, duplicates int
	}{
		"a job that was never delivered": {fault: func(h *history) { h.ask("x", acknowledged) }, lost: 1},
		"a delivery that vanished": {fault: func(h *history) {
			h.deliveries = slices.Delete(h.deliveries, 3, 4)
		}, lost: 1},
		"a second delivery":            {fault: func(h *history) { h.deliver("k7", "b", 200) }, duplicates: 1},
		"a second delivery that fails": {fault: func(h *history) { h.deliver("k7", "b", 500) }, duplicates: 1},
		"two more deliveries": {fault: func(h *history) {
			h.deliver("k7", "b", 200)
			h.deliver("k7", "c", 200)
		}, duplicates: 2},
		"a delivery that nobody asked for": {fault: func(h *history) {
			h.deliver("ghost", "a", 200)
		}, unexpected: 1},
		"a body that was changed": {fault: func(h *history) {
			h.deliveries[4].Body += " "
		}, lost: 1, unexpected: 1},
		"a job that was refused": {fault: func(h *history) {
			h.ask("x", refused)
			h.deliver("x", "a", 200)
		}, unexpected: 1},
		"another's id":     {fault: func(h *history) { h.deliveries[4].Job = "job-k9" }, unexpected: 1},
		"another tenant's": {fault: func(h *history) { h.deliveries[4].Tenant = "u" }, unexpected: 1},
		"two jobs of one key": {fault: func(h *history) {
			h.ask("k5", acknowledged)
			h.requests[len(h.requests)-1].Job = "job-other"
		}, unexpected: 2},
		"one job for two keys": {fault: func(h *history) {
			h.ask("x", acknowledged)
			h.requests[len(h.requests)-1].Job = "job-k5"
		}, lost: 1, unexpected: 1},
		"a job acknowledged once": {fault: func(h *history) { h.ask("k5", acknowledged) }},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			for i := range 10 {
				h.ask(fmt.Sprint("k", i), acknowledged)
				h.deliver(fmt.Sprint("k", i), "a", 200)
			}
			c.fault(&h)
			b := reckon(h.requests, h.deliveries)
			if len(b.Lost) != c.lost || len(b.Unexpected) != c.unexpected || len(b.Duplicates) != c.duplicates {
				t.Errorf("lost %d of %d, unexpected %d of %d, duplicates %d of %d: %+v",
					len(b.Lost), c.lost, len(b.Unexpected), c.unexpected, len(b.Duplicates), c.duplicates, b)
			}
			if b.valid() != (c.lost == 0 && c.unexpected == 0) {
				t.Error("the verdict does not follow from what was found")
			}
		})
	}
}

// TestCheckerCountsInAnyHistory: whatever the order and the retries, as many faults are found as
// were put in.
func TestCheckerCountsInAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h history
		lost, duplicates, recovered := 0, 0, 0
		for i := range rapid.IntRange(0, 50).Draw(t, "jobs") {
			key := fmt.Sprint("k", i)
			for range rapid.IntRange(0, 2).Draw(t, "unknown") {
				h.ask(key, unknown)
			}
			known := rapid.Bool().Draw(t, "acknowledged")
			if known {
				h.ask(key, acknowledged)
			} else {
				h.ask(key, unknown)
			}
			failures, successes := rapid.IntRange(0, 2).Draw(t, "failures"), rapid.IntRange(0, 3).Draw(t, "successes")
			for range failures {
				h.deliver(key, "a", 503)
			}
			for range successes {
				h.deliver(key, "a", 200)
			}
			duplicates += max(0, successes-1)
			switch delivered := failures+successes > 0; {
			case known && !delivered:
				lost++
			case !known && delivered:
				recovered++
			}
		}
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Shuffle(len(h.requests), func(i, k int) {
			h.requests[i], h.requests[k] = h.requests[k], h.requests[i]
		})
		b := reckon(h.requests, h.deliveries)
		if len(b.Lost) != lost || len(b.Duplicates) != duplicates || b.Recovered != recovered ||
			len(b.Unexpected) != 0 {
			t.Fatalf("lost %d, duplicates %d, recovered %d expected: %+v", lost, duplicates, recovered, b)
		}
	})
}

func TestDuplicatesAreJustifiedByCrashesAlone(t *testing.T) {
	var h history
	for _, key := range []string{"flying", "settled", "other"} {
		h.ask(key, acknowledged)
	}
	h.deliver("flying", "a", 200)
	h.deliver("settled", "a", 200)
	h.deliver("other", "b", 200)
	killed := []crash{{
		process: "a", leased: map[string]bool{"job-flying": true, "job-other": true, "job-undelivered": true},
	}}
	if n := inFlight(killed, h.deliveries); n != 1 {
		t.Errorf("%d in flight, not 1: what the killed process had delivered and not settled", n)
	}
	h.deliver("flying", "b", 200)
	if bad := unjustified(killed, reckon(h.requests, h.deliveries).Duplicates); len(bad) != 0 {
		t.Errorf("a job that was in flight may come again: %v", bad)
	}
	h.deliver("settled", "b", 200) // was settled before the kill
	h.deliver("other", "a", 200)   // was another's
	h.deliver("flying", "b", 200)  // came again from one that was not killed
	bad := unjustified(killed, reckon(h.requests, h.deliveries).Duplicates)
	var jobs []string
	for _, d := range bad {
		jobs = append(jobs, d.again.Job)
	}
	if got := strings.Join(jobs, " "); got != "job-settled job-other job-flying" {
		t.Errorf("unjustified: %s", got)
	}
}
