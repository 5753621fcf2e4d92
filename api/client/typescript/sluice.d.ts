import type { BatchJob, Job, JobResult, Problem, Submission } from "./schemas.d.ts";

export type { Attempt, BatchJob, FieldError, Job, JobError, JobResult, Problem, Response, Submission } from "./schemas.d.ts";

/** An answer that is not a success. */
export class SluiceError extends Error {
  readonly status: number;
  /** The last part of the problem's type, such as "queue-full"; empty if the answer is none. */
  readonly kind: string;
  readonly problem: Partial<Problem>;
  /** Seconds until the request may succeed; undefined if the server does not say. */
  readonly retryAfter?: number;
}

/** The tenant's queue, its pool or the store is full, or requests come too fast: 429. */
export class QueueFull extends SluiceError {}

/** The server, or its store, cannot answer now: 502, 503 or 504. */
export class Unavailable extends SluiceError {}

/** A request is not from Sluice, or it is too old. */
export class InvalidSignature extends Error {}

export interface Options {
  /** An API key or a JWT. */
  token?: string;
  /** Whose jobs they are; absent: that of the token, or the server's "default". */
  tenant?: string;
  /**
   * Seconds for which a call is repeated after 429, 502, 503, 504 and lost connections, each time
   * after what Retry-After says; 60 if absent, 0 for never.
   */
  retryFor?: number;
  /** Seconds after which a request without an answer counts as lost; 15 if absent. */
  timeout?: number;
  fetch?: typeof fetch;
}

interface Cancellable {
  signal?: AbortSignal;
}

/** A client of the intake of one server. */
export class Client {
  constructor(base: string, options?: Options);

  /**
   * Submits one job. The key makes repeated submissions one job; a random one is made if it is
   * absent. wait is how many seconds to wait for the end of the job, at most 30.
   */
  submit(submission: Submission, options?: Cancellable & { key?: string; wait?: number }): Promise<Job>;

  /** Submits up to 1,000 jobs, and returns the result of each, in order. */
  submitBatch(jobs: BatchJob[], options?: Cancellable & { atomic?: boolean }): Promise<JobResult[]>;

  /** Reads a job: its state, its position and, once it is done, the answer of the upstream. */
  job(id: string, options?: Cancellable): Promise<Job>;

  /** Waits for the end of a job: timeout seconds, 300 if absent, then it throws TimeoutError. */
  wait(id: string, options?: Cancellable & { timeout?: number }): Promise<Job>;

  /** The job each time that its state or its position changes, until it is done. */
  states(id: string, options?: Cancellable): AsyncGenerator<Job, void>;

  /** Cancels a waiting job. */
  cancel(id: string, options?: Cancellable): Promise<Job>;

  /** Queues a dead job again. After a lost answer this may be a "job-state-conflict". */
  replay(id: string, options?: Cancellable): Promise<Job>;
}

/**
 * Checks that a callback is from Sluice and returns its event, or throws InvalidSignature. body are
 * the bytes of the request before any parsing. One of the secrets ("whsec_…") must fit. Where all
 * tenants share a secret, only tenant tells them apart. tolerance is how many seconds the signature
 * may be old or early, 300 if absent. now is in seconds.
 */
export function verify(
  headers: Headers | Record<string, string | string[] | undefined>,
  body: Uint8Array | string,
  secrets: string | string[],
  options?: { tenant?: string; tolerance?: number; now?: number },
): Promise<{ type: string; timestamp: string; data: Job }>;
