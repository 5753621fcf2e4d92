// Package wire holds the JSON forms of the HTTP API, shared by the server and its Go client. The
// OpenAPI document is made from the struct tags. Durations are whole milliseconds
// (_ms), times RFC 3339 in UTC (_at).
//
// The package depends neither on the queue nor on HTTP. The doc tags describe the values.
package wire

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Bounds of the fields of a submission. The schema tags repeat them; a test compares both.
const (
	MaxTypeBytes          = 255
	MaxKeyBytes           = 255
	MaxTenantBytes        = 255
	MaxTierBytes          = 64
	MaxBatch              = 1000
	MaxMillis             = 366 * 24 * 60 * 60 * 1000 // the longest delay and max wait, 366 days
	MaxForwardWaitSeconds = 300                       // of Prefer: wait of a forwarded request
	MaxWaitSeconds        = 30                        // a longer Prefer: wait counts as this
	MaxPage               = 1000                      // jobs of one page of a list
	MaxCallback           = 1024                      // bytes of a callback URL
	MaxFilterIDs          = 1000
	MaxErrorBytes         = 255 // of the text that a filter looks for in last errors
	MaxKeyName            = 255 // bytes of the name of an API key
	MaxPathBytes          = 1024
	MaxOperatorName       = 255
	MaxOperatorNetworks   = 100
)

// Submission is the body of POST /v1/jobs.
type Submission struct {
	Type        string            `json:"type" minLength:"1" maxLength:"255" example:"order.create" doc:"The kind of job, for the receiver. At most 255 bytes, no control characters."`
	Payload     json.RawMessage   `json:"payload" doc:"Any JSON value, delivered byte for byte."`
	Route       string            `json:"route,omitempty" minLength:"1" maxLength:"255" example:"default" doc:"Name of a configured route; \"default\" if absent."`
	DelayMS     int64             `json:"delay_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"Delay before the first delivery. The job holds its slot in the queue meanwhile."`
	MaxWaitMS   int64             `json:"max_wait_ms,omitempty" minimum:"0" maximum:"31622400000" doc:"The job expires if it cannot leave within this time; 0 or absent: the tenant's max_wait_ms."`
	Cost        int64             `json:"cost,omitempty" minimum:"1" maximum:"1000000" doc:"Number of departure intervals that the job takes; 1 if absent. If only the delivery knows the cost, an estimate: the upstream's answer replaces it."`
	Path        string            `json:"path,omitempty" minLength:"1" maxLength:"1024" example:"/orders/7" doc:"Path below the URL of the route, percent-encoded, without a query. Only if the route has paths: true."`
	Headers     map[string]string `json:"headers,omitempty" maxProperties:"16" doc:"Headers of the deliveries, such as X-Request-Id: those that the route lists in job_headers, at most 16, with 4 KiB of names and values. Names count as the same in any case, and with _ for -. They are part of the idempotency fingerprint."`
	CallbackURL string            `json:"callback_url,omitempty" minLength:"1" maxLength:"1024" example:"https://partner.example/hooks" doc:"Receives a POST when the job has ended. Its address must be public, unless the configuration lists its prefix. The URL is not part of the idempotency fingerprint."`
}

// BatchJob is one job of a batch.
type BatchJob struct {
	Submission
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1" maxLength:"255" doc:"Like the header Idempotency-Key, unquoted. At most 255 bytes, no control characters."`
}

// Batch is the body of POST /v1/jobs/batch.
type Batch struct {
	Jobs   []BatchJob `json:"jobs" nullable:"false" minItems:"1" maxItems:"1000" doc:"The jobs, admitted in this order."`
	Atomic bool       `json:"atomic,omitempty" doc:"Admit all jobs or none."`
}

// BatchResult is the answer to a batch: one result per job, in order.
type BatchResult struct {
	Items []JobResult `json:"items" nullable:"false"`
}

// JobResult is the result for one job of a batch: Status 202 with the job, or the members of the
// problem that a single submission would have got.
type JobResult struct {
	Problem
	Job      *Job `json:"job,omitempty" doc:"The job, if it was admitted or its idempotency key was known."`
	Replayed bool `json:"idempotent_replayed,omitempty" doc:"True if the idempotency key was known; the job is that of the first submission."`
}

// JobList is one page of jobs.
type JobList struct {
	Items      []Job  `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"The cursor of the next page; absent on the last page."`
}

// Job is a job as its client sees it. Times and figures that do not apply are absent.
type Job struct {
	ID             string            `json:"id"`
	Tenant         string            `json:"tenant"`
	Route          string            `json:"route"`
	Type           string            `json:"type"`
	State          string            `json:"state,omitempty" enum:"scheduled,queued,leased,retrying,succeeded,dead,cancelled,expired" doc:"Absent only where the job is past retention and nothing but its idempotency key is known."`
	Done           bool              `json:"done" doc:"Whether the state is final: succeeded, dead, cancelled or expired. A dead job can be replayed."`
	Position       int64             `json:"position,omitempty" doc:"Position in the queue; 1 leaves next. Only while queued."`
	EstimatedStart time.Time         `json:"estimated_start_at,omitzero" doc:"When the job leaves if nothing changes; absent while paused or held without end."`
	Attempts       int               `json:"attempts" doc:"Deliveries that count against max_attempts."`
	MaxAttempts    int               `json:"max_attempts"`
	Cost           int64             `json:"cost,omitempty" doc:"Cost as submitted. Absent only where the job is past retention."`
	ActualCost     *int64            `json:"actual_cost,omitempty" minimum:"0" doc:"Cost that the last delivery reported. It replaced the cost that the departure was charged for."`
	Created        time.Time         `json:"created_at,omitzero"`
	Scheduled      time.Time         `json:"scheduled_at,omitzero" doc:"When a scheduled or retrying job becomes eligible."`
	Started        time.Time         `json:"started_at,omitzero" doc:"The last departure."`
	Finished       time.Time         `json:"finished_at,omitzero" doc:"When the final state was reached."`
	Headers        map[string]string `json:"headers,omitempty" doc:"Headers that the job sets on its deliveries, only on the admin listener, and until it has ended without becoming a dead letter. Those that are named like a credential, such as X-Api-Key, have the value hidden."`
	LastError      *JobError         `json:"last_error,omitempty"`
	AttemptLog     []Attempt         `json:"attempt_log,omitempty" nullable:"false" doc:"How deliveries ended, once one has failed: at most the last 20, the oldest first. A replay does not clear it."`
	Response       *Response         `json:"response,omitempty"`
	Hidden         bool              `json:"hidden,omitempty" doc:"True for operators with the role viewer: payloads, bodies, values of headers, paths of forwarded requests and messages of errors are left out, or are (hidden)."`
}

// Attempt is the end of one delivery of a job.
type Attempt struct {
	Attempt int       `json:"attempt" doc:"Number of the attempt, from 1, and from 1 again after a replay. A held delivery costs no attempt, so it has the number of the next one."`
	Outcome string    `json:"outcome" enum:"retry,dead,held,succeeded" doc:"retry: failed, with attempts left. dead: failed, and was the last attempt. held: the upstream requested a pause, so the job was put back."`
	At      time.Time `json:"at" doc:"When the delivery ended."`
	Status  int       `json:"status,omitempty" doc:"HTTP status of the upstream's answer, if there was one."`
	Message string    `json:"message,omitempty" doc:"Why the delivery failed, at most 200 bytes."`
}

// JobError is the error of a job's last failed delivery.
type JobError struct {
	Message string    `json:"message"`
	Detail  string    `json:"detail,omitempty" doc:"Details for operators, only on the admin listener: addresses, names of hosts and certificates."`
	Status  int       `json:"status,omitempty" doc:"HTTP status of the upstream's answer, if there was one."`
	At      time.Time `json:"at"`
}

// Response is the answer of the upstream, with at most 4 KiB of its body.
type Response struct {
	Status        int               `json:"status"`
	Headers       map[string]string `json:"headers" doc:"Content-Type, Location and Retry-After. Of the answer to a forwarded request, all of them: values of a repeated header are joined by commas, and headers that are named like a credential, such as Set-Cookie, have the value hidden."`
	Body          string            `json:"body" doc:"Text, or base64 if body_encoding is base64."`
	BodyEncoding  string            `json:"body_encoding,omitempty" enum:"base64"`
	BodyTruncated bool              `json:"body_truncated"`
}

// RateChange is a rate in a PATCH, which may give only the half that changes.
type RateChange struct {
	Limit    int64 `json:"limit,omitempty" minimum:"1"`
	PeriodMS int64 `json:"period_ms,omitempty" minimum:"1" maximum:"31622400000"`
}

// Settings is the body of PUT and PATCH /v1/tenants/{tenant}: all settings but draining, which has
// operations of its own. An absent setting is left to the sources below the API (PUT) or unchanged
// (PATCH). A PATCH that resets a setting by null, or gives one half of the rate, is a map instead.
type Settings struct {
	shaper.Overrides
	Reason string `json:"reason,omitempty"`
}

// Switch is the optional body of the pause and the resume of a tenant.
type Switch struct {
	Reason string `json:"reason,omitempty" maxLength:"255" doc:"Stored with the change, at most 255 bytes."`
	Route  string `json:"route,omitempty" minLength:"1" maxLength:"255" doc:"Only this configured route of the tenant."`
}

// Reason is the optional body of drain and unhold, and of the pause and resume of a pool.
type Reason struct {
	Reason string `json:"reason,omitempty" maxLength:"255" doc:"Stored with the change, at most 255 bytes."`
}

// Unhold is the optional body of the unhold of a pool.
type Unhold struct {
	Reason string `json:"reason,omitempty" maxLength:"255" doc:"Stored with the change, at most 255 bytes."`
	Charge bool   `json:"charge,omitempty" doc:"Whether the pool stops waiting for costs that were charged: its next job may leave now."`
}

// Empty is an optional body without members.
type Empty struct{}

// Filter is the body of purge and replay: it selects the jobs that meet all given conditions. At
// least one must be given.
type Filter struct {
	All           bool      `json:"all,omitempty" enum:"true" doc:"true: jobs in every state. It is required without another condition, and excludes ids and state."`
	IDs           []string  `json:"ids,omitzero" nullable:"false" minItems:"1" maxItems:"1000" pattern:"^[0-9a-z]{1,64}$" doc:"Only these jobs."`
	State         string    `json:"state,omitempty" enum:"queued,scheduled,retrying,dead" doc:"Only jobs in this state. A replay accepts only dead."`
	Route         string    `json:"route,omitempty" minLength:"1" maxLength:"255" doc:"Only jobs for this route: a configured one, or one that the tenant still has jobs or settings of."`
	Error         string    `json:"error,omitempty" minLength:"1" maxLength:"255" doc:"Only jobs whose last error contains this text, in any case of letters: its message, its detail, or the body of the answer of the upstream."`
	CreatedBefore time.Time `json:"created_before,omitzero" doc:"Only jobs created before this instant; the time of the request if absent."`
}

// TenantsPurge selects tenants, by prefix, by tier or by both, and their jobs. Without a condition
// on jobs it selects all that wait or are dead.
type TenantsPurge struct {
	Prefix        string    `json:"prefix,omitempty" minLength:"1" maxLength:"255" example:"guest:" doc:"Only tenants whose name begins with this. Required without tier."`
	Tier          string    `json:"tier,omitempty" minLength:"1" maxLength:"64" doc:"Only tenants of this tier of the configuration, which they have by a setting or claimed with their last job. Required without prefix."`
	State         string    `json:"state,omitempty" enum:"queued,scheduled,retrying,dead" doc:"Only jobs in this state."`
	Route         string    `json:"route,omitempty" minLength:"1" maxLength:"255" doc:"Only jobs for this route, which need not be configured."`
	Error         string    `json:"error,omitempty" minLength:"1" maxLength:"255" doc:"Only jobs whose last error contains this text, in any case of letters: its message, its detail, or the body of the answer of the upstream."`
	CreatedBefore time.Time `json:"created_before,omitzero" doc:"Only jobs created before this instant; the time of the request if absent."`
	DryRun        bool      `json:"dry_run,omitempty" doc:"Count the selected tenants and their jobs, and purge nothing."`
	Cursor        string    `json:"cursor,omitempty" minLength:"1" doc:"The cursor of the answer before."`
}

// TenantsPurged is the result of one step of a purge of many tenants.
type TenantsPurged struct {
	Tenants       int64     `json:"tenants" doc:"Tenants of which jobs were purged; of a dry run, those selected that have jobs."`
	Count         int64     `json:"count" doc:"Number of purged jobs."`
	Waiting       int64     `json:"waiting,omitempty" doc:"Dry run: waiting jobs of these tenants, whatever the conditions on jobs are."`
	DeadLetters   int64     `json:"dead_letters,omitempty" doc:"Dry run: dead letters of these tenants, in the same way."`
	More          bool      `json:"more,omitempty" doc:"True if tenants may be left: send the same selection again, with this cursor, if any, and this created_before, if any."`
	Cursor        string    `json:"cursor,omitempty" doc:"Where the next step goes on; absent where it begins at the first tenant."`
	CreatedBefore time.Time `json:"created_before,omitzero" doc:"Jobs created later were left unchanged; absent while no tenant had jobs."`
	Note          string    `json:"note,omitempty" doc:"Present if no route of this name is configured: only jobs of a removed one are selected."`
}

// Swept is the result of a purge or a replay.
type Swept struct {
	Count         int64     `json:"count" doc:"Number of purged or replayed jobs."`
	More          bool      `json:"more,omitempty" doc:"True if jobs may be left: one request changes about 10,000. Send the same filter again, with this created_before."`
	CreatedBefore time.Time `json:"created_before" doc:"Jobs created later were left unchanged."`
	Stopped       string    `json:"stopped,omitempty" enum:"queue-full,queue-bytes-full,never-fits,draining" doc:"Replay only: why a job did not fit, which stopped the replay."`
	RetryAfterMS  int64     `json:"retry_after_ms,omitempty" doc:"Replay that stopped: milliseconds until a slot is free, if known."`
}

// Erased is what one step of the erasure of a tenant removed.
type Erased struct {
	Jobs            int64  `json:"jobs" doc:"Jobs, in any state."`
	Answers         int64  `json:"answers" doc:"Stored answers to forwarded requests, of these jobs."`
	Callbacks       int64  `json:"callbacks" doc:"Callbacks that were not handed over yet."`
	Tasks           int64  `json:"tasks" doc:"Tasks in asynq: callbacks, and jobs handed off, in any state but running."`
	IdempotencyKeys int64  `json:"idempotency_keys" doc:"Idempotency keys."`
	Keys            int64  `json:"api_keys" doc:"API keys."`
	CallbackSecrets int64  `json:"callback_secrets" doc:"Secrets of callbacks."`
	Revocations     int64  `json:"revocations" doc:"Instants from which tokens of the tenant and of its subjects were accepted."`
	Settings        int64  `json:"settings" doc:"Settings of the API: 1 for those of policies, 1 for endpoints of callbacks."`
	History         int64  `json:"history" doc:"Entries of the history."`
	Flows           int64  `json:"flows" doc:"Routes, with their counts."`
	Running         int64  `json:"running" doc:"Deliveries under way, which this step left."`
	More            bool   `json:"more,omitempty" doc:"True if something is left: send the request again with this cursor."`
	Cursor          string `json:"cursor,omitempty" doc:"Where the next step goes on."`
}

// HistoryEntry is one change of the settings of a tenant or a pool, or of many jobs of a tenant,
// through the API.
type HistoryEntry struct {
	At       time.Time        `json:"at"`
	Revision int64            `json:"revision" doc:"The revision after the change."`
	Actor    string           `json:"actor,omitempty" doc:"Who made the change."`
	Action   string           `json:"action,omitempty" enum:"unhold,unhold-charge,purge,replay" doc:"unhold if the change ended holds, unhold-charge if it also ended the charge of a pool; purge or replay of many jobs; absent for a change of settings."`
	Reason   string           `json:"reason,omitempty"`
	Before   shaper.Overrides `json:"before"`
	After    shaper.Overrides `json:"after"`
	Filter   *Filter          `json:"filter,omitempty" doc:"purge and replay: the selected jobs, with the first 20 ids."`
	Count    int64            `json:"count,omitempty" doc:"purge and replay: the number of changed jobs."`
}

// History lists changes, the newest first.
type History struct {
	Items []HistoryEntry `json:"items" nullable:"false"`
}

// Policy is the settings in force: those of shaper.SettingsOfTenants or, of a pool,
// shaper.SettingsOfPools. A setting that is none, such as a reserve, is nil.
type Policy struct {
	shaper.Overrides
	Sources map[string]string `json:"sources" doc:"Source of each setting: api, file, tier:NAME or default; the tier can also come from the credential."`
}

// InForce returns the settings as values: zero for none.
func (p Policy) InForce() shaper.Policy { return p.Overrides.Over(shaper.Policy{}) }

// Figures are those of one flow, or of all flows of a tenant.
type Figures struct {
	Depth         int64     `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Bytes         int64     `json:"bytes" doc:"Payload bytes of the jobs that depth counts."`
	Running       int64     `json:"running" doc:"Jobs leased by a worker."`
	LimitedBy     string    `json:"limited_by" enum:"rate,concurrency,pool,upstream,late,workers,auth,held,paused,idle" doc:"What keeps the next job from leaving now. rate: the rate or a further rate. concurrency: the limit of the flow. pool: the flow waits for its turn in the pool of its route. upstream: running deliveries use all slots of the worker for the route or the flow. late: for seconds, many jobs have arrived from Redis too late for their stamps. workers: no worker leases the job. auth: no token for the upstream can be had. held: the upstream requested a pause, or its circuit breaker is open. paused: by an operator, or because the dead letters reached their limit. idle: no job is waiting."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"Departures per second now: the strictest of rate and rates, reduced after holds, and at most the rate of the pool; 0 while paused. For a tenant: its general rate, as slow as its slowest route, and at most the rates of its pools if all of its routes are in pools."`
	HeldUntil     time.Time `json:"held_until,omitzero" doc:"While a flow is held: when the hold ends. For a tenant: the latest end of its holds."`
	HeldBy        string    `json:"held_by,omitempty" enum:"retry_after,breaker,flow_breaker,hand_off,auth,codec" doc:"While it is held: the cause. retry_after: the upstream named a time; at most one hour of it counts. breaker: the circuit breaker of the route is not closed. flow_breaker: the flow's own is not closed, while other flows of the route are well. hand_off: asynq does not accept its jobs. auth: no token for the upstream can be had. codec: a worker has no key to decrypt its next job."`
	HeldStatus    int       `json:"held_status,omitempty" doc:"While it is held: HTTP status of the upstream's last answer, absent if there was none."`
	OldestWaitMS  int64     `json:"oldest_wait_ms" doc:"Time since the oldest waiting job could first have left, retries and holds included; 0 for none. A job that came back from a worker counts until it ends, also during its next delivery."`
	Admitted      int64     `json:"admitted_total"`
	Rejected      int64     `json:"rejected_total"`
	Departed      int64     `json:"departed_total"`
	Succeeded     int64     `json:"succeeded_total"`
	Failed        int64     `json:"failed_total" doc:"Departures that neither succeeded nor are running: deliveries that failed, whatever became of the job, and those of workers that died. GET /v1/routes has those of the last minute."`
	DeadLetters   int64     `json:"dead" doc:"Current dead letters."`
	Dead          int64     `json:"dead_total" doc:"All jobs that became dead letters, including replayed, purged and expired ones."`
}

// Flow is the policy and the figures of one route of a tenant.
type Flow struct {
	Pool     string  `json:"pool,omitempty" doc:"The pool that the route is in; absent for none."`
	PoolRate float64 `json:"pool_rate_per_s,omitempty" doc:"Departures per second that the pool allows all of its flows together now; absent without a pool, and while the pool is paused."`
	PoolPart float64 `json:"pool_part,omitempty" doc:"Part of the pool's rate, from 0 to 1, that weight and reserve entitle the flow to while the same flows wait, or would if it waited with them; absent without a pool."`
	Owed     int64   `json:"owed,omitempty" doc:"What the jobs of the flow cost above their estimates and the flow has not repaid to its pool: its turns repay it before they take jobs. Absent for 0. Tenants of a tier with pool_weight owe together, in the pool's owed."`
	// StoredBytes is that of the flow alone. ShareBytes is 0 without a bound.
	StoredBytes int64 `json:"stored_bytes" doc:"Bytes stored for the flow: jobs, dead letters, answers and idempotency keys. 0 in lists."`
	ShareBytes  int64 `json:"share_bytes,omitempty" doc:"Bytes that may be stored for the flow now, by store.flow_share and what the store has left. Above it jobs are refused with 429 queue-bytes-full. Absent for no bound."`
	Policy
	Figures
}

// Tenant is a tenant's general policy and the sums of the figures of its flows.
type Tenant struct {
	Tenant string `json:"tenant"`
	Tier   string `json:"tier,omitempty" doc:"Tier of the tenant."`
	Policy
	Draining  bool              `json:"draining,omitempty" doc:"No jobs are admitted until the tenant is resumed."`
	Reason    string            `json:"reason,omitempty" doc:"The reason given with the last change, or why the tenant was paused automatically."`
	Revision  int64             `json:"revision" doc:"Revision of the settings, also the ETag; 0 if the settings were never changed."`
	Overrides *shaper.Overrides `json:"overrides,omitempty" doc:"Settings made through the API; absent if there are none."`
	Figures
	StoredBytes int64           `json:"stored_bytes" doc:"Bytes stored for the tenant: jobs, dead letters, answers and idempotency keys. 0 in lists."`
	DeadBytes   int64           `json:"dead_bytes" doc:"Bytes of the tenant's dead letters. 0 in lists."`
	Owed        int64           `json:"owed,omitempty" doc:"Sum of what the tenant's flows owe to their pools. Absent for 0."`
	Routes      map[string]Flow `json:"routes,omitempty" doc:"Routes with recent jobs of the tenant, or with settings of their own."`
	Unknown     bool            `json:"unknown,omitempty" doc:"Present if no setting names the tenant and it has no recent jobs, so its name may be misspelt. Only in the answer to GET."`
}

// TenantList is one page of tenants.
type TenantList struct {
	Items      []Tenant `json:"items" nullable:"false"`
	NextCursor string   `json:"next_cursor,omitempty" doc:"The cursor of the next page; absent on the last page."`
}

// Overview is the figures of all tenants together.
type Overview struct {
	At       time.Time `json:"at"`
	Tenants  int64     `json:"tenants" doc:"Tenants with jobs, or active in the last ten minutes; one in several pools may count for each of them."`
	Depth    int64     `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Bytes    int64     `json:"bytes" doc:"Payload bytes of the jobs that depth counts."`
	Running  int64     `json:"running" doc:"Jobs leased by a worker."`
	Admitted int64     `json:"admitted_total"`
	Rejected int64     `json:"rejected_total"`
	Departed int64     `json:"departed_total" doc:"Departures. A departure that a worker returned unused is subtracted."`
	// Lateness is nil without recent departures.
	Lateness *float64    `json:"lateness_p99_ms,omitempty" doc:"99th percentile of the lateness of departures in the last 10 seconds, over all workers; absent without departures. At most an eighth too high."`
	Workers  int         `json:"workers" doc:"Workers that reported in the last 3 seconds."`
	Dead     *int64      `json:"dead,omitempty" doc:"Current dead letters of all tenants. The count comes from a scan of all tenants, so it may be some seconds old; absent before the first scan."`
	Routes   []RouteLine `json:"routes" nullable:"false" doc:"The first 50 routes of GET /v1/routes."`
	Store    StoreState  `json:"store"`
	// FiguresAt is nil before the first reading.
	FiguresAt *time.Time `json:"figures_at,omitempty" doc:"When the figures were read. It is earlier than at while the store does not answer; absent if this process has never read them."`
}

// RouteLine is the state of one route, over all workers that reported in the last 3 seconds.
type RouteLine struct {
	Route    string `json:"route"`
	Breaker  string `json:"breaker" enum:"closed,half-open,open" doc:"State of the circuit breaker that is furthest open among the workers; closed if the route has none."`
	InFlight int64  `json:"in_flight" doc:"Running deliveries."`
	Ended    int64  `json:"ended" doc:"Deliveries that ended in the last minute."`
	Failed   int64  `json:"failed" doc:"Deliveries of the last minute that failed."`
	Streams  int64  `json:"streams,omitempty" doc:"Answers of running deliveries that are passed on while they come."`
	// StreamsSince is nil without one.
	StreamsSince *time.Time `json:"streams_since,omitempty" doc:"When the oldest of these answers began."`
	Method       string     `json:"method,omitempty" doc:"Method of deliveries; absent with forward and for routes without an upstream."`
	URL          string     `json:"url,omitempty" doc:"URL of the upstream, without user and query."`
	// Headers and Auth are nil where the route sets none.
	Headers    []string `json:"headers,omitempty" doc:"Names of the headers that the route sets."`
	Auth       []string `json:"auth,omitempty" enum:"oauth2,certificate,header,basic,signature" doc:"How requests are authenticated. oauth2: by a token. certificate: by a client certificate. header: by a header of the route. basic: by the user of the URL. signature: by secrets."`
	Proxy      string   `json:"proxy,omitempty" doc:"Proxy for the requests: env, or host and port."`
	JobHeaders []string `json:"job_headers,omitempty" doc:"Names of the headers that jobs may set."`
	// TokenEnd and CertificateEnd are nil without such an end.
	TokenEnd       *time.Time `json:"token_expires_at,omitempty" doc:"With oauth2: when the first token of the workers ends. They fetch another one before."`
	TokenProblem   string     `json:"token_problem,omitempty" doc:"With oauth2: why no token can be had. The jobs of the route wait meanwhile."`
	CertificateEnd *time.Time `json:"certificate_expires_at,omitempty" doc:"When the client certificate ends."`
	// Last is the last failure.
	Last *RouteFailure `json:"last_failure,omitempty" doc:"The last failure, if one is of the last minute."`
}

// RouteFailure is a delivery that failed.
type RouteFailure struct {
	At      time.Time `json:"at"`
	Tenant  string    `json:"tenant"`
	Job     string    `json:"job" doc:"ID of the job."`
	Message string    `json:"message" doc:"Why it failed."`
	Detail  string    `json:"detail,omitempty" doc:"Addresses, names of hosts and certificates."`
	Status  int       `json:"status,omitempty" doc:"HTTP status of the upstream's answer, if there was one."`
}

// RouteList lists routes: first those whose circuit breaker is open, then those with the most
// failures, then by deliveries under way and name.
type RouteList struct {
	Items []RouteLine `json:"items" nullable:"false"`
}

// StoreState is the state of the store.
type StoreState struct {
	OK         bool    `json:"ok" doc:"Whether the store answers. If not, the figures are the last ones read, or 0."`
	Engine     string  `json:"engine" enum:"redis,private,embedded"`
	PingMS     float64 `json:"ping_ms" doc:"Round-trip time of the store."`
	UsedMemory int64   `json:"used_memory,omitempty" doc:"Bytes."`
	MaxMemory  int64   `json:"max_memory,omitempty" doc:"Bytes; absent if unlimited."`
	Version    string  `json:"version,omitempty" doc:"Version of Redis at the start of the process."`
	Error      string  `json:"error,omitempty" doc:"Why the store is not ok."`
	Differing  int     `json:"differing_processes,omitempty" doc:"Processes whose configuration file has other policies than those in force. Give all processes the same file."`
	Abandoned  bool    `json:"policies_abandoned,omitempty" doc:"Present if no running process has the configuration file whose policies are in force. SIGHUP to a process, or its restart, puts its file into force."`
}

// TenantLines are the first tenants in an order, among those that match.
type TenantLines struct {
	At       time.Time    `json:"at"`
	Matching int          `json:"matching" doc:"Number of tenants that match the search."`
	Items    []TenantLine `json:"items" nullable:"false"`
}

// TenantLine is a tenant in a table.
type TenantLine struct {
	Tenant        string            `json:"tenant"`
	Rate          shaper.Rate       `json:"rate"`
	Rates         []shaper.PaceJSON `json:"rates,omitempty" doc:"Further rates; the strictest wins."`
	EffectiveRate float64           `json:"effective_rate_per_s" doc:"Departures per second now: the strictest of the general rates, as slow as the slowest route, and at most the rates of its pools if all of its routes are in pools; 0 while paused."`
	Capacity      int64             `json:"capacity"`
	Depth         int64             `json:"depth"`
	Running       int64             `json:"running"`
	Paused        bool              `json:"paused"`
	HeldUntil     time.Time         `json:"held_until,omitzero" doc:"While flows of the tenant are held: the latest end of the holds."`
	HeldBy        string            `json:"held_by,omitempty" enum:"retry_after,breaker,flow_breaker,hand_off,auth,codec"`
	HeldStatus    int               `json:"held_status,omitempty" doc:"HTTP status of the upstream's last answer, absent if there was none."`
	LimitedBy     string            `json:"limited_by" enum:"rate,concurrency,pool,upstream,late,workers,auth,held,paused,idle"`
	OldestWaitMS  int64             `json:"oldest_wait_ms"`
	Admitted      int64             `json:"admitted_total"`
	Rejected      int64             `json:"rejected_total"`
	Departed      int64             `json:"departed_total"`
	Succeeded     int64             `json:"succeeded_total"`
	DeadLetters   int64             `json:"dead" doc:"Current dead letters."`
	Dead          int64             `json:"dead_total"`
	Owed          int64             `json:"owed,omitempty" doc:"Sum of what the tenant's flows owe to their pools. Absent for 0."`
}

// TenantNow is a tenant at an instant, with the waits of its most recent jobs: those that succeeded
// at the first delivery, up to 200 of a route.
type TenantNow struct {
	At time.Time `json:"at"`
	Tenant
	WaitP50MS int64 `json:"wait_p50_ms" doc:"Time from admission to departure; 0 if no job has left."`
	WaitP95MS int64 `json:"wait_p95_ms"`
	WaitP99MS int64 `json:"wait_p99_ms"`
}

// KeyRequest is the optional body of POST /v1/tenants/{tenant}/keys.
type KeyRequest struct {
	Name     string    `json:"name,omitempty" maxLength:"255" example:"ci" doc:"Purpose of the key. At most 255 bytes, no control characters."`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the key expires; absent: after auth.keys.max_age of the configuration, or never without that. It may not be later than that."`
	Scopes   []string  `json:"scopes,omitempty" minItems:"1" maxItems:"6" enum:"submit,read,cancel,replay,forward,work" doc:"What requests with the key may do; absent: all but work. submit: jobs and batches. read: jobs, lists, answers, event streams and waits. cancel and replay: jobs. forward: requests to routes that forward. work is reserved: no request needs it."`
	Routes   []string  `json:"routes,omitempty" minItems:"1" maxItems:"100" doc:"The configured routes whose jobs the key may submit, read, cancel and replay; absent: all."`
	Types    []string  `json:"types,omitempty" minItems:"1" maxItems:"100" doc:"The types of these jobs; absent: all."`
	Networks []string  `json:"networks,omitempty" minItems:"1" maxItems:"100" example:"[\"192.0.2.0/24\"]" doc:"Addresses, or prefixes of them, of the clients that may use the key; absent: all."`
}

// Key is an API key of a tenant, without its secret.
type Key struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created_at"`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the key expires; absent: never. An expired key stays in the list for at least a day."`
	Scopes   []string  `json:"scopes" nullable:"false" doc:"What requests with the key may do."`
	Routes   []string  `json:"routes,omitempty" doc:"The routes of the jobs that they may concern; absent: all."`
	Types    []string  `json:"types,omitempty" doc:"The types of these jobs; absent: all."`
	Networks []string  `json:"networks,omitempty" doc:"The prefixes of addresses of clients that may use the key; absent: all."`
	LastUsed time.Time `json:"last_used_at,omitzero" doc:"When the key was last used, at most a minute behind; absent: never."`
}

// NewKey is a new key with its secret.
type NewKey struct {
	Key
	Secret string `json:"key" doc:"The whole key, to be sent as Authorization: Bearer or X-API-Key. It is returned only once and is not stored."`
}

// KeyList lists the keys of a tenant, the oldest first.
type KeyList struct {
	Items []Key `json:"items" nullable:"false"`
}

// CallbackSecretRequest is the optional body of POST /v1/tenants/{tenant}/callbacks/secrets.
type CallbackSecretRequest struct {
	Kind string `json:"kind,omitempty" enum:"hmac,ed25519" doc:"hmac: signatures v1, which receivers verify with the secret. ed25519: signatures v1a, which they verify with the public key. Absent: hmac."`
}

// CallbackSecret signs the callbacks of a tenant. This has not the secret itself.
type CallbackSecret struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind" enum:"hmac,ed25519"`
	Created   time.Time `json:"created_at"`
	By        string    `json:"created_by" doc:"Name of the operator who created it."`
	PublicKey string    `json:"public_key,omitempty" doc:"The public key that verifies signatures, whpk_ and base64; only of the kind ed25519."`
}

// NewCallbackSecret is a new secret of callbacks.
type NewCallbackSecret struct {
	CallbackSecret
	Secret string `json:"secret,omitempty" doc:"The secret that verifies signatures, whsec_ and base64; only of the kind hmac. It is returned only once."`
}

// CallbackSecretList lists the secrets of a tenant, the newest first.
type CallbackSecretList struct {
	Items []CallbackSecret `json:"items" nullable:"false"`
}

// CallbackEndpoints are the endpoints that the callbacks of a tenant may go to.
type CallbackEndpoints struct {
	Endpoints []string `json:"endpoints" nullable:"false" maxItems:"50" example:"[\"https://partner.example/hooks/\"]" doc:"Prefixes of URLs: a scheme, a host, perhaps a port, and a path that must match up to the end of one of its segments."`
}

// OperatorRequest is the body of POST /v1/operators.
type OperatorRequest struct {
	Name     string    `json:"name" minLength:"1" maxLength:"255" example:"olaf" doc:"Unique. admin, local and names that begin with oidc: are reserved. At most 255 bytes, no control characters."`
	Role     string    `json:"role" enum:"viewer,operator,admin" doc:"viewer: reads all but what clients wrote. operator: also changes tenants and pools, and reads payloads. admin: also manages operators."`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the token expires; absent: never."`
	Networks []string  `json:"networks,omitzero" nullable:"false" maxItems:"100" example:"[\"10.1.0.0/16\"]" doc:"Addresses and prefixes from which the token is accepted; absent: any."`
}

// Operator is an operator with a token, without the token.
type Operator struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Role     string    `json:"role" enum:"viewer,operator,admin"`
	Created  time.Time `json:"created_at"`
	By       string    `json:"created_by" doc:"Name of the operator who created it."`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the token expires; absent: never. An expired one stays in the list for at least a day."`
	Networks []string  `json:"networks,omitempty" doc:"Prefixes from which the token is accepted; absent: any."`
	Used     time.Time `json:"last_used_at,omitzero" doc:"The last use of the token, at most a minute late; absent: never."`
}

// NewOperator is a new operator with the token.
type NewOperator struct {
	Operator
	Token string `json:"token" doc:"The token, to be sent as Authorization: Bearer. It is returned only once and is not stored."`
}

// OperatorList lists the operators, the oldest first.
type OperatorList struct {
	Items []Operator `json:"items" nullable:"false"`
}

// Revocation is the optional body of POST /v1/tenants/{tenant}/tokens/revoke.
type Revocation struct {
	Subject   string    `json:"subject,omitempty" minLength:"1" maxLength:"255" doc:"The subject (sub) whose tokens are refused; absent: all of the tenant."`
	NotBefore time.Time `json:"not_before,omitzero" doc:"Tokens issued (iat) before this instant are refused, and those without iat; absent: now. It may not be in the future."`
}

// Revoked is the answer to a Revocation.
type Revoked struct {
	Tenant    string    `json:"tenant"`
	Subject   string    `json:"subject,omitempty"`
	NotBefore time.Time `json:"not_before" doc:"The instant in force: the one of the request, or a later one of an earlier request."`
}

// Session is a session of an operator on the dashboard.
type Session struct {
	ID      string    `json:"id" doc:"It does not open the session."`
	Name    string    `json:"name" doc:"Name of the operator."`
	Role    string    `json:"role" enum:"viewer,operator,admin"`
	Address string    `json:"address,omitempty" doc:"Address of the client that signed in."`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at" doc:"When the session ends, used or not."`
	Current bool      `json:"current,omitempty" doc:"True for the session of the request."`
}

// SessionList lists sessions, the oldest first.
type SessionList struct {
	Items []Session `json:"items" nullable:"false"`
}

// Self is the operator of a request.
type Self struct {
	Name       string `json:"name" doc:"admin for admin.token, local without a token."`
	Role       string `json:"role" enum:"viewer,operator,admin"`
	Credential string `json:"credential" enum:"token,session,none"`
	Address    string `json:"address,omitempty"`
}

// Guard is a limiter in front of the intake, as configured.
type Guard struct {
	Guard     string      `json:"guard"`
	Algorithm string      `json:"algorithm" example:"sliding-log"`
	Rate      shaper.Rate `json:"rate"`
	Limit     int64       `json:"limit" doc:"Requests of one key at once: the limit of the rate, or the burst."`
	BlockMS   int64       `json:"block_ms,omitempty" doc:"How long a key is refused after it exceeded the limit."`
	By        []string    `json:"by" nullable:"false" doc:"The parts of the key: tenant, guest, endpoint, address, network, route, type."`
	Endpoints []string    `json:"endpoints,omitempty" doc:"Operations that the guard covers; all if absent."`
	Routes    []string    `json:"routes,omitempty" doc:"Counts only jobs for these routes; all if absent."`
	Types     []string    `json:"types,omitempty" doc:"Counts only jobs of these types; all if absent."`
	OnError   string      `json:"on_error" example:"open" doc:"open: requests pass while Redis fails. closed: they are refused."`
	Shadow    bool        `json:"shadow" doc:"The guard refuses nothing, and counts the requests that it would refuse."`
}

// GuardList lists the guards.
type GuardList struct {
	Items []Guard `json:"items" nullable:"false"`
}

// BlockedKey is a key that a guard refuses for a while.
type BlockedKey struct {
	Key    string `json:"key" example:"guest:192.0.2.7"`
	LeftMS int64  `json:"left_ms" doc:"Milliseconds until the key is free."`
}

// BlockedList lists the blocked keys of a guard, those that are free soonest first.
type BlockedList struct {
	Items []BlockedKey `json:"items" nullable:"false"`
}

// Version identifies the program.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// Health is the body of /livez and /readyz when all is well.
type Health struct {
	Status string `json:"status" enum:"ok"`
	Detail string `json:"detail,omitempty" doc:"A warning for operators; the process works."`
}

// Problem is every error's body (RFC 9457) with the extensions that some types carry.
type Problem struct {
	Type                string       `json:"type,omitempty" doc:"Stable identifier, a URN."`
	Title               string       `json:"title,omitempty"`
	Status              int          `json:"status"`
	Detail              string       `json:"detail,omitempty"`
	Errors              []FieldError `json:"errors,omitempty" doc:"The invalid fields."`
	Depth               *int64       `json:"depth,omitempty" doc:"queue-full: jobs in the queue, or in the pool."`
	Capacity            *int64       `json:"capacity,omitempty" doc:"queue-full: the capacity."`
	Bytes               *int64       `json:"bytes,omitempty" doc:"queue-bytes-full: payload bytes of the waiting jobs."`
	CapacityBytes       *int64       `json:"capacity_bytes,omitempty" doc:"queue-bytes-full: the limit of bytes."`
	StoredBytes         *int64       `json:"stored_bytes,omitempty" doc:"queue-bytes-full, instead of bytes: bytes stored of the route's jobs, dead letters and answers."`
	ShareBytes          *int64       `json:"share_bytes,omitempty" doc:"queue-bytes-full, instead of capacity_bytes: the current limit of stored_bytes, a share of the store."`
	Scope               string       `json:"scope,omitempty" enum:"flow,pool,share" doc:"queue-full, queue-bytes-full, never-fits, too-costly and store-full: what is full, or has the limit. flow: the queue of the tenant's route. pool: the pool that the route is in. share: the part of the pool that the flow may hold now, because a flow holds at most three times what it leaves to others; of store-full the part of the store that guests, or the tenants of a tier, share. All figures are those of the scope."`
	Pool                string       `json:"pool,omitempty" doc:"With scope pool: the name of the pool."`
	Cost                int64        `json:"cost,omitempty" doc:"too-costly: the cost of the job."`
	MaxCost             int64        `json:"max_cost,omitempty" doc:"too-costly: the greatest cost of one job, in the tenant's route or in the pool: see scope."`
	RetryAfterMS        int64        `json:"retry_after_ms,omitempty" doc:"queue-full and queue-bytes-full: milliseconds until the requested slots are free; absent while paused, if nobody knows, or if they can never be free. rate-limited: milliseconds until the next request passes."`
	RetryAfterEstimated bool         `json:"retry_after_estimated,omitempty" doc:"retry_after_ms is an estimate: it depends on how long deliveries take, on other tenants of the pool, or on the bytes or costs of waiting jobs. Absent where it is exact."`
	Guard               string       `json:"guard,omitempty" doc:"rate-limited: the guard that refused it; absent where a tenant reads jobs too often."`
	EstimatedStart      time.Time    `json:"estimated_start_at,omitzero" doc:"deadline-unreachable: when the job would leave."`
	EstimatedWaitMS     int64        `json:"estimated_wait_ms,omitempty" doc:"deadline-unreachable: the same, from now."`
	Missing             string       `json:"missing,omitempty" doc:"forbidden: what the credential lacks: a scope, a route, a type of jobs, or network."`
	State               string       `json:"state,omitempty" doc:"job-state-conflict: the job's state."`
	AllowedMethods      []string     `json:"allowed_methods,omitempty" doc:"method-not-allowed: as the header Allow."`
	SupportedFormats    []string     `json:"supported_media_types,omitempty" doc:"unsupported-media-type: what is read here."`
}

// FieldError names a field, the value found there with its kind, and the rule it breaks.
type FieldError struct {
	Field string `json:"field" example:"delay_ms" doc:"Path in the body, or header, query or path parameter."`
	Kind  string `json:"kind" example:"string" doc:"Kind of the value that was found: string, number, boolean, null, array, object or nothing."`
	Value string `json:"value,omitempty" example:"5000" doc:"The value: a number, a boolean, or a text where a number, a time, a rate or one of several names is read. At most 64 bytes of it. Other texts are not repeated, because they may be secrets."`
	Rule  string `json:"rule" example:"must be a whole number from 0 to 31622400000"`
}

// String names the field, what was found there, and the rule.
func (e FieldError) String() string {
	found := e.Kind
	switch {
	case e.Value == "": // or not repeated
	case e.Kind == "string":
		found += " " + strconv.Quote(e.Value)
	default:
		found += " " + e.Value
	}
	return e.Field + " (" + found + ") " + e.Rule
}
