package wire

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

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
	Stopped       string    `json:"stopped,omitempty" enum:"queue-full,queue-bytes-full,never-fits,draining,forbidden" doc:"Replay only: why a job did not fit, which stopped the replay."`
	StoppedRoute  string    `json:"stopped_route,omitempty" doc:"Replay that stopped: route of the job that did not fit. Replay other routes by a filter with route."`
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
	LimitedBy     string    `json:"limited_by" enum:"rate,concurrency,pool,upstream,late,workers,flows,auth,held,paused,idle" doc:"What keeps the next job from leaving now. rate: the rate or a further rate. concurrency: the limit of the flow. pool: the flow waits for its turn in the pool of its route. upstream: running deliveries use all slots of the worker for the route or the flow. late: for seconds, many jobs have arrived from Redis too late for their stamps. workers: no worker leases the job. flows: of a pool, all its flows wait for what limits each of them. auth: no token for the upstream can be had. held: the upstream requested a pause, or its circuit breaker is open. paused: by an operator, or because the dead letters reached their limit. idle: no job is waiting."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"Departures per second now: the strictest of rate and rates, reduced after holds, and at most the rate of the pool; 0 while paused. For a tenant: its general rate, as slow as its slowest route, and at most the rates of its pools if all of its routes are in pools."`
	HeldUntil     time.Time `json:"held_until,omitzero" doc:"While a flow is held, or waits for a pool that is: when the hold ends. For a tenant: the latest end of these holds."`
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
	HeldUntil     time.Time         `json:"held_until,omitzero" doc:"While flows of the tenant are held, or wait for pools that are: the latest end of the holds."`
	HeldBy        string            `json:"held_by,omitempty" enum:"retry_after,breaker,flow_breaker,hand_off,auth,codec"`
	HeldStatus    int               `json:"held_status,omitempty" doc:"HTTP status of the upstream's last answer, absent if there was none."`
	LimitedBy     string            `json:"limited_by" enum:"rate,concurrency,pool,upstream,late,workers,flows,auth,held,paused,idle"`
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
