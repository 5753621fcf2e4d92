package wire

import "time"

// FigureHistory is what is known of all tenants together when a stream of figures begins.
type FigureHistory struct {
	Overviews []PastOverview `json:"overviews" nullable:"false" doc:"Of at most five minutes, the earliest first: a second apart while somebody followed or jobs came or left, up to ten seconds else; none of times when the store was away or the process did not run."`
	Arrivals  []PastArrivals `json:"arrivals" nullable:"false" doc:"Of the last minute, the earliest first."`
}

// PastOverview is the figures of all tenants together at an instant that is past.
type PastOverview struct {
	At       time.Time `json:"at"`
	Gap      bool      `json:"gap,omitempty" doc:"The store was away since the overview before."`
	Depth    int64     `json:"depth"`
	Running  int64     `json:"running"`
	Admitted int64     `json:"admitted_total"`
	Rejected int64     `json:"rejected_total"`
	Departed int64     `json:"departed_total"`
	Lateness *float64  `json:"lateness_p99_ms,omitempty"`
	PingMS   float64   `json:"ping_ms"`
}

// TenantHistory is what is known of a tenant when a stream of figures begins.
type TenantHistory struct {
	Tenant   string         `json:"tenant"`
	Looks    []PastTenant   `json:"looks" nullable:"false" doc:"Of at most five minutes, the earliest first: about five seconds apart, more where there are thousands of tenants; none of times when the store was away or the process did not run."`
	Arrivals []PastArrivals `json:"arrivals" nullable:"false" doc:"Of the last minute, the earliest first."`
}

// PastTenant is the figures of a tenant at an instant that is past.
type PastTenant struct {
	At            time.Time `json:"at"`
	Gap           bool      `json:"gap,omitempty" doc:"The store was away since the look before."`
	Depth         int64     `json:"depth"`
	Running       int64     `json:"running"`
	Capacity      int64     `json:"capacity"`
	OldestWaitMS  int64     `json:"oldest_wait_ms"`
	Rate          float64   `json:"rate_per_s" doc:"The rate that was set."`
	Strictest     float64   `json:"strictest_rate_per_s" doc:"The least of the rates that were set."`
	EffectiveRate float64   `json:"effective_rate_per_s" doc:"What was left of the strictest."`
	Admitted      int64     `json:"admitted_total"`
	Rejected      int64     `json:"rejected_total"`
	Departed      int64     `json:"departed_total"`
}

// PastArrivals is how many jobs came in a span of time.
type PastArrivals struct {
	From     time.Time `json:"from"`
	Until    time.Time `json:"until" doc:"The end of the span: half a second after its beginning where every job came to this process, else the next time that the store was looked at."`
	Admitted int64     `json:"admitted"`
	Refused  int64     `json:"refused"`
}
