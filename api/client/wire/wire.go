// Package wire holds the JSON forms of the HTTP API, shared by the server and its Go client. The
// OpenAPI document is made from the struct tags. Durations are whole milliseconds
// (_ms), times RFC 3339 in UTC (_at).
//
// The package depends neither on the queue nor on HTTP. The doc tags describe the values.
package wire

import (
	"strconv"
	"time"
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
	Scope               string       `json:"scope,omitempty" enum:"flow,pool,share,tenant" doc:"queue-full, queue-bytes-full, never-fits, too-costly and store-full: what is full, or has the limit. Of forbidden: tenant if no other credential of the tenant helps. flow: the queue of the tenant's route. pool: the pool that the route is in. share: the part of the pool that the flow may hold now, because a flow holds at most three times what it leaves to others; of store-full the part of the store that guests, or the tenants of a tier, share. All figures are those of the scope."`
	Pool                string       `json:"pool,omitempty" doc:"With scope pool: the name of the pool."`
	Cost                int64        `json:"cost,omitempty" doc:"too-costly: the cost of the job."`
	MaxCost             int64        `json:"max_cost,omitempty" doc:"too-costly: the greatest cost of one job, in the tenant's route or in the pool: see scope."`
	RetryAfterMS        int64        `json:"retry_after_ms,omitempty" doc:"queue-full and queue-bytes-full: milliseconds until the requested slots are free; absent while paused, if nobody knows, or if they can never be free. rate-limited: milliseconds until the next request passes."`
	RetryAfterEstimated bool         `json:"retry_after_estimated,omitempty" doc:"retry_after_ms is an estimate: it depends on how long deliveries take, on other tenants of the pool, or on the bytes or costs of waiting jobs. Absent where it is exact."`
	Guard               string       `json:"guard,omitempty" doc:"rate-limited: the guard that refused it; absent where a tenant reads jobs too often."`
	EstimatedStart      time.Time    `json:"estimated_start_at,omitzero" doc:"deadline-unreachable: when the job would leave."`
	EstimatedWaitMS     int64        `json:"estimated_wait_ms,omitempty" doc:"deadline-unreachable: the same, from now."`
	Missing             string       `json:"missing,omitempty" doc:"forbidden: what the credential or the tenant lacks: a scope, a route, a type of jobs, or network."`
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
	case e.Kind == "object" || e.Kind == "array": // its value is a short form, such as 20/s
		found = e.Value
	default:
		found += " " + e.Value
	}
	return e.Field + " (" + found + ") " + e.Rule
}
