package wire

import "time"

// FigureHistory is what is known of the time before a stream of figures begins.
type FigureHistory struct {
	Overviews []PastOverview `json:"overviews" nullable:"false" doc:"Of all tenants together, of at most five minutes, the earliest first: a second apart while somebody followed, ten seconds else; none of times when the store was away or the process did not run."`
	Arrivals  *PastArrivals  `json:"arrivals,omitempty" doc:"Of the tenant, if one is named."`
}

// PastOverview is the figures of all tenants together at an instant that is past.
type PastOverview struct {
	At       time.Time `json:"at"`
	Depth    int64     `json:"depth"`
	Running  int64     `json:"running"`
	Admitted int64     `json:"admitted_total"`
	Rejected int64     `json:"rejected_total"`
	Departed int64     `json:"departed_total"`
	Lateness *float64  `json:"lateness_p99_ms,omitempty"`
	PingMS   float64   `json:"ping_ms"`
}

// PastArrivals is how many jobs of a tenant came to this process in the last minute, in spans of equal width.
type PastArrivals struct {
	From     time.Time `json:"from" doc:"Beginning of the first span."`
	WidthMS  int64     `json:"width_ms"`
	Admitted []int64   `json:"admitted" nullable:"false"`
	Refused  []int64   `json:"refused" nullable:"false"`
}
