package wire

import "time"

// Overview is the whole of Sluice at one instant: the answer of GET /v1/stats and the event "overview" of GET /v1/stream.
type Overview struct {
	At            time.Time `json:"at"`
	Tenants       int64     `json:"tenants" doc:"With jobs, or active in the last ten minutes."`
	Depth         int64     `json:"depth" doc:"Jobs scheduled, queued and retrying."`
	Bytes         int64     `json:"bytes" doc:"Of the payloads of these jobs."`
	Running       int64     `json:"running" doc:"Jobs with a worker."`
	Admitted      int64     `json:"admitted_total"`
	Rejected      int64     `json:"rejected_total"`
	Departed      int64     `json:"departed_total"`
	LatenessP99MS *float64  `json:"lateness_p99_ms,omitempty" doc:"How late departures of the last seconds were; absent where no worker tells."`
	Workers       int64     `json:"workers" doc:"Worker processes that beat."`
	Store         StoreLook `json:"store"`
}

// StoreLook is the health of Redis.
type StoreLook struct {
	OK         bool    `json:"ok"`
	Engine     string  `json:"engine" enum:"redis,private,embedded"`
	PingMS     float64 `json:"ping_ms"`
	UsedMemory int64   `json:"used_memory,omitempty" doc:"Bytes."`
	MaxMemory  int64   `json:"max_memory,omitempty" doc:"Bytes; absent where there is no bound."`
	Version    string  `json:"version,omitempty"`
	Error      string  `json:"error,omitempty"`
}

// TenantsLook is the event "tenants" of GET /v1/stream: the first tenants of those asked for.
type TenantsLook struct {
	At       time.Time   `json:"at"`
	Matching int64       `json:"matching" doc:"Tenants whose name contains what was asked for."`
	Items    []TenantRow `json:"items" nullable:"false"`
}

// TenantRow is a tenant in a table.
type TenantRow struct {
	Tenant        string  `json:"tenant"`
	Rate          Rate    `json:"rate"`
	EffectiveRate float64 `json:"effective_rate_per_s"`
	Capacity      int64   `json:"capacity"`
	Depth         int64   `json:"depth"`
	Running       int64   `json:"running"`
	Paused        bool    `json:"paused"`
	LimitedBy     string  `json:"limited_by" enum:"rate,concurrency,held,paused,idle"`
	OldestWaitMS  int64   `json:"oldest_wait_ms"`
	Admitted      int64   `json:"admitted_total"`
	Rejected      int64   `json:"rejected_total"`
	Departed      int64   `json:"departed_total"`
	Succeeded     int64   `json:"succeeded_total"`
	Dead          int64   `json:"dead_total"`
}

// TenantLook is the event "tenant" of GET /v1/stream: one tenant with the waits of its most recent ended jobs.
type TenantLook struct {
	At time.Time `json:"at"`
	Tenant
	WaitP50MS int64 `json:"wait_p50_ms"`
	WaitP95MS int64 `json:"wait_p95_ms"`
	WaitP99MS int64 `json:"wait_p99_ms"`
}
