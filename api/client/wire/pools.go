package wire

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// PoolSettings is the body of PUT and PATCH /v1/pools/{pool}: the settings that pools have. An
// absent setting is left to the configuration (PUT) or unchanged (PATCH). A PATCH that resets a
// setting by null is a map instead.
type PoolSettings Settings

// RouteOverrides are the API overrides of a pool, or of one route of a tenant.
type RouteOverrides shaper.Overrides

// Pool is a rate that the flows of its routes share, with the sums of their figures.
type Pool struct {
	Pool   string   `json:"pool"`
	Routes []string `json:"routes" nullable:"false" doc:"The flows of these routes, of all tenants, are in the pool."`
	Policy
	Hold           string          `json:"hold" enum:"flow,pool" doc:"What an answer with Retry-After holds at first: the flow, and the pool once flows of two tenants got one, or the pool at once."`
	MaxHoldMS      int64           `json:"max_hold_ms" doc:"How long answers hold the pool at most."`
	Reason         string          `json:"reason,omitempty" doc:"The reason given with the last change."`
	Revision       int64           `json:"revision" doc:"Revision of the settings, also the ETag; 0 if the settings were never changed."`
	Overrides      *RouteOverrides `json:"overrides,omitempty" doc:"Settings made through the API; absent if there are none."`
	Depth          int64           `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Bytes          int64           `json:"bytes" doc:"Payload bytes of the jobs that depth counts."`
	Running        int64           `json:"running" doc:"Jobs leased by a worker."`
	Departed       int64           `json:"departed_total"`
	Costs          int64           `json:"cost_total" doc:"Costs of these departures, which the rate counts. It falls where a job cost less than expected."`
	LimitedBy      string          `json:"limited_by" enum:"rate,concurrency,pool,upstream,late,workers,flows,auth,held,paused,idle" doc:"What keeps the next job of the pool from leaving now, as for a flow."`
	EffectiveRate  float64         `json:"effective_rate_per_s" doc:"Departures per second now: the strictest of rate and rates, reduced after holds; 0 while paused."`
	HeldUntil      time.Time       `json:"held_until,omitzero" doc:"While the pool is held: when the hold ends."`
	HeldBy         string          `json:"held_by,omitempty" enum:"retry_after,breaker,flow_breaker,hand_off,auth,codec" doc:"While it is held: the cause."`
	HeldStatus     int             `json:"held_status,omitempty" doc:"While it is held: HTTP status of the upstream's last answer, absent if there was none."`
	WaitingFlows   int64           `json:"waiting_flows" doc:"Flows with a job that waits for a stamp, or that repay what they owe."`
	Weights        int64           `json:"weights" doc:"Sum of the weights of these flows, with that of a class once."`
	Reserves       float64         `json:"reserves_per_s" doc:"Sum of the reserves of these flows, per second."`
	Owed           int64           `json:"owed,omitempty" doc:"What the flows and tiers of the pool owe together: they repay it before their next jobs. Absent for 0."`
	Oversubscribed bool            `json:"oversubscribed" doc:"The reserves of these flows add up to more than the rate. Each flow then gets its reserve reduced in proportion, and flows without a reserve get nothing. Raise the rate or lower reserves."`
}

// PoolList lists the pools by name.
type PoolList struct {
	Items []Pool `json:"items" nullable:"false"`
}

// PoolFlow is a flow that waits in a pool.
type PoolFlow struct {
	Tenant   string       `json:"tenant" doc:"Name of the tenant. It may be ~ and a SHA-256 for a flow whose last waiting job has just left."`
	Route    string       `json:"route"`
	Depth    int64        `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Running  int64        `json:"running" doc:"Jobs leased by a worker."`
	Departed int64        `json:"departed_total"`
	Costs    int64        `json:"cost_total" doc:"Costs of these departures."`
	Weight   int64        `json:"weight"`
	Class    string       `json:"class,omitempty" doc:"The tier whose tenants together have the weight. Absent for none."`
	Reserve  *shaper.Rate `json:"reserve,omitempty" doc:"Absent for none."`
	Part     float64      `json:"part" doc:"Part of the pool's rate, from 0 to 1, that weight and reserve entitle the flow to while the same flows wait. The flow's own rate may be lower."`
}

// PoolFlows lists flows that wait in a pool, those that may leave next first.
type PoolFlows struct {
	Items []PoolFlow `json:"items" nullable:"false"`
}

// PoolLines are all pools at an instant.
type PoolLines struct {
	At    time.Time `json:"at"`
	Items []Pool    `json:"items" nullable:"false"`
}

// PoolNow is a pool at an instant.
type PoolNow struct {
	At time.Time `json:"at"`
	Pool
}

// PoolHistory is the history of a pool at the beginning of a stream of figures.
type PoolHistory struct {
	Pool    string     `json:"pool"`
	Samples []PastPool `json:"samples" nullable:"false" doc:"At most five minutes, the earliest first: about five seconds apart, more with thousands of tenants. There are none for times when the store was unavailable or the process did not run."`
}

// PastPool is a sample of a pool's figures.
type PastPool struct {
	At            time.Time `json:"at"`
	Gap           bool      `json:"gap,omitempty" doc:"The store was unavailable since the previous sample."`
	Depth         int64     `json:"depth"`
	Running       int64     `json:"running"`
	Capacity      int64     `json:"capacity"`
	Strictest     float64   `json:"strictest_rate_per_s" doc:"The strictest rate of the settings."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"The strictest rate, less the reduction after holds; 0 while paused."`
	Departed      int64     `json:"departed_total"`
	Costs         int64     `json:"cost_total" doc:"Costs of these departures."`
}

// PoolShares are the flows of a pool that wait or have left lately.
type PoolShares struct {
	At       time.Time   `json:"at"`
	Pool     string      `json:"pool"`
	Matching int         `json:"matching" doc:"Number of these flows."`
	Items    []PoolShare `json:"items" nullable:"false" doc:"At most 100: those with the largest parts. By weight and reserve, the largest first, then by name."`
}

// PoolShare is a flow with the part of its pool's rate that it got in the last ten seconds, beside
// the part that it was entitled to.
type PoolShare struct {
	Tenant     string       `json:"tenant"`
	Route      string       `json:"route"`
	Depth      int64        `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Running    int64        `json:"running" doc:"Jobs leased by a worker."`
	Departed   int64        `json:"departed_total"`
	Costs      int64        `json:"cost_total" doc:"Costs of these departures."`
	Weight     int64        `json:"weight"`
	Class      string       `json:"class,omitempty" doc:"The tier whose tenants together have the weight. Absent for none."`
	Reserve    *shaper.Rate `json:"reserve,omitempty" doc:"Absent for none."`
	LimitedBy  string       `json:"limited_by" enum:"rate,concurrency,pool,upstream,late,workers,flows,auth,held,paused,idle"`
	Part       float64      `json:"part" doc:"Part of the pool's rate, from 0 to 1, that weight and reserve entitle the flow to while the same flows wait: the mean of the last ten seconds. It is 0 while the flow does not wait."`
	Departures *float64     `json:"departures_per_s,omitempty" doc:"Departures a second, the mean of the last ten seconds; absent until it is known."`
	Got        *float64     `json:"got,omitempty" doc:"Part of the pool's strictest rate by cost that the costs of these departures are."`
}
