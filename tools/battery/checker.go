package main

import (
	"fmt"
	"maps"
)

// balance is the result of the total-queue checker over a ledger whose queue was drained. It is
// valid only if nothing was lost and nothing unexpected.
type balance struct {
	Keys         int         // distinct keys that were submitted
	Acknowledged int         // keys with a 202
	Recovered    int         // keys with unknown outcome that were delivered
	Lost         []string    // keys with a 202 and no delivery
	Unexpected   []string    // descriptions of wrong events
	Duplicates   []duplicate // deliveries of a body after one that was not answered with a failure
}

// duplicate is a delivery too many, with the one before it.
type duplicate struct{ before, again delivery }

func (b balance) valid() bool { return len(b.Lost) == 0 && len(b.Unexpected) == 0 }

// claim is the record of one key.
type claim struct {
	key, tenant, body string
	acknowledged      bool
	unknown           bool
	job               string
	last              *delivery
	settled           bool // a delivery of it was not answered with a failure
}

// reckon checks a ledger. It identifies a delivery by its body, which the client chose. So it finds
// a job that was delivered under another id, for another tenant or with another body.
func reckon(requests []request, deliveries []delivery) balance {
	var b balance
	keys, bodies := map[string]*claim{}, map[string]*claim{}
	jobs := map[string]string{} // id → key
	unexpected := func(format string, args ...any) {
		b.Unexpected = append(b.Unexpected, fmt.Sprintf(format, args...))
	}
	for _, r := range requests {
		c := keys[r.Key]
		if c == nil {
			c = &claim{key: r.Key, tenant: r.Tenant, body: r.Body}
			keys[r.Key], bodies[r.Body] = c, c
		}
		switch r.Outcome {
		case unknown:
			c.unknown = true
		case acknowledged:
			c.acknowledged = true
			if c.job != "" && c.job != r.Job {
				unexpected("key %s was given two jobs, %s and %s", r.Key, c.job, r.Job)
			}
			if other, taken := jobs[r.Job]; taken && other != r.Key {
				unexpected("job %s was given to two keys, %s and %s", r.Job, other, r.Key)
			}
			c.job = r.Job
			jobs[r.Job] = r.Key
		}
	}
	for _, d := range deliveries {
		c := bodies[d.Body]
		if c == nil {
			unexpected("job %s was delivered with a body that no client sent", d.Job)
			continue
		}
		switch {
		case !c.acknowledged && !c.unknown:
			unexpected("key %s was refused and job %s delivered", c.key, d.Job)
		case c.job != "" && c.job != d.Job:
			unexpected("key %s was given job %s and delivered as %s", c.key, c.job, d.Job)
		case c.tenant != d.Tenant:
			unexpected("key %s of tenant %s was delivered for tenant %s", c.key, c.tenant, d.Tenant)
		}
		if c.job == "" {
			c.job = d.Job
		}
		if c.settled {
			b.Duplicates = append(b.Duplicates, duplicate{before: *c.last, again: d})
		}
		c.last = &d
		c.settled = c.settled || !d.failed()
	}
	b.Keys = len(keys)
	for _, r := range requests {
		c := keys[r.Key]
		if c == nil {
			continue // counted
		}
		delete(keys, r.Key)
		switch {
		case c.acknowledged:
			b.Acknowledged++
			if c.last == nil {
				b.Lost = append(b.Lost, c.key)
			}
		case c.last != nil:
			b.Recovered++
		}
	}
	return b
}

// crash is one kill of a worker process: the jobs that were leased at that instant, by any worker.
type crash struct {
	process string
	leased  map[string]bool
}

// cuts has the jobs of each process that a crash cut off.
func cuts(crashes []crash) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, c := range crashes {
		if all[c.process] == nil {
			all[c.process] = map[string]bool{}
		}
		maps.Copy(all[c.process], c.leased)
	}
	return all
}

// inFlight counts the jobs that a process had under way when it was killed: leased then, and
// delivered by it.
func inFlight(crashes []crash, deliveries []delivery) int {
	cut := cuts(crashes)
	cutOff := map[[2]string]bool{}
	for _, d := range deliveries {
		if cut[d.Process][d.Job] {
			cutOff[[2]string{d.Process, d.Job}] = true
		}
	}
	return len(cutOff)
}

// unjustified lists the duplicates that no crash accounts for: the delivery before must have come
// from a process that was killed while the job was leased.
func unjustified(crashes []crash, duplicates []duplicate) (bad []duplicate) {
	cut := cuts(crashes)
	for _, d := range duplicates {
		if !cut[d.before.Process][d.before.Job] {
			bad = append(bad, d)
		}
	}
	return bad
}
