package lua_test

import (
	"errors"
	"slices"
	"strings"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// Each method here sends one call to the script and to the model, compares the answers, and checks
// what the answer alone can show.

func (w *world) admit(r admission) {
	w.note("%v", r)
	call := scripts.AdmitCall{
		At: scripts.AtInstant(r.at), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Tenants: w.shard.Tenants(),
		Horizon: horizon, Atomic: r.atomic, NoBytes: r.noBytes, NoTenants: r.noTenants,
		Share: r.share, Retention: w.retention(), Types: &w.types,
	}
	names := flowsOf(r.jobs)
	for _, name := range names {
		first := r.jobs[slices.IndexFunc(r.jobs, func(c candidate) bool { return c.flow == name })]
		tenant := tenantOf(name)
		call.Flows = append(call.Flows, scripts.AdmitFlow{
			Flow: w.shard.Flow(name), Queue: w.shard.Queue(name), Later: w.shard.Later(name),
			Lines: w.shard.LinesOf(tenant),
			Names: w.shard.Names(tenant), Tier: r.tiers[tenant], Entry: first.entry, Class: r.class, Estimated: r.estimated,
		})
	}
	for _, c := range r.jobs {
		rest, err := scripts.Record{
			Cost: c.cost, MaxAttempts: c.maxAttempts, Flow: c.flow, Idem: c.idem, Type: c.kind,
			Tenant: c.tenant, Route: c.route, Payload: c.payload,
			CallbackURL: c.callback, TraceParent: c.trace,
		}.Rest()
		if err != nil {
			w.fail("encode: %v", err)
		}
		job := scripts.AdmitJob{
			Flow: slices.Index(names, c.flow), Key: w.shard.Job(c.id), IdemHash: c.idem, Fingerprint: c.print,
			Delay:     c.delay,
			MaxWaitMS: c.maxWait.Milliseconds(), Type: c.kind, Rest: rest,
		}
		if c.idem != "" {
			job.IdemKey = w.shard.Idem(tenantOf(c.flow), c.idem)
		}
		call.Jobs = append(call.Jobs, job)
	}
	before := map[string]bool{}
	for _, c := range r.jobs {
		before[c.id] = w.m.jobs[c.id] != nil
	}
	got, err := call.Decode(w.run(call.Call()))
	w.same("admit", got, w.m.admit(r), err)
	w.decided = got
	for i, v := range got {
		// Invariant 1, for single jobs; of a batch the model says more.
		switch {
		case v.Outcome == shaper.Admitted && !before[r.jobs[i].id] && v.Depth > v.Capacity:
			w.fail("admitted beyond the capacity: %+v", v)
		case v.Outcome == shaper.Full && !r.atomic && v.Depth+1 <= v.Capacity:
			w.fail("refused with a place free: %+v", v)
		}
	}
	for _, c := range r.jobs {
		if w.m.jobs[c.id] != nil && !before[c.id] {
			w.ids = append(w.ids, c.id)
		}
	}
}

// tick sends a poll. Where its answer is learnt, the worker holds the leases and takes the next
// number.
func (w *world) tick(c *consumer, r poll, learnt bool) scripts.Grant {
	w.note("%v learnt %v", r, learnt)
	call := scripts.TickCall{
		Script: r.script, At: scripts.AtInstant(r.at), Clock: w.shard.Clock(), Due: w.shard.Due(),
		Expires: w.shard.Expires(), Leases: w.shard.Leases(),
		Grant: w.shard.Grant(r.worker), Tenants: w.shard.Tenants(), Outbox: w.shard.Outbox(),
		Counter: r.counter, Seen: r.seen, Max: r.most, Lease: lease, Horizon: horizon, Lead: r.lead,
		Sweep: sweep, Help: r.help, Helper: r.helper, HandsOver: r.handsOver, Retention: w.retention(),
		Bounds: r.bounds, Regulars: r.regulars, Restored: w.replid,
	}
	got, err := call.Decode(w.run(call.Call()))
	if got.Restore { // the shard is new
		restore := scripts.RestoreCall{
			At: call.At, Clock: call.Clock, Due: call.Due, Tenants: call.Tenants, Horizon: horizon,
		}
		restored, failed := restore.Decode(w.run(restore.Call()))
		w.replid, call.Restored = restored.ReplicationID, restored.ReplicationID
		got, err = call.Decode(w.run(call.Call()))
		err = errors.Join(failed, err)
	}
	want, wantRecords := w.m.tick(r)
	var records []scripts.Record
	for i := range got.Leases {
		record, err := scripts.DecodeRecord(got.Leases[i].Record)
		if err != nil {
			w.fail("a leased record: %v", err)
		}
		records = append(records, bare(record))
		got.Leases[i].Record = nil
	}
	w.same("tick", got, want, err)
	w.same("tick: records", records, wantRecords, nil)
	w.inOrder(got, records)
	w.next = got.Next
	if r.counter == c.counter {
		c.past = append(c.past, r)
	}
	if !learnt {
		return got
	}
	c.counter++
	if got.Counter != 0 {
		c.seen = got.Counter
	}
	for _, l := range got.Leases {
		ref := leaseRef{l.ID, l.Epoch}
		w.held = append(w.held, ref)
		if _, known := w.left[ref]; !known {
			j := w.m.jobs[l.ID]
			w.left[ref] = &departure{j.Flow, w.m.stamped[l.ID], l.Stamp, j.Cost}
		}
	}
	return w.follow(c, r, got)
}

// follow runs the script that an answer said is needed.
func (w *world) follow(c *consumer, r poll, got scripts.Grant) scripts.Grant {
	if got.Needed == nil {
		return got
	}
	r.script, r.counter, r.seen = got.Needed, c.counter, c.seen
	next := w.tick(c, r, true)
	next.Leases = append(got.Leases, next.Leases...)
	return next
}

// inOrder is invariant 6: who leaves has the lowest sequence of all that were eligible by then.
// What is handed over again left before.
func (w *world) inOrder(g scripts.Grant, found []scripts.Record) {
	for i, l := range g.Leases {
		if found[i].State == shaper.Leased {
			continue
		}
		leased := w.m.jobs[l.ID]
		for id := range w.m.queue[leased.Flow] {
			if j := w.m.jobs[id]; j.Seq < leased.Seq && j.At <= l.Stamp {
				w.fail("%s with sequence %d left before %s with %d", l.ID, leased.Seq, id, j.Seq)
			}
		}
	}
}

func (w *world) settle(r settlement) {
	w.note("settle %d %s", r.at, describe(r.items))
	call := scripts.SettleCall{
		At: scripts.AtInstant(r.at), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Leases: w.shard.Leases(), Outbox: w.shard.Outbox(),
		Horizon: horizon, Retention: w.retention(),
	}
	for i, s := range r.items {
		id := s.Key
		s.Key = w.shard.Job(id)
		if s.Outcome == scripts.OutcomeSucceeded && len(s.Result) > 0 && (w.steps+i)%2 == 0 {
			w.putAside(&s, id)
		}
		call.Items = append(call.Items, s)
	}
	got, err := call.Decode(w.run(call.Call()))
	w.same("settle", got, w.m.settle(r), err)
	for i, s := range r.items {
		if got[i] == scripts.CodeSettled && (s.Outcome == scripts.OutcomeReleased || s.Outcome == scripts.OutcomeMissed) {
			w.left[leaseRef{s.Key, s.Epoch}] = nil
		}
	}
}

// putAside makes the result of a settlement one that is put aside.
func (w *world) putAside(s *scripts.SettleItem, id string) {
	s.Aside = w.shard.Aside(id, s.Epoch)
	if raw := w.e.Get(w.ctx, s.Key).Val(); len(raw) >= scripts.HeadLength {
		s.PayloadAt = scripts.PayloadAt([]byte(raw))
	}
}

func describe(items []scripts.SettleItem) string {
	var b strings.Builder
	for _, s := range items {
		b.WriteString(s.Key + ":" + text(s.Epoch) + " " + string(rune(s.Outcome)) + " " + s.Delay.String() +
			" max " + text(int64(s.MaxAttempts)) + "; ")
	}
	return b.String()
}

func (w *world) extend(at shaper.Instant, refs []leaseRef) {
	w.note("extend %d %v", at, refs)
	call := scripts.ExtendCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Leases: w.shard.Leases(), Lease: lease,
	}
	for _, ref := range refs {
		call.Jobs, call.Epochs = append(call.Jobs, w.shard.Job(ref.id)), append(call.Epochs, ref.epoch)
	}
	got, err := call.Decode(w.run(call.Call()))
	w.same("extend", got, w.m.extend(at, refs), err)
}

// retention is that of all histories, with the theme's bound on dead letters.
func (w *world) retention() scripts.Retention {
	r := retention
	r.DeadCapacity, r.DeadBytes = int64(w.m.deadCapacity), w.m.deadBytes
	return r
}

func (w *world) cancel(r cancellation) {
	w.note("cancel %d %s %v dead %v", r.at, r.tenant, r.ids, r.dead)
	call := scripts.CancelCall{
		At: scripts.AtInstant(r.at), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Outbox: w.shard.Outbox(), Tenant: r.tenant,
		Horizon: horizon, Dead: r.dead, Retention: w.retention(),
	}
	for _, id := range r.ids {
		call.Jobs = append(call.Jobs, w.shard.Job(id))
	}
	got, err := call.Decode(w.run(call.Call()))
	w.same("cancel", got, w.m.cancel(r), err)
}

func (w *world) claim(at shaper.Instant, name string, most int) {
	w.note("claim %d %s most %d", at, name, most)
	call := scripts.ClaimCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Outbox: w.shard.Outbox(), Claim: w.shard.Claim(),
		Name: name, Max: most, Lease: lease,
	}
	got, err := call.Decode(w.run(call.Call()))
	var ids []string
	var records []scripts.Record
	for _, c := range got.Jobs {
		record, err := scripts.DecodeRecord(c.Record)
		if err != nil {
			w.fail("a claimed record: %v", err)
		}
		ids, records = append(ids, c.ID), append(records, bare(record))
		w.claims = append(w.claims, scripts.HandedJob{Key: c.ID, Epoch: record.Epoch, State: record.State})
	}
	more, wantIDs, wantRecords := w.m.claim(at, name, most)
	w.same("claim", []any{got.More, ids, records}, []any{more, wantIDs, wantRecords}, err)
}

func (w *world) handed(at shaper.Instant, list []scripts.HandedJob) {
	w.note("handed %d %v", at, list)
	call := scripts.HandedCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Outbox: w.shard.Outbox(), Retention: w.retention(),
	}
	for _, h := range list {
		h.Key = w.shard.Job(h.Key)
		call.Jobs = append(call.Jobs, h)
	}
	got, err := call.Decode(w.run(call.Call()))
	w.same("handed", got, w.m.handed(at, list), err)
}

func (w *world) replay(r revival) {
	w.note("replay %d %s tag %d max %d", r.at, r.id, r.tag, r.maxAttempts)
	kind := ""
	if j := w.m.jobs[r.id]; j != nil {
		kind = j.Type
	}
	call := scripts.ReplayCall{
		At: scripts.AtInstant(r.at), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Job: w.shard.Job(r.id), Outbox: w.shard.Outbox(), Tenant: r.tenant,
		Horizon: horizon, Tag: r.tag, MaxAttempts: r.maxAttempts, DeadCapacity: int64(w.m.deadCapacity),
		DeadBytes: w.m.deadBytes, Tier: r.tier, Type: kind,
	}
	code, got, err := call.Decode(w.run(call.Call()))
	wantCode, want := w.m.replay(r)
	w.same("replay", code, wantCode, err)
	w.same("replay", got, want, nil)
}

func (w *world) tune(r tuning) {
	w.note("tune %d %s %s %s says %q lines %q of %d", r.at, r.tenant, r.name, r.source, r.says, r.lines(),
		r.resolved.revision)
	call := w.tuneCall(r)
	tuned, revision, err := call.Decode(w.run(call.Call()))
	wantTuned, wantRevision := w.m.tune(r)
	w.same("tune", []any{tuned, revision}, []any{wantTuned, wantRevision}, err)
}

func (w *world) tuneCall(r tuning) scripts.TuneCall {
	return scripts.TuneCall{
		At: scripts.AtInstant(r.at), Clock: w.shard.Clock(), Due: w.shard.Due(), Policy: w.shard.Policy(r.tenant),
		History: w.shard.History(r.tenant),
		Names:   w.shard.Names(r.tenant), Tenants: w.shard.Tenants(), Tuned: w.shard.Tuned(),
		Lines: w.shard.LinesOf(r.tenant), Horizon: horizon,
		Policies: r.resolved.revision, Name: r.name, Expected: r.expected, Source: r.source, Says: r.says,
		Settings: r.lines(), Reason: r.reason,
		HistoryEntry: r.historyEntry, Entry: r.entry, EndHolds: r.endHolds, EndCharge: r.endCharge,
	}
}

func (w *world) status(at shaper.Instant, tenant, id string) {
	w.note("status %d %s %s", at, tenant, id)
	call := scripts.StatusCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Job: w.shard.Job(id), Tenant: tenant, MostResult: 1 << 10,
	}
	got, err := call.Decode(w.run(call.Call()))
	var record scripts.Record
	if got.Found && err == nil {
		record, err = scripts.DecodeStatus(got.Record)
	}
	got.Record = nil
	want, wantRecord := w.m.status(at, tenant, id)
	w.same("status", got, want, err)
	w.same("status: record", bare(record), wantRecord, nil)
}

func (w *world) scanTenant(at shaper.Instant, tenant string) {
	w.note("scan %d %s", at, tenant)
	call := scripts.ScanCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Tenants: w.shard.Tenants(),
		Policy: w.shard.Policy(tenant), Dead: retention.Dead,
	}
	got, err := call.Decode(w.run(call.Call()))
	w.same("scan of a tenant", w.retuned(got), w.m.scanTenant(at, tenant), err)
}

// scan reads all pages.
func (w *world) scan(at shaper.Instant) {
	w.note("scan %d", at)
	call := scripts.ScanCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Tenants: w.shard.Tenants(), Cursor: "0", Most: 2,
		Dead: retention.Dead,
	}
	got := map[string]scripts.ScannedTenant{}
	for page := 0; page == 0 || call.Cursor != "0"; page++ {
		s, err := call.Decode(w.run(call.Call()))
		if err != nil || page > 100 {
			w.fail("scan, page %d: %v", page, err)
		}
		s = w.retuned(s)
		for _, t := range s.Tenants {
			got[t.Entry] = t
		}
		call.Cursor = s.Cursor
	}
	w.same("scan", got, w.m.scan(at), nil)
}

// retuned sorts the flows of a scan and retunes their buckets, as the model does.
func (w *world) retuned(s scripts.Scan) scripts.Scan {
	for _, t := range s.Tenants {
		slices.SortFunc(t.Flows, func(a, b scripts.ScannedFlow) int { return strings.Compare(a.Flow, b.Flow) })
		for i, f := range t.Flows {
			bucket, changed := f.Bucket.Retune(w.m.load(f.Flow).policy.Paces(), s.Now)
			if changed {
				bucket.Ready = max(bucket.Ready, f.FullUntil)
			}
			t.Flows[i].Bucket = bucket
		}
	}
	return s
}

// declare puts a baseline into force.
func (w *world) declare(at shaper.Instant, revision int64, b shaper.Baseline) {
	call := scripts.DeclareCall{
		At: scripts.AtInstant(at), Clock: w.shard.Clock(), Lines: w.shard.Lines(), Revision: revision, Settings: obeyed{baseline: b}.baselineLines(),
	}
	w.note("declare %d revision %d %q", at, revision, call.Settings)
	got, err := call.Decode(w.run(call.Call()))
	w.same("declare", got, w.m.declare(at, revision, b), err)
}
