// The schemas of docs/openapi.json, written by go test ./cmd/sluice -run TestTypesOfTypeScript -update.

export interface Attempt {
  /** When the delivery ended. */
  at: string;
  /** Number of the attempt, from 1, and from 1 again after a replay. A held delivery costs no attempt, so it has the number of the next one. */
  attempt: number;
  /** Why the delivery failed, at most 200 bytes. */
  message?: string;
  /** retry: failed, with attempts left. dead: failed, and was the last attempt. held: the upstream requested a pause, so the job was put back. */
  outcome: "retry" | "dead" | "held" | "succeeded";
  /** HTTP status of the upstream's answer, if there was one. */
  status?: number;
}

export interface Batch {
  /** Admit all jobs or none. */
  atomic?: boolean;
  /** The jobs, admitted in this order. */
  jobs: BatchJob[];
}

export interface BatchJob {
  /** Receives a POST when the job has ended. Its address must be public, unless the configuration lists its prefix. The URL is not part of the idempotency fingerprint. */
  callback_url?: string;
  /** Number of departure intervals that the job takes; 1 if absent. If only the delivery knows the cost, an estimate: the upstream's answer replaces it. */
  cost?: number;
  /** Delay before the first delivery. The job holds its slot in the queue meanwhile. */
  delay_ms?: number;
  /** Headers of the deliveries, such as X-Request-Id: those that the route lists in job_headers, at most 16, with 4 KiB of names and values. Names count as the same in any case, and with _ for -. They are part of the idempotency fingerprint. */
  headers?: Record<string, string>;
  /** Like the header Idempotency-Key, unquoted. At most 255 bytes, no control characters. */
  idempotency_key?: string;
  /** The job expires if it cannot leave within this time; 0 or absent: the tenant's max_wait_ms. */
  max_wait_ms?: number;
  /** Path below the URL of the route, percent-encoded, without a query. Only if the route has paths: true. */
  path?: string;
  /** Any JSON value, delivered byte for byte. */
  payload: unknown;
  /** Name of a configured route; "default" if absent. */
  route?: string;
  /** The kind of job, for the receiver. At most 255 bytes, no control characters. */
  type: string;
}

export interface BatchResult {
  items: JobResult[];
}

export interface Empty {
}

export interface FieldError {
  /** Path in the body, or header, query or path parameter. */
  field: string;
  /** Kind of the value that was found: string, number, boolean, null, array, object or nothing. */
  kind: string;
  rule: string;
  /** The value: a number, a boolean, or a text where a number, a time, a rate or one of several names is read. At most 64 bytes of it. Other texts are not repeated, because they may be secrets. */
  value?: string;
}

export interface Health {
  /** A warning for operators; the process works. */
  detail?: string;
  status: "ok";
}

export interface Job {
  /** Cost that the last delivery reported. It replaced the cost that the departure was charged for. */
  actual_cost?: number;
  /** How deliveries ended, once one has failed: at most the last 20, the oldest first. A replay does not clear it. */
  attempt_log?: Attempt[];
  /** Deliveries that count against max_attempts. */
  attempts: number;
  /** Cost as submitted. Absent only where the job is past retention. */
  cost?: number;
  created_at?: string;
  /** Whether the state is final: succeeded, dead, cancelled or expired. A dead job can be replayed. */
  done: boolean;
  /** When the job leaves if nothing changes; absent while paused or held without end. */
  estimated_start_at?: string;
  /** When the final state was reached. */
  finished_at?: string;
  /** Headers that the job sets on its deliveries, only on the admin listener, and until it has ended without becoming a dead letter. Those that are named like a credential, such as X-Api-Key, have the value hidden. */
  headers?: Record<string, string>;
  /** True for operators with the role viewer: payloads, bodies, values of headers, paths of forwarded requests and messages of errors are left out, or are (hidden). */
  hidden?: boolean;
  id: string;
  last_error?: JobError;
  max_attempts: number;
  /** Position in the queue; 1 leaves next. Only while queued. */
  position?: number;
  response?: Response;
  route: string;
  /** When a scheduled or retrying job becomes eligible. */
  scheduled_at?: string;
  /** The last departure. */
  started_at?: string;
  /** Absent only where the job is past retention and nothing but its idempotency key is known. */
  state?: "scheduled" | "queued" | "leased" | "retrying" | "succeeded" | "dead" | "cancelled" | "expired";
  tenant: string;
  type: string;
}

export interface JobError {
  at: string;
  /** Details for operators, only on the admin listener: addresses, names of hosts and certificates. */
  detail?: string;
  message: string;
  /** HTTP status of the upstream's answer, if there was one. */
  status?: number;
}

export interface JobList {
  items: Job[];
  /** The cursor of the next page; absent on the last page. */
  next_cursor?: string;
}

export interface JobResult {
  /** method-not-allowed: as the header Allow. */
  allowed_methods?: string[] | null;
  /** queue-bytes-full: payload bytes of the waiting jobs. */
  bytes?: number;
  /** queue-full: the capacity. */
  capacity?: number;
  /** queue-bytes-full: the limit of bytes. */
  capacity_bytes?: number;
  /** too-costly: the cost of the job. */
  cost?: number;
  /** queue-full: jobs in the queue, or in the pool. */
  depth?: number;
  detail?: string;
  /** The invalid fields. */
  errors?: FieldError[] | null;
  /** deadline-unreachable: when the job would leave. */
  estimated_start_at?: string;
  /** deadline-unreachable: the same, from now. */
  estimated_wait_ms?: number;
  /** rate-limited: the guard that refused it; absent where a tenant reads jobs too often. */
  guard?: string;
  /** True if the idempotency key was known; the job is that of the first submission. */
  idempotent_replayed?: boolean;
  /** The job, if it was admitted or its idempotency key was known. */
  job?: Job;
  /** too-costly: the greatest cost of one job, in the tenant's route or in the pool: see scope. */
  max_cost?: number;
  /** forbidden: what the credential or the tenant lacks: a scope, a route, a type of jobs, or network. */
  missing?: string;
  /** With scope pool: the name of the pool. */
  pool?: string;
  /** retry_after_ms is an estimate: it depends on how long deliveries take, on other tenants of the pool, or on the bytes or costs of waiting jobs. Absent where it is exact. */
  retry_after_estimated?: boolean;
  /** queue-full and queue-bytes-full: milliseconds until the requested slots are free; absent while paused, if nobody knows, or if they can never be free. rate-limited: milliseconds until the next request passes. */
  retry_after_ms?: number;
  /** queue-full, queue-bytes-full, never-fits, too-costly and store-full: what is full, or has the limit. Of forbidden: tenant if no other credential of the tenant helps. flow: the queue of the tenant's route. pool: the pool that the route is in. share: the part of the pool that the flow may hold now, because a flow holds at most three times what it leaves to others; of store-full the part of the store that guests, or the tenants of a tier, share. All figures are those of the scope. */
  scope?: "flow" | "pool" | "share" | "tenant";
  /** queue-bytes-full, instead of capacity_bytes: the current limit of stored_bytes, a share of the store. */
  share_bytes?: number;
  /** job-state-conflict: the job's state. */
  state?: string;
  status: number;
  /** queue-bytes-full, instead of bytes: bytes stored of the route's jobs, dead letters and answers. */
  stored_bytes?: number;
  /** unsupported-media-type: what is read here. */
  supported_media_types?: string[] | null;
  title?: string;
  /** Stable identifier, a URN. */
  type?: string;
}

export interface Problem {
  /** method-not-allowed: as the header Allow. */
  allowed_methods?: string[] | null;
  /** queue-bytes-full: payload bytes of the waiting jobs. */
  bytes?: number;
  /** queue-full: the capacity. */
  capacity?: number;
  /** queue-bytes-full: the limit of bytes. */
  capacity_bytes?: number;
  /** too-costly: the cost of the job. */
  cost?: number;
  /** queue-full: jobs in the queue, or in the pool. */
  depth?: number;
  detail?: string;
  /** The invalid fields. */
  errors?: FieldError[] | null;
  /** deadline-unreachable: when the job would leave. */
  estimated_start_at?: string;
  /** deadline-unreachable: the same, from now. */
  estimated_wait_ms?: number;
  /** rate-limited: the guard that refused it; absent where a tenant reads jobs too often. */
  guard?: string;
  /** too-costly: the greatest cost of one job, in the tenant's route or in the pool: see scope. */
  max_cost?: number;
  /** forbidden: what the credential or the tenant lacks: a scope, a route, a type of jobs, or network. */
  missing?: string;
  /** With scope pool: the name of the pool. */
  pool?: string;
  /** retry_after_ms is an estimate: it depends on how long deliveries take, on other tenants of the pool, or on the bytes or costs of waiting jobs. Absent where it is exact. */
  retry_after_estimated?: boolean;
  /** queue-full and queue-bytes-full: milliseconds until the requested slots are free; absent while paused, if nobody knows, or if they can never be free. rate-limited: milliseconds until the next request passes. */
  retry_after_ms?: number;
  /** queue-full, queue-bytes-full, never-fits, too-costly and store-full: what is full, or has the limit. Of forbidden: tenant if no other credential of the tenant helps. flow: the queue of the tenant's route. pool: the pool that the route is in. share: the part of the pool that the flow may hold now, because a flow holds at most three times what it leaves to others; of store-full the part of the store that guests, or the tenants of a tier, share. All figures are those of the scope. */
  scope?: "flow" | "pool" | "share" | "tenant";
  /** queue-bytes-full, instead of capacity_bytes: the current limit of stored_bytes, a share of the store. */
  share_bytes?: number;
  /** job-state-conflict: the job's state. */
  state?: string;
  status: number;
  /** queue-bytes-full, instead of bytes: bytes stored of the route's jobs, dead letters and answers. */
  stored_bytes?: number;
  /** unsupported-media-type: what is read here. */
  supported_media_types?: string[] | null;
  title?: string;
  /** Stable identifier, a URN. */
  type?: string;
}

export interface Response {
  /** Text, or base64 if body_encoding is base64. */
  body: string;
  body_encoding?: "base64";
  body_truncated: boolean;
  /** Content-Type, Location and Retry-After. Of the answer to a forwarded request, all of them: values of a repeated header are joined by commas, and headers that are named like a credential, such as Set-Cookie, have the value hidden. */
  headers: Record<string, string>;
  status: number;
}

export interface Submission {
  /** Receives a POST when the job has ended. Its address must be public, unless the configuration lists its prefix. The URL is not part of the idempotency fingerprint. */
  callback_url?: string;
  /** Number of departure intervals that the job takes; 1 if absent. If only the delivery knows the cost, an estimate: the upstream's answer replaces it. */
  cost?: number;
  /** Delay before the first delivery. The job holds its slot in the queue meanwhile. */
  delay_ms?: number;
  /** Headers of the deliveries, such as X-Request-Id: those that the route lists in job_headers, at most 16, with 4 KiB of names and values. Names count as the same in any case, and with _ for -. They are part of the idempotency fingerprint. */
  headers?: Record<string, string>;
  /** The job expires if it cannot leave within this time; 0 or absent: the tenant's max_wait_ms. */
  max_wait_ms?: number;
  /** Path below the URL of the route, percent-encoded, without a query. Only if the route has paths: true. */
  path?: string;
  /** Any JSON value, delivered byte for byte. */
  payload: unknown;
  /** Name of a configured route; "default" if absent. */
  route?: string;
  /** The kind of job, for the receiver. At most 255 bytes, no control characters. */
  type: string;
}
