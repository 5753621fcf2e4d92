package queuetest

import (
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var boundsTests = map[string]func(*suite){
	"payloads are bounded in bytes":                   boundBytes,
	"a batch is bounded in bytes as a whole":          boundBytesOfABatch,
	"bytes come and go with the jobs":                 boundBytesFollowJobs,
	"a replay is bounded in bytes":                    boundBytesOfAReplay,
	"a store full of bytes refuses jobs":              boundStoreBytes,
	"a store full of tenants refuses new ones":        boundStoreTenants,
	"compressed payloads count by their stored bytes": boundCompressed,
	"a flow gets only its share of the store":         boundShare,
	"stored answers count in the share":               boundShareOfAnswers,
	"stored bytes count until they are deleted":       storedFollowsJobs,
	"guests leave bytes of the store to others":       guestBytes,
	"guests leave places of tenants to others":        guestTenants,
	"a reserve is kept for tenants with settings":     reserveOfTenants,
	"a reserve of bytes is kept for them":             reserveOfBytes,
	"a claimed tier may have a share of its own":      tierShare,
}

// sized returns work with a payload of n bytes.
func sized(n int) queue.Submission {
	w := work()
	w.Payload = []byte(`"` + strings.Repeat("x", n-2) + `"`)
	return w
}

func boundBytes(s *suite) {
	s.policy(func(p *shaper.Policy) { p.CapacityBytes, p.Rate = 1000, slow })
	s.admit(sized(600))
	s.admit(sized(400))
	v := s.submit(sized(2))
	equal(s, "the outcome", v.Outcome, shaper.FullOfBytes)
	equal(s, "bytes", [2]int64{v.Bytes, v.CapacityBytes}, [2]int64{1000, 1000})
	if v.RetryAfter <= 0 {
		s.Errorf("retry after %v", v.RetryAfter)
	}
	equal(s, "the retry-after of what can never fit", s.submit(sized(1001)).RetryAfter, 0)
	equal(s, "the bytes of the tenant", s.tenant(tenant).Bytes, 1000)
	s.tune(func(o *shaper.Overrides) { o.CapacityBytes = pointer(int64(1002)) })
	s.admit(sized(2))
	s.tune(func(o *shaper.Overrides) { o.CapacityBytes = pointer(int64(10)) })
	equal(s, "the outcome under a lowered bound", s.submit(sized(2)).Outcome, shaper.FullOfBytes)
	equal(s, "the depth under a lowered bound", s.tenant(tenant).Depth, 3)
	s.tune(func(o *shaper.Overrides) { o.CapacityBytes = pointer(int64(0)) })
	s.admit(sized(5000))
}

func boundBytesOfABatch(s *suite) {
	s.policy(func(p *shaper.Policy) { p.CapacityBytes = 1000 })
	batch := []queue.Submission{sized(400), sized(400), sized(400)}
	for _, atomic := range []bool{true, false} {
		decisions, err := s.q.SubmitBatch(s.ctx, batch, atomic)
		if err != nil {
			s.Fatal(err)
		}
		want := [3]shaper.Outcome{shaper.Admitted, shaper.Admitted, shaper.FullOfBytes}
		if atomic {
			want = [3]shaper.Outcome{shaper.FullOfBytes, shaper.FullOfBytes, shaper.FullOfBytes}
		}
		equal(s, "the outcomes", [3]shaper.Outcome{
			decisions[0].Outcome, decisions[1].Outcome, decisions[2].Outcome,
		}, want)
	}
}

func boundBytesFollowJobs(s *suite) {
	bytes := func(when string, want int64) {
		s.Helper()
		equal(s, "the bytes "+when, s.tenant(tenant).Bytes, want)
		totals, err := s.q.Totals(s.ctx)
		if err != nil {
			s.Fatal(err)
		}
		equal(s, "all bytes "+when, totals.Bytes, want)
	}
	s.admit(sized(100))
	later := sized(50)
	later.Delay = time.Hour
	scheduled := s.admit(later)
	bytes("of a queued and a scheduled job", 150)
	l := s.lease(1)[0]
	bytes("while one is leased", 50)
	s.settle(l, shaper.Retry, after(time.Hour))
	bytes("while it is retrying", 150)
	if _, err := s.q.Cancel(s.ctx, tenant, scheduled.ID); err != nil {
		s.Fatal(err)
	}
	bytes("after a cancel", 100)
	equal(s, "the purged", s.purge(queue.Filter{}).Count, 1)
	bytes("after a purge", 0)
	s.dead(sized(70))
	bytes("of a dead letter", 0)
}

func boundBytesOfAReplay(s *suite) {
	dead := s.dead(sized(600))
	s.policy(func(p *shaper.Policy) { p.CapacityBytes, p.Rate = 1000, slow })
	waiting := s.admit(sized(500))
	v, err := s.q.Replay(s.ctx, tenant, dead.ID, queue.Replaying{MaxAttempts: 3})
	if err != nil {
		s.Fatalf("Replay: %v", err)
	}
	Compare(s, "a replay beyond the bound", Only(v.Admission, "Outcome", "Bytes", "CapacityBytes"),
		shaper.Admission{Outcome: shaper.FullOfBytes, Bytes: 500, CapacityBytes: 1000})
	if _, err := s.q.Cancel(s.ctx, tenant, waiting.ID); err != nil {
		s.Fatal(err)
	}
	if v, err := s.q.Replay(s.ctx, tenant, dead.ID, queue.Replaying{MaxAttempts: 3}); err != nil || v.Outcome != shaper.Admitted {
		s.Errorf("a replay within the bound: %+v %v", v.Admission, err)
	}
	equal(s, "the bytes", s.tenant(tenant).Bytes, 600)
}

func boundStoreBytes(s *suite) {
	limited := func(o *queue.Options) { o.Store.Bytes, o.Defaults.Rate = 1600, slow }
	s.restart(limited)
	keyed := sized(990)
	keyed.IdempotencyKey = "k"
	s.admit(keyed)
	s.admit(sized(500)) // the bound is looked at before: it is passed by one job at the most here
	equal(s, "the outcome", s.submit(sized(2)).Outcome, shaper.StoreFull)
	equal(s, "the outcome of a known key", s.submit(keyed).Outcome, shaper.Replayed)
	s.restart(limited)
	other := sized(2)
	other.Tenant = "other"
	equal(s, "the outcome of another process", s.submit(other).Outcome, shaper.StoreFull)
	s.purge(queue.Filter{})
	s.restart(limited)
	s.admit(other)
}

func boundStoreTenants(s *suite) {
	limited := func(o *queue.Options) { o.Store.Tenants = 2 }
	as := func(name string) queue.Submission {
		w := work()
		w.Tenant = name
		return w
	}
	s.admit(as("a"))
	s.admit(as("b"))
	s.restart(limited)
	equal(s, "the outcome of a tenant that is not known", s.submit(as("c")).Outcome, shaper.StoreFull)
	equal(s, "what is known of it", s.tenant("c").Rejected, 0)
	s.admit(as("a"))
	other := as("a")
	other.Route = "mail"
	s.admit(other)
	totals, err := s.q.Totals(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	equal(s, "the tenants", totals.Tenants, 2)
}

func boundShare(s *suite) {
	limited := func(o *queue.Options) { o.Store = queue.StoreBounds{Bytes: 100_000, FlowShare: 50} }
	s.restart(limited)
	var ids []string
	v := s.submit(sized(10_000))
	for ; v.Outcome == shaper.Admitted && len(ids) < 10; v = s.submit(sized(10_000)) {
		ids = append(ids, v.Job.ID)
	}
	equal(s, "the outcome", v.Outcome, shaper.OverShare)
	equal(s, "the jobs in half of the store", len(ids), 5)
	within(s, "the bytes stored", v.Stored, 50_000, 60_000)
	within(s, "the share", v.Share, 40_000, 50_000)
	flow := s.tenant(tenant).Routes["default"]
	within(s, "the bytes stored in the figures", flow.Stored, 50_000, 60_000)
	within(s, "the share in the figures", flow.Share, 40_000, 50_000)
	batch, err := s.q.SubmitBatch(s.ctx, []queue.Submission{sized(10), sized(10_000)}, true)
	if err != nil {
		s.Fatalf("SubmitBatch: %v", err)
	}
	equal(s, "the outcome of an atomic batch's first job", batch[0].Outcome, shaper.OverShare)
	equal(s, "the outcome of its second", batch[1].Outcome, shaper.OverShare)
	other := sized(10_000)
	other.Tenant = "another"
	s.admit(other)
	for _, l := range s.lease(len(ids) + 1) {
		s.settle(l, shaper.Die)
	}
	s.restart(limited)
	equal(s, "the outcome beside dead letters", s.submit(sized(10_000)).Outcome, shaper.OverShare)
	s.admit(other)
	s.purge(queue.Filter{})
	s.restart(limited)
	s.admit(sized(10_000))
}

// boundShareOfAnswers submits and cancels: nothing waits, but records and idempotency keys stay.
func boundShareOfAnswers(s *suite) {
	s.restart(func(o *queue.Options) { o.Store = queue.StoreBounds{Bytes: 20_000, FlowShare: 50} })
	refused := 0
	for i := range 60 {
		w := work()
		w.IdempotencyKey = strconv.Itoa(i)
		v := s.submit(w)
		if v.Outcome == shaper.OverShare {
			refused = i
			break
		}
		if _, err := s.q.Cancel(s.ctx, tenant, v.Job.ID); err != nil {
			s.Fatal(err)
		}
	}
	if refused < 20 || refused > 40 {
		s.Errorf("refused after %d of about 600 bytes each", refused)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
	other := work()
	other.Tenant = "another"
	s.admit(other)
}

// guest returns a submission of the ith guest.
func guest(i, bytes int) queue.Submission {
	w := sized(bytes)
	w.Tenant, w.Guest = "guest:192.0.2."+strconv.Itoa(i), true
	return w
}

func guestBytes(s *suite) {
	limited := func(o *queue.Options) {
		o.Store = queue.StoreBounds{
			Bytes: 400_000, FlowShare: 50, Tenants: 1000,
			Classes: map[string]queue.ClassBound{queue.ClassGuests: {Bytes: 25, Tenants: 50}},
		}
		o.Defaults.Rate = slow
	}
	s.restart(limited)
	fill := func() (admitted int) {
		s.Helper()
		for i := range 60 {
			for range 5 {
				switch v := s.submit(guest(i, 5000)); v.Outcome {
				case shaper.Admitted:
					admitted++
				case shaper.StoreFull:
					equal(s, "that it is the part of the guests", v.OfPart, true)
					equal(s, "what is used", v.Part, shaper.PartBytes)
				case shaper.OverShare:
				default:
					s.Fatalf("a guest got %s", v.Outcome)
				}
			}
		}
		return admitted
	}
	within(s, "the jobs of guests in a quarter of the store", int64(fill()), 8, 20)
	s.admit(sized(5000))
	s.restart(limited) // another process, which reads the sums
	within(s, "the jobs of guests when their part is used", int64(fill()), 0, 1)
	s.admit(sized(100_000))
	// A guest with settings of its own is none of them any more.
	if _, err := s.q.Tune(s.ctx, guest(1, 2).Tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Capacity = pointer(int64(7))
		return o, nil
	}}); err != nil {
		s.Fatal(err)
	}
	s.admit(guest(1, 5000))
	totals, err := s.q.Totals(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	within(s, "the tenants: none is stored of a guest that was refused", totals.Tenants, 3, 40)
	// What leaves makes place.
	for i := range 60 {
		if _, err := s.q.Purge(s.ctx, guest(i, 2).Tenant, queue.Filter{}); err != nil {
			s.Fatal(err)
		}
	}
	s.restart(limited)
	s.admit(guest(70, 5000))
}

func guestTenants(s *suite) {
	limited := func(o *queue.Options) {
		o.Store.Tenants = 60
		o.Store.Classes = map[string]queue.ClassBound{queue.ClassGuests: {Bytes: 25, Tenants: 50}}
	}
	s.restart(limited)
	admitted := 0
	for i := range 100 {
		if v := s.submit(guest(i, 2)); v.Outcome == shaper.Admitted {
			admitted++
		} else {
			equal(s, "the outcome", v.Outcome, shaper.StoreFull)
		}
	}
	equal(s, "the guests", admitted, 30)
	s.restart(limited)
	equal(s, "the outcome of one more", s.submit(guest(200, 2)).Outcome, shaper.StoreFull)
	s.admit(guest(3, 2))
	for i := range 30 {
		w := work()
		w.Tenant = "customer-" + strconv.Itoa(i)
		s.admit(w)
	}
}

// ofReserve gives the tenant named settings, and returns a submission of it, one that is vouched
// for, and one of a tenant with neither.
func ofReserve(s *suite, bytes int) (named, vouched, other queue.Submission) {
	s.Helper()
	named, vouched, other = sized(bytes), sized(bytes), sized(bytes)
	named.Tenant, vouched.Tenant, other.Tenant = "named", "keyed", "other"
	vouched.Vouched = true
	if _, err := s.q.Tune(s.ctx, named.Tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Capacity = pointer(int64(7))
		return o, nil
	}}); err != nil {
		s.Fatal(err)
	}
	return named, vouched, other
}

func reserveOfTenants(s *suite) {
	limited := func(o *queue.Options) { o.Store.Tenants, o.Store.Reserve = 20, 10 }
	s.restart(limited)
	named, vouched, other := ofReserve(s, 2)
	s.admit(named)
	for i := range 17 {
		w := work()
		w.Tenant = "free-" + strconv.Itoa(i)
		s.admit(w)
	}
	s.restart(limited) // another process, which reads how many there are
	v := s.submit(other)
	equal(s, "the outcome of a tenant too many", v.Outcome, shaper.StoreFull)
	equal(s, "that it is the part of others", v.OfPart, true)
	s.admit(named)
	for i := range 2 {
		vouched.Tenant, vouched.ID = "keyed-"+strconv.Itoa(i), ""
		s.admit(vouched)
	}
	s.restart(limited)
	other.Vouched = true
	v = s.submit(other)
	equal(s, "the outcome when the reserve is used, too", v.Outcome, shaper.StoreFull)
	equal(s, "that it is the whole store", v.OfPart, false)
}

func reserveOfBytes(s *suite) {
	limited := func(o *queue.Options) {
		o.Store = queue.StoreBounds{Bytes: 100_000, Reserve: 20}
		o.Defaults.Rate, o.Defaults.Capacity = slow, 1000
	}
	s.restart(limited)
	named, vouched, other := ofReserve(s, 5000)
	admitted := int64(0)
	for range 40 {
		if v := s.submit(other); v.Outcome == shaper.Admitted {
			admitted++
		} else {
			equal(s, "the outcome", v.Outcome, shaper.StoreFull)
			equal(s, "that it is the part of others", v.OfPart, true)
		}
	}
	within(s, "jobs of the tenant without settings", admitted, 14, 17)
	s.restart(limited) // another process, which reads the sums
	equal(s, "the outcome in another process", s.submit(other).Outcome, shaper.StoreFull)
	s.admit(named)
	s.admit(vouched)
}

func tierShare(s *suite) {
	s.restart(func(o *queue.Options) {
		o.Store.Tenants = 10
		o.Store.Classes = map[string]queue.ClassBound{queue.ClassOfTier("trial"): {Tenants: 20}}
	})
	of := func(name string) queue.Submission {
		w := work()
		w.Tenant, w.Tier = name, "trial"
		return w
	}
	s.admit(of("a"))
	s.admit(of("b"))
	v := s.submit(of("c"))
	equal(s, "the outcome", v.Outcome, shaper.StoreFull)
	equal(s, "that it is the part of the class", v.OfPart, true)
	w := of("c")
	w.Tier = ""
	s.admit(w)
}

func storedFollowsJobs(s *suite) {
	var before int64
	stored := func(when string, least, most int64) {
		s.Helper()
		t := s.tenant(tenant)
		totals, err := s.q.Totals(s.ctx)
		if err != nil {
			s.Fatal(err)
		}
		if got := t.Stored - before; got < least || got > most {
			s.Errorf("%d bytes more are stored %s, want %d to %d", got, when, least, most)
		}
		if when != "of an answer" && totals.Stored != t.Stored {
			s.Errorf("%d bytes are stored %s of all, %d of the tenant", totals.Stored, when, t.Stored)
		}
		before = t.Stored
	}
	s.admit(sized(1000))
	stored("of a waiting job", 1250, 1500)
	l := s.lease(1)[0]
	stored("while it is leased", 0, 0)
	answer := func(p *queue.Settlement) {
		p.Response = &queue.Response{Status: 503, Body: []byte(strings.Repeat("x", 300))}
	}
	s.settle(l, shaper.Retry, answer)
	stored("with an answer", 300, 700)
	s.settle(s.lease(1)[0], shaper.Die, answer)
	stored("as a dead letter with a longer log", 0, 200)
	if v, err := s.q.Replay(s.ctx, tenant, l.ID, queue.Replaying{MaxAttempts: 3}); err != nil || v.Outcome != shaper.Admitted {
		s.Fatalf("Replay: %+v %v", v, err)
	}
	stored("after a replay", 0, 0)
	s.settle(s.lease(1)[0], shaper.Succeed)
	stored("of an answer", -1100, -900)
	totals, err := s.q.Totals(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	equal(s, "what is stored of live and dead jobs", totals.Stored, 0)
}

func boundCompressed(s *suite) {
	s.restart(func(o *queue.Options) { o.CompressOver, o.Defaults.CapacityBytes = 1000, 1000 })
	s.admit(sized(999))
	s.lease(1)
	large := sized(100_000) // shrinks to less than a hundredth
	s.admit(large)
	if bytes := s.tenant(tenant).Bytes; bytes <= 0 || bytes > 1000 {
		s.Errorf("the tenant has %d bytes", bytes)
	}
	equal(s, "the payload", string(s.lease(1)[0].Payload), string(large.Payload))
	s.restart(func(o *queue.Options) { o.Defaults.CapacityBytes = 1000 })
	equal(s, "the outcome without compression", s.submit(large).Outcome, shaper.FullOfBytes)
}
