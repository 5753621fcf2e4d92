package queue

import (
	"errors"
	"time"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrUnavailable means that Redis did not do its part: no answer in time, or a state in which
	// it cannot serve; then the error is ErrState too. A change may or may not have happened. The
	// same call may be made again.
	ErrUnavailable = store.ErrUnavailable
	// ErrState means, beside ErrUnavailable, that Redis answered: it is loading, out of memory,
	// read-only, and so on.
	ErrState = store.ErrState
	// ErrOutcomeUnknown means, beside ErrUnavailable, that a change is stored, but not on as many
	// replicas as EngineOptions.Durability demands: a failover may lose it. The same call finds
	// out.
	ErrOutcomeUnknown = store.ErrOutcomeUnknown
	// ErrReplicas means, beside ErrUnavailable, that a master has fewer replicas in sync than that.
	ErrReplicas = store.ErrReplicas
	// ErrRefused means, beside ErrUnavailable, that Redis refused to write, because its master has
	// fewer replicas than its min-replicas-to-write. Nothing was changed.
	ErrRefused = store.ErrRefused
	// ErrScript means that the stored data is damaged, for example because a key was changed by
	// hand. The same call fails again until that is repaired.
	ErrScript = store.ErrScript
	// ErrGone means that the store has no job of this id, or not its answer: it is past its
	// retention, it was dropped for newer answers, or it never was.
	ErrGone = errors.New("queue: the job is gone")
	// ErrNotFound means that there is no such job, or that it is another tenant's.
	ErrNotFound = errors.New("queue: no such job")
	// ErrConflict means that the job's state does not allow the change. The job is returned too.
	ErrConflict = errors.New("queue: not possible in the job's state")
	// ErrRevision means that the policy has changed since the revision in the change.
	ErrRevision = errors.New("queue: the policy has another revision")
	// ErrCursor means that no listing returned this cursor.
	ErrCursor = errors.New("queue: not a cursor")
)

// Fault is the kind of a failed call to Redis: see FaultTransport, FaultState and FaultScript.
type Fault = store.Fault

// The kinds of faults.
const (
	FaultTransport = store.FaultTransport // no connection, or no answer in time: ErrUnavailable
	FaultState     = store.FaultState     // Redis cannot serve the call now: ErrUnavailable and ErrState
	FaultScript    = store.FaultScript    // the stored data is damaged: ErrScript
)

// FaultOf returns the kind of a failed call, "" for nil and for a cancelled context.
func FaultOf(err error) Fault { return store.FaultOf(err) }

// Submission is one job that a client wants delivered.
type Submission struct {
	ID          string // from NewID; empty: made by Submit
	Tenant      string // 1 to 255 bytes, no control characters
	Route       string // name of a configured route
	Type        string // 1 to 255 bytes
	Payload     []byte // delivered byte for byte
	ContentType string // of the payload, at most 255 bytes; empty: application/json
	Path        string // below the route's URL, at most 1,024 bytes; empty: the URL itself
	// Headers are those that its deliveries have beside Sluice's own: at most 16 with 4 KiB of
	// names and values, none that Sluice sets or that concerns one connection. Nil: none.
	Headers        map[string]string
	Same           []byte        // what a repeated IdempotencyKey must have in common; nil: the payload
	IdempotencyKey string        // empty: none
	Cost           int64         // departure intervals that it takes, 1 to shaper.MaxCost; 0 means 1
	Estimated      bool          // deliveries on the route replace Cost, see shaper.Request
	Delay          time.Duration // before the job is queued; 0: none
	MaxWait        time.Duration // from admission to departure; 0: that of the policy
	MaxAttempts    int           // of its route; 0: DefaultMaxAttempts
	CallbackURL    string        // called back when the job has ended; at most 1,024 bytes, empty for none
	TraceParent    string        // W3C trace context that deliveries carry on; at most 255 bytes, empty for none
	Tier           string        // as claimed by the tenant's credential; empty for none
	Guest          bool          // the tenant cost its client nothing: see StoreBounds.Classes
	Vouched        bool          // the tenant may use the reserve of the store: see StoreBounds.Reserve
	// Network names the guests of one client that may have many: see StoreBounds.Classes. Empty: no
	// other guests belong to this one.
	Network string
}

// Decision is the decision on a submission. Job is the stored job if the outcome is admitted or
// replayed. For a known idempotency key whose job is past its retention, Job has only what is
// stored with the key.
type Decision struct {
	shaper.Admission
	Job     Job
	Refused int // index of the job for which an atomic batch was refused
}

// Job is one job as a client may see it. Zero times are absent.
type Job struct {
	ID             string
	Tenant         string
	Route          string
	Type           string
	Cost           int64  // as submitted: an estimate
	ActualCost     *int64 // that the last settled delivery reported; nil if it reported none
	State          shaper.State
	Position       int64     // 1 is next; 0 unless queued
	EstimatedStart time.Time // of a waiting job, unless paused
	Attempts       int
	MaxAttempts    int
	Created        time.Time
	Scheduled      time.Time // when a scheduled or retrying job becomes eligible
	Started        time.Time // stamp of the last departure
	Finished       time.Time // when it reached its terminal state
	LastError      *JobError
	Response       *Response
	Answer         []byte    // to a forwarded request, as package httpmsg encodes it; may be cut after 64 KiB
	Log            []Attempt // of its deliveries, once one has failed; the oldest first, at most the last 20
}

// Attempt is the result of one delivery.
type Attempt struct {
	Number  int          `json:"n"` // from 1; a delivery that cost no attempt has the number of the next one
	Event   shaper.Event `json:"e"` // Succeed, Retry, Die or Hold
	At      time.Time    `json:"t"`
	Status  int          `json:"s,omitempty"` // of the upstream's answer, 0 if there was none
	Message string       `json:"m,omitempty"` // of the error, cut to 200 bytes
}

// JobError is why a delivery failed. Clients see the message; the detail, such as the address that
// was dialled, is for operators.
type JobError struct {
	Message string    `json:"message"`
	Detail  string    `json:"detail,omitempty"`
	Status  int       `json:"status,omitempty"`  // of the upstream's answer, 0 if there was none
	Timeout bool      `json:"timeout,omitempty"` // the upstream took too long
	At      time.Time `json:"at"`
}

// Response is what the upstream answered, bounded.
type Response struct {
	Status    int               `json:"status"`
	Headers   map[string]string `json:"headers,omitempty"`
	Body      []byte            `json:"body,omitempty"` // at most 4 KiB
	Truncated bool              `json:"truncated,omitempty"`
}

// Lease is a worker's right to deliver one job until Deadline, unless it is extended.
type Lease struct {
	LeaseRef
	Tenant      string
	Route       string
	Type        string
	TraceParent string // as submitted
	Payload     []byte
	PayloadAt   int               // its offset in the record
	ContentType string            // of the payload; empty: application/json
	Path        string            // below the route's URL; empty: the URL itself
	Headers     map[string]string // that its deliveries have beside Sluice's own; nil: none
	Cost        int64             // that its departure was charged for
	Attempt     int               // number of this delivery, from 1
	MaxAttempts int
	FreeLeases  int  // holds and expired leases before that cost no attempt
	Expired     bool // the lease before has expired
	Created     shaper.Instant
	Eligible    shaper.Instant // since when it could have left
	Stamp       shaper.Instant // when it is to leave
	Deadline    shaper.Instant // end of the lease
	Log         []Attempt      // the deliveries before
}

// LeaseRef names a lease. A newer lease of the same job has a higher epoch.
type LeaseRef struct {
	ID    string
	Epoch int64
}

// Completion is an ended job with a callback URL.
type Completion struct {
	Job         Job   // as it ended: State is shaper.Succeeded, Dead, Expired or Cancelled
	Epoch       int64 // leases the job had; with the state it names this end of the job
	CallbackURL string
	// Shard of Shards is where the job is stored: the callbacks of a shard stay together.
	Shard, Shards int
}

// Settlement ends a lease.
type Settlement struct {
	LeaseRef
	// Tenant of the job. An encrypted store needs it where the settlement has a result.
	Tenant string
	// Event is one of shaper.Succeed, Retry, Die, Hold, Release and LeaseExpired. A Retry of a job
	// that has no attempt left makes it dead. LeaseExpired ends a delivery that the worker's stop
	// cut off: the job is delivered again. The first shaper.FreeLeases of them spend no attempt.
	Event shaper.Event
	Delay time.Duration // Retry: until it is eligible again; Hold: how long the whole flow is held
	// Overload, of a retry: the upstream refused the job because of its load; the flow slows down
	// (shaper.Bucket.Refuse).
	Overload bool
	// Missed, of a release: the job came too late to leave at its stamp, as others do for seconds.
	// The flow counts as late for a while.
	Missed bool
	// NotSent says that the upstream has not seen the job, whose fault that is: the delivery says
	// nothing about the upstream. It is not stored.
	NotSent bool
	// Left says that the client of a forwarded request has left, which ended it: no failure of the
	// upstream. It is not stored.
	Left  bool
	Cause HoldCause // Hold: why
	// Final, of a death: the job is no dead letter. It is kept like one that succeeded and cannot
	// be replayed.
	Final       bool
	MaxAttempts int       // of the route now; 0 keeps those of the job
	Error       *JobError // kept until the next settlement of the job
	Response    *Response
	Answer      []byte // to a forwarded request, as package httpmsg encodes it; nil for none
	// Relayed says that the answer was passed on while it came: see Broker.Relay.
	Relayed bool
	// Retention, of a forwarded request, is how long the job is kept once it has ended, unless
	// newer answers need its space. 0: the job is no forwarded request.
	Retention time.Duration
	// ActualCost, from 0 to shaper.MaxCost, replaces the cost that the departure was charged for;
	// see shaper.Bucket.Correct. Nil keeps that one. A Release has none.
	ActualCost *int64
	// PayloadBytes is about the size of the payload: a result that is stored beside it makes Redis
	// copy it, so it counts in what one call settles. 0 if unknown.
	PayloadBytes int
	// PayloadAt is that of the lease, 0 if unknown. By it Redis stores a large result faster.
	PayloadAt int
	Attempt   int       // of the lease
	Log       []Attempt // of the lease; this delivery is added to it
}

// HoldCause is why a flow is held.
type HoldCause struct {
	By     string // one of HeldBy; empty where it is not known
	Status int    // of the upstream's last answer, 0 if there was none
}

// What a flow can be held by.
const (
	HeldByRetryAfter  = "retry_after"  // its upstream named a time in an answer
	HeldByBreaker     = "breaker"      // the circuit breaker of its route is not closed
	HeldByFlowBreaker = "flow_breaker" // its own is not closed: other flows of the route are well
	HeldByHandOff     = "hand_off"     // asynq does not take its jobs
	HeldByAuth        = "auth"         // its route has no token for its upstream
	HeldByCodec       = "codec"        // a job of it is encrypted by a key that a worker does not have
)

// HeldBy are the causes of holds.
var HeldBy = []string{HeldByRetryAfter, HeldByBreaker, HeldByFlowBreaker, HeldByHandOff, HeldByAuth, HeldByCodec}

// SettleResult is the effect of a settlement.
type SettleResult string

// The results of a settlement.
const (
	Settled  SettleResult = "settled"
	Repeated SettleResult = "repeated" // the same settlement came before: nothing changed, all is well
	Stale    SettleResult = "stale"    // the lease is not the current one: nothing changed
	Cut      SettleResult = "cut"      // settled: the actual cost exceeds max_cost of the pool, which was charged for that
	Died     SettleResult = "died"     // settled or repeated: the hold cost the last attempt, so the job is dead
)

// Reading is the clock of a shard at an instant between two instants of this process.
type Reading struct {
	Now            shaper.Instant
	Sent, Received time.Time
}

// Heartbeat is the answer to a heartbeat of a worker.
type Heartbeat struct {
	Reading          // of the clock of the list of workers, which is that of all shards if they are OneNode
	Live    []string // workers, sorted
}

// Tick is the answer to one poll of a shard.
type Tick struct {
	Reading // during the poll
	// Next is the earliest instant at which something is due in the shard; 0 when nothing is
	// planned.
	Next    shaper.Instant
	More    bool     // a bounded step ended with work left: poll again at once
	Paused  bool     // since a failover, until Next: no job is leased, and no earlier poll is answered
	Help    bool     // the shard's owner requests help: others lease too
	Outbox  bool     // completions wait to be handed over now
	PutOff  int64    // flows that were put off because of the bounds
	Damaged []string // stored items that are damaged and were set aside, each with its error
	Leases  []Lease  // in the order of their stamps per flow
}

// HelpSignal is a report of the owner of a shard about its free capacity.
type HelpSignal int

// The help signals.
const (
	HelpKeep  HelpSignal = iota // leave the flag as it is
	HelpRaise                   // out of capacity: others may lease beside the owner
	HelpClear                   // enough capacity again
)

// TickOptions are the parameters of one poll.
type TickOptions struct {
	Max     int           // most jobs to lease, up to 1,000; 0 polls without leasing
	Lease   time.Duration // how long each lease lasts
	Horizon time.Duration // how far ahead of its stamp a job may be leased
	Lead    time.Duration // the least time from the poll to a stamp: how long its answer takes to arrive
	Sweep   time.Duration // how often expired leases are taken back
	Help    HelpSignal
	Helper  bool // this worker is not the shard's owner: no other worker relies on its next poll
	Outbox  bool // this worker hands completions over: report them in Tick.Outbox
	Bounds  []Bound
}

// Bound limits the slots of the worker that one poll may fill with jobs of one route. A flow of
// such a route may hold up to three times the slots that it leaves to its route. A flow that may
// lease nothing is put off.
type Bound struct {
	Tenant string // of the flow; empty for a route
	Route  string
	Slots  int // of a route: how many it may take; of a flow: how many it holds
}

// Wake is a request to poll a shard now.
type Wake struct {
	Shard int  // or AllShards
	Help  bool // the owner requests help: every worker with free capacity may poll
}

// AllShards in a Wake means every shard.
const AllShards = -1

// Tenant is the general policy of a tenant with the source of each setting, and the sums of the
// figures of its flows.
type Tenant struct {
	Name   string
	Known  bool // it has settings of its own or recent jobs; otherwise the defaults hold
	Policy shaper.Policy
	// Sources maps a setting to "api", "file", "tier:NAME" or "default", and "tier" to "api",
	// "file", "credential" or "default".
	Sources  map[string]string
	Tier     string           // of the tenant; empty for none
	Reason   string           // given with the last change through the API, or why the tenant has paused itself
	Revision int64            // 0 if it never had settings of its own
	API      shaper.Overrides // overrides that were set through the API
	Figures
	// Stored is how many bytes the store keeps of the tenant: jobs, dead letters, answers and
	// idempotency keys. DeadBytes are those of its dead letters.
	Stored, DeadBytes int64
	// Routes has the routes with recent jobs of the tenant, and those with settings of their own.
	Routes map[string]Flow
}

// Flow is the policy and the figures of one route of a tenant.
type Flow struct {
	Policy  shaper.Policy
	Sources map[string]string // as in Tenant, without the tier
	Pool    string            // that the route is in; empty for none
	// PoolRate is what the pool allows all of its flows now, departures per second. EffectiveRate
	// is at most that. Part is the part of it that the flow has while the same flows wait, from 0
	// to 1, or would have if it waited with them.
	PoolRate, Part float64
	// Owed is what the flow's jobs have cost above their estimates, and the flow has not repaid to
	// its pool. A flow of a class owes nothing itself: its class does.
	Owed int64
	// Stored is how many bytes the store keeps of the flow, and Share how many it may have now,
	// above which jobs are refused; 0 is no bound.
	Stored, Share int64
	Figures
}

// Figures are the counts of one flow, or of all flows of a tenant. Totals only grow while the flow
// exists.
type Figures struct {
	Depth         int64         // jobs scheduled, queued and retrying
	Bytes         int64         // payload bytes of the jobs that Depth counts
	Running       int64         // leased jobs
	HeldUntil     time.Time     // zero: not held. Of a tenant: of the flow that is held the longest
	HeldBy        HoldCause     // while it is held
	LimitedBy     string        // one of LimitCauses
	EffectiveRate float64       // departures per second now: the rate, less the reduction after holds
	OldestWait    time.Duration // since the oldest waiting job could first have left
	Admitted      int64         // totals, like the next three
	Rejected      int64
	Departed      int64
	Succeeded     int64
	Dead          int64 // dead letters now
	DeadTotal     int64 // all jobs that became dead letters
}

// Change is one change of a tenant's API overrides.
type Change struct {
	// Edit gets the overrides in force and returns the new ones; it may be called again when
	// another change came first.
	Edit       func(shaper.Overrides) (shaper.Overrides, error)
	Resume     bool   // Edit ends pauses: "not paused" is kept only where another source pauses
	Reason     string // at most shaper.MaxReason bytes
	Actor      string // who made the change, for the history
	IfRevision *int64 // nil: any
	DryRun     bool   // change nothing: check, and return the tenant as it would be
	EndHolds   bool   // end the holds of the tenant's flows, or of the pool
	EndCharge  bool   // with EndHolds, of a pool: it stops waiting for costs that were charged
}

// HistoryEntry is one change of a tenant's API overrides, or of many of its jobs.
type HistoryEntry struct {
	At       time.Time        `json:"at"`
	Revision int64            `json:"revision"` // after the change
	Actor    string           `json:"actor,omitempty"`
	Action   string           `json:"action,omitempty"` // one of the constants, or empty for settings
	Reason   string           `json:"reason,omitempty"`
	Before   shaper.Overrides `json:"before"`
	After    shaper.Overrides `json:"after"`
	// Of a purge or a replay: which jobs were selected, at most NotedIDs of their ids, and how many
	// were changed.
	Filter *Filter `json:"filter,omitempty"`
	Count  int64   `json:"count,omitempty"`
}

// The actions of a change that ended holds, of one that ended the charge of a pool, too, and of
// changes of many jobs.
const (
	ActionUnhold       = "unhold"
	ActionUnholdCharge = "unhold-charge"
	ActionPurge        = "purge"
	ActionReplay       = "replay"
)

// NotedIDs is how many ids of a filter the history keeps.
const NotedIDs = 20

// Totals are the sums over all tenants.
type Totals struct {
	Depth   int64 // jobs scheduled, queued and retrying
	Bytes   int64 // payload bytes of the jobs that Depth counts
	Stored  int64 // bytes of the jobs that are waiting, leased or dead, with what Redis keeps beside them
	Running int64 // leased jobs
	Tenants int64 // with jobs, or active in the last ten minutes; a tenant counts once for each shard
	// Since the store was made. A departure that is given back unused is subtracted.
	Admitted, Rejected, Departed int64
}
