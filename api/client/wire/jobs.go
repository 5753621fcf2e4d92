package wire

import (
	"encoding/json"
	"time"
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
