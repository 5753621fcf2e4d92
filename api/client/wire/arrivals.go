package wire

import "time"

// Arrival is a submission that the queue has decided on.
type Arrival struct {
	At      time.Time `json:"at" example:"2026-03-01T12:00:00.250417Z" doc:"On the clock of the store, to the microsecond."`
	Cost    int64     `json:"cost" doc:"Intervals of the rate that the job takes."`
	Route   string    `json:"route"`
	Outcome string    `json:"outcome" enum:"admitted,refused"`
}

// Arrivals are the data of one event of GET /v1/tenants/{tenant}/arrivals.
type Arrivals struct {
	Items []Arrival `json:"items" nullable:"false" doc:"The arrivals, nearly in order."`
	Lost  int64     `json:"lost,omitempty" doc:"Earlier arrivals that were left out because the client was too slow."`
}

// Prediction holds simulations of a tenant's latest arrivals with its settings and with changed
// ones.
type Prediction struct {
	From          time.Time `json:"from" doc:"Start of the simulated time: an hour ago, the start of this process, or later if there were more arrivals than are simulated."`
	Until         time.Time `json:"until"`
	Arrivals      int64     `json:"arrivals" doc:"Submissions at this process in that time, refused ones included."`
	ServiceTimeMS int64     `json:"service_time_ms,omitempty" doc:"Average time of the last 100 successful deliveries; the longest one of several routes. Absent if there is no limit of concurrency, or no recent job."`
	Now           Outlook   `json:"now" doc:"With the settings in force."`
	Then          Outlook   `json:"then" doc:"With the settings of the body."`
}

// Outlook is the simulation of arrivals at an empty queue. The waits are those of the departed
// jobs.
type Outlook struct {
	Admitted int64  `json:"admitted"`
	Refused  int64  `json:"refused"`
	WaitP50  *int64 `json:"wait_p50_ms,omitempty" doc:"Time from arrival to departure. Absent, like the other waits, if no job would have left."`
	WaitP95  *int64 `json:"wait_p95_ms,omitempty"`
	WaitP99  *int64 `json:"wait_p99_ms,omitempty"`
	WaitMax  *int64 `json:"wait_max_ms,omitempty"`
	DepthMax int64  `json:"depth_max" doc:"Largest depth of one flow."`
}
