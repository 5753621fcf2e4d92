// Package wire holds the JSON forms of the HTTP API, shared by the server and its Go client. The
// struct tags are also what the OpenAPI document is made from. Durations are whole milliseconds
// (_ms), times RFC 3339 in UTC (_at).
//
// The package knows nothing of the queue or of HTTP; what a value means is said in the field's doc
// tag.
package wire

import (
	"encoding/json"
	"time"
)

// Bounds of the fields of a submission. They stand in the schema tags too; a test holds the two
// together.
const (
	MaxTypeBytes   = 255
	MaxKeyBytes    = 255
	MaxTenantBytes = 255
	MaxTierBytes   = 64
	MaxBatch       = 1000
	MaxMillis      = 366 * 24 * 60 * 60 * 1000 // the longest delay and max wait, 366 days
	MaxWaitSeconds = 30                        // a longer Prefer: wait counts as this
	MaxPage        = 1000                      // jobs of one page of a list
	MaxCallback    = 1024                      // bytes of a callback URL
	MaxFilterIDs   = 1000
	MaxErrorBytes  = 255 // of the text that a filter looks for in last errors
	MaxKeyName     = 255 // bytes of the name of an API key
)

// Submission is the body of POST /v1/jobs.
type Submission struct {
	Type        string          `json:"type" minLength:"1" maxLength:"255" example:"order.create" doc:"What kind of job it is, for the receiver. At most 255 bytes, no control characters."`
	Payload     json.RawMessage `json:"payload" doc:"Any JSON value, delivered byte for byte."`
	Route       string          `json:"route,omitempty" minLength:"1" maxLength:"255" example:"default" doc:"Name of a configured route; \"default\" if absent."`
	DelayMS     int64           `json:"delay_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"Not delivered earlier than this many milliseconds from now. The job holds its place meanwhile."`
	MaxWaitMS   int64           `json:"max_wait_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"The job expires when it could not leave within this many milliseconds; 0 or absent: the tenant's max_wait_ms."`
	Cost        int64           `json:"cost,omitempty" minimum:"1" maximum:"1000000" doc:"How many departure intervals the job takes; 1 if absent."`
	CallbackURL string          `json:"callback_url,omitempty" minLength:"1" maxLength:"1024" example:"https://partner.example/hooks" doc:"Called by POST when the job has ended. Its address must be public, unless the configuration lists its prefix; the URL takes no part in the comparison of submissions with one idempotency key."`
}

// BatchJob is one job of a batch.
type BatchJob struct {
	Submission
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1" maxLength:"255" doc:"As the header Idempotency-Key, bare. At most 255 bytes, no control characters."`
}

// Batch is the body of POST /v1/jobs/batch.
type Batch struct {
	Jobs   []BatchJob `json:"jobs" nullable:"false" minItems:"1" maxItems:"1000" doc:"Judged in this order."`
	Atomic bool       `json:"atomic,omitempty" doc:"Admit all or none."`
}

// BatchResult is the answer to a batch: one verdict per job, in order.
type BatchResult struct {
	Items []BatchVerdict `json:"items" nullable:"false"`
}

// BatchVerdict is what became of one job of a batch: Status 202 with the job, or the members of the
// problem that a single submission would have been answered with.
type BatchVerdict struct {
	Problem
	Job      *Job `json:"job,omitempty" doc:"The job, when it was admitted or its idempotency key is known."`
	Replayed bool `json:"idempotent_replayed,omitempty" doc:"Whether the idempotency key was known: the job is the one of then."`
}

// JobList is one page of jobs.
type JobList struct {
	Items      []Job  `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Pass as cursor for the following page; absent on the last."`
}

// Job is one job as its client sees it. Times and figures that do not apply are absent.
type Job struct {
	ID             string    `json:"id"`
	Tenant         string    `json:"tenant"`
	Route          string    `json:"route"`
	Type           string    `json:"type"`
	State          string    `json:"state,omitempty" enum:"scheduled,queued,leased,retrying,succeeded,dead,cancelled,expired" doc:"Absent only where the job is past retention and nothing but its idempotency key is known."`
	Done           bool      `json:"done" doc:"Whether the state is final: succeeded, dead, cancelled or expired. A dead job can be replayed."`
	Position       int64     `json:"position,omitempty" doc:"1 is next; only while queued."`
	EstimatedStart time.Time `json:"estimated_start_at,omitzero" doc:"When the job leaves if nothing changes; absent while paused or held without end."`
	Attempts       int       `json:"attempts" doc:"Deliveries that count against max_attempts."`
	MaxAttempts    int       `json:"max_attempts"`
	Created        time.Time `json:"created_at,omitzero"`
	Scheduled      time.Time `json:"scheduled_at,omitzero" doc:"When a scheduled or retrying job becomes eligible."`
	Started        time.Time `json:"started_at,omitzero" doc:"The last departure."`
	Finished       time.Time `json:"finished_at,omitzero" doc:"When the final state was reached."`
	LastError      *JobError `json:"last_error,omitempty"`
	AttemptLog     []Attempt `json:"attempt_log,omitempty" nullable:"false" doc:"How deliveries ended, once one has failed: at most the last 20, the oldest first. A replay does not clear it."`
	Response       *Response `json:"response,omitempty"`
}

// Attempt is how one delivery of a job ended.
type Attempt struct {
	Attempt int       `json:"attempt" doc:"From 1, and from 1 again after a replay. A delivery that was held and cost no attempt has the number of the next one."`
	Outcome string    `json:"outcome" enum:"retry,dead,held,succeeded" doc:"retry: it failed, and another attempt was left. dead: it failed and was the last. held: the job was put back and the upstream is left in peace."`
	At      time.Time `json:"at" doc:"When it ended."`
	Status  int       `json:"status,omitempty" doc:"Of the upstream's answer, if there was one."`
	Message string    `json:"message,omitempty" doc:"Why it failed, at most 200 bytes."`
}

// JobError is why the last failed delivery of a job failed.
type JobError struct {
	Message string    `json:"message"`
	Detail  string    `json:"detail,omitempty" doc:"What operators see beside the message, on the admin listener alone: addresses, names of hosts and certificates."`
	Status  int       `json:"status,omitempty" doc:"Of the upstream's answer, if there was one."`
	At      time.Time `json:"at"`
}

// Response is what the upstream answered, its body bounded to 4 KiB.
type Response struct {
	Status        int               `json:"status"`
	Headers       map[string]string `json:"headers"`
	Body          string            `json:"body" doc:"Text, or base64 where body_encoding says so."`
	BodyEncoding  string            `json:"body_encoding,omitempty" enum:"base64"`
	BodyTruncated bool              `json:"body_truncated"`
}

// Rate is a number of departures per period.
type Rate struct {
	Limit    int64 `json:"limit" minimum:"1"`
	PeriodMS int64 `json:"period_ms" minimum:"1" maximum:"31622400000"`
}

// RateChange is a rate; a PATCH may give only the half that changes.
type RateChange struct {
	Limit    int64 `json:"limit,omitempty" minimum:"1"`
	PeriodMS int64 `json:"period_ms,omitempty" minimum:"1" maximum:"31622400000"`
}

// Pace is a further rate with its own burst.
type Pace struct {
	Rate
	Burst int64 `json:"burst,omitempty" minimum:"1" doc:"1 if absent."`
}

// RouteSettings are what is said of one route, or in general. An absent setting is left to the
// sources below the API (PUT) or as it is (PATCH); null resets it.
type RouteSettings struct {
	Rate          *RateChange `json:"rate,omitempty"`
	Rates         *[]Pace     `json:"rates,omitempty" maxItems:"7" doc:"Further rates; the strictest wins."`
	Burst         *int64      `json:"burst,omitempty" minimum:"1"`
	Capacity      *int64      `json:"capacity,omitempty" minimum:"0" maximum:"1000000000"`
	CapacityBytes *int64      `json:"capacity_bytes,omitempty" minimum:"0" maximum:"1125899906842624" doc:"Bytes that the payloads of waiting jobs may have; 0 is no bound."`
	Concurrency   *int64      `json:"concurrency,omitempty" minimum:"0" maximum:"1000000" doc:"0 is no cap."`
	MaxWaitMS     *int64      `json:"max_wait_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"0 is no limit."`
	Paused        *bool       `json:"paused,omitempty"`
}

// Settings is the body of PUT and PATCH /v1/tenants/{tenant}.
type Settings struct {
	RouteSettings
	Tier   *string                   `json:"tier,omitempty" minLength:"1" maxLength:"64" doc:"One of the tiers of the configuration."`
	Routes map[string]*RouteSettings `json:"routes,omitempty" doc:"What holds for single routes, by name. It outranks what holds in general."`
	Reason string                    `json:"reason,omitempty" maxLength:"255" doc:"Kept with the change, at most 255 bytes."`
}

// Reason is the optional body of pause, drain and resume.
type Reason struct {
	Reason string `json:"reason,omitempty" maxLength:"255" doc:"Kept with the change, at most 255 bytes."`
}

// Empty is an optional body without members.
type Empty struct{}

// Filter is the optional body of purge and replay: the jobs that meet all that is given; without
// anything, all of the tenant's.
type Filter struct {
	IDs           []string  `json:"ids,omitzero" nullable:"false" minItems:"1" maxItems:"1000" pattern:"^[0-9a-z]{1,64}$" doc:"Only these jobs."`
	State         string    `json:"state,omitempty" enum:"queued,scheduled,retrying,dead" doc:"Only jobs in this state. A replay takes dead jobs alone."`
	Route         string    `json:"route,omitempty" minLength:"1" maxLength:"255" doc:"Only jobs for this route, which need not be configured."`
	Error         string    `json:"error,omitempty" minLength:"1" maxLength:"255" doc:"Only jobs whose last error contains this text."`
	CreatedBefore time.Time `json:"created_before,omitzero" doc:"Only jobs created before; if absent, before the request."`
}

// Swept is what a purge or a replay has done.
type Swept struct {
	Count         int64     `json:"count" doc:"Jobs that were purged or replayed."`
	More          bool      `json:"more,omitempty" doc:"One request changes about 10,000 jobs. Others may be left: send the same filter again, with this created_before."`
	CreatedBefore time.Time `json:"created_before" doc:"Jobs created later were let be."`
	Stopped       string    `json:"stopped,omitempty" enum:"queue-full,queue-bytes-full,draining" doc:"Of a replay: why a job found no place, after which no other was tried."`
	RetryAfterMS  int64     `json:"retry_after_ms,omitempty" doc:"Of a replay that has stopped: milliseconds until there is a place again, where that is known."`
}

// RouteOverrides are what was said through the API of one route, or in general; what is absent was
// left to the configuration.
type RouteOverrides struct {
	Rate          *Rate   `json:"rate,omitempty"`
	Rates         *[]Pace `json:"rates,omitempty" nullable:"false"`
	Burst         *int64  `json:"burst,omitempty"`
	Capacity      *int64  `json:"capacity,omitempty"`
	CapacityBytes *int64  `json:"capacity_bytes,omitempty"`
	Concurrency   *int64  `json:"concurrency,omitempty"`
	MaxWaitMS     *int64  `json:"max_wait_ms,omitempty"`
	Paused        *bool   `json:"paused,omitempty"`
}

// Overrides are all that was said of a tenant through the API at one time.
type Overrides struct {
	RouteOverrides
	Draining *bool                     `json:"draining,omitempty"`
	Tier     string                    `json:"tier,omitempty"`
	Routes   map[string]RouteOverrides `json:"routes,omitempty"`
}

// HistoryEntry is one change of a tenant's settings through the API.
type HistoryEntry struct {
	At       time.Time `json:"at"`
	Revision int64     `json:"revision" doc:"After the change."`
	Actor    string    `json:"actor,omitempty" doc:"Who made it."`
	Action   string    `json:"action,omitempty" enum:"unhold" doc:"unhold where holds were ended; absent where settings were changed."`
	Reason   string    `json:"reason,omitempty"`
	Before   Overrides `json:"before"`
	After    Overrides `json:"after"`
}

// History lists changes, the newest first.
type History struct {
	Items []HistoryEntry `json:"items" nullable:"false"`
}

// Policy is the settings in force.
type Policy struct {
	Rate          Rate              `json:"rate"`
	Rates         []Pace            `json:"rates,omitempty" doc:"Further rates that hold beside the rate."`
	Burst         int64             `json:"burst"`
	Capacity      int64             `json:"capacity"`
	CapacityBytes int64             `json:"capacity_bytes" doc:"Bytes that the payloads of waiting jobs may have; 0 is no bound."`
	Concurrency   int64             `json:"concurrency"`
	MaxWaitMS     int64             `json:"max_wait_ms"`
	Paused        bool              `json:"paused"`
	Sources       map[string]string `json:"sources" doc:"Setting to where it comes from: api, file, tier:NAME or default; the tier itself also from credential."`
}

// Figures are those of one flow, or of all flows of a tenant.
type Figures struct {
	Depth         int64     `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Bytes         int64     `json:"bytes" doc:"Of the payloads of the jobs that make up the depth."`
	Running       int64     `json:"running" doc:"Jobs with a worker."`
	LimitedBy     string    `json:"limited_by" enum:"rate,concurrency,upstream,late,workers,held,paused,idle" doc:"What keeps the next job from leaving now. rate: the rate or a further rate. concurrency: the flow's own cap. upstream: its deliveries hold all the places that a worker keeps for the route or the flow. late: its jobs come too late from Redis to leave at their stamps. workers: it could leave, and no worker leases it. held: the upstream asked for a pause, or its circuit breaker is open. paused: an operator, or as many dead letters as are kept. idle: nothing waits."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"Departures a second: the strictest of rate and rates, less what an upstream that asked for peace has cost; 0 while paused. Of a tenant: its rate in general, as slow as its most slowed route."`
	HeldUntil     time.Time `json:"held_until,omitzero" doc:"While a flow is held: when the hold ends. Of a tenant, that of the flow which is held the longest."`
	HeldBy        string    `json:"held_by,omitempty" enum:"retry_after,breaker,hand_off" doc:"While it is held, why: retry_after, the upstream named a time in its answer (an hour counts at the most); breaker, the circuit breaker of the route is not closed; hand_off, asynq does not take its jobs."`
	HeldStatus    int       `json:"held_status,omitempty" doc:"While it is held: status of the upstream's last answer, absent if there was none."`
	OldestWaitMS  int64     `json:"oldest_wait_ms" doc:"How long ago the oldest job that waits could have left at first, through retries and holds; 0 for none. A job that came back from a worker counts until it ends, also while it is delivered again."`
	Admitted      int64     `json:"admitted_total"`
	Rejected      int64     `json:"rejected_total"`
	Departed      int64     `json:"departed_total"`
	Succeeded     int64     `json:"succeeded_total"`
	DeadLetters   int64     `json:"dead" doc:"Dead letters that there are now and that can be replayed."`
	Dead          int64     `json:"dead_total" doc:"Jobs that became dead letters, those included that were replayed, purged or are past retention."`
}

// Flow is what holds for one route of a tenant.
type Flow struct {
	Policy
	Figures
}

// Tenant is a tenant's policy in general and the figures of its flows, summed.
type Tenant struct {
	Tenant string `json:"tenant"`
	Tier   string `json:"tier,omitempty" doc:"That the tenant is in."`
	Policy
	Draining  bool       `json:"draining,omitempty" doc:"No jobs are admitted until the tenant is resumed."`
	Reason    string     `json:"reason,omitempty" doc:"Given with the last change, or why the tenant has paused itself."`
	Revision  int64      `json:"revision" doc:"Also the ETag; 0 when nothing was ever said of the tenant."`
	Overrides *Overrides `json:"overrides,omitempty" doc:"What was said of the tenant through the API; absent when that is nothing."`
	Figures
	StoredBytes int64           `json:"stored_bytes" doc:"Bytes that the store keeps of the tenant: jobs, dead letters, answers and idempotency keys. 0 in lists."`
	DeadBytes   int64           `json:"dead_bytes" doc:"Bytes of its dead letters. 0 in lists."`
	Routes      map[string]Flow `json:"routes,omitempty" doc:"Routes that the tenant has sent jobs to lately, or that have settings of their own."`
}

// TenantList is one page of tenants.
type TenantList struct {
	Items      []Tenant `json:"items" nullable:"false"`
	NextCursor string   `json:"next_cursor,omitempty" doc:"Pass as cursor for the following page; absent on the last."`
}

// Overview is the figures of all tenants together.
type Overview struct {
	At       time.Time `json:"at"`
	Tenants  int64     `json:"tenants" doc:"With jobs, or active in the last ten minutes."`
	Depth    int64     `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Bytes    int64     `json:"bytes" doc:"Of the payloads of the jobs that make up the depth."`
	Running  int64     `json:"running" doc:"Jobs with a worker."`
	Admitted int64     `json:"admitted_total"`
	Rejected int64     `json:"rejected_total"`
	Departed int64     `json:"departed_total" doc:"One that was given back unused is taken off again."`
	// Lateness is nil when nothing departed lately.
	Lateness *float64    `json:"lateness_p99_ms,omitempty" doc:"99 of 100 departures of the last 10 seconds were at most so long after their instant, over all workers; absent when there was none. At most an eighth too high."`
	Workers  int         `json:"workers" doc:"Workers that were heard of in the last 3 seconds."`
	Dead     *int64      `json:"dead,omitempty" doc:"Dead letters that there are now. All tenants are gone through for it, so with many of them it is some seconds old; absent before the first time."`
	Routes   []RouteLine `json:"routes" nullable:"false" doc:"The first 50 routes of GET /v1/routes."`
	Store    StoreState  `json:"store"`
}

// RouteLine is how one route is, over all workers that were heard of in the last 3 seconds.
type RouteLine struct {
	Route    string `json:"route"`
	Breaker  string `json:"breaker" enum:"closed,half-open,open" doc:"Circuit breaker of the worker whose is the least closed; closed too where the route has none."`
	InFlight int64  `json:"in_flight" doc:"Deliveries under way."`
	Ended    int64  `json:"ended" doc:"Deliveries that ended in the last minute."`
	Failed   int64  `json:"failed" doc:"Of them, those that did not succeed."`
}

// RouteList lists routes: first those whose circuit breaker is open, then those with the most
// failures, then by deliveries under way and name.
type RouteList struct {
	Items []RouteLine `json:"items" nullable:"false"`
}

// StoreState is how the store is.
type StoreState struct {
	OK         bool    `json:"ok" doc:"Whether it answers. If not, the figures are the last that were read, 0 if none were."`
	Engine     string  `json:"engine" enum:"redis,private,embedded"`
	PingMS     float64 `json:"ping_ms" doc:"How long it took to answer."`
	UsedMemory int64   `json:"used_memory,omitempty" doc:"Bytes."`
	MaxMemory  int64   `json:"max_memory,omitempty" doc:"Bytes; absent: no bound."`
	Version    string  `json:"version,omitempty" doc:"Of Redis, when the process started."`
	Error      string  `json:"error,omitempty" doc:"Why it is not ok."`
	Differing  int     `json:"differing_processes,omitempty" doc:"Processes whose configuration file states other policies than those in force; give all processes the same file."`
}

// TenantLines is the first tenants in an order, among those that match.
type TenantLines struct {
	At       time.Time    `json:"at"`
	Matching int          `json:"matching" doc:"Tenants whose name contains what is searched for."`
	Items    []TenantLine `json:"items" nullable:"false"`
}

// TenantLine is what a table says of a tenant.
type TenantLine struct {
	Tenant        string    `json:"tenant"`
	Rate          Rate      `json:"rate"`
	Rates         []Pace    `json:"rates,omitempty" doc:"Further rates that hold beside the rate."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"Departures a second: the strictest of rate and rates in general, as slow as the most slowed route; 0 while paused."`
	Capacity      int64     `json:"capacity"`
	Depth         int64     `json:"depth"`
	Running       int64     `json:"running"`
	Paused        bool      `json:"paused"`
	HeldUntil     time.Time `json:"held_until,omitzero" doc:"While a flow of the tenant is held: when the hold ends that ends last."`
	HeldBy        string    `json:"held_by,omitempty" enum:"retry_after,breaker,hand_off"`
	HeldStatus    int       `json:"held_status,omitempty" doc:"Of the upstream's last answer, absent if there was none."`
	LimitedBy     string    `json:"limited_by" enum:"rate,concurrency,upstream,late,workers,held,paused,idle"`
	OldestWaitMS  int64     `json:"oldest_wait_ms"`
	Admitted      int64     `json:"admitted_total"`
	Rejected      int64     `json:"rejected_total"`
	Departed      int64     `json:"departed_total"`
	Succeeded     int64     `json:"succeeded_total"`
	DeadLetters   int64     `json:"dead" doc:"Dead letters that there are now."`
	Dead          int64     `json:"dead_total"`
}

// TenantNow is a tenant at an instant, and how long its most recent jobs waited: those that
// succeeded at the first delivery, up to 200 of a route.
type TenantNow struct {
	At time.Time `json:"at"`
	Tenant
	WaitP50MS int64 `json:"wait_p50_ms" doc:"From admission to departure; 0 if there are no such jobs."`
	WaitP95MS int64 `json:"wait_p95_ms"`
	WaitP99MS int64 `json:"wait_p99_ms"`
}

// KeyRequest is the optional body of POST /v1/tenants/{tenant}/keys.
type KeyRequest struct {
	Name    string    `json:"name,omitempty" maxLength:"255" example:"ci" doc:"What the key is for. At most 255 bytes, no control characters."`
	Expires time.Time `json:"expires_at,omitzero" doc:"From then on the key opens nothing; absent: never."`
}

// Key is an API key of a tenant, without its secret.
type Key struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at,omitzero" doc:"From then on it opens nothing; absent: never. An expired key stays in the list for a day at least."`
}

// NewKey is a key that was just made.
type NewKey struct {
	Key
	Secret string `json:"key" doc:"The whole key, to be sent as Authorization: Bearer or X-API-Key. It is shown once and stored nowhere."`
}

// KeyList lists the keys of a tenant, the oldest first.
type KeyList struct {
	Items []Key `json:"items" nullable:"false"`
}

// Guard is a limiter in front of the intake, as configured.
type Guard struct {
	Guard     string   `json:"guard"`
	Algorithm string   `json:"algorithm" example:"sliding-log"`
	Rate      Rate     `json:"rate"`
	Limit     int64    `json:"limit" doc:"Requests of one key that may come at once at most: the rate's, or the burst."`
	BlockMS   int64    `json:"block_ms,omitempty" doc:"How long a key is refused after an overflow."`
	By        []string `json:"by" nullable:"false" doc:"What requests are counted by together: tenant, guest, endpoint, address, route, type."`
	Endpoints []string `json:"endpoints,omitempty" doc:"Operations that it stands before; all if absent."`
	Routes    []string `json:"routes,omitempty" doc:"Routes of the jobs that it counts; all if absent."`
	Types     []string `json:"types,omitempty" doc:"Types of the jobs that it counts; all if absent."`
	OnError   string   `json:"on_error" example:"open" doc:"open or closed: whether requests pass while Redis cannot be asked."`
	Shadow    bool     `json:"shadow" doc:"Counts what it would refuse, and refuses nothing."`
}

// GuardList lists the guards.
type GuardList struct {
	Items []Guard `json:"items" nullable:"false"`
}

// BlockedKey is a key that a guard refuses for a while.
type BlockedKey struct {
	Key    string `json:"key" example:"guest:192.0.2.7"`
	LeftMS int64  `json:"left_ms" doc:"Milliseconds until it is free."`
}

// BlockedList lists the blocked keys of a guard, those that are free soonest first.
type BlockedList struct {
	Items []BlockedKey `json:"items" nullable:"false"`
}

// Version says which program answers.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// Health is the body of /livez and /readyz when all is well.
type Health struct {
	Status string `json:"status" enum:"ok"`
	Detail string `json:"detail,omitempty" doc:"What an operator should see to although all works."`
}

// Problem is every error's body (RFC 9457) with the extensions that some types carry.
type Problem struct {
	Type             string       `json:"type,omitempty" doc:"Stable identifier, a URN."`
	Title            string       `json:"title,omitempty"`
	Status           int          `json:"status"`
	Detail           string       `json:"detail,omitempty"`
	Errors           []FieldError `json:"errors,omitempty" doc:"What is wrong with which field."`
	Depth            *int64       `json:"depth,omitempty" doc:"queue-full: jobs that hold a place."`
	Capacity         *int64       `json:"capacity,omitempty" doc:"queue-full: the bound."`
	Bytes            *int64       `json:"bytes,omitempty" doc:"queue-bytes-full: of the payloads that wait."`
	CapacityBytes    *int64       `json:"capacity_bytes,omitempty" doc:"queue-bytes-full: the bound."`
	StoredBytes      *int64       `json:"stored_bytes,omitempty" doc:"queue-bytes-full, instead of bytes: of all that is stored of the route's jobs, dead letters and answers."`
	ShareBytes       *int64       `json:"share_bytes,omitempty" doc:"queue-bytes-full, instead of capacity_bytes: the share of the store that these may have now."`
	RetryAfterMS     int64        `json:"retry_after_ms,omitempty" doc:"queue-full and queue-bytes-full: milliseconds until the places asked for are free; absent while paused or when they never can be. rate-limited: until the next read or request is let through."`
	Guard            string       `json:"guard,omitempty" doc:"rate-limited: the guard that refused it; absent where a tenant reads jobs too often."`
	EstimatedStart   time.Time    `json:"estimated_start_at,omitzero" doc:"deadline-unreachable: when the job would leave."`
	EstimatedWaitMS  int64        `json:"estimated_wait_ms,omitempty" doc:"deadline-unreachable: the same, from now."`
	State            string       `json:"state,omitempty" doc:"job-state-conflict: the job's state."`
	AllowedMethods   []string     `json:"allowed_methods,omitempty" doc:"method-not-allowed: as the header Allow."`
	SupportedFormats []string     `json:"supported_media_types,omitempty" doc:"unsupported-media-type: what is read here."`
}

// FieldError names a field, the kind of value found there, and the rule it breaks. The value itself
// is never repeated.
type FieldError struct {
	Field string `json:"field" example:"delay_ms" doc:"Path in the body, or header, query or path parameter."`
	Kind  string `json:"kind" example:"string" doc:"Kind of the value that was found: string, number, boolean, null, array, object or nothing."`
	Rule  string `json:"rule" example:"must be a whole number from 0 to 31622400000"`
}
