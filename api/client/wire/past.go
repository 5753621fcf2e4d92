package wire

import "time"

// FigureHistory is the history of all tenants together at the beginning of a stream of figures.
type FigureHistory struct {
	Overviews []PastOverview `json:"overviews" nullable:"false" doc:"At most five minutes, the earliest first: a second apart with clients or traffic, otherwise up to ten seconds. There are none for times when the store was unavailable or the process did not run."`
	Arrivals  []PastArrivals `json:"arrivals" nullable:"false" doc:"Arrivals of the last minute, the earliest first."`
}

// PastOverview is a sample of the figures of all tenants together.
type PastOverview struct {
	At       time.Time `json:"at"`
	Gap      bool      `json:"gap,omitempty" doc:"The store was unavailable since the previous overview."`
	Depth    int64     `json:"depth"`
	Running  int64     `json:"running"`
	Admitted int64     `json:"admitted_total"`
	Rejected int64     `json:"rejected_total"`
	Departed int64     `json:"departed_total"`
	Lateness *float64  `json:"lateness_p99_ms,omitempty"`
	PingMS   float64   `json:"ping_ms"`
}

// TenantHistory is the history of a tenant at the beginning of a stream of figures.
type TenantHistory struct {
	Tenant   string         `json:"tenant"`
	Samples  []PastTenant   `json:"looks" nullable:"false" doc:"At most five minutes, the earliest first: about five seconds apart, more with thousands of tenants. There are none for times when the store was unavailable or the process did not run."`
	Arrivals []PastArrivals `json:"arrivals" nullable:"false" doc:"Arrivals of the last minute, the earliest first."`
}

// PastTenant is a sample of a tenant's figures.
type PastTenant struct {
	At            time.Time `json:"at"`
	Gap           bool      `json:"gap,omitempty" doc:"The store was unavailable since the previous sample."`
	Depth         int64     `json:"depth"`
	Running       int64     `json:"running"`
	Capacity      int64     `json:"capacity"`
	OldestWaitMS  int64     `json:"oldest_wait_ms"`
	Rate          float64   `json:"rate_per_s" doc:"The rate of the settings."`
	Strictest     float64   `json:"strictest_rate_per_s" doc:"The strictest rate of the settings."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"The strictest rate, less the reduction after holds."`
	Admitted      int64     `json:"admitted_total"`
	Rejected      int64     `json:"rejected_total"`
	Departed      int64     `json:"departed_total"`
}

// PastArrivals is the number of arrivals in a span of time.
type PastArrivals struct {
	From     time.Time `json:"from"`
	Until    time.Time `json:"until" doc:"End of the span: half a second after its start if every job arrived at this process, otherwise the next sample of the store."`
	Admitted int64     `json:"admitted"`
	Refused  int64     `json:"refused"`
}
